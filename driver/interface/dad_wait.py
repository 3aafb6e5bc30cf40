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

#: Pause between two checks of the addresses.
_CHECK_SECONDS = 0.02
#: How long to wait for an IPv6 address that a route needs, including the time until the hardware's link comes up.
_SOURCE_TIMEOUT_SECONDS = 6.0


def wait_for_dad(netns: Path, requested: t.Mapping[str, t.Sequence[str]], timeout: float = 5.0) -> list[str]:
    """Wait until DAD has passed for the IPv6 addresses in `requested`, which are listed by interface name, as
    `interfaceName` and `ips` of `Attached.network`. Call this once for a claim, after all its interfaces were attached,
    so that DAD runs for all addresses at the same time.

    Raises KernelError if another node has one of the addresses, or after `timeout` seconds. An interface without
    carrier cannot finish DAD. After `timeout` seconds the result contains a sentence about each such interface.

    This does not wait for addresses that were not requested: those that routers announce, and the link-local one, for
    which DAD takes a second or two. RoCE GIDs do not depend on DAD: the kernel creates them when an address is added.
    It creates the default GIDs, which look like link-local addresses, from the MAC address when the interface comes up
    (drivers/infiniband/core/roce_gid_mgmt.c, net/ipv6/addrconf.c ipv6_add_addr). A program that binds to the link-local
    address in its first seconds (EADDRNOTAVAIL) has to try again, as on any node.
    """
    wanted = {name: {address for address in ips if ":" in address} for name, ips in requested.items()}
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
            time.sleep(_CHECK_SECONDS)


def _without_carrier(
    connection: Netlink, indexes: t.Mapping[str, int], waiting: t.Mapping[str, list[str]], timeout: float
) -> list[str]:
    """Notes about the addresses for which DAD has not passed. Raises OSError (ETIMEDOUT) if an interface has
    carrier."""
    notes = []
    for name, left in waiting.items():
        link = links.get(connection, index=indexes[name])
        if link is not None and link.carrier:
            raise OSError(errno.ETIMEDOUT, f"{', '.join(left)} of {name} not proven unique in {timeout:g} s")
        notes.append(f"{name} has no carrier: {', '.join(left)} not proven unique yet")
    return notes


def _tentative(connection: Netlink, name: str, index: int, requested: t.Collection[str]) -> list[str]:
    """The requested addresses that cannot be used before DAD has passed. Raises OSError (EADDRINUSE) if another node
    has one of them."""
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
    """Wait until DAD has passed for the source addresses of the IPv6 routes `wanted`: until then the kernel refuses the
    routes. Raises KernelError."""
    sources = {
        str(ipaddress.ip_address(route["source"])) for route in wanted if route["family"] == 6 and "source" in route
    }
    end = time.monotonic() + _SOURCE_TIMEOUT_SECONDS
    while sources:
        with step(f"wait for IPv6 addresses of {name}"):
            current = [entry["address"] for entry, _unused in addresses.listed(connection, index)]
            left = _tentative(
                connection, name, index, [address for address in current if address.split("/")[0] in sources]
            )
            if not left:
                return
            if time.monotonic() > end:
                raise OSError(
                    errno.ETIMEDOUT, f"{', '.join(sorted(left))} not proven unique, but a route needs the address"
                )
        time.sleep(_CHECK_SECONDS)
