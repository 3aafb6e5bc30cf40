# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Free devices that no workload can use as things are, and what keeps each from use.

A device can be used by a workload if some allocation of its claims on the node has the device. The scheduler takes the
first devices that fit, but it comes to the others once these are taken.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ..cel.engine import Engine
from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_memory import SelectorMemory
from ..kube.objects import Object, ObjectView
from ..scheduler.answers import Allocation, Refusal
from ..scheduler.search_devices import identify
from ..scheduler.search_requests import class_selectors, expressions
from ..vendors.offer import Offer
from . import pods
from .fleet import Fleet, Node, Workload
from .states import States, placed

#: Stands for the one device that a request is to get. No expression of a claim can be equal: CEL has no such letter.
_THIS = "\0this device"


@dataclass(frozen=True)
class Stranded:
    """A free device that none of the workloads can use.

    `holders` are claims, `namespace/name`, each of which frees the device for use if it alone goes; where there are
    none, `together` are those that all have to go, and without these too `reason` is a fact about the device or the
    node. `certain` is False where it may be usable.
    """

    node: str
    device: str
    reason: str
    holders: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    certain: bool = True


def stranded(fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine) -> list[Stranded]:
    """The stranded devices of a fleet by node, in the order of its drivers and pools.

    Devices that a claim has are not free. Devices that a selector of no workload can ever select are left out: they
    are none of these workloads' business.
    """
    states = States(fleet, workloads, engine)
    known: dict[tuple[t.Hashable, ...], list[tuple[int, Stranded]]] = {}
    found = []
    for node in fleet.nodes.values():
        refusals = tuple(pods.refuses(node, workload.pod) for workload in workloads)
        owners = list(dict.fromkeys(one.owner for one in node.held))
        key = (states.key(node), refusals, tuple(owners.index(one.owner) for one in node.held))
        if key not in known:
            known[key] = _of_node(_Question(fleet, workloads, states.memory), node, refusals)
        found += [_for(node, owners, number, one) for number, one in known[key]]
    return found


def _for(node: Node, owners: t.Sequence[str], number: int, one: Stranded) -> Stranded:
    """What was found of a node in the same state, with this one's names. Holders are positions among `owners`."""
    return replace(
        one,
        node=node.name,
        device="/".join(identify(node.offers[number])),
        holders=tuple(sorted(owners[int(holder)] for holder in one.holders)),
        together=tuple(sorted(owners[int(holder)] for holder in one.together)),
    )


@dataclass(frozen=True)
class _Question:
    fleet: Fleet
    workloads: t.Sequence[Workload]
    memory: SelectorMemory

    def usable(self, node: Node, offer: Offer, refusals: t.Sequence[str]) -> tuple[bool, Refusal | None]:
        """Whether a workload can use a device, and else why the first one that asks for such devices cannot."""
        first: Refusal | None = None
        for workload, refused in zip(self.workloads, refusals):
            for claim, number, way in _asking(self, workload, offer):
                if refused:
                    first = first or Refusal(refused, "", "refused")
                    continue
                answer = self._with(node, offer, workload, claim, number, way)
                if answer is None:
                    return True, None
                if first is None or (answer.unknown and not first.unknown):
                    first = answer
        return False, first

    def _with(self, node: Node, offer: Offer, workload: Workload, claim: int, number: int, way: int) -> Refusal | None:
        """Why no allocation of the workload has this device for this request; None where one has."""
        claims = list(workload.claims)
        body = _ways(claims[claim]["devices"]["requests"][number])[way]
        takes_all = body.get("allocationMode") == "All"
        if not takes_all:
            claims[claim] = {**claims[claim], "devices": _pinned(claims[claim]["devices"], number, way)}
        asked = replace(workload, claims=tuple(claims))
        engine = _ThisDevice(self.memory, offer)
        answer = placed(self.fleet, asked, node.offers, [one.result for one in node.held], engine, node.unclear)
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
        if expression == _THIS:
            return device is self._device
        return self._engine.matches(expression, device, driver)


