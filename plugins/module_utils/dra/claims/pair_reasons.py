# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Why a node has no nearest pairs for a claim, GPU by GPU."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..kube.objects import Object
from ..scheduler.search_devices import DeviceId, identify, tolerated
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import Engine
from ..vendors.offer import Offer
from .pair_form import PairForm, pair_forms

_SHOWN = 3


def pair_reason(
    asked: Object,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: Engine,
    held: t.Collection[DeviceId] = (),
) -> str:
    """Why a claim gets too few pairs on a node; empty where pairs are not the reason.

    `asked` are the `devices` of a v1 claim, `held` the devices that other claims have.
    """
    forms = pair_forms(asked)
    bodies = {
        (request["name"], sub["name"]): sub
        for request in asked.get("requests") or ()
        for sub in request.get("firstAvailable") or ()
    }
    node = _Node(classes, offered, engine, held)
    found = [_Pairs(node, form, bodies) for form in forms]
    if not found:
        return ""
    if not any(one.gpus for one in found):
        return (
            "none of the GPUs that this claim was rendered for is here: it is another board. Probe the node and render "
            "the claims again"
        )
    need = len({one.form.first for one in found})
    worst = min(found, key=lambda one: one.most())
    if worst.most() >= need:
        return ""
    says = worst.missing()
    more = f"; and {len(says) - _SHOWN} more" if len(says) > _SHOWN else ""
    listed = ": " + "; ".join(says[:_SHOWN]) + more if says else ""
    return f"{worst.most()} of {need} nearest pairs are possible{listed}"


class _Node:
    """The devices of a node, and whether they can be given away."""

    def __init__(
        self,
        classes: t.Mapping[str, Object],
        offered: t.Sequence[Offer],
        engine: Engine,
        held: t.Collection[DeviceId],
    ) -> None:
        self.classes, self.offered, self.engine, self.held = classes, offered, engine, held

    def matching(self, body: Object) -> list[Offer]:
        texts = expressions([*class_selectors(self.classes, body), *(body.get("selectors") or ())])
        return [one for one in self.offered if all(self._matches(text, one) for text in texts)]

    def _matches(self, text: str, offer: Offer) -> bool:
        try:
            return self.engine.matches(text, offer.device, offer.driver)
        except (EvaluationError, Uncheckable):
            return False

    def kept(self, body: Object, offer: Offer) -> str:
        """Why a device cannot be given away; empty where it can."""
        if identify(offer) in self.held:
            return "in use"
        if tolerated(body, offer):
            return ""
        return "tainted with " + ", ".join(taint["key"] for taint in offer.device.get("taints") or ())


class _Pairs:
    """The pairs of one form on a node."""

    def __init__(self, node: _Node, form: PairForm, bodies: t.Mapping[tuple[str, str], Object]) -> None:
        self.form = form
        self.gpus: dict[str, tuple[str, dict[str, str]]] = {}  # address: why it is kept; its NICs, why they are
        for ours in form.ours:
            body = bodies[form.first, ours]
            nics = {
                nic.address: node.kept(bodies[form.second, theirs], nic)
                for theirs in form.theirs
                if form.allowed(ours, theirs)
                for nic in node.matching(bodies[form.second, theirs])
            }
            for gpu in node.matching(body):
                self.gpus.setdefault(gpu.address, (node.kept(body, gpu), nics))

    def most(self) -> int:
        """How many pairs are possible at the same time (Kuhn's algorithm)."""
        partner: dict[str, str] = {}

        def found(gpu: str, seen: set[str]) -> bool:
            for nic, kept in self.gpus[gpu][1].items():
                if not kept and nic not in seen:
                    seen.add(nic)
                    if nic not in partner or found(partner[nic], seen):
                        partner[nic] = gpu
                        return True
            return False

        return sum(found(gpu, set()) for gpu, (kept, _nics) in self.gpus.items() if not kept)

    def missing(self) -> list[str]:
        """What each GPU lacks, those that are free first."""
        says = []
        for gpu, (kept, nics) in sorted(self.gpus.items(), key=lambda item: bool(item[1][0])):
            if kept:
                says.append(f"GPU {gpu} is {kept}")
            elif not nics:
                says.append(f"GPU {gpu} is free, and no NIC here is its nearest one")
            elif all(nics.values()):
                nic, why = next(iter(nics.items()))
                says.append(f"GPU {gpu} is free, its NIC {nic} is {why}")
        return says
