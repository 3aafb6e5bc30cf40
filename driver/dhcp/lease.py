# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A DHCP lease as it is stored in records on disk."""

from __future__ import annotations

import typing as t

from ..base.objects import Object

#: The lifetime of a lease that does not expire.
FOREVER = 2**32 - 1


class LeaseStart(t.TypedDict, total=False):
    """When a lease was obtained: `obtained` is Unix time, and `boottime` is CLOCK_BOOTTIME, both in seconds. Older
    releases wrote only the first."""

    obtained: float
    boottime: float


class LeaseTimes(t.TypedDict, total=False):
    """Seconds from when the lease was obtained until it expires (FOREVER: never), until it is renewed
    with its server, and until it is renewed with any server (rebind)."""

    lifetime: float
    renew: float
    rebind: float


class _RequiredKeys(t.TypedDict):
    family: str
    address: str


class Lease(_RequiredKeys, LeaseStart, LeaseTimes, total=False):
    """A lease. `family` is `ipv4` or `ipv6`, `interface` the interface's name in the pod, and `address` includes the
    prefix length.

    `preferred` is the preferred lifetime in seconds. `server` and `serverDuid` are the server's address and DUID (hex).
    `routes` and `mtu` are the ones that the server announced. `lost` means that the lease has expired,
    or that the server refused to renew it or revoked it: its address must not be used any more.
    """

    interface: str
    preferred: float
    server: str
    serverDuid: str
    routes: list[Object]
    mtu: int
    lost: bool
