# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The search for devices of kube-scheduler 1.37 with its default features.

It is that of k8s.io/dynamic-resource-allocation/structured/internal/incubating: depth first, the first fit wins, over
claims, their requests and the devices in the order of their drivers, pools and slices.
"""

from __future__ import annotations

import json
import typing as t
from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction

from . import limits, quantity
from .cel import EvaluationError, Uncheckable
from .offers import Offer
from .selector_text import conjuncts, mentioned

Spec = t.Mapping[str, t.Any]
DeviceId = tuple[str, str, str]

_BLOCKING = ("NoSchedule", "NoExecute")


class Engine(t.Protocol):
    """What evaluates selectors; L(cel.Engine,) does."""

    def matches(self, expression: str, device: t.Mapping[str, t.Any], driver: str) -> bool: ...


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


class Selection:
    """What selectors say of devices, for all the searches of one question.

    Offers live as long as the question, so that an id stands for one.
    """

    def __init__(self) -> None:
        self.verdicts: dict[tuple[str, int], str | Exception] = {}
        self.assumed: dict[tuple[str, int], frozenset[str]] = {}
        self.wondered: dict[tuple[str, int], set[str]] = {}
        self.columns: dict[tuple[str, int], t.Any] = {}  # attribute of a device, as constraints compare it


@dataclass
class Basis:
    """What every search is about."""

    claims: t.Sequence[Spec]
    classes: t.Mapping[str, Spec]
    offers: list[Offer]
    engine: Engine
    held: list[Result]
    budget: int
    selection: Selection = field(default_factory=Selection)


class _TooMany(Exception):
    """More than 32 devices in a claim: what comes before in the claim cannot help."""


class Abort(Exception):
    """The scheduler gives up the pod."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


@dataclass
class Request:
    """A request, or one of its alternatives, with what the search found out before it began."""

    key: tuple[int, int, int]
    path: str
    base: str
    sub: str
    spec: Spec
    is_sub: bool
    name: str = ""
    admin: bool = False
    count: int = 1
    all: list[int] | None = None  # positions of the devices of mode All
    texts: list[tuple[str, str]] = field(default_factory=list)  # its selectors, each with its path
    rules: list[Constraint] = field(default_factory=list)  # the constraints that cover it
    ask: str = ""  # the same for requests that the same devices fit

    def __post_init__(self) -> None:
        self.name = f"{self.base}/{self.sub}" if self.is_sub else self.base
        self.admin = bool(self.spec.get("adminAccess")) and not self.is_sub

    def read(self, of_class: t.Sequence[t.Any]) -> None:
        """Settle what is asked of a device, with the selectors of the class."""
        name = self.spec["deviceClassName"]
        own = self.spec.get("selectors") or ()
        self.texts = [(f"class {name}", entry["cel"]["expression"]) for entry in of_class]
        self.texts += [
            (f"{self.path}.selectors[{number}]", entry["cel"]["expression"]) for number, entry in enumerate(own)
        ]
        rest = [self.spec.get("capacity"), self.spec.get("tolerations"), self.admin]
        self.ask = json.dumps([[text for _where, text in self.texts], rest], sort_keys=True)


@dataclass
class Constraint:
    """One matchAttribute or distinctAttribute with the values of the devices picked so far."""

    attribute: str
    requests: frozenset[str]
    distinct: bool
    path: str
    values: list[t.Any] = field(default_factory=list)

    def covers(self, request: Request) -> bool:
        return not self.requests or request.base in self.requests or request.name in self.requests

    def add(self, value: t.Any) -> bool:
        """Add the value of a device, as L(comparable,) gives it, unless the constraint forbids it."""
        if value is None:
            return False
        if self.values and value is LIST:
            return False
        if self.distinct:
            if value in self.values:
                return False
        elif self.values and value != self.values[0]:
            return False
        self.values.append(value)
        return True


