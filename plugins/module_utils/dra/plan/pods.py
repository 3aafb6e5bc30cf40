# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Whether a node takes a pod, apart from devices: kube-scheduler's filters for resources, taints and labels.

Source: kube-scheduler 1.37, plugins NodeResourcesFit, NodeUnschedulable, TaintToleration, NodeAffinity and NodeName;
k8s.io/component-helpers/resource (PodRequests, PodLimits).
"""

from __future__ import annotations

import math
import typing as t

from ..kube import quantity
from ..kube.objects import ObjectView
from .fleet import PODS, Node

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
#: The default scheduler of Kubernetes, whose rules are modelled here.
SCHEDULER = "default-scheduler"
_BLOCKING = ("NoSchedule", "NoExecute")
#: The resources that a pod may request at pod level, besides huge pages (KEP-2837).
_POD_LEVEL = ("cpu", "memory")


def units(amounts: ObjectView | None) -> dict[str, int]:
    """Quantities as whole units, CPU in thousandths, rounded up as the scheduler does. Raises QuantityError."""
    return {
        name: math.ceil(quantity.parse(value) * (1000 if name == "cpu" else 1))
        for name, value in (amounts or {}).items()
    }


def _add(first: t.Mapping[str, int], second: t.Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def _maximum(first: t.Mapping[str, int], second: t.Mapping[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}


def requests(spec: ObjectView, part: str = "requests") -> dict[str, int]:
    """The requests of a v1 PodSpec, in the units of `units`; if `part` is limits, its limits. Raises QuantityError.

    Init containers run one after the other. Those with restartPolicy Always (sidecars) keep running with the others.
    The pod's overhead is added to all requests, but only to the limits that are set.
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        total = _add(total, _container_requests(container, part))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        amounts = _container_requests(container, part)
        if container.get("restartPolicy") == "Always":
            total, sidecars = _add(total, amounts), _add(sidecars, amounts)
            peak = _maximum(peak, sidecars)
        else:
            peak = _maximum(peak, _add(amounts, sidecars))
    total = _maximum(total, peak)
    total.update(_pod_level(spec, part, total))
    overhead = units(spec.get("overhead"))
    if part == "limits":
        overhead = {name: amount for name, amount in overhead.items() if total.get(name)}
    return _add(total, overhead)


def _container_requests(container: ObjectView, part: str) -> dict[str, int]:
    """The requests or limits of a container. As in the API server, a limit without a request counts as a request."""
    resources = container.get("resources") or {}
    amounts = units(resources.get(part))
    return {**units(resources.get("limits")), **amounts} if part == "requests" else amounts


def _pod_level(spec: ObjectView, part: str, containers: t.Mapping[str, int]) -> dict[str, int]:
    """The requests or limits of a pod at pod level. `containers` are the sums of its containers.

    As in the API server, a limit of the pod counts as a request only of resources that no container requests.
    """
    resources = spec.get("resources") or {}
    amounts = units(resources.get(part))
    if part == "requests":
        limits = units(resources.get("limits"))
        amounts = {**{name: value for name, value in limits.items() if not containers.get(name)}, **amounts}
    return {name: value for name, value in amounts.items() if name in _POD_LEVEL or name.startswith("hugepages-")}


def room(node: Node, requested: t.Mapping[str, int]) -> tuple[int | None, str]:
    """How many pods with these requests fit on a node, and the limiting resource.

    The number is None if the node's resources are unknown: any number of pods then fits.
    """
    free = node.free_resources()
    if free is None:
        return None, ""
    requested = {**requested, PODS: 1}
    return min((max(0, free.get(name, 0)) // amount, name) for name, amount in sorted(requested.items()) if amount)


def refuses(node: Node, spec: ObjectView) -> str:
    """Why a node takes no pod of this spec, whatever its devices and resources; empty if there is no such reason."""
    if spec.get("nodeName") and spec["nodeName"] != node.name:
        return f"the pod is bound to node {spec['nodeName']}"
    tolerations = spec.get("tolerations") or ()
    if node.cordoned and not tolerates(tolerations, UNSCHEDULABLE):
        return "the node is cordoned"
    for taint in node.taints:
        if taint.get("effect") in _BLOCKING and not tolerates(tolerations, taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"the node has the taint {taint.get('key')}{value}:{taint['effect']}"
    for name, value in sorted((spec.get("nodeSelector") or {}).items()):
        if node.labels.get(name) != value:
            return f"the node has no label {name}={value}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not selects(required, node):
        return "the pod's required node affinity does not select the node"
    return ""


def tolerates(tolerations: t.Iterable[ObjectView], taint: ObjectView) -> bool:
    """Whether one of a pod's tolerations matches a node's taint (v1 Toleration.ToleratesTaint)."""
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists" or (
            operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
        ):
            return True
    return False


def selects(selector: ObjectView, node: Node) -> bool:
    """Whether a v1 NodeSelector selects a node: one of its terms must match, and an empty term matches nothing."""
    return any(_term(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _term(term: ObjectView, node: Node) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(matches(requirement, node.labels) for requirement in expressions) and all(
        matches(requirement, {"metadata.name": node.name}) for requirement in fields
    )


def matches(requirement: ObjectView, labels: t.Mapping[str, str]) -> bool:
    """Whether labels meet a requirement of a node or label selector. An unknown operator is never met."""
    key, operator = requirement.get("key", ""), requirement.get("operator")
    values: t.Sequence[str] = requirement.get("values") or ()
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator in ("Gt", "Lt") and len(values) == 1:
        try:
            label, bound = int(labels.get(key, "")), int(values[0])
        except ValueError:
            return False
        return label > bound if operator == "Gt" else label < bound
    return False


def selected(selector: ObjectView | None, labels: t.Mapping[str, str]) -> bool:
    """Whether a v1 LabelSelector selects labels: None selects nothing, and an empty selector selects everything."""
    if selector is None:
        return False
    match_labels = selector.get("matchLabels") or {}
    return all(labels.get(name) == value for name, value in match_labels.items()) and all(
        matches(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def claim_names(pod: ObjectView) -> list[str]:
    """`namespace/name` of the claims of a pod: those created for it from templates or for its extended resources, and
    those it refers to by name."""
    namespace, status = pod["metadata"]["namespace"], pod.get("status") or {}
    generated = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()}
    entries = pod["spec"].get("resourceClaims") or ()
    names = [entry.get("resourceClaimName") or generated.get(entry["name"]) for entry in entries]
    return list(dict.fromkeys(f"{namespace}/{name}" for name in (*names, extended_resource_claim(pod)) if name))


def extended_resource_claim(pod: ObjectView) -> str:
    """The name of the claim that the scheduler created for a pod's extended resources (KEP-5004); empty without one."""
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return str(extended.get("resourceClaimName") or "")
