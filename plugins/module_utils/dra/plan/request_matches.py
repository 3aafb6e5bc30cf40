# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which devices a workload's requests select, and claims in which a request is pinned to one of these devices."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_cache import SelectorCache
from ..kube.objects import Object, ObjectView, alternatives
from ..scheduler.search_devices import comparable
from ..scheduler.search_requests import class_selectors, expressions
from ..vendors.offer import Offer
from .fleet import Fleet, Workload

#: The selector of the device that a request is pinned to. It contains NUL, so it equals no CEL expression.
THIS_DEVICE = "\0this device"

#: The positions of a claim, of a request in it, and of an alternative of the request (0 if it has none).
RequestKey = tuple[int, int, int]


class RequestMatches:
    """The devices that the requests of one workload select. The caller must keep the offers alive."""

    def __init__(self, fleet: Fleet, workload: Workload, cache: SelectorCache) -> None:
        self.workload = workload
        self._cache = cache
        self._texts: dict[RequestKey, list[str]] = {}
        self._names: dict[RequestKey, tuple[str, str]] = {}
        self._selected: dict[tuple[RequestKey, int], bool] = {}
        for claim, spec in enumerate(workload.claims):
            for number, request in enumerate(spec["devices"].get("requests") or ()):
                for alternative, body in enumerate(alternatives(request)):
                    if body.get("deviceClassName") not in fleet.classes:
                        continue
                    selectors = [*class_selectors(fleet.classes, body), *(body.get("selectors") or ())]
                    self._texts[claim, number, alternative] = expressions(selectors)
                    base = str(request["name"])
                    self._names[claim, number, alternative] = (base, f"{base}/{body.get('name')}")

    def requests_for(self, offer: Offer) -> t.Iterator[RequestKey]:
        """The requests whose selectors select a device."""
        return (request for request in self._texts if self.selects(request, offer))

    def selects(self, request: RequestKey, offer: Offer) -> bool:
        """Whether the selectors of a request select a device. A selector that cannot be evaluated selects nothing."""
        key = (request, id(offer))
        if key not in self._selected:
            try:
                selected = all(self._cache.matches(text, offer.device, offer.driver) for text in self._texts[request])
            except (EvaluationError, Uncheckable):
                selected = False
            self._selected[key] = selected
        return self._selected[key]

    def may_be_allocated_with(self, offer: Offer, other: Offer) -> bool:
        """Whether an allocation with one device may include another device, or depend on it.

        True unless this is certainly impossible, for example because no constraint that covers both requests holds for
        the two devices.
        """
        if other.device.get("consumesCounters"):
            return True
        return any(
            self._compatible(first, offer, second, other)
            for first in self.requests_for(offer)
            for second in self.requests_for(other)
        )

    def _compatible(self, first: RequestKey, offer: Offer, second: RequestKey, other: Offer) -> bool:
        """Whether no constraint of a claim forbids two devices for two requests."""
        if first[0] != second[0]:
            return True
        for constraint in self.workload.claims[first[0]]["devices"].get("constraints") or ():
            names = constraint.get("requests") or ()
            if names and not all(set(self._names[request]) & set(names) for request in (first, second)):
                continue
            name = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
            if name is None:
                continue
            same = comparable(offer, name) == comparable(other, name)
            if same != bool(constraint.get("matchAttribute")):
                return False
        return True


def with_pinned_device(devices: ObjectView, number: int, alternative: int) -> Object:
    """A claim's `devices`, changed so that one device of request `number` must match THIS_DEVICE.

    `alternative` is the position of the alternative that is pinned. A request for several devices is split in two.
    """
    requests = [dict(request) for request in devices["requests"]]
    request = requests[number]
    name = str(request["name"])
    pinned_name = f"{name} (this device)"  # with spaces, so that no request has this name
    body = dict(alternatives(request)[alternative])
    count = int(body.get("count") or 1)
    selectors = [*(body.get("selectors") or ()), {"cel": {"expression": THIS_DEVICE}}]
    pinned_body = {**body, "count": 1, "selectors": selectors}
    rest_body = {**body, "count": count - 1}

    def request_with(request_name: str, new_body: Object) -> Object:
        key = "firstAvailable" if request.get("firstAvailable") else "exactly"
        return {"name": request_name, key: [new_body] if key == "firstAvailable" else new_body}

    pinned, rest = request_with(pinned_name, pinned_body), request_with(name, rest_body)
    requests[number : number + 1] = [pinned, rest] if count > 1 else [pinned]
    constraints = []
    for constraint in devices.get("constraints") or ():
        names = constraint.get("requests")
        if names:
            of_request = [
                request_name for request_name in names if request_name == name or request_name.startswith(f"{name}/")
            ]
            unchanged = [request_name for request_name in names if count > 1 or request_name not in of_request]
            added = [pinned_name + request_name[len(name) :] for request_name in of_request]
            constraint = {**constraint, "requests": [*unchanged, *added]}
        constraints.append(constraint)
    return {**devices, "requests": requests, "constraints": constraints}
