# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Parses the options of modules that plan: the objects of a cluster by kind, and the pods to place."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object
from ..kube.problems import Problems
from ..kube.versions import V1, convert
from . import forms
from .fleet import Workload

#: Templates by namespace and name, in resource.k8s.io/v1.
Templates = t.Mapping[tuple[str, str], Object]

#: The argument specification of a workload.
WORKLOAD = {
    "name": {"type": "str", "required": True},
    "templates": {"type": "list", "elements": "str"},
    "claims": {"type": "list", "elements": "dict"},
    "namespace": {"type": "str", "default": "default"},
    "pod": {"type": "dict", "default": {}},
    "labels": {"type": "dict", "default": {}},
}


def workload(entry: Object, templates: Templates) -> Workload:
    """The workload that one entry of `workloads` describes. Raises ValueError."""
    claims = forms.without_nulls(entry["claims"] or [])
    for name in entry["templates"] or ():
        found = templates.get((entry["namespace"], name))
        if found is None:
            known = ", ".join(sorted(one for namespace, one in templates if namespace == entry["namespace"])) or "none"
            raise ValueError(
                f"workload {entry['name']}: there is no ResourceClaimTemplate {entry['namespace']}/{name} among the "
                f"objects; templates of this namespace: {known}"
            )
        claims.append(found["spec"]["spec"])
    prefix = f"workload {entry['name']}: "
    if not isinstance(entry["pod"], dict) or not isinstance(entry["labels"], dict):
        raise ValueError(f"{prefix}pod and labels must be mappings")
    without_devices = [number for number, claim in enumerate(claims) if not isinstance(claim.get("devices"), dict)]
    if without_devices:
        raise ValueError(f"{prefix}claims[{without_devices[0]}] has no devices: give the spec of a claim")
    pod = forms.without_nulls(entry["pod"])
    problems = forms.spec_problems(pod, forms.POD_SPEC, f"{prefix}pod")
    problems += [
        one for number, claim in enumerate(claims) for one in forms.claim_problems(claim, f"{prefix}claims[{number}]")
    ]
    if problems:
        raise Problems(problems)
    labels = {key: str(value) for key, value in entry["labels"].items()}
    return Workload(entry["name"], tuple(claims), pod, entry["namespace"], labels)


def objects_of(items_by_kind: Object) -> list[Object]:
    """All objects, each with its kind. Raises ValueError for those that an API server would not return."""
    found = []
    for kind, items in items_by_kind.items():
        if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
            raise ValueError(f"objects.{kind} is not a list of objects")
        found += [{"kind": kind, **one} for one in items]
    forms.check(found)
    return found


def templates_of(objects: t.Iterable[Object]) -> Templates:
    """The ResourceClaimTemplates among objects. Raises ValueError for one of an unknown version."""
    return {
        (one["metadata"]["namespace"], one["metadata"]["name"]): convert(one, V1)
        for one in objects
        if one["kind"] == "ResourceClaimTemplate"
    }
