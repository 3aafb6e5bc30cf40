# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""On one node: how many pods of a workload fit after some of its pods have gone.

Every set of pods is tried, small ones first. A bound on the count, from the number of free devices that a request
selects, rules out most sets without a search.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass, replace

from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_memory import SelectorMemory
from ..holds.tolerations import ways
from ..kube.objects import ObjectView
from ..scheduler.search_devices import DeviceId, identify, tolerated
from ..scheduler.search_requests import class_selectors, expressions
from . import pods
from .fleet import Fleet, Node, Workload
from .movable import Movable
from .states import States

#: Sets of pods of one size with the same count that are kept as alternatives.
_ALTERNATIVES = 4


@dataclass(frozen=True)
class Option:
    """How many pods of the workload fit once these pods are moved away: positions among the node's movable ones."""

    gone: tuple[int, ...]
    count: int


class Budget:
    """How many more sets of pods may be searched."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True)
class Question:
    """What is searched for: `wanted` pods of a workload, `asked` being its requests as pods.units has them."""

    states: States
    workload: Workload
    asked: t.Mapping[str, int]
    wanted: int

    @property
    def fleet(self) -> Fleet:
        return self.states.fleet


class NodeOptions:
    """The options of nodes in the same state, in the order of the number of pods that go.

    `options` are those that are known, `unsure` sizes of which a set might allow more. After `level(n)` returned True,
    all sets of up to n pods are known.
    """

    def __init__(self, question: Question, node: Node, own: t.Sequence[Movable]) -> None:
        self.question, self.node, self.own = question, node, own
        self.options: list[Option] = []
        self.unsure: int | None = None
        self.done = -1  # sets of up to this many pods are known
        refused = pods.refuses(node, question.workload.pod)
        self._needs = [] if refused else _needs(question, node)
        self.most = 0 if refused else self._bound(tuple(range(len(own))))
        if not self.most:
            self.done = len(own)

    @property
    def whole(self) -> bool:
        """Whether all sets are known."""
        return self.done >= len(self.own)

    def lower(self) -> list[tuple[int, int]]:
        """Sizes and counts such that no set can be smaller for its count: what is known, and what is not ruled out."""
        found = [(len(one.gone), one.count) for one in self.options]
        if not self.whole:
            found.append((self.done + 1, self.most))
        if self.unsure is not None:
            found.append((self.unsure, self.most))
        return found

    def level(self, size: int, budget: Budget) -> bool:
        """Try all sets of `size` pods, after the smaller ones. False where the budget ended first."""
        if self.whole or size > len(self.own):
            return True
        below = max((one.count for one in self.options if len(one.gone) < size), default=0)
        found: dict[int, int] = {}
        for gone in itertools.combinations(range(len(self.own)), size):
            bound = self._bound(gone)
            if bound <= below or found.get(bound, 0) >= _ALTERNATIVES:
                continue
            if not budget.take():
                return False
            count = self._count(gone)
            if count > below and found.get(count, 0) < _ALTERNATIVES:
                found[count] = found.get(count, 0) + 1
                self.options.append(Option(gone, count))
        self.done = size
        if below >= self.most or any(one.count >= self.most for one in self.options):
            self.done = len(self.own)  # no larger set allows more
        return True

    def after(self, gone: t.Sequence[int]) -> Node:
        """The node without these pods and their claims."""
        return self.node.without([claim for number in gone for claim in self.own[number].claims]) if gone else self.node

    def _room(self, node: Node) -> int:
        most, _resource = pods.room(node, self.question.asked)
        return self.question.wanted if most is None else min(most, self.question.wanted)

    def _bound(self, gone: tuple[int, ...]) -> int:
        """An upper bound of the pods that fit without these. It never falls when more of them are moved away."""
        node = self.after(gone)
        taken = node.owners()
        free = {number for number, offer in enumerate(node.offers) if identify(offer) not in taken}
        counts = [len(free & selected) // count for selected, count in self._needs]
        return min([self._room(node), *counts])

    def _count(self, gone: tuple[int, ...]) -> int:
        node = self.after(gone)
        room = self._room(node)
        state = self.question.states.of(
            replace(node, name=f"{node.name} without {','.join(map(str, gone))}"), self.question.workload
        )
        count = state.upto(room)
        if count < room and (state.refusal is None or state.refusal.unknown) and self.unsure is None:
            self.unsure = len(gone)
        return count


def _needs(question: Question, node: Node) -> list[tuple[set[int], int]]:
    """Positions of devices, and how many of these one pod of the workload takes at least.

    Requests whose number of devices cannot be bounded are left out: for all devices, with admin access, and where a
    device can be shared.
    """
    found: dict[frozenset[int], int] = {}
    for claim in question.workload.claims:
        for request in claim["devices"].get("requests") or ():
            bodies = ways(request)
            if any(body.get("adminAccess") or body.get("allocationMode") == "All" for body in bodies):
                continue
            some = frozenset().union(*(_selected(question, node, body) for body in bodies))
            if any(node.offers[number].device.get("allowMultipleAllocations") for number in some):
                continue
            least = min(int(body.get("count") or 1) for body in bodies)
            found[some] = found.get(some, 0) + least
    return [(set(some), count) for some, count in found.items()]


def _selected(question: Question, node: Node, body: ObjectView) -> frozenset[int]:
    """The devices that a request may get, taints and selectors considered; where that is unknown, it may."""
    classes, memory = question.fleet.classes, question.states.memory
    if body.get("deviceClassName") not in classes:
        return frozenset()
    texts = expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])
    return frozenset(
        number
        for number, offer in enumerate(node.offers)
        if tolerated(dict(body), offer) and all(_matches(memory, text, node, number) for text in texts)
    )


def _matches(memory: SelectorMemory, text: str, node: Node, number: int) -> bool:
    offer = node.offers[number]
    if offer.unknown or offer.assumed:
        return True
    try:
        return bool(memory.matches(text, offer.device, offer.driver))
    except (EvaluationError, Uncheckable):
        return True


def alike(states: States, node: Node, own: t.Sequence[Movable], workload: Workload) -> tuple[t.Hashable, ...]:
    """A key that is equal for nodes with the same options, their movable pods in this order."""
    place: dict[DeviceId, int] = {identify(offer): number for number, offer in enumerate(node.offers)}
    devices: dict[str, list[int]] = {}
    for one in node.held:
        devices.setdefault(one.owner, []).append(place.get(one.result.id, -1))
    asked = {one.claims: sorted(one.requests.items()) for one in node.pods if one.claims}
    pods_there = tuple(
        (tuple(sorted(number for claim in one.claims for number in devices.get(claim, ()))), str(asked.get(one.claims)))
        for one in own
    )
    free = node.free()
    room = None if free is None else tuple(sorted(free.items()))
    return states.key(node), pods.refuses(node, workload.pod), room, pods_there
