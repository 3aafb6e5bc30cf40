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
_MAX_DOMAIN_LENGTH = 63


_MAX_ID_LENGTH = 32


_MAX_DRIVER_LENGTH = 63


_MAX_VALUE_LENGTH = 64


_MAX_ATTRIBUTES = 32


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
        """The range multiplied by a factor, rounded up."""
        return Range(*(min(math.ceil(float(number) * factor), UNLIMITED) for number in (self.low, self.high)))

    def union(self, other: Range) -> Range:
        """The smallest range that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


def exactly(number: int) -> Range:
    """A range with a single value."""
    return Range(number, number)


ZERO = exactly(0)


ONE = exactly(1)


UNKNOWN = Range(0, UNLIMITED)


class Path:
    """The path from `device` to a value.

    cel-go keeps paths in slices and appends to them, so two paths that diverge at a bound variable can share memory,
    and the later path overwrites the last step of the earlier one. This affects sizes, so it is reproduced here.
    """

    def __init__(self, steps: list[str], length: int) -> None:
        self._steps = steps
        self._length = length

    @property
    def steps(self) -> list[str]:
        return self._steps[: self._length]

    def then(self, step: str) -> Path:
        """This path with one more step."""
        if self._length < len(self._steps):
            self._steps[self._length] = step
            return Path(self._steps, self._length + 1)
        capacity = max(1, 2 * len(self._steps))
        steps = self.steps + [step]
        return Path(steps + [""] * (capacity - len(steps)), len(steps))


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
    identifier = _Declared(_MAX_ID_LENGTH)
    domain = _Declared(_MAX_DOMAIN_LENGTH)
    attributes = _Declared(_MAX_ATTRIBUTES, key=identifier, element=_Declared(_MAX_VALUE_LENGTH), values_by_name=True)
    capacity = _Declared(_MAX_ATTRIBUTES, key=identifier, element=_Declared(0))
    return _Declared(
        0,
        fields={
            "driver": _Declared(_MAX_DRIVER_LENGTH),
            "allowMultipleAllocations": _Declared(1),
            "attributes": _Declared(_MAX_ATTRIBUTES, key=domain, element=attributes),
            "capacity": _Declared(_MAX_ATTRIBUTES, key=domain, element=capacity),
        },
    )


_DEVICE = _declare()


def declared_size(steps: list[str]) -> Range | None:
    """The declared size of the value at a path; None if it is not below `device`, or not declared."""
    if not steps or steps[0] != "device":
        return None
    declared = _DEVICE
    for step in steps[1:]:
        if step in ("@items", "@values"):
            inner = declared.element
        elif step == "@keys":
            inner = declared.key
        else:
            # Only for attributes, the maximum size is declared for any name
            inner = declared.fields.get(step) or (declared.element if declared.values_by_name else None)
        if inner is None:
            return None
        declared = inner
    return Range(0, declared.size)
