# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many more pods of a workload fit on a fleet, where, and why no more."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..cel.engine import Engine
from ..claims.pair_reasons import unpaired
from ..kube import quantity
from ..kube.objects import ObjectView
from ..scheduler.answers import Refusal
from . import kueue, pods, quotas, spread
from .fleet import Fleet, Node, Workload
from .states import MOST, States

#: Why a node takes no more: it takes none of these pods at all, it has no room for another one, its devices are not
#: enough, a spread constraint holds, or it is unknown.
REFUSED, ROOM, DEVICES, SPREAD, UNKNOWN = "refused", "room", "devices", "spread", "unknown"

#: What may keep a pod waiting and is not modelled: where a pod has one of these the count is an upper bound.
_NOT_MODELLED = {
    "podAffinity": "its pod affinity",
    "podAntiAffinity": "its pod anti-affinity",
}


@dataclass(frozen=True)
class OnNode:
    """How many more pods of a workload a node takes, and why no more: `kind` is one of those above.

    `placements` are the names of the devices of each, `driver/pool/device`. `certain` is False where the count is
    only a lower bound. `unpaired` names, for free devices, the claims that have their partners.
    """

    count: int
    kind: str
    reason: str
    placements: tuple[tuple[str, ...], ...] = ()
    certain: bool = True
    unpaired: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How many more pods of a workload fit on a fleet.

    `nodes` has the count of each node alone; `total` is less than their sum by the pods that are `held_back` by spread
    constraints, and those that are `over_quota`: `quota` says which quota or queue admits no more. `at_least` and
    `at_most` say that the total is a bound, and `notes` why. `spread` has, for each label by which the pods are spread,
    how many more pods each of its values takes.
    """

    workload: str
    total: int
    nodes: t.Mapping[str, OnNode]
    at_least: bool = False
    at_most: bool = False
    notes: tuple[str, ...] = ()
    held_back: int = 0
    over_quota: int = 0
    quota: str = ""
    spread: t.Mapping[str, t.Mapping[str, int]] = field(default_factory=dict)

    def reasons(self) -> list[tuple[str, str, list[str]]]:
        """Why no more fit: each kind and reason once, with the nodes that it holds for, most nodes first."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, one in self.nodes.items():
            found.setdefault((one.kind, one.reason), []).append(name)
        return sorted(((*key, names) for key, names in found.items()), key=lambda one: (-len(one[2]), one[:2]))

    def by(self, fleet: Fleet, label: str) -> dict[str, int]:
        """The counts by the value of a node label, such as a rack's; '' for nodes without it.

        Where the pods are spread by this label, a value has no more than that allows.
        """
        found: dict[str, int] = {}
        for name, one in self.nodes.items():
            value = fleet.nodes[name].labels.get(label, "")
            found[value] = found.get(value, 0) + one.count
        most = self.spread.get(label, found)
        return {value: min(count, most.get(value, 0)) for value, count in found.items()}


