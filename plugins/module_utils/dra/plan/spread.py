# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many more pods of a workload the topology spread constraints allow.

Source: kube-scheduler's plugin PodTopologySpread (KEP-895, KEP-3022, KEP-3094, KEP-3243). Constraints with
ScheduleAnyway only affect the order of nodes and are ignored.
"""

from __future__ import annotations

import typing as t

from ..kube.objects import ObjectView
from . import pods
from .fleet import Fleet, Node, Workload


def constraints(workload: Workload) -> list[ObjectView]:
    """The spread constraints that can keep a pod of the workload pending."""
    return [
        constraint
        for constraint in workload.pod.get("topologySpreadConstraints") or ()
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
    ]


def limit(constraint: ObjectView, workload: Workload, fleet: Fleet, capacity: t.Mapping[str, int]) -> dict[str, int]:
    """How many more pods each domain takes, by the value of the label. `capacity` is how many pods fit on each node.

    A domain may have up to maxSkew more pods than the domain with the fewest pods. All domains are assumed to fill up,
    so the limit follows from the domain that then has the fewest. If the pods do not match the selector, the counts do
    not change. Nodes that lack the label of any of the workload's constraints take no pods, and theirs do not count.
    """
    key = str(constraint["topologyKey"])
    keys = [str(other["topologyKey"]) for other in (constraint, *constraints(workload))]
    selector = _selector(constraint, workload)
    matches_itself = pods.selected(selector, workload.labels)
    existing: dict[str, int] = {}
    room: dict[str, int] = {}
    for node in fleet.nodes.values():
        if any(name not in node.labels for name in keys):
            continue
        if _is_counted(constraint, workload, node):
            domain = node.labels[key]
            existing[domain] = existing.get(domain, 0) + _matching_pods(node, workload, selector)
        if capacity.get(node.name):
            domain = node.labels[key]
            room[domain] = room.get(domain, 0) + capacity[node.name]
    if _selects_all(selector):  # the scheduler then counts no pod at all
        return room
    skew = int(constraint.get("maxSkew", 1))
    too_few_domains = len(existing) < int(constraint.get("minDomains") or 1)
    if not matches_itself:  # new pods change no count, so a domain takes either all pods or none
        lowest = 0 if too_few_domains else min(existing.values(), default=0)
        return {name: amount for name, amount in room.items() if existing.get(name, 0) - lowest <= skew}
    lowest = 0 if too_few_domains else min((count + room.get(name, 0) for name, count in existing.items()), default=0)
    return {name: max(0, min(amount, lowest + skew - existing.get(name, 0))) for name, amount in room.items()}


def _selector(constraint: ObjectView, workload: Workload) -> ObjectView | None:
    """The label selector of a constraint, with the workload's values of its matchLabelKeys."""
    selector = constraint.get("labelSelector")
    keys = [name for name in constraint.get("matchLabelKeys") or () if name in workload.labels]
    if selector is None or not keys:
        return t.cast("ObjectView | None", selector)
    labels = {**(selector.get("matchLabels") or {}), **{name: workload.labels[name] for name in keys}}
    return {**selector, "matchLabels": labels}


def _selects_all(selector: ObjectView | None) -> bool:
    """Whether a label selector is empty. Without a selector, no pod is selected."""
    return selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions")


def _is_counted(constraint: ObjectView, workload: Workload, node: Node) -> bool:
    """Whether the pods of a node count.

    By default they count if the workload's node selector and affinity select the node.
    """
    spec = workload.pod
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        selection = {name: spec[name] for name in ("nodeSelector", "affinity") if name in spec}
        if pods.refuses(Node(node.name, labels=node.labels), selection):
            return False
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        return not pods.refuses(node, {"tolerations": spec.get("tolerations") or ()})
    return True


def _matching_pods(node: Node, workload: Workload, selector: ObjectView | None) -> int:
    """The number of a node's pods that a selector selects, without those that are being deleted."""
    return sum(
        not pod.ending and pod.namespace == workload.namespace and pods.selected(selector, pod.labels)
        for pod in node.pods
    )
