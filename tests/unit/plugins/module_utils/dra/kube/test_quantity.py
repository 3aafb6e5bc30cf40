# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Quantities are read and written as by Kubernetes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from hypothesis import given
from hypothesis import strategies as st


# The values that real API servers compute; tests/cluster/test_validation.py compares both.
@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0),
        ("1", 1),
        ("+5", 5),
        ("-500m", Fraction(-1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        (".", 0),
        ("-", 0),
        ("+", 0),
        ("k", 0),
        ("e3", 0),
        ("100G", 100 * 10**9),
        ("80Gi", 80 * 2**30),
        ("1.5Ki", 1536),
        ("1e3", 1000),
        ("2E2", 200),
        ("1E", 10**18),
        ("1E-3", Fraction(1, 1000)),
        ("1n", Fraction(1, 10**9)),
        ("1e-12", Fraction(1, 10**9)),
        ("-1e-12", Fraction(-1, 10**9)),
        ("1.0000000001", Fraction(1000000001, 10**9)),
        ("16Ei", 2**63 - 1),
        ("16E", 16 * 10**18),
        (" 1 ", 1),
        (5, 5),
        (1.5, Fraction(3, 2)),
        (1e20, 10**20),
    ],
)
def test_quantities_have_the_value_that_the_server_reads(text, value):
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "abc",
        "1e",
        "1Kii",
        "1ki",
        "1K",
        "1_0",
        "0x10",
        "NaN",
        "--1",
        "+-1",
        "1.2.3",
        "1eE5",
        "1 2",
        "٣",
        "1\n",
        "1" * 129,
        "1e" + "9" * 5000,
        "1" * 5000,
        10**5000,
    ]
    + [None, True, False, [], {}],
    ids=lambda text: repr(text)[:20] if isinstance(text, str) else type(text).__name__,
)
def test_invalid_quantities_are_refused(text):
    with pytest.raises(quantity.QuantityError):
        quantity.parse(text)


def test_huge_exponents_are_read():
    assert quantity.parse("1e999999999") > quantity.parse("1e300")
    assert quantity.parse("1e-999999999") == Fraction(1, 10**9)
    longest = quantity.parse("9" * 118 + "e999999999")
    assert len(quantity.canonical(longest)) == 118 + 4096 - 18 + len("E")


@pytest.mark.parametrize(
    "text, written",
    [
        ("1000Ki", "1000Ki"),
        ("1024Ki", "1Mi"),
        ("512", "512"),
        ("0.5Gi", "512Mi"),
        ("1.0005Ki", "1024512m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("100e3", "100e3"),
        ("1000000n", "1m"),
        ("12000", "12k"),
        ("0.1Ki", "102400m"),
        ("-1Mi", "-1Mi"),
        ("0Gi", "0"),
    ],
)
def test_canonical_text_keeps_the_suffix_form(text, written):
    assert quantity.canonical(quantity.parse(text), quantity.suffix_form(text)) == written


def test_a_fraction_of_a_nano_cannot_be_written():
    with pytest.raises(quantity.QuantityError):
        quantity.canonical(Fraction(1, 10**10))


@pytest.mark.parametrize(
    "text, expected", [("500m", 1), ("-500m", -1), ("2", 2), ("9223372036854775808", 0), ("1e30", 0)]
)
def test_integer_is_the_value_that_go_computes(text, expected):
    assert quantity.integer(quantity.parse(text)) == expected


NUMBERS = st.integers(-(10**21), 10**21).map(lambda number: Fraction(number, 10**9))


@given(NUMBERS, st.sampled_from([quantity.DECIMAL_SI, quantity.DECIMAL_EXPONENT]))
def test_canonical_decimal_text_is_read_back_unchanged(number, form):
    assert quantity.parse(quantity.canonical(number, form)) == number


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_canonical_binary_text_is_read_back_unchanged(number):
    assert quantity.parse(quantity.canonical(Fraction(number), quantity.BINARY_SI)) == number


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP ", max_size=12), st.text(alphabet="0123456789.eEmkKi", max_size=8))
def test_parse_raises_no_other_errors_and_agrees_with_compare(first, second):
    try:
        x, y = quantity.parse(first), quantity.parse(second)
    except quantity.QuantityError:
        return
    assert quantity.compare(first, second) == (x > y) - (x < y) == -quantity.compare(second, first)
