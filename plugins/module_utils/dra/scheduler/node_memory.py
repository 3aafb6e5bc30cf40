# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What searches among the devices of one node have in common, whatever is in use there."""

from __future__ import annotations

import json
import typing as t

from ..vendors.offer import Offer
from .search_devices import Amount, Comparable, CounterId, Spec, amount, comparable, consumption, identify
from .search_selection import Engine, Selection


class Layout:
    """The devices of a node in the order of the scheduler. A device is known by its position in `offers`.

    `plain` is whether a claim that asks for no capacity takes a device as it is, whatever its capacities. `counters`
    are the amounts of what devices share, before anything is taken from it.
    """

    def __init__(self, offers: t.Iterable[Offer]) -> None:
        given = list(offers)
        # pools by driver and name, those with binding conditions last; sorting keeps the order of devices in a pool
        binding = {(one.driver, one.pool) for one in given if one.device.get("bindingConditions")}
        self.offers = sorted(given, key=lambda o: ((o.driver, o.pool) in binding, o.driver, o.pool))
        self.ids = [identify(offer) for offer in self.offers]
        self.multiple = [bool(offer.device.get("allowMultipleAllocations")) for offer in self.offers]
        self.plain = [not multiple and not _regulated(o) for multiple, o in zip(self.multiple, self.offers)]
        self.consumption = [list(consumption(offer)) for offer in self.offers]
        self.counters: dict[CounterId, Amount] = {}
        for offer in self.offers:
            for entry in offer.counter_sets:
                for name, counter in entry["counters"].items():
                    self.counters[offer.driver, offer.pool, entry["name"], name] = amount(counter["value"])
        self._columns: dict[tuple[str, int], Comparable | None] = {}

    def column(self, name: str, position: int) -> Comparable | None:
        """A device's attribute as constraints compare it."""
        key = (name, position)
        if key not in self._columns:
            self._columns[key] = comparable(self.offers[position], name)
        return self._columns[key]


def _regulated(offer: Offer) -> bool:
    """Whether a capacity has a policy for what is requested of it."""
    return any(entry.get("requestPolicy") for entry in (offer.device.get("capacity") or {}).values())


class Suitable(t.NamedTuple):
    """The positions of devices that a request selects and tolerates.

    `worth` are those that it has the capacity for, and whether to look again to be sure; `fails` is whether a selector
    is an error on a device.
    """

    positions: tuple[int, ...]
    fails: bool
    worth: tuple[tuple[int, bool], ...]


class Verdicts:
    """What requests select of devices, by what is asked (`Request.ask`): it is the same on nodes whose devices no
    request can distinguish.

    The key of `suitable` also has whether an optimist asks; `doubtful` is whether an optimist has more candidates.
    """

    def __init__(self) -> None:
        self.suitable: dict[tuple[str, bool], Suitable] = {}
        self.doubtful: dict[str, bool] = {}


class NodeMemory:
    """Keeps between searches what does not depend on what is in use.

    All searches have to be about the same offers, in the same order, and the same classes; both live as long as this
    does. Nodes may have `verdicts` in common.
    """

    def __init__(self, offers: t.Sequence[Offer], engine: Engine, verdicts: Verdicts | None = None) -> None:
        self._given = offers
        self.selection = Selection(engine)
        self.verdicts = verdicts or Verdicts()
        self._layouts: dict[bool, Layout] = {}
        self._asks: dict[tuple[int, bool], tuple[Spec, list[str], str]] = {}

    def layout(self, optimist: bool) -> Layout:
        """The devices that are there, for an optimist also those that may be."""
        if optimist not in self._layouts:
            there = self._given if optimist else [one for one in self._given if not one.possible]
            self._layouts[optimist] = Layout(there)
        return self._layouts[optimist]

    def ask(self, spec: Spec, texts: list[str], admin: bool) -> str:
        """A key that is equal for requests that the same devices fit, from the body of a request and its selectors."""
        key = (id(spec), admin)
        known = self._asks.get(key)
        if known is None or known[1] != texts:
            ask = json.dumps([texts, [spec.get("capacity"), spec.get("tolerations"), admin]], sort_keys=True)
            known = self._asks[key] = (spec, texts, ask)  # with the body, so that its id stays its own
        return known[2]
