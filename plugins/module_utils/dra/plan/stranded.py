# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Free devices that no workload can use in the current state, and what blocks each.

A device can be used by a workload if some allocation of its claims on the node has the device. The scheduler takes the
first devices that fit, but it comes to the others once these are taken.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..cel.engine import Engine
from ..claims.selector_memory import SelectorMemory
from ..kube.objects import ObjectView
from ..scheduler.answers import Allocation, Refusal
from ..scheduler.node_memory import NodeMemory
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from . import pods
from .fleet import Fleet, Node, Workload
from .states import MOST, States, placed
from .wanted import THIS, Ask, Wanted, pinned, ways


@dataclass(frozen=True)
class Stranded:
    """A free device that none of the workloads can use.

    `holders` are claims, `namespace/name`, each of which makes the device usable if it alone ends; where there are
    none, `together` are those that all have to end, and without these too `reason` is a fact about the device or the
    node. `certain` is False where it may be usable.
    """

    node: str
    device: str
    reason: str
    holders: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    certain: bool = True


def stranded(
    fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine, states: States | None = None
) -> list[Stranded]:
    """The stranded devices of a fleet by node, in the order of its drivers and pools.

    Devices that a claim has are not free. Devices that a selector of no workload can ever select are left out: they
    do not concern these workloads. `states` are those of `fit` for the same fleet and workloads: what was
    searched for there is not searched for again.
    """
    if states is None or not states.serves(fleet):
        states = States(fleet, workloads, engine)
    question = _Question(fleet, workloads, states)
    known: dict[tuple[t.Hashable, ...], list[tuple[int, Stranded]]] = {}
    found = []
    for node in fleet.nodes.values():
        refusals = tuple(pods.refuses(node, workload.pod) for workload in workloads)
        owners = list(dict.fromkeys(one.owner for one in node.held))
        key = (states.key(node), refusals, tuple(owners.index(one.owner) for one in node.held))
        if key not in known:
            known[key] = _of_node(question, node, refusals)
        found += [_for(node, owners, number, one) for number, one in known[key]]
    return found


def _for(node: Node, owners: t.Sequence[str], number: int, one: Stranded) -> Stranded:
    """A result for a node in the same state, with the names of this node. Holders are positions among `owners`."""
    return replace(
        one,
        node=node.name,
        device="/".join(identify(node.offers[number])),
        holders=tuple(sorted(owners[int(holder)] for holder in one.holders)),
        together=tuple(sorted(owners[int(holder)] for holder in one.together)),
    )


