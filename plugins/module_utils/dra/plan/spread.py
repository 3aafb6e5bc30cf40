# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How far spread constraints let a workload grow.

Source: kube-scheduler's plugin PodTopologySpread (KEP-895, KEP-3022, KEP-3094, KEP-3243). Constraints of ScheduleAnyway
only affect the order and are ignored.
"""

from __future__ import annotations

import typing as t

from ..kube.objects import ObjectView
from . import pods
from .fleet import Fleet, Node, Workload


def constraints(workload: Workload) -> list[ObjectView]:
    """The spread constraints that can keep a pod of the workload waiting."""
    return [
        one
        for one in workload.pod.get("topologySpreadConstraints") or ()
        if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
    ]


def limit(constraint: ObjectView, workload: Workload, fleet: Fleet, capacity: t.Mapping[str, int]) -> dict[str, int]:
    """How many more pods each domain takes, by its label's value, where nodes have room for `capacity` pods.

    Pods are counted up evenly: a domain may be ahead of the one with the fewest pods by maxSkew, and that one grows
    until it is full. Nodes without the label take none.
    """
    key = str(constraint["topologyKey"])
    selector = _selector(constraint, workload)
    itself = pods.selected(selector, workload.labels)
    there: dict[str, int] = {}
    most: dict[str, int] = {}
    for node in fleet.nodes.values():
        if key not in node.labels:
            continue
        if _counts(constraint, workload, node):
            domain = node.labels[key]
            there[domain] = there.get(domain, 0) + _matching(node, workload, selector)
        if capacity.get(node.name):
            domain = node.labels[key]
            most[domain] = most.get(domain, 0) + capacity[node.name]
    skew = int(constraint.get("maxSkew", 1))
    few = len(there) < int(constraint.get("minDomains") or 1)
    if not itself:  # its pods change no count: a domain is open or not
        lowest = 0 if few else min(there.values(), default=0)
        return {name: amount for name, amount in most.items() if there.get(name, 0) - lowest <= skew}
    lowest = 0 if few else min((count + most.get(name, 0) for name, count in there.items()), default=0)
    return {name: max(0, min(amount, lowest + skew - there.get(name, 0))) for name, amount in most.items()}


def _selector(constraint: ObjectView, workload: Workload) -> ObjectView | None:
    selector = constraint.get("labelSelector")
    more = [name for name in constraint.get("matchLabelKeys") or () if name in workload.labels]
    if selector is None or not more:
        return t.cast("ObjectView | None", selector)
    labels = {**(selector.get("matchLabels") or {}), **{name: workload.labels[name] for name in more}}
    return {**selector, "matchLabels": labels}


def _counts(constraint: ObjectView, workload: Workload, node: Node) -> bool:
    """Whether a node's domain counts: by default if the pod's affinity selects the node."""
    spec = workload.pod
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        only = {name: spec[name] for name in ("nodeSelector", "affinity") if name in spec}
        if pods.refuses(_open(node), only):
            return False
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        return not pods.refuses(node, {"tolerations": spec.get("tolerations") or ()})
    return True


def _open(node: Node) -> Node:
    return Node(node.name, labels=node.labels)


def _matching(node: Node, workload: Workload, selector: ObjectView | None) -> int:
    return sum(pod.namespace == workload.namespace and pods.selected(selector, pod.labels) for pod in node.pods)
