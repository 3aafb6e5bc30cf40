# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Explains why no devices satisfy a claim."""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace
from fractions import Fraction

from ..cel.selector_text import conjuncts
from ..kube import limits, quantity
from ..kube.objects import ObjectView
from ..kube.quantity import Quantity
from .answers import Abort, Allocation, Refusal
from .candidates import Question
from .search import Search
from .search_bounds import too_few
from .search_devices import Amount, attribute, blocking_taints, identify, tolerates_taints
from .search_requests import Constraint, Request, alike_groups
from .search_selection import FAILS, MAYBE, YES

#: A selector, or an operand of its `&&`, that only the devices of one driver satisfy.
_DRIVER = re.compile(
    r"""[(\s]*(?:device\.driver\s*==\s*["']([a-z0-9.-]+)["']|["']([a-z0-9.-]+)["']\s*==\s*device\.driver)[)\s]*"""
)

#: How a valid range is described.
_RANGE_WORDS = (("at least", "min"), ("at most", "max"), ("in steps of", "step"))
#: The kinds of refusals that are certain: no devices satisfy the claims.
_IMPOSSIBLE = ("count", "limit")


class Diagnosis:
    """Explains why a search failed. The checks are made in the order in which a person would make them.

    With `doubtful`, there are uncertain devices, and the optimistic search failed too. A request is then the reason
    only if it also fails with the uncertain devices. All searches of the diagnosis together may examine a quarter of
    the devices that the failed search was allowed to examine, but at least 2000; each of them an eighth, but at least
    1000. A check whose searches end without a result is skipped.
    """

    def __init__(self, question: Question, steps: int, doubtful: bool) -> None:
        self.question = replace(question, budget=max(question.budget // 8, 1000))
        self.claims = question.claims
        self.certain = Search(question)
        self.certain.prepare()  # cannot raise: it succeeded in the failed search
        self.widest = self._optimistic_search() if doubtful else self.certain  # with the uncertain devices, if any
        self.steps = steps
        self.remaining_budget = max(question.budget // 4, 2000)  # devices that may still be examined
        self.undecided = False  # whether a search ended without a result
        self.exceeded = False  # whether the last search met the limit of devices for one claim

    def _optimistic_search(self) -> Search:
        search = Search(self.question, optimistic=True)
        try:
            search.prepare()
        except Abort:
            return self.certain
        return search

    def run(self) -> Refusal:
        """The reason why the search failed."""
        return replace(self._find(), steps=self.steps)

    def _find(self) -> Refusal:
        for rows, optimistic_rows in zip(self.certain.requests, self.widest.requests):
            for row, optimistic_row in zip(rows, optimistic_rows):
                refusals = [refusal for refusal in (self._alone(self.certain, request) for request in row) if refusal]
                if len(refusals) == len(row) and all(self._alone(self.widest, request) for request in optimistic_row):
                    return refusals[0] if len(row) == 1 else self._no_alternative(row, refusals)
        shortage = too_few(self.widest)
        if shortage:
            return Refusal(shortage, self._path("requests"), "count")
        return self._of_several_requests()

    def _of_several_requests(self) -> Refusal:
        """The reason if each request alone has enough devices."""
        without_constraints = [self._only(claim, ()) for claim in self.claims]
        has_constraints = any(claim["devices"].get("constraints") for claim in self.claims)
        if self._is_impossible(without_constraints) or not has_constraints:
            reason = (
                "each request alone has enough devices, but together they need the same devices, counters or capacity"
            )
            if self.exceeded:
                reason += f", or more than the {limits.ALLOCATION_RESULTS} devices that a claim can have"
            return Refusal(reason, self._path("requests"), "count")
        for index, claim in enumerate(self.claims):
            for number, _entry in enumerate(claim["devices"].get("constraints") or ()):
                claims = list(without_constraints)
                claims[index] = self._only(claim, (number,))
                if self._is_impossible(claims):
                    return self._constraint(self.widest.constraints[index][number], index)
        for index, claim in enumerate(self.claims):
            for groups in alike_groups(claim):
                refusal = self._repetitions(index, groups)
                if refusal:
                    return refusal
        return self._together()

    def _together(self) -> Refusal:
        reason = "each constraint can be met, but not all of them with the same devices"
        if self.undecided:
            reason = "the requests and constraints cannot all be met at the same time; the conflict was not determined"
        return Refusal(reason, self._path("constraints"), "constraint")

    def _path(self, field: str) -> str:
        """The path of a field of all claims."""
        return f"claims[0].spec.devices.{field}" if len(self.claims) == 1 else "claims"

    @staticmethod
    def _no_alternative(row: list[Request], refusals: list[Refusal]) -> Refusal:
        """One reason for alternatives of which none has enough devices."""
        path = row[0].path.rpartition(".")[0]
        # if all alternatives have the same reason, it is reported once
        distinct = {
            refusal.reason.replace(f"request {request.name} ", "", 1) for request, refusal in zip(row, refusals)
        }
        if len(distinct) == 1:
            return Refusal(f"request {row[0].base} {distinct.pop()}", path, refusals[0].kind)
        details = "; ".join(refusal.reason for refusal in refusals)
        return Refusal(f"no alternative can be satisfied: {details}", path, refusals[0].kind)

    def _search_again(self, claims: t.Sequence[ObjectView]) -> Allocation | Refusal:
        """Search again for other claims, within the remaining budget."""
        budget = min(self.question.budget, self.remaining_budget)
        search = Search(replace(self.question, claims=claims, budget=budget), self.widest.optimistic)
        answer = search.run()
        self.remaining_budget = max(0, self.remaining_budget - search.examined)
        self.exceeded = bool(search.exceeded)
        self.undecided = self.undecided or (isinstance(answer, Refusal) and answer.kind not in _IMPOSSIBLE)
        return answer

    def _is_impossible(self, claims: t.Sequence[ObjectView]) -> bool:
        """Whether it is certain that no devices satisfy the claims."""
        answer = self._search_again(claims)
        return isinstance(answer, Refusal) and answer.kind in _IMPOSSIBLE

    @staticmethod
    def _only(claim: ObjectView, constraints: tuple[int, ...]) -> ObjectView:
        """A claim with only some of its constraints."""
        entries = [entry for i, entry in enumerate(claim["devices"].get("constraints") or ()) if i in constraints]
        return {**claim, "devices": {**claim["devices"], "constraints": entries}}

    def _repetitions(self, index: int, groups: list[list[int]]) -> Refusal | None:
        """A refusal that says how many identical groups can be satisfied at the same time, and what is missing. None if
        all of them can, without the claim's other requests."""
        claim = self.claims[index]
        requests = claim["devices"]["requests"]
        for number in range(len(groups), 0, -1):
            positions = sorted(position for group in groups[:number] for position in group)
            names = {requests[position]["name"] for position in positions}
            rules = [
                entry
                for entry in claim["devices"].get("constraints") or ()
                if entry.get("requests") and all(name.partition("/")[0] in names for name in entry["requests"])
            ]
            reduced_claim = {
                "devices": {"requests": [requests[position] for position in positions], "constraints": rules}
            }
            answer = self._search_again([*self.claims[:index], reduced_claim, *self.claims[index + 1 :]])
            if isinstance(answer, Allocation):
                break
            if answer.kind not in _IMPOSSIBLE:
                return None
        else:
            return None
        if number == len(groups):
            return None
        group = [requests[position]["name"] for position in groups[0]]
        reason = f"{number} of {len(groups)} groups like {' + '.join(group)} can be satisfied at the same time"
        path = f"claims[{index}].spec.devices.constraints"
        for constraint in self.widest.constraints[index]:
            if not constraint.distinct and {name.partition("/")[0] for name in constraint.requests} == set(group):
                counts: dict[str, dict[str, int]] = {}
                for name, values in self._values(constraint, index).items():
                    for value, devices in values.items():
                        counts.setdefault(value, {})[name] = len(devices)
                uneven = [
                    f"{value or 'no value'} has " + " and ".join(f"{by_name.get(name, 0)} for {name}" for name in group)
                    for value, by_name in sorted(counts.items())
                    if len({by_name.get(name, 0) for name in group}) > 1
                ]
                if uneven:
                    reason += f"; by {constraint.attribute}, {'; '.join(uneven[:4])}"
                    reason += f"; and {len(uneven) - 4} more" if len(uneven) > 4 else ""
                    path = constraint.path
                    break
        return Refusal(reason, path, "constraint")

    def _values(self, constraint: Constraint, claim: int) -> dict[str, dict[str, set[int]]]:
        """By request, the devices that fit, by their value of the constraint's attribute ('' if they lack it)."""
        search = self.widest
        by_request: dict[str, dict[str, set[int]]] = {}
        for row in search.requests[claim]:
            for request in row:
                if constraint.covers(request):
                    values = by_request.setdefault(request.base, {})
                    for position, offer in enumerate(search.offers):
                        if search.fits(request, position):
                            value = attribute(offer, constraint.attribute)
                            text = "" if value is None else str(next(iter(value.values())))
                            values.setdefault(text, set()).add(position)
        return by_request

    def _alone(self, search: Search, request: Request) -> Refusal | None:
        """Why a request has too few devices even on its own; None if it has enough."""
        accepted = (YES, MAYBE) if search.optimistic else (YES,)
        needed = request.count if request.all_devices is None else max(request.count, 1)
        if sum(not search.consumption[position] for position in search.fit([request])) >= needed:
            return None
        demand = f"request {request.name} needs {needed} device{'s' if needed != 1 else ''}"
        all_positions = range(len(search.offers))
        name = request.spec["deviceClassName"]
        drivers = _drivers([expression for _where, expression in request.texts])
        of_driver = [position for position in all_positions if {search.offers[position].driver}.issuperset(drivers)]
        if not of_driver:
            published = (
                f"{drivers[0]} publishes none on this node" if drivers else "no driver publishes any on this node"
            )
            if len(drivers) > 1:
                published = f"no device is of both {' and '.join(drivers)}"
            return Refusal(f"{demand}: {published}", request.path, "absent")
        source = f"{drivers[0]} publishes {len(of_driver)}" if drivers else f"the node has {len(of_driver)}"
        if len(of_driver) < needed:
            return Refusal(f"{demand}: {source}{' on this node' if drivers else ''}", request.path, "count")
        remaining = of_driver
        for where, expression in request.texts:
            verdicts = {position: search.judge(expression, position) for position in remaining}
            suitable = [position for position in remaining if verdicts[position] in accepted]
            if len(suitable) < needed:
                match_text = f"class {name} selects {len(suitable)} of {len(remaining)}"
                if where.startswith("claims"):
                    match_text = f"its selector matches {len(suitable)} of {len(remaining)} ({expression})"
                fails = sum(verdict == FAILS for verdict in verdicts.values())
                match_text += f" and fails on {fails}" if fails else ""
                reason = f"{demand}: {source}, {match_text}"
                return Refusal(reason, where if where.startswith("claims") else request.path, "selector")
            remaining = suitable
        suitable = [position for position in remaining if search.has_room(request, position, fresh=True)]
        if len(suitable) < needed:
            amounts = ", ".join(self._amount(search, key, value, remaining) for key, value in request.amounts.items())
            reason = (
                f"{demand}: {len(remaining)} match, and {len(suitable)} of them can provide the capacity ({amounts})"
            )
            return Refusal(reason, f"{request.path}.capacity", "capacity")
        remaining = suitable
        suitable = [position for position in remaining if tolerates_taints(request.spec, search.offers[position])]
        if len(suitable) < needed:
            taints = {
                f"{taint['key']}:{taint['effect']}"
                for position in remaining
                for taint in blocking_taints(request.spec, search.offers[position])
            }
            tainted = f"{len(remaining) - len(suitable)} of them tainted ({', '.join(sorted(taints))})"
            reason = f"{demand}: {len(remaining)} match, {tainted}"
            return Refusal(reason, f"{request.path}.tolerations", "taint")
        remaining = suitable
        if not request.admin:
            suitable = [position for position in remaining if self._free(search, request, position)]
            if len(suitable) < needed:
                return Refusal(
                    f"{demand}: {self._used(search, request, remaining, len(suitable))}", request.path, "used"
                )
        return None

    @staticmethod
    def _used(search: Search, request: Request, matching: list[int], free: int) -> str:
        """How many devices are in use, how many need counters of which too little is left, and how many shared devices
        have too little capacity left."""
        remaining_amounts: dict[str, list[Amount]] = {}
        shortages = [search.shortages(request, position) for position in matching] if search.held_amounts else []
        for name, amount in (item for shortage in shortages for item in shortage.items()):
            remaining_amounts.setdefault(name, []).append(amount)
        in_use = sum(identify(search.offers[position]) in search.held for position in matching)
        without_counters = len(matching) - free - in_use - sum(bool(shortage) for shortage in shortages)
        parts = [f"{_of_them(in_use)} in use"] if in_use else []
        if without_counters > 0:
            parts.append(f"{_of_them(without_counters)} without enough of the counters that they share")
        for name, amounts in remaining_amounts.items():
            requested = request.amounts.get(name)
            form = quantity.BINARY_SI if str(requested).endswith("i") else quantity.DECIMAL_SI
            needs = f"{requested} is requested" if requested is not None else "the default is requested"
            maximum = quantity.canonical(Fraction(max(0, *amounts)), form)
            have = "has" if len(amounts) == 1 else "have"
            parts.append(f"{len(amounts)} of them {have} too little {name} left ({needs}, at most {maximum} is left)")
        return ", ".join([f"{len(matching)} match", *parts])

    @staticmethod
    def _free(search: Search, request: Request, position: int) -> bool:
        """Whether a device is free, with enough capacity and counters for the request."""
        offer = search.offers[position]
        if identify(offer) in search.held or not search.has_room(request, position):
            return False
        if identify(offer) in search.held_amounts:
            return True
        return all(search.counters_left.get(key, value) >= value for key, value in search.consumption[position])

    @staticmethod
    def _amount(search: Search, name: str, requested: Quantity, positions: list[int]) -> str:
        entries = [(search.offers[position].device.get("capacity") or {}).get(name) for position in positions]
        values = [entry["value"] for entry in entries if entry]
        maximum = max(values, key=quantity.parse, default=None)
        if maximum is None:
            return f"{name} {requested}; none has this capacity"
        policies = {policy for policy in (_policy_text(entry) for entry in entries if entry) if policy}
        allowed = f", and a request may be for {' or '.join(sorted(policies)[:4])}" if policies else ""
        return f"{name} {requested}; the maximum is {maximum}{allowed}"

    def _constraint(self, constraint: Constraint, claim: int) -> Refusal:
        """Why a constraint cannot be satisfied."""
        offers = self.widest.offers
        per_request = self._values(constraint, claim)
        # a request can avoid the constraint with an alternative that is not covered; the other requests are the reason
        fully_covered = {
            row[0].base for row in self.widest.requests[claim] if all(constraint.covers(request) for request in row)
        }
        if fully_covered & set(per_request):
            per_request = {name: values for name, values in per_request.items() if name in fully_covered}
        for name, values in per_request.items():
            if values and set(values) == {""}:
                drivers = " and ".join(sorted({offers[position].driver for position in values[""]}))
                reason = f"request {name}: no free device of {drivers} that it selects has the attribute "
                return Refusal(reason + constraint.attribute, constraint.path, "constraint")
        details = "; ".join(f"{name} has {_first_values(values)}" for name, values in per_request.items())
        if constraint.distinct:
            reason = f"there are not enough different values of {constraint.attribute}: {details}"
            return Refusal(reason, constraint.path, "constraint")
        common = (
            set.intersection(*({value for value in values if value} for values in per_request.values()))
            if per_request
            else set()
        )
        if not common:
            reason = f"no value of {constraint.attribute} is common to requests {', '.join(per_request)}: {details}"
        else:
            reason = f"no value of {constraint.attribute} is shared by enough free devices: {details}"
        return Refusal(reason, constraint.path, "constraint")


def _policy_text(entry: ObjectView) -> str:
    """The amounts that the request policy of a capacity allows; empty if it allows any."""
    policy = entry.get("requestPolicy") or {}
    values, valid_range = policy.get("validValues"), policy.get("validRange")
    if values:
        return "/".join(map(str, values))
    if not valid_range:
        return ""
    texts = [f"{word} {valid_range[key]}" for word, key in _RANGE_WORDS if valid_range.get(key) is not None]
    return ", ".join(texts)


def _drivers(selectors: t.Iterable[str]) -> list[str]:
    """The drivers that the selectors require of a device. If there are several, no device satisfies the selectors."""
    matches = [_DRIVER.fullmatch(part) for selector in selectors for part in conjuncts(selector)]
    return sorted({match[1] or match[2] for match in matches if match})


def _of_them(number: int) -> str:
    return f"{number} of them {'is' if number == 1 else 'are'}"


def _first_values(values: t.Iterable[str]) -> str:
    """The first four values that are not empty, as text that shows whether there are more."""
    present = sorted(filter(None, values))
    return ", ".join(present[:4]) + (" ..." if len(present) > 4 else "")
