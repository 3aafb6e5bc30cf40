# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The devices of a node that fit the requests of a pod, determined once before the search."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from fractions import Fraction

from ..kube import limits, quantity
from ..kube.objects import ObjectView
from . import capacity as amounts
from .answers import Abort, Allocation, Refusal, Result
from .node_cache import NodeCache, SuitableDevices
from .node_devices import NodeDevices
from .search_devices import Amount, ConsumedCapacity, amount, tolerates_taints, whole
from .search_requests import CONSTRAINTS, Constraint, Request, Unsupported, class_selectors
from .search_selection import FAILS, MAYBE, NO, YES


@dataclass
class Question:
    """The input of a search: the claims of a pod, and the devices of a node."""

    claims: t.Sequence[ObjectView]
    classes: t.Mapping[str, ObjectView]
    cache: NodeCache
    held: list[Result]
    budget: int  # devices that the search examines before it gives up
    kinds: t.Sequence[str] = CONSTRAINTS  # the kinds of constraints that the scheduler supports


class Candidates(NodeDevices):
    """The requests of a pod, and the devices of a node that fit each.

    An `optimistic` search treats devices that may match as matching, and devices that may exist as existing.
    """

    def __init__(self, question: Question, optimistic: bool = False) -> None:
        super().__init__(question.cache.devices(optimistic), question.held, len(question.claims))
        self.claims = question.claims
        self.classes = question.classes
        self.kinds = question.kinds
        self.cache, self.selection = question.cache, question.cache.selection
        self.optimistic = optimistic
        self.failed = False
        self.requests: list[list[list[Request]]] = []
        self.constraints: list[list[Constraint]] = []
        # by `Request.suitability_key`
        self.candidates: dict[str, list[tuple[int, bool]]] = {}
        self.fitting: dict[str, tuple[list[int], bool]] = {}
        self._consumed_capacities: dict[tuple[str, int], ConsumedCapacity] = {}

    def prepare(self) -> None:
        """Read the requests and constraints of the claims. Raises Abort."""
        for index, claim in enumerate(self.claims):
            devices = claim["devices"]
            rows: list[list[Request]] = []
            min_total = 0
            for number, request in enumerate(devices.get("requests") or ()):
                row = Request.row(index, number, request)
                for alternative in row:
                    self._prepare(alternative)
                rows.append(row)
                min_total += min(alternative.count for alternative in row)
                if min_total > limits.ALLOCATION_RESULTS:
                    limit = f"{limits.ALLOCATION_RESULTS} devices, the maximum for one claim"
                    path = f"claims[{index}].spec.devices.requests[{number}]"
                    raise Abort(Refusal(f"the claim requests more than {limit}", path, "limit"))
            self.requests.append(rows)
            self.constraints.append(self._constraints(index, devices.get("constraints") or ()))
            for row in rows:
                for alternative in row:
                    alternative.rules = [rule for rule in self.constraints[index] if rule.covers(alternative)]

    def _constraints(self, index: int, entries: t.Sequence[ObjectView]) -> list[Constraint]:
        constraints = []
        for number, entry in enumerate(entries):
            path = f"claims[{index}].spec.devices.constraints[{number}]"
            try:
                constraints.append(Constraint.read(entry, path, self.kinds))
            except Unsupported as error:
                raise Abort(Refusal(str(error), path, "error")) from error
        return constraints

    def _prepare(self, request: Request) -> None:
        name = request.spec.get("deviceClassName", "")
        if name not in self.classes:
            raise Abort(Refusal(f"there is no DeviceClass {name!r}", f"{request.path}.deviceClassName", "class"))
        try:
            request.read(class_selectors(self.classes, request.spec), self.cache.suitability_key)
        except Unsupported as error:
            raise Abort(Refusal(str(error), request.path, "error")) from error
        if request.spec.get("allocationMode", "ExactCount") != "All":
            request.count = int(request.spec.get("count") or 1)  # the server treats 0 as not set
            return
        positions = []
        for position, offer in enumerate(self.offers):
            if not offer.possible and self.selectable(request, position):
                if self.room(request, position, fresh=True):
                    positions.append(position)
        request.all_devices = positions
        request.count = len(positions)

    def selectable(self, request: Request, position: int) -> bool:
        """Whether a request selects a device, in an optimistic search also if it may. Raises Abort."""
        verdict = self.verdict(request, position)
        return verdict == YES or (verdict == MAYBE and self.optimistic)

    def verdict(self, request: Request, position: int) -> str:
        """Whether the class and the request select a device: YES, NO or MAYBE. Raises Abort."""
        verdict = YES
        for path, expression in request.texts:
            match = self.match(expression, position, path)
            if match == NO:
                return NO
            if match == MAYBE:
                verdict = MAYBE
        return verdict

    def match(self, expression: str, position: int, path: str) -> str:
        """Whether one selector matches a device: YES, NO or MAYBE. Raises Abort."""
        verdict = self.judge(expression, position)
        if verdict == FAILS:
            error = self.selection.error(expression, self.offers[position])
            driver, _pool, device = self.ids[position]
            reason = f"the selector fails on device {device} of {driver}, so scheduling of the pod fails: "
            raise Abort(Refusal(reason + str(error), path, "error"))
        return verdict

    def judge(self, expression: str, position: int) -> str:
        """Whether one selector matches a device: YES, NO, MAYBE or FAILS."""
        return self.selection.judge(expression, self.offers[position])

    def room(self, request: Request, position: int, fresh: bool = False) -> bool:
        """Whether the device has enough capacity left for the request. Raises Abort."""
        requested = request.amounts
        if not requested and self.plain[position]:
            return True  # the request gets the whole device
        offer = self.offers[position]
        capacity = offer.device.get("capacity") or {}
        missing = [name for name in requested if name not in capacity]
        if missing:
            unknown = all((name if "/" in name else f"{offer.driver}/{name}") in offer.unknown for name in missing)
            return unknown and self.optimistic
        consumed = self.consumed_capacity(request, position)
        if not consumed.allowed:
            return False
        if fresh:
            return all(total <= consumed.limits[name] for name, total in consumed.amounts.items())
        shares, sharing = self.held_amounts.get(self.ids[position], {}), self.taken_amounts.get(position, {})
        return all(
            total + shares.get(name, 0) + sharing.get(name, 0) <= consumed.limits[name]
            for name, total in consumed.amounts.items()
        )

    def consumed_capacity(self, request: Request, position: int) -> ConsumedCapacity:
        """The amounts that the request consumes of the device, computed once. Raises Abort."""
        key = (request.suitability_key, position)
        if key not in self._consumed_capacities:
            capacity = self.offers[position].device.get("capacity") or {}
            consumed = self._consumed(request, capacity)
            self._consumed_capacities[key] = ConsumedCapacity(
                {name: whole(value) for name, value in consumed.items()},
                {name: quantity.canonical(value) for name, value in consumed.items()}
                if self.multiple[position]
                else {},
                {name: amount(capacity[name]["value"]) for name in consumed},
                not any(
                    amounts.violates(value, capacity[name].get("requestPolicy") or {})
                    for name, value in consumed.items()
                ),
            )
        return self._consumed_capacities[key]

    def _consumed(self, request: Request, capacity: ObjectView) -> dict[str, Fraction]:
        """The amount of each capacity of a device that the request consumes. Raises Abort."""
        consumed = {}
        for name, entry in capacity.items():
            try:
                consumed[name] = amounts.consumed(request.amounts.get(name), entry)
            except amounts.Unrepresentable as error:
                path = f"{request.path}.capacity.requests.{name}"
                raise Abort(Refusal(f"capacity {name}: {error}", path, "error")) from error
        return consumed

    def has_room(self, request: Request, position: int, fresh: bool = False) -> bool:
        """Like `room`, but False where `room` raises Abort."""
        try:
            return self.room(request, position, fresh)
        except Abort:
            return False

    def shortages(self, request: Request, position: int) -> dict[str, Amount]:
        """The capacities of a shared device of which too little remains for the request, with the remaining amounts."""
        identity = self.ids[position]
        if identity not in self.held_amounts or not self.has_room(request, position, fresh=True):
            return {}
        consumed, used = self.consumed_capacity(request, position), self.held_amounts[identity]
        remaining = {name: consumed.limits[name] - used.get(name, 0) for name in consumed.amounts}
        return {name: rest for name, rest in remaining.items() if consumed.amounts[name] > rest}

    def candidates_of(self, request: Request) -> list[tuple[int, bool]]:
        """The positions of the devices that fit a request unless they are in use, each with whether to check it again.

        Devices must be checked again if they can be shared, or if checking them ends the search with an error.
        """
        if request.suitability_key not in self.candidates:
            candidates = self._suitable(request).candidates
            self.candidates[request.suitability_key] = [
                candidate for candidate in candidates if request.admin or self.ids[candidate[0]] not in self.held
            ]
        return self.candidates[request.suitability_key]

    def _suitable(self, request: Request) -> SuitableDevices:
        """The devices that a request selects, whether or not they are in use."""
        key = (request.suitability_key, self.optimistic)
        if key not in self.cache.suitability.devices:
            positions, candidates, fails = [], [], False
            for position, offer in enumerate(self.offers):
                try:
                    if not self.selectable(request, position):
                        continue
                except Abort:
                    fails = True
                    candidates.append((position, True))
                    continue
                if tolerates_taints(request.spec, offer):
                    positions.append(position)
                recheck = self._needs_recheck(request, position)
                if recheck is not None:
                    candidates.append((position, recheck))
            self.cache.suitability.devices[key] = SuitableDevices(tuple(positions), fails, tuple(candidates))
        return self.cache.suitability.devices[key]

    def _needs_recheck(self, request: Request, position: int) -> bool | None:
        """Whether a selected device has to be checked again; None if it does not fit."""
        try:
            if not self.room(request, position, fresh=True):
                return None
        except Abort:
            return True
        return self.multiple[position] if tolerates_taints(request.spec, self.offers[position]) else None

    def fit(self, row: list[Request]) -> list[int]:
        """The positions of the devices that fit any alternative of a request; `failed` is set if there are errors."""
        positions: set[int] = set()
        for request in row:
            if request.suitability_key not in self.fitting:
                failed_before, self.failed = self.failed, False
                suitable = self._suitable(request)
                self.failed = suitable.fails
                fits = [position for position in suitable.positions if self._free(request, position)]
                self.fitting[request.suitability_key] = (fits, self.failed)
                self.failed = failed_before
            fits, failed = self.fitting[request.suitability_key]
            self.failed = self.failed or failed
            positions.update(fits)
        return sorted(positions)

    def fits(self, request: Request, position: int) -> bool:
        """Whether a device fits a request on its own; `failed` is set if there are errors."""
        suitable = self._suitable(request)
        self.failed = self.failed or suitable.fails
        return position in suitable.positions and self._free(request, position)

    def _free(self, request: Request, position: int) -> bool:
        """Whether a suitable device is free and has room for the request; `failed` is set if there are errors."""
        try:
            return (request.admin or self.ids[position] not in self.held) and self.room(request, position)
        except Abort:
            self.failed = True
            return False

    def is_doubtful(self) -> bool:
        """Whether an optimistic search has more candidates: devices that may match, or may exist."""
        try:
            self.prepare()
        except Abort:
            return False
        distinct = {request.suitability_key: request for rows in self.requests for row in rows for request in row}
        doubtful = any(self._is_doubtful(request) for request in distinct.values())
        self.requests, self.constraints = [], []
        return doubtful

    def _is_doubtful(self, request: Request) -> bool:
        """Whether an optimistic search has more candidates for a request; cached."""
        known = self.cache.suitability.has_uncertain_devices
        if request.suitability_key not in known:
            known[request.suitability_key] = self._has_uncertain_devices(request)
        return known[request.suitability_key]

    def _has_uncertain_devices(self, request: Request) -> bool:
        for position, offer in enumerate(self.offers):
            try:
                verdict = self.verdict(request, position)
            except Abort:
                continue
            if verdict == MAYBE or (verdict == YES and offer.possible):
                return True
            if verdict == YES and any(name not in (offer.device.get("capacity") or {}) for name in request.amounts):
                return True
        return False

    def uncertain_part(self, allocation: Allocation) -> tuple[str, str]:
        """The path of the claim part for which an optimistic allocation depends on unknown values, and the reason."""
        by_name = {(request.key[0], request.name): request for rows in self.requests for row in rows for request in row}
        for result in allocation.results:
            request = by_name[result.claim, result.request]
            for path, expression in request.texts:
                self.selection.judge(expression, result.offer)
                names = self.selection.unknown_values.get((expression, id(result.offer)), set())
                if names:
                    return (
                        path if path.startswith("claims") else request.path,
                        f"request {request.name}: whether devices of {result.offer.driver} match is unknown before "
                        f"the driver runs: a probe does not report {', '.join(sorted(names))}",
                    )
            if result.offer.possible:
                return (
                    request.path,
                    f"request {request.name}: a probe does not report whether GPUs of {result.offer.driver} are "
                    "partitioned",
                )
        for result in allocation.results:
            if by_name[result.claim, result.request].amounts:
                request = by_name[result.claim, result.request]
                return (
                    f"{request.path}.capacity",
                    f"request {request.name}: a probe does not report a capacity of {result.offer.driver}",
                )
        return "claims", "the result depends on values that a probe does not report"
