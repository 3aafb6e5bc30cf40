# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Interfaces as rtnetlink tells and changes them (linux/if_link.h)."""

from __future__ import annotations

import struct

from . import netlink
from .system import HostError, System

IFLA_ADDRESS, IFLA_VFINFO_LIST = 1, 22
_IFNAME, _EXT_MASK, _MIN_MTU, _MAX_MTU = 3, 29, 50, 51
_NEWLINK, _GETLINK = 16, 18
_WITH_VFS = 1
_IFINFO = struct.Struct("=BxHiII")


def attributes(system: System, interface: str, with_vfs: bool = False) -> dict[int, bytes]:
    """What the kernel tells of an interface, by IFLA number. Raises HostError."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + netlink.text(_IFNAME, interface)
    if with_vfs:
        body += netlink.attribute(_EXT_MASK, struct.pack("=I", _WITH_VFS))
    kernel = system.netlink(netlink.ROUTE)
    answers = system.read(f"read what the kernel tells of {interface}", lambda: kernel.request(_GETLINK, body))
    return netlink.attributes(answers[0], _IFINFO.size)


def index(system: System, interface: str) -> int:
    """The number of an interface, fresh from the kernel. Raises HostError."""
    number = system.integer(f"/sys/class/net/{interface}/ifindex")
    if number is None:
        raise HostError(f"find {interface}", "the node no longer shows it", "look at 'dmesg', then run again")
    return number


def change(system: System, interface: str, message: bytes, step: str, fix: str = "") -> None:
    """Set attributes of an interface. Raises HostError."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + netlink.text(_IFNAME, interface) + message
    kernel = system.netlink(netlink.ROUTE)
    system.ask(step, lambda: kernel.request(_NEWLINK, body), fix)


def mtu_limits(system: System, interface: str) -> tuple[int | None, int | None]:
    """The smallest and the largest MTU that the driver takes; None where it does not tell. Raises HostError."""
    told = attributes(system, interface)
    low, high = (netlink.number(told[kind]) if kind in told else 0 for kind in (_MIN_MTU, _MAX_MTU))
    return low or None, high or None
