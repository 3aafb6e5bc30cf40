# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of dra_claims_workloads, so that templates of workloads can rely on these fields."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.limits import dns_label
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem

_KINDS = {"template": "ResourceClaimTemplate", "claim": "ResourceClaim"}


def check_workload(
    workload: object, path: str, objects: Sequence[Object] | None, templates: Sequence[str]
) -> list[Problem]:
    """Errors in one entry: bad names, an unknown template, and claims that the site does not render.

    `objects` are the rendered objects, or None if rendering failed. `templates` are the names of the available workload
    templates.
    """
    if not isinstance(workload, dict):
        return [Problem(path, "is not a dictionary", "wrong-type")]
    problems = []
    for key in ("name", "namespace", "template", "image"):
        value = workload.get(key)
        if not isinstance(value, str) or not value:
            problems.append(Problem(f"{path}.{key}", "is required, and must be a string", "required"))
        elif key in ("name", "namespace") and dns_label(value):
            problems.append(Problem(f"{path}.{key}", dns_label(value), "bad-name"))
        elif key == "template" and value not in templates:
            near = difflib.get_close_matches(value, templates, 1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            known = ", ".join(templates)
            message = f"there is no template {value!r}; available: {known}"
            problems.append(Problem(f"{path}.template", message, "unknown", fix))
    claims = workload.get("claims")
    if not isinstance(claims, list) or not claims:
        return [*problems, Problem(f"{path}.claims", "is required: a list of at least one claim", "required")]
    for index, claim in enumerate(claims):
        problems += _check_claim(claim, f"{path}.claims[{index}]", workload.get("namespace"), objects)
    names = [claim.get("name") for claim in claims if isinstance(claim, dict)]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        problems.append(Problem(f"{path}.claims", f"the name {name!r} is used more than once", "duplicate-name"))
    return problems


def _check_claim(claim: object, path: str, namespace: object, objects: Sequence[Object] | None) -> list[Problem]:
    """Errors in a claim of a workload."""
    if not isinstance(claim, dict):
        return [Problem(path, "is not a dictionary", "wrong-type")]
    problems = []
    if dns_label(str(claim.get("name") or "")):
        problems.append(Problem(f"{path}.name", dns_label(str(claim.get("name") or "")), "bad-name"))
    keys = [key for key in _KINDS if claim.get(key)]
    if len(keys) != 1:
        return [*problems, Problem(path, "needs either template or claim", "contradiction")]
    if objects is None:
        return problems
    (key,) = keys
    requested = str(claim[key])
    known = [
        item["metadata"]["name"]
        for item in objects
        if item["kind"] == _KINDS[key] and item["metadata"].get("namespace") == namespace
    ]
    if requested not in known:
        near = difflib.get_close_matches(requested, known, 1)
        boards = [name for name in known if re.fullmatch(re.escape(requested) + "-[0-9a-f]{8}", name)]
        if boards:
            hint = f"use the one for the board of the workload's nodes: {', '.join(boards)}"
            message = f"{_KINDS[key]} {requested!r} has several objects, one for each kind of board"
            return [*problems, Problem(f"{path}.{key}", message, "unknown-claim", hint)]
        hint = f"did you mean {near[0]!r}?" if near else f"namespace {namespace!r} has {', '.join(known) or 'none'}"
        message = f"the site renders no {_KINDS[key]} {requested!r} in namespace {namespace!r}"
        problems.append(Problem(f"{path}.{key}", message, "unknown-claim", hint))
    return problems
