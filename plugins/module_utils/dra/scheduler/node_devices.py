# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which devices of a node are in use, and how much of each shared device."""

from __future__ import annotations

import typing as t

from .answers import Result
from .node_cache import OrderedDevices
from .search_devices import Amount, ConsumedCapacity, CounterId, DeviceId, amount
from .search_requests import Request


class NodeDevices:
    """The devices of one node (see `OrderedDevices`) and their current use.

    `held` are results of earlier allocations, `claims` is the number of claims of the search.
    """

    def __init__(self, devices: OrderedDevices, held: t.Sequence[Result], claims: int) -> None:
        self.offers, self.ids = devices.offers, devices.ids
        self.multiple, self.plain, self.consumption = devices.multiple, devices.plain, devices.consumption
        self.attribute_value = devices.attribute_value
        self.results: list[list[Result]] = [[] for _claim in range(claims)]
        # devices and amounts of earlier allocations
        self.held: set[DeviceId] = set()
        self.shares: dict[DeviceId, dict[str, Amount]] = {}
        self._take_held(held)
        # devices that this search takes, for each claim: a bit mask of positions
        self.taken = [0] * claims
        self.sharing: dict[int, dict[str, Amount]] = {}
        self.sharers: dict[int, int] = {}
        self.available = self._counters(devices)
        self.counted: dict[CounterId, Amount] = {}
        self.overdrawn = {key[:2] for key, left in self.available.items() if left < 0}

    def _take_held(self, held: t.Sequence[Result]) -> None:
        for result in held:
            if result.admin:
                continue
            if result.offer.device.get("allowMultipleAllocations"):
                share = self.shares.setdefault(result.id, {})
                for name, value in result.consumed.items():
                    share[name] = share.get(name, 0) + amount(value)
            else:
                self.held.add(result.id)

    def _counters(self, devices: OrderedDevices) -> dict[CounterId, Amount]:
        """The remaining amount of each counter, by driver, pool, set and name."""
        remaining = dict(devices.counters)
        for identity, counters in zip(self.ids, self.consumption):
            if counters and (identity in self.held or identity in self.shares):
                for key, value in counters:
                    if key in remaining:
                        remaining[key] -= value
        return remaining

    def _busy(self, request: Request, position: int) -> bool:
        """Whether a device is in use, so that the request cannot get it."""
        if request.admin:
            return bool(self.taken[request.key[0]] >> position & 1)
        return self.ids[position] in self.held or any(taken >> position & 1 for taken in self.taken)

    def _within(self, position: int, counters: list[tuple[CounterId, Amount]]) -> bool:
        """Whether the pool's counters are sufficient, now that these amounts have been added to `counted`."""
        return self.ids[position][:2] not in self.overdrawn and all(
            self.counted[key] <= self.available.get(key, self.counted[key]) for key, _value in counters
        )

    def _share(self, request: Request, position: int, consumed: ConsumedCapacity) -> None:
        sharing = self.sharing.setdefault(position, {})
        for name, value in consumed.amounts.items():
            sharing[name] = sharing.get(name, 0) + value
        self.sharers[position] = self.sharers.get(position, 0) + 1
        claim = request.key[0]
        self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin, consumed.texts))

    def _unshare(self, position: int, consumed: ConsumedCapacity) -> None:
        for name, value in consumed.amounts.items():
            self.sharing[position][name] -= value
        self.sharers[position] -= 1
        if not self.sharers[position]:
            del self.sharers[position]