@dataclass
class _Question:
    """What is asked about every node. `_hopeless` are devices that are stranded even if nothing is in use, by shape."""

    fleet: Fleet
    workloads: t.Sequence[Workload]
    states: States
    wanted: list[Wanted] = field(default_factory=list)
    _hopeless: dict[tuple[t.Hashable, ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wanted = [Wanted(self.fleet, workload, self.states.memory) for workload in self.workloads]

    def placed(self, node: Node, refusals: t.Sequence[str]) -> set[int]:
        """The positions of devices that are sure to be usable: pods that are placed one after the other get them."""
        found: set[int] = set()
        for workload, refused in zip(self.workloads, refusals):
            if not refused:
                state = self.states.of(node, workload)
                state.upto(MOST + 1)
                found.update(position for one in state.found for position in one)
        return found

    def hopeless(self, node: Node, number: int, refusals: t.Sequence[str]) -> bool:
        """Whether a device is stranded although no claim has any device of the node."""
        key = (self.states.shape(node), number, tuple(refusals))
        if key not in self._hopeless:
            self._hopeless[key] = not self.usable(replace(node, held=()), node.offers[number], refusals)
        return self._hopeless[key]

    def usable(self, node: Node, offer: Offer, refusals: t.Sequence[str]) -> bool:
        """Whether a workload can use a device."""
        return any(
            self._refusal(node, offer, wanted, ask, explain=False) is None
            for wanted, refused in zip(self.wanted, refusals)
            if not refused
            for ask in wanted.asking(offer)
        )

    def refusal(self, node: Node, offer: Offer, refusals: t.Sequence[str]) -> Refusal | None:
        """Why the first workload that asks for such devices cannot use one; None if one can, or none asks."""
        first: Refusal | None = None
        for wanted, refused in zip(self.wanted, refusals):
            for ask in wanted.asking(offer):
                if refused:
                    first = first or Refusal(refused, "", "refused")
                    continue
                answer = self._refusal(node, offer, wanted, ask, explain=True)
                if answer is None:
                    return None
                if first is None or (answer.unknown and not first.unknown):
                    first = answer
        return first

    def _refusal(self, node: Node, offer: Offer, wanted: Wanted, ask: Ask, explain: bool) -> Refusal | None:
        """Why no allocation of the workload has this device for this request; None where one has."""
        claim, number, way = ask
        claims = list(wanted.workload.claims)
        body = ways(claims[claim]["devices"]["requests"][number])[way]
        takes_all = body.get("allocationMode") == "All"
        if not takes_all:
            claims[claim] = {**claims[claim], "devices": pinned(claims[claim]["devices"], number, way)}
        asked = replace(wanted.workload, claims=tuple(claims))
        memory = NodeMemory(node.offers, _ThisDevice(self.states.memory, offer))
        answer = placed(self.fleet, asked, memory, [one.result for one in node.held], node.unclear, explain)
        if isinstance(answer, Refusal):
            return answer
        if takes_all and not _has(answer, offer):
            return Refusal("a request for all devices leaves it out", "", "selector")
        return None


class _ThisDevice:
    """An engine that knows one more expression, which selects one device."""

    def __init__(self, engine: SelectorMemory, offer: Offer) -> None:
        self._engine = engine
        self._device = offer.device

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        if expression == THIS:
            return device is self._device
        return self._engine.matches(expression, device, driver)


def _of_node(question: _Question, node: Node, refusals: t.Sequence[str]) -> list[tuple[int, Stranded]]:
    """The stranded devices by their position among the node's; holders are positions among its different owners."""
    owners = list(dict.fromkeys(one.owner for one in node.held))
    taken = node.owners()
    usable = question.placed(node, refusals)
    found = []
    for number, offer in enumerate(node.offers):
        if number in usable or identify(offer) in taken or offer.possible:
            continue
        refusal = question.refusal(node, offer, refusals)
        if refusal is None:
            continue
        if refusal.unknown:
            found.append((number, Stranded(node.name, "", refusal.reason, certain=False)))
            continue
        alone, together = _holders(question, node, number, refusals)
        holders, others = (tuple(str(owners.index(one)) for one in some) for some in (alone, together))
        found.append((number, Stranded(node.name, "", refusal.reason, holders, others)))
    return found


def _holders(question: _Question, node: Node, number: int, refusals: t.Sequence[str]) -> tuple[list[str], list[str]]:
    """The claims each of which makes the device usable by ending; where there are none, those that do so together."""
    if not node.held or question.hopeless(node, number, refusals):
        return [], []
    offer = node.offers[number]
    owners = _involved(question, node, offer, refusals)
    alone = [owner for owner in owners if question.usable(node.without([owner]), offer, refusals)]
    if alone:
        return alone, []
    needed = list(owners)
    for owner in owners:  # keep every claim that can stay
        fewer = [one for one in needed if one != owner]
        if question.usable(node.without(fewer), offer, refusals):
            needed = fewer
    return [], needed


def _involved(question: _Question, node: Node, offer: Offer, refusals: t.Sequence[str]) -> list[str]:
    """The claims that have a device which an allocation with this one may have, or depend on."""
    asking = [wanted for wanted, refused in zip(question.wanted, refusals) if not refused]
    found = [one.owner for one in node.held if any(wanted.together(offer, one.result.offer) for wanted in asking)]
    return list(dict.fromkeys(found))


def _has(answer: Allocation, offer: Offer) -> bool:
    return any(one.id == identify(offer) for one in answer.results)
