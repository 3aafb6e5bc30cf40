# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Parses the options of the planning modules: the objects of a cluster by kind, and the pods to place."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object
from ..kube.problems import Problem, Problems
from ..kube.versions import V1, convert
from . import forms
from .fleet import Workload

#: Templates by namespace and name, in resource.k8s.io/v1.
Templates = t.Mapping[tuple[str, str], Object]

#: Returns the problems of a claim's spec at a path.
_Check = t.Callable[[object, str], list[Problem]]

#: The argument specification of a workload.
WORKLOAD: dict[str, dict[str, t.Any]] = {
    "name": {"type": "str", "required": True},
    "templates": {"type": "list", "elements": "str"},
    "claims": {"type": "list", "elements": "dict"},
    "namespace": {"type": "str", "default": "default"},
    "pod": {"type": "dict", "default": {}},
    "labels": {"type": "dict", "default": {}},
}


def workload(entry: Object, templates: Templates) -> Workload:
    """The workload that one entry of `workloads` describes. Raises ValueError."""
    prefix = f"workload {entry['name']}: "
    if not isinstance(entry["pod"], dict) or not isinstance(entry["labels"], dict):
        raise ValueError(f"{prefix}pod and labels must be mappings")
    claims = _claims(entry, templates, prefix)
    pod = forms.without_nulls(entry["pod"])
    problems = forms.spec_problems(pod, forms.POD_SPEC, f"{prefix}pod")
    for path, claim, problems_of in claims:
        problems += problems_of(claim, f"{prefix}{path}")
    if problems:
        raise Problems(problems)
    labels = _labels(forms.without_nulls(entry["labels"]), f"{prefix}labels")
    return Workload(entry["name"], tuple(claim for _path, claim, _check in claims), pod, entry["namespace"], labels)


def _claims(entry: Object, templates: Templates, prefix: str) -> list[tuple[str, Object, _Check]]:
    """The specs of a workload's claims, its own and those of its templates, each with its path and its check: the API
    server has already checked templates. Raises ValueError."""
    names = entry["templates"] or []
    names = [names] if isinstance(names, str) else names  # as Ansible reads a list of strings
    own = forms.without_nulls(entry["claims"] or [])
    if not isinstance(names, list) or not isinstance(own, list):
        raise ValueError(f"{prefix}templates and claims must be lists")
    claims: list[tuple[str, Object, _Check]] = [
        (f"claims[{number}]", claim, forms.new_claim_problems) for number, claim in enumerate(own)
    ]
    for number, name in enumerate(names):
        template = templates.get((entry["namespace"], name))
        if template is None:
            known = (
                ", ".join(sorted(other for namespace, other in templates if namespace == entry["namespace"])) or "none"
            )
            raise ValueError(
                f"{prefix}there is no ResourceClaimTemplate {entry['namespace']}/{name} among the "
                f"objects; templates of this namespace: {known}"
            )
        claims.append((f"templates[{number}] ({name})", template["spec"]["spec"], forms.claim_problems))
    for path, claim, _check in claims:
        if not isinstance(claim, dict) or not isinstance(claim.get("devices"), dict):
            raise ValueError(f"{prefix}{path} has no devices: give the spec of a claim")
    return claims


def _labels(values: Object, path: str) -> dict[str, str]:
    """Labels of a pod; numbers become strings. Raises ValueError for other values, such as true, which a label selector
    would write in lower case."""
    for key, value in values.items():
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise ValueError(f"{path}.{key}: {value!r} is not a string: put it in quotes")
    return {str(key): str(value) for key, value in values.items()}


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
