# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases for interfaces of pods, by DHCPv4 and DHCPv6. Sockets are created in the pod's namespace; no thread stays
there."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ..base.errors import DriverError
from ..base.objects import ObjectView
from ..kernel import addresses, links, netlink, routes
from ..kernel.links import step
from ..kernel.netlink import Netlink
from .dhcpv4 import Client4
from .dhcpv6 import Client6
from .lease import FOREVER, Lease

log = logging.getLogger(__name__)


def acquire(netns: Path, name: str, family: str, timeout: float) -> Lease:
    """Request a lease for an interface that is up, without configuring the lease. Raises NoLease after `timeout`
    seconds, Refusal, and KernelError."""
    deadline = time.monotonic() + timeout
    with step(action := f"request an {family} lease on {name}"):
        if family == "ipv6":
            with Client6(netns, name, action, deadline) as client6:
                return client6.acquire(deadline)
        with Client4(netns, name, action) as client4:
            return client4.acquire(deadline)


def renew(netns: Path, lease: Lease, rebind: bool, timeout: float) -> Lease:
    """Renew a lease with the server that granted it, or with `rebind` with any server. Raises Refusal if a server
    refused to renew the lease or revoked it, NoLease after `timeout` seconds, and KernelError."""
    deadline = time.monotonic() + timeout
    with step(action := f"renew the {lease['family']} lease of {lease['interface']}"):
        if lease["family"] == "ipv6":
            with Client6(netns, lease["interface"], action, deadline) as client6:
                return client6.renew(lease, rebind, deadline)
        with Client4(netns, lease["interface"], action) as client4:
            return client4.renew(lease, rebind, deadline)


def release(netns: Path, lease: Lease) -> None:
    """Release a lease, if possible; a failure is only logged. Call this before the interface leaves the pod."""
    action = f"release the {lease['family']} lease of {lease['interface']}"
    try:
        if lease["family"] == "ipv6":
            with Client6(netns, lease["interface"], action, time.monotonic()) as client6:
                client6.release(lease)
        else:
            with Client4(netns, lease["interface"], action) as client4:
                client4.release(lease)
    except (OSError, DriverError) as error:
        log.info("could not release the lease of %s, which expires by itself: %s", lease["interface"], error)


def age(lease: Lease) -> float:
    """Seconds since a lease was obtained."""
    if "boottime" in lease:
        return addresses.boottime() - float(lease["boottime"])
    return time.time() - float(lease["obtained"])


def apply(connection: Netlink, index: int, lease: Lease, config: ObjectView) -> None:
    """Configure the lease's address, MTU and routes on the interface `index`. May be called again with a renewed lease.
    Raises KernelError."""
    name = lease["interface"]
    with step(f"add the leased address {lease['address']} to {name}"):
        entry: addresses.AddressState = {"address": lease["address"]}
        if lease["lifetime"] != FOREVER:
            obtained = addresses.boottime() - age(lease)
            entry["validBoottime"] = obtained + lease["lifetime"]
            entry["preferredBoottime"] = obtained + min(lease.get("preferred", lease["lifetime"]), lease["lifetime"])
        addresses.add(connection, index, entry, renew=True)
    if "mtu" in lease and "mtu" not in config:
        link = links.get(connection, index=index)
        if link and link.number(links.IFLA_MIN_MTU) <= lease["mtu"] <= (link.number(links.IFLA_MAX_MTU) or 65535):
            with step(f"set the leased MTU {lease['mtu']} of {name}"):
                if lease["mtu"] != link.mtu:
                    links.change(connection, index, netlink.u32(links.IFLA_MTU, lease["mtu"]))
    table = config.get("vrf", {}).get("table", routes.TABLE_MAIN)
    wanted: list[routes.Route] = [{**routes.configured(route), "table": table} for route in lease.get("routes", ())]
    for route, error in routes.add_all(connection, index, wanted):
        with step(f"add the leased route to {route['destination']} on {name}"):
            raise error
