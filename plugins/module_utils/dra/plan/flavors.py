# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The flavors of a Kueue queue. A job gets the node labels and tolerations of its flavor, which limit its nodes.

Source: pkg/scheduler/flavorassigner (checkFlavorForPodSets, findFlavorForPodSets) and pkg/podset of Kueue 0.19.2.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ..kube.objects import Object, ObjectView
from . import pods
from .fleet import Node, Queues, Workload

#: The fields of a flavor that change where pods run.
_PLACEMENT_FIELDS = ("nodeLabels", "nodeTaints", "tolerations")


@dataclass(frozen=True)
class Flavors:
    """The flavors of a queue.

    `workloads` has the workload as Kueue starts it, for each flavor that suits it, in the order in which Kueue tries
    them. It is None if no flavor changes where the pod runs. If `ordered`, Kueue takes the next flavor only after the
    quota of the flavor before, including what may be borrowed, is used up. `notes` say why the count is an upper bound.
    """

    workloads: t.Mapping[str, Workload] | None = None
    ordered: bool = True
    notes: tuple[str, ...] = ()


def flavors_of(queues: Queues, queue: ObjectView, workload: Workload) -> Flavors:
    """The flavors of a ClusterQueue for a workload."""
    groups = [group for group in queue["spec"].get("resourceGroups") or () if group["flavors"]]
    names = [str(flavor["name"]) for group in groups for flavor in group["flavors"]]
    specs: dict[str, ObjectView] = {
        name: queues.flavors[name].get("spec") or {} for name in names if name in queues.flavors
    }
    title = f"ClusterQueue {queue['metadata']['name']}"
    notes = []
    unread = sorted(set(names) - set(specs))
    if unread:
        notes.append(f"{title}: flavor {', '.join(unread)} is not among the objects, so its nodes are unknown")
    topology = [name for name, spec in specs.items() if spec.get("topologyName")]
    if topology:
        notes.append(f"{title}: flavor {', '.join(topology)} has a topology, so Kueue may admit fewer")
    if not any(spec.get(field) for spec in specs.values() for field in _PLACEMENT_FIELDS):
        return Flavors(notes=tuple(notes))
    if len(groups) > 1:
        notes.append(f"{title} has {len(groups)} resource groups: the node labels of its flavors are not modelled")
        return Flavors(notes=tuple(notes))
    ordered = (queue["spec"].get("flavorFungibility") or {}).get("whenCanBorrow") != "TryNextFlavor"
    all_specs = {name: specs.get(name, {}) for name in names}
    suitable = {name: _started_in(workload, spec) for name, spec in all_specs.items() if _suits(spec, workload)}
    return Flavors(suitable, ordered, tuple(notes))


def _suits(spec: ObjectView, workload: Workload) -> bool:
    """Whether Kueue considers a flavor for a pod, judged by the taints and labels of nodes that the flavor declares."""
    labels: t.Mapping[str, str] = spec.get("nodeLabels") or {}
    tolerations = [*(workload.pod.get("tolerations") or ()), *(spec.get("tolerations") or ())]
    node = Node("", labels=labels, taints=tuple(spec.get("nodeTaints") or ()))
    return not pods.refuses(node, {"tolerations": tolerations, **_node_requirements(workload.pod, labels)})


def _node_requirements(pod: ObjectView, labels: t.Mapping[str, str]) -> Object:
    """The parts of a pod's node selector and required node affinity that concern these labels.

    An affinity term that concerns none of them allows every value.
    """
    requirements: Object = {
        "nodeSelector": {key: value for key, value in (pod.get("nodeSelector") or {}).items() if key in labels}
    }
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        expressions = [expression for expression in term.get("matchExpressions") or () if expression["key"] in labels]
        if not expressions:
            return requirements
        terms.append({"matchExpressions": expressions})
    if terms:
        selector = {"nodeSelectorTerms": terms}
        requirements["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    return requirements


def _started_in(workload: Workload, spec: ObjectView) -> Workload:
    """A workload as Kueue starts it in a flavor, with the flavor's node labels and tolerations."""
    pod = dict(workload.pod)
    pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **(spec.get("nodeLabels") or {})}
    pod["tolerations"] = [*(pod.get("tolerations") or ()), *(spec.get("tolerations") or ())]
    return replace(workload, pod=pod)
