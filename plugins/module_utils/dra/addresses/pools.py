# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The pools of an address plan, and a node's range in each pool.

    per_node: 64                       # addresses of a node on each rail, a power of two
    reach: rail                        # destinations of a rail's address: its own pool (rail, default) or all
    rails:
      - {rail: 0, pool: 10.100.0.0/16}
      - {rail: 0, pool: "fd00:100::/64"}
      - {rail: 1, pool: 10.101.0.0/16, per_node: 32, prefix: 27, gateway: first, reach: all}

In each pool, the node with index `i` has `per_node` addresses from offset `i * per_node` on. So ranges of different
indexes cannot overlap.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..config import rail_range
from ..config.rail_range import MAX_ADDRESSES, REACH, Address, Network, RailRange
from ..kube.objects import ObjectView
from ..kube.reader import Reader, child

FIRST, LAST = "first", "last"
#: The default number of a node's addresses on a rail.
PER_NODE = 64
_KEYS = ("per_node", "reach", "rails")
_POOL_KEYS = ("rail", "pool", "per_node", "prefix", "gateway", "reach")


@dataclass(frozen=True)
class Pool:
    """The addresses of all nodes on a rail, of one family. `gateway` is an address, or `first` or `last`: the
    first or last usable address of each node's subnet."""

    rail: int
    pool: Network
    per_node: int
    prefix: int
    gateway: Address | str | None
    reach: str

    @property
    def nodes(self) -> int:
        """How many nodes fit. Their indexes are 0 to this number minus 1."""
        return self.pool.num_addresses // self.per_node

    def range_of(self, index: int) -> RailRange:
        """The range of a node. `index` must be below `nodes`."""
        first = self.pool.network_address + index * self.per_node
        length = self.pool.max_prefixlen - (self.per_node.bit_length() - 1)
        node_range = ipaddress.ip_network(f"{first}/{length}")
        made = RailRange(self.rail, node_range, self.pool, self.prefix, None, self.reach)
        gateway = self.gateway
        if isinstance(gateway, str):
            gateway = _edge_address(made.subnet or node_range, gateway)
        return RailRange(self.rail, node_range, self.pool, self.prefix, gateway, self.reach)


def _edge_address(subnet: Network, which: str) -> Address:
    """The first or the last address that a host of a subnet can have."""
    large = subnet.num_addresses > 2
    if which == FIRST:
        return subnet.network_address + (1 if large else 0)
    return subnet.broadcast_address - (1 if large and subnet.version == 4 else 0)


def read_pools(reader: Reader, value: object, path: str) -> tuple[Pool, ...]:
    """The pools of a plan. Problems are recorded in `reader`; invalid pools are left out."""
    given = reader.mapping(value, path, _KEYS, "an address plan")
    if given is None:
        return ()
    if not given.get("rails"):
        reader.problem(child(path, "rails"), "is missing or empty", "missing", "list a pool for each rail")
    found: list[Pool] = []
    for item, place in reader.items(given.get("rails", []), child(path, "rails")):
        one = _pool(reader, item, place, given)
        if one is None:
            continue
        for other in found:
            if rail_range.overlap(one.pool, other.pool):
                message = f"{one.pool} overlaps {other.pool} of rail {other.rail}"
                reader.problem(child(place, "pool"), message, "duplicate", "give each rail its own pool")
            elif (one.rail, one.pool.version) == (other.rail, other.pool.version):
                message = f"rail {one.rail} already has the IPv{one.pool.version} pool {other.pool}"
                reader.problem(place, message, "duplicate", "use one larger pool")
        found.append(one)
    return tuple(found)


def _pool(reader: Reader, value: object, path: str, plan: ObjectView) -> Pool | None:
    given = reader.mapping(value, path, _POOL_KEYS, "a pool of a rail")
    if given is None:
        return None
    before = len(reader.problems)
    for key in ("rail", "pool"):
        if key not in given:
            reader.problem(child(path, key), "is missing", "missing")
    if len(reader.problems) > before:
        return None
    rail = rail_range.read_rail(reader, given["rail"], child(path, "rail"))
    pool = rail_range.read_network(reader, given["pool"], child(path, "pool"))
    per_node = _per_node(reader, given.get("per_node", plan.get("per_node", PER_NODE)), child(path, "per_node"))
    reach = reader.choice(given.get("reach", plan.get("reach", REACH[0])), child(path, "reach"), REACH)
    if rail is None or pool is None or per_node is None or reach is None:
        return None
    if per_node > pool.num_addresses:
        message = f"{pool} has {pool.num_addresses} addresses, fewer than the {per_node} that one node needs"
        reader.problem(child(path, "pool"), message, "out-of-range", "use a larger pool, or a smaller per_node")
        return None
    longest = pool.max_prefixlen - (per_node.bit_length() - 1)
    prefix = rail_range.read_prefix(reader, given.get("prefix"), pool, longest, child(path, "prefix"))
    gateway = _gateway(reader, given.get("gateway"), child(path, "gateway"))
    if prefix is None or len(reader.problems) > before:
        return None
    if isinstance(gateway, str) and prefix == pool.max_prefixlen:
        message = f"is {gateway}, but a /{prefix} has only one address"
        reader.problem(child(path, "gateway"), message, "contradiction", "give the gateway's address")
        return None
    return _checked(reader, Pool(rail, pool, per_node, prefix, gateway, reach), path)


def _checked(reader: Reader, pool: Pool, path: str) -> Pool | None:
    """The pool if its first node's range is valid, else None. Other nodes are checked with their indexes."""
    before = len(reader.problems)
    if isinstance(pool.gateway, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        if pool.gateway.version != pool.pool.version:
            reader.problem(child(path, "gateway"), f"is not in the same IP family as {pool.pool}", "bad-value")
            return None
        if pool.prefix == pool.pool.prefixlen:  # otherwise each node's subnet needs its own gateway
            rail_range.check_gateway(reader, pool.range_of(0), child(path, "gateway"))
    elif pool.gateway is None:
        rail_range.check_gateway(reader, pool.range_of(0), child(path, "gateway"))
    return pool if len(reader.problems) == before else None


def _per_node(reader: Reader, value: object, path: str) -> int | None:
    number = reader.integer(value, path, 1, MAX_ADDRESSES)
    if number is not None and number & (number - 1):
        near = 1 << number.bit_length()
        fix = f"use {near // 2} or {min(near, MAX_ADDRESSES)}, so that each range is one prefix"
        reader.problem(path, f"must be a power of two, not {number}", "bad-value", fix)
        return None
    return number


def _gateway(reader: Reader, value: object, path: str) -> Address | str | None:
    if value is None or value in (FIRST, LAST):
        return value
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        reader.problem(path, f"{text[:64]!r} is not an IP address, {FIRST} or {LAST}", "bad-value")
        return None
