# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""JSON is read with limits of size and depth."""

from __future__ import annotations

import json
import time
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.bounded_json import (
    DEPTH,
    JsonError,
    is_nested_deeper,
    loads,
    loads_pruned,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab[]{}"\\\n\x00\xe4'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a[{"\\'), inner, max_size=3),
    max_leaves=12,
)


def depth(value: t.Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def pruned(value: t.Any, max_depth: int) -> t.Any:
    """What loads_pruned must return for the JSON of this value."""
    if isinstance(value, list):
        return [pruned(item, max_depth - 1) for item in value] if max_depth else None
    if isinstance(value, dict):
        return {key: pruned(item, max_depth - 1) for key, item in value.items()} if max_depth else None
    return value


@given(VALUES, st.integers(0, 6), st.booleans())
def test_text_within_the_depth_is_read_as_by_json_and_deeper_text_is_pruned_or_refused(
    value: t.Any, max_depth: int, ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert loads_pruned(text, depth=max_depth) == pruned(value, max_depth)
    assert is_nested_deeper(value, max_depth) == (depth(value) > max_depth)
    if depth(value) <= max_depth:
        assert loads(text, depth=max_depth) == value
    else:
        with pytest.raises(JsonError, match="nested"):
            loads(text, depth=max_depth)


@given(st.binary(max_size=40) | st.text('[]{}"\\,:1ae \n', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    for read in (loads, loads_pruned):
        try:
            value = read(text, depth=4)
        except JsonError:
            continue
        assert depth(value) <= 4
        json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("levels", [DEPTH, DEPTH + 1, 990, 5_000, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}"), ('[{"]":', "}]")])
def test_only_the_part_that_is_nested_too_deeply_is_dropped(levels: int, brackets: tuple[str, str]) -> None:
    nested = brackets[0] * levels + "1" + brackets[1] * levels
    text = f'{{"items": [{{"name": "a", "odd": {nested}}}, {{"name": "b"}}]}}'.encode()
    found = loads_pruned(text)
    assert [item["name"] for item in found["items"]] == ["a", "b"]
    assert not is_nested_deeper(found)
    repr(found), json.dumps(found), found == loads_pruned(text)  # none of these raises a RecursionError
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "]" * 100_000, "[" * 100 + "}" * 100, '"' + "[" * 100, "[1] [" * 100])
def test_brackets_that_do_not_match_are_refused(text: str) -> None:
    for read in (loads, loads_pruned):
        with pytest.raises(JsonError):
            read(text.encode())


@pytest.mark.parametrize("end", ["", "\\"])
def test_a_string_without_an_end_is_refused_in_linear_time(end: str) -> None:
    text = ('"' + '\\"' * 1_000_000 + end).encode()
    for read in (loads, loads_pruned):
        with pytest.raises(JsonError):
            read(text)


def test_text_of_more_than_the_maximum_size_is_refused() -> None:
    with pytest.raises(JsonError, match="11 bytes; at most 10 are"):
        loads(b"[123456789]", max_bytes=10)
    assert loads(b"[12345678]", max_bytes=10) == [12345678]


def test_other_encodings_are_refused() -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        with pytest.raises(JsonError):
            loads_pruned(json.dumps({"a": [[1]]}).encode(encoding), depth=1)


def test_only_invalid_characters_are_replaced() -> None:
    assert loads_pruned(b'{"a": "x\xff", "b": "\\ud800\\uDC00 \\uD800", "c": 1}') == {
        "a": "x\ufffd",
        "b": "\U00010000 \ufffd",
        "c": 1,
    }
    with pytest.raises(JsonError):
        loads(b'"\xff"')


def test_a_number_with_too_many_digits_is_refused() -> None:
    # without the x, old releases of Python would read it
    with pytest.raises(JsonError):
        loads(b"9" * 5000 + b"x")


def test_a_long_list_takes_less_than_five_times_as_long_as_with_json() -> None:
    item = {"metadata": {"name": "a" * 20, "labels": {f"l{n}": "v" * 30 for n in range(10)}}, "spec": {"x": [1, 2]}}
    text = json.dumps({"items": [item] * 20_000}).encode()

    def seconds(read: t.Callable[[bytes], t.Any]) -> float:
        best = 1e9
        for _time in range(3):
            start = time.process_time()
            read(text)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(loads_pruned) < 5 * seconds(json.loads)
