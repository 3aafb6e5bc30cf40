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


class Layout:
    """The devices of a node in the order of the scheduler. A device is identified by its position in `offers`.

    `plain` says whether a request without capacities gets the whole device, so that capacities need no check.
    `counters` are the total amounts of the shared counters.
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
        self._columns: dict[tuple[str, int], Comparable | None] = {}

    def column(self, name: str, position: int) -> Comparable | None:
        """A device's attribute in the form that constraints compare."""
        key = (name, position)
        if key not in self._columns:
            self._columns[key] = comparable(self.offers[position], name)
        return self._columns[key]


def _regulated(offer: Offer) -> bool:
    """Whether a capacity of the device has a request policy."""
    return any(entry.get("requestPolicy") for entry in (offer.device.get("capacity") or {}).values())


class Suitable(t.NamedTuple):
    """The devices that suit a request, regardless of what is in use.

    `positions` are the devices that the request selects and whose taints it tolerates. `candidates` are those that also
    have the capacity, each with whether it must be checked again. `fails` says that a selector fails on at least one
    device.
    """

    positions: tuple[int, ...]
    fails: bool
    candidates: tuple[tuple[int, bool], ...]


class Verdicts:
    """Which devices suit requests, by `Request.ask`. Nodes whose devices no request can distinguish share one object.

    The key of `suitable` also says whether the search is optimistic. `uncertain` says whether an optimistic search has
    more candidates.
    """

    def __init__(self) -> None:
        self.suitable: dict[tuple[str, bool], Suitable] = {}
        self.uncertain: dict[str, bool] = {}


class NodeCache:
    """Caches results that do not depend on what is in use, for several searches.

    All searches must use the same offers, in the same order, and the same classes. The caller must keep both alive.
    Several nodes may share `verdicts`.
    """

    def __init__(self, offers: t.Sequence[Offer], engine: Engine, verdicts: Verdicts | None = None) -> None:
        self._offers = offers
        self.selection = Selection(engine)
        self.verdicts = verdicts or Verdicts()
        self._layouts: dict[bool, Layout] = {}
        self._asks: dict[tuple[int, bool], tuple[ObjectView, list[str], str]] = {}

    def layout(self, optimistic: bool) -> Layout:
        """The devices that exist, and for an optimistic search also those that may exist."""
        if optimistic not in self._layouts:
            offers = self._offers if optimistic else [offer for offer in self._offers if not offer.possible]
            self._layouts[optimistic] = Layout(offers)
        return self._layouts[optimistic]

    def ask(self, spec: ObjectView, texts: list[str], admin: bool) -> str:
        """A key that is equal for requests that the same devices fit.

        It consists of the selectors and the relevant parts of the request's body.
        """
        key = (id(spec), admin)
        known = self._asks.get(key)
        if known is None or known[1] != texts:
            ask = json.dumps([texts, [spec.get("capacity"), spec.get("tolerations"), admin]], sort_keys=True)
            known = self._asks[key] = (spec, texts, ask)  # keeps the body alive, so that its id is not reused
        return known[2]
