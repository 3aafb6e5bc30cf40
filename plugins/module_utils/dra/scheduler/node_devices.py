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

    `earlier` are results of earlier allocations, `claims` is the number of claims of the search.
    """

    def __init__(self, devices: OrderedDevices, earlier: t.Sequence[Result], claims: int) -> None:
        self.offers, self.ids = devices.offers, devices.ids
        self.multiple, self.plain, self.consumption = devices.multiple, devices.plain, devices.consumption
        self.attribute_value = devices.attribute_value
        self.results: list[list[Result]] = [[] for _claim in range(claims)]
        # of earlier allocations: the devices that they have as a whole, and their amounts of shared devices
        self.held: set[DeviceId] = set()
        self.held_amounts: dict[DeviceId, dict[str, Amount]] = {}
        self._take_earlier(earlier)
        # of this search: the devices that each claim takes as a whole, as a bit mask of positions; and of the shared
        # device at a position, the amounts and how many times it is taken
        self.taken = [0] * claims
        self.taken_amounts: dict[int, dict[str, Amount]] = {}
        self.taken_counts: dict[int, int] = {}
        # counters: what earlier allocations leave, the pools in which they take too much, and what this search takes
        self.counters_left = self._counters(devices)
        self.overdrawn = {key[:2] for key, left in self.counters_left.items() if left < 0}
        self.counters_taken: dict[CounterId, Amount] = {}

    def _take_earlier(self, earlier: t.Sequence[Result]) -> None:
        for result in earlier:
            if result.admin:
                continue
            if result.offer.device.get("allowMultipleAllocations"):
                share = self.held_amounts.setdefault(result.id, {})
                for name, value in result.consumed.items():
                    share[name] = share.get(name, 0) + amount(value)
            else:
                self.held.add(result.id)

    def _counters(self, devices: OrderedDevices) -> dict[CounterId, Amount]:
        """The remaining amount of each counter, by driver, pool, set and name."""
        remaining = dict(devices.counters)
        for identity, counters in zip(self.ids, self.consumption):
            if counters and (identity in self.held or identity in self.held_amounts):
                for key, value in counters:
                    if key in remaining:
                        remaining[key] -= value
        return remaining

    def _busy(self, request: Request, position: int) -> bool:
        """Whether a device that only one claim can have is in use, so that the request cannot get it. For a request
        with admin access, only the devices of the same claim are in use."""
        if request.admin:
            return bool(self.taken[request.key[0]] >> position & 1)
        return self.ids[position] in self.held or any(taken >> position & 1 for taken in self.taken)

    def _within(self, position: int, counters: list[tuple[CounterId, Amount]]) -> bool:
        """Whether the pool's counters are sufficient, now that these amounts have been added to `counters_taken`."""
        return self.ids[position][:2] not in self.overdrawn and all(
            self.counters_taken[key] <= self.counters_left.get(key, self.counters_taken[key])
            for key, _value in counters
        )

    def _share(self, request: Request, position: int, consumed: ConsumedCapacity) -> None:
        """Take a part of a shared device for a request."""
        sharing = self.taken_amounts.setdefault(position, {})
        for name, value in consumed.amounts.items():
            sharing[name] = sharing.get(name, 0) + value
        self.taken_counts[position] = self.taken_counts.get(position, 0) + 1
        claim = request.key[0]
        self.results[claim].append(Result(claim, request.name, self.offers[position], request.admin, consumed.texts))

    def _unshare(self, position: int, consumed: ConsumedCapacity) -> None:
        """Undo `_share`, except for the entry in `results`."""
        for name, value in consumed.amounts.items():
            self.taken_amounts[position][name] -= value
        self.taken_counts[position] -= 1
        if not self.taken_counts[position]:
            del self.taken_counts[position]
