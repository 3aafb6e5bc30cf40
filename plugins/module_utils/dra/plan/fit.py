# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many more pods of a workload fit on a fleet, where they fit, and why no more do."""

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

#: Why a node takes no more pods: it refuses the pod for its taints, labels or name; it has too few resources left; it
#: has too few devices; a spread constraint excludes it; or the reason is unknown.
REFUSED, ROOM, DEVICES, SPREAD, UNKNOWN = "refused", "room", "devices", "spread", "unknown"

#: Fields of a pod's affinity that may keep the pod pending and are not modelled, with their description. For a pod that
#: has one of them the count is an upper bound.
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

    `nodes` has the count of each node alone. `total` is the sum of these counts without the pods that spread
    constraints exclude (`held_back`) and those that quotas do not admit (`over_quota`). `quota` says which quota or
    queue admits no more. `at_least` and `at_most` say whether the total is a lower or upper bound, and `notes` say why.
    `spread` has, for each label in the spread constraints, how many more pods each value of the label takes.
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
        """Why no more fit: each kind and reason with its nodes. The reason with the most nodes is first."""
        nodes_by_reason: dict[tuple[str, str], list[str]] = {}
        for name, node in self.nodes.items():
            nodes_by_reason.setdefault((node.kind, node.reason), []).append(name)
        return sorted(
            ((*key, names) for key, names in nodes_by_reason.items()), key=lambda entry: (-len(entry[2]), entry[:2])
        )

    def counts_by_label(self, fleet: Fleet, label: str) -> dict[str, int]:
        """The counts by the value of a node label, such as a rack's; '' for nodes without it.

        If the pods are spread by this label, the count of a value is at most what the spread constraints allow.
        """
        counts: dict[str, int] = {}
        for name, node in self.nodes.items():
            value = fleet.nodes[name].labels.get(label, "")
            counts[value] = counts.get(value, 0) + node.count
        allowed = self.spread.get(label, counts)
        return {value: min(count, allowed.get(value, 0)) for value, count in counts.items()}


def fit(fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine, states: States | None = None) -> list[Fit]:
    """How many more pods of each workload fit, each workload on its own.

    `states` are those of the same workloads in a fleet of which this one is a changed copy. With them, unchanged nodes
    are not searched again. On each node alone, pods are placed one after the other, so the counts do not depend on the
    order in which the scheduler takes nodes. Raises ValueError for a workload that has no claims, requests that cannot
    be read, or the name of another workload.
    """
    names = [workload.name for workload in workloads]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"several workloads have the name {', '.join(duplicates)}: give each its own name")
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
    sum_of_nodes = sum(node_fit.count for node_fit in nodes.values())
    flavors_interact = len(fitting) > 1 and (bool(rules) or sum(fitting.values()) > sum_of_nodes)
    admissions = [quotas.admitted(fleet, workload), kueue.admitted(fleet, workload, states.cache, flavors, fitting)]
    limits = ((admission.count, admission.reason) for admission in admissions if admission.count is not None)
    limit, limit_reason = min(limits, default=(None, ""))
    total = counts.total if limit is None else min(counts.total, limit)
    notes += [note for admission in admissions for note in admission.notes]
    if len(rules) > 1:
        notes.append(f"workload {workload.name}: several spread constraints together may let fewer fit")
    if flavors_interact:
        what = "spread constraints apply to" if rules else "some nodes are of"
        notes.append(f"workload {workload.name}: {what} several flavors of its queue together, so fewer may fit")
    return Fit(
        workload.name,
        total,
        nodes,
        # if a quota is the limit, the total is certain even if the counts of nodes are not
        at_least=bool(foreign) or ((total != limit or bool(fitting)) and _may_be_more(fleet, nodes)),
        at_most=bool(ignored or foreign or fleet.upper_bound_notes or len(rules) > 1 or flavors_interact)
        or not all(admission.certain for admission in admissions),
        notes=tuple(notes),
        held_back=sum_of_nodes - counts.total,
        over_quota=counts.total - total,
        quota=limit_reason if total == limit else "",
        spread=counts.domains,
    )