def attribute(offer: Offer, name: str) -> t.Mapping[str, t.Any] | None:
    """A device's attribute by its qualified name, as constraints look it up."""
    attributes = offer.device.get("attributes") or {}
    if name in attributes:
        return t.cast("t.Mapping[str, t.Any]", attributes[name])
    domain, slash, identifier = name.partition("/")
    if not slash or domain != offer.driver:
        return None
    return t.cast("t.Mapping[str, t.Any] | None", attributes.get(identifier))


_SCALARS = ("string", "int", "bool", "version")


LIST = "list"  #: the value of a list: it equals nothing (gate DRAListTypeAttributes, off by default)


def comparable(offer: Offer, name: str) -> t.Any:
    """A device's attribute as constraints compare it: its type and value, LIST, or None where it is missing."""
    value = attribute(offer, name)
    if value is None:
        return None
    return next(((kind, value[kind]) for kind in _SCALARS if value.get(kind) is not None), LIST)


def identify(offer: Offer) -> DeviceId:
    return (offer.driver, offer.pool, str(offer.device["name"]))


def asked(claim: Spec, index: int) -> t.Iterator[tuple[str, Spec, str]]:
    """Every request and alternative of a claim: its path, its body, and the name of the request."""
    for number, request in enumerate(claim["devices"].get("requests") or ()):
        path = f"claims[{index}].spec.devices.requests[{number}]"
        if request.get("firstAvailable"):
            for position, sub in enumerate(request["firstAvailable"]):
                yield f"{path}.firstAvailable[{position}]", sub, request["name"]
        else:
            yield f"{path}.exactly", request.get("exactly") or {}, request["name"]


def class_selectors(classes: t.Mapping[str, Spec], request: Spec) -> list[t.Any]:
    device_class = classes.get(request.get("deviceClassName", ""))
    return list((device_class or {}).get("spec", {}).get("selectors") or ())


def alike_groups(claim: Spec) -> list[list[list[int]]]:
    """Groups of requests that constraints tie together, gathered where they ask for the same: the repetitions.

    Groups are lists of request numbers. Constraints on all requests tie nothing: they hold for any order.
    """
    requests = claim["devices"].get("requests") or ()
    number = {request["name"]: position for position, request in enumerate(requests)}
    ties = []
    for entry in claim["devices"].get("constraints") or ():
        named = entry.get("requests") or ()
        if named:
            ties.append((entry, [number.get(name.partition("/")[0], -1) for name in named]))
    group = list(range(len(requests)))
    for _entry, members in ties:
        merged = {group[one] for one in members if one >= 0}
        group = [min(merged) if one in merged else one for one in group]
    members_of: dict[int, list[int]] = {}
    for position, head in enumerate(group):
        members_of.setdefault(head, []).append(position)
    shapes: dict[str, list[list[int]]] = {}
    for members in members_of.values():
        place = {requests[position]["name"]: str(i) for i, position in enumerate(members)}
        bodies = [{key: value for key, value in requests[p].items() if key != "name"} for p in members]
        rules = []
        for entry, tied in ties:
            if tied and tied[0] in members:
                names = sorted(
                    place.get(name.partition("/")[0], "") + "".join(name.partition("/")[1:])
                    for name in entry["requests"]
                )
                rules.append([entry.get("matchAttribute"), entry.get("distinctAttribute"), names])
        shape = json.dumps([bodies, sorted(rules, key=str)], sort_keys=True)
        shapes.setdefault(shape, []).append(members)
    return [alike for alike in shapes.values() if len(alike) > 1 and not _takes_all(requests, alike)]


def _takes_all(requests: t.Sequence[Spec], alike: list[list[int]]) -> bool:
    """Whether the first request of such groups is for all devices: then there is no order to keep."""
    first = requests[alike[0][0]]
    bodies = first.get("firstAvailable") or [first.get("exactly") or {}]
    return any(body.get("adminAccess") or body.get("allocationMode") == "All" for body in bodies)


YES, NO, MAYBE = "yes", "no", "maybe"


