# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The tolerations of holds in claims."""

from __future__ import annotations

import json
import typing as t

from ..kube.objects import Object, ObjectView
from .hold import EFFECT, KEY


def toleration(name: str) -> Object:
    """The v1 DeviceToleration of a hold. Each request of a claim that may use the held devices needs it."""
    return {"key": KEY, "operator": "Equal", "value": name, "effect": EFFECT}


def request_bodies(claim: ObjectView) -> t.Iterator[tuple[str, Object]]:
    """The parts of a v1 claim's spec that have tolerations: requests and alternatives.

    The name of an alternative is `request/alternative`.
    """
    for request in claim["devices"].get("requests") or ():
        if request.get("firstAvailable"):
            yield from (
                (f"{request['name']}/{alternative['name']}", alternative) for alternative in request["firstAvailable"]
            )
        else:
            yield str(request["name"]), request.get("exactly") or {}


def not_tolerating(claim: ObjectView, name: str) -> list[str]:
    """The requests of a claim that do not tolerate a hold."""
    return [
        path
        for path, body in request_bodies(claim)
        if not any(_matches_hold(entry, name) for entry in _tolerations(body))
    ]


def tolerating_others(claim: ObjectView, name: str) -> list[str]:
    """The requests of a claim that also tolerate other holds, and so could take devices held for other jobs."""
    return [
        path
        for path, body in request_bodies(claim)
        if any(_matches_hold(entry) and not _matches_only(entry, name) for entry in _tolerations(body))
    ]


def with_toleration(claim: ObjectView, name: str) -> Object:
    """A copy of a claim's spec that tolerates a hold in every request."""
    spec: Object = json.loads(json.dumps(claim))
    for request in spec["devices"].get("requests") or ():
        for body in request.get("firstAvailable") or [request.setdefault("exactly", {})]:
            if not any(_matches_hold(entry, name) for entry in _tolerations(body)):
                body["tolerations"] = [*_tolerations(body), toleration(name)]
    return spec


def _tolerations(body: ObjectView) -> list[ObjectView]:
    return list(body.get("tolerations") or ())


def _matches_hold(entry: ObjectView, name: str | None = None) -> bool:
    """Whether a toleration matches the hold of this name; without a name, whether it matches some hold."""
    if entry.get("key") not in (None, "", KEY) or entry.get("effect") not in (None, "", EFFECT):
        return False
    return name is None or entry.get("operator") == "Exists" or (entry.get("value") or "") == name


def _matches_only(entry: ObjectView, name: str) -> bool:
    return entry.get("key") == KEY and entry.get("operator") != "Exists" and entry.get("value") == name
