# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Why a node has no pairs for a claim, GPU by GPU: which device is free, and what keeps its partner."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..kube.objects import Object, ObjectView, Scalar
from ..scheduler.search_devices import DeviceId, attribute, identify, tolerated
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import Engine
from ..vendors.offer import Offer
from .pair_form import PairForm, pair_forms

_SHOWN = 3
#: Free devices without a partner that are listed before the others are only counted.
_LISTED = 4


def pair_reason(
    asked: ObjectView,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: Engine,
    held: t.Mapping[DeviceId, str] | None = None,
) -> str:
    """Why a claim gets too few pairs on a node; empty where pairs are not the reason.

    `asked` are the `devices` of a v1 claim, `held` the devices that other claims have, each with its claim.
    """
    node = _Node(classes, offered, engine, held or {})
    found = _nearest(node, asked)
    if not found:
        return ""
    if not any(one.devices for one in found):
        return (
            "none of the GPUs that this claim was rendered for is here: it is another board. Probe the node and render "
            "the claims again"
        )
    need = len({one.request for one in found})
    worst = min(found, key=lambda one: one.most())
    if worst.most() >= need:
        return ""
    missing = worst.missing()
    more = f"; and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    listed = ": " + "; ".join(missing[:_SHOWN]) + more if missing else ""
    return f"{worst.most()} of {need} nearest pairs are possible{listed}"


def unpaired(
    asked: ObjectView,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: Engine,
    held: t.Mapping[DeviceId, str],
) -> list[str]:
    """The devices of a node that are free, while all that a claim would pair them with cannot be given away.

    `asked` are the `devices` of a v1 claim, with nearest pairs or with pairs by `matchAttribute`.
    """
    node = _Node(classes, offered, engine, held)
    found = [*_nearest(node, asked), *_matching(node, asked)]
    return list(dict.fromkeys(text for one in found for text in [*one.alone(), *one.turned().alone()]))


def unpaired_lines(nodes: t.Mapping[str, t.Sequence[str]]) -> list[str]:
    """The results of `unpaired` for each node as lines of text; of many, only the first ones."""
    lines = [f"  {name}: {one}" for name, found in nodes.items() for one in found]
    more = len(lines) - _LISTED
    return lines[:_LISTED] + ([f"  and {more} more free devices whose partners are in use"] if more > 0 else [])


class _Node:
    """The devices of a node, and whether they can be given away."""

    def __init__(
        self,
        classes: t.Mapping[str, Object],
        offered: t.Sequence[Offer],
        engine: Engine,
        held: t.Mapping[DeviceId, str],
    ) -> None:
        self.classes, self.offered, self.engine, self.held = classes, offered, engine, held

    def matching(self, body: ObjectView) -> list[Offer]:
        texts = expressions([*class_selectors(self.classes, body), *(body.get("selectors") or ())])
        return [one for one in self.offered if all(self._matches(text, one) for text in texts)]

    def _matches(self, text: str, offer: Offer) -> bool:
        try:
            return self.engine.matches(text, offer.device, offer.driver)
        except (EvaluationError, Uncheckable):
            return False

    def kept(self, body: ObjectView, offer: Offer) -> str:
        """Why a device cannot be given away; empty where it can."""
        if identify(offer) in self.held:
            owner = self.held[identify(offer)]
            return f"in use by {owner}" if owner else "in use"
        if tolerated(body, offer):
            return ""
        return "tainted with " + ", ".join(taint["key"] for taint in offer.device.get("taints") or ())


