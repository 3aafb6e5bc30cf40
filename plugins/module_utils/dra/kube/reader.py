# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads a site's input: each error is recorded with its path, and reading continues."""

from __future__ import annotations

import difflib
import re
import typing as t

from . import quantity
from .objects import Object
from .problems import Problem

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Maximum characters of a key or value that a message shows.
_MAX_SHOWN = 64


def child(path: str, key: object) -> str:
    """The path of an element of a list (`key` is an int) or of a mapping, as in Jinja."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{path}[{key}]"
    if isinstance(key, str) and len(key) > _MAX_SHOWN:
        return f"{path}[{key[:_MAX_SHOWN] + '...'!r}]"
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def nearest(name: object, known: t.Iterable[str]) -> str:
    """`did you mean 'x'?` for the known name that is most similar to `name`, or an empty string."""
    matches = difflib.get_close_matches(str(name), list(known), 1, 0.6) if len(str(name)) <= _MAX_SHOWN else []
    return f"did you mean {matches[0]!r}?" if matches else ""


def _shown(value: object) -> str:
    """A description of a value for a message."""
    if isinstance(value, str):
        return f"the string {value!r}" if len(value) <= _MAX_SHOWN else "a string"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return "a list" if isinstance(value, (list, tuple)) else "a mapping" if isinstance(value, dict) else repr(value)


class Reader:
    """Collects problems. A method that reads a value returns None (or an empty list or mapping) if it is not usable."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def problem(self, path: str, message: str, rule: str, fix: str = "") -> None:
        """Record a problem."""
        self.problems.append(Problem(path, message, rule, fix))

    def wrong_type(self, value: object, path: str, wanted: str, fix: str = "") -> None:
        """Record that a value does not have the type `wanted`."""
        self.problem(path, f"must be {wanted}, not {_shown(value)}", "wrong-type", fix)

    def mapping(self, value: object, path: str, known: t.Iterable[str], what: str) -> Object | None:
        """A mapping with known keys. Unknown keys are problems; keys with null values are left out."""
        if not isinstance(value, dict):
            self.wrong_type(value, path, "a mapping")
            return None
        known = list(known)
        entries: Object = {}
        for key, item in value.items():
            if key not in known:
                fix = nearest(key, known) or f"known: {', '.join(known)}"
                self.problem(child(path, key), f"is not known in {what}", "unknown-key", fix)
            elif item is not None:
                entries[key] = item
        return entries

    def any_mapping(self, value: object, path: str) -> Object:
        """A mapping whose keys are any strings."""
        if not isinstance(value, dict):
            self.wrong_type(value, path, "a mapping")
            return {}
        entries = {}
        for key, item in value.items():
            if isinstance(key, str):
                entries[key] = item
            else:
                self.problem(child(path, key), "the key must be a string", "wrong-type", "quote it")
        return entries

    def items(self, value: object, path: str) -> list[tuple[object, str]]:
        """The elements of a list, each with its path."""
        if not isinstance(value, (list, tuple)):
            self.wrong_type(value, path, "a list")
            return []
        return [(item, child(path, index)) for index, item in enumerate(value)]

    def string(self, value: object, path: str) -> str | None:
        """A string that is not empty."""
        if isinstance(value, str) and value:
            return value
        if value == "":
            self.problem(path, "must not be empty", "empty")
        else:
            quotable = isinstance(value, (int, float))
            self.wrong_type(value, path, "a string", "put it in quotes" if quotable else "")
        return None

    def strings(self, value: object, path: str) -> list[str]:
        """A list of strings; a single string counts as a list with one element."""
        if isinstance(value, str):
            value = [value]
        texts = [self.string(item, item_path) for item, item_path in self.items(value, path)]
        return [item for item in texts if item is not None]

    def name(self, value: object, path: str, check: t.Callable[[str], str]) -> str | None:
        """A string that passes a name check of `limits`."""
        text = self.string(value, path)
        wrong = check(text) if text is not None else ""
        if wrong:
            self.problem(path, f"{text!r} {wrong}", "bad-name")
            return None
        return text

    def boolean(self, value: object, path: str) -> bool | None:
        """A boolean."""
        if isinstance(value, bool):
            return value
        names = ("true", "false", "yes", "no", "on", "off")
        quoted = isinstance(value, str) and value.lower() in names
        self.wrong_type(value, path, "true or false", "write it without quotes" if quoted else "")
        return None

    def integer(self, value: object, path: str, minimum: int, maximum: int | None = None) -> int | None:
        """A whole number within bounds."""
        if isinstance(value, bool) or not isinstance(value, int):
            quoted = isinstance(value, str) and value.strip().lstrip("-").isdigit()
            self.wrong_type(value, path, "a whole number", "write it without quotes" if quoted else "")
            return None
        if value < minimum or (maximum is not None and value > maximum):
            bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            self.problem(path, f"must be {bounds}, not {value}", "out-of-range")
            return None
        return value

    def choice(self, value: object, path: str, known: t.Sequence[str]) -> str | None:
        """One of the `known` strings."""
        text = self.string(value, path)
        if text is not None and text not in known:
            fix = nearest(text, known)
            self.problem(path, f"{text!r} is not one of {', '.join(known)}", "unknown-value", fix)
            return None
        return text

    def amount(self, value: object, path: str) -> str | None:
        """A Kubernetes quantity above zero, as text."""
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self.wrong_type(value, path, "a quantity such as 100G or 80Gi")
            return None
        try:
            number = quantity.parse(value)
        except quantity.QuantityError as error:
            self.problem(path, f"{value!r} is not a quantity such as 100G or 80Gi: {error}", "bad-quantity")
            return None
        if number <= 0:
            self.problem(path, f"must be more than zero, not {value}", "out-of-range")
            return None
        return str(value).strip()
