# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The pools of an address plan, and a node's range in each pool.

    per_node: 64                       # addresses of a node on each rail, a power of two
    reach: rail                        # destinations of a rail's address: only its pool (rail, default) or all
    rails:
      - {rail: 0, pool: 10.100.0.0/16}
      - {rail: 0, pool: "fd00:100::/64"}
      - {rail: 1, pool: 10.101.0.0/16, per_node: 32, prefix: 27, gateway: first, reach: all}

In each pool, the node with index `i` has the `per_node` addresses that start at offset `i * per_node`. So the ranges of
different indexes cannot overlap.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

from ..config import rail_range
from ..config.rail_range import MAX_ADDRESSES, REACH_CHOICES, Address, Network, RailRange
from ..kube.objects import ObjectView
from ..kube.reader import Reader, child

FIRST, LAST = "first", "last"
#: The default number of a node's addresses on a rail.
PER_NODE = 64
_KEYS = ("per_node", "reach", "rails")
_POOL_KEYS = ("rail", "pool", "per_node", "prefix", "gateway", "reach")


@dataclass(frozen=True)
class Pool:
    """The addresses of all nodes on a rail, of one IP family.

    `gateway` is an address, or `first` or `last` for the first or last usable address of each node's subnet.
    """

    rail: int
    network: Network
    per_node: int
    prefix: int
    gateway: Address | str | None
    reach: str

    @property
    def max_nodes(self) -> int:
        """The number of nodes that have room in the pool. Their indexes are 0 to this number minus 1."""
        return self.network.num_addresses // self.per_node

    def range_of(self, index: int) -> RailRange:
        """The range of the node with this index, which must be below `max_nodes`."""
        first = self.network.network_address + index * self.per_node
        length = self.network.max_prefixlen - (self.per_node.bit_length() - 1)
        node_range = ipaddress.ip_network(f"{first}/{length}")
        without_gateway = RailRange(self.rail, node_range, self.network, self.prefix, None, self.reach)
        gateway = self.gateway
        if isinstance(gateway, str):
            gateway = _edge_address(without_gateway.subnet or node_range, gateway)
        return replace(without_gateway, gateway=gateway)


def _edge_address(subnet: Network, which: str) -> Address:
    """The first or the last address that a host of a subnet can have."""
    large = subnet.num_addresses > 2
    if which == FIRST:
        return subnet.network_address + (1 if large else 0)
    return subnet.broadcast_address - (1 if large and subnet.version == 4 else 0)


def read_pools(reader: Reader, value: object, path: str) -> tuple[Pool, ...]:
    """The pools of a plan. Problems are recorded in `reader`; invalid pools are left out."""
    plan = reader.mapping(value, path, _KEYS, "an address plan")
    if plan is None:
        return ()
    rails = plan.get("rails", [])
    if rails == []:
        reader.problem(child(path, "rails"), "is missing or empty", "missing", "list a pool for each rail")
    pools: list[Pool] = []
    for item, item_path in reader.items(rails, child(path, "rails")):
        pool = _pool(reader, item, item_path, plan)
        if pool is None:
            continue
        for other in pools:
            if rail_range.overlap(pool.network, other.network):
                message = f"{pool.network} overlaps {other.network} of rail {other.rail}"
                reader.problem(child(item_path, "pool"), message, "duplicate", "give each rail its own pool")
            elif (pool.rail, pool.network.version) == (other.rail, other.network.version):
                message = f"rail {pool.rail} already has the IPv{pool.network.version} pool {other.network}"
                reader.problem(item_path, message, "duplicate", "use one larger pool")
        pools.append(pool)
    return tuple(pools)


def _pool(reader: Reader, value: object, path: str, plan: ObjectView) -> Pool | None:
    """One pool of `plan`, or None if it has problems, which are recorded in `reader`."""
    entry = reader.mapping(value, path, _POOL_KEYS, "a pool of a rail")
    if entry is None:
        return None
    problems_before = len(reader.problems)
    for key in ("rail", "pool"):
        if key not in entry:
            reader.problem(child(path, key), "is missing", "missing")
    if len(reader.problems) > problems_before:
        return None
    rail = rail_range.read_rail(reader, entry["rail"], child(path, "rail"))
    network = rail_range.read_network(reader, entry["pool"], child(path, "pool"))
    per_node = _per_node(reader, entry.get("per_node", plan.get("per_node", PER_NODE)), child(path, "per_node"))
    reach = reader.choice(entry.get("reach", plan.get("reach", REACH_CHOICES[0])), child(path, "reach"), REACH_CHOICES)
    if rail is None or network is None or per_node is None or reach is None:
        return None
    if per_node > network.num_addresses:
        message = f"{network} has {network.num_addresses} addresses, fewer than the {per_node} that one node needs"
        reader.problem(child(path, "pool"), message, "out-of-range", "use a larger pool, or a smaller per_node")
        return None
    longest = network.max_prefixlen - (per_node.bit_length() - 1)
    prefix = rail_range.read_prefix(reader, entry.get("prefix"), network, longest, child(path, "prefix"))
    gateway = _gateway(reader, entry.get("gateway"), child(path, "gateway"))
    if prefix is None or len(reader.problems) > problems_before:
        return None
    if isinstance(gateway, str) and prefix == network.max_prefixlen:
        message = f"is {gateway}, but a /{prefix} has only one address"
        reader.problem(child(path, "gateway"), message, "contradiction", "set the gateway's address")
        return None
    return _with_valid_gateway(reader, Pool(rail, network, per_node, prefix, gateway, reach), path)


def _with_valid_gateway(reader: Reader, pool: Pool, path: str) -> Pool | None:
    """The pool, or None if its gateway is invalid for all nodes. Other gateways are checked with each node's index."""
    problems_before = len(reader.problems)
    if isinstance(pool.gateway, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        if pool.gateway.version != pool.network.version:
            reader.problem(child(path, "gateway"), f"is not in the same IP family as {pool.network}", "bad-value")
            return None
        if pool.prefix == pool.network.prefixlen:  # otherwise each node's subnet needs its own gateway
            rail_range.check_gateway(reader, pool.range_of(0), child(path, "gateway"))
    elif pool.gateway is None:
        rail_range.check_gateway(reader, pool.range_of(0), child(path, "gateway"))
    return pool if len(reader.problems) == problems_before else None


def _per_node(reader: Reader, value: object, path: str) -> int | None:
    """A power of two, or None for any other value, which is recorded in `reader`."""
    number = reader.integer(value, path, 1, MAX_ADDRESSES)
    if number is not None and number & (number - 1):
        next_power = 1 << number.bit_length()
        fix = f"use {next_power // 2} or {min(next_power, MAX_ADDRESSES)}, so that each range is one prefix"
        reader.problem(path, f"must be a power of two, not {number}", "bad-value", fix)
        return None
    return number


def _gateway(reader: Reader, value: object, path: str) -> Address | str | None:
    """The gateway of a pool as in `Pool`, or None if it is not set or invalid, which is recorded in `reader`."""
    if value is None or value in (FIRST, LAST):
        return value
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        return rail_range.parse_address(text)
    except ValueError as error:
        reader.problem(path, f"must be an IP address, {FIRST} or {LAST}: {error}", "bad-value")
        return None
