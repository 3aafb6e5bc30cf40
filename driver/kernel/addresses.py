# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""IP addresses and permanent neighbors of an interface. Numbers are those of linux/if_addr.h and linux/neighbour.h.

Addresses and neighbors are part of the host state, which is stored as JSON.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
import typing as t

from . import links, netlink
from .netlink import Netlink

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Lifetimes(t.TypedDict, total=False):
    """When an address expires; no keys if it does not.

    The keys with `Boottime` are in seconds of CLOCK_BOOTTIME, because the wall clock may be set in the meantime. The
    others, in seconds since 1970, are for older releases.
    """

    validBoottime: float
    preferredBoottime: float
    validUntil: int
    preferredUntil: int


class _AddressState(t.TypedDict):
    address: str


class AddressState(_AddressState, Lifetimes, total=False):
    """An address with its prefix length (`10.0.0.2/24`), and the values that differ from the defaults."""

    scope: int
    flags: int
    peer: str
    broadcast: str
    label: str
    metric: int
    protocol: int


class _Neighbor(t.TypedDict):
    destination: str


class Neighbor(_Neighbor, total=False):
    """A permanent or proxied neighbor, such as `{"destination": "10.0.0.1", "mac": "02:..", "flags": 0}`."""

    mac: str
    flags: int


RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
_ADDRESS, _LOCAL, _LABEL, _BROADCAST, _CACHEINFO, _FLAGS, _METRIC, _PROTOCOL = 1, 2, 3, 4, 6, 8, 9, 11
SECONDARY, NODAD, OPTIMISTIC, DADFAILED, TENTATIVE = 0x01, 0x02, 0x04, 0x08, 0x40
#: Flags that an administrator may set: no DAD, home address, temporary addresses, no prefix route, multicast join.
_SETTABLE_FLAGS = 0x02 | 0x10 | 0x100 | 0x200 | 0x400
_FOREVER = 2**32 - 1
_DST, _LLADDR, _NDA_IFINDEX = 1, 2, 8
_NUD_PERMANENT, NTF_PROXY, _NTF_ROUTER = 0x80, 0x08, 0x80

SCOPE_LINK = 253
_IFADDR = struct.Struct("=BBBBI")
_ND = struct.Struct("=BxxxiHBB")
_CACHE = struct.Struct("=IIII")


def family(text: str) -> int:
    """The socket family of an address or network as text."""
    return socket.AF_INET6 if ":" in text else socket.AF_INET


def ip_text(value: bytes) -> str:
    return str(ipaddress.ip_address(value))


def ip_bytes(value: str) -> bytes:
    return ipaddress.ip_address(value).packed


def listed(connection: Netlink, index: int, name: str = "") -> list[tuple[AddressState, int]]:
    """The addresses of an interface in the kernel's order, each with the kernel's flags; without IPv6 temporary
    addresses, which the kernel creates itself. Without the interface's current `name`, which is the usual label of IPv4
    addresses, the kernel is asked for it."""
    entries = []
    for _unused, body in connection.dump(RTM_GETADDR, _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, index)):
        kind, prefix, flags, scope, owner = _IFADDR.unpack_from(body)
        if owner != index or kind not in (socket.AF_INET, socket.AF_INET6):
            continue
        raw = netlink.attributes(body, _IFADDR.size)
        flags = netlink.number(raw[_FLAGS]) if _FLAGS in raw else flags
        if kind == socket.AF_INET6 and flags & SECONDARY:
            continue
        local = raw.get(_LOCAL) or raw[_ADDRESS]
        text = f"{ip_text(local)}/{prefix}"
        address: AddressState = {"address": text, "scope": scope, "flags": flags & _SETTABLE_FLAGS}
        if _ADDRESS in raw and raw[_ADDRESS] != local:
            address["peer"] = ip_text(raw[_ADDRESS])
        if _BROADCAST in raw:
            address["broadcast"] = ip_text(raw[_BROADCAST])
        if _LABEL in raw:
            name = name or (links.get(connection, index=index) or links.Link(0, 0, {})).name
            label = netlink.string(raw[_LABEL])
            if label != name:
                address["label"] = label
        if _METRIC in raw and netlink.number(raw[_METRIC]):
            address["metric"] = netlink.number(raw[_METRIC])
        if _PROTOCOL in raw and netlink.number(raw[_PROTOCOL]):
            address["protocol"] = netlink.number(raw[_PROTOCOL])
        address = {**address, **_lifetimes(raw.get(_CACHEINFO, b""))}
        entries.append((address, flags))
    return entries


def _lifetimes(value: bytes) -> Lifetimes:
    if len(value) < _CACHE.size:
        return {}
    preferred, valid, _unused, _unused = _CACHE.unpack_from(value)
    expiry: Lifetimes = {}
    if valid != _FOREVER:
        expiry["validUntil"], expiry["validBoottime"] = _expiry(valid)
    if preferred != _FOREVER:
        expiry["preferredUntil"], expiry["preferredBoottime"] = _expiry(preferred)
    return expiry


def _expiry(remaining: int) -> tuple[int, int]:
    """When a lifetime ends, in seconds since 1970 and of CLOCK_BOOTTIME; zeros if it has ended."""
    return (int(time.time()) + remaining, int(boottime()) + remaining) if remaining else (0, 0)