class Search:
    """One run of the search.

    An C(optimist) takes what may match for a match. An C(ordered) search visits groups of requests that are alike in
    one order of their devices only: it finds an allocation if there is one, though not the scheduler's.
    """

    def __init__(self, basis: Basis, optimist: bool = False, ordered: bool = False) -> None:
        self.claims = basis.claims
        self.classes = basis.classes
        self.engine = basis.engine
        self.budget = basis.budget
        offers, held = basis.offers, basis.held
        self.optimist = optimist
        self.after: dict[tuple[int, int], tuple[int, int]] = {}
        if ordered:
            for index, claim in enumerate(self.claims):
                for alike in alike_groups(claim):
                    for before, group in zip(alike, alike[1:]):
                        self.after[index, group[0]] = (index, before[0])
        self.failed = False
        self.first: dict[tuple[int, int], int] = {}  # request -> position of its first device
        self.steps = 0
        shown = [offer for offer in offers if optimist or not offer.possible]
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
        # by what is asked of a device
        self.candidates: dict[str, list[tuple[int, bool]]] = {}
        self.fitting: dict[str, tuple[list[int], bool]] = {}
        # what is taken already
        self.held: set[DeviceId] = set()
        self.shares: dict[DeviceId, dict[str, Fraction]] = {}
        self._take_held(held)
        # what this search takes
        self.taken: dict[DeviceId, set[int]] = {}
        self.sharing: dict[DeviceId, dict[str, Fraction]] = {}
        self.sharers: dict[DeviceId, int] = {}
        self.available = self._counters()
        self.counted: dict[tuple[str, str, str, str], Fraction] = {}
        self.overdrawn = {key[:2] for key, left in self.available.items() if left < 0}

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

    def _counters(self) -> dict[tuple[str, str, str, str], Fraction]:
        """What is left of each counter, by driver, pool, set and name."""
        left: dict[tuple[str, str, str, str], Fraction] = {}
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
                path = f"claims[{index}].spec.devices.requests[{number}]"
                subs = request.get("firstAvailable") or ()
                row = [
                    Request((index, number, i), f"{path}.firstAvailable[{i}]", request["name"], sub["name"], sub, True)
                    for i, sub in enumerate(subs)
                ] or [Request((index, number, 0), f"{path}.exactly", request["name"], "", request["exactly"], False)]
                for one in row:
                    self._prepare(one)
                rows.append(row)
                least += min(one.count for one in row)
                if least > limits.ALLOCATION_RESULTS:
                    raise Abort(
                        Refusal(
                            f"the claim asks for more than {limits.ALLOCATION_RESULTS} devices, "
                            "the most that one claim can get",
                            path,
                            "limit",
                        )
                    )
            self.requests.append(rows)
            self.constraints.append(
                [
                    Constraint(
                        attribute=entry.get("matchAttribute") or entry.get("distinctAttribute") or "",
                        requests=frozenset(entry.get("requests") or ()),
                        distinct="distinctAttribute" in entry and entry["distinctAttribute"] is not None,
                        path=f"claims[{index}].spec.devices.constraints[{number}]",
                    )
                    for number, entry in enumerate(devices.get("constraints") or ())
                ]
            )
            for row in rows:
                for one in row:
                    one.rules = [rule for rule in self.constraints[index] if rule.covers(one)]

    def _prepare(self, request: Request) -> None:
        name = request.spec.get("deviceClassName", "")
        if name not in self.classes:
            raise Abort(Refusal(f"there is no DeviceClass {name!r}", f"{request.path}.deviceClassName", "class"))
        request.read(class_selectors(self.classes, request.spec))
        if request.spec.get("allocationMode", "ExactCount") != "All":
            request.count = int(request.spec.get("count") or 1)  # the server takes 0 for a count that is left out
            return
        found = []
        for position, offer in enumerate(self.offers):
            if not offer.possible and self.selectable(request, position):
                if self.room(request, offer, fresh=True):
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
        """What one selector says of a device. Raises Abort."""
        key = (expression, id(self.offers[position]))
        verdict = self.selection.verdicts.get(key)
        if verdict is None:
            try:
                verdict = self._match(expression, position)
            except EvaluationError as error:
                verdict = error
            self.selection.verdicts[key] = verdict
        if isinstance(verdict, Exception):
            driver, _pool, device = self.ids[position]
            reason = f"the selector fails on device {device} of {driver}, which ends the scheduling of the pod: "
            raise Abort(Refusal(reason + str(verdict), where, "error")) from verdict
        return verdict

    def _match(self, expression: str, position: int) -> str:
        """Raises EvaluationError where the scheduler would give up."""
        offer = self.offers[position]
        key = (expression, id(offer))
        unknown = mentioned(expression, offer.unknown)
        assumed = mentioned(expression, offer.assumed)
        try:
            answer = self.engine.matches(expression, offer.device, offer.driver)
        except Uncheckable as error:
            self.selection.wondered.setdefault(key, set()).add(str(error))
            return MAYBE
        except EvaluationError:
            if not unknown:
                raise
            answer = False
        if answer and not unknown:
            self.selection.assumed[key] = assumed
            return YES
        if not unknown and not assumed:
            return NO
        # A part that is false without the help of what is unknown decides: CEL's && needs no order.
        for part in conjuncts(expression):
            if not mentioned(part, unknown | assumed):
                try:
                    if not self.engine.matches(part, offer.device, offer.driver):
                        return NO
                except (EvaluationError, Uncheckable):
                    pass
        self.selection.wondered.setdefault(key, set()).update(unknown | assumed)
        return MAYBE

    # --- capacity

    def room(self, request: Request, offer: Offer, fresh: bool = False) -> bool:
        """Whether the device has the capacity that is left to ask for. Raises Abort."""
        capacity = offer.device.get("capacity") or {}
        wanted = (request.spec.get("capacity") or {}).get("requests") or {}
        if not wanted and not offer.device.get("allowMultipleAllocations"):
            if not any(entry.get("requestPolicy") for entry in capacity.values()):
                return True  # it takes all that there is
        missing = [name for name in wanted if name not in capacity]
        if missing:
            unknown = all((name if "/" in name else f"{offer.driver}/{name}") in offer.unknown for name in missing)
            return unknown and self.optimist
        consumed = self._consumed(request, offer)
        identity = identify(offer)
        for name, amount in consumed.items():
            entry = capacity[name]
            if _violates(amount, entry.get("requestPolicy") or {}):
                return False
            total = amount
            if not fresh:
                total += self.shares.get(identity, {}).get(name, Fraction())
                total += self.sharing.get(identity, {}).get(name, Fraction())
            if total > quantity.parse(entry["value"]):
                return False
        return True

    def _consumed(self, request: Request, offer: Offer) -> dict[str, Fraction]:
        wanted = (request.spec.get("capacity") or {}).get("requests") or {}
        consumed = {}
        for name, entry in (offer.device.get("capacity") or {}).items():
            try:
                consumed[name] = _consume(wanted.get(name), entry)
            except OverflowError as error:
                raise Abort(
                    Refusal(f"capacity {name}: {error}", f"{request.path}.capacity.requests.{name}", "error")
                ) from error
        return consumed

    # --- one device

    def take(self, request: Request, position: int, must: bool) -> t.Callable[[], None] | None:
        """Give a device to the request, if it is free and fits. Returns what undoes it. Raises Abort."""
        offer = self.offers[position]
        identity = self.ids[position]
        claim = request.key[0]
        multiple = self.multiple[position]
        if request.admin:
            if not multiple and claim in self.taken.get(identity, ()):
                return None
        elif identity in self.held or self.taken.get(identity):
            return None
        counters: list[tuple[tuple[str, str, str, str], Fraction]] = []
        if not multiple or (identity not in self.shares and identity not in self.sharers):
            counters = self.consumption[position]
            for key, value in counters:
                self.counted[key] = self.counted.get(key, Fraction()) + value
        added = 0

        def undo() -> None:
            for constraint in request.rules[:added]:
                constraint.values.pop()
            for key, value in counters:
                self.counted[key] -= value

        if counters and (
            identity[:2] in self.overdrawn
            or any(self.counted[key] > self.available.get(key, self.counted[key]) for key, _value in counters)
        ):
            undo()
            return None
        if not tolerated(request.spec, offer):
            undo()
            return None
        for constraint in request.rules:
            if not constraint.add(self.column(constraint.attribute, position)):
                undo()
                if must:
                    reason = (
                        f"request {request.name} asks for all devices, and device {identity[2]} of {identity[0]} "
                        f"does not satisfy a constraint on {constraint.attribute}"
                    )
                    raise Abort(Refusal(reason, constraint.path, "error"))
                return None
            added += 1
        if multiple and not self.room(request, offer):
            undo()
            return None
        consumed: dict[str, Fraction] = {}
        if multiple:
            consumed = self._consumed(request, offer)
            sharing = self.sharing.setdefault(identity, {})
            for name, value in consumed.items():
                sharing[name] = sharing.get(name, Fraction()) + value
            self.sharers[identity] = self.sharers.get(identity, 0) + 1
        else:
            self.taken.setdefault(identity, set()).add(claim)
        forms = {name: quantity.canonical(value) for name, value in consumed.items()}
        self.results[claim].append(Result(claim, request.name, offer, request.admin, forms))

        def back() -> None:
            self.results[claim].pop()
            if multiple:
                for name, value in consumed.items():
                    self.sharing[identity][name] -= value
                self.sharers[identity] -= 1
                if not self.sharers[identity]:
                    del self.sharers[identity]
            else:
                self.taken[identity].discard(claim)
            undo()

        return back

    def column(self, name: str, position: int) -> t.Any:
        """A device's attribute as constraints compare it."""
        key = (name, id(self.offers[position]))
        if key not in self.selection.columns:
            self.selection.columns[key] = comparable(self.offers[position], name)
        return self.selection.columns[key]

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
                    if not self.selectable(request, position) or not self.room(request, offer, fresh=True):
                        continue
                except Abort:
                    found.append((position, True))
                    continue
                if tolerated(request.spec, offer):
                    found.append((position, self.multiple[position]))
        return self.candidates[request.ask]

    # --- the depth-first search

    def run(self) -> Allocation | Refusal:
        try:
            self.prepare()
            # a node that has too few devices is told from one that has enough without a search
            found = not ((self.too_few() or self.hopeless()) and not self.failed) and self._claim(0)
        except Abort as abort:
            return Refusal(abort.refusal.reason, abort.refusal.path, abort.refusal.kind, self.steps)
        except _TooMany:
            found = False
        if not found:
            return Refusal("no devices satisfy the claims", "claims", "count", self.steps)
        results = tuple(result for row in self.results for result in row)
        return Allocation(results, tuple(sorted(self._assumptions(results))), self.steps)

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
        wanted = (request.spec.get("capacity") or {}).get("requests") or {}
        for position, offer in enumerate(self.offers):
            try:
                verdict = self.verdict(request, position)
            except Abort:
                continue
            if verdict == MAYBE or (verdict == YES and offer.possible):
                return True
            if verdict == YES and any(name not in (offer.device.get("capacity") or {}) for name in wanted):
                return True
        return False

    def too_few(self) -> str:
        """Names of requests that need more devices together than there are, whatever else is asked; empty if none.

        A matching of the devices that are wanted and those that fit; requests for all devices, with admin access or for
        devices that can be shared are left out.
        """
        units: list[tuple[str, list[int]]] = []
        for rows in self.requests:
            for row in rows:
                if any(one.all is not None or one.admin for one in row):
                    continue
                fits = self.fit(row)
                if any(self.multiple[position] for position in fits):
                    continue
                units += [(row[0].base, fits)] * min(one.count for one in row)
        seen = unplaced([fits for _name, fits in units])
        if seen is None:
            return ""
        # the devices that were tried are all that these have
        short = [name for name, fits in units if seen.issuperset(fits)]
        names = ", ".join(dict.fromkeys(short))
        what = f"request {names} needs" if len(set(short)) == 1 else f"requests {names} together need"
        return f"{what} {len(short)} devices, and {len(seen)} on this node fit"

    def hopeless(self) -> bool:
        """Whether counting by value shows that a matchAttribute cannot be met, or not in all repetitions at a time.

        Of a constraint, only requests count that it covers with all their alternatives.
        """
        if any(one.all is not None for rows in self.requests for row in rows for one in row):
            return False  # their devices are given, and end the search where they do not fit
        for rows, constraints in zip(self.requests, self.constraints):
            alike: dict[tuple[str, str], list[list[list[Request]]]] = {}
            for constraint in constraints:
                if not constraint.distinct:
                    covered = [row for row in rows if all(constraint.covers(one) for one in row)]
                    asked = [[[one.ask, one.count] for one in row] for row in covered]
                    if covered:
                        alike.setdefault((constraint.attribute, json.dumps(asked)), []).append(covered)
            for (name, _asked), groups in alike.items():
                if not self._repeatable(name, groups[0], _disjoint(groups)):
                    return True
        return False

    def _repeatable(self, name: str, rows: list[list[Request]], wanted: int) -> bool:
        """Whether there are devices for so many groups of requests like these, each of one value of an attribute."""
        values: dict[t.Any, set[int]] = {}
        by_row = [self.fit(row) for row in rows]
        for position in set().union(*by_row):
            value = self.column(name, position)
            if value is not None:
                values.setdefault((value, position) if value is LIST else value, set()).add(position)
        shared = any(self.multiple[position] for fits in by_row for position in fits)
        shared = shared or any(one.admin for row in rows for one in row)
        needs = [min(one.count for one in row) for row in rows]
        left = wanted
        for positions in values.values():
            here = [[p for p in fits if p in positions] for fits in by_row]
            if any(len(fits) < need for fits, need in zip(here, needs)):
                continue
            if shared:
                return True  # devices that serve several requests are not counted
            units = [fits for fits, need in zip(here, needs) for _unit in range(need)]
            number = 0
            while left and unplaced(units * (number + 1)) is None:
                number, left = number + 1, left - 1
            if not left:
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
                and (request.admin or identify(offer) not in self.held)
                and self.room(request, offer)
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
            if (by_name[result.claim, result.request].spec.get("capacity") or {}).get("requests"):
                request = by_name[result.claim, result.request]
                return (
                    f"{request.path}.capacity",
                    f"request {request.name}: a capacity of {result.offer.driver} is not seen by a probe",
                )
        return "claims", "the answer rests on what a probe does not see"

    def _claim(self, claim: int) -> bool:
        if claim >= len(self.requests):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, number: int) -> bool:
        if number >= len(self.requests[claim]):
            try:
                return self._claim(claim + 1)
            except _TooMany:
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
        if request.all is not None:
            self._step(request)
            back = self.take(request, request.all[number], must=True)
            return back is not None and self._further(request, number, 0, back)
        own = request.key[:2]
        if number == 0 and own in self.after:
            before = self.first[self.after[own]]
            start = before + (not self.multiple[before])
        worth = self.worth(request)
        looked = start  # the scheduler looks at the others too
        for index in range(bisect_left(worth, (start, False)), len(worth)):
            position, again = worth[index]
            self._step(request, position + 1 - looked)
            looked = position + 1
            identity = self.ids[position]
            if request.admin:
                if claim in self.taken.get(identity, ()):
                    continue
            elif self.taken.get(identity):
                continue
            if again and not (self.selectable(request, position) and self.room(request, self.offers[position])):
                continue
            back = self.take(request, position, must=False)
            if back is None:
                continue
            if number == 0:
                self.first[own] = position
            if self._further(request, number, position + 1, back):
                return True
        self._step(request, len(self.offers) - looked)
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
        self.steps = min(self.steps + number, self.budget + 1)
        if self.steps > self.budget:
            reason = (
                f"not decided after {self.budget} steps, at request {request.name}: the scheduler, which searches the "
                "same way, may well run into its time limit of ten seconds a node"
            )
            raise Abort(Refusal(reason, request.path, "budget"))


