# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Formats of stored files, and the conversions between them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Conversion, Formats, NewerFormat


def _rename(value: dict[str, t.Any], before: str, after: str) -> dict[str, t.Any]:
    value[after] = value.pop(before)
    return value


#: The conversions of the formats 2 and 3. Each renames a field.
CONVERSIONS = {
    2: Conversion(lambda value: _rename(value, "a", "b"), lambda value: _rename(value, "b", "a")),
    3: Conversion(lambda value: _rename(value, "b", "c"), lambda value: _rename(value, "c", "b")),
}


@pytest.mark.parametrize(("written", "stored_field"), [(1, "a"), (2, "b"), (3, "c")])
def test_each_format_is_written_and_read(written: int, stored_field: str) -> None:
    formats = Formats(conversions=CONVERSIONS, written=written)
    content = {"c": [5], "format": 3}
    stored = formats.write(content)
    assert stored == {stored_field: [5], "format": written} and content == {"c": [5], "format": 3}
    assert formats.read(stored) == content


def test_a_file_without_a_number_has_the_unnumbered_format() -> None:
    assert Formats(unnumbered=1).read({"a": 1}) == {"a": 1, "format": 1}
    assert Formats(unnumbered=1).write({"a": 1}) == {"a": 1, "format": 1}
    assert Formats(unnumbered=1, bare=True).write({"a": 1}) == {"a": 1}
    assert Formats(conversions=CONVERSIONS, unnumbered=2, written=3).read({"b": 1}) == {"c": 1, "format": 3}


@pytest.mark.parametrize(
    "value", [{"a": 1}, {"format": True}, {"format": "1"}, {"format": 0}, {"format": -1}, [], 7, None]
)
def test_values_of_an_unknown_format_are_refused(value: t.Any) -> None:
    with pytest.raises(ValueError, match="not a mapping with a format|there is no format") as refused:
        Formats().read(value)
    assert not isinstance(refused.value, NewerFormat)


def test_a_newer_format_is_read_only_if_it_declares_compatibility() -> None:
    formats = Formats(conversions=CONVERSIONS)
    with pytest.raises(NewerFormat, match="its format is 5, and this release knows up to 3"):
        formats.read({"format": 5, "c": 1})
    with pytest.raises(NewerFormat):
        formats.read({"format": 5, "c": 1, "readable_by": 4})
    readable = {"format": 5, "c": 1, "readable_by": 3}
    assert formats.read(readable) == readable
