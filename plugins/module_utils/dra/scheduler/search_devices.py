# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The parts of a device that the scheduler's search uses: its name, attributes, taints and counters."""

from __future__ import annotations

import typing as t
from fractions import Fraction

from ..kube import quantity
from ..kube.objects import ObjectView, Scalar
from ..vendors.offer import Offer

#: An amount of a counter or capacity. Whole numbers are integers, which are faster to add.
Amount = t.Union[Fraction, int]
#: The ID of a device: driver, pool, name.
DeviceId = tuple[str, str, str]
#: The ID of a counter: driver, pool, counter set, counter.
CounterId = tuple[str, str, str, str]

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_SCALARS = ("string", "int", "bool", "version")

#: An attribute in the form that constraints compare: its type and value, or LIST.
Comparable = t.Union[tuple[str, Scalar], str]
LIST = "list"  #: any list, which is equal to nothing (gate DRAListTypeAttributes, off by default)


def identify(offer: Offer) -> DeviceId:
    """The ID of a device: driver, pool and name."""
    return (offer.driver, offer.pool, str(offer.device["name"]))


def attribute(offer: Offer, name: str) -> ObjectView | None:
    """A device's attribute by its qualified name, as constraints look it up."""
    attributes = offer.device.get("attributes") or {}
    if name in attributes:
        return t.cast("ObjectView", attributes[name])
    domain, slash, identifier = name.partition("/")
    if not slash or domain != offer.driver:
        return None
    return t.cast("ObjectView | None", attributes.get(identifier))


def comparable(offer: Offer, name: str) -> Comparable | None:
    """A device's attribute in the form that constraints compare; None if it is missing."""
    value = attribute(offer, name)
    if value is None:
        return None
    return next(((kind, value[kind]) for kind in _SCALARS if value.get(kind) is not None), LIST)


def consumption(offer: Offer) -> t.Iterator[tuple[CounterId, Amount]]:
    """The counters that a device consumes while it is allocated, with the amounts."""
    for entry in offer.device.get("consumesCounters") or ():
        for name, counter in entry["counters"].items():
            yield (offer.driver, offer.pool, entry["counterSet"], name), amount(counter["value"])


def taken(
    offers: t.Iterable[Offer], counters: t.Mapping[CounterId, Amount], holders: t.Mapping[DeviceId, str]
) -> dict[DeviceId, str]:
    """The devices that cannot be allocated, each with the claim that prevents it. `holders` are claims by device.

    This claim has either the device itself, or another of the `offers` that leaves too little of their common counters,
    such as those of a PF and its VFs, or of a GPU and its partitions. `counters` are the total amounts.
    """
    consumptions = [(identify(offer), key, value) for offer in offers for key, value in consumption(offer)]
    remaining, last_holder = dict(counters), {}
    for device, key, value in consumptions:
        if device in holders:
            remaining[key] = remaining.get(key, 0) - value
            last_holder[key] = holders[device]
    result = dict(holders)
    for device, key, value in consumptions:
        if key in last_holder and value > remaining[key]:
            result.setdefault(device, last_holder[key])
    return result


def amount(value: str) -> Amount:
    """The amount of a quantity."""
    return whole(quantity.parse(value))


def whole(number: Fraction) -> Amount:
    """The same number, as an integer if it is one."""
    return number.numerator if number.denominator == 1 else number


class ConsumedCapacity(t.NamedTuple):
    """What a request consumes of a device, by capacity: the amount, its text in the API, and the device's total amount.

    `allowed` says whether the request policies of the capacities allow the amounts.
    """

    amounts: dict[str, Amount]
    texts: dict[str, str]
    limits: dict[str, Amount]
    allowed: bool


def tolerates_taints(request: ObjectView, offer: Offer) -> bool:
    """Whether the request tolerates all taints of the device with the effect NoSchedule or NoExecute."""
    return not blocking_taints(request, offer)


def blocking_taints(request: ObjectView, offer: Offer) -> list[ObjectView]:
    """The taints with which the request cannot get the device: those with the effect NoSchedule or NoExecute that it
    does not tolerate."""
    return [
        taint
        for taint in offer.device.get("taints") or ()
        if taint["effect"] in _BLOCKING_EFFECTS
        and not any(_tolerates(toleration, taint) for toleration in request.get("tolerations") or ())
    ]


def _tolerates(toleration: ObjectView, taint: ObjectView) -> bool:
    """Whether a toleration matches a taint (resourceclaim.ToleratesTaint)."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    return operator == "Exists" or (
        operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
    )
