# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The names that a CEL selector uses, read from its text."""

from __future__ import annotations

import re
from functools import lru_cache


def mentions(expression: str, name: str) -> bool:
    """Whether a selector may use a qualified attribute or capacity, as its text contains domain and identifier."""
    domain, _slash, identifier = name.partition("/")
    if domain not in expression and "[device.driver]" not in expression:
        return False
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(identifier)}(?![A-Za-z0-9_])", expression) is not None


@lru_cache(maxsize=8192)
def mentioned(expression: str, names: frozenset[str]) -> frozenset[str]:
    """Those of the qualified `names` that a selector may use, see `mentions`."""
    return frozenset(name for name in names if mentions(expression, name))


def conjuncts(expression: str) -> list[str]:
    """The operands of `&&` at the top level of an expression, including those in parentheses; the whole expression if
    it has no such operands."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(expression):
        character = expression[position]
        if character in "\"'":
            position = _past_string(expression, position)
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and character in "?|":
            return [expression]  # `?:` or `||` at the top level: no single operand decides
        elif depth == 0 and expression.startswith("&&", position):
            parts.append(expression[start:position].strip())
            position += 2
            start = position
            continue
        position += 1
    parts.append(expression[start:].strip())
    if any(part.startswith("(") and part.endswith(")") and len(conjuncts(part[1:-1])) > 1 for part in parts):
        return [inner for part in parts for inner in _unwrapped(part)]
    return parts


def _unwrapped(part: str) -> list[str]:
    """The operands of a part in parentheses; the part itself if it has no parentheses."""
    if part.startswith("(") and part.endswith(")") and _closing_bracket(part) == len(part) - 1:
        return conjuncts(part[1:-1])
    return [part]


def _closing_bracket(text: str) -> int:
    """The position of the bracket that matches the one at the start of `text`; -1 if there is none."""
    depth, position = 0, 0
    while position < len(text):
        if text[position] in "\"'":
            position = _past_string(text, position)
            continue
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position
        position += 1
    return -1


def _past_string(text: str, position: int) -> int:
    """The position after the string literal that begins at `position`."""
    mark = text[position] * 3 if text.startswith(text[position] * 3, position) else text[position]
    raw = position > 0 and text[position - 1] in "rR"
    position += len(mark)
    while position < len(text) and not text.startswith(mark, position):
        position += 2 if text[position] == "\\" and not raw else 1
    return position + len(mark)
