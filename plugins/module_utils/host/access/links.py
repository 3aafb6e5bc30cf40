# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads the state of interfaces, by rtnetlink (linux/if_link.h) and from sysfs."""

from __future__ import annotations

from .pyroute2_types import Message
from .system import HostError, System

#: RTEXT_FILTER_VF, RTEXT_FILTER_SKIP_STATS: with the counters of 200 VFs, IFLA_VFINFO_LIST would exceed 64 KiB, the
#: maximum of a netlink attribute.
_VFS, _NO_COUNTERS = 1, 8


def read_link(system: System, interface: str, with_vfs: bool = False) -> Message:
    """The state of an interface (`messages.Link`). Raises HostError."""
    socket = system.socket("ROUTE")
    from . import messages

    mask = _NO_COUNTERS | (_VFS if with_vfs else 0)
    message = (messages.GET_LINK, messages.Link, [("IFLA_IFNAME", interface), ("IFLA_EXT_MASK", mask)])
    return system.read(f"read the state of {interface}", lambda: messages.exchange(socket, *message)[0])


def index(system: System, interface: str) -> int:
    """The current index of an interface. Raises HostError."""
    number = system.integer(f"/sys/class/net/{interface}/ifindex")
    if number is None:
        raise HostError(f"find {interface}", "it no longer exists", "look at 'dmesg', then run again")
    return number


def mtu_limits(system: System, interface: str) -> tuple[int | None, int | None]:
    """The smallest and the largest MTU that the driver accepts, each None if it is not reported or 0 (no limit).

    Raises HostError.
    """
    link = read_link(system, interface)
    return link.get_attr("IFLA_MIN_MTU") or None, link.get_attr("IFLA_MAX_MTU") or None
