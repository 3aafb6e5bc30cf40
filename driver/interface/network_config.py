# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The network configuration of a pod's interface, computed from the InterfaceConfig and the host state.

- Addresses: those of the InterfaceConfig, and the rail addresses that were assigned to the interface (`rails`). The
  leases of `dhcp` are requested later, and are not included. If the configuration has none of these fields, the
  interface keeps the global addresses that it had on the node.
- Rail addresses bring their own routes and rules. If the configuration has the field `routes` or `rules`, that field
  replaces them.
- The node's addresses bring the routes through this interface alone, the rules from these addresses to the tables of
  these routes, and the permanent neighbors. Here, too, a field of the configuration replaces them. The default route of
  the main table is left out, because the pod has its own.
- A child interface inherits nothing from the node.

A field with an empty list counts as set.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..base.objects import ObjectView
from ..kernel import dad, routes
from ..kernel.addresses import NTF_PROXY, AddressState, Neighbor
from ..kernel.routes import Route, Rule
from . import rails

_DISABLE_IPV6 = "net.ipv6.conf.IFNAME.disable_ipv6"


class InheritedState(t.TypedDict):
    """The parts of a host state that a pod's interface may inherit."""

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
    """The network configuration that `config` gives to an interface with the host state `host`."""
    inherits = not any(name in config for name in ("addresses", "dhcp", "child")) and not config.get(rails.FIELD)
    inherited = _global_addresses(host["addresses"]) if inherits else []
    sources = {entry["address"].split("/")[0] for entry in inherited}
    inherited_routes = [_pod_route(route) for route in host["routes"] if inherits and _inheritable(route, sources)]
    configured: list[AddressState] = [{"address": address} for address in config.get("addresses", ())]
    network = NetworkConfig(
        addresses=[*configured, *rails.addresses(config), *inherited],
        routes=[routes.configured(route) for route in config["routes"]]
        if "routes" in config
        else [*rails.rail_routes(config), *inherited_routes],
        rules=[routes.configured_rule(rule) for rule in config["rules"]]
        if "rules" in config
        else [*rails.rail_rules(config), *_inherited_rules(host["rules"], sources, inherited_routes)],
        neighbors=list(config["neighbors"])
        if "neighbors" in config
        else [neighbor for neighbor in host["neighbors"] if inherits and not neighbor["flags"] & NTF_PROXY],
        sysctls={**rails.sysctls(config), **config.get("sysctls", {})},
    )
    _prepare_ipv6(network, config)
    table = config.get("vrf", {}).get("table")
    if table is not None:
        for route in network.routes:
            if route.get("table", routes.TABLE_MAIN) == routes.TABLE_MAIN:
                route["table"] = table
    return network


def _prepare_ipv6(network: NetworkConfig, config: ObjectView) -> None:
    """Add the sysctls and address flags that IPv6 needs, if the interface gets IPv6 addresses."""
    uses_ipv6 = any(":" in entry["address"] for entry in network.addresses) or "ipv6" in config.get("dhcp", ())
    if not uses_ipv6 or config.get("mtu", 1280) < 1280:
        return
    # container runtimes disable IPv6 in pods whose own network has none
    network.sysctls.setdefault(_DISABLE_IPV6, 0)
    dad_mode = dad.mode(config)
    network.sysctls = {**dad.settings(dad_mode), **network.sysctls}
    for entry in network.addresses:
        if ":" in entry["address"]:
            entry["flags"] = dad.flags(dad_mode, entry)


def _global_addresses(entries: t.Sequence[AddressState]) -> list[AddressState]:
    """The global addresses, without labels, which contain the interface's name on the node, and without their
    address protocol (IFA_PROTO)."""
    result = []
    for entry in entries:
        if entry["scope"] == 0:
            address = entry.copy()
            address.pop("label", None)
            address.pop("protocol", None)
            result.append(address)
    return result


def _inheritable(route: Route, sources: set[str]) -> bool:
    """Whether a route of the node makes sense in a pod that has the interface and these addresses."""
    if route["type"] != routes.RTN_UNICAST or "expires" in route or route["table"] == routes.TABLE_LOCAL:
        return False
    if route["protocol"] in (routes.RTPROT_KERNEL, routes.RTPROT_REDIRECT, routes.RTPROT_RA):
        return False
    if route["table"] == routes.TABLE_MAIN and route["destination"].endswith("/0"):
        return False
    devices = [hop["device"] for hop in route["hops"]] if "hops" in route else [route.get("device", "other")]
    return not any(devices) and route.get("source", "") in {"", *sources}


def _pod_route(route: Route) -> Route:
    return {**route, "protocol": routes.RTPROT_STATIC}


def _inherited_rules(rules: t.Sequence[Rule], sources: set[str], inherited_routes: t.Sequence[Route]) -> list[Rule]:
    """The rules from the inherited addresses to the tables of the inherited routes."""
    system = (routes.TABLE_MAIN, routes.TABLE_LOCAL, routes.TABLE_DEFAULT)
    tables = {(route["family"], route["table"]) for route in inherited_routes if route["table"] not in system}
    return [
        rule
        for rule in rules
        if rule.get("source", "/").split("/")[0] in sources
        and (rule["family"], rule["table"]) in tables
        and not {"iif", "oif", "goto", "invert"} & set(rule)
    ]
