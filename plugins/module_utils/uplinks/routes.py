# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Addresses and routes, as the kernel's look-ups return them. Numbers are those of linux/rtnetlink.h and
linux/nexthop.h.

A look-up returns the matching entry of the routing table, not the next hop of one packet. If the entry has several next
hops (ECMP, a nexthop group), each of them may carry the next packet.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import typing as t
from dataclasses import dataclass

from . import netlink

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

RTM_GETADDR, RTM_GETROUTE, RTM_GETNEXTHOP = 22, 26, 106
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFADDR = struct.Struct("=BBBBI")
_RT = struct.Struct("=BBBBBBBBI")
_DST, _SRC, _OIF, _PRIORITY, _MULTIPATH, _TABLE, _MARK = 1, 2, 4, 6, 9, 15, 16
_IP_PROTO, _SPORT, _DPORT, _NH_ID = 27, 28, 29, 30
_RTN_UNICAST, _RTN_LOCAL, _RTPROT_RA = 1, 2, 9
_CLONED, _FIB_MATCH = 0x200, 0x2000
_NEXTHOP = struct.Struct("=HBBi")
_NH_SIZE, _NHA_ID, _NHA_GROUP, _NHA_OIF = 8, 1, 2, 5
_IP = {4: socket.AF_INET, 6: socket.AF_INET6}
_TCP = 6
MAIN = (254, 253)  # RT_TABLE_MAIN, RT_TABLE_DEFAULT
#: Routes with prefixes up to this length count as default routes: VPNs and routers split a default route into halves,
#: quarters or eighths of all addresses (0.0.0.0/1 and 128.0.0.0/1; 2000::/3), and no fabric is that large.
MAX_DEFAULT_PREFIX = 3


@dataclass(frozen=True)
class Default:
    """A default route: the indexes of its links, and whether a router announced it."""

    destination: str
    table: int
    priority: int
    from_router: bool
    is_ipv6: bool
    links: tuple[int, ...]


@dataclass(frozen=True)
class Query:
    """What decides a packet's route; all known values are passed to the kernel."""

    remote: Address
    local: Address | None = None
    bound_link: int = 0  # the link that the socket is bound to
    mark: int = 0
    local_port: int = 0  # both ports are TCP ports
    remote_port: int = 0


def owners(kernel: netlink.Connection) -> dict[Address, tuple[int, ...]]:
    """All addresses of the connection's namespace, each with the indexes of the links that have it. Raises OSError."""
    links_by_address: dict[Address, tuple[int, ...]] = {}
    for _unused, body in kernel.dump(RTM_GETADDR, _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        raw = netlink.attributes(body, _IFADDR.size)
        value = raw.get(_IFA_LOCAL) or raw.get(_IFA_ADDRESS, b"")
        if len(value) in (4, 16):
            address = ipaddress.ip_address(value)
            links_by_address[address] = (*links_by_address.get(address, ()), _IFADDR.unpack_from(body)[4])
    return links_by_address


class Routes:
    """The routing tables of one namespace. Nexthop objects are read once, when they are first needed."""

    def __init__(self, kernel: netlink.Connection) -> None:
        self._kernel = kernel
        self._objects: dict[int, list[int]] | None = None

    def defaults(self) -> list[Default]:
        """The default routes of all tables, including very short prefixes. Raises OSError."""
        default_routes = []
        for kind in (socket.AF_INET, socket.AF_INET6):
            for body in self._dumped(kind, lambda message: message[1] <= MAX_DEFAULT_PREFIX):  # rtm_dst_len
                _unused, bits, _unused, _unused, table, protocol, _unused, _unused, _unused = _RT.unpack_from(body)
                raw = netlink.attributes(body, _RT.size)
                is_ipv6 = kind == socket.AF_INET6
                network = _network(raw.get(_DST, b""), bits, is_ipv6)
                if network.is_multicast or not network.overlaps(_EVERYWHERE[is_ipv6]):
                    continue
                default_routes.append(
                    Default(
                        destination=str(network) if bits else "",
                        table=netlink.number(raw[_TABLE]) if _TABLE in raw else table,
                        priority=netlink.number(raw.get(_PRIORITY, b"")),
                        from_router=protocol == _RTPROT_RA,
                        is_ipv6=is_ipv6,
                        links=tuple(self._links(raw)),
                    )
                )
        return default_routes

    def routed(self) -> set[int]:
        """All links with a unicast route, apart from link-local and multicast routes, which every interface has. Raises
        OSError."""
        return {link for _network, links in self._unicast() for link in links}

    def networks(self) -> list[tuple[Network, tuple[int, ...]]]:
        """The networks of unicast routes in all tables, without default routes, each with the links of the route.
        Raises OSError."""
        return [(network, tuple(links)) for network, links in self._unicast() if network.prefixlen > MAX_DEFAULT_PREFIX]

    def _unicast(self) -> t.Iterator[tuple[Network, list[int]]]:
        for kind in (socket.AF_INET, socket.AF_INET6):
            for body in self._dumped(kind, lambda _message: True):
                raw = netlink.attributes(body, _RT.size)
                network = _network(raw.get(_DST, b""), body[1], kind == socket.AF_INET6)
                if not network.is_multicast and not network.is_link_local:
                    yield network, self._links(raw)

    def outgoing_links(self, query: Query) -> set[int]:
        """The links through which packets to `query.remote` leave; empty if there is no route. Raises OSError.

        The whole query is tried first, then the query without ports, then without the source address: kernels before
        4.18 do not support ports in a look-up, and all kernels refuse some source addresses.
        """
        tried: set[bytes] = set()
        for message in (_look_up(query), _look_up(query, ports=False), _look_up(query, source=False, ports=False)):
            if message in tried:
                continue
            tried.add(message)
            route = self._matching_route(message)
            if route is not None:
                return set(self._links(route[1])) if route[0] == _RTN_UNICAST else set()
        return set()

    def outgoing_links_exact(self, remote: Address, local: Address | None = None) -> set[int]:
        """As `outgoing_links`, but only with exactly this source address."""
        route = self._matching_route(_look_up(Query(remote, local)))
        return set(self._links(route[1])) if route and route[0] == _RTN_UNICAST else set()

    def holders(self, local: Address, bound_link: int = 0) -> set[int]:
        """The links on which an address is local, also if only a local route to its prefix makes it local. Raises
        OSError."""
        route = self._matching_route(_look_up(Query(local, bound_link=bound_link)))
        return set(self._links(route[1])) if route and route[0] == _RTN_LOCAL else set()

    def _matching_route(self, message: bytes) -> tuple[int, netlink.Attributes] | None:
        """The type and attributes of the matching route; None if the kernel finds none."""
        try:
            replies = self._kernel.request(RTM_GETROUTE, message)
        except OSError as error:
            if error.errno in _NO_ROUTE:
                return None
            raise
        return (replies[0][1][7], netlink.attributes(replies[0][1], _RT.size)) if replies else None

    def _dumped(self, kind: int, keep: t.Callable[[bytes], bool]) -> t.Iterator[bytes]:
        """The messages of a family's unicast routes for which `keep` returns True, without routes that the kernel
        cloned from others."""
        request = _RT.pack(kind, 0, 0, 0, 0, 0, 0, 0, 0)
        for _unused, body in self._kernel.dump(RTM_GETROUTE, request, keep, optional=True):
            family, *_rest, route_type, flags = _RT.unpack_from(body)
            if family == kind and route_type == _RTN_UNICAST and not flags & _CLONED:
                yield body

    def _links(self, raw: netlink.Attributes) -> list[int]:
        """The indexes of the links of a route's next hops."""
        indexes = [netlink.number(raw[_OIF])] if _OIF in raw else []
        indexes += _hops(raw.get(_MULTIPATH, b""))
        if not indexes and _NH_ID in raw:  # only the ID: nexthop_compat_mode is off
            if self._objects is None:
                self._objects = _next_hops(self._kernel)
            indexes = self._objects.get(netlink.number(raw[_NH_ID]), [])
        return indexes


_EVERYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("2000::/3"))
_NO_ROUTE = {
    *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.ESRCH, errno.EOPNOTSUPP),
    *(errno.EAFNOSUPPORT, errno.ENODEV, errno.EAGAIN),  # EAGAIN is the result of a throw route
}


