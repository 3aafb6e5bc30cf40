# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Addresses and routes, by the kernel's own look-ups. Numbers are those of linux/rtnetlink.h and linux/nexthop.h.

A look-up returns the matching entry of the routing table, not the next hop of one packet: with several next hops (ECMP,
a nexthop group) each may carry the next packet.
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
#: Prefixes up to this length count as default routes: VPNs and routers split a default route into halves, quarters or
#: eighths of all addresses (0.0.0.0/1 and 128.0.0.0/1; 2000::/3), and no fabric is that large.
SHORT = 3


@dataclass(frozen=True)
class Default:
    """A default route: the indexes of its links, and whether a router announced it."""

    destination: str
    table: int
    priority: int
    by_router: bool
    six: bool
    links: tuple[int, ...]


@dataclass(frozen=True)
class Query:
    """What decides a packet's route; all known values are passed to the kernel."""

    far: Address
    own: Address | None = None
    bound: int = 0  # the link that the socket is bound to
    mark: int = 0
    own_port: int = 0  # of TCP
    far_port: int = 0


def owners(kernel: netlink.Connection) -> dict[Address, tuple[int, ...]]:
    """All addresses of the connection's namespace, with the indexes of the links that have each. Raises OSError."""
    found: dict[Address, tuple[int, ...]] = {}
    for _unused, body in kernel.dump(RTM_GETADDR, _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        raw = netlink.attributes(body, _IFADDR.size)
        value = raw.get(_IFA_LOCAL) or raw.get(_IFA_ADDRESS, b"")
        if len(value) in (4, 16):
            address = ipaddress.ip_address(value)
            found[address] = (*found.get(address, ()), _IFADDR.unpack_from(body)[4])
    return found


class Routes:
    """The routing tables of one namespace; nexthop objects are read once, when first needed."""

    def __init__(self, kernel: netlink.Connection) -> None:
        self._kernel = kernel
        self._objects: dict[int, list[int]] | None = None

    def defaults(self) -> list[Default]:
        """The default routes of all tables, including very short prefixes. Raises OSError."""
        found = []
        for kind in (socket.AF_INET, socket.AF_INET6):
            for body in self._dumped(kind, lambda one: one[1] <= SHORT):  # rtm_dst_len
                _unused, bits, _unused, _unused, table, protocol, _unused, _unused, _unused = _RT.unpack_from(body)
                raw = netlink.attributes(body, _RT.size)
                six = kind == socket.AF_INET6
                network = _network(raw.get(_DST, b""), bits, six)
                if network.is_multicast or not network.overlaps(_EVERYWHERE[six]):
                    continue
                found.append(
                    Default(
                        destination=str(network) if bits else "",
                        table=netlink.number(raw[_TABLE]) if _TABLE in raw else table,
                        priority=netlink.number(raw.get(_PRIORITY, b"")),
                        by_router=protocol == _RTPROT_RA,
                        six=six,
                        links=tuple(self._links(raw)),
                    )
                )
        return found

    def routed(self) -> set[int]:
        """All links with a unicast route, apart from the routes that every interface has. Raises OSError."""
        return {link for _network, links in self._unicast() for link in links}

    def networks(self) -> list[tuple[Network, tuple[int, ...]]]:
        """The networks of unicast routes in all tables, without default routes, with the links that each leads by.
        Raises OSError."""
        return [(network, tuple(links)) for network, links in self._unicast() if network.prefixlen > SHORT]

    def _unicast(self) -> t.Iterator[tuple[Network, list[int]]]:
        for kind in (socket.AF_INET, socket.AF_INET6):
            for body in self._dumped(kind, lambda one: True):
                raw = netlink.attributes(body, _RT.size)
                network = _network(raw.get(_DST, b""), body[1], kind == socket.AF_INET6)
                if not network.is_multicast and not network.is_link_local:
                    yield network, self._links(raw)

    def way(self, query: Query) -> set[int]:
        """The links by which packets to `query.far` leave; empty if there is no route. Raises OSError.

        The whole query is tried first. Kernels before 4.18 do not support ports there, and kernels refuse some source
        addresses.
        """
        tried: set[bytes] = set()
        for message in (_look_up(query), _look_up(query, ports=False), _look_up(query, source=False, ports=False)):
            if message in tried:
                continue
            tried.add(message)
            answer = self._asked(message)
            if answer is not None:
                return set(self._links(answer[1])) if answer[0] == _RTN_UNICAST else set()
        return set()

    def leads(self, far: Address, own: Address | None = None) -> set[int]:
        """The links by which packets to `far` leave, with exactly this source; empty if there is no route. Raises
        OSError."""
        answer = self._asked(_look_up(Query(far, own)))
        return set(self._links(answer[1])) if answer and answer[0] == _RTN_UNICAST else set()

    def holders(self, own: Address, bound: int = 0) -> set[int]:
        """The links that an address is local on, also by a local route to its prefix. Raises OSError."""
        answer = self._asked(_look_up(Query(own, bound=bound)))
        return set(self._links(answer[1])) if answer and answer[0] == _RTN_LOCAL else set()

    def _asked(self, message: bytes) -> tuple[int, netlink.Attributes] | None:
        """The type and attributes of the matching route; None if the kernel finds none."""
        try:
            answers = self._kernel.request(RTM_GETROUTE, message)
        except OSError as error:
            if error.errno in _NO_ROUTE:
                return None
            raise
        return (answers[0][1][7], netlink.attributes(answers[0][1], _RT.size)) if answers else None

    def _dumped(self, kind: int, keep: t.Callable[[bytes], bool]) -> t.Iterator[bytes]:
        """The unicast routes of a family that `keep` accepts, without those that the kernel cloned from others."""
        request = _RT.pack(kind, 0, 0, 0, 0, 0, 0, 0, 0)
        for _unused, body in self._kernel.dump(RTM_GETROUTE, request, keep, optional=True):
            got, *_rest, route_type, flags = _RT.unpack_from(body)
            if got == kind and route_type == _RTN_UNICAST and not flags & _CLONED:
                yield body

    def _links(self, raw: netlink.Attributes) -> list[int]:
        found = [netlink.number(raw[_OIF])] if _OIF in raw else []
        found += _hops(raw.get(_MULTIPATH, b""))
        if not found and _NH_ID in raw:  # alone: nexthop_compat_mode is off
            if self._objects is None:
                self._objects = _next_hops(self._kernel)
            found = self._objects.get(netlink.number(raw[_NH_ID]), [])
        return found


_EVERYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("2000::/3"))
_NO_ROUTE = {
    *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.ESRCH, errno.EOPNOTSUPP),
    *(errno.EAFNOSUPPORT, errno.ENODEV, errno.EAGAIN),  # the latter of a throw route
}


