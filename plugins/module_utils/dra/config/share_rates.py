# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The rates of the shares of one NIC: guarantees, ceilings and overcommitment. All rates are in bit/s.

With a factor of 1.5, shares for 150 % of a card can be allocated. Soft shares may then get less than they requested:
all the same fraction of their requests, and never less than the request divided by the factor. A hard share consumes
factor times as much of the capacity, so it gets its full request. All of this holds as long as the link is as fast as
it was when the shares were allocated. If the link has become slower, hard shares come first; soft shares get the rest.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Share:
    """The request of one share. `factor` is the factor when the share was allocated, and `consumed` the capacity that
    the share consumed then. `burst` limits its use of idle capacity (None: no limit besides that of the settings)."""

    requested: int
    hard: bool = False
    factor: Fraction = Fraction(1)
    consumed: int = 0
    burst: int | None = None


@dataclass(frozen=True)
class EffectiveRate:
    """The current rate of one share: `rate` is reserved for it, `ceiling` is its limit when other shares are idle."""

    rate: int
    ceiling: int


@dataclass(frozen=True)
class Totals:
    """Sums over the shares of one NIC.

    `requested` is the sum of the requests. `promised` is the same sum, but counts hard shares factor times, as the
    capacity does. `current` is the sum of the current rates. `debt` is the part of `promised` that exceeds factor times
    the physical bandwidth, for example after the factor was lowered.
    """

    requested: int
    promised: int
    current: int
    debt: int


def rates(physical: int, shares: t.Sequence[Share], ceiling: int | None = None) -> list[EffectiveRate]:
    """The current rates of a NIC's shares, in their order. `physical` is the bandwidth of the NIC, and `ceiling` the
    limit of each share, by default `physical`.

    The sum of the rates never exceeds `physical`. As long as the link is as fast as it was when the shares were
    allocated, each gets at least its guarantee (`guarantees`). If the link has become slower, hard shares come first.
    """
    max_ceiling = min(physical, ceiling or physical)
    hard = sum(share.requested for share in shares if share.hard)
    soft = sum(share.requested for share in shares if not share.hard)
    hard_ratio = min(Fraction(1), Fraction(physical, hard)) if hard else Fraction(1)
    soft_ratio = min(Fraction(1), max(Fraction(0), Fraction(physical - hard, soft))) if soft else Fraction(1)
    effective_rates = []
    for share in shares:
        rate = math.floor(share.requested * (hard_ratio if share.hard else soft_ratio))
        limit = max_ceiling if share.burst is None else min(share.burst, max_ceiling)
        effective_rates.append(EffectiveRate(rate, max(rate, limit)))
    return effective_rates


def guarantees(physical: int, factor: Fraction, shares: t.Sequence[Share]) -> list[int]:
    """The guarantees of a NIC's shares, in their order. Later allocations under this factor do not reduce them.

    The guarantee of a hard share is its request. That of a soft share is its request divided by the factor.

    After the factor was lowered, the shares may have requested more than the new factor permits. The divisor is then
    higher than the factor: just high enough for all guarantees to fit `physical`, but at most the highest factor under
    which one of the shares was allocated. So a slower link alone lowers no guarantee: if all shares were allocated with
    factor 1, the divisor stays 1.
    """
    hard = sum(share.requested for share in shares if share.hard)
    soft = sum(share.requested for share in shares if not share.hard)
    highest = max((share.factor for share in shares), default=Fraction(1))
    needed = Fraction(soft, physical - hard) if physical > hard else highest
    divisor = max(factor, Fraction(1), min(highest, needed))
    return [share.requested if share.hard else math.floor(share.requested / divisor) for share in shares]


def capacity_deficit(factor: Fraction, shares: t.Iterable[Share]) -> int:
    """The difference between factor times the physical bandwidth and the capacity that may be published.

    Hard shares that were allocated under a lower factor have consumed less of the capacity than they need under this
    factor. The deficit is the sum of what they lack.
    """
    lacking = (
        math.ceil(share.requested * factor) - max(share.consumed, share.requested) for share in shares if share.hard
    )
    return sum(amount for amount in lacking if amount > 0)


def totals(physical: int, factor: Fraction, shares: t.Sequence[Share]) -> Totals:
    """The sums over a NIC's shares."""
    promised = sum(math.ceil(share.requested * factor) if share.hard else share.requested for share in shares)
    return Totals(
        requested=sum(share.requested for share in shares),
        promised=promised,
        current=sum(effective_rate.rate for effective_rate in rates(physical, shares)),
        debt=max(0, promised - math.floor(physical * factor)),
    )
