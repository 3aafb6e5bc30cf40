# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A hierarchical token bucket at the root of an interface, with a class for each source MAC address. Numbers are those
of linux/rtnetlink.h, linux/pkt_sched.h and linux/pkt_cls.h.

    6c77:                     the driver's root qdisc, recognized by its handle
      6c77:1                  the bandwidth that is divided
        6c77:2                packets without another class: a minimal guarantee, may use idle bandwidth
        6c77:3 to 6c77:ffe    one class for each share, with a u32 filter for its source address

Rates are in bit/s.
"""

from __future__ import annotations

import errno
import socket
import struct
import typing as t
from dataclasses import dataclass

from . import links, netlink, qdiscs
from .netlink import Netlink

#: The major number of the driver's qdisc.
MAJOR = 0x6C77
#: The range of minor numbers for the classes of shares. A filter has the number of its class, and a u32 filter has 12
#: bits for that number.
FIRST_MINOR, LAST_MINOR = 3, 0xFFE
_ROOT, _OTHERS = 1, 2
#: The guaranteed rate of all packets without a share together.
OTHERS_RATE = 10**6
_NEWCLASS, _DELCLASS, _GETCLASS, _NEWFILTER, _DELFILTER, _GETFILTER = 40, 41, 42, 44, 45, 46
_TC = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
_TC_ROOT = 0xFFFFFFFF
_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_PARMS, _INIT, _RATE64, _CEIL64 = 1, 2, 6, 7
_GLOBAL = struct.Struct("=IIIII")  # version, rate to quantum, default class, debug, direct packets
_SPEC = "BBHhHI"  # cell_log, linklayer, overhead, cell_align, mpu, rate
_CLASS = struct.Struct(f"={_SPEC}{_SPEC}IIIII")  # rate, ceiling, buffer, cbuffer, quantum, level, priority
#: TC_LINKLAYER_ETHERNET: the kernel computes from the rate, so a class needs no table of rates.
_LINK_LAYER_ETHERNET = 1
_UINT32 = 2**32 - 1
_TICK = 64e-9  # seconds of the packet scheduler's clock
#: The burst of a class is the sum of these: some of the largest packets before they are segmented, and the bytes that
#: the class may send in this time.
_BURST_BYTES, _BURST_SECONDS = 128 * 1024, 0.0005
_MIN_QUANTUM, _MAX_QUANTUM = 1514, 200_000  # bytes
_U32_CLASSID, _U32_SEL = 1, 5
_SEL = struct.Struct("=BBBx2sHhh4s")  # flags, offshift, nkeys, offmask, off, offoff, hoff, hmask
_KEY = struct.Struct("=4s4sii")  # mask, value, offset, offset's mask
_TERMINAL = 1
#: Where the source MAC address is, relative to the network header. It is compared as two 32-bit words.
_SOURCE_OFFSET = -8
_ALL_PROTOCOLS = socket.htons(3)
_FILTER_INFO = 1 << 16 | _ALL_PROTOCOLS  # priority and protocol
_ROOT_TABLE = 0x80000000


@dataclass(frozen=True)
class Class:
    """The class of a source address: its guaranteed `rate`, and the `ceiling` up to which it may use idle capacity."""

    mac: str
    rate: int
    ceiling: int


class ForeignQdisc(OSError):
    """The interface has a root qdisc that was not configured by the driver."""


def is_ours(handle: int) -> bool:
    """Whether a qdisc or class with this handle is the driver's."""
    return handle >> 16 == MAJOR


def exists(connection: Netlink, index: int) -> bool:
    """Whether an interface has the driver's qdisc. Raises OSError, and ForeignQdisc if the interface has another
    root qdisc; the kernel's default qdisc does not count."""
    for qdisc in qdiscs.listed(connection, index):
        if qdisc["parent"] == _TC_ROOT:
            if qdisc["kind"] == "htb" and is_ours(qdisc["handle"]):
                return True
            name = f"{qdisc['kind']} {qdisc['handle'] >> 16:x}:"
            raise ForeignQdisc(errno.EBUSY, f"its root qdisc {name} was not configured by the driver")
    return False


