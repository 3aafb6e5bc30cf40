# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The ranges of all nodes of a site, checked together."""

from __future__ import annotations

import ipaddress
import typing as t
from dataclasses import dataclass, field

from ..config import rail_range
from ..config.rail_range import Network, RailRange
from ..kube.problems import Problem, Problems
from ..kube.reader import Reader
from .pools import Pool, read_pools

#: The host variables with a node's plan and index.
PLAN, INDEX = "dra_driver_rail_addresses", "dra_driver_rail_index"
#: The highest index, far above the size of any fleet.
MAX_INDEX = 2**24 - 1


@dataclass(frozen=True)
class NodeInput:
    """The variables of a host that the plan needs. `plan` is None for a host without one.

    `node_addresses` are addresses or networks that are in use on the host itself.
    """

    name: str
    plan: object
    index: object
    node_addresses: tuple[str, ...] = ()


@dataclass
class Site:
    """The ranges and index of each node, by its name. `pools` contains the pools of each plan, with the nodes that have
    this plan."""

    ranges: dict[str, tuple[RailRange, ...]] = field(default_factory=dict)
    indexes: dict[str, int] = field(default_factory=dict)
    pools: list[tuple[tuple[Pool, ...], list[str]]] = field(default_factory=list)


def ranges_of(plan: object, index: object) -> list[dict[str, t.Any]]:
    """The ranges of one node, as the setting `rail_addresses` of its driver. Raises Problems for errors."""
    reader = Reader()
    pools = read_pools(reader, plan, PLAN)
    node_index = _index(reader, index)
    ranges = _ranges(reader, pools, node_index) if node_index is not None else ()
    if reader.problems:
        raise Problems(reader.problems)
    return [node_range.setting() for node_range in ranges]


def site_plan(nodes: t.Sequence[NodeInput]) -> Site:
    """The ranges of all nodes that have a plan. Raises Problems with all errors, each with its nodes' names."""
    site, problems = Site(), []
    by_plan: dict[t.Hashable, list[NodeInput]] = {}
    for node in nodes:
        if node.plan:
            by_plan.setdefault(_canonical(node.plan), []).append(node)
    for members in by_plan.values():
        reader = Reader()
        pools = read_pools(reader, members[0].plan, PLAN)
        problems += [_for_nodes([node.name for node in members], problem) for problem in reader.problems]
        site.pools.append((pools, [node.name for node in members]))
        problems += _add_ranges(site, pools, members)
    problems += _overlaps_between_plans(site)
    problems += _node_addresses_in_pools(site, nodes)
    if problems:
        raise Problems(problems)
    return site


def _canonical(plan: object) -> t.Hashable:
    """A value that is equal for plans that differ only in the order of keys. The keys may have different types."""
    if isinstance(plan, dict):
        return tuple(sorted(((repr(key), _canonical(value)) for key, value in plan.items()), key=lambda item: item[0]))
    return tuple(map(_canonical, plan)) if isinstance(plan, list) else repr(plan)


def _add_ranges(site: Site, pools: tuple[Pool, ...], members: t.Sequence[NodeInput]) -> list[Problem]:
    """Add the ranges of nodes with the same plan to `site`. Returns the problems of these nodes."""
    problems: list[Problem] = []
    node_by_index: dict[int, str] = {}
    for node in members:
        reader = Reader()
        node_index = _index(reader, node.index)
        if node_index is not None:
            if node_index in node_by_index:
                message = f"{node_index} is already the index of {node_by_index[node_index]}"
                reader.problem(INDEX, message, "duplicate", "give each node its own index, and never change it")
            node_by_index.setdefault(node_index, node.name)
            site.ranges[node.name] = _ranges(reader, pools, node_index)
            site.indexes[node.name] = node_index
        problems += [_for_nodes([node.name], problem) for problem in reader.problems]
    return problems


def _index(reader: Reader, value: object) -> int | None:
    if value is None:
        fix = "set it for each host: 0, 1, 2 ...; a node keeps its index for life"
        reader.problem(INDEX, "is missing", "missing", fix)
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        # filters such as regex_search return strings; int() refuses very long ones
        value = int(value) if len(value) <= len(str(MAX_INDEX)) else MAX_INDEX + 1
    return reader.integer(value, INDEX, 0, MAX_INDEX)


def _ranges(reader: Reader, pools: t.Iterable[Pool], index: int) -> tuple[RailRange, ...]:
    """A node's range in each pool that has room for its index. Errors are recorded in `reader`."""
    ranges = []
    for pool in pools:
        rail, room = f"rail {pool.rail}", pool.max_nodes
        if index >= room:
            message = f"{index} is beyond the pool {pool.network} of {rail}, which has room for {room} nodes"
            reader.problem(INDEX, message, "out-of-range", f"use an index up to {room - 1}, or a larger pool")
            continue
        node_range = pool.range_of(index)
        if node_range.gateway is not None:
            rail_range.check_gateway(reader, node_range, f"{PLAN}: {rail}: gateway")
        if not node_range.usable:
            message = f"{node_range.range} of {rail} has no address that can be handed out"
            reader.problem(INDEX, message, "out-of-range", "use another index, or a larger per_node")
        ranges.append(node_range)
    return tuple(ranges)


def _node_addresses_in_pools(site: Site, nodes: t.Iterable[NodeInput]) -> list[Problem]:
    """Report pools that contain addresses of a host itself: a driver could hand them out to a pod."""
    problems = []
    pools = dict.fromkeys((pool.network, pool.rail) for plan_pools, _members in site.pools for pool in plan_pools)
    for node in nodes:
        for text in node.node_addresses:
            network = _network(text)
            for pool, rail in pools if network is not None else ():
                if rail_range.overlap(t.cast(Network, network), pool):
                    message = f"the pool {pool} of rail {rail} overlaps {text}, which is in use on the node"
                    fix = "use a pool of addresses that nothing else uses"
                    problems.append(_for_nodes([node.name], Problem(PLAN, message, "duplicate", fix)))
    return problems


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None  # a host name or other text


def _overlaps_between_plans(site: Site) -> list[Problem]:
    """Report overlapping pools of different plans: a node of one plan could get the same addresses as a
    node of the other."""
    problems = []
    for number, (pools, members) in enumerate(site.pools):
        for earlier_pools, other_members in site.pools[:number]:
            for pool in pools:
                for other in earlier_pools:
                    if rail_range.overlap(pool.network, other.network):
                        names = _name_list(other_members)
                        message = f"the pool {pool.network} overlaps {other.network} in the plan of {names}"
                        fix = "give all of these nodes the same plan, or each plan its own pools"
                        problems.append(_for_nodes(members, Problem(PLAN, message, "duplicate", fix)))
    return problems


def _for_nodes(names: t.Sequence[str], problem: Problem) -> Problem:
    return Problem(f"{_name_list(names)}: {problem.path}", problem.message, problem.rule, problem.fix)


def _name_list(names: t.Sequence[str], max_shown: int = 4) -> str:
    more = len(names) - max_shown
    return ", ".join(names[:max_shown]) + (f" and {more} more" if more > 0 else "")
