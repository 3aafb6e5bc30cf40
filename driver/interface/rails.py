# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an interface in a pod gets with the addresses of its rail: the addresses, and routes and rules that send their
traffic through this interface only.

The configuration in a claim's record has the assigned addresses in the field `railAddresses`, where the claim itself
has `true`. So they do not change with the node's settings.
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
#: The priority of rules: after those that a pod may have for single connections, and before the main table.
_PRIORITY = 1000
#: The metric of the route that refuses what no other route of a table matches.
_LAST_METRIC = 2**32 - 1
_RTN_UNREACHABLE = 7
#: Several interfaces in one Ethernet segment answer for their own addresses only (Documentation/networking/ip-sysctl).
_SYSCTLS = {"net.ipv4.conf.IFNAME.arp_ignore": 1, "net.ipv4.conf.IFNAME.arp_announce": 2}


class _RequiredKeys(t.TypedDict):
    address: str
    pool: str
    reach: str
    table: int


class RailAddress(_RequiredKeys, total=False):
    """An address with its prefix length, and the data for its routes, as stored in a record."""

    gateway: str


def make_rail_address(one: RailRange, address: str) -> RailAddress:
    """What a record stores for an address of a range."""
    found: RailAddress = {
        "address": f"{address}/{one.prefix}",
        "pool": str(one.pool),
        "reach": one.reach,
        "table": one.table(ipaddress.ip_address(address)),
    }
    if one.gateway:
        found["gateway"] = str(one.gateway)
    return found


def rail_addresses(config: ObjectView) -> list[RailAddress]:
    """The addresses that were assigned to a device, from the configuration in its record."""
    found = config.get(FIELD)
    return list(found) if isinstance(found, list) else []


def as_claimed(config: ObjectView) -> dict[str, t.Any]:
    """The configuration as in the claim: with `true` instead of the addresses."""
    return {**config, FIELD: True} if isinstance(config.get(FIELD), list) else dict(config)


def addresses(config: ObjectView) -> list[AddressState]:
    return [{"address": one["address"]} for one in rail_addresses(config)]


def sysctls(config: ObjectView) -> dict[str, int]:
    """The sysctls that IPv4 addresses of a rail need."""
    return dict(_SYSCTLS) if any(":" not in one["address"] for one in rail_addresses(config)) else {}


def rail_routes(config: ObjectView) -> list[Route]:
    """The routes of each address: a route to its pool in the main table, if a router leads there, and the routes of its
    own table. In a VRF, whose table replaces the main one, the first is enough."""
    found: list[Route] = []
    for one in rail_addresses(config):
        found += _pool_route(one) + ([] if "vrf" in config else _table_routes(one))
    return found


def rail_rules(config: ObjectView) -> list[Rule]:
    """The rules that select the table of each source address. In a VRF none are needed."""
    return [] if "vrf" in config else [_rule(one) for one in rail_addresses(config)]


def _pool_route(one: RailAddress) -> list[Route]:
    """The route in the main table, for programs that do not bind to an address; none without a router."""
    if "gateway" not in one or one["pool"] == _subnet(one):
        return []
    return [_by_gateway(one, one["pool"], routes.TABLE_MAIN)]


def _table_routes(one: RailAddress) -> list[Route]:
    interface = ipaddress.ip_interface(one["address"])
    found: list[Route] = []
    if interface.network.prefixlen < interface.max_prefixlen:
        scope = routes.SCOPE_LINK if interface.version == 4 else routes.SCOPE_UNIVERSE
        found.append(
            {
                "family": interface.version,
                "destination": _subnet(one),
                "scope": scope,
                "device": "",
                "source": str(interface.ip),
                "table": one["table"],
            }
        )
    everything = "0.0.0.0/0" if interface.version == 4 else "::/0"
    if one["reach"] == "all":
        return [*found, _by_gateway(one, everything, one["table"])]
    if "gateway" in one and one["pool"] != _subnet(one):
        found.append(_by_gateway(one, one["pool"], one["table"]))
    refused: Route = {
        "family": interface.version,
        "destination": everything,
        "scope": routes.SCOPE_UNIVERSE,
        "type": _RTN_UNREACHABLE,
        "table": one["table"],
        "metric": _LAST_METRIC,
    }
    return [*found, refused]


def _by_gateway(one: RailAddress, destination: str, table: int) -> Route:
    interface = ipaddress.ip_interface(one["address"])
    route: Route = {
        "family": interface.version,
        "destination": destination,
        "scope": routes.SCOPE_UNIVERSE,
        "device": "",
        "gateway": one["gateway"],
        "source": str(interface.ip),
        "table": table,
    }
    if interface.network.prefixlen == interface.max_prefixlen:
        route["onlink"] = True  # no other route leads to it
    return route


def _rule(one: RailAddress) -> Rule:
    interface = ipaddress.ip_interface(one["address"])
    return {
        "family": interface.version,
        "action": routes.ACTION_TABLE,
        "protocol": routes.RTPROT_STATIC,
        "priority": _PRIORITY,
        "source": f"{interface.ip}/{interface.max_prefixlen}",
        "table": one["table"],
    }


def _subnet(one: RailAddress) -> str:
    return str(ipaddress.ip_interface(one["address"]).network)
