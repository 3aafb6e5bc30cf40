# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Where the encapsulated packets of a tunnel go: its remote endpoints, as the kernel reports them.

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
#: The most entries of a forwarding table or peer list; a tunnel with more endpoints counts as unknown.
_MOST = 4096


@dataclass(frozen=True)
class _Form:
    """Attributes of a kind: the link that it is bound to, its local and remote address, and the flag that each packet's
    endpoint is set by routes or a program."""

    link: int = 0
    own: tuple[int, ...] = ()
    far: tuple[int, ...] = ()
    by_packet: int = 0


_GRE = _Form(1, (6,), (7,), 18)
_IPTUN = _Form(1, (2,), (3,), 19)
_VTI = _Form(1, (4,), (5,))
_FORMS = {
    "vxlan": _Form(3, (4, 17), (2, 16), 25),
    "geneve": _Form(0, (), (2, 7), 6),
    **dict.fromkeys(("gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"), _GRE),
    **dict.fromkeys(("ipip", "sit", "ip6tnl"), _IPTUN),
    **dict.fromkeys(("vti", "vti6"), _VTI),
    "xfrm": _Form(1),
}


@dataclass(frozen=True)
class Underlay:
    """The known paths of a tunnel's own packets: the links that it is bound to, and the look-ups of its endpoints.

    `whole` is whether there are no other paths.
    """

    links: tuple[int, ...] = ()
    queries: tuple[Query, ...] = ()
    whole: bool = True


def underlay(kernel: netlink.Connection, link: Link) -> Underlay:
    """The underlay of a tunnel. Raises OSError."""
    if link.kind == "wireguard":
        return _wireguard(link)
    form = _FORMS.get(link.kind)
    if form is None:  # tun, ppp, l2tp ...: only a program or a higher protocol knows the endpoint
        return Underlay(whole=False)
    bound = netlink.number(link.data.get(form.link, b"")) or (0 if link.kind == "vxlan" else link.made_of)
    if bound:
        return Underlay(links=(bound,))
    own = next(iter(_addresses(link, form.own)), None)
    far = [one for one in _addresses(link, form.far) if not one.is_multicast]
    if link.kind == "vxlan":
        switched = _switched(kernel, link.index)
        if len(switched) > _MOST:
            return Underlay(whole=False)
        far += switched
    value = link.data.get(form.by_packet) if form.by_packet else None
    by_packet = value is not None and (not value or any(value))  # a flag is empty
    return Underlay((), tuple(Query(one, own) for one in far), bool(far) and not by_packet)


def _addresses(link: Link, kinds: t.Iterable[int]) -> list[Address]:
    found = (link.data.get(kind, b"") for kind in kinds)
    addresses = [ipaddress.ip_address(value) for value in found if len(value) in (4, 16)]
    return [one for one in addresses if not one.is_unspecified]


def _switched(kernel: netlink.Connection, index: int) -> list[Address]:
    """The endpoints in the forwarding table of a vxlan."""
    found: dict[Address, None] = {}
    request = _ND.pack(socket.AF_BRIDGE, 0, 0, 0, 0)
    wanted = struct.pack("=i", index)
    for _unused, body in kernel.dump(RTM_GETNEIGH, request, lambda one: one[4:8] == wanted, optional=True):
        value = netlink.attributes(body, _ND.size).get(_NDA_DST, b"")
        if len(value) in (4, 16):
            address = ipaddress.ip_address(value)
            if not address.is_multicast and not address.is_unspecified:
                found[address] = None
    return list(found)


# -- wireguard: drivers/net/wireguard/netlink.c, by generic netlink

_GENL = struct.Struct("=BBH")
_GENL_CTRL, _CTRL_GETFAMILY, _CTRL_ID, _CTRL_NAME = 16, 3, 1, 2
_WG_GET_DEVICE, _WG_IFINDEX, _WG_FWMARK, _WG_PEERS, _WG_ENDPOINT = 0, 1, 7, 8, 4


def _wireguard(link: Link) -> Underlay:
    with netlink.Connection(netlink.NETLINK_GENERIC) as kernel:
        try:
            name = netlink.text(_CTRL_NAME, "wireguard")
            (answer, *_rest) = kernel.request(_GENL_CTRL, _GENL.pack(_CTRL_GETFAMILY, 1, 0) + name)
        except OSError as error:
            if error.errno == errno.ENOENT:  # a WireGuard implementation outside the kernel
                return Underlay(whole=False)
            raise
        family = netlink.number(netlink.attributes(answer[1], _GENL.size)[_CTRL_ID])
        request = _GENL.pack(_WG_GET_DEVICE, 1, 0) + netlink.u32(_WG_IFINDEX, link.index)
        return peers([body for _unused, body in kernel.dump(family, request)])


def peers(answers: t.Sequence[bytes]) -> Underlay:
    """The underlay from the replies to WG_CMD_GET_DEVICE. A peer without endpoint is not sent any packets."""
    queries: dict[Query, None] = {}
    mark = 0
    for body in answers:
        raw = netlink.attributes(body, _GENL.size)
        mark = netlink.number(raw[_WG_FWMARK]) if _WG_FWMARK in raw else mark
        for _unused, peer in netlink.pairs(raw.get(_WG_PEERS, b"")):
            value = netlink.attributes(peer).get(_WG_ENDPOINT, b"")
            if len(value) < 16:
                continue
            family, _port = _ENDPOINT.unpack_from(value)
            scope = struct.unpack_from("=I", value, 24)[0] if family == socket.AF_INET6 and len(value) >= 28 else 0
            far = ipaddress.ip_address(value[8:24] if family == socket.AF_INET6 else value[4:8])
            queries[Query(far, bound=scope, mark=mark)] = None
    return Underlay(queries=tuple(queries), whole=len(queries) <= _MOST)
