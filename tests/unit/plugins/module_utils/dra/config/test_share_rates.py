# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of shares of a NIC, after any sequence of allocations, releases and changes of the overcommit factor."""

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
#: Events of a NIC: a share is requested (bit/s, hard), the oldest share is released, or the factor changes.
EVENTS = st.lists(
    st.one_of(st.tuples(st.integers(1, PHYSICAL), st.booleans()), st.just("release"), FACTORS), min_size=1, max_size=30
)


def allocated(events: list[object]) -> tuple[Fraction, list[Share]]:
    """The factor and the shares of a NIC after these events. As the scheduler does, it allocates a share only if the
    published capacity is sufficient."""
    factor, shares = Fraction(1), list[Share]()
    for event in events:
        if isinstance(event, Fraction):
            factor = event
        elif event == "release":
            del shares[:1]
        else:
            requested, hard = event
            consumed = math.ceil(requested * factor) if hard else requested
            capacity = math.floor(PHYSICAL * factor) - capacity_deficit(factor, shares)
            if consumed + sum(share.consumed for share in shares) <= capacity:
                shares.append(Share(requested, hard, factor, consumed))
    return factor, shares


def check_guarantees(factor: Fraction, shares: list[Share]) -> None:
    """Check that the guarantees fit in the rates, and the rates in the physical rate and in what was requested."""
    guaranteed, effective = guarantees(PHYSICAL, factor, shares), rates(PHYSICAL, shares)
    assert sum(guaranteed) <= sum(rate.rate for rate in effective) <= PHYSICAL
    for share, guarantee, rate in zip(shares, guaranteed, effective):
        assert guarantee == rate.rate == share.requested if share.hard else guarantee <= rate.rate <= share.requested
        assert rate.rate <= rate.ceiling <= PHYSICAL


@given(EVENTS)
def test_every_share_gets_at_least_its_guarantee(events: list[object]) -> None:
    factor, shares = allocated(events)
    check_guarantees(factor, shares)
    if not totals(PHYSICAL, factor, shares).debt:
        expected = [share.requested if share.hard else math.floor(share.requested / factor) for share in shares]
        assert guarantees(PHYSICAL, factor, shares) == expected


@given(EVENTS)
def test_only_a_raised_factor_lowers_a_guarantee(events: list[object]) -> None:
    factor, before = Fraction(1), list[tuple[Share, int]]()
    for count, event in enumerate(events, 1):
        previous_factor, (factor, shares) = factor, allocated(events[:count])
        remaining = before[1:] if event == "release" else before
        after = list(zip(shares, guarantees(PHYSICAL, factor, shares)))
        if factor <= previous_factor:
            assert all(new >= old for (_share, new), (_same_share, old) in zip(after, remaining))
        before = after


def test_guarantees_are_reduced_while_they_exceed_the_rate_of_the_nic() -> None:
    """Factor 1 would guarantee each share its full request, but it gets less until the other share ends."""
    shares = [Share(60, consumed=60), Share(100, factor=Fraction(2), consumed=100)]
    check_guarantees(Fraction(1), shares)
    assert guarantees(100, Fraction(2), shares) == [30, 50]
    assert guarantees(100, Fraction(1), shares) == [37, 62]
    assert guarantees(100, Fraction(1), shares[:1]) == [60]


def test_a_slower_link_changes_no_guarantee() -> None:
    shares = [Share(60, consumed=60), Share(40, hard=True, consumed=40)]
    assert guarantees(50, Fraction(1), shares) == [60, 40]
    assert [rate.rate for rate in rates(50, shares)] == [10, 40]


@given(EVENTS, st.randoms(use_true_random=False))
def test_the_order_of_shares_does_not_matter(events: list[object], generator: random.Random) -> None:
    factor, shares = allocated(events)
    order = list(range(len(shares)))
    generator.shuffle(order)
    found = rates(PHYSICAL, shares)
    assert rates(PHYSICAL, [shares[i] for i in order]) == [found[i] for i in order]


@given(EVENTS)
def test_effective_rates_are_stable(events: list[object]) -> None:
    """If each share requests its effective rate as a hard share, the rates stay the same."""
    factor, shares = allocated(events)
    found = rates(PHYSICAL, shares)
    hard = [Share(rate.rate, True) for rate in found]
    assert [rate.rate for rate in rates(PHYSICAL, hard)] == [rate.rate for rate in found]


@given(st.integers(1, PHYSICAL), EVENTS)
def test_rates_never_exceed_a_slower_link(physical: int, events: list[object]) -> None:
    factor, shares = allocated(events)
    found = rates(physical, shares)
    assert sum(rate.rate for rate in found) <= physical
    if sum(share.requested for share in shares if share.hard) <= physical:
        assert all(rate.rate == share.requested for share, rate in zip(shares, found) if share.hard)


def test_only_soft_shares_get_less_when_a_raised_factor_admits_more_shares() -> None:
    shares = [Share(60, consumed=60), Share(40, hard=True, consumed=40)]
    assert rates(100, shares) == [EffectiveRate(60, 100), EffectiveRate(40, 100)]
    # the hard share has consumed 40, and would consume 80 with the new factor
    assert capacity_deficit(Fraction(2), shares) == 40
    shares.append(Share(60, factor=Fraction(2), consumed=60))
    assert [rate.rate for rate in rates(100, shares)] == [30, 40, 30]


def test_a_lowered_factor_leaves_a_debt() -> None:
    shares = [Share(100, factor=Fraction(2), consumed=100), Share(100, factor=Fraction(2), consumed=100)]
    assert [rate.rate for rate in rates(100, shares)] == [50, 50]
    assert totals(100, Fraction(1), shares).debt == 100
    assert totals(100, Fraction(2), shares).debt == 0
    assert totals(100, Fraction(1), shares[:1]).debt == 0


def test_the_ceiling_of_a_share_is_between_its_rate_and_the_ceiling_of_the_nic() -> None:
    shares = [Share(10, burst=50), Share(10), Share(10, burst=5), Share(10, burst=1000)]
    assert [rate.ceiling for rate in rates(100, shares, ceiling=80)] == [50, 80, 10, 80]
