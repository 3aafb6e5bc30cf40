# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Free devices that no workload can use in the current state, and what prevents the use of each.

A workload can use a device if some allocation of the workload's claims on the node includes the device. The scheduler
takes the first devices that fit, and takes other devices only after the first ones are in use.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..cel.engine import Engine
from ..claims.selector_cache import SelectorCache
from ..kube.objects import ObjectView, alternatives
from ..scheduler.answers import Allocation, Refusal
from ..scheduler.node_cache import NodeCache
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from . import pods
from .fleet import Fleet, Node, Workload
from .request_matches import THIS_DEVICE, RequestKey, RequestMatches, with_pinned_device
from .states import MAX_PLACEMENTS, States, allocate_pod


@dataclass(frozen=True)
class Stranded:
    """A free device that none of the workloads can use.

    `holders` are claims, `namespace/name`. The device becomes usable if any one of them is deleted. If there are none,
    `together` are claims that must all be deleted. If both are empty, no claim is the cause, and `reason` is a fact
    about the device or the node. `certain` is False if the device may be usable.
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
    """The stranded devices of a fleet, node by node, in the order of the node's devices.

    Devices that are allocated, or that no workload's selectors select, are left out. `states` are those that `fit` used
    for the same fleet and workloads: with them, searches are not repeated.
    """
    if states is None or not states.serves(fleet):
        states = States(fleet, workloads, engine)
    search = _StrandedSearch(fleet, workloads, states)
    known: dict[tuple[t.Hashable, ...], list[tuple[int, Stranded]]] = {}
    stranded_devices = []
    for node in fleet.nodes.values():
        refusals = tuple(pods.refuses(node, workload.pod) for workload in workloads)
        owners = list(dict.fromkeys(device.owner for device in node.held))
        key = (states.key(node), refusals, tuple(owners.index(device.owner) for device in node.held))
        if key not in known:
            known[key] = _stranded_on(search, node, refusals)
        stranded_devices += [
            _renamed_for(node, owners, number, stranded_device) for number, stranded_device in known[key]
        ]
    return stranded_devices


def _renamed_for(node: Node, owners: t.Sequence[str], number: int, stranded_device: Stranded) -> Stranded:
    """A result of `_stranded_on` with the names of a node in the same state.

    `number` is the position of the device. `holders` and `together` of `stranded_device` are positions in `owners`.
    """
    return replace(
        stranded_device,
        node=node.name,
        device="/".join(identify(node.offers[number])),
        holders=tuple(sorted(owners[int(holder)] for holder in stranded_device.holders)),
        together=tuple(sorted(owners[int(holder)] for holder in stranded_device.together)),
    )


@dataclass
class _StrandedSearch:
    """Finds the stranded devices of nodes.

    `_always_stranded` caches whether a device is stranded even if no device is allocated, by the shape of the node, the
    position of the device and the refusals of the workloads.
    """

    fleet: Fleet
    workloads: t.Sequence[Workload]
    states: States
    matches: list[RequestMatches] = field(default_factory=list)
    _always_stranded: dict[tuple[t.Hashable, ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.matches = [RequestMatches(self.fleet, workload, self.states.cache) for workload in self.workloads]

    def surely_usable(self, node: Node, refusals: t.Sequence[str]) -> set[int]:
        """The positions of devices that are certainly usable: pods get them if placed one after the other."""
        positions: set[int] = set()
        for workload, refused in zip(self.workloads, refusals):
            if not refused:
                state = self.states.state_of(node, workload)
                state.count_up_to(MAX_PLACEMENTS + 1)
                positions.update(position for placement in state.placements for position in placement)
        return positions

    def always_stranded(self, node: Node, number: int, refusals: t.Sequence[str]) -> bool:
        """Whether a device is stranded even if no device of the node is allocated."""
        key = (self.states.shape(node), number, tuple(refusals))
        if key not in self._always_stranded:
            self._always_stranded[key] = not self.usable(replace(node, held=()), node.offers[number], refusals)
        return self._always_stranded[key]

    def usable(self, node: Node, offer: Offer, refusals: t.Sequence[str]) -> bool:
        """Whether some workload can use a device. `refusals` has why the node takes no pod of each workload."""
        return any(
            self._refusal(node, offer, matches, request, explain=False) is None
            for matches, refused in zip(self.matches, refusals)
            if not refused
            for request in matches.requests_for(offer)
        )

    def refusal(self, node: Node, offer: Offer, refusals: t.Sequence[str]) -> Refusal | None:
        """Why the first workload that requests such devices cannot use this one.

        None if some workload can use it, or if no workload requests such devices.
        """
        first: Refusal | None = None
        for matches, refused in zip(self.matches, refusals):
            for request in matches.requests_for(offer):
                if refused:
                    first = first or Refusal(refused, "", "refused")
                    continue
                answer = self._refusal(node, offer, matches, request, explain=True)
                if answer is None:
                    return None
                if first is None or (answer.unknown and not first.unknown):
                    first = answer
        return first

    def _refusal(
        self, node: Node, offer: Offer, matches: RequestMatches, request: RequestKey, explain: bool
    ) -> Refusal | None:
        """Why no allocation of the workload has this device for this request; None if an allocation has it."""
        claim, number, alternative = request
        claims = list(matches.workload.claims)
        body = alternatives(claims[claim]["devices"]["requests"][number])[alternative]
        takes_all = body.get("allocationMode") == "All"
        if not takes_all:
            devices = with_pinned_device(claims[claim]["devices"], number, alternative)
            claims[claim] = {**claims[claim], "devices": devices}
        pinned = replace(matches.workload, claims=tuple(claims))
        cache = NodeCache(node.offers, _ThisDevice(self.states.cache, offer))
        answer = allocate_pod(self.fleet, pinned, cache, [device.result for device in node.held], node.unclear, explain)
        if isinstance(answer, Refusal):
            return answer
        if takes_all and not _includes(answer, offer):
            return Refusal("a request for all devices does not include it", "", "selector")
        return None


class _ThisDevice:
    """A selector engine in which the expression THIS_DEVICE selects one device."""

    def __init__(self, engine: SelectorCache, offer: Offer) -> None:
        self._engine = engine
        self._device = offer.device

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        if expression == THIS_DEVICE:
            return device is self._device
        return self._engine.matches(expression, device, driver)


def _stranded_on(search: _StrandedSearch, node: Node, refusals: t.Sequence[str]) -> list[tuple[int, Stranded]]:
    """The stranded devices of a node, each with its position among the node's devices.

    `holders` and `together` are positions among the claims that have devices of the node.
    """
    owners = list(dict.fromkeys(device.owner for device in node.held))
    taken = node.owners()
    usable = search.surely_usable(node, refusals)
    stranded_devices = []
    for number, offer in enumerate(node.offers):
        if number in usable or identify(offer) in taken or offer.possible:
            continue
        refusal = search.refusal(node, offer, refusals)
        if refusal is None:
            continue
        if refusal.unknown:
            stranded_devices.append((number, Stranded(node.name, "", refusal.reason, certain=False)))
            continue
        alone, together = _holders(search, node, number, refusals)
        holders, others = (tuple(str(owners.index(owner)) for owner in group) for group in (alone, together))
        stranded_devices.append((number, Stranded(node.name, "", refusal.reason, holders, others)))
    return stranded_devices


def _holders(
    search: _StrandedSearch, node: Node, number: int, refusals: t.Sequence[str]
) -> tuple[list[str], list[str]]:
    """The claims each of which makes the device usable if it is deleted, and claims that must all be deleted.

    The second list is empty if the first is not.
    """
    if not node.held or search.always_stranded(node, number, refusals):
        return [], []
    offer = node.offers[number]
    owners = _involved_owners(search, node, offer, refusals)
    alone = [owner for owner in owners if search.usable(node.without([owner]), offer, refusals)]
    if alone:
        return alone, []
    needed = list(owners)
    for owner in owners:  # drop every claim that does not need to be deleted
        fewer = [other for other in needed if other != owner]
        if search.usable(node.without(fewer), offer, refusals):
            needed = fewer
    return [], needed


def _involved_owners(search: _StrandedSearch, node: Node, offer: Offer, refusals: t.Sequence[str]) -> list[str]:
    """The claims that have a device which an allocation with this device may include or depend on."""
    accepted = [matches for matches, refused in zip(search.matches, refusals) if not refused]
    involved = [
        held.owner
        for held in node.held
        if any(matches.may_be_allocated_with(offer, held.result.offer) for matches in accepted)
    ]
    return list(dict.fromkeys(involved))


def _includes(answer: Allocation, offer: Offer) -> bool:
    return any(result.id == identify(offer) for result in answer.results)