def fit(fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine, states: States | None = None) -> list[Fit]:
    """How many more pods of each workload fit, each as if it came alone.

    `states` are those of the same workloads in a fleet from which this one was made by changes: unchanged nodes are
    not searched again. A node's count is that of pods that come one after the other, so it does not depend on the
    order in which the scheduler takes nodes. Raises ValueError for a workload without claims, of requests that cannot
    be read, or with the name of another one.
    """
    names = [workload.name for workload in workloads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several workloads have the name {', '.join(twice)}: give each its own")
    if states is None or not states.serves(fleet):
        states = States(fleet, workloads, engine)
    return [_fit(fleet, workload, states) for workload in workloads]


def _fit(fleet: Fleet, workload: Workload, states: States) -> Fit:
    if not workload.claims:
        raise ValueError(f"workload {workload.name} has no claims: there is nothing to count")
    try:
        asked = pods.requests(workload.pod)
    except quantity.QuantityError as error:
        raise ValueError(f"workload {workload.name}: its requests cannot be read: {error}") from error
    ignored, stranger = not_modelled(workload)
    notes = [*fleet.notes, *fleet.doubts, *fleet.gaps, *ignored, *stranger]
    flavors = kueue.flavors_for(fleet, workload)
    counted = _on_nodes(fleet, workload, asked, states, flavors)
    nodes, fitting = counted.nodes, counted.by_flavor
    rules = spread.constraints(workload)
    mixed = len(fitting) > 1 and (bool(rules) or sum(fitting.values()) > sum(one.count for one in nodes.values()))
    limits = [quotas.admitted(fleet, workload), kueue.admitted(fleet, workload, states.memory, flavors, fitting)]
    count, limit = min(((one.count, one.reason) for one in limits if one.count is not None), default=(None, ""))
    total = counted.total if count is None else min(counted.total, count)
    notes += [note for one in limits for note in one.notes]
    if len(rules) > 1:
        notes.append(f"workload {workload.name}: several spread constraints together may let fewer fit")
    if mixed:
        what = "spread constraints apply to" if rules else "some nodes are of"
        notes.append(f"workload {workload.name}: {what} several flavors of its queue together, so fewer may fit")
    return Fit(
        workload.name,
        total,
        nodes,
        # a quota that is reached is certain, even if other counts are not
        at_least=bool(stranger) or ((total != count or bool(fitting)) and _unsure(fleet, nodes)),
        at_most=bool(ignored or stranger or fleet.doubts or len(rules) > 1 or mixed)
        or not all(one.certain for one in limits),
        notes=tuple(notes),
        held_back=sum(one.count for one in nodes.values()) - counted.total,
        over_quota=counted.total - total,
        quota=limit if total == count else "",
        spread=counted.domains,
    )


def not_modelled(workload: Workload) -> tuple[list[str], list[str]]:
    """Notes about affinity, which is not modelled and may keep pods waiting, and about another scheduler's rules."""
    affinity: ObjectView = workload.pod.get("affinity") or {}
    ignored = [words for key, words in _NOT_MODELLED.items() if affinity.get(key)]
    waits = []
    if ignored:
        waits.append(f"workload {workload.name}: {' and '.join(ignored)} is not modelled: no more than this fit")
    scheduler = workload.pod.get("schedulerName") or pods.SCHEDULER
    if scheduler == pods.SCHEDULER:
        return waits, []
    return waits, [f"workload {workload.name}: it is placed by scheduler {scheduler}, whose rules are unknown"]


def _unsure(fleet: Fleet, nodes: t.Mapping[str, OnNode]) -> bool:
    """Whether more may fit on some node."""
    return bool(fleet.gaps) or any(not one.certain for one in nodes.values())


class _Counted(t.NamedTuple):
    """How many pods fit without regard to quotas: in all, on each node, in each domain of each label of the spread
    constraints, and on the nodes of each flavor of the queue, if flavors have nodes of their own."""

    total: int
    nodes: dict[str, OnNode]
    domains: dict[str, dict[str, int]]
    by_flavor: dict[str, int]


def _on_nodes(
    fleet: Fleet, workload: Workload, asked: t.Mapping[str, int], states: States, flavors: kueue.Flavors
) -> _Counted:
    if not flavors.workloads:
        nodes = {name: _on_node(node, workload, asked, states) for name, node in fleet.nodes.items()}
        return _Counted(*_spread(fleet, workload, nodes), {})
    best: dict[str, OnNode] = {}
    domains: dict[str, dict[str, int]] = {}
    by_flavor = {}
    for flavor, started in flavors.workloads.items():
        nodes = {name: _on_node(node, started, asked, states) for name, node in fleet.nodes.items()}
        by_flavor[flavor], nodes, domains = _spread(fleet, started, nodes)
        for name, one in nodes.items():
            if name not in best or one.count > best[name].count:
                best[name] = one
    total = min(sum(by_flavor.values()), sum(one.count for one in best.values()))
    return _Counted(total, best, domains if len(by_flavor) == 1 else {}, by_flavor)


def _on_node(node: Node, workload: Workload, asked: t.Mapping[str, int], states: States) -> OnNode:
    reason = pods.refuses(node, workload.pod)
    if reason:
        return OnNode(0, REFUSED, reason)
    most, resource = pods.room(node, asked)
    if most == 0:
        return OnNode(0, ROOM, f"too little {resource} is left")
    state = states.of(node, workload)
    count = state.upto(MOST + 1 if most is None else most)
    names = ["/".join((offer.driver, offer.pool, str(offer.device["name"]))) for offer in node.offers]
    placements = tuple(tuple(names[number] for number in one) for one in state.found[:count])
    if count == most or state.refusal is None:
        return OnNode(count, ROOM, f"too little {resource} is left", placements)
    ended = _ended(count, state.refusal, placements, node)
    return replace(ended, unpaired=_unpaired(node, workload, states)) if ended.kind == DEVICES and node.held else ended


def _unpaired(node: Node, workload: Workload, states: States) -> tuple[str, ...]:
    """The free devices of a node whose partners other claims have, in words."""
    classes, owners = states.fleet.classes, node.owners()
    lines = [
        line
        for claim in workload.claims
        for line in unpaired(claim["devices"], classes, node.offers, states.memory, owners)
    ]
    return tuple(dict.fromkeys(lines))


def _ended(count: int, refusal: Refusal, placements: tuple[tuple[str, ...], ...], node: Node) -> OnNode:
    if refusal.unknown:
        reason = "; ".join([refusal.reason, *sorted(set(node.unclear.values()))])
        return OnNode(count, UNKNOWN, reason, placements, certain=False)
    return OnNode(count, DEVICES, refusal.reason, placements)


def _spread(
    fleet: Fleet, workload: Workload, nodes: dict[str, OnNode]
) -> tuple[int, dict[str, OnNode], dict[str, dict[str, int]]]:
    """The total under the spread constraints, the nodes as limited by them, and what each domain of a label takes."""
    total = sum(one.count for one in nodes.values())
    domains: dict[str, dict[str, int]] = {}
    for rule in spread.constraints(workload):
        key = str(rule["topologyKey"])
        capacity = {name: one.count for name, one in nodes.items()}
        left = spread.limit(rule, workload, fleet, capacity)
        total = min(total, sum(left.values()))
        old = domains.get(key, left)
        domains[key] = {value: min(count, old.get(value, 0)) for value, count in left.items()}
        for name, one in nodes.items():
            if one.count and key not in fleet.nodes[name].labels:
                nodes[name] = OnNode(0, SPREAD, f"the node has no label {key}, by which pods are spread")
    return total, nodes, domains
