# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A DHCP lease as it is stored in records on disk."""

from __future__ import annotations

import typing as t

from ..base.objects import Object


class Obtained(t.TypedDict, total=False):
    """When a lease was obtained: Unix time, and CLOCK_BOOTTIME at that moment. Older releases wrote only the first."""

    obtained: float
    boottime: float


class Times(t.TypedDict, total=False):
    """Seconds since then: when the lease ends (FOREVER of `dhcp.client`: never), and when it is renewed from its server
    or from any."""

    lifetime: float
    renew: float
    rebind: float


class _Always(t.TypedDict):
    family: str
    address: str


class Lease(_Always, Obtained, Times, total=False):
    """`family` is `ipv4` or `ipv6`, `interface` the name in the pod, `address` has a prefix length.

    `preferred` is the preferred lifetime in seconds. `server` and `serverDuid` are the server's address and DUID (hex).
    `routes` and `mtu` are what the server announced. `lost` means that the server revoked the lease.
    """

    interface: str
    preferred: float
    server: str
    serverDuid: str
    routes: list[Object]
    mtu: int
    lost: bool
