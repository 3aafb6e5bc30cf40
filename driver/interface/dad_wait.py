# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting for duplicate address detection (DAD) of a pod's IPv6 addresses."""

from __future__ import annotations

import errno
import ipaddress
import time
import typing as t
from pathlib import Path

from ..kernel import addresses, dad, links
from ..kernel.links import step
from ..kernel.netlink import Netlink
from ..kernel.routes import Route

#: Seconds between two checks of the addresses.
_STEP = 0.02
#: Seconds to wait for an IPv6 address that a route needs, including the time that the hardware's link needs to come up.
_SOURCE_TIME = 6.0


def wait_for_dad(netns: Path, requested: t.Mapping[str, t.Sequence[str]], timeout: float = 5.0) -> list[str]:
    """Wait until DAD has passed for the IPv6 addresses in `requested`: by interface, as `interfaceName` and `ips` of
    `Attached.network`. To be called once for a claim, after all attaches, so that DAD runs for all at the same time.

    Raises KernelError if another node has one of the addresses, or after `timeout` seconds. An interface without
    carrier cannot finish DAD: after the same time, it is reported in the result, one sentence each.

    Addresses that were not requested are not waited for: those that routers announce, and the link-local one, which
    takes the kernel a second or two. GIDs of RoCE do not depend on DAD: the kernel creates them when an address is
    added, and the default GIDs, which look like link-local addresses, from the MAC address when the interface is set up
    (drivers/infiniband/core/roce_gid_mgmt.c, net/ipv6/addrconf.c ipv6_add_addr). A program that binds to the link-local
    address in its first seconds (EADDRNOTAVAIL) has to try again, as on any node.
    """
    wanted = {name: {one for one in ips if ":" in one} for name, ips in requested.items()}
    wanted = {name: ips for name, ips in wanted.items() if ips}
    if not wanted:
        return []
    with step("wait for IPv6 addresses"), Netlink(netns) as connection:
        indexes = {}
        for name in wanted:
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"the pod has no interface {name}")
            indexes[name] = link.index
        end = time.monotonic() + timeout
        while True:
            waiting = {name: _tentative(connection, name, index, wanted[name]) for name, index in indexes.items()}
            waiting = {name: left for name, left in waiting.items() if left}
            if not waiting:
                return []
            if time.monotonic() >= end:
                return _without_carrier(connection, indexes, waiting, timeout)
            time.sleep(_STEP)


def _without_carrier(
    connection: Netlink, indexes: t.Mapping[str, int], waiting: t.Mapping[str, list[str]], timeout: float
) -> list[str]:
    """Notes about the addresses for which DAD has not passed. OSError (ETIMEDOUT) if their interface has carrier."""
    notes = []
    for name, left in waiting.items():
        link = links.get(connection, index=indexes[name])
        if link is not None and link.carrier:
            raise OSError(errno.ETIMEDOUT, f"{', '.join(left)} of {name} not proven unique in {timeout:g} s")
        notes.append(f"{name} has no carrier: {', '.join(left)} not proven unique yet")
    return notes


def _tentative(connection: Netlink, name: str, index: int, requested: t.Collection[str]) -> list[str]:
    """Those of the addresses that cannot be used before DAD has passed. OSError (EADDRINUSE) if another node has one of
    them."""
    waiting = []
    for entry, flags in addresses.listed(connection, index):
        if entry["address"] not in requested:
            continue
        if flags & addresses.DADFAILED:
            raise OSError(errno.EADDRINUSE, f"another node has {entry['address']}, the address for {name}")
        if dad.pending(flags):
            waiting.append(entry["address"])
    return waiting


def wait_for_sources(connection: Netlink, name: str, index: int, wanted: t.Sequence[Route]) -> None:
    """Wait for the source addresses of IPv6 routes: the kernel refuses such a route until DAD has passed. Raises
    KernelError."""
    sources = {str(ipaddress.ip_address(one["source"])) for one in wanted if one["family"] == 6 and "source" in one}
    end = time.monotonic() + _SOURCE_TIME
    while sources:
        with step(f"wait for IPv6 addresses of {name}"):
            held = [entry["address"] for entry, _unused in addresses.listed(connection, index)]
            left = _tentative(connection, name, index, [one for one in held if one.split("/")[0] in sources])
            if not left:
                return
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, f"{', '.join(sorted(left))} not proven unique, which a route needs")
        time.sleep(_STEP)
