# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The search for devices of kube-scheduler 1.37 with its default features.

It follows k8s.io/dynamic-resource-allocation/structured/internal/incubating: depth first, the first fit wins, over
the claims, their requests, and the devices in the order of drivers, pools and slices. The scheduler may search a state
again that has already failed. This search does not, but it counts the steps of the scheduler.
"""

from __future__ import annotations

import typing as t
from bisect import bisect_left

from ..kube import limits
from .answers import Abort, Allocation, Refusal, Result
from .candidates import Candidates, Question
from .failed_states import FailedStates
from .search_bounds import cannot_match, too_few
from .search_devices import Amount, CounterId, tolerates_taints
from .search_requests import Constraint, Request

#: Failed states are remembered only after this many examined devices: before that, searching again is faster.
_REMEMBER_AFTER = 200


class TooManyDevices(Exception):
    """A claim would get more than 32 devices. Other devices for its earlier requests would not help."""


class Search(Candidates):
    """One run of the search.

    `steps` counts the devices that the scheduler examines, `examined` those that this search examined.
    """

    def __init__(self, question: Question, optimistic: bool = False) -> None:
        super().__init__(question, optimistic)
        self.budget = question.budget
        self.steps = 0
        self.examined = 0
        self.failures: FailedStates | None = None
        self.exceeded = 0  # how often there were too many devices for a claim

    def run(self) -> Allocation | Refusal:
        """The scheduler's result; a Refusal of kind budget if it takes too many steps."""
        try:
            self.prepare()
            # a node with too few devices is detected by counting, without a search
            succeeded = not self._too_few() and self._search()
        except Abort as abort:
            return Refusal(abort.refusal.reason, abort.refusal.path, abort.refusal.kind, self.steps)
        except TooManyDevices:
            self.exceeded += 1
            succeeded = False
        if not succeeded:
            return Refusal("no devices satisfy the claims", "claims", "count", self.steps)
        results = tuple(result for row in self.results for result in row)
        return Allocation(results, tuple(sorted(self._assumptions(results))), self.steps, self.examined)

    def _search(self) -> bool:
        """Whether all claims are satisfied. Each device of the pod needs several calls within each other."""
        try:
            return self._claim(0)
        except RecursionError:
            reason = f"the {len(self.claims)} claims of the pod request more devices than this search can try"
            raise Abort(Refusal(f"not decided: {reason}", "claims", "budget")) from None

    def _too_few(self) -> bool:
        """Whether counting shows that there is no allocation, and that the scheduler would not fail with an error
        first."""
        requests = [request for rows in self.requests for row in rows for request in row]
        if any(request.all_devices is not None and request.rules for request in requests):
            return False  # devices of a request for all may violate a constraint, which is an error
        for request in requests:
            if request.all_devices is None:
                self.fit([request])
        return not self.failed and (bool(too_few(self)) or cannot_match(self))

    def _assumptions(self, results: tuple[Result, ...]) -> set[str]:
        """The attributes for which a likely value was assumed."""
        by_name = {(request.key[0], request.name): request for rows in self.requests for row in rows for request in row}
        attributes: set[str] = set()
        for result in results:
            for _where, expression in by_name[result.claim, result.request].texts if result.offer.assumed else ():
                self.selection.judge(expression, result.offer)
                attributes |= self.selection.assumed.get((expression, id(result.offer)), set())
        return attributes

    def _claim(self, claim: int) -> bool:
        """Search devices for this and the following claims."""
        if claim >= len(self.requests):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, number: int) -> bool:
        """Search devices for this and the following requests."""
        if number >= len(self.requests[claim]):
            try:
                return self._claim(claim + 1)
            except TooManyDevices:
                self.exceeded += 1
                # the limit applies to the devices of one claim, so for this claim it is an ordinary failure
                return False
        row = self.requests[claim][number]
        if not row[0].is_sub:
            return self._device(row[0], 0, 0)
        exceeded = True
        for request in row:
            try:
                if self._device(request, 0, 0):
                    return True
            except TooManyDevices:
                self.exceeded += 1
                continue
            exceeded = False
        if exceeded:
            raise TooManyDevices
        return False

    def _device(self, request: Request, number: int, start: int) -> bool:
        """Search device `number` of a request, from position `start`, and all that follow."""
        claim = request.key[0]
        if request.all_devices is not None and not request.all_devices:
            return False
        if number >= request.count:
            return self._request(claim, request.key[1] + 1)
        if request.count - number > limits.ALLOCATION_RESULTS - len(self.results[claim]):
            raise TooManyDevices
        if self.examined < _REMEMBER_AFTER:
            return self._examine(request, number, start)
        if self.failures is None:
            self.failures = FailedStates(self)
        key = self.failures.key(request, number, start)
        known_steps = self.failures.steps.get(key)
        if known_steps is not None:
            self.steps += known_steps
            return False
        steps_before, exceeded_before = self.steps, self.exceeded
        succeeded = self._examine(request, number, start)
        if not succeeded and self.exceeded == exceeded_before:  # otherwise the result depends on the order of devices
            self.failures.steps[key] = self.steps - steps_before
        return succeeded

    def _examine(self, request: Request, number: int, start: int) -> bool:
        if request.all_devices is not None:
            self._step(request)
            release = self.take(request, request.all_devices[number], must=True)
            return release is not None and self._continue(request, number, 0, release)
        candidates = self.candidates_of(request)
        examined_to = start  # the scheduler also examines devices that are not candidates
        for index in range(bisect_left(candidates, (start, False)), len(candidates)):
            position, recheck = candidates[index]
            self._step(request, position + 1 - examined_to)
            examined_to = position + 1
            if self._busy(request, position):
                continue
            if recheck and not (self.selectable(request, position) and self.room(request, position)):
                continue
            release = self.take(request, position, must=False)
            if release is not None and self._continue(request, number, position + 1, release):
                return True
        self.steps += len(self.offers) - examined_to
        return False

    def _continue(self, request: Request, number: int, start: int, release: t.Callable[[], None]) -> bool:
        """Continue the search after a device was taken; release the device on failure. Returns whether it succeeds."""
        try:
            succeeded = self._device(request, number + 1, start)
        except TooManyDevices:
            release()
            raise
        if not succeeded:
            release()
        return succeeded

    def take(self, request: Request, position: int, must: bool) -> t.Callable[[], None] | None:  # noqa: C901
        """Assign a device to the request, if it is free and fits. Returns a function that undoes this. Raises Abort."""
        claim = request.key[0]
        if self._busy(request, position):
            return None
        counters: list[tuple[CounterId, Amount]] = []
        if not (self.multiple[position] and (self.ids[position] in self.held_amounts or position in self.taken_counts)):
            counters = self.consumption[position]
        for key, value in counters:
            self.counters_taken[key] = self.counters_taken.get(key, 0) + value
        added = 0

        def undo() -> None:
            for constraint in request.rules[:added]:
                constraint.values.pop()
            for key, value in counters:
                self.counters_taken[key] -= value

        if (
            counters
            and not self._within(position, counters)
            or not tolerates_taints(request.spec, self.offers[position])
        ):
            undo()
            return None
        for constraint in request.rules:
            if not constraint.add(self.attribute_value(constraint.attribute, position)):
                undo()
                if must:
                    raise Abort(self._unmet_constraint(request, position, constraint))
                return None
            added += 1
        if not self.multiple[position]:
            self.taken[claim] |= 1 << position
            self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin))
        elif self.room(request, position):
            self._share(request, position, self.consumed_capacity(request, position))
        else:
            undo()
            return None

        def release() -> None:
            self.results[claim].pop()
            if self.multiple[position]:
                self._unshare(position, self.consumed_capacity(request, position))
            else:
                self.taken[claim] &= ~(1 << position)
            undo()

        return release

    def _unmet_constraint(self, request: Request, position: int, constraint: Constraint) -> Refusal:
        driver, _pool, device = self.ids[position]
        reason = (
            f"request {request.name} requests all devices, and device {device} of {driver} does not satisfy a "
            f"constraint on {constraint.attribute}, so scheduling of the pod fails"
        )
        return Refusal(reason, constraint.path, "error")

    def _step(self, request: Request, number: int = 1) -> None:
        """Count an examined device, for which the scheduler examines `number` devices. Raises Abort."""
        self.steps += number
        self.examined += 1
        if self.examined > self.budget:
            reason = (
                f"not decided after {self.budget} steps, at request {request.name}: the scheduler searches in the same "
                "way and may reach its time limit of ten seconds per node"
            )
            raise Abort(Refusal(reason, request.path, "budget"))
