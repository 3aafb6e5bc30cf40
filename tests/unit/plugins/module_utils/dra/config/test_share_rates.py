# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of shares, for any sequence of allocations, releases and changes of the factor that the capacity permits."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.share_rates import (
    EffectiveRate,
    Share,
    capacity_deficit,
    guarantees,
    rates,
    totals,
)
from hypothesis import given
from hypothesis import strategies as st

PHYSICAL = 100 * 10**9
FACTORS = st.integers(100, 1000).map(lambda hundredths: Fraction(hundredths, 100))
#: Events of a card: a share is requested (bit/s, hard), the first share is released, or the factor changes.
EVENTS = st.lists(
    st.one_of(st.tuples(st.integers(1, PHYSICAL), st.booleans()), st.just("release"), FACTORS), min_size=1, max_size=30
)


def allocated(events: list[object]) -> tuple[Fraction, list[Share]]:
    """The shares of a card after these events, as the scheduler allocates them from the published capacity."""
    factor, shares = Fraction(1), list[Share]()
    for event in events:
        if isinstance(event, Fraction):
            factor = event
        elif event == "release":
            del shares[:1]
        else:
            asked, hard = event
            consumed = math.ceil(asked * factor) if hard else asked
            capacity = math.floor(PHYSICAL * factor) - capacity_deficit(factor, shares)
            if consumed + sum(one.consumed for one in shares) <= capacity:
                shares.append(Share(asked, hard, factor, consumed))
    return factor, shares


def check_guarantees(factor: Fraction, shares: list[Share]) -> None:
    least, found = guarantees(PHYSICAL, factor, shares), rates(PHYSICAL, shares)
    assert sum(least) <= sum(one.rate for one in found) <= PHYSICAL
    for one, rate, force in zip(shares, least, found):
        assert rate == force.rate == one.requested if one.hard else rate <= force.rate <= one.requested
        assert force.rate <= force.ceiling <= PHYSICAL


@given(EVENTS)
def test_every_share_gets_at_least_its_guarantee(events: list[object]) -> None:
    factor, shares = allocated(events)
    check_guarantees(factor, shares)
    if not totals(PHYSICAL, factor, shares).debt:
        least = [one.requested if one.hard else math.floor(one.requested / factor) for one in shares]
        assert guarantees(PHYSICAL, factor, shares) == least


@given(EVENTS)
def test_only_a_raised_factor_lowers_a_guarantee(events: list[object]) -> None:
    factor, before = Fraction(1), list[tuple[Share, int]]()
    for count, event in enumerate(events, 1):
        had, (factor, shares) = factor, allocated(events[:count])
        kept = before[1:] if event == "release" else before
        now = list(zip(shares, guarantees(PHYSICAL, factor, shares)))
        if factor <= had:
            assert all(rate >= old for (_one, rate), (_same, old) in zip(now, kept))
        before = now


def test_guarantees_shrink_while_more_is_promised_than_the_nic_has() -> None:
    """The lower factor would guarantee a share all that it asked for, but it has less until another share ends."""
    shares = [Share(60, consumed=60), Share(100, factor=Fraction(2), consumed=100)]
    check_guarantees(Fraction(1), shares)
    assert guarantees(100, Fraction(2), shares) == [30, 50]
    assert guarantees(100, Fraction(1), shares) == [37, 62]
    assert guarantees(100, Fraction(1), shares[:1]) == [60]


def test_a_slower_link_changes_no_guarantee() -> None:
    shares = [Share(60, consumed=60), Share(40, hard=True, consumed=40)]
    assert guarantees(50, Fraction(1), shares) == [60, 40]
    assert [one.rate for one in rates(50, shares)] == [10, 40]


@given(EVENTS, st.randoms(use_true_random=False))
def test_the_order_of_shares_does_not_matter(events: list[object], generator: random.Random) -> None:
    factor, shares = allocated(events)
    order = list(range(len(shares)))
    generator.shuffle(order)
    found = rates(PHYSICAL, shares)
    assert rates(PHYSICAL, [shares[place] for place in order]) == [found[place] for place in order]


@given(EVENTS)
def test_rates_in_force_are_stable(events: list[object]) -> None:
    """If each share asks for its rate in force as a hard share, the rates stay the same."""
    factor, shares = allocated(events)
    found = rates(PHYSICAL, shares)
    kept = [Share(one.rate, True) for one in found]
    assert [one.rate for one in rates(PHYSICAL, kept)] == [one.rate for one in found]


@given(st.integers(1, PHYSICAL), EVENTS)
def test_rates_never_exceed_a_slower_link(physical: int, events: list[object]) -> None:
    factor, shares = allocated(events)
    found = rates(physical, shares)
    assert sum(one.rate for one in found) <= physical
    if sum(one.requested for one in shares if one.hard) <= physical:
        assert all(force.rate == one.requested for one, force in zip(shares, found) if one.hard)


def test_a_raised_factor_reduces_soft_shares_only() -> None:
    shares = [Share(60, consumed=60), Share(40, hard=True, consumed=40)]
    assert rates(100, shares) == [EffectiveRate(60, 100), EffectiveRate(40, 100)]
    # the capacity under the new factor is 200 - 40: the hard share takes 80 of it, and has consumed 40
    assert capacity_deficit(Fraction(2), shares) == 40
    shares.append(Share(60, factor=Fraction(2), consumed=60))
    assert [one.rate for one in rates(100, shares)] == [30, 40, 30]


def test_a_lowered_factor_leaves_a_debt() -> None:
    shares = [Share(100, factor=Fraction(2), consumed=100), Share(100, factor=Fraction(2), consumed=100)]
    assert [one.rate for one in rates(100, shares)] == [50, 50]
    assert totals(100, Fraction(1), shares).debt == 100
    assert totals(100, Fraction(2), shares).debt == 0
    assert totals(100, Fraction(1), shares[:1]).debt == 0


def test_bursts_are_limited_by_the_ceiling() -> None:
    shares = [Share(10, burst=50), Share(10), Share(10, burst=5), Share(10, burst=1000)]
    assert [one.ceiling for one in rates(100, shares, ceiling=80)] == [50, 80, 10, 80]