def _look_up(query: Query, source: bool = True, ports: bool = True) -> bytes:
    """The request for a look-up."""
    bits = query.remote.max_prefixlen
    local = query.local if source else None
    message = _RT.pack(_IP[query.remote.version], bits, bits if local else 0, 0, 0, 0, 0, 0, _FIB_MATCH)
    message += netlink.attribute(_DST, query.remote.packed)
    message += netlink.attribute(_SRC, local.packed) if local else b""
    message += netlink.u32(_OIF, query.bound_link) if query.bound_link else b""
    message += netlink.u32(_MARK, query.mark) if query.mark else b""
    if ports and query.local_port and query.remote_port:
        message += netlink.u8(_IP_PROTO, _TCP)
        message += netlink.attribute(_SPORT, struct.pack("!H", query.local_port))
        message += netlink.attribute(_DPORT, struct.pack("!H", query.remote_port))
    return message


def _network(value: bytes, bits: int, is_ipv6: bool) -> Network:
    size = 16 if is_ipv6 else 4
    return ipaddress.ip_network((value.ljust(size, b"\0")[:size], bits), strict=False)


def _hops(data: bytes) -> t.Iterator[int]:
    """The links of the next hops of a multipath route."""
    offset = 0
    while offset + _NEXTHOP.size <= len(data):
        length, _flags, _weight, index = _NEXTHOP.unpack_from(data, offset)
        if length < _NEXTHOP.size:
            return
        yield index
        offset += (length + 3) & ~3


def _next_hops(kernel: netlink.Connection) -> dict[int, list[int]]:
    """The links of nexthop objects and of the members of nexthop groups, by ID."""
    links: dict[int, list[int]] = {}
    groups: dict[int, list[int]] = {}
    for _unused, body in kernel.dump(RTM_GETNEXTHOP, bytes(_NH_SIZE), optional=True):
        raw = netlink.attributes(body, _NH_SIZE)
        number = netlink.number(raw.get(_NHA_ID, b""))
        links[number] = [netlink.number(raw[_NHA_OIF])] if _NHA_OIF in raw else []
        group = raw.get(_NHA_GROUP, b"")  # of struct nexthop_grp
        groups[number] = [struct.unpack_from("=I", group, offset)[0] for offset in range(0, len(group) - 7, 8)]
    return {
        number: links[number] + [link for member in groups[number] for link in links.get(member, [])]
        for number in links
    }
