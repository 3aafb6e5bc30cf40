# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many more pods of a workload the ResourceQuotas of the workload's namespace admit.

Source: pkg/quota/v1/evaluator/core of Kubernetes 1.37 (pods.go, resource_claims.go). Quotas with scopes count only some
pods and never claims. They are not modelled: the result has a note instead.
"""

from __future__ import annotations

import math
import typing as t

from ..kube import limits, quantity
from ..kube.objects import ObjectView, alternatives
from . import pods
from .fleet import Admission, Fleet, Quota, Workload

_CLASS = ".deviceclass.resource.k8s.io/devices"
_IMPLICIT = "requests.deviceclass.resource.kubernetes.io/"
_CLAIMS = ("count/resourceclaims.resource.k8s.io",)
_PODS = ("pods", "count/pods")
#: The resources that a quota may name with the prefix `requests.`, without it, or with `limits.`.
_NATIVE = ("cpu", "memory", "ephemeral-storage")


def read(quota: ObjectView) -> Quota:
    """A Quota from a v1 ResourceQuota. Resources whose usage is not in the status count as unused.

    Raises QuantityError.
    """
    metadata, spec, status = quota["metadata"], quota.get("spec") or {}, quota.get("status") or {}
    used = status.get("used") or {}
    left = {}
    for name, hard in (spec.get("hard") or {}).items():
        amount = quantity.parse(hard) - quantity.parse(used.get(name, "0"))
        left[name] = math.floor(amount * (1000 if name.rpartition(".")[2] == "cpu" else 1))
    scoped = bool(spec.get("scopes") or spec.get("scopeSelector"))
    return Quota(str(metadata["namespace"]), f"{metadata['namespace']}/{metadata['name']}", left, scoped)


def admitted(fleet: Fleet, workload: Workload) -> Admission:
    """How many more pods of a workload, with their claims, the quotas of its namespace admit.

    Raises QuantityError for requests and limits of the pod that cannot be read.
    """
    usage_of_pod = usage(workload, fleet.classes)
    counts: list[tuple[int, str]] = []
    notes = []
    for quota in fleet.quotas:
        if quota.namespace != workload.namespace:
            continue
        if quota.scoped:
            notes.append(f"quota {quota.name} has scopes, which are not modelled: it may admit fewer")
            continue
        for resource, amount in usage_of_pod.items():
            if amount and resource in quota.left:
                count = max(0, quota.left[resource]) // amount
                counts.append((count, f"quota {quota.name} leaves {resource} for {count} more"))
    if not counts:
        return Admission(None, notes=tuple(notes), certain=not notes)
    count, reason = min(counts)
    return Admission(count, reason, tuple(notes), certain=not notes)


def usage(workload: Workload, classes: t.Mapping[str, ObjectView]) -> dict[str, int]:
    """The usage of one pod with its claims, by the resource names of quotas; `classes` are v1 DeviceClasses by name."""
    amounts = dict.fromkeys(_PODS, 1)
    amounts.update(dict.fromkeys(_CLAIMS, len(workload.claims)))
    for name, amount in pods.requests(workload.pod).items():
        amounts[f"requests.{name}"] = amount
        if name in _NATIVE or name.startswith("hugepages-"):
            amounts[name] = amount
    for name, amount in pods.requests(workload.pod, "limits").items():
        if name in _NATIVE:
            amounts[f"limits.{name}"] = amount
    for claim in workload.claims:
        for device_class, number in _devices(claim).items():
            extended = (classes.get(device_class) or {}).get("spec", {}).get("extendedResourceName")
            names = [device_class + _CLASS, _IMPLICIT + device_class, *([f"requests.{extended}"] if extended else [])]
            amounts.update({name: amounts.get(name, 0) + number for name in names})
    return amounts


def _devices(claim: ObjectView) -> dict[str, int]:
    """The number of devices of each class that a claim is charged for.

    For alternatives, the largest number is charged. Mode `All` is charged as the largest possible number.
    """
    total: dict[str, int] = {}
    for request in claim["devices"].get("requests") or ():
        largest: dict[str, int] = {}
        for body in alternatives(request):
            takes_all = body.get("allocationMode") == "All"
            number = limits.ALLOCATION_RESULTS if takes_all else int(body.get("count") or 1)
            name = str(body.get("deviceClassName"))
            largest[name] = max(largest.get(name, 0), number)
        for name, number in largest.items():
            total[name] = total.get(name, 0) + number
    return total
