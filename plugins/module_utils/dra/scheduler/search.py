# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The search for devices of kube-scheduler 1.37 with its default features.

It is that of k8s.io/dynamic-resource-allocation/structured/internal/incubating: depth first, the first fit wins, over
claims, their requests and the devices in the order of their drivers, pools and slices. What is left to do in a state
that was seen to fail before is not tried again, which the scheduler does: it is only counted.
"""

from __future__ import annotations

import typing as t
from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction

from ..kube import limits, quantity
from ..vendors.offers import Offer
from . import capacity as amounts
from .search_bounds import hopeless, too_few
from .search_devices import CounterId, DeviceId, Spec, comparable, consumption, identify, tolerated
from .search_memory import Failures
from .search_requests import CONSTRAINTS, Constraint, Request, Unsupported, class_selectors
from .search_selection import FAILS, MAYBE, NO, YES, Selection

#: Looks at devices after which failed states are kept: before that it is quicker to look again.
_LONG = 200


@dataclass(frozen=True)
class Result:
    """One device given to one request (C(name), or C(name/subrequest)) of the claim at C(claim)."""

    claim: int
    request: str
    offer: Offer
    admin: bool = False
    consumed: t.Mapping[str, str] = field(default_factory=dict)  # capacity: quantity, of a device that is shared

    @property
    def id(self) -> DeviceId:
        return identify(self.offer)


@dataclass(frozen=True)
class Allocation:
    """The devices that the scheduler would pick, in the order of requests.

    C(assumed) are qualified attributes that a selector found in the value that the probe takes for likely. C(steps)
    counts devices looked at.
    """

    results: tuple[Result, ...]
    assumed: tuple[str, ...] = ()
    steps: int = 0

    def of(self, claim: int, request: str) -> list[Result]:
        """The results of a request, or of whichever of its alternatives was taken."""
        return [one for one in self.results if one.claim == claim and one.request.partition("/")[0] == request]


@dataclass(frozen=True)
class Refusal:
    """Why there is no allocation. C(path) is the part of the claims to look at.

    C(kind) is class (no such DeviceClass), limit (more than 32 devices), absent (the driver publishes nothing here),
    selector, capacity, taint, used, count (each fits, all together do not), constraint, error (a selector or rule that
    makes the scheduler give up the pod), unknown (the probe cannot tell) or budget (not decided).
    """

    reason: str
    path: str
    kind: str
    steps: int = 0

    @property
    def unknown(self) -> bool:
        """Whether this is no answer: the claim may be satisfiable."""
        return self.kind in ("unknown", "budget")


@dataclass
class Basis:
    """What every search is about."""

    claims: t.Sequence[Spec]
    classes: t.Mapping[str, Spec]
    offers: list[Offer]
    selection: Selection
    held: list[Result]
    budget: int  # looks at devices before it gives up
    kinds: t.Sequence[str] = CONSTRAINTS  # of constraints that the scheduler knows


class _TooMany(Exception):
    """More than 32 devices in a claim: what comes before in the claim cannot help."""


class Abort(Exception):
    """The scheduler gives up the pod."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Search:
    """One run of the search. An C(optimist) takes what may match for a match.

    C(steps) counts the looks at devices that the scheduler needs, C(looks) those that were needed here.
    """

    def __init__(self, basis: Basis, optimist: bool = False) -> None:
        self.claims = basis.claims
        self.classes = basis.classes
        self.budget = basis.budget
        self.kinds = basis.kinds
        self.optimist = optimist
        self.failed = False
        self.steps = 0
        self.looks = 0
        shown = [offer for offer in basis.offers if optimist or not offer.possible]
        # pools by driver and name, those with binding conditions last; sorting keeps the order of devices in a pool
        binding = {offer[:2] for offer in map(_pool_of, shown) if offer[2]}
        self.offers = sorted(shown, key=lambda o: ((o.driver, o.pool) in binding, o.driver, o.pool))
        self.ids = [identify(offer) for offer in self.offers]
        self.multiple = [bool(offer.device.get("allowMultipleAllocations")) for offer in self.offers]
        self.consumption = [list(consumption(offer)) for offer in self.offers]
        self.requests: list[list[list[Request]]] = []
        self.constraints: list[list[Constraint]] = []
        self.results: list[list[Result]] = [[] for _claim in self.claims]
        self.selection = basis.selection
        self.columns: dict[tuple[str, int], t.Any] = {}  # attribute of a device, as constraints compare it
        # by what is asked of a device
        self.candidates: dict[str, list[tuple[int, bool]]] = {}
        self.fitting: dict[str, tuple[list[int], bool]] = {}
        # what is taken already
        self.held: set[DeviceId] = set()
        self.shares: dict[DeviceId, dict[str, Fraction]] = {}
        self._take_held(basis.held)
        # what this search takes: positions as bits of a number, for each claim
        self.taken = [0] * len(self.claims)
        self.sharing: dict[int, dict[str, Fraction]] = {}
        self.sharers: dict[int, int] = {}
        self.available = self._counters()
        self.counted: dict[CounterId, Fraction] = {}
        self.overdrawn = {key[:2] for key, left in self.available.items() if left < 0}
        self.failures: Failures | None = None
        self.exceeded = 0  # how often there were too many devices for a claim

    def _take_held(self, held: t.Sequence[Result]) -> None:
        for one in held:
            if one.admin:
                continue
            if one.offer.device.get("allowMultipleAllocations"):
                share = self.shares.setdefault(one.id, {})
                for name, value in one.consumed.items():
                    share[name] = share.get(name, Fraction()) + quantity.parse(value)
            else:
                self.held.add(one.id)

    def _counters(self) -> dict[CounterId, Fraction]:
        """What is left of each counter, by driver, pool, set and name."""
        left: dict[CounterId, Fraction] = {}
        for offer in self.offers:
            for entry in offer.counter_sets:
                for name, counter in entry["counters"].items():
                    left[offer.driver, offer.pool, entry["name"], name] = quantity.parse(counter["value"])
        for identity, counters in zip(self.ids, self.consumption):
            if identity in self.held or identity in self.shares:
                for key, value in counters:
                    if key in left:
                        left[key] -= value
        return left

    # --- before the search

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
            request.read(class_selectors(self.classes, request.spec))
        except Unsupported as error:
            raise Abort(Refusal(str(error), request.path, "error")) from error
        if request.spec.get("allocationMode", "ExactCount") != "All":
            request.count = int(request.spec.get("count") or 1)  # the server takes 0 for a count that is left out
            return
        found = []
        for position, offer in enumerate(self.offers):
            if not offer.possible and self.selectable(request, position):
                if self.room(request, position, fresh=True):
                    found.append(position)
        request.all = found
        request.count = len(found)

    # --- selectors

    def selectable(self, request: Request, position: int) -> bool:
        verdict = self.verdict(request, position)
        return verdict == YES or (verdict == MAYBE and self.optimist)

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
        """What one selector says of a device: YES, NO or MAYBE. Raises Abort."""
        verdict = self.judge(expression, position)
        if verdict == FAILS:
            error = self.selection.error(expression, self.offers[position])
            driver, _pool, device = self.ids[position]
            reason = f"the selector fails on device {device} of {driver}, which ends the scheduling of the pod: "
            raise Abort(Refusal(reason + str(error), where, "error"))
        return verdict

    def judge(self, expression: str, position: int) -> str:
        """What one selector says of a device: YES, NO, MAYBE or FAILS."""
        return self.selection.judge(expression, self.offers[position])

    # --- capacity

    def room(self, request: Request, position: int, fresh: bool = False) -> bool:
        """Whether the device has the capacity that is left to ask for. Raises Abort."""
        offer = self.offers[position]
        capacity = offer.device.get("capacity") or {}
        wanted = request.amounts
        if not wanted and not self.multiple[position]:
            if not any(entry.get("requestPolicy") for entry in capacity.values()):
                return True  # it takes all that there is
        missing = [name for name in wanted if name not in capacity]
        if missing:
            unknown = all((name if "/" in name else f"{offer.driver}/{name}") in offer.unknown for name in missing)
            return unknown and self.optimist
        shares, sharing = self.shares.get(self.ids[position], {}), self.sharing.get(position, {})
        for name, total in self._consumed(request, position).items():
            entry = capacity[name]
            if amounts.violates(total, entry.get("requestPolicy") or {}):
                return False
            if not fresh:
                total += shares.get(name, 0) + sharing.get(name, 0)
            if total > quantity.parse(entry["value"]):
                return False
        return True

    def _consumed(self, request: Request, position: int) -> dict[str, Fraction]:
        """By capacity, what the request takes of the device. Raises Abort."""
        consumed = {}
        for name, entry in (self.offers[position].device.get("capacity") or {}).items():
            try:
                consumed[name] = amounts.consumed(request.amounts.get(name), entry)
            except amounts.Unrepresentable as error:
                path = f"{request.path}.capacity.requests.{name}"
                raise Abort(Refusal(f"capacity {name}: {error}", path, "error")) from error
        return consumed

    # --- one device

    def take(self, request: Request, position: int, must: bool) -> t.Callable[[], None] | None:
        """Give a device to the request, if it is free and fits. Returns what undoes it. Raises Abort."""
        claim = request.key[0]
        if self._busy(request, position):
            return None
        counters: list[tuple[CounterId, Fraction]] = []
        if not (self.multiple[position] and (self.ids[position] in self.shares or position in self.sharers)):
            counters = self.consumption[position]
        for key, value in counters:
            self.counted[key] = self.counted.get(key, Fraction()) + value
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
            self._share(request, position, self._consumed(request, position))
        else:
            undo()
            return None

        def back() -> None:
            self.results[claim].pop()
            if self.multiple[position]:
                self._unshare(position, self._consumed(request, position))
            else:
                self.taken[claim] &= ~(1 << position)
            undo()

        return back

    def _busy(self, request: Request, position: int) -> bool:
        if request.admin:
            return bool(self.taken[request.key[0]] >> position & 1)
        return self.ids[position] in self.held or any(taken >> position & 1 for taken in self.taken)

    def _within(self, position: int, counters: list[tuple[CounterId, Fraction]]) -> bool:
        """Whether the pool's counters suffice for what is counted."""
        return self.ids[position][:2] not in self.overdrawn and all(
            self.counted[key] <= self.available.get(key, self.counted[key]) for key, _value in counters
        )

    def _forced(self, request: Request, position: int, constraint: Constraint) -> Refusal:
        driver, _pool, device = self.ids[position]
        reason = (
            f"request {request.name} asks for all devices, and device {device} of {driver} does not satisfy a "
            f"constraint on {constraint.attribute}, which ends the scheduling of the pod"
        )
        return Refusal(reason, constraint.path, "error")

    def _share(self, request: Request, position: int, consumed: dict[str, Fraction]) -> None:
        sharing = self.sharing.setdefault(position, {})
        for name, value in consumed.items():
            sharing[name] = sharing.get(name, Fraction()) + value
        self.sharers[position] = self.sharers.get(position, 0) + 1
        forms = {name: quantity.canonical(value) for name, value in consumed.items()}
        claim = request.key[0]
        self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin, forms))

    def _unshare(self, position: int, consumed: dict[str, Fraction]) -> None:
        for name, value in consumed.items():
            self.sharing[position][name] -= value
        self.sharers[position] -= 1
        if not self.sharers[position]:
            del self.sharers[position]

    def column(self, name: str, position: int) -> t.Any:
        """A device's attribute as constraints compare it."""
        key = (name, position)
        if key not in self.columns:
            self.columns[key] = comparable(self.offers[position], name)
        return self.columns[key]

    def worth(self, request: Request) -> list[tuple[int, bool]]:
        """The positions of the devices that fit a request unless they are taken, and whether to look again to be sure.

        To be looked at again are devices that can be shared, and those that end the search when it comes to them.
        """
        if request.ask not in self.candidates:
            found = self.candidates[request.ask] = []
            for position, offer in enumerate(self.offers):
                if not request.admin and self.ids[position] in self.held:
                    continue
                try:
                    if not self.selectable(request, position) or not self.room(request, position, fresh=True):
                        continue
                except Abort:
                    found.append((position, True))
                    continue
                if tolerated(request.spec, offer):
                    found.append((position, self.multiple[position]))
        return self.candidates[request.ask]

    # --- the depth-first search

    def run(self) -> Allocation | Refusal:
        """The scheduler's answer; kind budget where it takes too many looks."""
        try:
            self.prepare()
            # a node that has too few devices is told from one that has enough without a search
            found = not self._short() and self._claim(0)
        except Abort as abort:
            return Refusal(abort.refusal.reason, abort.refusal.path, abort.refusal.kind, self.steps)
        except _TooMany:
            found = False
        if not found:
            return Refusal("no devices satisfy the claims", "claims", "count", self.steps)
        results = tuple(result for row in self.results for result in row)
        return Allocation(results, tuple(sorted(self._assumptions(results))), self.steps)

    def _short(self) -> bool:
        """Whether counting shows that there is no allocation, and nothing that the scheduler would end with before."""
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
            for _where, expression in by_name[result.claim, result.request].texts:
                found |= self.selection.assumed.get((expression, id(result.offer)), set())
        return found

    def doubtful(self) -> bool:
        """Whether an optimist sees more than others: candidates that may match, or may be there."""
        try:
            self.prepare()
        except Abort:
            return False
        different = {one.ask: one for rows in self.requests for row in rows for one in row}
        found = any(self._doubtful(one) for one in different.values())
        self.requests, self.constraints = [], []
        return found

    def _doubtful(self, request: Request) -> bool:
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

    def fit(self, row: list[Request]) -> list[int]:
        """The positions of the devices that fit any alternative of a request; C(failed) tells of errors."""
        found: set[int] = set()
        for request in row:
            if request.ask not in self.fitting:
                before, self.failed = self.failed, False
                fits = [position for position in range(len(self.offers)) if self.fits(request, position)]
                self.fitting[request.ask] = (fits, self.failed)
                self.failed = before
            fits, failed = self.fitting[request.ask]
            self.failed = self.failed or failed
            found.update(fits)
        return sorted(found)

    def fits(self, request: Request, position: int) -> bool:
        """Whether a device could be given to a request if nothing else were asked for; C(failed) tells of errors."""
        offer = self.offers[position]
        try:
            return (
                self.selectable(request, position)
                and tolerated(request.spec, offer)
                and (request.admin or self.ids[position] not in self.held)
                and self.room(request, position)
            )
        except Abort:
            self.failed = True
            return False

    def doubts(self, allocation: Allocation) -> tuple[str, str]:
        """Where an optimist's allocation rests on what is not known: path and reason."""
        by_name = {(one.key[0], one.name): one for rows in self.requests for row in rows for one in row}
        for result in allocation.results:
            request = by_name[result.claim, result.request]
            for where, expression in request.texts:
                names = self.selection.wondered.get((expression, id(result.offer)), set())
                if names:
                    return (
                        where if where.startswith("claims") else request.path,
                        f"request {request.name}: whether devices of {result.offer.driver} match cannot be told before "
                        f"the driver runs: {', '.join(sorted(names))} is not seen by a probe",
                    )
            if result.offer.possible:
                return (
                    request.path,
                    f"request {request.name}: whether GPUs of {result.offer.driver} are partitioned is not seen by a "
                    "probe",
                )
        for result in allocation.results:
            if by_name[result.claim, result.request].amounts:
                request = by_name[result.claim, result.request]
                return (
                    f"{request.path}.capacity",
                    f"request {request.name}: a capacity of {result.offer.driver} is not seen by a probe",
                )
        return "claims", "the answer rests on what a probe does not see"

    def has_room(self, request: Request, position: int, fresh: bool = False) -> bool:
        """As M(room); no where the scheduler would give up."""
        try:
            return self.room(request, position, fresh)
        except Abort:
            return False

    def _claim(self, claim: int) -> bool:
        if claim >= len(self.requests):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, number: int) -> bool:
        if number >= len(self.requests[claim]):
            try:
                return self._claim(claim + 1)
            except _TooMany:
                self.exceeded += 1
                # an earlier claim may take another alternative, but its devices do not count here
                return False
        row = self.requests[claim][number]
        if not row[0].is_sub:
            return self._device(row[0], 0, 0)
        exceeded = True
        for request in row:
            try:
                if self._device(request, 0, 0):
                    return True
            except _TooMany:
                self.exceeded += 1
                continue
            exceeded = False
        if exceeded:
            raise _TooMany
        return False

    def _device(self, request: Request, number: int, start: int) -> bool:
        claim = request.key[0]
        if request.all is not None and not request.all:
            return False
        if number >= request.count:
            return self._request(claim, request.key[1] + 1)
        if request.count - number > limits.ALLOCATION_RESULTS - len(self.results[claim]):
            raise _TooMany
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
        looked = start  # the scheduler looks at the others too
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
        """The rest of the search below a device that was taken, which is given back where the rest fails."""
        try:
            done = self._device(request, number + 1, start)
        except _TooMany:
            back()
            raise
        if not done:
            back()
        return done

    def _step(self, request: Request, number: int = 1) -> None:
        self.steps += number
        self.looks += 1
        if self.looks > self.budget:
            reason = (
                f"not decided after {self.budget} steps, at request {request.name}: the scheduler, which searches the "
                "same way, may well run into its time limit of ten seconds a node"
            )
            raise Abort(Refusal(reason, request.path, "budget"))


def _pool_of(offer: Offer) -> tuple[str, str, bool]:
    return offer.driver, offer.pool, bool(offer.device.get("bindingConditions"))
