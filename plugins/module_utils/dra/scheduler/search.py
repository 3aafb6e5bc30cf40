# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The search for devices of kube-scheduler 1.37 with its default features.

It is that of k8s.io/dynamic-resource-allocation/structured/internal/incubating: depth first, the first fit wins, over
claims, their requests and the devices in the order of their drivers, pools and slices. The scheduler searches a state
again that has failed before; here that is only counted.
"""

from __future__ import annotations

import typing as t
from bisect import bisect_left

from ..kube import limits
from .answers import Abort, Allocation, Refusal, Result
from .candidates import Candidates, Question
from .search_bounds import hopeless, too_few
from .search_devices import Amount, CounterId, tolerated
from .search_memory import Failures
from .search_requests import Constraint, Request

#: Examined devices after which failed states are remembered: before that, searching again is faster.
_LONG = 200


class TooMany(Exception):
    """More than 32 devices in a claim: other devices for its earlier requests cannot help."""


class Search(Candidates):
    """One run of the search.

    `steps` counts the devices that the scheduler examines, `looks` those that were examined here.
    """

    def __init__(self, question: Question, optimist: bool = False) -> None:
        super().__init__(question, optimist)
        self.budget = question.budget
        self.steps = 0
        self.looks = 0
        self.failures: Failures | None = None
        self.exceeded = 0  # how often there were too many devices for a claim

    def run(self) -> Allocation | Refusal:
        """The scheduler's result; a Refusal of kind budget if it takes too many steps."""
        try:
            self.prepare()
            # counting recognises a node with too few devices without a search
            found = not self._short() and self._claim(0)
        except Abort as abort:
            return Refusal(abort.refusal.reason, abort.refusal.path, abort.refusal.kind, self.steps)
        except TooMany:
            found = False
        if not found:
            return Refusal("no devices satisfy the claims", "claims", "count", self.steps)
        results = tuple(result for row in self.results for result in row)
        return Allocation(results, tuple(sorted(self._assumptions(results))), self.steps, self.looks)

    def _short(self) -> bool:
        """Whether counting shows that there is no allocation, and that the scheduler would not fail with an error
        first."""
        every = [one for rows in self.requests for row in rows for one in row]
        if any(one.all is not None and one.rules for one in every):
            return False  # devices that have to be taken may not satisfy a constraint
        for one in every:
            if one.all is None:
                self.fit([one])
        return not self.failed and (bool(too_few(self)) or hopeless(self))

    def _assumptions(self, results: tuple[Result, ...]) -> set[str]:
        by_name = {(one.key[0], one.name): one for rows in self.requests for row in rows for one in row}
        found: set[str] = set()
        for result in results:
            for _where, expression in by_name[result.claim, result.request].texts if result.offer.assumed else ():
                self.selection.judge(expression, result.offer)
                found |= self.selection.assumed.get((expression, id(result.offer)), set())
        return found

    def _claim(self, claim: int) -> bool:
        if claim >= len(self.requests):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, number: int) -> bool:
        if number >= len(self.requests[claim]):
            try:
                return self._claim(claim + 1)
            except TooMany:
                self.exceeded += 1
                # an earlier claim may take another alternative, but its number of devices does not count here
                return False
        row = self.requests[claim][number]
        if not row[0].is_sub:
            return self._device(row[0], 0, 0)
        exceeded = True
        for request in row:
            try:
                if self._device(request, 0, 0):
                    return True
            except TooMany:
                self.exceeded += 1
                continue
            exceeded = False
        if exceeded:
            raise TooMany
        return False

    def _device(self, request: Request, number: int, start: int) -> bool:
        claim = request.key[0]
        if request.all is not None and not request.all:
            return False
        if number >= request.count:
            return self._request(claim, request.key[1] + 1)
        if request.count - number > limits.ALLOCATION_RESULTS - len(self.results[claim]):
            raise TooMany
        if self.looks < _LONG:
            return self._look(request, number, start)
        if self.failures is None:
            self.failures = Failures(self)
        key = self.failures.key(request, number, start)
        known = self.failures.steps.get(key)
        if known is not None:
            self.steps += known
            return False
        before, exceeded = self.steps, self.exceeded
        done = self._look(request, number, start)
        if not done and self.exceeded == exceeded:  # else it depends on the order of devices
            self.failures.steps[key] = self.steps - before
        return done

    def _look(self, request: Request, number: int, start: int) -> bool:
        if request.all is not None:
            self._step(request)
            back = self.take(request, request.all[number], must=True)
            return back is not None and self._further(request, number, 0, back)
        worth = self.worth(request)
        looked = start  # the scheduler examines the others too
        for index in range(bisect_left(worth, (start, False)), len(worth)):
            position, again = worth[index]
            self._step(request, position + 1 - looked)
            looked = position + 1
            if self._busy(request, position):
                continue
            if again and not (self.selectable(request, position) and self.room(request, position)):
                continue
            back = self.take(request, position, must=False)
            if back is not None and self._further(request, number, position + 1, back):
                return True
        self.steps += len(self.offers) - looked
        return False

    def _further(self, request: Request, number: int, start: int, back: t.Callable[[], None]) -> bool:
        """The rest of the search after a device was taken, which is released if the rest fails."""
        try:
            done = self._device(request, number + 1, start)
        except TooMany:
            back()
            raise
        if not done:
            back()
        return done

    def take(self, request: Request, position: int, must: bool) -> t.Callable[[], None] | None:  # noqa: C901  # one step
        """Give a device to the request, if it is free and fits. Returns the function that undoes it. Raises Abort."""
        claim = request.key[0]
        if self._busy(request, position):
            return None
        counters: list[tuple[CounterId, Amount]] = []
        if not (self.multiple[position] and (self.ids[position] in self.shares or position in self.sharers)):
            counters = self.consumption[position]
        for key, value in counters:
            self.counted[key] = self.counted.get(key, 0) + value
        added = 0

        def undo() -> None:
            for constraint in request.rules[:added]:
                constraint.values.pop()
            for key, value in counters:
                self.counted[key] -= value

        if counters and not self._within(position, counters) or not tolerated(request.spec, self.offers[position]):
            undo()
            return None
        for constraint in request.rules:
            if not constraint.add(self.column(constraint.attribute, position)):
                undo()
                if must:
                    raise Abort(self._forced(request, position, constraint))
                return None
            added += 1
        if not self.multiple[position]:
            self.taken[claim] |= 1 << position
            self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin))
        elif self.room(request, position):
            self._share(request, position, self.taking(request, position))
        else:
            undo()
            return None

        def back() -> None:
            self.results[claim].pop()
            if self.multiple[position]:
                self._unshare(position, self.taking(request, position))
            else:
                self.taken[claim] &= ~(1 << position)
            undo()

        return back

    def _forced(self, request: Request, position: int, constraint: Constraint) -> Refusal:
        driver, _pool, device = self.ids[position]
        reason = (
            f"request {request.name} asks for all devices, and device {device} of {driver} does not satisfy a "
            f"constraint on {constraint.attribute}, so scheduling of the pod fails"
        )
        return Refusal(reason, constraint.path, "error")

    def _step(self, request: Request, number: int = 1) -> None:
        self.steps += number
        self.looks += 1
        if self.looks > self.budget:
            reason = (
                f"not decided after {self.budget} steps, at request {request.name}: the scheduler, which searches the "
                "same way, may reach its time limit of ten seconds per node"
            )
            raise Abort(Refusal(reason, request.path, "budget"))
