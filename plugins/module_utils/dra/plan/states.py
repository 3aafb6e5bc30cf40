# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Nodes in the same state have the same answer, so it is searched for once.

A state is the part of a node's devices that matters to a workload: attributes that none of its selectors and
constraints names, such as serial numbers, do not count.
"""

from __future__ import annotations

import json
import typing as t

from ..cel.engine import Engine
from ..claims.selector_memory import SelectorMemory
from ..claims.shapes import Sight, sight_of
from ..scheduler.allocator import allocate
from ..scheduler.answers import Allocation, Refusal, Result
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from .fleet import Fleet, Node, Workload

#: Placements on one node after which the count ends: a node takes fewer pods than that.
MOST = 4096
#: Looks at devices before a search gives up: a refusal takes a tenth of a second at most. The count is then at least so
#: much.
BUDGET = 30_000


class State:
    """The placements of a workload on nodes of one state, one after the other as the scheduler would make them.

    `found` are the positions among the node's offers of the devices of each placement so far, `refusal` why there is
    no other; None while more may fit.
    """

    def __init__(self, fleet: Fleet, workload: Workload, node: Node, memory: SelectorMemory) -> None:
        self._fleet = fleet
        self._workload = workload
        self._offers = list(node.offers)
        self._place = {identify(offer): number for number, offer in enumerate(self._offers)}
        self._held = [one.result for one in node.held]
        self._blind = sorted(node.unclear)
        self._memory = memory
        self.found: list[tuple[int, ...]] = []
        self.refusal: Refusal | None = None

    def upto(self, wanted: int) -> int:
        """How many placements there are, of at most `wanted`."""
        while len(self.found) < wanted and self.refusal is None:
            self._next()
        return min(len(self.found), wanted)

    def _next(self) -> None:
        answer = placed(self._fleet, self._workload, self._offers, self._held, self._memory, self._blind)
        if isinstance(answer, Refusal):
            self.refusal = answer
            return
        self._held += answer.results
        self.found.append(tuple(self._place[one.id] for one in answer.results))
        if len(self.found) >= MOST or not any(not one.admin for one in answer.results):
            reason = f"counted no further than {len(self.found)}: nothing that it takes runs out"
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
        self._keys: dict[int, str] = {}
        self._shapes: dict[int, str] = {}
        self._states: dict[tuple[str, str], State] = {}

    def serves(self, fleet: Fleet) -> bool:
        """Whether nodes of another fleet can be asked for here."""
        return fleet.classes is self.fleet.classes and fleet.server is self.fleet.server

    def key(self, node: Node) -> str:
        """Equal for nodes that no workload can distinguish, whatever room they have for pods."""
        if id(node) not in self._keys:
            self._nodes[id(node)] = node
            place = {identify(offer): number for number, offer in enumerate(node.offers)}
            held = sorted(
                (place.get(one.result.id, -1), one.result.admin, sorted(one.result.consumed.items()))
                for one in node.held
            )
            self._keys[id(node)] = json.dumps([self.shape(node), held])
        return self._keys[id(node)]

    def shape(self, node: Node) -> str:
        """Equal for nodes whose devices no workload can distinguish, whatever is in use."""
        if id(node) not in self._shapes:
            self._nodes[id(node)] = node
            self._shapes[id(node)] = json.dumps([self._sight.of(node.offers), sorted(node.unclear)])
        return self._shapes[id(node)]

    def of(self, node: Node, workload: Workload) -> State:
        key = (workload.name, self.key(node))
        if key not in self._states:
            self._states[key] = State(self.fleet, workload, node, self.memory)
        return self._states[key]


def placed(
    fleet: Fleet,
    workload: Workload,
    offers: t.Sequence[Offer],
    held: t.Sequence[Result],
    engine: t.Any,
    unclear: t.Iterable[str] = (),
    explain: bool = True,
) -> Allocation | Refusal:
    """What the scheduler gives the claims of one more pod on a node; see `allocator.allocate`."""
    return allocate(
        list(workload.claims),
        fleet.classes,
        offers,
        engine,
        held=held,
        blind=unclear,
        constraints=fleet.server.constraints,
        budget=BUDGET,
        explain=explain,
    )


def _class_names(devices: t.Iterable[t.Mapping[str, t.Any]]) -> set[str]:
    found = set()
    for one in devices:
        for request in one.get("requests") or ():
            for body in request.get("firstAvailable") or [request.get("exactly") or {}]:
                found.add(str(body.get("deviceClassName")))
    return found
