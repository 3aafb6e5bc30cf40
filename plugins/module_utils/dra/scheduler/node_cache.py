# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Results that all searches on one node share, because they do not depend on what is in use."""

from __future__ import annotations

import json
import typing as t

from ..kube.objects import ObjectView
from ..vendors.offer import Offer
from .search_devices import Amount, Comparable, CounterId, amount, comparable, consumption, identify
from .search_selection import Engine, Selection


class OrderedDevices:
    """The devices of a node in the order in which the scheduler tries them, and what the search reads of each.

    A device is identified by its position in `offers`; all lists have one entry per device, in the same order:

    - `ids`: driver, pool and name.
    - `multiple`: whether several claims may share the device (allowMultipleAllocations).
    - `plain`: whether a request without capacities gets the whole device, so that capacities need no check.
    - `consumption`: the counters that the device consumes while it is allocated, with the amounts.

    `counters` has the total amount of each shared counter of the node.

    Everything is read once, so the offers must not change afterwards.
    """

    def __init__(self, offers: t.Iterable[Offer]) -> None:
        unsorted = list(offers)
        # pools by driver and name, those with binding conditions last; sorting keeps the order of devices in a pool
        binding = {(offer.driver, offer.pool) for offer in unsorted if offer.device.get("bindingConditions")}
        self.offers = sorted(
            unsorted, key=lambda offer: ((offer.driver, offer.pool) in binding, offer.driver, offer.pool)
        )
        self.ids = [identify(offer) for offer in self.offers]
        self.multiple = [bool(offer.device.get("allowMultipleAllocations")) for offer in self.offers]
        self.plain = [not multiple and not _regulated(offer) for multiple, offer in zip(self.multiple, self.offers)]
        self.consumption = [list(consumption(offer)) for offer in self.offers]
        self.counters: dict[CounterId, Amount] = {}
        for offer in self.offers:
            for entry in offer.counter_sets:
                for name, counter in entry["counters"].items():
                    self.counters[offer.driver, offer.pool, entry["name"], name] = amount(counter["value"])
        self._attribute_values: dict[tuple[str, int], Comparable | None] = {}

    def attribute_value(self, name: str, position: int) -> Comparable | None:
        """A device's attribute in the form that constraints compare; None if the device does not have it.

        `name` is the qualified name. The value is computed once.
        """
        key = (name, position)
        if key not in self._attribute_values:
            self._attribute_values[key] = comparable(self.offers[position], name)
        return self._attribute_values[key]


def _regulated(offer: Offer) -> bool:
    """Whether a capacity of the device has a request policy."""
    return any(entry.get("requestPolicy") for entry in (offer.device.get("capacity") or {}).values())


class SuitableDevices(t.NamedTuple):
    """The devices that suit a request, regardless of what is in use, as positions in `OrderedDevices.offers`.

    `positions` are the devices that the request selects and whose taints it tolerates. `candidates` are those that also
    have the capacity, each with whether it must be checked again; a device on which a selector fails is one of them.
    `fails` says that a selector fails on at least one device.
    """

    positions: tuple[int, ...]
    fails: bool
    candidates: tuple[tuple[int, bool], ...]


class SuitabilityCache:
    """Which devices suit the requests of searches, by `Request.suitability_key`.

    `devices` has an entry for each key and whether the search was optimistic. `has_uncertain_devices` says for a key
    whether an optimistic search has more candidates: devices that may match, or that may exist.

    Nodes may share a cache if no request can distinguish their devices, which must also be in the same order (see
    `plan.states.States.shape`). What is allocated on the nodes may differ.
    """

    def __init__(self) -> None:
        self.devices: dict[tuple[str, bool], SuitableDevices] = {}
        self.has_uncertain_devices: dict[str, bool] = {}


class NodeCache:
    """The results of several searches on one node that do not depend on what is in use.

    It never expires. It is valid only for these offers in this order, and for the same classes: after a change of an
    offer or a class, a new one is needed. The caller must keep the offers alive, because `selection` identifies them by
    `id`. Nodes may share `suitability`; see there for the conditions.
    """

    def __init__(self, offers: t.Sequence[Offer], engine: Engine, suitability: SuitabilityCache | None = None) -> None:
        self._offers = offers
        self.selection = Selection(engine)
        self.suitability = suitability or SuitabilityCache()
        self._devices: dict[bool, OrderedDevices] = {}  # by whether the search is optimistic
        # by the body's id and whether the request has admin access: the body, its selectors and the key
        self._suitability_keys: dict[tuple[int, bool], tuple[ObjectView, list[str], str]] = {}

    def devices(self, optimistic: bool) -> OrderedDevices:
        """The devices that exist, and for an optimistic search also those that may exist."""
        if optimistic not in self._devices:
            offers = self._offers if optimistic else [offer for offer in self._offers if not offer.possible]
            self._devices[optimistic] = OrderedDevices(offers)
        return self._devices[optimistic]

    def suitability_key(self, spec: ObjectView, texts: list[str], admin: bool) -> str:
        """A key that is equal for requests that the same devices suit.

        It is the JSON text of what decides this: the CEL expressions of the class and the request (`texts`), the
        capacities and tolerations in the request's body (`spec`), and whether the request has admin access.
        """
        key = (id(spec), admin)
        known = self._suitability_keys.get(key)
        if known is None or known[1] != texts:
            text = json.dumps([texts, [spec.get("capacity"), spec.get("tolerations"), admin]], sort_keys=True)
            # the body is kept alive, so that its id is not reused
            known = self._suitability_keys[key] = (spec, texts, text)
        return known[2]