def divide(connection: Netlink, index: int, physical: int, wanted: t.Mapping[int, Class]) -> None:
    """Set the classes of an interface to `wanted`, which is keyed by minor numbers. `physical` is the rate that is
    divided.

    Without classes, the qdisc is removed, and the kernel attaches its default one. May be called again after a failure
    at any step. Rates that fall are changed before those that rise. Raises OSError and ForeignQdisc.
    """
    if not wanted:
        remove(connection, index)
        return
    if not exists(connection, index):
        _add_root(connection, index)
    now = {minor: (rate, ceiling) for minor, rate, ceiling, _sent in _classes(connection, index)}
    filters = _filters(connection, index)
    tree = {_ROOT: (physical, physical), _OTHERS: (min(OTHERS_RATE, physical), physical)}
    for minor, rates in tree.items():
        if now.get(minor) != rates:
            _set_class(connection, index, minor, *rates)
    for minor in now.keys() - tree.keys() - wanted.keys():
        _remove_class(connection, index, minor, filters)
    rises = {minor: share.rate > now.get(minor, (0, 0))[0] for minor, share in wanted.items()}
    for minor in sorted(wanted, key=lambda number: (rises[number], number)):
        share = wanted[minor]
        if now.get(minor) != (share.rate, share.ceiling):
            _set_class(connection, index, minor, share.rate, share.ceiling)
        if filters.get(minor) != share.mac:
            if minor in filters:
                _remove_filter(connection, index, minor)
            _add_filter(connection, index, minor, share.mac)


def remove(connection: Netlink, index: int) -> None:
    """Remove the driver's qdisc with all classes; another qdisc is not touched. Raises OSError."""
    try:
        has_own_qdisc = exists(connection, index)
    except ForeignQdisc:
        return
    if has_own_qdisc:
        connection.drop(qdiscs.RTM_DELQDISC, _TC.pack(socket.AF_UNSPEC, index, MAJOR << 16, _TC_ROOT, 0))


def read(connection: Netlink, index: int) -> dict[int, Class]:
    """The classes of the shares of an interface, by minor number; `mac` is empty if a class has no filter. Raises
    OSError."""
    filters = _filters(connection, index)
    classes = _classes(connection, index)
    return {
        minor: Class(filters.get(minor, ""), rate, ceiling)
        for minor, rate, ceiling, _sent in classes
        if minor >= FIRST_MINOR
    }


def sent(connection: Netlink, index: int) -> dict[int, int]:
    """The bytes that each share has sent, by the minor number of the share's class. Raises OSError."""
    return {minor: sent for minor, _rate, _ceiling, sent in _classes(connection, index) if minor >= FIRST_MINOR}


