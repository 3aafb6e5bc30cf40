# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The devices of a node in the order of the scheduler, and what of them is taken."""

from __future__ import annotations

import typing as t
from fractions import Fraction

from ..kube import quantity
from ..vendors.offer import Offer
from .answers import Result
from .search_devices import Comparable, CounterId, DeviceId, comparable, consumption, identify
from .search_requests import Request


class NodeDevices:
    """The devices of one node. A device is known by its position in `offers`.

    `held` are results of earlier allocations, `claims` the number of claims that devices are taken for.
    """

    def __init__(self, offers: t.Sequence[Offer], held: t.Sequence[Result], claims: int) -> None:
        # pools by driver and name, those with binding conditions last; sorting keeps the order of devices in a pool
        binding = {offer[:2] for offer in map(_pool_of, offers) if offer[2]}
        self.offers = sorted(offers, key=lambda o: ((o.driver, o.pool) in binding, o.driver, o.pool))
        self.ids = [identify(offer) for offer in self.offers]
        self.multiple = [bool(offer.device.get("allowMultipleAllocations")) for offer in self.offers]
        self.consumption = [list(consumption(offer)) for offer in self.offers]
        self.results: list[list[Result]] = [[] for _claim in range(claims)]
        self.columns: dict[tuple[str, int], Comparable | None] = {}
        # what earlier allocations hold
        self.held: set[DeviceId] = set()
        self.shares: dict[DeviceId, dict[str, Fraction]] = {}
        self._take_held(held)
        # what this search takes: positions as bits of a number, for each claim
        self.taken = [0] * claims
        self.sharing: dict[int, dict[str, Fraction]] = {}
        self.sharers: dict[int, int] = {}
        self.available = self._counters()
        self.counted: dict[CounterId, Fraction] = {}
        self.overdrawn = {key[:2] for key, left in self.available.items() if left < 0}

    def _take_held(self, held: t.Sequence[Result]) -> None:
        for one in held:
            if one.admin:
                continue
            if one.offer.device.get("allowMultipleAllocations"):
                share = self.shares.setdefault(one.id, {})
                for name, value in one.consumed.items():
                    share[name] = share.get(name, Fraction()) + quantity.parse(value)
            else:
                self.held.add(one.id)

    def _counters(self) -> dict[CounterId, Fraction]:
        """What is left of each counter, by driver, pool, set and name."""
        left: dict[CounterId, Fraction] = {}
        for offer in self.offers:
            for entry in offer.counter_sets:
                for name, counter in entry["counters"].items():
                    left[offer.driver, offer.pool, entry["name"], name] = quantity.parse(counter["value"])
        for identity, counters in zip(self.ids, self.consumption):
            if identity in self.held or identity in self.shares:
                for key, value in counters:
                    if key in left:
                        left[key] -= value
        return left

    def _busy(self, request: Request, position: int) -> bool:
        if request.admin:
            return bool(self.taken[request.key[0]] >> position & 1)
        return self.ids[position] in self.held or any(taken >> position & 1 for taken in self.taken)

    def _within(self, position: int, counters: list[tuple[CounterId, Fraction]]) -> bool:
        """Whether the pool's counters suffice for what is counted."""
        return self.ids[position][:2] not in self.overdrawn and all(
            self.counted[key] <= self.available.get(key, self.counted[key]) for key, _value in counters
        )

    def _share(self, request: Request, position: int, consumed: dict[str, Fraction]) -> None:
        sharing = self.sharing.setdefault(position, {})
        for name, value in consumed.items():
            sharing[name] = sharing.get(name, Fraction()) + value
        self.sharers[position] = self.sharers.get(position, 0) + 1
        forms = {name: quantity.canonical(value) for name, value in consumed.items()}
        claim = request.key[0]
        self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin, forms))

    def _unshare(self, position: int, consumed: dict[str, Fraction]) -> None:
        for name, value in consumed.items():
            self.sharing[position][name] -= value
        self.sharers[position] -= 1
        if not self.sharers[position]:
            del self.sharers[position]

    def column(self, name: str, position: int) -> Comparable | None:
        """A device's attribute as constraints compare it."""
        key = (name, position)
        if key not in self.columns:
            self.columns[key] = comparable(self.offers[position], name)
        return self.columns[key]


def _pool_of(offer: Offer) -> tuple[str, str, bool]:
    return offer.driver, offer.pool, bool(offer.device.get("bindingConditions"))