def _look_up(query: Query, source: bool = True, ports: bool = True) -> bytes:
    bits = query.far.max_prefixlen
    own = query.own if source else None
    message = _RT.pack(_IP[query.far.version], bits, bits if own else 0, 0, 0, 0, 0, 0, _FIB_MATCH)
    message += netlink.attribute(_DST, query.far.packed)
    message += netlink.attribute(_SRC, own.packed) if own else b""
    message += netlink.u32(_OIF, query.bound) if query.bound else b""
    message += netlink.u32(_MARK, query.mark) if query.mark else b""
    if ports and query.own_port and query.far_port:
        message += netlink.u8(_IP_PROTO, _TCP)
        message += netlink.attribute(_SPORT, struct.pack("!H", query.own_port))
        message += netlink.attribute(_DPORT, struct.pack("!H", query.far_port))
    return message


def _network(value: bytes, bits: int, six: bool) -> Network:
    size = 16 if six else 4
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
    own: dict[int, list[int]] = {}
    groups: dict[int, list[int]] = {}
    for _unused, body in kernel.dump(RTM_GETNEXTHOP, bytes(_NH_SIZE), optional=True):
        raw = netlink.attributes(body, _NH_SIZE)
        number = netlink.number(raw.get(_NHA_ID, b""))
        own[number] = [netlink.number(raw[_NHA_OIF])] if _NHA_OIF in raw else []
        group = raw.get(_NHA_GROUP, b"")  # of struct nexthop_grp
        groups[number] = [struct.unpack_from("=I", group, at)[0] for at in range(0, len(group) - 7, 8)]
    return {number: own[number] + [i for member in groups[number] for i in own.get(member, [])] for number in own}
