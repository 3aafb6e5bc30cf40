# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The ranges of all nodes of a site, checked together before anything changes."""

from __future__ import annotations

import ipaddress
import json
import typing as t
from dataclasses import dataclass, field

from ..config import rail_range
from ..config.rail_range import Network, RailRange
from ..kube.problems import Problem, Problems
from ..kube.reader import Reader
from .pools import Pool, read_pools

#: The host variables that messages name.
PLAN, INDEX = "dra_driver_rail_addresses", "dra_driver_rail_index"
#: Far above the size of any fleet.
MAX_INDEX = 2**24 - 1


@dataclass(frozen=True)
class NodeInput:
    """The inventory of one node: its plan, its index, and the node's own addresses or networks."""

    name: str
    plan: object
    index: object
    own_addresses: tuple[str, ...] = ()


@dataclass
class Site:
    """`ranges` by node. `pools` has the pools of each plan, with the nodes that have the plan."""

    ranges: dict[str, tuple[RailRange, ...]] = field(default_factory=dict)
    indexes: dict[str, int] = field(default_factory=dict)
    pools: list[tuple[tuple[Pool, ...], list[str]]] = field(default_factory=list)


def ranges_of(plan: object, index: object) -> list[dict[str, t.Any]]:
    """The ranges of one node, as its driver's setting `rail_addresses`. Raises Problems."""
    reader = Reader()
    pools = read_pools(reader, plan, PLAN)
    number = _index(reader, index)
    found = _ranges(reader, pools, number) if number is not None else ()
    if reader.problems:
        raise Problems(reader.problems)
    return [one.setting() for one in found]


def site_plan(nodes: t.Sequence[NodeInput]) -> Site:
    """The ranges of all nodes that have a plan. Raises Problems with all errors, each with its nodes' names."""
    found, problems = Site(), []
    by_plan: dict[str, list[NodeInput]] = {}
    for node in nodes:
        if node.plan:
            by_plan.setdefault(json.dumps(node.plan, sort_keys=True, default=str), []).append(node)
    for members in by_plan.values():
        reader = Reader()
        pools = read_pools(reader, members[0].plan, PLAN)
        problems += [_for_nodes([node.name for node in members], problem) for problem in reader.problems]
        found.pools.append((pools, [node.name for node in members]))
        problems += _add_ranges(found, pools, members)
    problems += _overlaps_between_plans(found)
    if problems:
        raise Problems(problems)
    return found


def _add_ranges(found: Site, pools: tuple[Pool, ...], members: t.Sequence[NodeInput]) -> list[Problem]:
    """Add the ranges of the nodes that have the same plan. Returns the problems found."""
    problems: list[Problem] = []
    taken: dict[int, str] = {}
    for node in members:
        reader = Reader()
        number = _index(reader, node.index)
        if number is not None:
            if number in taken:
                message = f"{number} is already the index of {taken[number]}"
                reader.problem(INDEX, message, "duplicate", "give each node its own index, and never change it")
            taken.setdefault(number, node.name)
            found.ranges[node.name] = _ranges(reader, pools, number)
            found.indexes[node.name] = number
            _check_node_addresses(reader, node, pools)
        problems += [_for_nodes([node.name], problem) for problem in reader.problems]
    return problems


def _index(reader: Reader, value: object) -> int | None:
    if value is None:
        fix = "set it for each host: 0, 1, 2 ...; a node keeps its index for life"
        reader.problem(INDEX, "is missing", "missing", fix)
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])  # Jinja turns numbers into strings
    return reader.integer(value, INDEX, 0, MAX_INDEX)


def _ranges(reader: Reader, pools: t.Iterable[Pool], index: int) -> tuple[RailRange, ...]:
    found = []
    for pool in pools:
        where = f"rail {pool.rail}"
        if index >= pool.nodes:
            message = f"{index} is beyond the pool {pool.pool} of {where}, which has room for {pool.nodes} nodes"
            reader.problem(INDEX, message, "out-of-range", f"use an index up to {pool.nodes - 1}, or a larger pool")
            continue
        one = pool.range_of(index)
        if one.gateway is not None:
            rail_range.check_gateway(reader, one, f"{PLAN}: {where}: gateway")
        if not one.usable:
            message = f"{one.range} of {where} has no address that can be handed out"
            reader.problem(INDEX, message, "out-of-range", "use another index, or a larger per_node")
        found.append(one)
    return tuple(found)


def _check_node_addresses(reader: Reader, node: NodeInput, pools: t.Iterable[Pool]) -> None:
    """Report addresses of a node that are also in a pool: the driver would hand them out to a pod."""
    for text in node.own_addresses:
        network = _network(text)
        for pool in pools if network is not None else ():
            if rail_range.overlap(t.cast(Network, network), pool.pool):
                message = f"the pool {pool.pool} of rail {pool.rail} overlaps {text}, which is in use on the node"
                reader.problem(PLAN, message, "duplicate", "use a pool of addresses that nothing else uses")


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None  # a name or other text


def _overlaps_between_plans(found: Site) -> list[Problem]:
    """Report overlapping pools of different plans: two nodes with the same index would have the same addresses."""
    problems = []
    for place, (pools, members) in enumerate(found.pools):
        for others, other_members in found.pools[:place]:
            for one in pools:
                for other in others:
                    if rail_range.overlap(one.pool, other.pool):
                        names = _name_list(other_members)
                        message = f"the pool {one.pool} overlaps {other.pool} in the plan of {names}"
                        fix = "give all of these nodes the same plan, or each plan its own pools"
                        problems.append(_for_nodes(members, Problem(PLAN, message, "duplicate", fix)))
    return problems


def _for_nodes(names: t.Sequence[str], problem: Problem) -> Problem:
    return Problem(f"{_name_list(names)}: {problem.path}", problem.message, problem.rule, problem.fix)


def _name_list(names: t.Sequence[str], shown: int = 4) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
