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

from ..kube import quantity
from ..kube.quantity import Quantity
from .answers import Abort, Allocation, Refusal
from .candidates import Question
from .search import Search
from .search_bounds import too_few
from .search_devices import Amount, Spec, attribute, identify, tolerated
from .search_requests import Constraint, Request, alike_groups
from .search_selection import FAILS, MAYBE, YES

_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([a-z0-9.-]+)["']|["']([a-z0-9.-]+)["']\s*==\s*device\.driver""")


class Diagnosis:
    """Explains why a search failed, in the order in which a person would check.

    With `doubtful`, there are uncertain devices, and the optimistic search failed too. A request is then the reason
    only if it also fails with the uncertain devices. All searches of the diagnosis together may examine a quarter of
    the devices that the failed search was allowed to examine. An undecided check is not a reason.
    """

    def __init__(self, question: Question, steps: int, doubtful: bool) -> None:
        self.question = replace(question, budget=max(question.budget // 8, 1000))
        self.claims = question.claims
        self.plain = Search(question)
        self.plain.prepare()  # cannot raise: it succeeded in the failed search
        self.search = self._optimistic_search() if doubtful else self.plain
        self.steps = steps
        self.left = max(question.budget // 4, 2000)  # devices that may still be examined
        self.open = False  # whether a search ended early

    def _optimistic_search(self) -> Search:
        search = Search(self.question, optimistic=True)
        try:
            search.prepare()
        except Abort:
            return self.plain
        return search

    def run(self) -> Refusal:
        return replace(self._find(), steps=self.steps)

    def _find(self) -> Refusal:
        for rows, optimistic_search in zip(self.plain.requests, self.search.requests):
            for row, other in zip(rows, optimistic_search):
                known = [reason for reason in (self._alone(self.plain, request) for request in row) if reason]
                if len(known) == len(row) and all(self._alone(self.search, request) for request in other):
                    return known[0] if len(row) == 1 else self._no_alternative(row, known)
        short = too_few(self.search)
        if short:
            return Refusal(short, "claims[0].spec.devices.requests", "count")
        bare = [self._only(claim, ()) for claim in self.claims]
        if self._none(bare):
            reason = "each request alone has enough devices, but together they need the same devices or counters"
            return Refusal(reason, "claims[0].spec.devices.requests", "count")
        for index, claim in enumerate(self.claims):
            for number, _entry in enumerate(claim["devices"].get("constraints") or ()):
                alone = list(bare)
                alone[index] = self._only(claim, (number,))
                if self._none(alone):
                    return self._constraint(self.search.constraints[index][number], index)
        for index, claim in enumerate(self.claims):
            for alike in alike_groups(claim):
                refusal = self._repetitions(index, alike)
                if refusal:
                    return refusal
        return self._together()

    def _together(self) -> Refusal:
        reason = "each constraint can be met, but not all of them with the same devices"
        if self.open:
            reason = "the requests and constraints cannot all be met at the same time; the conflict was not determined"
        return Refusal(reason, "claims[0].spec.devices.constraints", "constraint")

    @staticmethod
    def _no_alternative(row: list[Request], reasons: list[Refusal]) -> Refusal:
        """One reason for a list of alternatives of which none has enough devices."""
        path = row[0].path.rpartition(".")[0]
        # if all alternatives have the same reason, it is reported once
        plain = {one.reason.replace(f"request {request.name} ", "", 1) for request, one in zip(row, reasons)}
        if len(plain) == 1:
            return Refusal(f"request {row[0].base} {plain.pop()}", path, reasons[0].kind)
        details = "; ".join(f"{request.name}: {one.reason}" for request, one in zip(row, reasons))
        return Refusal(f"no alternative can be satisfied: {details}", path, reasons[0].kind)

    def _search(self, claims: t.Sequence[Spec]) -> Allocation | Refusal:
        budget = min(self.question.budget, self.left)
        search = Search(replace(self.question, claims=claims, budget=budget), self.search.optimistic)
        answer = search.run()
        self.left = max(0, self.left - search.examined)
        self.open = self.open or (isinstance(answer, Refusal) and answer.kind == "budget")
        return answer

    def _none(self, claims: t.Sequence[Spec]) -> bool:
        """Whether it is certain that no devices satisfy the claims."""
        answer = self._search(claims)
        return isinstance(answer, Refusal) and answer.kind in ("count", "limit")

    @staticmethod
    def _only(claim: Spec, constraints: tuple[int, ...]) -> Spec:
        kept = [entry for i, entry in enumerate(claim["devices"].get("constraints") or ()) if i in constraints]
        return {**claim, "devices": {**claim["devices"], "constraints": kept}}

    def _repetitions(self, index: int, alike: list[list[int]]) -> Refusal | None:
        """A refusal that says how many identical groups can be satisfied at the same time, and what is missing."""
        claim = self.claims[index]
        requests = claim["devices"]["requests"]
        for number in range(len(alike) - 1, 0, -1):
            kept = sorted(position for group in alike[:number] for position in group)
            names = {requests[position]["name"] for position in kept}
            rules = [
                entry
                for entry in claim["devices"].get("constraints") or ()
                if entry.get("requests") and all(name.partition("/")[0] in names for name in entry["requests"])
            ]
            fewer = {"devices": {"requests": [requests[position] for position in kept], "constraints": rules}}
            answer = self._search([*self.claims[:index], fewer, *self.claims[index + 1 :]])
            if isinstance(answer, Allocation):
                break
            if answer.kind not in ("count", "limit"):
                return None
        else:
            return None
        group = [requests[position]["name"] for position in alike[0]]
        reason = f"{number} of {len(alike)} groups like {' + '.join(group)} can be satisfied at the same time"
        path = f"claims[{index}].spec.devices.constraints"
        for constraint in self.search.constraints[index]:
            if not constraint.distinct and {name.partition("/")[0] for name in constraint.requests} == set(group):
                counts: dict[str, dict[str, int]] = {}
                for name, values in self._values(constraint, index).items():
                    for value, devices in values.items():
                        counts.setdefault(value, {})[name] = len(devices)
                uneven = [
                    f"{value or 'no value'} has " + " and ".join(f"{found.get(name, 0)} for {name}" for name in group)
                    for value, found in sorted(counts.items())
                    if len({found.get(name, 0) for name in group}) > 1
                ]
                if uneven:
                    reason += f"; by {constraint.attribute}, {'; '.join(uneven[:4])}"
                    reason += f"; and {len(uneven) - 4} more" if len(uneven) > 4 else ""
                    path = constraint.path
                    break
        return Refusal(reason, path, "constraint")

    def _values(self, constraint: Constraint, claim: int) -> dict[str, dict[str, set[int]]]:
        """By request, the fitting devices by their value of the constraint's attribute; '' if they lack it."""
        search = self.search
        found: dict[str, dict[str, set[int]]] = {}
        for row in search.requests[claim]:
            for request in row:
                if constraint.covers(request):
                    values = found.setdefault(request.base, {})
                    for position, offer in enumerate(search.offers):
                        if search.fits(request, position):
                            value = attribute(offer, constraint.attribute)
                            text = "" if value is None else str(next(iter(value.values())))
                            values.setdefault(text, set()).add(position)
        return found

    def _alone(self, search: Search, request: Request) -> Refusal | None:
        """Why a request has too few devices even on its own; None if it has enough."""
        yes = (YES, MAYBE) if search.optimistic else (YES,)
        need = request.count if request.all_devices is None else max(request.count, 1)
        if sum(not search.consumption[position] for position in search.fit([request])) >= need:
            return None
        wanted = f"request {request.name} needs {need} device{'s' if need != 1 else ''}"
        every = range(len(search.offers))
        name = request.spec["deviceClassName"]
        texts = [expression for _where, expression in request.texts]
        drivers = [d for text in texts for pair in _DRIVER.findall(text) for d in pair if d]
        of_driver = [p for p in every if not drivers or search.offers[p].driver in drivers]
        if not of_driver:
            what = f"{' and '.join(sorted(set(drivers)))} publishes none" if drivers else "no driver publishes any"
            return Refusal(f"{wanted}: {what} on this node", request.path, "absent")
        source = f"{drivers[0]} publishes {len(of_driver)}" if drivers else f"the node has {len(of_driver)}"
        if len(of_driver) < need:
            return Refusal(f"{wanted}: {source} on this node", request.path, "count")
        left = of_driver
        for where, expression in request.texts:
            verdicts = {p: search.judge(expression, p) for p in left}
            kept = [p for p in left if verdicts[p] in yes]
            if len(kept) < need:
                which = f"class {name} selects {len(kept)} of {len(left)}"
                if where.startswith("claims"):
                    which = f"its selector matches {len(kept)} of {len(left)} ({expression})"
                fails = sum(verdict == FAILS for verdict in verdicts.values())
                which += f" and fails on {fails}" if fails else ""
                reason = f"{wanted}: {source}, {which}"
                return Refusal(reason, where if where.startswith("claims") else request.path, "selector")
            left = kept
        kept = [p for p in left if search.has_room(request, p, fresh=True)]
        if len(kept) < need:
            asked = ", ".join(self._amount(search, key, value, left) for key, value in request.amounts.items())
            reason = f"{wanted}: {len(left)} match, and {len(kept)} of them have the capacity ({asked})"
            return Refusal(reason, f"{request.path}.capacity", "capacity")
        left = kept
        kept = [p for p in left if tolerated(request.spec, search.offers[p])]
        if len(kept) < need:
            taints = {
                f"{taint['key']}:{taint['effect']}"
                for p in left
                for taint in search.offers[p].device.get("taints") or ()
                if not tolerated(request.spec, search.offers[p])
            }
            reason = (
                f"{wanted}: {len(left)} match, {len(left) - len(kept)} of them tainted ({', '.join(sorted(taints))})"
            )
            return Refusal(reason, f"{request.path}.tolerations", "taint")
        left = kept
        if not request.admin:
            kept = [p for p in left if self._free(search, request, p)]
            if len(kept) < need:
                return Refusal(f"{wanted}: {self._used(search, request, left, len(kept))}", request.path, "used")
        return None

    @staticmethod
    def _used(search: Search, request: Request, left: list[int], free: int) -> str:
        """How many devices are in use, and how many shared devices have too little capacity left."""
        little: dict[str, list[Amount]] = {}
        short = [search.shortages(request, position) for position in left] if search.shares else []
        for name, rest in (one for found in short for one in found.items()):
            little.setdefault(name, []).append(rest)
        busy = len(left) - free - sum(bool(found) for found in short)
        parts = [f"{busy} of them are in use"] if busy else []
        for name, rests in little.items():
            wanted = request.amounts.get(name)
            form = quantity.BINARY_SI if str(wanted).endswith("i") else quantity.DECIMAL_SI
            needs = f"{wanted} is requested" if wanted is not None else "the default is requested"
            most = quantity.canonical(Fraction(max(0, *rests)), form)
            parts.append(f"{len(rests)} of them have too little {name} left ({needs}, at most {most} is left)")
        return ", ".join([f"{len(left)} match", *parts])

    @staticmethod
    def _free(search: Search, request: Request, position: int) -> bool:
        offer = search.offers[position]
        if identify(offer) in search.held or not search.has_room(request, position):
            return False
        if identify(offer) in search.shares:
            return True
        return all(search.available.get(key, value) >= value for key, value in search.consumption[position])

    @staticmethod
    def _amount(search: Search, name: str, wanted: Quantity, positions: list[int]) -> str:
        found = [(search.offers[p].device.get("capacity") or {}).get(name) for p in positions]
        values = [entry["value"] for entry in found if entry]
        most = max(values, key=quantity.parse, default=None)
        return f"{name} {wanted}, where " + (f"the most is {most}" if most else "none has this capacity")

    def _constraint(self, constraint: Constraint, claim: int) -> Refusal:
        """Why a constraint cannot be satisfied."""
        offers = self.search.offers
        per_request = self._values(constraint, claim)
        # a request can avoid the constraint by an alternative that it does not cover; the other requests are the reason
        whole = {
            row[0].base for row in self.search.requests[claim] if all(constraint.covers(request) for request in row)
        }
        if whole & set(per_request):
            per_request = {name: values for name, values in per_request.items() if name in whole}
        for name, values in per_request.items():
            if values and set(values) == {""}:
                drivers = " and ".join(sorted({offers[p].driver for p in values[""]}))
                reason = f"request {name}: no device of {drivers} has the attribute {constraint.attribute}"
                return Refusal(reason, constraint.path, "constraint")
        if constraint.distinct:
            shown = ", ".join(sorted({text for values in per_request.values() for text in values if text}))
            reason = f"there are not enough different values of {constraint.attribute} ({shown})"
            return Refusal(reason, constraint.path, "constraint")
        common = (
            set.intersection(*({v for v in values if v} for values in per_request.values())) if per_request else set()
        )
        details = "; ".join(
            f"{name} has {', '.join(sorted(v for v in values if v)[:4])}{' ...' if len(values) > 5 else ''}"
            for name, values in per_request.items()
        )
        if not common:
            reason = f"no value of {constraint.attribute} is common to requests {', '.join(per_request)}: {details}"
        else:
            reason = f"no value of {constraint.attribute} is shared by enough free devices: {details}"
        return Refusal(reason, constraint.path, "constraint")
