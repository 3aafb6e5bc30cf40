# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Remembers states in which a search failed, so that they are not searched again.

A state consists of the request and the number of devices picked for it, the free devices, the remaining amounts of
shared devices, and the values of constraints. Devices that no request or constraint can distinguish are counted, not
listed.
"""

from __future__ import annotations

import typing as t

from .candidates import Candidates
from .search_requests import Constraint, Request

Key = tuple[t.Hashable, ...]


class FailedStates:
    """The failed states of one search; `steps` contains the number of devices that the scheduler examines in each."""

    def __init__(self, search: Candidates) -> None:
        self.steps: dict[Key, int] = {}
        self.search = search
        self.admin = any(request.admin for rows in search.requests for row in rows for request in row)
        self.devices: dict[tuple[int, int, int], int] = {}  # request -> its devices
        self.devices_from: dict[tuple[int, int, int], int] = {}  # request -> its devices and those of later requests
        self.rules: dict[tuple[int, int, int], list[Constraint]] = {}  # request -> constraints of it or later ones
        later_devices = 0
        for rows in reversed(search.requests):
            later_rules: set[int] = set()
            for row in reversed(rows):
                masks = {request.key: self._mask(request) for request in row}
                for request in row:
                    self.devices[request.key] = masks[request.key]
                    self.devices_from[request.key] = self._with_counters(later_devices | masks[request.key])
                    relevant = later_rules | {id(rule) for rule in request.rules}
                    self.rules[request.key] = [
                        rule for rule in search.constraints[request.key[0]] if id(rule) in relevant
                    ]
                for request in row:
                    later_devices |= masks[request.key]
                    later_rules |= {id(rule) for rule in request.rules}
        self.groups = self._interchangeable()
        self.single = -1
        for group in self.groups:
            self.single &= ~group

    def _mask(self, request: Request) -> int:
        """The devices that a request may get, as a bit mask of positions."""
        if request.all_devices is not None:
            return _bits(request.all_devices)
        return _bits(position for position, _again in self.search.candidates_of(request))

    def _with_counters(self, mask: int) -> int:
        """These devices, and all others that use the same counter sets."""
        search = self.search
        sets = {
            key[:3] for position, uses in enumerate(search.consumption) if mask >> position & 1 for key, _value in uses
        }
        return mask | _bits(
            position for position, uses in enumerate(search.consumption) if sets & {key[:3] for key, _value in uses}
        )

    def _interchangeable(self) -> list[int]:
        """Groups of two or more interchangeable devices."""
        search = self.search
        requests = [request for rows in search.requests for row in rows for request in row]
        distinct_requests = list(
            {request.suitability_key: request for request in requests if request.all_devices is None}.values()
        )
        names = sorted({rule.attribute for rules in search.constraints for rule in rules})
        kinds: list[list[t.Hashable]] = [[] for _offer in search.offers]
        for request in distinct_requests:
            candidates = dict(search.candidates_of(request))
            for position, kind in enumerate(kinds):
                # a device that has to be checked again is not interchangeable
                kind.append((position,) if candidates.get(position) else position in candidates)
        fixed = {position for request in requests for position in request.all_devices or ()}
        groups: dict[Key, int] = {}
        for position, kind in enumerate(kinds):
            if not (position in fixed or search.multiple[position] or search.consumption[position]):
                key = (*kind, *(search.attribute_value(name, position) for name in names))
                groups[key] = groups.get(key, 0) | 1 << position
        return [mask for mask in groups.values() if mask & (mask - 1)]

    def key(self, request: Request, number: int, start: int) -> Key:
        """The state in which the search for device `number` of the request starts at position `start`."""
        search = self.search
        taken = 0
        for mask in search.taken:
            taken |= mask
        devices, relevant = self.devices[request.key], self.devices_from[request.key]
        free = (devices & ~taken) >> start << start
        counts = [(_count(taken & relevant & group), _count(free & group)) for group in self.groups if relevant & group]
        return (
            request.key,
            number,
            len(search.results[request.key[0]]),
            taken & relevant & self.single,
            free & self.single if start else 0,
            tuple(counts),
            tuple(frozenset(rule.values) if rule.distinct else (*rule.values[:1],) for rule in self.rules[request.key]),
            tuple(search.taken) if self.admin else (),
            self._shared() if search.taken_counts else (),
        )

    def _shared(self) -> Key:
        """The amounts that this search has taken from shared devices."""
        sharing = self.search.taken_amounts
        return tuple((position, tuple(sharing[position].values())) for position in sorted(self.search.taken_counts))


def _bits(positions: t.Iterable[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _count(mask: int) -> int:
    return bin(mask).count("1")
