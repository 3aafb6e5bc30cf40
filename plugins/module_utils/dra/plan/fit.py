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
from .states import MAX_PLACEMENTS, States

#: Why a node takes no more pods: it refuses the pod itself, it has too few resources left, it has too few devices, a
#: spread constraint excludes it, or the reason is unknown.
REFUSED, ROOM, DEVICES, SPREAD, UNKNOWN = "refused", "room", "devices", "spread", "unknown"

#: Affinity terms that may keep a pod pending and are not modelled: for a pod with one of them the count is an upper
#: bound.
_NOT_MODELLED = {
    "podAffinity": "its pod affinity",
    "podAntiAffinity": "its pod anti-affinity",
}


@dataclass(frozen=True)
class NodeFit:
    """How many more pods of a workload a node takes, and why no more: `kind` is one of the constants above.

    `placements` has the names of the devices of each pod, `driver/pool/device`. `certain` is False if the count is
    only a lower bound. `unpaired` describes the free devices whose partners other claims have.
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

    `nodes` has the count of each node alone. `total` is their sum less the pods that spread constraints exclude
    (`held_back`), and those that no quota admits (`over_quota`): `quota` says which quota or queue admits no more.
    `at_least` and `at_most` say that the total is a bound, and `notes` why. `spread` has, for each label by which the
    pods are spread, how many more pods each of its values takes.
    """

    workload: str
    total: int
    nodes: t.Mapping[str, NodeFit]
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
        for name, node in self.nodes.items():
            found.setdefault((node.kind, node.reason), []).append(name)
        return sorted(((*key, names) for key, names in found.items()), key=lambda one: (-len(one[2]), one[:2]))

    def counts_by_label(self, fleet: Fleet, label: str) -> dict[str, int]:
        """The counts by the value of a node label, such as a rack's; '' for nodes without it.

        If the pods are spread by this label, the count of a value is at most what the spread constraints allow.
        """
        found: dict[str, int] = {}
        for name, node in self.nodes.items():
            value = fleet.nodes[name].labels.get(label, "")
            found[value] = found.get(value, 0) + node.count
        most = self.spread.get(label, found)
        return {value: min(count, most.get(value, 0)) for value, count in found.items()}


def fit(fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine, states: States | None = None) -> list[Fit]:
    """How many more pods of each workload fit, each workload on its own.

    `states` are those of the same workloads in a fleet of which this one is a changed copy: unchanged nodes are not
    searched again. A node's count is that of pods that are placed one after the other, so it does not depend on the
    order in which the scheduler takes nodes. Raises ValueError for a workload that has no claims, requests that cannot
    be read, or the name of another workload.
    """
    names = [workload.name for workload in workloads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several workloads have the name {', '.join(twice)}: give each its own name")
    if states is None or not states.serves(fleet):
        states = States(fleet, workloads, engine)
    return [_fit(fleet, workload, states) for workload in workloads]


def _fit(fleet: Fleet, workload: Workload, states: States) -> Fit:
    if not workload.claims:
        raise ValueError(f"workload {workload.name} has no claims: there is nothing to count")
    try:
        requested = pods.requests(workload.pod)
    except quantity.QuantityError as error:
        raise ValueError(f"workload {workload.name}: its requests cannot be read: {error}") from error
    ignored, foreign = not_modelled(workload)
    notes = [*fleet.notes, *fleet.upper_bound_notes, *fleet.lower_bound_notes, *ignored, *foreign]
    flavors = kueue.flavors_for(fleet, workload)
    counts = _count_on_nodes(fleet, workload, requested, states, flavors)
    nodes, fitting = counts.nodes, counts.by_flavor
    rules = spread.constraints(workload)
    mixed = len(fitting) > 1 and (bool(rules) or sum(fitting.values()) > sum(one.count for one in nodes.values()))
    limits = [quotas.admitted(fleet, workload), kueue.admitted(fleet, workload, states.cache, flavors, fitting)]
    count, limit = min(((one.count, one.reason) for one in limits if one.count is not None), default=(None, ""))
    total = counts.total if count is None else min(counts.total, count)
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
        # if a quota is reached, the total is certain, even if other counts are not
        at_least=bool(foreign) or ((total != count or bool(fitting)) and _unsure(fleet, nodes)),
        at_most=bool(ignored or foreign or fleet.upper_bound_notes or len(rules) > 1 or mixed)
        or not all(one.certain for one in limits),
        notes=tuple(notes),
        held_back=sum(one.count for one in nodes.values()) - counts.total,
        over_quota=counts.total - total,
        quota=limit if total == count else "",
        spread=counts.domains,
    )


