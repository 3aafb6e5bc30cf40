# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers as Go reads them in YAML."""

from __future__ import annotations

import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.go_scalars import FIRST, NUMBER, number
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("017", 15), ("08", 8.0), ("0o17", 15), ("-0x1f", -31), ("+0b1_0", 2), ("7e2", 700.0), (".5", 0.5)],
)
def test_numbers_have_the_value_and_type_that_go_reads(text: str, value: float) -> None:
    assert number(text) == value and type(number(text)) is type(value)


@given(st.from_regex(NUMBER, fullmatch=True))
def test_text_in_the_format_of_a_number_becomes_a_number_or_stays_text(text: str) -> None:
    assert text[0] in FIRST and re.fullmatch(NUMBER, text)
    assert isinstance(number(text), (int, float)) or number(text) == text
