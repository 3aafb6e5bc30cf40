# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Why a node has too few pairs for a claim: for each GPU, whether it is free, and why its partners are unavailable."""

from __future__ import annotations

import itertools
import typing as t
from collections import Counter

from ..cel.errors import EvaluationError, Uncheckable
from ..kube.objects import Object, ObjectView, Scalar
from ..scheduler.search_devices import DeviceId, attribute, blocking_taints, identify
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import Engine
from ..vendors.offer import Offer
from .pair_form import PairForm, pair_forms

#: The maximum number of reasons in a message; further reasons are only counted.
_MAX_REASONS = 3
#: The maximum number of free devices without a partner that are listed; further ones are only counted.
_MAX_LINES = 4


def pair_reason(
    requested: ObjectView,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: Engine,
    held: t.Mapping[DeviceId, str] | None = None,
) -> str:
    """Why a claim gets too few pairs on a node; empty if pairs are not the reason.

    `requested` are the `devices` of a v1 claim, `held` the devices of other claims, each with its claim.
    """
    node = _Node(classes, offered, engine, held or {})
    all_pairs = _nearest(node, requested)
    if not all_pairs:
        return ""
    if not any(pairs.devices for pairs in all_pairs):
        return (
            "the node has none of the GPUs that this claim was rendered for. If it has other GPUs, probe it and render "
            "the claims again"
        )
    required = len({pairs.request for pairs in all_pairs})
    worst = min(all_pairs, key=lambda pairs: pairs.max_pairs())
    if worst.max_pairs() >= required:
        return ""
    missing = worst.missing()
    more = f"; and {len(missing) - _MAX_REASONS} more" if len(missing) > _MAX_REASONS else ""
    listed = ": " + "; ".join(missing[:_MAX_REASONS]) + more if missing else ""
    return f"{worst.max_pairs()} of {required} nearest pairs are possible{listed}"


def unpaired(
    requested: ObjectView,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: Engine,
    held: t.Mapping[DeviceId, str],
) -> list[str]:
    """The free devices of a node whose possible partners for a claim are all unavailable.

    `requested` are the `devices` of a v1 claim, with nearest pairs or with pairs by `matchAttribute`. `held` are the
    devices that other claims have or prevent from being allocated, each with the claim.
    """
    node = _Node(classes, offered, engine, held)
    all_pairs = [*_nearest(node, requested), *_matching(node, requested)]
    return list(
        dict.fromkeys(
            text for pairs in all_pairs for text in [*pairs.without_partner(), *pairs.by_partner().without_partner()]
        )
    )


def unpaired_lines(nodes: t.Mapping[str, t.Sequence[str]]) -> list[str]:
    """The results of `unpaired` for each node as lines of text, up to a maximum number."""
    lines = [f"  {name}: {text}" for name, texts in nodes.items() for text in texts]
    more = len(lines) - _MAX_LINES
    return lines[:_MAX_LINES] + ([f"  and {more} more free devices whose partners are unavailable"] if more > 0 else [])


class _Node:
    """The devices of a node, and whether they can be allocated. `held` are the devices of claims, each with its
    claim."""

    def __init__(
        self,
        classes: t.Mapping[str, Object],
        offered: t.Sequence[Offer],
        engine: Engine,
        held: t.Mapping[DeviceId, str],
    ) -> None:
        self.classes, self.offered, self.engine, self.held = classes, offered, engine, held

    def matching(self, body: ObjectView) -> list[Offer]:
        """The devices that match the selectors of a request and its class."""
        texts = expressions([*class_selectors(self.classes, body), *(body.get("selectors") or ())])
        return [offer for offer in self.offered if all(self._matches(text, offer) for text in texts)]

    def _matches(self, text: str, offer: Offer) -> bool:
        try:
            return self.engine.matches(text, offer.device, offer.driver)
        except (EvaluationError, Uncheckable):
            return False

    def why_unavailable(self, body: ObjectView, offer: Offer) -> str:
        """Why a device cannot be allocated for a request; empty if it can."""
        if identify(offer) in self.held:
            owner = self.held[identify(offer)]
            return f"in use by {owner}" if owner else "in use"
        keys = dict.fromkeys(str(taint["key"]) for taint in blocking_taints(body, offer))
        return f"tainted with {', '.join(keys)}" if keys else ""


