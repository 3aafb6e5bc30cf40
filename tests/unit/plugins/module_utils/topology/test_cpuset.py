# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import cpuset
from hypothesis import given
from hypothesis import strategies as st

CPUS = st.sets(st.integers(0, 2047))


def bits_of(cpus: set[int]) -> int:
    return sum(1 << cpu for cpu in cpus)


@given(CPUS)
def test_a_written_list_is_read_back(cpus):
    assert cpuset.from_list(cpuset.to_list(bits_of(cpus))) == bits_of(cpus)


@given(CPUS)
def test_the_ranges_of_a_written_list_are_ascending_and_not_adjacent(cpus):
    ranges = [part.split("-") for part in cpuset.to_list(bits_of(cpus)).split(",") if part]
    for current, following in zip(ranges, ranges[1:]):
        assert int(current[-1]) + 1 < int(following[0])


@given(CPUS, st.integers(0, 3))
def test_a_mask_is_read_as_the_kernel_writes_it(cpus, padding):
    digits = f"{bits_of(cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8 + padding * 8)
    words = [digits[start : start + 8] for start in range(0, len(digits), 8)]
    assert cpuset.from_mask(",".join(words)) == bits_of(cpus)
    assert cpuset.from_mask(",".join(f"0x{word}" for word in words)) == bits_of(cpus)


@given(st.text(max_size=40))
def test_any_text_gives_a_cpu_set_or_none(text):
    for parse in (cpuset.from_list, cpuset.from_mask):
        value = parse(text)
        assert value is None or value >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("0", 1), ("0-3,8", 0x10F), ("0-3\n", 0xF), (" 1 ", 2)],
)
def test_cpu_lists_are_read(text, expected):
    assert cpuset.from_list(text) == expected


@pytest.mark.parametrize(
    "text",
    ["3-1", "0-", "-1", "a", "0,,1", "0-3-5", "0x1", "0-99999999", "9" * 5000, "\u00b2", "\u0663", "0 1"],
)
def test_malformed_lists_give_none(text):
    assert cpuset.from_list(text) is None


@pytest.mark.parametrize(
    "text", ["", "g", "1,2", "ffffffff,", "00000001,0000000", "123456789", "f" * 20000, "0x", "0x1,0x2", "1x0"]
)
def test_malformed_masks_give_none(text):
    assert cpuset.from_mask(text) is None


@pytest.mark.parametrize("text", ["f,00000001", "0xf,0x00000001"])
def test_the_first_word_of_a_mask_may_be_short(text):
    assert cpuset.from_mask(text) == 0xF00000001
