# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The setting `shares`: defaults, and the path of every error."""

from __future__ import annotations

import typing as t
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.share_settings import read_shares
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.reader import Reader
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish_shares import (
    ShareRule,
    factor_text,
    refusal,
)
from ansible_collections.lanewise.dra.plugins.module_utils.topology.selector import Selector
from hypothesis import given
from hypothesis import strategies as st

PF = {"type": "pf"}


def read(value: object) -> tuple[tuple[ShareRule, ...], list[str]]:
    """The rules of the setting, and the paths of its problems."""
    reader = Reader()
    found = read_shares(reader, value, "shares")
    return found, [problem.path for problem in reader.problems]


def test_the_minimum_and_the_default_rate_follow_from_the_step() -> None:
    (rule,), problems = read([{"select": PF}])
    assert problems == [] and rule == ShareRule(Selector(type=("pf",)))
    (rule,), problems = read([{"select": PF, "step": "500M", "factor": 1.5, "ceiling": "50G"}])
    assert (rule.minimum, rule.default, rule.step, rule.factor) == (5 * 10**8, 5 * 10**8, 5 * 10**8, Fraction(3, 2))
    assert (rule.share_ceiling(100 * 10**9), rule.share_ceiling(10**9)) == (50 * 10**9, 10**9)
    (rule,), problems = read([{"select": PF, "mechanism": "macvlan", "namespace": "a", "mode": "vepa"}])
    assert problems == [] and (rule.mechanism, rule.namespace, rule.mode) == ("macvlan", "a", "vepa")


def test_the_rate_to_share_is_at_most_that_of_the_link() -> None:
    default, limited = ShareRule(Selector()), ShareRule(Selector(), bandwidth=10**9)
    assert (default.physical(400000), default.physical(None), default.physical(-1)) == (400 * 10**9, None, None)
    assert (limited.physical(400000), limited.physical(None), limited.physical(100)) == (10**9, 10**9, 10**8)


def test_the_bandwidth_times_the_factor_must_be_enough_for_min_plus_step() -> None:
    """As for the NIC itself, whose link may be that slow."""
    entry: dict[str, t.Any] = {"select": PF, "bandwidth": "1G", "factor": 2}
    (rule,), problems = read([entry])
    assert problems == [] and refusal(rule, rule.physical(400000), "ethernet", 8) == ""
    reader = Reader()
    assert read_shares(reader, [{**entry, "factor": 1.5}], "shares") == ()
    (problem,) = reader.problems
    assert problem.path == "shares[0].bandwidth" and problem.message == (
        "must be at least 1333333334, which is min plus step (2000000000) divided by factor, not 1000000000"
    )
    (rule,), problems = read([{**entry, "factor": 1.5, "bandwidth": "1333333334"}])
    assert problems == [] and refusal(rule, rule.physical(None), "ethernet", 8) == ""


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({}, "shares[0].select"),
        ({"select": {}}, "shares[0].select"),
        ({"select": PF, "mechanism": "ipvlan"}, "shares[0].mechanism"),
        ({"select": PF, "mechanism": "macvlan"}, "shares[0].namespace"),
        ({"select": PF, "mechanism": "macvlan", "namespace": "A"}, "shares[0].namespace"),
        ({"select": PF, "mode": "vepa"}, "shares[0].mode"),
        ({"select": PF, "mechanism": "macvlan", "namespace": "a", "mode": "bridge"}, "shares[0].mode"),
        ({"select": PF, "factor": 0.9}, "shares[0].factor"),
        ({"select": PF, "factor": 1.234}, "shares[0].factor"),
        ({"select": PF, "factor": 101}, "shares[0].factor"),
        ({"select": PF, "factor": True}, "shares[0].factor"),
        ({"select": PF, "factor": "1"}, "shares[0].factor"),
        ({"select": PF, "factor": float("nan")}, "shares[0].factor"),
        ({"select": PF, "factor": float("inf")}, "shares[0].factor"),
        ({"select": PF, "step": "1k"}, "shares[0].step"),
        ({"select": PF, "step": "1000000.5"}, "shares[0].step"),
        ({"select": PF, "min": "2E"}, "shares[0].min"),
        ({"select": PF, "default": "500M"}, "shares[0].default"),
        ({"select": PF, "default": "1500M"}, "shares[0].default"),
        ({"select": PF, "default": "10G", "ceiling": "5G"}, "shares[0].ceiling"),
        ({"select": PF, "bandwidth": "1G"}, "shares[0].bandwidth"),
        ({"select": PF, "default": "20G", "bandwidth": "10G", "factor": 4}, "shares[0].default"),
        ({"select": PF, "limit": "1G"}, "shares[0].limit"),
    ],
)
def test_invalid_settings_are_reported_at_their_path(entry: dict[str, t.Any], path: str) -> None:
    found, problems = read([entry])
    assert (found, problems) == ((), [path])


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists)
    | st.dictionaries(
        st.sampled_from(["select", "factor", "step", "min", "namespace"]), st.floats() | st.text() | st.integers()
    ).map(lambda entry: [entry])
)
def test_any_value_is_read_or_refused(value: object) -> None:
    found, problems = read(value)
    assert found == () or not problems


@pytest.mark.parametrize(("factor", "text"), [("1", "1"), ("3/2", "1.5"), ("5/4", "1.25"), ("10", "10"), ("20", "20")])
def test_factors_are_written_as_decimals(factor: str, text: str) -> None:
    assert factor_text(Fraction(factor)) == text
