# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Nodes in the same state have the same answer, so it is searched for once.

A state is the part of a node's devices that matters to a workload: attributes that none of its selectors and
constraints names, such as serial numbers, do not count.
"""

from __future__ import annotations

import typing as t

from ..cel.engine import Engine
from ..claims.selector_memory import SelectorMemory
from ..claims.shapes import Sight, sight_of
from ..scheduler.allocator import answered
from ..scheduler.answers import Allocation, Refusal, Result
from ..scheduler.candidates import Question
from ..scheduler.node_memory import NodeMemory, Verdicts
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from .fleet import Fleet, Node, Workload

#: Placements on one node after which the count ends: a node takes fewer pods than that.
MOST = 4096
#: Looks at devices before a search gives up: a refusal takes a tenth of a second at most. The count is then a lower
#: bound.
BUDGET = 15_000
#: Looks at devices for all placements on one node: some seconds at most. The count is then a lower bound.
ALL_BUDGET = 40 * BUDGET


class State:
    """The placements of a workload on nodes of one state, one after the other as the scheduler would make them.

    `found` are the positions among the node's offers of the devices of each placement so far, `refusal` why there is
    no other; None while more may fit.
    """

    def __init__(
        self, fleet: Fleet, workload: Workload, node: Node, memory: SelectorMemory, verdicts: Verdicts
    ) -> None:
        self._fleet = fleet
        self._workload = workload
        self._place = {identify(offer): number for number, offer in enumerate(node.offers)}
        self._held = [one.result for one in node.held]
        self._blind = sorted(node.unclear)
        self._memory = NodeMemory(node.offers, memory, verdicts)
        self.found: list[tuple[int, ...]] = []
        self.refusal: Refusal | None = None
        self._looks = 0

    def upto(self, wanted: int) -> int:
        """How many placements there are, of at most `wanted`."""
        while len(self.found) < wanted and self.refusal is None:
            self._next()
        return min(len(self.found), wanted)

    def _next(self) -> None:
        answer = placed(self._fleet, self._workload, self._memory, self._held, self._blind)
        if isinstance(answer, Refusal):
            self.refusal = answer
            return
        self._looks += answer.looks
        self._held += answer.results
        self.found.append(tuple(self._place[one.id] for one in answer.results))
        if len(self.found) >= MOST or not any(not one.admin for one in answer.results):
            reason = f"counted no further than {len(self.found)}: nothing that it takes runs out"
            self.refusal = Refusal(reason, "claims", "budget")
        elif self._looks > ALL_BUDGET:
            reason = f"counted no further than {len(self.found)}: to search for more of them takes too long"
            self.refusal = Refusal(reason, "claims", "budget")


class States:
    """The states of a fleet's nodes, by workload. Offers have to live as long as this does.

    It also serves fleets that are made from this one by changes, as long as classes and server are the same (`serves`).
    """

    def __init__(self, fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine) -> None:
        self.fleet = fleet
        self.memory = SelectorMemory(engine)
        devices = [claim["devices"] for workload in workloads for claim in workload.claims]
        used = {name: fleet.classes[name] for name in _class_names(devices) if name in fleet.classes}
        self._sight: Sight = sight_of(devices, used)
        self._nodes: dict[int, Node] = {}  # kept, so that an id always means the same node
        self._keys: dict[int, t.Hashable] = {}
        self._shapes: dict[int, t.Hashable] = {}
        self._first: dict[t.Hashable, Node] = {}  # by shape
        self._verdicts: dict[t.Hashable, Verdicts] = {}  # by shape
        self._states: dict[tuple[str, t.Hashable], State] = {}

    def serves(self, fleet: Fleet) -> bool:
        """Whether nodes of another fleet can be asked for here."""
        return fleet.classes is self.fleet.classes and fleet.server is self.fleet.server

    def key(self, node: Node) -> t.Hashable:
        """Equal for nodes that no workload can distinguish, whatever room they have for pods."""
        if id(node) not in self._keys:
            self._nodes[id(node)] = node
            place = {identify(offer): number for number, offer in enumerate(node.offers)}
            held = sorted(
                (place.get(one.result.id, -1), one.result.admin, tuple(sorted(one.result.consumed.items())))
                for one in node.held
            )
            self._keys[id(node)] = (self.shape(node), tuple(held))
        return self._keys[id(node)]

    def shape(self, node: Node) -> t.Hashable:
        """Equal for nodes whose devices no workload can distinguish, whatever is in use."""
        if id(node) not in self._shapes:
            self._nodes[id(node)] = node
            pools = {pool: number for number, pool in enumerate(sorted({_pool(offer) for offer in node.offers}))}
            order = tuple(pools[_pool(offer)] for offer in node.offers)
            shape = (self._sight.of(node.offers), order, tuple(sorted(node.unclear)))
            self._shapes[id(node)] = shape
            first = self._first.setdefault(shape, node)
            if first is not node:
                self.memory.alike(node.offers, first.offers)
        return self._shapes[id(node)]

    def of(self, node: Node, workload: Workload) -> State:
        key = (workload.name, self.key(node))
        if key not in self._states:
            verdicts = self._verdicts.setdefault(self.shape(node), Verdicts())
            self._states[key] = State(self.fleet, workload, node, self.memory, verdicts)
        return self._states[key]


def _pool(offer: Offer) -> tuple[str, str]:
    return offer.driver, offer.pool


def placed(
    fleet: Fleet,
    workload: Workload,
    memory: NodeMemory,
    held: t.Sequence[Result],
    unclear: t.Iterable[str] = (),
    explain: bool = True,
) -> Allocation | Refusal:
    """What the scheduler gives the claims of one more pod on a node; see `allocator.allocate`."""
    question = Question(workload.claims, fleet.classes, memory, list(held), BUDGET, fleet.server.constraints)
    return answered(question, unclear, explain)


def _class_names(devices: t.Iterable[t.Mapping[str, t.Any]]) -> set[str]:
    found = set()
    for one in devices:
        for request in one.get("requests") or ():
            for body in request.get("firstAvailable") or [request.get("exactly") or {}]:
                found.add(str(body.get("deviceClassName")))
    return found
