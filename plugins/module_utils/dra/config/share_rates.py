# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What the shares of one NIC get: guarantees in force, ceilings, and what is promised beyond the card. All in bit/s.

A factor of 1.5 lets shares for 150 % of a card be allocated. The soft ones then get less than they asked for, all by
the same ratio, but never less than a factor-th of it. A hard share always gets what it asked for, because it consumes
factor times as much of the capacity.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Share:
    """What one share asks for. `factor` is the one in force when it was allocated, `consumed` what was taken of the
    capacity for it then, `burst` what it may use of idle capacity (None: as much as the settings allow)."""

    asked: int
    hard: bool = False
    factor: Fraction = Fraction(1)
    consumed: int = 0
    burst: int | None = None


@dataclass(frozen=True)
class InForce:
    """What one share has now: `rate` is kept for it, `ceiling` is what it may use when others are idle."""

    rate: int
    ceiling: int


@dataclass(frozen=True)
class Totals:
    """Sums of one NIC. `promised` counts hard shares factor times, as the capacity does; `debt` is what is promised
    beyond factor times the physical bandwidth, as after the factor was lowered."""

    asked: int
    promised: int
    guaranteed: int
    debt: int


def rates(physical: int, factor: Fraction, shares: t.Sequence[Share], ceiling: int | None = None) -> list[InForce]:
    """What is in force for each of a NIC's shares, in their order. `ceiling` is the most for any of them, by default
    `physical`.

    The guarantees never exceed `physical` together. As long as `fits` holds, hard shares get what they asked for, and
    soft ones no less than what they asked for divided by the factor (the current one, or a higher one under which they
    were allocated). If it does not hold (the link has become slower), hard shares come first.
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
        found.append(InForce(rate, max(rate, top)))
    return found


def floor(factor: Fraction, share: Share) -> Fraction:
    """The least that a share gets: what it asked for if it is hard, or else a factor-th of it."""
    return Fraction(share.asked) if share.hard else share.asked / max(factor, share.factor, Fraction(1))


def fits(physical: int, factor: Fraction, shares: t.Iterable[Share]) -> bool:
    """Whether a NIC can keep the least of all these shares."""
    return sum((floor(factor, one) for one in shares), Fraction(0)) <= physical


def uncharged(factor: Fraction, shares: t.Iterable[Share]) -> int:
    """By how much the capacity under this factor must be smaller than factor times the physical bandwidth: hard shares
    that were allocated under a lower factor have consumed less than they take now."""
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
