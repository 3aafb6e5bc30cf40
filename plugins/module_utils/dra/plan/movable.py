# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which pods may be moved so that another one fits, and why the others must not be moved.

A pod may be moved if its controller creates a replacement on any suitable node, and no other pod depends on its claims.
In case of doubt a pod must not be moved.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..alignment.cluster import title
from ..kube import quantity
from ..kube.objects import Object, ObjectView
from ..scheduler.published import v1
from .fleet import Workload
from .pods import SCHEDULER, claim_names, extended_resource_claim, requests, selected

#: The kinds of controllers that replace a deleted pod on any suitable node.
CONTROLLERS = ("ReplicaSet", "ReplicationController", "StatefulSet")
#: The kinds of controllers that replace a deleted pod on the same node, so that moving the pod is useless.
_PINNED = ("DaemonSet", "Node")
#: Labels and annotations of pods that run only together with others.
GANGS = (
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/jobset-name",
    "kueue.x-k8s.io/pod-group-name",
    "leaderworkerset.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling/name",
    "ray.io/cluster",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
)
#: Fields of a pod's spec by which the scheduler places it together with others (KEP-4671).
_GANG_FIELDS = ("workloadRef", "schedulingGroup")
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Protection:
    """Which pods a site never moves.

    They are the pods in `namespaces`, pods with one of `labels` (an empty value means any value), pods of at least
    this `priority`, and pods whose controller is of none of the kinds `controllers`.
    """

    namespaces: t.Collection[str] = ("kube-system",)
    labels: t.Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    controllers: t.Collection[str] = CONTROLLERS


@dataclass(frozen=True)
class Movable:
    """A pod that may be moved: `namespace/name`, its UID, node and claims, and its replacement as a workload."""

    pod: str
    uid: str
    node: str
    claims: tuple[str, ...]
    workload: Workload


def movable(
    objects: t.Iterable[ObjectView], protect: Protection = Protection(), never: t.Collection[str] = ()
) -> tuple[list[Movable], dict[str, str]]:
    """The pods that may be moved, and for each other pod with devices the reason why it must not be moved.

    `objects` are Pods, ResourceClaims and PodDisruptionBudgets; `never` are pods, `namespace/name`, that must not be
    moved. Raises ValueError for objects of an unknown version.
    """
    claims: dict[str, Object] = {}
    pods: list[ObjectView] = []
    budgets: list[ObjectView] = []
    for item in objects:
        if item.get("kind") == "ResourceClaim":
            claims[title(item)] = v1(item, "ResourceClaim")
        elif item.get("kind") == "Pod":
            pods.append(item)
        elif item.get("kind") == "PodDisruptionBudget":
            budgets.append(item)
    movable_pods, reasons = [], {}
    users: dict[str, list[str]] = {}  # the pods that name each claim
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _ENDED:
            for name in claim_names(pod):
                users.setdefault(name, []).append(title(pod))
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        with_claims = spec.get("resourceClaims") or extended_resource_claim(pod)
        if not spec.get("nodeName") or not with_claims or status.get("phase") in _ENDED:
            continue
        names = [name for name in claim_names(pod) if name in claims]
        reason = "it is in the list of pods that must not be moved"
        if title(pod) not in never:
            reason = _why_not_movable(pod, claims, users, budgets, protect)
        movable_pod = _movable(pod, names, claims) if names and not reason else None
        if movable_pod:
            movable_pods.append(movable_pod)
        else:
            reasons[title(pod)] = reason or "its requests cannot be read"
    return movable_pods, reasons


def _movable(pod: ObjectView, names: t.Sequence[str], claims: t.Mapping[str, Object]) -> Movable | None:
    """A pod with the claims of these names; None if its requests cannot be read."""
    metadata, spec = pod["metadata"], pod["spec"]
    unbound_spec = {name: value for name, value in spec.items() if name != "nodeName"}
    try:
        requests(unbound_spec)
    except quantity.QuantityError:
        return None
    specs = tuple(claims[name]["spec"] for name in names)
    namespace, labels = str(metadata["namespace"]), metadata.get("labels") or {}
    replacement = Workload(title(pod), specs, unbound_spec, namespace, labels)
    return Movable(title(pod), str(metadata.get("uid") or ""), str(spec["nodeName"]), tuple(names), replacement)


