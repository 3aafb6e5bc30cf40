# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases for interfaces of pods, by DHCPv4 and DHCPv6. Sockets are created in the pod's namespace; no thread stays
there."""

from __future__ import annotations

import functools
import logging
import time
import typing as t
from pathlib import Path

from ..base.errors import DriverError, KernelError
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
    """Configure a new lease's address, MTU and routes on the interface `index`. Raises KernelError."""
    _set_address(connection, index, lease)
    for error in _set_options(connection, index, lease, config):
        raise error


def apply_renewed(connection: Netlink, index: int, lease: Lease, previous: Lease, config: ObjectView) -> None:
    """Configure a lease that replaces the lease `previous`, on the interface `index`.

    Routes of the previous lease that neither this lease nor the configuration has are removed, if they are still as
    they were added. Raises KernelError if the address cannot be configured. If the MTU or a route cannot, that is only
    logged, because the pod has a valid address and keeps it.
    """
    _set_address(connection, index, lease)
    errors = _set_options(connection, index, lease, config)
    current = [*_routes(lease, config), *_configured_routes(config)]
    for route in _routes(previous, config):
        if route not in current:
            action = f"remove the route to {route['destination']} of the previous lease of {lease['interface']}"
            errors += _errors(action, functools.partial(_remove_route, connection, index, route))
    for error in errors:
        log.warning("after a renewal: %s", error.message)


def _set_address(connection: Netlink, index: int, lease: Lease) -> None:
    with step(f"add the leased address {lease['address']} to {lease['interface']}"):
        entry: addresses.AddressState = {"address": lease["address"]}
        obtained = addresses.boottime() - age(lease)
        preferred = min(lease.get("preferred", lease["lifetime"]), lease["lifetime"])
        if lease["lifetime"] != FOREVER:
            entry["validBoottime"] = obtained + lease["lifetime"]
        if preferred != FOREVER:
            entry["preferredBoottime"] = obtained + preferred
        addresses.add(connection, index, entry, renew=True)


def _set_options(connection: Netlink, index: int, lease: Lease, config: ObjectView) -> list[KernelError]:
    """Set the MTU, unless the configuration has one, and add the routes. Returns the errors."""
    name = lease["interface"]
    errors: list[KernelError] = []
    if "mtu" in lease and "mtu" not in config:
        errors += _errors(
            f"set the leased MTU {lease['mtu']} of {name}",
            functools.partial(_set_mtu, connection, index, lease["mtu"]),
        )
    for route, error in routes.add_all(connection, index, _routes(lease, config)):
        errors.append(links.kernel_error(f"add the leased route to {route['destination']} on {name}", error))
    return errors


def _set_mtu(connection: Netlink, index: int, mtu: int) -> None:
    """Set the MTU, unless it is outside the limits of the interface. Raises OSError."""
    link = links.get(connection, index=index)
    if link and link.number(links.IFLA_MIN_MTU) <= mtu <= (link.number(links.IFLA_MAX_MTU) or 65535):
        if mtu != link.mtu:
            links.change(connection, index, netlink.u32(links.IFLA_MTU, mtu))


def _errors(action: str, function: t.Callable[[], object]) -> list[KernelError]:
    """Call a function. Returns its error, if there is one."""
    try:
        with step(action):
            function()
    except KernelError as error:
        return [error]
    return []


def add_configured_routes(connection: Netlink, index: int, name: str, config: ObjectView) -> None:
    """Add the routes of the configuration again, after an address of the interface was removed: with the last IPv4
    address of an interface, the kernel removes its IPv4 routes. Logs those that cannot be added."""
    for route, error in routes.add_all(connection, index, _configured_routes(config)):
        log.warning("could not add the route to %s through %s again: %s", route["destination"], name, error)


def _configured_routes(config: ObjectView) -> list[routes.Route]:
    """The routes of the configuration itself, as they are added for its interface."""
    return _in_table(map(routes.configured, config.get("routes", ())), config)


def _routes(lease: Lease, config: ObjectView) -> list[routes.Route]:
    """The routes of a lease, as they are added for an interface with this configuration."""
    return _in_table(map(routes.configured, lease.get("routes", ())), config)


def _in_table(entries: t.Iterable[routes.Route], config: ObjectView) -> list[routes.Route]:
    """The routes with their table: instead of the main table, that of the VRF to which the interface belongs."""
    table = config.get("vrf", {}).get("table", routes.TABLE_MAIN)
    main = routes.TABLE_MAIN
    return [{**route, "table": table if route.get("table", main) == main else route["table"]} for route in entries]


def _remove_route(connection: Netlink, index: int, route: routes.Route) -> None:
    """Remove a leased route, unless the kernel would remove another one, such as the pod's own. Raises OSError.

    The kernel's request does not say that a route has no metric, source and so on: it removes the first route with the
    same destination, table, protocol, scope and gateway."""
    added: routes.Route = {**route, "type": routes.RTN_UNICAST, "protocol": routes.RTPROT_STATIC}
    candidates = (entry for entry in routes.listed(connection, index) if added.items() <= entry.items())
    if next(candidates, None) == added:
        routes.remove(connection, index, route)