class _Pairs:
    """The devices of one request on a node, each with its possible partners, which are devices of another request.

    `devices` contains, by device, why it cannot be allocated (empty if it can), and the same for each of its partners.
    `names` are the names for a device and a partner in messages, `offers` and `partner_offers` the devices themselves.
    """

    def __init__(
        self, request: str, names: tuple[str, str], offers: t.Iterable[Offer], partner_offers: t.Iterable[Offer]
    ) -> None:
        self.request, self.names = request, names
        self.offers, self.partner_offers = tuple(offers), tuple(partner_offers)
        self.devices: dict[DeviceId, tuple[str, dict[DeviceId, str]]] = {}

    def max_pairs(self) -> int:
        """The number of pairs that are possible at the same time (Kuhn's algorithm)."""
        device_of: dict[DeviceId, DeviceId] = {}

        def paired(device: DeviceId, seen: set[DeviceId]) -> bool:
            for partner, reason in self.devices[device][1].items():
                if not reason and partner not in seen:
                    seen.add(partner)
                    if partner not in device_of or paired(device_of[partner], seen):
                        device_of[partner] = device
                        return True
            return False

        return sum(paired(device, set()) for device, (reason, _partners) in self.devices.items() if not reason)

    def without_partner(self) -> list[str]:
        """A sentence for each free device that has partners, but none that is available."""
        name, partner_name = self.names
        shown, partner_shown = _shown(self.offers), _shown(self.partner_offers)
        lines = []
        for device, (reason, partners) in self.devices.items():
            if not reason and partners and all(partners.values()):
                partner, why = next(iter(partners.items()))
                lines.append(
                    f"{name} {shown[device]} is free, but its {partner_name} {partner_shown[partner]} is {why}"
                )
        return lines

    def missing(self) -> list[str]:
        """A sentence for each device that is unavailable or has no available partner; the free devices come first."""
        name, partner_name = self.names
        shown = _shown(self.offers)
        without_candidate = [
            f"{name} {shown[device]} is free, but the node has none of the {partner_name}s that the claim allows for it"
            for device, (reason, partners) in self.devices.items()
            if not reason and not partners
        ]
        return [
            *self.without_partner(),
            *without_candidate,
            *(f"{name} {shown[device]} is {reason}" for device, (reason, _partners) in self.devices.items() if reason),
        ]

    def by_partner(self) -> _Pairs:
        """The same pairs, with devices and partners exchanged."""
        exchanged = _Pairs(self.request, (self.names[1], self.names[0]), self.partner_offers, self.offers)
        for device, (reason, partners) in self.devices.items():
            for partner, why in partners.items():
                exchanged.devices.setdefault(partner, (why, {}))[1][device] = reason
        return exchanged


def _nearest(node: _Node, requested: ObjectView) -> list[_Pairs]:
    """The pairs of `align: nearest`, by the alternatives of their requests."""
    bodies = {
        (request["name"], sub["name"]): sub
        for request in requested.get("requests") or ()
        for sub in request.get("firstAvailable") or ()
    }
    return [_of_form(node, form, bodies) for form in pair_forms(requested)]


def _of_form(node: _Node, form: PairForm, bodies: t.Mapping[tuple[str, str], ObjectView]) -> _Pairs:
    gpus = {name: node.matching(bodies[form.first, name]) for name in form.first_subs}
    nics = {name: node.matching(bodies[form.second, name]) for name in form.second_subs}
    pairs = _Pairs(form.first, ("GPU", "NIC"), itertools.chain(*gpus.values()), itertools.chain(*nics.values()))
    for first_name, matching_gpus in gpus.items():
        body = bodies[form.first, first_name]
        partners = {
            identify(nic): node.why_unavailable(bodies[form.second, second_name], nic)
            for second_name, matching_nics in nics.items()
            if form.allowed(first_name, second_name)
            for nic in matching_nics
        }
        for gpu in matching_gpus:
            pairs.devices.setdefault(identify(gpu), (node.why_unavailable(body, gpu), partners))
    return pairs


def _matching(node: _Node, requested: ObjectView) -> list[_Pairs]:
    """The pairs by a common attribute, of the first request of each constraint with each other request of it."""
    bodies = {
        str(request["name"]): request["exactly"]
        for request in requested.get("requests") or ()
        if request.get("exactly")
    }
    all_pairs = []
    for constraint in requested.get("constraints") or ():
        name = constraint.get("matchAttribute")
        covered = [str(request) for request in constraint.get("requests") or bodies]
        if not name or len(covered) < 2 or not all(request in bodies for request in covered):
            continue
        first, *others = covered
        for other in others:
            first_offers, other_offers = node.matching(bodies[first]), node.matching(bodies[other])
            pairs = _Pairs(first, (_device_name(first), _device_name(other)), first_offers, other_offers)
            candidates = [(offer, _values(offer, name)) for offer in other_offers]
            for first_offer in first_offers:
                values = _values(first_offer, name)
                partners = [
                    offer
                    for offer, partner_values in candidates
                    if values & partner_values and offer is not first_offer
                ]
                reasons = {identify(offer): node.why_unavailable(bodies[other], offer) for offer in partners}
                pairs.devices[identify(first_offer)] = (node.why_unavailable(bodies[first], first_offer), reasons)
            all_pairs.append(pairs)
    return all_pairs


def _values(offer: Offer, name: str) -> set[tuple[str, Scalar]]:
    """The values that a constraint compares. Two devices match if they have a value in common; lists have several."""
    return {
        (kind.rstrip("s"), item)
        for kind, value in (attribute(offer, name) or {}).items()
        for item in (value if isinstance(value, list) else [value])
    }


def _shown(offers: t.Iterable[Offer]) -> dict[DeviceId, str]:
    """The PCI address of each device, or its name if it has none, or the same as another device, such as partitions."""
    by_id = {identify(offer): offer for offer in offers}
    uses = Counter(offer.address for offer in by_id.values())
    return {
        device: offer.address if uses[offer.address] == 1 and offer.address else str(offer.device["name"])
        for device, offer in by_id.items()
    }


def _device_name(request: str) -> str:
    """The name of a device in the inventory: the name of its request without the number of the repetition."""
    name, _dash, number = request.rpartition("-")
    return name if number.isdecimal() and name else request
