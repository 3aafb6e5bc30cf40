# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One share of a NIC, and the bandwidth that is divided. Rates are in bit/s."""

from __future__ import annotations

import hashlib
import typing as t
from dataclasses import dataclass
from fractions import Fraction

from ..dra.config import share_rates
from ..dra.config.share_rates import EffectiveRate, Totals
from ..topology.publish_shares import quantity


@dataclass
class ShareRecord:
    """The share of a NIC that a claim has, as of allocation; stored in records.

    `of` is the NIC's own device. `hard` shares get what they asked for, independent of the factor. `burst` is 0 for the
    maximum that the settings allow. `factor`, `physical` and `ceiling` are the settings at that time. `minor` is the
    number of the class, and `mac` the address of the child, for macvlan.
    """

    of: str
    mechanism: str
    asked: int
    consumed: int
    physical: int
    ceiling: int
    hard: bool = False
    burst: int = 0
    factor: str = "1"
    minor: int = 0
    mac: str = ""

    def shown(
        self, divided: DividedBandwidth, guaranteed: int, force: EffectiveRate | None = None, debt: int = 0
    ) -> dict[str, t.Any]:
        """The share in the API's form, for the claim's status. `guaranteed` is the share's guarantee in bit/s, `force`
        what it has now, `debt` how much more of the NIC is promised than its capacity."""
        ceiling = min(self.burst or divided.ceiling, divided.ceiling)
        found = {
            "mechanism": self.mechanism,
            "bandwidth": quantity(self.asked),
            "guaranteed": quantity(guaranteed),
            "ceiling": quantity(max(ceiling, min(self.asked, divided.physical))),
            "hard": self.hard,
        }
        if force:
            found["inForce"] = {"bandwidth": quantity(force.rate), "ceiling": quantity(force.ceiling)}
        if debt:
            found["debtOfNIC"] = quantity(debt)
        return found

    @property
    def asks(self) -> share_rates.Share:
        """In the form that rates are computed from."""
        return share_rates.Share(self.asked, self.hard, Fraction(self.factor), self.consumed, self.burst or None)


@dataclass(frozen=True)
class DividedBandwidth:
    """The bandwidth of a NIC that is divided among shares: its `physical` rate, the `factor` of it that may be
    promised, and the `ceiling` of one share."""

    physical: int
    factor: Fraction
    ceiling: int

    @classmethod
    def recorded(cls, shares: t.Sequence[ShareRecord]) -> DividedBandwidth:
        """The values at the allocation of these shares (at least one), for a NIC that the settings no longer divide, or
        whose link speed is unknown."""
        return cls(
            max(one.physical for one in shares),
            max(Fraction(one.factor) for one in shares),
            max(one.ceiling for one in shares),
        )

    def in_force(self, shares: t.Sequence[ShareRecord]) -> list[EffectiveRate]:
        """What each of these attached shares has now."""
        return share_rates.rates(self.physical, self.factor, [one.asks for one in shares], self.ceiling)

    def guarantees(self, shares: t.Sequence[ShareRecord]) -> list[int]:
        """What each of the NIC's shares is guaranteed."""
        return share_rates.guarantees(self.physical, self.factor, [one.asks for one in shares])

    def totals(self, shares: t.Sequence[ShareRecord]) -> Totals:
        """The sums of the shares."""
        return share_rates.totals(self.physical, self.factor, [one.asks for one in shares])


def mac_of(uid: str, share_id: str) -> str:
    """The address of a share's child interface: the same for the same allocation, locally administered."""
    digest = hashlib.sha256(f"{uid} {share_id}".encode()).digest()
    return bytes([digest[0] & 0xFC | 0x02, *digest[1:6]]).hex(":")


def free_minor(used: t.Iterable[int], first: int, last: int) -> int | None:
    """The first number that no other share of the NIC uses; None if there is none."""
    taken = set(used)
    return next((number for number in range(first, last + 1) if number not in taken), None)