def boottime() -> float:
    """Seconds since boot, including suspend; this clock cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def add(connection: Netlink, index: int, address: AddressState, renew: bool = False) -> bool:
    """Add one address. It is not an error if the address exists; `renew` then updates its lifetimes. Returns False,
    without adding the address, if it has expired. Raises OSError."""
    interface = ipaddress.ip_interface(address["address"])
    kind = family(address["address"])
    valid = _remaining_seconds(address.get("validBoottime"), address.get("validUntil"))
    if not valid:
        return False
    flags = address.get("flags", 0)
    body = _IFADDR.pack(kind, interface.network.prefixlen, flags & 0xFF, address.get("scope", 0), index)
    body += netlink.attribute(_LOCAL, interface.ip.packed)
    body += netlink.attribute(_ADDRESS, ip_bytes(address["peer"]) if "peer" in address else interface.ip.packed)
    body += netlink.u32(_FLAGS, flags)
    if "broadcast" in address:
        body += netlink.attribute(_BROADCAST, ip_bytes(address["broadcast"]))
    if "label" in address:
        body += netlink.text(_LABEL, address["label"])
    if "metric" in address:
        body += netlink.u32(_METRIC, address["metric"])
    if "protocol" in address:
        body += netlink.u8(_PROTOCOL, address["protocol"])
    preferred = min(_remaining_seconds(address.get("preferredBoottime"), address.get("preferredUntil")), valid)
    if (preferred, valid) != (_FOREVER, _FOREVER):
        body += netlink.attribute(_CACHEINFO, _CACHE.pack(preferred, valid, 0, 0))
    connection.ensure(RTM_NEWADDR, body, netlink.REPLACE if renew else netlink.EXCLUSIVE)
    return True


def _remaining_seconds(boottime_end: float | None, until: float | None) -> int:
    """The remaining seconds of a lifetime whose end is known by either clock; _FOREVER if neither is known."""
    if boottime_end is not None:
        return max(0, int(boottime_end - boottime()))
    if until is not None:
        return max(0, int(until - time.time()))
    return _FOREVER


def remove(connection: Netlink, index: int, address: AddressState) -> None:
    """Remove one address; a missing one is not an error. Raises OSError."""
    interface = ipaddress.ip_interface(address["address"])
    body = _IFADDR.pack(family(address["address"]), interface.network.prefixlen, 0, 0, index)
    body += netlink.attribute(_LOCAL, interface.ip.packed)
    body += netlink.attribute(_ADDRESS, ip_bytes(address["peer"]) if "peer" in address else interface.ip.packed)
    connection.drop(RTM_DELADDR, body)


def ordered(addresses: t.Sequence[AddressState]) -> list[AddressState]:
    """The order in which to add the addresses, so that the kernel lists them in the order of `addresses`. The kernel
    puts a new IPv6 address before the others of its scope, and a new IPv4 address after the others."""
    four = [address for address in addresses if family(address["address"]) == socket.AF_INET]
    six = [address for address in addresses if family(address["address"]) == socket.AF_INET6]
    return four + six[::-1]


def neighbors(connection: Netlink, index: int) -> list[Neighbor]:
    """The permanent and proxied neighbors of an interface, without those that the kernel resolved itself. Raises
    OSError."""
    entries = []
    for flags in (0, NTF_PROXY):
        body = _ND.pack(socket.AF_UNSPEC, 0, 0, flags, 0)
        # the kernel filters its neighbor table by interface, but not the proxied neighbors
        body += b"" if flags else netlink.u32(_NDA_IFINDEX, index)
        for _unused, reply in connection.dump(RTM_GETNEIGH, body):
            kind, owner, state, reply_flags, _unused = _ND.unpack_from(reply)
            raw = netlink.attributes(reply, _ND.size)
            is_included = reply_flags & NTF_PROXY if flags else state & _NUD_PERMANENT
            if owner != index or kind not in (socket.AF_INET, socket.AF_INET6) or not is_included or _DST not in raw:
                continue
            neighbor: Neighbor = {"destination": ip_text(raw[_DST]), "flags": reply_flags & (NTF_PROXY | _NTF_ROUTER)}
            if not flags:
                neighbor["mac"] = raw.get(_LLADDR, b"").hex(":")
            entries.append(neighbor)
    return sorted(entries, key=lambda item: (item["flags"], item["destination"]))


def add_neighbor(connection: Netlink, index: int, neighbor: Neighbor) -> None:
    flags = neighbor.get("flags", 0)
    body = _ND.pack(family(neighbor["destination"]), index, 0 if flags & NTF_PROXY else _NUD_PERMANENT, flags, 0)
    body += netlink.attribute(_DST, ip_bytes(neighbor["destination"]))
    if neighbor.get("mac"):
        body += netlink.attribute(_LLADDR, links.mac_bytes(neighbor["mac"]))
    connection.request(RTM_NEWNEIGH, body, netlink.CREATE | netlink.REPLACE)


def remove_neighbor(connection: Netlink, index: int, neighbor: Neighbor) -> None:
    body = _ND.pack(family(neighbor["destination"]), index, 0, neighbor.get("flags", 0) & NTF_PROXY, 0)
    connection.drop(RTM_DELNEIGH, body + netlink.attribute(_DST, ip_bytes(neighbor["destination"])))