def unplaced(units: t.Sequence[t.Sequence[int]]) -> set[int] | None:
    """None where every unit can have one of its devices, no two the same; else the devices that are contended for."""
    owner: dict[int, int] = {}

    def place(unit: int, seen: set[int]) -> bool:
        for position in units[unit]:
            if position not in seen:
                seen.add(position)
                if position not in owner or place(owner[position], seen):
                    owner[position] = unit
                    return True
        return False

    for unit in range(len(units)):
        seen: set[int] = set()
        if not place(unit, seen):
            return seen
    return None


def _disjoint(groups: list[list[list[Request]]]) -> int:
    """The number of groups where no request is in two of them, else one."""
    keys = [row[0].key for group in groups for row in group]
    return len(groups) if len(set(keys)) == len(keys) else 1


def _pool_of(offer: Offer) -> tuple[str, str, bool]:
    return offer.driver, offer.pool, bool(offer.device.get("bindingConditions"))


def consumption(offer: Offer) -> t.Iterator[tuple[tuple[str, str, str, str], Fraction]]:
    for entry in offer.device.get("consumesCounters") or ():
        for name, counter in entry["counters"].items():
            yield (offer.driver, offer.pool, entry["counterSet"], name), quantity.parse(counter["value"])


def tolerated(request: Spec, offer: Offer) -> bool:
    return all(
        taint["effect"] not in _BLOCKING or any(_tolerates(one, taint) for one in request.get("tolerations") or ())
        for taint in offer.device.get("taints") or ()
    )


