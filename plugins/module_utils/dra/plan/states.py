# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Counts placements once for all nodes in the same state.

The state of a node is the part of its devices and allocations that matters to the workloads. Attributes that no
selector or constraint of the workloads names, such as serial numbers, are not part of the state.
"""

from __future__ import annotations

import typing as t

from ..cel.engine import Engine
from ..claims.selector_cache import SelectorCache
from ..claims.shapes import Fingerprinter, fingerprinter_of
from ..kube.objects import alternatives
from ..scheduler.allocator import answer_of
from ..scheduler.answers import Allocation, Refusal, Result
from ..scheduler.candidates import Question
from ..scheduler.node_cache import NodeCache, SuitabilityCache
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from .fleet import Fleet, Node, Workload

#: The maximum number of placements counted on one node. No real node takes that many pods.
MAX_PLACEMENTS = 4096
#: The number of devices that one search may examine, which takes at most a tenth of a second. If a search gives up, the
#: count is a lower bound.
SEARCH_BUDGET = 15_000
#: The number of devices that all searches on one node may examine, which takes some seconds. After that the count is a
#: lower bound.
NODE_SEARCH_BUDGET = 40 * SEARCH_BUDGET


class State:
    """The placements of a workload on nodes of one state, in the order in which the scheduler would make them.

    `placements` has the devices of each placement so far, as positions among the node's offers. `refusal` says why
    there is no further placement; None while more may fit.
    """

    def __init__(
        self, fleet: Fleet, workload: Workload, node: Node, cache: SelectorCache, suitability: SuitabilityCache
    ) -> None:
        self._fleet = fleet
        self._workload = workload
        self._position = {identify(offer): number for number, offer in enumerate(node.offers)}
        self._held = [device.result for device in node.held]
        self._uncertain = sorted(node.unclear)
        self._cache = NodeCache(node.offers, cache, suitability)
        self.placements: list[tuple[int, ...]] = []
        self.refusal: Refusal | None = None
        self._examined = 0

    def count_up_to(self, limit: int) -> int:
        """The number of placements, but at most `limit`."""
        while len(self.placements) < limit and self.refusal is None:
            self._search_next()
        return min(len(self.placements), limit)

    def _search_next(self) -> None:
        """Search for one more placement. Sets `refusal` if there is none, or if a limit is reached."""
        answer = allocate_pod(self._fleet, self._workload, self._cache, self._held, self._uncertain)
        if isinstance(answer, Refusal):
            self.refusal = answer
            return
        self._examined += answer.examined
        self._held += answer.results
        self.placements.append(tuple(self._position[result.id] for result in answer.results))
        if len(self.placements) >= MAX_PLACEMENTS or not any(not result.admin for result in answer.results):
            reason = f"counted only up to {len(self.placements)}: nothing that a pod takes runs out"
            self.refusal = Refusal(reason, "claims", "budget")
        elif self._examined > NODE_SEARCH_BUDGET:
            reason = f"counted only up to {len(self.placements)}: searching for more takes too long"
            self.refusal = Refusal(reason, "claims", "budget")


class States:
    """The states of a fleet's nodes, by workload. The caller must keep the offers alive.

    They can also be used for changed copies of the fleet that have the same classes and server (see `serves`).
    """

    def __init__(self, fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine) -> None:
        self.fleet = fleet
        self.cache = SelectorCache(engine)
        devices = [claim["devices"] for workload in workloads for claim in workload.claims]
        used = {name: fleet.classes[name] for name in _class_names(devices) if name in fleet.classes}
        self._fingerprinter: Fingerprinter = fingerprinter_of(devices, used, engine)
        self._nodes: dict[int, Node] = {}  # kept, so that an id always means the same node
        self._keys: dict[int, t.Hashable] = {}
        self._shapes: dict[int, t.Hashable] = {}
        self._first: dict[t.Hashable, Node] = {}  # by shape
        self._suitability: dict[t.Hashable, SuitabilityCache] = {}  # by shape
        self._states: dict[tuple[str, t.Hashable], State] = {}

    def serves(self, fleet: Fleet) -> bool:
        """Whether the states can be used for the nodes of another fleet."""
        return fleet.classes is self.fleet.classes and fleet.server is self.fleet.server

    def key(self, node: Node) -> t.Hashable:
        """A key that is equal for nodes whose devices and allocations no workload can distinguish."""
        if id(node) not in self._keys:
            self._nodes[id(node)] = node
            position = {identify(offer): number for number, offer in enumerate(node.offers)}
            held = sorted(
                (position.get(device.result.id, -1), device.result.admin, tuple(sorted(device.result.consumed.items())))
                for device in node.held
            )
            self._keys[id(node)] = (self.shape(node), tuple(held))
        return self._keys[id(node)]

    def shape(self, node: Node) -> t.Hashable:
        """A key that is equal for nodes whose devices no workload can distinguish, whatever is allocated."""
        if id(node) not in self._shapes:
            self._nodes[id(node)] = node
            pools = {pool: number for number, pool in enumerate(sorted({_pool(offer) for offer in node.offers}))}
            order = tuple(pools[_pool(offer)] for offer in node.offers)
            shape = (self._fingerprinter.fingerprint(node.offers), order, tuple(sorted(node.unclear)))
            self._shapes[id(node)] = shape
            first = self._first.setdefault(shape, node)
            if first is not node:
                self.cache.reuse_results(node.offers, first.offers)
        return self._shapes[id(node)]

    def state_of(self, node: Node, workload: Workload) -> State:
        """The state of a node for a workload; nodes in the same state share one State."""
        key = (workload.name, self.key(node))
        if key not in self._states:
            suitability = self._suitability.setdefault(self.shape(node), SuitabilityCache())
            self._states[key] = State(self.fleet, workload, node, self.cache, suitability)
        return self._states[key]


def _pool(offer: Offer) -> tuple[str, str]:
    return offer.driver, offer.pool


def allocate_pod(
    fleet: Fleet,
    workload: Workload,
    cache: NodeCache,
    held: t.Sequence[Result],
    unclear: t.Iterable[str] = (),
    explain: bool = True,
) -> Allocation | Refusal:
    """The devices that the scheduler would allocate to the claims of one more pod on a node, or why it would not.

    See `allocator.allocate`.
    """
    question = Question(workload.claims, fleet.classes, cache, list(held), SEARCH_BUDGET, fleet.server.constraints)
    return answer_of(question, unclear, explain)


def _class_names(devices: t.Iterable[t.Mapping[str, t.Any]]) -> set[str]:
    names = set()
    for claim_devices in devices:
        for request in claim_devices.get("requests") or ():
            for body in alternatives(request):
                names.add(str(body.get("deviceClassName")))
    return names