def _of_node(question: _Question, node: Node, refusals: t.Sequence[str]) -> list[tuple[int, Stranded]]:
    """The stranded devices by their position among the node's; holders are positions among its different owners."""
    owners = list(dict.fromkeys(one.owner for one in node.held))
    taken = node.owners()
    found = []
    for number, offer in enumerate(node.offers):
        if identify(offer) in taken or offer.possible:
            continue
        usable, refusal = question.usable(node, offer, refusals)
        if usable or refusal is None:
            continue
        if refusal.unknown:
            found.append((number, Stranded(node.name, "", refusal.reason, certain=False)))
            continue
        alone, together = _holders(question, node, offer, refusals)
        holders, others = (tuple(str(owners.index(one)) for one in some) for some in (alone, together))
        found.append((number, Stranded(node.name, "", refusal.reason, holders, others)))
    return found


def _holders(question: _Question, node: Node, offer: Offer, refusals: t.Sequence[str]) -> tuple[list[str], list[str]]:
    """The claims each of which frees the device by going; where there are none, those that do so together."""
    owners = list(dict.fromkeys(one.owner for one in node.held))
    alone = [owner for owner in owners if question.usable(node.without([owner]), offer, refusals)[0]]
    if alone or not question.usable(node.without(owners), offer, refusals)[0]:
        return alone, []
    needed = list(owners)
    for owner in owners:  # what can stay, stays
        fewer = [one for one in needed if one != owner]
        if question.usable(node.without(fewer), offer, refusals)[0]:
            needed = fewer
    return [], needed


def _asking(question: _Question, workload: Workload, offer: Offer) -> t.Iterator[tuple[int, int, int]]:
    """The requests of a workload whose selectors select a device: claim, request and alternative."""
    for claim, spec in enumerate(workload.claims):
        for number, request in enumerate(spec["devices"].get("requests") or ()):
            for way, body in enumerate(_ways(request)):
                selectors = [*class_selectors(question.fleet.classes, body), *(body.get("selectors") or ())]
                if body.get("deviceClassName") not in question.fleet.classes:
                    continue
                try:
                    if all(question.memory.matches(one, offer.device, offer.driver) for one in expressions(selectors)):
                        yield claim, number, way
                except (EvaluationError, Uncheckable):
                    continue


def _ways(request: ObjectView) -> list[ObjectView]:
    return list(request.get("firstAvailable") or [request.get("exactly") or {}])


def _pinned(devices: ObjectView, number: int, way: int) -> Object:
    """A claim's devices in which one of those of a request, by one of its alternatives, is the device that _THIS is."""
    requests = [dict(request) for request in devices["requests"]]
    request = requests[number]
    name = str(request["name"])
    pinned = f"{name}-this"
    body = dict(_ways(request)[way])
    count = int(body.get("count") or 1)
    one = {**body, "count": 1, "selectors": [*(body.get("selectors") or ()), {"cel": {"expression": _THIS}}]}
    sub = "firstAvailable" in request and request["firstAvailable"]
    new = {"name": pinned, "firstAvailable": [one]} if sub else {"name": pinned, "exactly": one}
    rest = {**body, "count": count - 1}
    old = {"name": name, "firstAvailable": [rest]} if sub else {"name": name, "exactly": rest}
    requests[number : number + 1] = [new, old] if count > 1 else [new]
    constraints = []
    for constraint in devices.get("constraints") or ():
        names = constraint.get("requests")
        if names:
            more = [pinned + each[len(name) :] for each in names if each == name or each.startswith(f"{name}/")]
            kept = [each for each in names if count > 1 or not (each == name or each.startswith(f"{name}/"))]
            constraint = {**constraint, "requests": [*kept, *more]}
        constraints.append(constraint)
    return {**devices, "requests": requests, "constraints": constraints}


def _has(answer: Allocation, offer: Offer) -> bool:
    return any(one.id == identify(offer) for one in answer.results)
