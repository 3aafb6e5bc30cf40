# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Where the encapsulated packets of a tunnel go: to the remote endpoints that the kernel reports.

Attributes are those of linux/if_link.h (vxlan, geneve, xfrm), linux/if_tunnel.h and linux/wireguard.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import typing as t
from dataclasses import dataclass

from . import netlink
from .links import Link
from .routes import Address, Query

RTM_GETNEIGH = 30
_ND = struct.Struct("=BxxxiHBB")
_NDA_DST, _NDA_IFINDEX = 1, 8
_ENDPOINT = struct.Struct("=H2s")
#: Maximum number of entries of a forwarding table or peer list. If a tunnel has more, its endpoints count as unknown.
_MAX_ENDPOINTS = 4096


@dataclass(frozen=True)
class _TunnelAttributes:
    """The numbers of a kind's attributes (0: none): the link to which the tunnel is bound, its local and remote
    addresses, and the flag that routes or a program set the endpoint of each packet."""

    link: int = 0
    local: tuple[int, ...] = ()
    remote: tuple[int, ...] = ()
    per_packet: int = 0


_GRE = _TunnelAttributes(1, (6,), (7,), 18)
_IPTUN = _TunnelAttributes(1, (2,), (3,), 19)
_VTI = _TunnelAttributes(1, (4,), (5,))
_ATTRIBUTES_BY_KIND = {
    "vxlan": _TunnelAttributes(3, (4, 17), (2, 16), 25),
    "geneve": _TunnelAttributes(0, (), (2, 7), 6),
    **dict.fromkeys(("gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"), _GRE),
    **dict.fromkeys(("ipip", "sit", "ip6tnl"), _IPTUN),
    **dict.fromkeys(("vti", "vti6"), _VTI),
    "xfrm": _TunnelAttributes(1),
}


@dataclass(frozen=True)
class Underlay:
    """The known paths of a tunnel's encapsulated packets: the links to which the tunnel is bound, and look-ups of its
    endpoints.

    `complete` is whether there are no other paths.
    """

    links: tuple[int, ...] = ()
    queries: tuple[Query, ...] = ()
    complete: bool = True


def underlay(kernel: netlink.Connection, link: Link) -> Underlay:
    """The underlay of a tunnel. Raises OSError."""
    if link.kind == "wireguard":
        return _wireguard(link)
    attributes = _ATTRIBUTES_BY_KIND.get(link.kind)
    if attributes is None:  # tun, ppp, l2tp and others: only a program or a higher protocol knows the endpoint
        return Underlay(complete=False)
    bound_link = netlink.number(link.data.get(attributes.link, b"")) or (
        0 if link.kind == "vxlan" else link.lower_or_peer
    )
    if bound_link:
        return Underlay(links=(bound_link,))
    local = next(iter(_addresses(link, attributes.local)), None)
    remote = [endpoint for endpoint in _addresses(link, attributes.remote) if not endpoint.is_multicast]
    if link.kind == "vxlan":
        forwarding = _forwarding_endpoints(kernel, link.index)
        if len(forwarding) > _MAX_ENDPOINTS:
            return Underlay(complete=False)
        remote += forwarding
    value = link.data.get(attributes.per_packet) if attributes.per_packet else None
    per_packet = value is not None and (not value or any(value))  # a set flag has no value, a set number is not 0
    return Underlay((), tuple(Query(endpoint, local) for endpoint in remote), bool(remote) and not per_packet)


def _addresses(link: Link, kinds: t.Iterable[int]) -> list[Address]:
    values = (link.data.get(kind, b"") for kind in kinds)
    addresses = [ipaddress.ip_address(value) for value in values if len(value) in (4, 16)]
    return [address for address in addresses if not address.is_unspecified]


def _forwarding_endpoints(kernel: netlink.Connection, index: int) -> list[Address]:
    """The endpoints in the forwarding table of a VXLAN interface."""
    endpoints: dict[Address, None] = {}
    request = _ND.pack(socket.AF_BRIDGE, 0, 0, 0, 0)
    packed_index = struct.pack("=i", index)
    for _unused, body in kernel.dump(
        RTM_GETNEIGH, request, lambda message: message[4:8] == packed_index, optional=True
    ):
        value = netlink.attributes(body, _ND.size).get(_NDA_DST, b"")
        if len(value) in (4, 16):
            address = ipaddress.ip_address(value)
            if not address.is_multicast and not address.is_unspecified:
                endpoints[address] = None
    return list(endpoints)


# ---- WireGuard, through generic netlink (drivers/net/wireguard/netlink.c)

_GENL = struct.Struct("=BBH")
_GENL_CTRL, _CTRL_GETFAMILY, _CTRL_ID, _CTRL_NAME = 16, 3, 1, 2
_WG_GET_DEVICE, _WG_IFINDEX, _WG_FWMARK, _WG_PEERS, _WG_ENDPOINT = 0, 1, 7, 8, 4


def _wireguard(link: Link) -> Underlay:
    with netlink.Connection(netlink.NETLINK_GENERIC) as kernel:
        try:
            name = netlink.text(_CTRL_NAME, "wireguard")
            (reply, *_rest) = kernel.request(_GENL_CTRL, _GENL.pack(_CTRL_GETFAMILY, 1, 0) + name)
        except OSError as error:
            if error.errno == errno.ENOENT:  # a WireGuard implementation outside the kernel
                return Underlay(complete=False)
            raise
        family = netlink.number(netlink.attributes(reply[1], _GENL.size)[_CTRL_ID])
        request = _GENL.pack(_WG_GET_DEVICE, 1, 0) + netlink.u32(_WG_IFINDEX, link.index)
        return peers([body for _unused, body in kernel.dump(family, request)])


def peers(replies: t.Sequence[bytes]) -> Underlay:
    """The underlay from the replies to WG_CMD_GET_DEVICE. A peer without an endpoint gets no packets."""
    queries: dict[Query, None] = {}
    mark = 0
    for body in replies:
        raw = netlink.attributes(body, _GENL.size)
        mark = netlink.number(raw[_WG_FWMARK]) if _WG_FWMARK in raw else mark
        for _unused, peer in netlink.pairs(raw.get(_WG_PEERS, b"")):
            value = netlink.attributes(peer).get(_WG_ENDPOINT, b"")
            if len(value) < 16:
                continue
            family, _port = _ENDPOINT.unpack_from(value)
            scope = struct.unpack_from("=I", value, 24)[0] if family == socket.AF_INET6 and len(value) >= 28 else 0
            remote = ipaddress.ip_address(value[8:24] if family == socket.AF_INET6 else value[4:8])
            queries[Query(remote, bound_link=scope, mark=mark)] = None
    return Underlay(queries=tuple(queries), complete=len(queries) <= _MAX_ENDPOINTS)
