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
    found = []
    for key in ("name", "namespace", "template", "image"):
        value = workload.get(key)
        if not isinstance(value, str) or not value:
            found.append(Problem(f"{path}.{key}", "is required, and must be a string", "required"))
        elif key in ("name", "namespace") and dns_label(value):
            found.append(Problem(f"{path}.{key}", dns_label(value), "bad-name"))
        elif key == "template" and value not in templates:
            near = difflib.get_close_matches(value, templates, 1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            known = ", ".join(templates)
            message = f"there is no template {value!r}; available: {known}"
            found.append(Problem(f"{path}.template", message, "unknown", fix))
    claims = workload.get("claims")
    if not isinstance(claims, list) or not claims:
        return [*found, Problem(f"{path}.claims", "is required: a list of at least one claim", "required")]
    for index, claim in enumerate(claims):
        found += _check_claim(claim, f"{path}.claims[{index}]", workload.get("namespace"), objects)
    names = [claim.get("name") for claim in claims if isinstance(claim, dict)]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        found.append(Problem(f"{path}.claims", f"the name {name!r} is used twice", "duplicate-name"))
    return found


def _check_claim(claim: object, path: str, namespace: object, objects: Sequence[Object] | None) -> list[Problem]:
    if not isinstance(claim, dict):
        return [Problem(path, "is not a dictionary", "wrong-type")]
    found = []
    if dns_label(str(claim.get("name") or "")):
        found.append(Problem(f"{path}.name", dns_label(str(claim.get("name") or "")), "bad-name"))
    given = [key for key in _KINDS if claim.get(key)]
    if len(given) != 1:
        return [*found, Problem(path, "needs either template or claim", "contradiction")]
    if objects is None:
        return found
    wanted = str(claim[given[0]])
    known = [
        item["metadata"]["name"]
        for item in objects
        if item["kind"] == _KINDS[given[0]] and item["metadata"].get("namespace") == namespace
    ]
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, 1)
        boards = [name for name in known if re.fullmatch(re.escape(wanted) + "-[0-9a-f]{8}", name)]
        if boards:
            hint = f"name the one for the board of the workload's nodes: {', '.join(boards)}"
            message = f"{_KINDS[given[0]]} {wanted!r} has several objects, one for each kind of board"
            return [*found, Problem(f"{path}.{given[0]}", message, "unknown-claim", hint)]
        hint = f"did you mean {near[0]!r}?" if near else f"namespace {namespace!r} has {', '.join(known) or 'none'}"
        message = f"the site renders no {_KINDS[given[0]]} {wanted!r} in namespace {namespace!r}"
        found.append(Problem(f"{path}.{given[0]}", message, "unknown-claim", hint))
    return found
