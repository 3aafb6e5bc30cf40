# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many pods of a workload fit on one node after some of its pods are moved away.

Every set of pods is tried, small ones first. An upper bound of the count, from the number of free devices that a
request selects, rules out most sets without a search.
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
from .fleet import Fleet, Node, Workload
from .movable import Movable
from .states import States

#: The maximum number of sets of one size with the same count that are kept as alternatives.
_ALTERNATIVES = 4


@dataclass(frozen=True)
class Option:
    """How many pods of the workload fit after some pods are moved away.

    `moved` are their positions among the movable pods of the node.
    """

    moved: tuple[int, ...]
    count: int


class SearchBudget:
    """The number of sets of pods that may still be searched."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        """Count one search. Returns whether it is within the budget."""
        self.left -= 1
        return self.left >= 0


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
        self._needs = [] if refused else _needs(question, node)
        self.max_count = 0 if refused else self._upper_bound(tuple(range(len(movable))))
        if not self.max_count:
            self.known_size = len(movable)

    @property
    def complete(self) -> bool:
        """Whether all sets are known."""
        return self.known_size >= len(self.movable)

    def lower_bounds(self) -> list[tuple[int, int]]:
        """Sizes of sets and the counts that they allow at most: the known options, and optimistic entries for unknown
        ones."""
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
        sets_by_count: dict[int, int] = {}
        for moved in itertools.combinations(range(len(self.movable)), size):
            bound = self._upper_bound(moved)
            if bound <= below or sets_by_count.get(bound, 0) >= _ALTERNATIVES:
                continue
            if not budget.take():
                return False
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

    def _upper_bound(self, moved: tuple[int, ...]) -> int:
        """An upper bound of the pods that fit without these pods. It never decreases when more pods are moved away."""
        node = self.node_without(moved)
        taken = node.owners()
        free = {number for number, offer in enumerate(node.offers) if identify(offer) not in taken}
        counts = [len(free & selected) // count for selected, count in self._needs]
        return min([self._room(node), *counts])

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