def _tolerates(toleration: Spec, taint: Spec) -> bool:
    """resourceclaim.ToleratesTaint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    return operator == "Exists" or (
        operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _consume(wanted: t.Any, entry: Spec) -> Fraction:
    """What a request takes of a capacity (consumable_capacity.go). Raises OverflowError as the scheduler aborts."""
    policy = entry.get("requestPolicy") or {}
    if wanted is None:
        default = policy.get("default")
        return quantity.parse(entry["value"] if default is None else default)
    amount = quantity.parse(wanted)
    valid = policy.get("validRange") or {}
    if valid.get("min") is not None:
        least = quantity.parse(valid["min"])
        if amount < least:
            return least
        if valid.get("step") is None:
            return amount
        if amount > limits.INT64_MAX:
            raise OverflowError("the amount is beyond 64 bits")
        base, step = quantity.integer(least), quantity.integer(quantity.parse(valid["step"]))
        steps = -((base - quantity.integer(amount)) // step)
        if base + steps * step > limits.INT64_MAX:
            raise OverflowError("the amount is beyond 64 bits when rounded up to a step")
        return Fraction(base + steps * step)
    for value in policy.get("validValues") or ():
        if amount <= quantity.parse(value):
            return quantity.parse(value)
    return amount


def _violates(amount: Fraction, policy: Spec) -> bool:
    if policy.get("default") is not None and amount == quantity.parse(policy["default"]):
        return False
    valid = policy.get("validRange")
    if valid:
        if valid.get("max") is not None and amount > quantity.parse(valid["max"]):
            return True
        if valid.get("step") is not None:
            step = quantity.integer(quantity.parse(valid["step"]))
            return (quantity.integer(amount) - quantity.integer(quantity.parse(valid["min"]))) % step != 0
        return False
    values = policy.get("validValues") or ()
    return bool(values) and all(amount != quantity.parse(value) for value in values)
