# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rail addresses of an interface in a pod, with the routes and rules that send their traffic through this interface
only.

In a claim, the field `railAddresses` of the configuration is `true`. In the claim's record it contains the assigned
addresses instead, so that they do not change with the node's settings.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..base.objects import ObjectView
from ..dra.config.rail_range import RailRange
from ..kernel import routes
from ..kernel.addresses import AddressState
from ..kernel.routes import Route, Rule

FIELD = "railAddresses"
#: The priority of rules: after rules that a pod may have for single connections, and before the main table.
_PRIORITY = 1000
#: The metric of the route that rejects packets which no other route of a table matches.
_LAST_METRIC = 2**32 - 1
_RTN_UNREACHABLE = 7
#: With these, interfaces in one Ethernet segment answer ARP requests only for their own addresses
#: (Documentation/networking/ip-sysctl.rst).
_SYSCTLS = {"net.ipv4.conf.IFNAME.arp_ignore": 1, "net.ipv4.conf.IFNAME.arp_announce": 2}


class _RequiredKeys(t.TypedDict):
    address: str
    pool: str
    reach: str
    table: int


class RailAddress(_RequiredKeys, total=False):
    """An address with its prefix length, and the data for its routes, as stored in a record. `pool` is the
    network of this rail on all nodes. `reach` is `rail` (only the pool can be reached) or `all`. `table` is the routing
    table of the address."""

    gateway: str


def make_rail_address(rail_range: RailRange, address: str) -> RailAddress:
    """What a record stores for an address of a range."""
    result: RailAddress = {
        "address": f"{address}/{rail_range.prefix}",
        "pool": str(rail_range.pool),
        "reach": rail_range.reach,
        "table": rail_range.table(ipaddress.ip_address(address)),
    }
    if rail_range.gateway:
        result["gateway"] = str(rail_range.gateway)
    return result


def rail_addresses(config: ObjectView) -> list[RailAddress]:
    """The addresses that were assigned to a device, from the configuration in its record."""
    value = config.get(FIELD)
    return list(value) if isinstance(value, list) else []


def as_claimed(config: ObjectView) -> dict[str, t.Any]:
    """The configuration as the claim contains it: `railAddresses` is `true` instead of the assigned addresses."""
    return {**config, FIELD: True} if isinstance(config.get(FIELD), list) else dict(config)


def addresses(config: ObjectView) -> list[AddressState]:
    """The rail addresses of the interface."""
    return [{"address": rail["address"]} for rail in rail_addresses(config)]


def sysctls(config: ObjectView) -> dict[str, int]:
    """The sysctls that the IPv4 rail addresses need."""
    return dict(_SYSCTLS) if any(":" not in rail["address"] for rail in rail_addresses(config)) else {}


def rail_routes(config: ObjectView) -> list[Route]:
    """The routes of all rail addresses. Each address has a route to its pool in the main table, if a router leads
    there, and routes in a table of its own. In a VRF, the VRF's table replaces the main one, and the route to the pool
    is enough."""
    result: list[Route] = []
    for rail in rail_addresses(config):
        result += _pool_route(rail) + ([] if "vrf" in config else _table_routes(rail))
    return result


def rail_rules(config: ObjectView) -> list[Rule]:
    """The rules that select the routing table of each source address. In a VRF none are needed."""
    return [] if "vrf" in config else [_rule(rail) for rail in rail_addresses(config)]


def _pool_route(rail: RailAddress) -> list[Route]:
    """The route to the pool in the main table, for programs that do not bind to an address; none without a router."""
    if "gateway" not in rail or rail["pool"] == _subnet(rail):
        return []
    return [_gateway_route(rail, rail["pool"], routes.TABLE_MAIN)]


def _table_routes(rail: RailAddress) -> list[Route]:
    """The routes of the address's own table: to the subnet, and to everything or only the pool, as `reach` says."""
    interface = ipaddress.ip_interface(rail["address"])
    result: list[Route] = []
    if interface.network.prefixlen < interface.max_prefixlen:
        scope = routes.SCOPE_LINK if interface.version == 4 else routes.SCOPE_UNIVERSE
        result.append(
            {
                "family": interface.version,
                "destination": _subnet(rail),
                "scope": scope,
                "device": "",
                "source": str(interface.ip),
                "table": rail["table"],
            }
        )
    everything = "0.0.0.0/0" if interface.version == 4 else "::/0"
    if rail["reach"] == "all":
        return [*result, _gateway_route(rail, everything, rail["table"])]
    if "gateway" in rail and rail["pool"] != _subnet(rail):
        result.append(_gateway_route(rail, rail["pool"], rail["table"]))
    unreachable: Route = {
        "family": interface.version,
        "destination": everything,
        "scope": routes.SCOPE_UNIVERSE,
        "type": _RTN_UNREACHABLE,
        "table": rail["table"],
        "metric": _LAST_METRIC,
    }
    return [*result, unreachable]


def _gateway_route(rail: RailAddress, destination: str, table: int) -> Route:
    interface = ipaddress.ip_interface(rail["address"])
    route: Route = {
        "family": interface.version,
        "destination": destination,
        "scope": routes.SCOPE_UNIVERSE,
        "device": "",
        "gateway": rail["gateway"],
        "source": str(interface.ip),
        "table": table,
    }
    if interface.network.prefixlen == interface.max_prefixlen:
        route["onlink"] = True  # no other route leads to the gateway
    return route


def _rule(rail: RailAddress) -> Rule:
    interface = ipaddress.ip_interface(rail["address"])
    return {
        "family": interface.version,
        "action": routes.ACTION_TABLE,
        "protocol": routes.RTPROT_STATIC,
        "priority": _PRIORITY,
        "source": f"{interface.ip}/{interface.max_prefixlen}",
        "table": rail["table"],
    }


def _subnet(rail: RailAddress) -> str:
    return str(ipaddress.ip_interface(rail["address"]).network)
