# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Sizes of the values in an expression, as the API server estimates them."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field

UNLIMITED = 2**64 - 1


# resource.k8s.io/v1 types.go
_DOMAIN_LENGTH = 63


_ID_LENGTH = 32


_DRIVER_LENGTH = 63


_VALUE_LENGTH = 64


_ATTRIBUTES = 32


@dataclass(frozen=True)
class Range:
    """A minimum and a maximum size or cost; sums and products are capped at 64 bits."""

    low: int
    high: int

    def __add__(self, other: Range) -> Range:
        return Range(min(self.low + other.low, UNLIMITED), min(self.high + other.high, UNLIMITED))

    def __mul__(self, other: Range) -> Range:
        return Range(min(self.low * other.low, UNLIMITED), min(self.high * other.high, UNLIMITED))

    def scaled(self, factor: float) -> Range:
        return Range(*(min(math.ceil(float(number) * factor), UNLIMITED) for number in (self.low, self.high)))

    def union(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


def exactly(number: int) -> Range:
    return Range(number, number)


ZERO = exactly(0)


ONE = exactly(1)


UNKNOWN = Range(0, UNLIMITED)


class Path:
    """The path from `device` to a value.

    cel-go keeps paths in slices and appends to them, so two paths that diverge at a bound variable can share memory,
    and the later one overwrites the last step of the earlier. That affects sizes, so it is reproduced here.
    """

    def __init__(self, steps: list[str], length: int) -> None:
        self._steps = steps
        self._length = length

    @property
    def steps(self) -> list[str]:
        return self._steps[: self._length]

    def then(self, step: str) -> Path:
        if self._length < len(self._steps):
            self._steps[self._length] = step
            return Path(self._steps, self._length + 1)
        room = max(1, 2 * len(self._steps))
        steps = self.steps + [step]
        return Path(steps + [""] * (room - len(steps)), len(steps))


EMPTY_PATH = Path([], 0)


@dataclass(frozen=True)
class _Declared:
    """A declared type: its maximum size, and the types of its fields, keys and elements."""

    size: int
    fields: t.Mapping[str, _Declared] = field(default_factory=dict)
    key: _Declared | None = None
    element: _Declared | None = None
    values_by_name: bool = False


def _declare() -> _Declared:
    identifier = _Declared(_ID_LENGTH)
    domain = _Declared(_DOMAIN_LENGTH)
    attributes = _Declared(_ATTRIBUTES, key=identifier, element=_Declared(_VALUE_LENGTH), values_by_name=True)
    capacity = _Declared(_ATTRIBUTES, key=identifier, element=_Declared(0))
    return _Declared(
        0,
        fields={
            "driver": _Declared(_DRIVER_LENGTH),
            "allowMultipleAllocations": _Declared(1),
            "attributes": _Declared(_ATTRIBUTES, key=domain, element=attributes),
            "capacity": _Declared(_ATTRIBUTES, key=domain, element=capacity),
        },
    )


_DEVICE = _declare()


def declared_size(steps: list[str]) -> Range | None:
    if not steps or steps[0] != "device":
        return None
    here = _DEVICE
    for step in steps[1:]:
        if step in ("@items", "@values"):
            inner = here.element
        elif step == "@keys":
            inner = here.key
        else:
            # Only attributes have the same maximum size under any name
            inner = here.fields.get(step) or (here.element if here.values_by_name else None)
        if inner is None:
            return None
        here = inner
    return Range(0, here.size)