def _why_not_movable(
    pod: ObjectView,
    claims: t.Mapping[str, Object],
    users: t.Mapping[str, t.Sequence[str]],
    budgets: t.Sequence[ObjectView],
    protect: Protection,
) -> str:
    """Why a pod must not be moved; empty if it may be. `users` are the pods that name each claim."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels: t.Mapping[str, str] = metadata.get("labels") or {}
    annotations: t.Mapping[str, str] = metadata.get("annotations") or {}
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    controller = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)
    if controller is None:
        return "it has no controller that would replace it"
    if controller.get("kind") not in protect.controllers or controller.get("kind") in _PINNED:
        return f"its controller is a {controller.get('kind')}"
    gang = next((name for name in GANGS if name in labels or name in annotations), None)
    gang = gang or next((name for name in _GANG_FIELDS if spec.get(name)), None)
    if gang:
        return f"it belongs to a gang ({gang})"
    if (spec.get("schedulerName") or SCHEDULER) != SCHEDULER:
        return f"scheduler {spec['schedulerName']} places it"
    return (
        _why_protected(pod, labels, annotations, protect)
        or _why_claims_shared(pod, claims, users)
        or _why_no_disruption(pod, labels, budgets)
    )


def _why_protected(
    pod: ObjectView, labels: t.Mapping[str, str], annotations: t.Mapping[str, str], protect: Protection
) -> str:
    if annotations.get(SAFE_TO_EVICT) == "false":
        return f"its annotation {SAFE_TO_EVICT} is false"
    if pod["metadata"]["namespace"] in protect.namespaces:
        return f"namespace {pod['metadata']['namespace']} is protected"
    label = next((name for name, value in protect.labels.items() if name in labels and value in ("", labels[name])), "")
    if label:
        return f"its label {label} is protected"
    priority = int(pod["spec"].get("priority") or 0)
    if protect.priority is not None and priority >= protect.priority:
        return f"its priority is {priority}"
    return ""


def _why_claims_shared(pod: ObjectView, claims: t.Mapping[str, Object], users: t.Mapping[str, t.Sequence[str]]) -> str:
    """Why a pod's claims prevent a move. A claim that was not created for the pod alone keeps its devices."""
    extended = extended_resource_claim(pod)
    if extended:  # whether the devices of another node serve its extended resources is not modelled
        return f"its claim {extended} was created for extended resources"
    for entry in pod["spec"]["resourceClaims"]:
        if not entry.get("resourceClaimTemplateName"):
            name = entry.get("resourceClaimName") or entry.get("name")
            return f"its claim {name} was not created for this pod alone"
    # an entry may need no claim; then it is in the status without a name
    decided = {entry["name"] for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    if any(entry["name"] not in decided for entry in pod["spec"]["resourceClaims"]):
        return "not all of its claims have been created"
    names = claim_names(pod)
    for name in names:
        claim = claims.get(name)
        if claim is None:
            return f"its claim {name} cannot be read"
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        if any(consumer.get("uid") != pod["metadata"].get("uid") for consumer in consumers):
            return f"its claim {name} is shared"
        others = [user for user in users.get(name, ()) if user != title(pod)]
        if others:
            return f"pod {others[0]} also uses its claim {name}"
        if any(
            (request.get("exactly") or {}).get("adminAccess")
            for request in claim["spec"]["devices"].get("requests") or ()
        ):
            return f"its claim {name} has admin access"
    return ""


def _why_no_disruption(pod: ObjectView, labels: t.Mapping[str, str], budgets: t.Sequence[ObjectView]) -> str:
    """Why the eviction API would refuse to evict a pod (pkg/registry/core/pod/storage/eviction.go)."""
    budgets_of_pod = [
        budget
        for budget in budgets
        if budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and selected((budget.get("spec") or {}).get("selector"), labels)
    ]
    if len(budgets_of_pod) > 1:
        names = ", ".join(title(budget) for budget in budgets_of_pod)
        return f"several PodDisruptionBudgets select it, so it cannot be evicted: {names}"
    for budget in budgets_of_pod:
        status = budget.get("status") or {}
        if int(status.get("observedGeneration") or 0) < int(budget["metadata"].get("generation") or 0):
            return f"PodDisruptionBudget {title(budget)} was changed, and its controller has not processed it yet"
        if int(status.get("disruptionsAllowed") or 0) < 1:
            return f"PodDisruptionBudget {title(budget)} allows no disruption now"
    return ""