def interfaces(connection: Netlink) -> list[int]:
    """The indexes of all interfaces with the driver's qdisc. Raises OSError."""
    indexes = []
    for _unused, body in connection.dump(qdiscs.RTM_GETQDISC, _TC.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        _unused, index, handle, parent, _unused = _TC.unpack_from(body)
        if is_ours(handle) and parent == _TC_ROOT and index not in indexes:
            indexes.append(index)
    return indexes


def _handle(minor: int) -> int:
    return MAJOR << 16 | minor


def _add_root(connection: Netlink, index: int) -> None:
    body = _TC.pack(socket.AF_UNSPEC, index, MAJOR << 16, _TC_ROOT, 0) + netlink.text(_KIND, "htb")
    options = netlink.attribute(_INIT, _GLOBAL.pack(3, 10, _OTHERS, 0, 0))
    connection.request(qdiscs.RTM_NEWQDISC, body + netlink.nest(_OPTIONS, options), netlink.CREATE | netlink.EXCLUSIVE)


def _set_class(connection: Netlink, index: int, minor: int, rate: int, ceiling: int) -> None:
    parent = MAJOR << 16 if minor == _ROOT else _handle(_ROOT)
    body = _TC.pack(socket.AF_UNSPEC, index, _handle(minor), parent, 0) + netlink.text(_KIND, "htb")
    per_second, maximum = _bytes_per_second(rate), _bytes_per_second(ceiling)
    quantum = 0 if minor == _ROOT else max(_MIN_QUANTUM, min(_MAX_QUANTUM, per_second // 1000))
    options = _CLASS.pack(
        *(0, _LINK_LAYER_ETHERNET, 0, 0, 0, min(per_second, _UINT32)),
        *(0, _LINK_LAYER_ETHERNET, 0, 0, 0, min(maximum, _UINT32)),
        *(_ticks(per_second), _ticks(maximum), quantum, 0, 0),
    )
    inner = netlink.attribute(_PARMS, options)
    inner += netlink.attribute(_RATE64, struct.pack("=Q", per_second))
    inner += netlink.attribute(_CEIL64, struct.pack("=Q", maximum))
    connection.request(_NEWCLASS, body + netlink.nest(_OPTIONS, inner), netlink.CREATE | netlink.REPLACE)


def _bytes_per_second(rate: int) -> int:
    """A rate in bytes per second; at least 1, because the kernel refuses 0."""
    return max(1, rate // 8)


def _ticks(per_second: int) -> int:
    """How long a burst takes at this rate (bytes per second), in ticks of the packet scheduler."""
    burst = _BURST_BYTES + per_second * _BURST_SECONDS
    return min(_UINT32, int(burst / per_second / _TICK))


def _remove_class(connection: Netlink, index: int, minor: int, filters: t.Mapping[int, str]) -> None:
    if minor in filters:
        _remove_filter(connection, index, minor)
    connection.drop(_DELCLASS, _TC.pack(socket.AF_UNSPEC, index, _handle(minor), 0, 0))


def _add_filter(connection: Netlink, index: int, minor: int, mac: str) -> None:
    address = links.mac_bytes(mac)
    selector = _SEL.pack(_TERMINAL, 0, 2, b"\0\0", 0, 0, 0, b"\0" * 4)
    selector += _KEY.pack(b"\xff" * 4, address[:4], _SOURCE_OFFSET, 0)
    selector += _KEY.pack(b"\xff\xff\0\0", address[4:] + b"\0\0", _SOURCE_OFFSET + 4, 0)
    options = netlink.u32(_U32_CLASSID, _handle(minor)) + netlink.attribute(_U32_SEL, selector)
    body = _TC.pack(socket.AF_UNSPEC, index, minor, MAJOR << 16, _FILTER_INFO) + netlink.text(_KIND, "u32")
    connection.request(_NEWFILTER, body + netlink.nest(_OPTIONS, options), netlink.CREATE | netlink.EXCLUSIVE)


def _remove_filter(connection: Netlink, index: int, minor: int) -> None:
    body = _TC.pack(socket.AF_UNSPEC, index, _ROOT_TABLE | minor, MAJOR << 16, _FILTER_INFO)
    connection.drop(_DELFILTER, body + netlink.text(_KIND, "u32"))


def _classes(connection: Netlink, index: int) -> list[tuple[int, int, int, int]]:
    """Minor number, rate, ceiling and sent bytes of each of the driver's classes."""
    classes = []
    for _unused, body in connection.dump(_GETCLASS, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)):
        _unused, owner, handle, _unused, _unused = _TC.unpack_from(body)
        raw = netlink.attributes(body, _TC.size)
        if owner != index or not is_ours(handle) or _OPTIONS not in raw:
            continue
        options = netlink.attributes(raw[_OPTIONS])
        plain = _CLASS.unpack_from(options[_PARMS])
        rate, ceiling = (
            struct.unpack_from("=Q", options[key])[0] if key in options else plain[number]
            for key, number in ((_RATE64, 5), (_CEIL64, 11))
        )
        basic = netlink.attributes(raw.get(_STATS2, b"")).get(1, b"")
        bytes_sent = struct.unpack_from("=Q", basic)[0] if len(basic) >= 8 else 0
        classes.append((handle & 0xFFFF, rate * 8, ceiling * 8, bytes_sent))
    return classes


def _filters(connection: Netlink, index: int) -> dict[int, str]:
    """The source addresses of the driver's filters, by the minor numbers of their classes."""
    addresses = {}
    for _unused, body in connection.dump(_GETFILTER, _TC.pack(socket.AF_UNSPEC, index, 0, MAJOR << 16, 0)):
        _unused, owner, handle, _unused, _unused = _TC.unpack_from(body)
        options = netlink.attributes(netlink.attributes(body, _TC.size).get(_OPTIONS, b""))
        selector = options.get(_U32_SEL, b"")
        if owner != index or len(selector) < _SEL.size + 2 * _KEY.size:
            continue
        words = [_KEY.unpack_from(selector, _SEL.size + number * _KEY.size)[1] for number in range(2)]
        addresses[handle & 0xFFF] = (words[0] + words[1][:2]).hex(":")
    return addresses