def not_modelled(workload: Workload) -> tuple[list[str], list[str]]:
    """Notes about affinity, which is not modelled and may keep pods pending, and about another scheduler's rules."""
    affinity: ObjectView = workload.pod.get("affinity") or {}
    ignored = [words for key, words in _NOT_MODELLED.items() if affinity.get(key)]
    waits = []
    if ignored:
        waits.append(f"workload {workload.name}: {' and '.join(ignored)} is not modelled, so fewer pods may fit")
    scheduler = workload.pod.get("schedulerName") or pods.SCHEDULER
    if scheduler == pods.SCHEDULER:
        return waits, []
    return waits, [f"workload {workload.name}: it is placed by scheduler {scheduler}, whose rules are unknown"]


def _unsure(fleet: Fleet, nodes: t.Mapping[str, NodeFit]) -> bool:
    """Whether more pods may fit than were counted."""
    return bool(fleet.lower_bound_notes) or any(not one.certain for one in nodes.values())


class _Counts(t.NamedTuple):
    """How many pods fit before quotas: in total, on each node, in each domain of each label of the spread constraints,
    and on the nodes of each flavor of the queue, if flavors select nodes."""

    total: int
    nodes: dict[str, NodeFit]
    domains: dict[str, dict[str, int]]
    by_flavor: dict[str, int]


def _count_on_nodes(
    fleet: Fleet, workload: Workload, requested: t.Mapping[str, int], states: States, flavors: kueue.Flavors
) -> _Counts:
    if not flavors.workloads:
        nodes = {name: _count_on_node(node, workload, requested, states) for name, node in fleet.nodes.items()}
        return _Counts(*_spread(fleet, workload, nodes), {})
    best: dict[str, NodeFit] = {}
    domains: dict[str, dict[str, int]] = {}
    by_flavor = {}
    for flavor, started in flavors.workloads.items():
        nodes = {name: _count_on_node(node, started, requested, states) for name, node in fleet.nodes.items()}
        by_flavor[flavor], nodes, domains = _spread(fleet, started, nodes)
        for name, one in nodes.items():
            if name not in best or one.count > best[name].count:
                best[name] = one
    total = min(sum(by_flavor.values()), sum(one.count for one in best.values()))
    return _Counts(total, best, domains if len(by_flavor) == 1 else {}, by_flavor)


def _count_on_node(node: Node, workload: Workload, requested: t.Mapping[str, int], states: States) -> NodeFit:
    reason = pods.refuses(node, workload.pod)
    if reason:
        return NodeFit(0, REFUSED, reason)
    most, resource = pods.room(node, requested)
    if most == 0:
        return NodeFit(0, ROOM, f"too little {resource} is left")
    state = states.of(node, workload)
    count = state.count_up_to(MAX_PLACEMENTS + 1 if most is None else most)
    names = ["/".join((offer.driver, offer.pool, str(offer.device["name"]))) for offer in node.offers]
    placements = tuple(tuple(names[number] for number in one) for one in state.found[:count])
    if count == most or state.refusal is None:
        return NodeFit(count, ROOM, f"too little {resource} is left", placements)
    node_fit = _node_fit_of(count, state.refusal, placements, node)
    if node_fit.kind != DEVICES or not node.held:
        return node_fit
    return replace(node_fit, unpaired=_unpaired(node, workload, states))


def _unpaired(node: Node, workload: Workload, states: States) -> tuple[str, ...]:
    """A description of each free device of a node whose partners other claims have."""
    classes, owners = states.fleet.classes, node.owners()
    lines = [
        line
        for claim in workload.claims
        for line in unpaired(claim["devices"], classes, node.offers, states.cache, owners)
    ]
    return tuple(dict.fromkeys(lines))


def _node_fit_of(count: int, refusal: Refusal, placements: tuple[tuple[str, ...], ...], node: Node) -> NodeFit:
    if refusal.unknown:
        reason = "; ".join([refusal.reason, *sorted(set(node.unclear.values()))])
        return NodeFit(count, UNKNOWN, reason, placements, certain=False)
    return NodeFit(count, DEVICES, refusal.reason, placements)


def _spread(
    fleet: Fleet, workload: Workload, nodes: dict[str, NodeFit]
) -> tuple[int, dict[str, NodeFit], dict[str, dict[str, int]]]:
    """The total under the spread constraints, the nodes as limited by them, and the count of each domain by label."""
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
                nodes[name] = NodeFit(0, SPREAD, f"the node has no label {key}, by which pods are spread")
    return total, nodes, domains