def not_modelled(workload: Workload) -> tuple[list[str], list[str]]:
    """Notes about affinity, which may keep pods pending, and notes about a scheduler whose rules are unknown."""
    affinity: ObjectView = workload.pod.get("affinity") or {}
    ignored = [description for key, description in _NOT_MODELLED.items() if affinity.get(key)]
    notes = []
    if ignored:
        verb = "is" if len(ignored) == 1 else "are"
        notes.append(f"workload {workload.name}: {' and '.join(ignored)} {verb} not modelled, so fewer pods may fit")
    scheduler = workload.pod.get("schedulerName") or pods.SCHEDULER
    if scheduler == pods.SCHEDULER:
        return notes, []
    return notes, [f"workload {workload.name}: it is placed by scheduler {scheduler}, whose rules are unknown"]


def _may_be_more(fleet: Fleet, nodes: t.Mapping[str, NodeFit]) -> bool:
    """Whether more pods may fit than were counted."""
    return bool(fleet.lower_bound_notes) or any(not node_fit.certain for node_fit in nodes.values())


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
        return _Counts(*_apply_spread_constraints(fleet, workload, nodes), {})
    best: dict[str, NodeFit] = {}
    domains: dict[str, dict[str, int]] = {}
    by_flavor = {}
    for flavor, started in flavors.workloads.items():
        nodes = {name: _count_on_node(node, started, requested, states) for name, node in fleet.nodes.items()}
        by_flavor[flavor], nodes, domains = _apply_spread_constraints(fleet, started, nodes)
        for name, node_fit in nodes.items():
            if name not in best or node_fit.count > best[name].count:
                best[name] = node_fit
    total = min(sum(by_flavor.values()), sum(node_fit.count for node_fit in best.values()))
    return _Counts(total, best, domains if len(by_flavor) == 1 else {}, by_flavor)


def _count_on_node(node: Node, workload: Workload, requested: t.Mapping[str, int], states: States) -> NodeFit:
    reason = pods.refuses(node, workload.pod)
    if reason:
        return NodeFit(0, REFUSED, reason)
    max_count, resource = pods.room(node, requested)
    if max_count == 0:
        return NodeFit(0, ROOM, f"too little {resource} is left")
    state = states.state_of(node, workload)
    count = state.count_up_to(MAX_PLACEMENTS + 1 if max_count is None else max_count)
    names = ["/".join((offer.driver, offer.pool, str(offer.device["name"]))) for offer in node.offers]
    placements = tuple(tuple(names[number] for number in numbers) for numbers in state.placements[:count])
    if count == max_count or state.refusal is None:
        return NodeFit(count, ROOM, f"too little {resource} is left", placements)
    node_fit = _node_fit_of(count, state.refusal, placements, node)
    if node_fit.kind != DEVICES or not node.held:
        return node_fit
    return replace(node_fit, unpaired=_unpaired(node, workload, states))


def _unpaired(node: Node, workload: Workload, states: States) -> tuple[str, ...]:
    """A description of each free device of a node whose partners other claims have."""
    classes, taken = states.fleet.classes, node.taken()
    lines = [
        line
        for claim in workload.claims
        for line in unpaired(claim["devices"], classes, node.offers, states.cache, taken)
    ]
    return tuple(dict.fromkeys(lines))


def _node_fit_of(count: int, refusal: Refusal, placements: tuple[tuple[str, ...], ...], node: Node) -> NodeFit:
    if refusal.unknown:
        reason = "; ".join([refusal.reason, *sorted(set(node.unclear.values()))])
        return NodeFit(count, UNKNOWN, reason, placements, certain=False)
    return NodeFit(count, DEVICES, refusal.reason, placements)


def _apply_spread_constraints(
    fleet: Fleet, workload: Workload, nodes: dict[str, NodeFit]
) -> tuple[int, dict[str, NodeFit], dict[str, dict[str, int]]]:
    """The total that the spread constraints allow, the counts of nodes, and the counts of domains by label and value.

    In `nodes`, which is changed in place, nodes without a label of a constraint get the count 0.
    """
    total = sum(node_fit.count for node_fit in nodes.values())
    domains: dict[str, dict[str, int]] = {}
    for rule in spread.constraints(workload):
        key = str(rule["topologyKey"])
        capacity = {name: node_fit.count for name, node_fit in nodes.items()}
        allowed = spread.limit(rule, workload, fleet, capacity)
        total = min(total, sum(allowed.values()))
        earlier = domains.get(key, allowed)
        domains[key] = {value: min(count, earlier.get(value, 0)) for value, count in allowed.items()}
        for name, node_fit in nodes.items():
            if node_fit.count and key not in fleet.nodes[name].labels:
                nodes[name] = NodeFit(0, SPREAD, f"the node has no label {key}, which a spread constraint needs")
    return total, nodes, domains
