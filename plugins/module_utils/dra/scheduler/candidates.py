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
from . import capacity as amounts
from .answers import Abort, Allocation, Refusal, Result
from .node_cache import NodeCache, Suitable
from .node_devices import NodeDevices
from .search_devices import Amount, Spec, Taking, amount, tolerated, whole
from .search_requests import CONSTRAINTS, Constraint, Request, Unsupported, class_selectors
from .search_selection import FAILS, MAYBE, NO, YES


@dataclass
class Question:
    """The input of a search: the claims of a pod, and the devices of a node."""

    claims: t.Sequence[Spec]
    classes: t.Mapping[str, Spec]
    cache: NodeCache
    held: list[Result]
    budget: int  # devices that the search examines before it gives up
    kinds: t.Sequence[str] = CONSTRAINTS  # the kinds of constraints that the scheduler supports


class Candidates(NodeDevices):
    """The requests of a pod, and the devices of a node that fit each.

    An `optimistic` search treats devices that may match as matching, and devices that may exist as existing.
    """

    def __init__(self, question: Question, optimistic: bool = False) -> None:
        super().__init__(question.cache.layout(optimistic), question.held, len(question.claims))
        self.claims = question.claims
        self.classes = question.classes
        self.kinds = question.kinds
        self.cache, self.selection = question.cache, question.cache.selection
        self.optimistic = optimistic
        self.failed = False
        self.requests: list[list[list[Request]]] = []
        self.constraints: list[list[Constraint]] = []
        # by `Request.ask`
        self.candidates: dict[str, list[tuple[int, bool]]] = {}
        self.fitting: dict[str, tuple[list[int], bool]] = {}
        self._takings: dict[tuple[str, int], Taking] = {}

    def prepare(self) -> None:
        """Read the claims. Raises Abort."""
        for index, claim in enumerate(self.claims):
            devices = claim["devices"]
            rows: list[list[Request]] = []
            least = 0
            for number, request in enumerate(devices.get("requests") or ()):
                row = Request.row(index, number, request)
                for one in row:
                    self._prepare(one)
                rows.append(row)
                least += min(one.count for one in row)
                if least > limits.ALLOCATION_RESULTS:
                    most = f"{limits.ALLOCATION_RESULTS} devices, the most that one claim can get"
                    path = f"claims[{index}].spec.devices.requests[{number}]"
                    raise Abort(Refusal(f"the claim asks for more than {most}", path, "limit"))
            self.requests.append(rows)
            self.constraints.append(self._constraints(index, devices.get("constraints") or ()))
            for row in rows:
                for one in row:
                    one.rules = [rule for rule in self.constraints[index] if rule.covers(one)]

    def _constraints(self, index: int, entries: t.Sequence[Spec]) -> list[Constraint]:
        found = []
        for number, entry in enumerate(entries):
            path = f"claims[{index}].spec.devices.constraints[{number}]"
            try:
                found.append(Constraint.read(entry, path, self.kinds))
            except Unsupported as error:
                raise Abort(Refusal(str(error), path, "error")) from error
        return found

    def _prepare(self, request: Request) -> None:
        name = request.spec.get("deviceClassName", "")
        if name not in self.classes:
            raise Abort(Refusal(f"there is no DeviceClass {name!r}", f"{request.path}.deviceClassName", "class"))
        try:
            request.read(class_selectors(self.classes, request.spec), self.cache.ask)
        except Unsupported as error:
            raise Abort(Refusal(str(error), request.path, "error")) from error
        if request.spec.get("allocationMode", "ExactCount") != "All":
            request.count = int(request.spec.get("count") or 1)  # the server treats 0 as not set
            return
        found = []
        for position, offer in enumerate(self.offers):
            if not offer.possible and self.selectable(request, position):
                if self.room(request, position, fresh=True):
                    found.append(position)
        request.all_devices = found
        request.count = len(found)

    def selectable(self, request: Request, position: int) -> bool:
        verdict = self.verdict(request, position)
        return verdict == YES or (verdict == MAYBE and self.optimistic)

    def verdict(self, request: Request, position: int) -> str:
        """Whether the class and the request select a device: yes, no, or maybe. Raises Abort."""
        verdict = YES
        for where, expression in request.texts:
            one = self.match(expression, position, where)
            if one == NO:
                return NO
            if one == MAYBE:
                verdict = MAYBE
        return verdict

    def match(self, expression: str, position: int, where: str) -> str:
        """Whether one selector matches a device: YES, NO or MAYBE. Raises Abort."""
        verdict = self.judge(expression, position)
        if verdict == FAILS:
            error = self.selection.error(expression, self.offers[position])
            driver, _pool, device = self.ids[position]
            reason = f"the selector fails on device {device} of {driver}, so scheduling of the pod fails: "
            raise Abort(Refusal(reason + str(error), where, "error"))
        return verdict

    def judge(self, expression: str, position: int) -> str:
        """Whether one selector matches a device: YES, NO, MAYBE or FAILS."""
        return self.selection.judge(expression, self.offers[position])

    def room(self, request: Request, position: int, fresh: bool = False) -> bool:
        """Whether the device has enough capacity left for the request. Raises Abort."""
        wanted = request.amounts
        if not wanted and self.plain[position]:
            return True  # the request gets all of the device
        offer = self.offers[position]
        capacity = offer.device.get("capacity") or {}
        missing = [name for name in wanted if name not in capacity]
        if missing:
            unknown = all((name if "/" in name else f"{offer.driver}/{name}") in offer.unknown for name in missing)
            return unknown and self.optimistic
        taking = self.taking(request, position)
        if not taking.allowed:
            return False
        if fresh:
            return all(total <= taking.limits[name] for name, total in taking.amounts.items())
        shares, sharing = self.shares.get(self.ids[position], {}), self.sharing.get(position, {})
        return all(
            total + shares.get(name, 0) + sharing.get(name, 0) <= taking.limits[name]
            for name, total in taking.amounts.items()
        )

    def taking(self, request: Request, position: int) -> Taking:
        """The amounts that the request takes from the device, computed once. Raises Abort."""
        key = (request.ask, position)
        if key not in self._takings:
            capacity = self.offers[position].device.get("capacity") or {}
            taken = self._consumed(request, capacity)
            self._takings[key] = Taking(
                {name: whole(value) for name, value in taken.items()},
                {name: quantity.canonical(value) for name, value in taken.items()} if self.multiple[position] else {},
                {name: amount(capacity[name]["value"]) for name in taken},
                not any(
                    amounts.violates(value, capacity[name].get("requestPolicy") or {}) for name, value in taken.items()
                ),
            )
        return self._takings[key]

    def _consumed(self, request: Request, capacity: Spec) -> dict[str, Fraction]:
        """The amount of each capacity of a device that the request takes. Raises Abort."""
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
        """The capacities of a shared device of which too little is left for the request, with the rest of each."""
        identity = self.ids[position]
        if identity not in self.shares or not self.has_room(request, position, fresh=True):
            return {}
        taking, used = self.taking(request, position), self.shares[identity]
        left = {name: taking.limits[name] - used.get(name, 0) for name in taking.amounts}
        return {name: rest for name, rest in left.items() if taking.amounts[name] > rest}

    def candidates_of(self, request: Request) -> list[tuple[int, bool]]:
        """The positions of the devices that fit a request unless they are in use, each with whether to check it again.

        Devices must be checked again if they can be shared, or if checking them ends the search with an error.
        """
        if request.ask not in self.candidates:
            found = self._suitable(request).candidates
            self.candidates[request.ask] = [one for one in found if request.admin or self.ids[one[0]] not in self.held]
        return self.candidates[request.ask]

    def _suitable(self, request: Request) -> Suitable:
        """The devices that a request selects, in use or not."""
        key = (request.ask, self.optimistic)
        if key not in self.cache.verdicts.suitable:
            positions, candidates, fails = [], [], False
            for position, offer in enumerate(self.offers):
                try:
                    if not self.selectable(request, position):
                        continue
                except Abort:
                    fails = True
                    candidates.append((position, True))
                    continue
                if tolerated(request.spec, offer):
                    positions.append(position)
                again = self._needs_recheck(request, position)
                if again is not None:
                    candidates.append((position, again))
            self.cache.verdicts.suitable[key] = Suitable(tuple(positions), fails, tuple(candidates))
        return self.cache.verdicts.suitable[key]

    def _needs_recheck(self, request: Request, position: int) -> bool | None:
        """Whether a selected device has to be checked again; None if it does not fit."""
        try:
            if not self.room(request, position, fresh=True):
                return None
        except Abort:
            return True
        return self.multiple[position] if tolerated(request.spec, self.offers[position]) else None

    def fit(self, row: list[Request]) -> list[int]:
        """The positions of the devices that fit any alternative of a request; `failed` is set if there are errors."""
        found: set[int] = set()
        for request in row:
            if request.ask not in self.fitting:
                before, self.failed = self.failed, False
                suitable = self._suitable(request)
                self.failed = suitable.fails
                fits = [position for position in suitable.positions if self._free(request, position)]
                self.fitting[request.ask] = (fits, self.failed)
                self.failed = before
            fits, failed = self.fitting[request.ask]
            self.failed = self.failed or failed
            found.update(fits)
        return sorted(found)

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
        different = {one.ask: one for rows in self.requests for row in rows for one in row}
        found = any(self._is_doubtful(one) for one in different.values())
        self.requests, self.constraints = [], []
        return found

    def _is_doubtful(self, request: Request) -> bool:
        known = self.cache.verdicts.uncertain
        if request.ask not in known:
            known[request.ask] = self._has_uncertain_devices(request)
        return known[request.ask]

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
        by_name = {(one.key[0], one.name): one for rows in self.requests for row in rows for one in row}
        for result in allocation.results:
            request = by_name[result.claim, result.request]
            for where, expression in request.texts:
                self.selection.judge(expression, result.offer)
                names = self.selection.unknown_values.get((expression, id(result.offer)), set())
                if names:
                    return (
                        where if where.startswith("claims") else request.path,
                        f"request {request.name}: whether devices of {result.offer.driver} match is unknown before "
                        f"the driver runs: a probe does not see {', '.join(sorted(names))}",
                    )
            if result.offer.possible:
                return (
                    request.path,
                    f"request {request.name}: a probe does not see whether GPUs of {result.offer.driver} are "
                    "partitioned",
                )
        for result in allocation.results:
            if by_name[result.claim, result.request].amounts:
                request = by_name[result.claim, result.request]
                return (
                    f"{request.path}.capacity",
                    f"request {request.name}: a probe does not see a capacity of {result.offer.driver}",
                )
        return "claims", "the result depends on values that a probe does not see"
