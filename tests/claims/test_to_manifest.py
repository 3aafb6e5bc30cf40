# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter to_manifest: strings stay strings for every YAML reader, and only strings that need quotes get them."""

from __future__ import annotations

import typing as t

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.filter.to_manifest import to_manifest
from hypothesis import given
from hypothesis import strategies as st

#: Texts that go-yaml v2 or v3 reads as another type: each form of its table and of Go's numbers.
NOT_STRINGS = [
    *("y", "Y", "n", "N", "yes", "No", "ON", "off", "true", "False", "NULL", "~", "", "<<"),
    *("8", "08", "-08", "+7", "1_000", "08_1", "0x1f", "0X1F", "-0x1f", "0o17", "0O17", "+0o17", "0b1", "0B1", "-0b1"),
    *(
        "7e2",
        "7E2",
        "7e+2",
        "-7e-2",
        "1.",
        "1.5",
        "1_0.5e3",
        "-_7",
        "0_x1",
        "1e_2",
        ".5",
        "-.5",
        "+.5e3",
        ".inf",
        "-.Inf",
        ".NaN",
    ),
    *("2026-1-2", "2026-11-22", "2026-1-2T3:4:5Z", "2026-11-22 21:59:43.1", "1:30"),
]
TEXTS = [
    *("gpu", "nic-0", "yes-or-no", "nn", "400G", "80Gi", "1g.10gb", "10.0.0.0/8", "0.5.0", "1.37.1"),
    *(
        "0x",
        "0o8",
        "0b2",
        "8a",
        "7e",
        "1e3x",
        "08-a",
        "2026-11",
        "2026-11-22-a",
        "resource.k8s.io/v1",
        "e2",
        "device.driver",
    ),
]


@pytest.mark.parametrize("text", NOT_STRINGS)
def test_text_that_others_read_as_another_type_is_quoted(text: str) -> None:
    assert to_manifest(text) == f"'{text}'"
    assert to_manifest({text: [text]}) == f"'{text}':\n- '{text}'\n"


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_all_read_as_text_is_not_quoted(text: str) -> None:
    assert to_manifest(text) == text
    assert to_manifest({text: [text]}) == f"{text}:\n- {text}\n"


@pytest.mark.parametrize(("value", "text"), [(8, "8"), (True, "true"), (None, "null"), (0.5, "0.5"), (1e20, "1.0e+20")])
def test_values_that_are_not_text_are_not_quoted(value: t.Any, text: str) -> None:
    assert to_manifest(value) == text
    assert to_manifest({"a": value}) == f"a: {text}\n"


def test_shared_values_are_written_without_aliases() -> None:
    shared = {"rack": "08"}
    assert to_manifest({"a": shared, "b": shared}) == "a:\n  rack: '08'\nb:\n  rack: '08'\n"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_any_value_reads_back_unchanged(value: t.Any) -> None:
    assert yaml.safe_load(to_manifest(value)) == value
