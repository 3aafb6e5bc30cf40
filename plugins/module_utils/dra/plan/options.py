# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many pods of a workload fit on one node after some of its pods are moved away.

Every set of pods is tried, small ones first. An upper bound of the count, from the number of free devices that a
request selects and from the node's free resources, rules out most sets without a search.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass, replace

from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_cache import SelectorCache
from ..kube.objects import ObjectView, alternatives
from ..scheduler.search_devices import DeviceId, identify, tolerates_taints
from ..scheduler.search_requests import class_selectors, expressions
from . import pods
from .fleet import PODS, Fleet, Node, Workload
from .movable import Movable
from .states import States

#: The maximum number of sets of one size with the same count that are kept as alternatives.
_ALTERNATIVES = 4
#: How many sets are examined for each set that may be searched. Examining a set takes some millionths of a second.
_EXAMINED_PER_SEARCH = 50


@dataclass(frozen=True)
class Option:
    """How many pods of the workload fit after some pods are moved away.

    `moved` are their positions among the movable pods of the node.
    """

    moved: tuple[int, ...]
    count: int


class SearchBudget:
    """The number of sets of pods that may still be searched, and of those that may be examined before."""

    def __init__(self, searches: int) -> None:
        self.searches_left = searches
        self.examinations_left = searches * _EXAMINED_PER_SEARCH

    def examine(self) -> bool:
        """Count one set that is examined. Returns whether it is within the budget."""
        self.examinations_left -= 1
        return self.examinations_left >= 0

    def take(self) -> bool:
        """Count one search. Returns whether it is within the budget."""
        self.searches_left -= 1
        return self.searches_left >= 0


class _Supply(t.NamedTuple):
    """Devices or a resource of a node that limit the count.

    `free` are the free units, `need` the units that one pod of the workload takes, and `freed` the units that each
    movable pod has.
    """

    free: int
    need: int
    freed: t.Sequence[int]

    def pods_after(self, moved: t.Iterable[int]) -> int:
        """How many pods this suffices for after these pods are moved."""
        return max(0, self.free + sum(self.freed[number] for number in moved)) // self.need

    def max_pods(self, size: int) -> int:
        """How many pods this suffices for at most after any `size` pods are moved."""
        return max(0, self.free + sum(sorted(self.freed, reverse=True)[:size])) // self.need


@dataclass(frozen=True)
class Question:
    """The pods to fit: `count` pods of a workload. `requests` are those of one pod, in the units of `pods.units`."""

    states: States
    workload: Workload
    requests: t.Mapping[str, int]
    count: int

    @property
    def fleet(self) -> Fleet:
        return self.states.fleet


class NodeOptions:
    """The options of nodes in the same state, sorted by the number of moved pods.

    `options` are those found so far. `uncertain_size` is the smallest size of a set whose count is only a lower bound;
    None if there is no such set. `max_count` is an upper bound of all counts. After `try_sets(n)` has returned True,
    all sets of up to n pods are known.
    """

    def __init__(self, question: Question, node: Node, movable: t.Sequence[Movable]) -> None:
        self.question, self.node, self.movable = question, node, movable
        self.options: list[Option] = []
        self.uncertain_size: int | None = None
        self.known_size = -1  # sets of up to this many pods are known
        refused = pods.refuses(node, question.workload.pod)
        self._supplies = [] if refused else _supplies(question, node, movable)
        # pods that have much of what the workload needs come first, so that useful sets are examined early
        self._order = sorted(
            range(len(movable)),
            key=lambda number: -sum(supply.freed[number] / supply.need for supply in self._supplies),
        )
        self.max_count = 0 if refused else self._max_count(len(movable))
        if not self.max_count:
            self.known_size = len(movable)

    @property
    def complete(self) -> bool:
        """Whether all sets are known."""
        return self.known_size >= len(self.movable)

    def optimistic(self) -> list[tuple[int, int]]:
        """Numbers of moved pods, each with the maximum count that it can allow: the known options, and optimistic
        entries for the unknown ones. From these follows the minimum number of moves of a plan."""
        bounds = [(len(option.moved), option.count) for option in self.options]
        if not self.complete:
            bounds.append((self.known_size + 1, self.max_count))
        if self.uncertain_size is not None:
            bounds.append((self.uncertain_size, self.max_count))
        return bounds

    def try_sets(self, size: int, budget: SearchBudget) -> bool:
        """Try all sets of `size` pods; smaller sets must be known. Returns False if the budget was used up before."""
        if self.complete or size > len(self.movable):
            return True
        below = max((option.count for option in self.options if len(option.moved) < size), default=0)
        highest = self._max_count(size)
        sets_by_count: dict[int, int] = {}
        for chosen in itertools.combinations(self._order, size) if highest > below else ():
            if sets_by_count.get(highest, 0) >= _ALTERNATIVES:
                break  # no further set of this size allows more
            if not budget.examine():
                return False
            bound = min([self.question.count, *(supply.pods_after(chosen) for supply in self._supplies)])
            if bound <= below or sets_by_count.get(bound, 0) >= _ALTERNATIVES:
                continue
            if not budget.take():
                return False
            moved = tuple(sorted(chosen))
            count = self._count(moved)
            if count > below and sets_by_count.get(count, 0) < _ALTERNATIVES:
                sets_by_count[count] = sets_by_count.get(count, 0) + 1
                self.options.append(Option(moved, count))
        self.known_size = size
        if below >= self.max_count or any(option.count >= self.max_count for option in self.options):
            self.known_size = len(self.movable)  # no larger set allows more
        return True

    def node_without(self, moved: t.Sequence[int]) -> Node:
        """The node without these pods and their claims."""
        if not moved:
            return self.node
        return self.node.without([claim for number in moved for claim in self.movable[number].claims])

    def _room(self, node: Node) -> int:
        room, _resource = pods.room(node, self.question.requests)
        return self.question.count if room is None else min(room, self.question.count)

    def _max_count(self, size: int) -> int:
        """An upper bound of the pods that fit after any `size` pods are moved. It never decreases with the size."""
        return min([self.question.count, *(supply.max_pods(size) for supply in self._supplies)])

    def _count(self, moved: tuple[int, ...]) -> int:
        node = self.node_without(moved)
        room = self._room(node)
        state = self.question.states.state_of(
            replace(node, name=f"{node.name} without {','.join(map(str, moved))}"), self.question.workload
        )
        count = state.count_up_to(room)
        if count < room and (state.refusal is None or state.refusal.unknown) and self.uncertain_size is None:
            self.uncertain_size = len(moved)
        return count