class _Pairs:
    """The devices of one request on a node, each with those of another that it is paired with.

    `devices` has, by address, why a device cannot be given away (empty if it can), and the same for each of its
    partners; `names` are what the devices of the two requests are called.
    """

    def __init__(self, request: str, names: tuple[str, str]) -> None:
        self.request, self.names = request, names
        self.devices: dict[str, tuple[str, dict[str, str]]] = {}

    def most(self) -> int:
        """How many pairs are possible at the same time (Kuhn's algorithm)."""
        partner: dict[str, str] = {}

        def paired(one: str, seen: set[str]) -> bool:
            for other, kept in self.devices[one][1].items():
                if not kept and other not in seen:
                    seen.add(other)
                    if other not in partner or paired(partner[other], seen):
                        partner[other] = one
                        return True
            return False

        return sum(paired(one, set()) for one, (kept, _others) in self.devices.items() if not kept)

    def alone(self) -> list[str]:
        """The free devices none of whose partners is free."""
        mine, its = self.names
        found = []
        for one, (kept, others) in self.devices.items():
            if not kept and others and all(others.values()):
                other, why = next(iter(others.items()))
                found.append(f"{mine} {one} is free, its {its} {other} is {why}")
        return found

    def missing(self) -> list[str]:
        """What each device lacks, those that are free first."""
        mine, its = self.names
        lonely = [
            f"{mine} {one} is free, and no {its} here is its nearest one"
            for one, (kept, others) in self.devices.items()
            if not kept and not others
        ]
        return [
            *self.alone(),
            *lonely,
            *(f"{mine} {one} is {kept}" for one, (kept, _others) in self.devices.items() if kept),
        ]

    def turned(self) -> _Pairs:
        """The same pairs, seen from the partners."""
        found = _Pairs(self.request, (self.names[1], self.names[0]))
        for one, (kept, others) in self.devices.items():
            for other, why in others.items():
                found.devices.setdefault(other, (why, {}))[1][one] = kept
        return found


def _nearest(node: _Node, asked: ObjectView) -> list[_Pairs]:
    """The pairs of `align: nearest`, by the alternatives of their requests."""
    bodies = {
        (request["name"], sub["name"]): sub
        for request in asked.get("requests") or ()
        for sub in request.get("firstAvailable") or ()
    }
    return [_of_form(node, form, bodies) for form in pair_forms(asked)]


def _of_form(node: _Node, form: PairForm, bodies: t.Mapping[tuple[str, str], ObjectView]) -> _Pairs:
    found = _Pairs(form.first, ("GPU", "NIC"))
    for ours in form.ours:
        body = bodies[form.first, ours]
        nics = {
            nic.address: node.kept(bodies[form.second, theirs], nic)
            for theirs in form.theirs
            if form.allowed(ours, theirs)
            for nic in node.matching(bodies[form.second, theirs])
        }
        for gpu in node.matching(body):
            found.devices.setdefault(gpu.address, (node.kept(body, gpu), nics))
    return found


def _matching(node: _Node, asked: ObjectView) -> list[_Pairs]:
    """The pairs that have an attribute in common: those of the first request of a constraint with each other one."""
    bodies = {
        str(request["name"]): request["exactly"] for request in asked.get("requests") or () if request.get("exactly")
    }
    found = []
    for constraint in asked.get("constraints") or ():
        name = constraint.get("matchAttribute")
        covered = [str(one) for one in constraint.get("requests") or bodies]
        if not name or len(covered) < 2 or not all(one in bodies for one in covered):
            continue
        first, *others = covered
        for other in others:
            pairs = _Pairs(first, (_called(first), _called(other)))
            partners = [(it, _values(it, name)) for it in node.matching(bodies[other])]
            for one in node.matching(bodies[first]):
                values = _values(one, name)
                same = [it for it, its in partners if values & its and it is not one]
                kept = {_shown(it): node.kept(bodies[other], it) for it in same}
                pairs.devices[_shown(one)] = (node.kept(bodies[first], one), kept)
            found.append(pairs)
    return found


def _values(offer: Offer, name: str) -> set[tuple[str, Scalar]]:
    """What a constraint compares: devices match that have a value in common, of a list too."""
    return {
        (kind.rstrip("s"), one)
        for kind, value in (attribute(offer, name) or {}).items()
        for one in (value if isinstance(value, list) else [value])
    }


def _shown(offer: Offer) -> str:
    """The PCI address of a device; its name where it has none."""
    return offer.address or str(offer.device["name"])


def _called(request: str) -> str:
    """What a device is called in the inventory: its request without the number of the repetition."""
    name, _dash, number = request.rpartition("-")
    return name if number.isdecimal() and name else request
