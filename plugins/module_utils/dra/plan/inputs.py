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
        template = templates.get((entry["namespace"], name))
        if template is None:
            known = (
                ", ".join(sorted(other for namespace, other in templates if namespace == entry["namespace"])) or "none"
            )
            raise ValueError(
                f"workload {entry['name']}: there is no ResourceClaimTemplate {entry['namespace']}/{name} among the "
                f"objects; templates of this namespace: {known}"
            )
        claims.append(template["spec"]["spec"])
    prefix = f"workload {entry['name']}: "
    if not isinstance(entry["pod"], dict) or not isinstance(entry["labels"], dict):
        raise ValueError(f"{prefix}pod and labels must be mappings")
    without_devices = [number for number, claim in enumerate(claims) if not isinstance(claim.get("devices"), dict)]
    if without_devices:
        raise ValueError(f"{prefix}claims[{without_devices[0]}] has no devices: give the spec of a claim")
    pod = forms.without_nulls(entry["pod"])
    problems = forms.spec_problems(pod, forms.POD_SPEC, f"{prefix}pod")
    problems += [
        problem
        for number, claim in enumerate(claims)
        for problem in forms.claim_problems(claim, f"{prefix}claims[{number}]")
    ]
    if problems:
        raise Problems(problems)
    labels = {key: str(value) for key, value in entry["labels"].items()}
    return Workload(entry["name"], tuple(claims), pod, entry["namespace"], labels)


def objects_of(items_by_kind: Object) -> list[Object]:
    """All objects, each with its kind. Raises ValueError for those that an API server would not return."""
    objects = []
    for kind, items in items_by_kind.items():
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError(f"objects.{kind} is not a list of objects")
        objects += [{"kind": kind, **item} for item in items]
    forms.check(objects)
    return objects


def templates_of(objects: t.Iterable[Object]) -> Templates:
    """The ResourceClaimTemplates among objects. Raises ValueError for one of an unknown version."""
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"]): convert(item, V1)
        for item in objects
        if item["kind"] == "ResourceClaimTemplate"
    }
