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
    """The share of a NIC that a claim has, as it was allocated; stored in records.

    `of` is the name of the NIC's own device. `asked` is the requested rate, and `consumed` the part of the published
    capacity that the allocation consumed. A `hard` share gets the requested rate, whatever the factor is. `burst` is
    the requested maximum rate, or 0 for the maximum that the settings allow. `factor`, `physical` and `ceiling` were
    computed from the settings at allocation. For macvlan, `minor` is the number of the class, and `mac` the address of
    the child.
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

    def status_data(
        self, divided: DividedBandwidth, guaranteed: int, current: EffectiveRate | None = None, debt: int = 0
    ) -> dict[str, t.Any]:
        """The share as the data of the claim's status. `guaranteed` is the share's guaranteed rate, `current` its
        current rates (None if it is not attached), and `debt` by how much the bandwidth promised on the NIC exceeds
        its capacity."""
        ceiling = min(self.burst or divided.ceiling, divided.ceiling)
        data = {
            "mechanism": self.mechanism,
            "bandwidth": quantity(self.asked),
            "guaranteed": quantity(guaranteed),
            "ceiling": quantity(max(ceiling, min(self.asked, divided.physical))),
            "hard": self.hard,
        }
        if current:
            data["inForce"] = {"bandwidth": quantity(current.rate), "ceiling": quantity(current.ceiling)}
        if debt:
            data["debtOfNIC"] = quantity(debt)
        return data

    @property
    def requested(self) -> share_rates.Share:
        """The requested share, in the form from which rates are computed."""
        return share_rates.Share(self.asked, self.hard, Fraction(self.factor), self.consumed, self.burst or None)


@dataclass(frozen=True)
class DividedBandwidth:
    """The bandwidth of a NIC that is divided among shares: the NIC's `physical` rate, the `factor` by which
    that rate may be overcommitted in total, and the `ceiling` of one share."""

    physical: int
    factor: Fraction
    ceiling: int

    @classmethod
    def recorded(cls, shares: t.Sequence[ShareRecord]) -> DividedBandwidth:
        """The values at the allocation of these shares (at least one), for a NIC that the settings no longer divide, or
        whose link speed is unknown."""
        return cls(
            max(share.physical for share in shares),
            max(Fraction(share.factor) for share in shares),
            max(share.ceiling for share in shares),
        )

    def current_rates(self, shares: t.Sequence[ShareRecord]) -> list[EffectiveRate]:
        """The rates in force for each of these shares, which are all attached shares of the NIC."""
        return share_rates.rates(self.physical, [share.requested for share in shares], self.ceiling)

    def guarantees(self, shares: t.Sequence[ShareRecord]) -> list[int]:
        """The guaranteed rate of each of the NIC's shares."""
        return share_rates.guarantees(self.physical, self.factor, [share.requested for share in shares])

    def totals(self, shares: t.Sequence[ShareRecord]) -> Totals:
        """Sums over the NIC's shares."""
        return share_rates.totals(self.physical, self.factor, [share.requested for share in shares])


def mac_of(uid: str, share_id: str) -> str:
    """The MAC address of a share's child interface: locally administered, and always the same for an allocation."""
    digest = hashlib.sha256(f"{uid} {share_id}".encode()).digest()
    return bytes([digest[0] & 0xFC | 0x02, *digest[1:6]]).hex(":")


def free_minor(used: t.Iterable[int], first: int, last: int) -> int | None:
    """The first minor number from `first` to `last` that no other share of the NIC uses; None if all are used."""
    used_numbers = set(used)
    return next((number for number in range(first, last + 1) if number not in used_numbers), None)
