# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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


def cut(value: t.Any, most: int) -> t.Any:
    """A simple model of loads_pruned."""
    if isinstance(value, list):
        return [cut(item, most - 1) for item in value] if most else None
    if isinstance(value, dict):
        return {key: cut(item, most - 1) for key, item in value.items()} if most else None
    return value


@given(VALUES, st.integers(0, 6), st.booleans())
def test_text_within_the_bounds_is_read_as_by_json(value: t.Any, most: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert loads_pruned(text, depth=most) == cut(value, most)
    assert is_nested_deeper(value, most) == (depth(value) > most)
    if depth(value) <= most:
        assert loads(text, depth=most) == value
    else:
        with pytest.raises(JsonError, match="nested"):
            loads(text, depth=most)


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
def test_a_too_deeply_nested_part_is_dropped_alone(levels: int, brackets: tuple[str, str]) -> None:
    nested = brackets[0] * levels + "1" + brackets[1] * levels
    text = f'{{"items": [{{"name": "a", "odd": {nested}}}, {{"name": "b"}}]}}'.encode()
    found = loads_pruned(text)
    assert [item["name"] for item in found["items"]] == ["a", "b"]
    assert not is_nested_deeper(found)
    repr(found), json.dumps(found), found == loads_pruned(text)  # these would raise a RecursionError
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "]" * 100_000, "[" * 100 + "}" * 100, '"' + "[" * 100, "[1] [" * 100])
def test_brackets_that_do_not_match_are_refused(text: str) -> None:
    for read in (loads, loads_pruned):
        with pytest.raises(JsonError):
            read(text.encode())


def test_longer_text_than_allowed_is_refused() -> None:
    with pytest.raises(JsonError, match="11 bytes; at most 10 are"):
        loads(b"[123456789]", max_bytes=10)
    assert loads(b"[12345678]", max_bytes=10) == [12345678]


def test_other_encodings_are_refused() -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        with pytest.raises(JsonError):
            loads_pruned(json.dumps({"a": [[1]]}).encode(encoding), depth=1)


def test_only_the_invalid_text_is_replaced() -> None:
    assert loads_pruned(b'{"a": "x\xff", "b": "\\ud800\\uDC00 \\uD800", "c": 1}') == {
        "a": "x\ufffd",
        "b": "\U00010000 \ufffd",
        "c": 1,
    }
    with pytest.raises(JsonError):
        loads(b'"\xff"')


def test_a_number_that_python_does_not_read_is_refused() -> None:
    with pytest.raises(JsonError):
        loads(b"9" * 5000 + b"x")


def test_a_long_list_takes_little_more_time_than_with_json() -> None:
    item = {"metadata": {"name": "a" * 20, "labels": {f"l{n}": "v" * 30 for n in range(10)}}, "spec": {"x": [1, 2]}}
    text = json.dumps({"items": [item] * 20_000}).encode()

    def taken(read: t.Callable[[bytes], t.Any]) -> float:
        best = 1e9
        for _time in range(3):
            start = time.process_time()
            read(text)
            best = min(best, time.process_time() - start)
        return best

    assert taken(loads_pruned) < 5 * taken(json.loads)
