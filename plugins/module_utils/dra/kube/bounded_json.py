# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reads untrusted JSON with bounds on its size and nesting.

An API server accepts JSON that is nested 10,000 levels deep, and returns opaque parts of objects unchanged. Python's
own parser raises RecursionError for some of this JSON (at about 1,000 levels up to Python 3.11), and comparing or
copying values that it did parse can fail, too. One such part would make a whole list unreadable.
"""

from __future__ import annotations

import json
import re
import typing as t

#: Maximum nesting: a claim with its configuration has about 15 levels.
DEPTH = 64
#: Maximum bytes of one object. An API server stores 1.5 MiB at most.
OBJECT_BYTES = 8 << 20
#: Maximum bytes of a list of objects.
LIST_BYTES = 256 << 20

# A string that does not end matches up to the end of the text: otherwise each of its quotes would be tried as a start.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[][{}]", re.DOTALL)
_AS_SQUARE_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """The text is not JSON, is too long, or is nested too deeply. The message says which."""


def loads(text: bytes, max_bytes: int = OBJECT_BYTES, depth: int = DEPTH) -> t.Any:
    """The value of a JSON text in UTF-8.

    Raises JsonError if it is invalid, longer than `max_bytes` or nested deeper than `depth`.
    """
    _check_length(text, max_bytes)
    if _is_nested_deeper(text, depth):
        raise JsonError(f"it is nested deeper than {depth} levels, or its brackets do not match")
    return _value(text, "strict")


def loads_pruned(text: bytes, max_bytes: int = LIST_BYTES, depth: int = DEPTH) -> t.Any:
    """Like `loads`, but values below `depth` become None and invalid UTF-8 becomes U+FFFD.

    So one invalid part does not make the whole object unreadable. Raises JsonError for other errors.
    """
    _check_length(text, max_bytes)
    return _value(_prune(text, depth) if _is_nested_deeper(text, depth) else text, "replace")


def is_nested_deeper(value: t.Any, depth: int = DEPTH) -> bool:
    """Whether a value from another parser nests lists and mappings in more than `depth` levels."""
    level = [value]
    for _level in range(depth + 1):
        level = [item for item in level if isinstance(item, (dict, list))]
        if not level:
            return False
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def _check_length(text: bytes, max_bytes: int) -> None:
    if len(text) > max_bytes:
        raise JsonError(f"it has {len(text)} bytes; at most {max_bytes} are allowed")


def _is_nested_deeper(text: bytes, depth: int) -> bool:
    """Whether a JSON text is nested deeper, or its brackets do not match.

    Removes the innermost pairs, one level at a time, to avoid a loop over bytes.
    """
    brackets = _STRINGS.sub(b"", text).translate(_AS_SQUARE_BRACKETS, _NO_BRACKETS)
    for _level in range(depth):
        brackets, before = brackets.replace(b"[]", b""), len(brackets)
        if len(brackets) in (0, before):
            break
    return bool(brackets)


def _prune(text: bytes, depth: int) -> bytes:
    """A JSON text with null for all lists and mappings below `depth`. Raises JsonError."""
    parts, start, level = [], 0, 0
    for token in _TOKENS.finditer(text):
        bracket = token.group()[:1]
        if bracket in b"[{":
            level += 1
            if level == depth + 1:
                parts += [text[start : token.start()], b"null"]
        elif bracket in b"]}":
            if level == depth + 1:
                start = token.end()
            level -= 1
    if level > depth:
        raise JsonError("its brackets do not match")
    return b"".join([*parts, text[start:]])


def _value(text: bytes, errors: str) -> t.Any:
    """The value of a JSON text; `errors` says how to decode invalid UTF-8. Raises JsonError."""
    try:
        # decoded here, because from bytes json would also accept UTF-16 and UTF-32, whose brackets were not counted
        value = json.loads(text.decode("utf-8", errors))
    except (ValueError, RecursionError) as error:
        raise JsonError(f"it is not JSON: {error}") from None
    return _encodable(value) if b"\\ud" in text or b"\\uD" in text else value


def _encodable(value: object) -> object:
    """The value with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value
