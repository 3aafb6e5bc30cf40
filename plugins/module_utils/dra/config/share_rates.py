# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The rates of the shares of one NIC: guarantees, ceilings and overcommitment. All in bit/s.

A factor of 1.5 lets shares for 150 % of a card be allocated. Soft shares may then get less than they requested,
all by the same ratio, but never less than the request divided by the factor. A hard share always gets its request,
because it consumes factor times as much of the capacity.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Share:
    """The request of one share. `factor` is the factor at the time of its allocation, `consumed` the capacity that was
    consumed then, `burst` the limit when it uses idle capacity (None: as much as the settings allow)."""

    asked: int
    hard: bool = False
    factor: Fraction = Fraction(1)
    consumed: int = 0
    burst: int | None = None


@dataclass(frozen=True)
class EffectiveRate:
    """The current rate of one share: `rate` is reserved for it, `ceiling` is its limit when others are idle."""

    rate: int
    ceiling: int


@dataclass(frozen=True)
class Totals:
    """Sums of one NIC. `promised` counts hard shares factor times, as the capacity does; `debt` is what is promised
    beyond factor times the physical bandwidth, for example after the factor was lowered."""

    asked: int
    promised: int
    guaranteed: int
    debt: int


def rates(
    physical: int, factor: Fraction, shares: t.Sequence[Share], ceiling: int | None = None
) -> list[EffectiveRate]:
    """The effective rates of a NIC's shares, in their order. `ceiling` is the limit for each of them, by default
    `physical`.

    Their sum never exceeds `physical`. As long as the link is as fast as it was when the shares were allocated, each
    gets at least its guarantee (`guarantees`). If it has become slower, hard shares come first.
    """
    most = min(physical, ceiling or physical)
    hard = sum(one.asked for one in shares if one.hard)
    soft = sum(one.asked for one in shares if not one.hard)
    of_hard = min(Fraction(1), Fraction(physical, hard)) if hard else Fraction(1)
    of_soft = min(Fraction(1), max(Fraction(0), Fraction(physical - hard, soft))) if soft else Fraction(1)
    found = []
    for one in shares:
        rate = math.floor(one.asked * (of_hard if one.hard else of_soft))
        top = most if one.burst is None else min(one.burst, most)
        found.append(EffectiveRate(rate, max(rate, top)))
    return found


def guarantees(physical: int, factor: Fraction, shares: t.Sequence[Share]) -> list[int]:
    """The guarantee of each of a NIC's shares, in their order, which later allocations under this factor do not reduce:
    the request of a hard share, or the request of a soft share divided by the factor.

    After the factor was lowered the NIC may be promised more than this factor permits. The divisor is then only as low
    as the shares together allow, and at most the highest factor under which one of them was allocated: a slower
    link lowers no guarantee if all shares were allocated with factor 1.
    """
    hard = sum(one.asked for one in shares if one.hard)
    soft = sum(one.asked for one in shares if not one.hard)
    highest = max((one.factor for one in shares), default=Fraction(1))
    needed = Fraction(soft, physical - hard) if physical > hard else highest
    divisor = max(factor, Fraction(1), min(highest, needed))
    return [one.asked if one.hard else math.floor(one.asked / divisor) for one in shares]


def capacity_deficit(factor: Fraction, shares: t.Iterable[Share]) -> int:
    """The amount by which the capacity must be smaller than factor times the physical bandwidth: hard shares that were
    allocated under a lower factor have consumed less than they need under this one."""
    lacking = (math.ceil(one.asked * factor) - max(one.consumed, one.asked) for one in shares if one.hard)
    return sum(one for one in lacking if one > 0)


def totals(physical: int, factor: Fraction, shares: t.Sequence[Share]) -> Totals:
    """The sums of a NIC's shares."""
    promised = sum(math.ceil(one.asked * factor) if one.hard else one.asked for one in shares)
    return Totals(
        asked=sum(one.asked for one in shares),
        promised=promised,
        guaranteed=sum(one.rate for one in rates(physical, factor, shares)),
        debt=max(0, promised - math.floor(physical * factor)),
    )
