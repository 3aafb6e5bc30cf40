# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The names that a CEL selector uses, read from its text."""

from __future__ import annotations

import re
import typing as t
from functools import lru_cache

#: What can read an attribute without its domain or its name in the text: an escape sequence in a string, a string that
#: is put together, `cel.bind`, and a macro over all attributes of a domain.
_INDIRECT = re.compile(
    r"""\\[uUxX0-7]|["']\s*\+|\+\s*["']|\bcel\s*\.\s*bind\b"""
    r"""|\]\s*\.\s*(?:all|exists|exists_one|existsOne|map|filter|transform\w*)\s*\("""
)
_OWN_DOMAIN = re.compile(r"\[\s*device\s*\.\s*driver\s*\]")


def mentions(expression: str, name: str) -> bool:
    """Whether a selector may use a qualified attribute or capacity, as far as its text shows."""
    if _INDIRECT.search(expression):
        return True
    domain, _slash, identifier = name.partition("/")
    if domain not in expression and not _OWN_DOMAIN.search(expression):
        return False
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(identifier)}(?![A-Za-z0-9_])", expression) is not None


@lru_cache(maxsize=8192)
def mentioned(expression: str, names: frozenset[str]) -> frozenset[str]:
    """Those of the qualified `names` that a selector may use, see `mentions`."""
    return frozenset(name for name in names if mentions(expression, name))


def conjuncts(expression: str) -> list[str]:
    """The operands of `&&` at the top level of an expression, including those in parentheses; the whole expression if
    it has no such operands, or if it contains a comment or a bracket too many or too few."""
    ends = _ends_of_groups(expression)
    if ends is None:
        return [expression]
    operands: list[str] = []
    pending = [(0, len(expression))]
    while pending:
        outer = _without_spaces(expression, *pending.pop())
        start, end = outer
        parts = _split(expression, start, end, ends)
        while len(parts) == 1 and expression.startswith("(", start) and ends[start] == end:
            start, end = _without_spaces(expression, start + 1, end - 1)
            parts = _split(expression, start, end, ends)
        if len(parts) == 1:
            operands.append(expression[slice(*outer)])
        pending += reversed(parts if len(parts) > 1 else ())
    return operands


def _split(expression: str, start: int, end: int, ends: t.Mapping[int, int]) -> list[tuple[int, int]]:
    """The positions of the operands of `&&` between `start` and `end`; a single one if another operator decides."""
    parts, first, position = [], start, start
    while position < end:
        if position in ends:
            position = ends[position]
        elif expression[position] in "?|":
            return [(start, end)]  # `?:` or `||`: no single operand decides
        elif expression.startswith("&&", position):
            parts.append((first, position))
            first = position = position + 2
        else:
            position += 1
    return [*parts, (first, end)]


def _without_spaces(expression: str, start: int, end: int) -> tuple[int, int]:
    """The positions of a part of an expression without the spaces around it."""
    text = expression[start:end]
    return end - len(text.lstrip()), start + len(text.rstrip())


def _ends_of_groups(expression: str) -> dict[int, int] | None:
    """The position after each string literal and after each pair of brackets, by the position where it begins.

    None for an expression with a comment or with unbalanced brackets.
    """
    ends: dict[int, int] = {}
    opened: list[int] = []
    position = 0
    while position < len(expression):
        character = expression[position]
        start, position = position, position + 1
        if character in "\"'":
            ends[start] = position = _past_string(expression, start)
        elif expression.startswith("//", start):
            return None
        elif character in "([{":
            opened.append(start)
        elif character in ")]}":
            if not opened:
                return None
            ends[opened.pop()] = position
    return None if opened else ends


def _past_string(text: str, position: int) -> int:
    """The position after the string literal that begins at `position`."""
    mark = text[position] * 3 if text.startswith(text[position] * 3, position) else text[position]
    raw = position > 0 and text[position - 1] in "rR"
    position += len(mark)
    while position < len(text) and not text.startswith(mark, position):
        position += 2 if text[position] == "\\" and not raw else 1
    return position + len(mark)
