# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a pod's interface gets: the network configuration that follows from the InterfaceConfig and the host state.

Addresses are those of the InterfaceConfig, those of the rail that were assigned to it (`rails`), and a lease for each
family in its `dhcp`; or, if the configuration has none of these fields, the global addresses that the interface
had on the node. Addresses of the rail come with routes and rules, each unless the configuration has a field for it.
With the node's addresses the interface also gets the following, each unless the configuration has a field for it: the
node's routes through this interface alone (but no default route of the main table, because the pod has its own), the
rules from these addresses to the tables of these routes, and the permanent neighbors. A child interface gets nothing of
the node's. A field with an empty list counts as given.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..base.objects import ObjectView
from ..kernel import dad, routes
from ..kernel.addresses import AddressState, Neighbor
from ..kernel.routes import Route, Rule
from . import rails

_DISABLE_IPV6 = "net.ipv6.conf.IFNAME.disable_ipv6"


class InheritedState(t.TypedDict):
    """The parts of a host state that may be passed on to a pod."""

    addresses: list[AddressState]
    routes: list[Route]
    rules: list[Rule]
    neighbors: list[Neighbor]


@dataclass
class NetworkConfig:
    """The network configuration of a pod's interface."""

    addresses: list[AddressState]
    routes: list[Route]
    rules: list[Rule]
    neighbors: list[Neighbor]
    sysctls: dict[str, str | int]


def pod_interface_name(config: ObjectView, host_name: str) -> str:
    """The name of an interface in the pod; `host_name` is its name on the node."""
    return str(config.get("name") or host_name)


def network_config(host: InheritedState, config: ObjectView) -> NetworkConfig:
    """The configuration of the interface with this host state."""
    inherits = not any(name in config for name in ("addresses", "dhcp", "child")) and not config.get(rails.FIELD)
    inherited = _global_addresses(host["addresses"]) if inherits else []
    own = {entry["address"].split("/")[0] for entry in inherited}
    inherited_routes = [_pod_route(route) for route in host["routes"] if inherits and _inheritable(route, own)]
    configured: list[AddressState] = [{"address": one} for one in config.get("addresses", ())]
    found = NetworkConfig(
        addresses=[*configured, *rails.addresses(config), *inherited],
        routes=[routes.configured(route) for route in config["routes"]]
        if "routes" in config
        else [*rails.rail_routes(config), *inherited_routes],
        rules=[routes.configured_rule(rule) for rule in config["rules"]]
        if "rules" in config
        else [*rails.rail_rules(config), *_inherited_rules(host["rules"], own, inherited_routes)],
        neighbors=list(config["neighbors"])
        if "neighbors" in config
        else [neighbor for neighbor in host["neighbors"] if inherits and not neighbor["flags"]],
        sysctls={**rails.sysctls(config), **config.get("sysctls", {})},
    )
    _prepare_ipv6(found, config)
    table = config.get("vrf", {}).get("table")
    if table is not None:
        for route in found.routes:
            if route.get("table", routes.TABLE_MAIN) == routes.TABLE_MAIN:
                route["table"] = table
    return found


def _prepare_ipv6(found: NetworkConfig, config: ObjectView) -> None:
    """Add the sysctls and address flags that IPv6 needs, if it is used."""
    uses_ipv6 = any(":" in entry["address"] for entry in found.addresses) or "ipv6" in config.get("dhcp", ())
    if not uses_ipv6 or config.get("mtu", 1280) < 1280:
        return
    # container runtimes disable IPv6 in pods whose own network has none
    found.sysctls.setdefault(_DISABLE_IPV6, 0)
    kind = dad.mode(config)
    found.sysctls = {**dad.settings(kind), **found.sysctls}
    for entry in found.addresses:
        if ":" in entry["address"]:
            entry["flags"] = dad.flags(kind, entry)


def _global_addresses(held: t.Sequence[AddressState]) -> list[AddressState]:
    """The addresses that a pod can have: global ones, without the name of the node's interface in them."""
    kept = []
    for entry in held:
        if entry["scope"] == 0:
            one = entry.copy()
            one.pop("label", None)
            one.pop("protocol", None)
            kept.append(one)
    return kept


def _inheritable(route: Route, own: set[str]) -> bool:
    """Whether a route of the node makes sense in a pod that has the interface and its addresses."""
    if route["type"] != routes.RTN_UNICAST or "expires" in route or route["table"] == routes.TABLE_LOCAL:
        return False
    if route["protocol"] in (routes.RTPROT_KERNEL, routes.RTPROT_REDIRECT, routes.RTPROT_RA):
        return False
    if route["table"] == routes.TABLE_MAIN and route["destination"].endswith("/0"):
        return False
    devices = [hop["device"] for hop in route["hops"]] if "hops" in route else [route.get("device", "other")]
    return not any(devices) and route.get("source", "") in {"", *own}


def _pod_route(route: Route) -> Route:
    return {**route, "protocol": routes.RTPROT_STATIC}


def _inherited_rules(rules: t.Sequence[Rule], own: set[str], inherited_routes: t.Sequence[Route]) -> list[Rule]:
    """The rules from the inherited addresses to the tables of the inherited routes."""
    system = (routes.TABLE_MAIN, routes.TABLE_LOCAL, routes.TABLE_DEFAULT)
    tables = {(route["family"], route["table"]) for route in inherited_routes if route["table"] not in system}
    return [
        rule
        for rule in rules
        if rule.get("source", "/").split("/")[0] in own
        and (rule["family"], rule["table"]) in tables
        and not {"iif", "oif", "goto"} & set(rule)
    ]
