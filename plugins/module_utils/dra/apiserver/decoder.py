# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads a Kubernetes object as the API server's strict decoder does, with the tables in `schema`."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from functools import cache

from ..kube import limits, quantity
from ..kube.comparison import is_time
from ..kube.objects import Object
from ..kube.problems import Problem
from .schema import child, fields


@dataclass(frozen=True)
class _Type:
    """A parsed field type: `shape` is "[" (list), "{" (map) or "", `item` the type of its items or of the field."""

    shape: str
    item: str


@cache
def _types(struct: str, version: str, minor: int) -> dict[str, _Type]:
    kinds = {}
    for name, field in fields(struct, version, minor).items():
        kind = field.type.lstrip("*")
        shape = kind[0] if kind[0] in "[{" else ""
        kinds[name] = _Type(shape, kind[2:] if shape else kind)
    return kinds


def _zero(item: str) -> object:
    """The zero value of a type."""
    return {"string": "", "bool": False, "int64": 0, "quantity": 0, "time": None, "raw": None}.get(item, {})


class Decoder:
    """Reads a JSON object into the fields of a kind, as the API server's strict decoder does.

    `types` collects values that no server accepts; `unknown` collects fields, with their values, that it refuses
    with `fieldValidation=Strict` and otherwise drops.
    """

    def __init__(self, version: str, minor: int) -> None:
        self._version, self._minor = version, minor
        self.types: list[Problem] = []
        self.unknown: list[tuple[Problem, object]] = []

    def struct(self, value: object, name: str, path: str) -> Object:
        """`value` without unset (null) and unknown fields, and with zero values for nulls in lists and maps."""
        if not isinstance(value, dict):
            self._wrong(path, "an object", value)
            return {}
        known = _types(name, self._version, self._minor)
        read: Object = {}
        for key, item in value.items():
            kind = known.get(key) if isinstance(key, str) else None
            if kind is None:
                problem = Problem(
                    child(path, str(key)), f"is not a field of {name} in {self._version}", "unknown-field"
                )
                self.unknown.append((problem, item))
            elif item is not None:
                read[key] = self._value(item, kind, f"{path}.{key}" if path else key)
        return read

    def _value(self, value: object, kind: _Type, path: str) -> object:
        if kind.shape == "[":
            if not isinstance(value, list):
                self._wrong(path, "a list", value)
                return []
            if kind.item == "string" and all(isinstance(item, str) for item in value):
                return value
            return [self._item(item, kind.item, f"{path}[{index}]") for index, item in enumerate(value)]
        if kind.shape == "{":
            if not isinstance(value, dict):
                self._wrong(path, "an object", value)
                return {}
            for key in value:
                if not isinstance(key, str):
                    self._wrong(f"{path}[{key}]", "a string as key", key)
            return {key: self._item(item, kind.item, f"{path}[{key}]") for key, item in value.items()}
        return self._item(value, kind.item, path)

    def _item(self, value: object, kind: str, path: str) -> object:
        if value is None:
            return _zero(kind)
        read = self._SCALARS.get(kind)
        if read is not None:
            return read(self, value, path)
        return value if kind == "raw" else self.struct(value, kind, path)

    def _string(self, value: object, path: str) -> object:
        if isinstance(value, str):
            return value
        self._wrong(path, "a string", value)
        return ""

    def _bool(self, value: object, path: str) -> object:
        if isinstance(value, bool):
            return value
        self._wrong(path, "true or false", value)
        return False

    def _int64(self, value: object, path: str) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(path, "an integer", value)
            return 0
        if not limits.INT64_MIN <= value <= limits.INT64_MAX:
            self.types.append(Problem(path, "must be an integer of 64 bits", "type"))
            return 0
        return value

    def _quantity(self, value: object, path: str) -> object:
        try:
            quantity.parse(value)
        except quantity.QuantityError as error:
            self.types.append(Problem(path, f"must be a quantity: {error}", "quantity"))
            return "0"
        return value

    def _time(self, value: object, path: str) -> object:
        if isinstance(value, str) and is_time(value):
            return value
        self._wrong(path, "a time such as 2026-01-02T03:04:05Z", value)
        return None

    #: Readers of non-null values by kind: they return the value, or add a problem and return the zero value.
    _SCALARS: t.ClassVar[dict[str, t.Callable[[Decoder, object, str], object]]] = {
        "string": _string,
        "bool": _bool,
        "int64": _int64,
        "quantity": _quantity,
        "time": _time,
    }

    def _wrong(self, path: str, expected: str, value: object) -> None:
        """Record a value of a wrong type."""
        names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
        self.types.append(
            Problem(path, f"must be {expected}, not {names.get(type(value), type(value).__name__)}", "type")
        )
