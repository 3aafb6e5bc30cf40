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
    """One device given to one request (`name`, or `name/subrequest`) of the claim at `claim`."""

    claim: int
    request: str
    offer: Offer
    admin: bool = False
    consumed: t.Mapping[str, str] = field(default_factory=dict)  # capacity: quantity, of a device that is shared

    @property
    def id(self) -> DeviceId:
        return identify(self.offer)


@dataclass(frozen=True)
class Allocation:
    """The devices that the scheduler would pick, in the order of requests.

    `assumed` are qualified attributes that a selector found in the value that the probe takes for likely. `steps`
    counts devices looked at.
    """

    results: tuple[Result, ...]
    assumed: tuple[str, ...] = ()
    steps: int = 0

    def of(self, claim: int, request: str) -> list[Result]:
        """The results of a request, or of whichever of its alternatives was taken."""
        return [one for one in self.results if one.claim == claim and one.request.partition("/")[0] == request]


@dataclass(frozen=True)
class Refusal:
    """Why there is no allocation. `path` is the part of the claims to look at.

    `kind` is class (no such DeviceClass), limit (more than 32 devices), absent (the driver publishes nothing here),
    selector, capacity, taint, used, count (each fits, all together do not), constraint, error (a selector or rule that
    makes the scheduler give up the pod), unknown (the probe does not know) or budget (not decided).
    """

    reason: str
    path: str
    kind: str
    steps: int = 0

    @property
    def unknown(self) -> bool:
        """Whether this is not an answer: the claim may be satisfiable."""
        return self.kind in ("unknown", "budget")


class Abort(Exception):
    """The scheduler gives up the pod."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
