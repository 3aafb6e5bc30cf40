# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The base class of the validation rules: it collects problems, and contains checks that many fields share."""

from __future__ import annotations

import typing as t

from ..kube import limits
from ..kube.objects import Object
from ..kube.problems import Problem
from . import features

NameCheck = t.Callable[[str], str]


class CelEngine(t.Protocol):
    """The part of `cel.Engine` that `validate` needs."""

    def check(self, expression: str) -> list[str]:
        """What is wrong with a CEL selector: syntax, types, cost. Empty if nothing is."""


class Rules:
    """The rules of one release. Each method checks a decoded part of an object and adds to `problems`."""

    def __init__(self, minor: int, gates: features.Gates, cel: CelEngine | None, problems: list[Problem]) -> None:
        self._minor = minor
        self._gates = gates
        self._cel = cel
        self._problems = problems

    def _add(self, path: str, message: str, rule: str) -> None:
        self._problems.append(Problem(path, message, rule))

    def _enabled(self, gate: str) -> bool:
        return features.enabled(gate, self._minor, self._gates)

    def _name(self, name: str, check: NameCheck, path: str, rule: str = "name") -> bool:
        """Check a required name. Returns whether it is valid."""
        if not name:
            self._add(path, "is required", "required")
            return False
        wrong = check(name)
        if wrong:
            self._add(path, f"{name!r} {wrong}" if len(name) < 80 else wrong, rule)
        return not wrong

    def _within(self, items: t.Sized, limit: int | None, path: str, what: str = "entries") -> bool:
        """Check a number of items. Returns whether it is allowed."""
        if limit is not None and len(items) > limit:
            self._add(path, f"has {len(items)} {what}; at most {limit} are allowed", "too-many")
            return False
        return True

    def _unique(self, keys: t.Iterable[t.Hashable], path: str, field: str = "") -> None:
        """Check for duplicates. `field` is the field of the keys; only 1.34 reports it in the path."""
        seen = set()
        for index, key in enumerate(keys):
            if key in seen:
                duplicate_path = f"{path}[{index}]"
                duplicate_path = f"{duplicate_path}.{field}" if field and self._minor == 34 else duplicate_path
                self._add(duplicate_path, f"{key!r} is a duplicate", "duplicate")
            seen.add(key)

    def _one_of(self, value: str, allowed: t.Collection[str], path: str) -> None:
        """Check a required value that must be one of those that are allowed."""
        if not value:
            self._add(path, "is required", "required")
        elif value not in allowed:
            self._add(path, f"{value!r} is not one of {', '.join(sorted(allowed))}", "value")

    def _fully_qualified(self, name: str) -> str:
        return limits.fully_qualified_name(name, self._minor)

    def _selectors(self, selectors: list[Object], path: str) -> None:
        if not self._within(selectors, limits.SELECTORS, path):
            return
        for index, selector in enumerate(selectors):
            cel = selector.get("cel")
            if cel is None:
                self._add(f"{path}[{index}].cel", "is required", "required")
                continue
            expression, expression_path = cel.get("expression", ""), f"{path}[{index}].cel.expression"
            if limits.size(expression) > limits.CEL_BYTES:
                self._add(expression_path, f"is longer than {limits.CEL_BYTES} bytes", "too-long")
            elif not expression.strip():
                self._add(expression_path, "is required", "required")
            elif self._cel is not None:
                for wrong in self._cel.check(expression):
                    self._add(expression_path, wrong, "cel")
