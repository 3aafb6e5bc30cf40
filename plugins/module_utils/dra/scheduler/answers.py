# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The result of a search: the devices of an allocation, or why the search failed."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..vendors.offer import Offer
from .search_devices import DeviceId, identify


@dataclass(frozen=True)
class Result:
    """One device allocated to one request (`name`, or `name/subrequest`) of the claim with the index `claim`."""

    claim: int
    request: str
    offer: Offer
    admin: bool = False
    consumed: t.Mapping[str, str] = field(default_factory=dict)  # quantities by capacity, for a shared device

    @property
    def id(self) -> DeviceId:
        return identify(self.offer)


@dataclass(frozen=True)
class Allocation:
    """The devices that the scheduler would pick, in the order of requests.

    `assumed` are qualified attributes for which a selector matched the value that the probe considers likely. `steps`
    counts the devices that the scheduler examines, `examined` those that this search examined. These are usually fewer,
    because failed states are remembered.
    """

    results: tuple[Result, ...]
    assumed: tuple[str, ...] = ()
    steps: int = 0
    examined: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Refusal:
    """Why there is no allocation. `path` is the part of the claims that is the reason.

    `kind` is class (no such DeviceClass), limit (more than 32 devices), absent (the driver publishes nothing on the
    node), selector, capacity, taint, used, count (each fits, but not all together), constraint, error (scheduling of
    the pod would fail with an error), unknown (the probe does not know), budget (the search was too long) or refused
    (the node does not accept the pod).
    """

    reason: str
    path: str
    kind: str
    steps: int = 0

    @property
    def unknown(self) -> bool:
        """Whether the result is uncertain: the claim may be satisfiable."""
        return self.kind in ("unknown", "budget")


class Abort(Exception):
    """Ends the search immediately. `refusal` is its result."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
