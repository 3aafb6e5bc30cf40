# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which devices a workload's requests select, and the claims that ask for one of them in particular."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_memory import SelectorMemory
from ..kube.objects import Object, ObjectView
from ..scheduler.search_devices import comparable
from ..scheduler.search_requests import class_selectors, expressions
from ..vendors.offer import Offer
from .fleet import Fleet, Workload

#: Stands for the one device that a request is to get. No expression of a claim equals it: CEL has no such character.
THIS = "\0this device"

#: A request of a workload, or one of its alternatives: claim, request and alternative.
Ask = tuple[int, int, int]


class Wanted:
    """What the requests of one workload select. Offers have to live as long as this does."""

    def __init__(self, fleet: Fleet, workload: Workload, memory: SelectorMemory) -> None:
        self.workload = workload
        self._memory = memory
        self._texts: dict[Ask, list[str]] = {}
        self._names: dict[Ask, tuple[str, str]] = {}
        self._selected: dict[tuple[Ask, int], bool] = {}
        for claim, spec in enumerate(workload.claims):
            for number, request in enumerate(spec["devices"].get("requests") or ()):
                for way, body in enumerate(ways(request)):
                    if body.get("deviceClassName") not in fleet.classes:
                        continue
                    selectors = [*class_selectors(fleet.classes, body), *(body.get("selectors") or ())]
                    self._texts[claim, number, way] = expressions(selectors)
                    base = str(request["name"])
                    self._names[claim, number, way] = (base, f"{base}/{body.get('name')}")

    def asking(self, offer: Offer) -> t.Iterator[Ask]:
        """The requests whose selectors select a device."""
        return (one for one in self._texts if self.selects(one, offer))

    def selects(self, ask: Ask, offer: Offer) -> bool:
        key = (ask, id(offer))
        if key not in self._selected:
            try:
                found = all(self._memory.matches(one, offer.device, offer.driver) for one in self._texts[ask])
            except (EvaluationError, Uncheckable):
                found = False
            self._selected[key] = found
        return self._selected[key]

    def together(self, offer: Offer, other: Offer) -> bool:
        """Whether an allocation with one device may have, or depend on, another: False only if it surely does not.

        Each constraint that covers both requests has to hold for the two devices alone.
        """
        if other.device.get("consumesCounters"):
            return True
        return any(
            self._match(one, offer, another, other) for one in self.asking(offer) for another in self.asking(other)
        )

    def _match(self, ask: Ask, offer: Offer, another: Ask, other: Offer) -> bool:
        if ask[0] != another[0]:
            return True
        for rule in self.workload.claims[ask[0]]["devices"].get("constraints") or ():
            names = rule.get("requests") or ()
            if names and not all(set(self._names[one]) & set(names) for one in (ask, another)):
                continue
            name = rule.get("matchAttribute") or rule.get("distinctAttribute")
            if name is None:
                continue
            same = comparable(offer, name) == comparable(other, name)
            if same != bool(rule.get("matchAttribute")):
                return False
        return True


def ways(request: ObjectView) -> list[ObjectView]:
    """The alternatives of a request, or the request alone."""
    return list(request.get("firstAvailable") or [request.get("exactly") or {}])


def pinned(devices: ObjectView, number: int, way: int) -> Object:
    """A claim's `devices`, changed so that one device of a request, by one of its alternatives, is the one of THIS."""
    requests = [dict(request) for request in devices["requests"]]
    request = requests[number]
    name = str(request["name"])
    name_of_this = f"{name}-this"
    body = dict(ways(request)[way])
    count = int(body.get("count") or 1)
    one = {**body, "count": 1, "selectors": [*(body.get("selectors") or ()), {"cel": {"expression": THIS}}]}
    sub = "firstAvailable" in request and request["firstAvailable"]
    new = {"name": name_of_this, "firstAvailable": [one]} if sub else {"name": name_of_this, "exactly": one}
    rest = {**body, "count": count - 1}
    old = {"name": name, "firstAvailable": [rest]} if sub else {"name": name, "exactly": rest}
    requests[number : number + 1] = [new, old] if count > 1 else [new]
    constraints = []
    for constraint in devices.get("constraints") or ():
        names = constraint.get("requests")
        if names:
            more = [name_of_this + each[len(name) :] for each in names if each == name or each.startswith(f"{name}/")]
            kept = [each for each in names if count > 1 or not (each == name or each.startswith(f"{name}/"))]
            constraint = {**constraint, "requests": [*kept, *more]}
        constraints.append(constraint)
    return {**devices, "requests": requests, "constraints": constraints}
