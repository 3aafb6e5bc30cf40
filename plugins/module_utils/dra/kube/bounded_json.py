# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""JSON that others wrote, read with bounds on its size and nesting.

An API server takes JSON that is nested 10,000 deep, and hands opaque parts of objects on byte by byte. Python's own
reader raises RecursionError for some of that (at about 1,000 up to Python 3.11), and what it does read breaks the next
comparison or copy. Such a part would make its whole list unreadable.
"""

from __future__ import annotations

import json
import re
import typing as t

#: Nesting of what is read: a claim with its configuration takes about 15.
DEPTH = 64
#: Bytes of one object. An API server stores 1.5 MiB of it at most.
OBJECT_BYTES = 8 << 20
#: Bytes of one list of objects.
LIST_BYTES = 256 << 20

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[][{}]", re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """It is not JSON, too long, or nested too deep; the message says which."""


def loads(text: bytes, most: int = OBJECT_BYTES, depth: int = DEPTH) -> t.Any:
    """The value of a JSON text in UTF-8. Raises JsonError where it is longer than `most` bytes or nested deeper than
    `depth`."""
    _check_length(text, most)
    if _is_deeper(text, depth):
        raise JsonError(f"it is nested deeper than {depth} levels, or its brackets do not match")
    return _value(text, "strict")


def loads_cut(text: bytes, most: int = LIST_BYTES, depth: int = DEPTH) -> t.Any:
    """As `loads`, but deeper values read as None, and invalid UTF-8 as U+FFFD: one odd part of an object
    must not hide the others. Raises JsonError for everything else."""
    _check_length(text, most)
    return _value(_cut(text, depth) if _is_deeper(text, depth) else text, "replace")


def is_nested_deeper(value: t.Any, depth: int = DEPTH) -> bool:
    """Whether a value that was read elsewhere holds lists and mappings in more than `depth` levels."""
    level = [value]
    for _level in range(depth + 1):
        level = [one for one in level if isinstance(one, (dict, list))]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def _check_length(text: bytes, most: int) -> None:
    if len(text) > most:
        raise JsonError(f"it has {len(text)} bytes; at most {most} are allowed")


def _is_deeper(text: bytes, depth: int) -> bool:
    """Also true where brackets do not match. Takes out the innermost pairs, one level at a time: no loop over bytes."""
    brackets = _STRINGS.sub(b"", text).translate(_ALIKE, _NO_BRACKETS)
    for _level in range(depth):
        brackets, before = brackets.replace(b"[]", b""), len(brackets)
        if len(brackets) in (0, before):
            break
    return bool(brackets)


def _cut(text: bytes, depth: int) -> bytes:
    kept, start, level = [], 0, 0
    for token in _TOKENS.finditer(text):
        sign = token.group()[:1]
        if sign in b"[{":
            level += 1
            if level == depth + 1:
                kept += [text[start : token.start()], b"null"]
        elif sign in b"]}":
            if level == depth + 1:
                start = token.end()
            level -= 1
    if level > depth:
        raise JsonError("its brackets do not match")
    return b"".join([*kept, text[start:]])


def _value(text: bytes, errors: str) -> t.Any:
    try:
        # not from bytes: json would take UTF-16 and UTF-32 too, whose brackets were not counted
        value = json.loads(text.decode("utf-8", errors))
    except (ValueError, RecursionError) as error:
        raise JsonError(f"it is not JSON: {error}") from None
    return _encodable(value) if b"\\ud" in text or b"\\uD" in text else value


def _encodable(value: object) -> object:
    """Halves of surrogate pairs, which no UTF-8 can hold, as U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value