def _supplies(question: Question, node: Node, movable: t.Sequence[Movable]) -> list[_Supply]:
    """The devices and resources of a node that limit the count."""
    owners = node.owners()
    owner_of = [owners.get(identify(offer)) for offer in node.offers]
    supplies = []
    for selected, need in _needs(question, node):
        selected_owners = [owner_of[number] for number in selected]
        freed = [sum(owner in pod.claims for owner in selected_owners) for pod in movable]
        supplies.append(_Supply(selected_owners.count(None), need, freed))
    free = node.free_resources()
    if free is None:
        return supplies
    placed = [[other for other in node.pods if set(other.claims) & set(pod.claims)] for pod in movable]
    for name, need in {**question.requests, PODS: 1}.items():
        if need:
            freed = [sum({**other.requests, PODS: 1}.get(name, 0) for other in others) for others in placed]
            supplies.append(_Supply(free.get(name, 0), need, freed))
    return supplies


def _needs(question: Question, node: Node) -> list[tuple[set[int], int]]:
    """Sets of positions of devices, and the minimum number of each set that one pod of the workload takes.

    Requests whose number of devices cannot be bounded are left out: requests for all devices, with admin access, or for
    devices that can be shared.
    """
    needs: dict[frozenset[int], int] = {}
    for claim in question.workload.claims:
        for request in claim["devices"].get("requests") or ():
            bodies = alternatives(request)
            if any(body.get("adminAccess") or body.get("allocationMode") == "All" for body in bodies):
                continue
            selected = frozenset().union(*(_selected(question, node, body) for body in bodies))
            if any(node.offers[number].device.get("allowMultipleAllocations") for number in selected):
                continue
            min_count = min(int(body.get("count") or 1) for body in bodies)
            needs[selected] = needs.get(selected, 0) + min_count
    return [(set(selected), count) for selected, count in needs.items()]


def _selected(question: Question, node: Node, body: ObjectView) -> frozenset[int]:
    """The positions of devices that a request may get with its selectors and tolerations.

    Devices for which this is unknown are included.
    """
    classes, cache = question.fleet.classes, question.states.cache
    if body.get("deviceClassName") not in classes:
        return frozenset()
    texts = expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])
    return frozenset(
        number
        for number, offer in enumerate(node.offers)
        if tolerates_taints(dict(body), offer) and all(_matches(cache, text, node, number) for text in texts)
    )


def _matches(cache: SelectorCache, text: str, node: Node, number: int) -> bool:
    offer = node.offers[number]
    if offer.unknown or offer.assumed:
        return True
    try:
        return bool(cache.matches(text, offer.device, offer.driver))
    except (EvaluationError, Uncheckable):
        return True


def options_key(states: States, node: Node, movable: t.Sequence[Movable], workload: Workload) -> tuple[t.Hashable, ...]:
    """A key that is equal for nodes with the same options, if their movable pods are in the same order."""
    positions: dict[DeviceId, int] = {identify(offer): number for number, offer in enumerate(node.offers)}
    devices: dict[str, list[int]] = {}
    for device in node.held:
        devices.setdefault(device.owner, []).append(positions.get(device.result.id, -1))
    requests = {pod.claims: sorted(pod.requests.items()) for pod in node.pods if pod.claims}
    movable_pods = tuple(
        (
            tuple(sorted(number for claim in pod.claims for number in devices.get(claim, ()))),
            str(requests.get(pod.claims)),
        )
        for pod in movable
    )
    free = node.free_resources()
    free_key = None if free is None else tuple(sorted(free.items()))
    return states.key(node), pods.refuses(node, workload.pod), free_key, movable_pods
