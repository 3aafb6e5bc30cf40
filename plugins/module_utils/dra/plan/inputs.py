# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The input of the modules about plans: the objects of a cluster by kind, and the pods to place."""

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
    """One entry of `workloads`. Raises ValueError."""
    claims = forms.without_nulls(entry["claims"] or [])
    for name in entry["templates"] or ():
        found = templates.get((entry["namespace"], name))
        if found is None:
            known = ", ".join(sorted(one for space, one in templates if space == entry["namespace"])) or "none"
            raise ValueError(
                f"workload {entry['name']}: there is no ResourceClaimTemplate {entry['namespace']}/{name} among the "
                f"objects; templates of this namespace: {known}"
            )
        claims.append(found["spec"]["spec"])
    place = f"workload {entry['name']}: "
    if not isinstance(entry["pod"], dict) or not isinstance(entry["labels"], dict):
        raise ValueError(f"{place}pod and labels have to be mappings")
    broken = [number for number, claim in enumerate(claims) if not isinstance(claim.get("devices"), dict)]
    if broken:
        raise ValueError(f"{place}claims[{broken[0]}] has no devices: give the spec of a claim")
    pod = forms.without_nulls(entry["pod"])
    wrong = forms.spec_problems(pod, forms.POD_SPEC, f"{place}pod")
    wrong += [
        one for number, claim in enumerate(claims) for one in forms.claim_problems(claim, f"{place}claims[{number}]")
    ]
    if wrong:
        raise Problems(wrong)
    labels = {key: str(value) for key, value in entry["labels"].items()}
    return Workload(entry["name"], tuple(claims), pod, entry["namespace"], labels)


def objects_of(given: Object) -> list[Object]:
    """All objects, each with its kind. Raises ValueError for those that an API server would not return."""
    found = []
    for kind, items in given.items():
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
