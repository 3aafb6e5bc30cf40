# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Quantities and versions, for which CEL has no type.

Each is passed to the engine as a map with one entry. Two maps are equal if the values are equal.
"""

from __future__ import annotations

import math
import re
import typing as t
from fractions import Fraction

from ..kube import quantity

#: A quantity or version, by its tag.
Tagged = dict[int, str]
#: A value of an attribute or a capacity, as the engine takes it.
CelValue = t.Union[bool, int, str, Tagged, t.Sequence[t.Union[bool, int, str, Tagged]]]
Values = dict[str, CelValue]


QUANTITY = 0


VERSION = 1


_INT64 = range(-(2**63), 2**63)


_PART = r"(0|[1-9][0-9]*)"


_SEMVER = re.compile(
    rf"{_PART}\.{_PART}\.{_PART}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def quantity_value(value: Fraction) -> Tagged:
    """A quantity as the engine takes it."""
    return {QUANTITY: str(value)}


def read_quantity(text: str) -> Fraction:
    """Parse a quantity as CEL's `quantity` does. Raises ValueError."""
    if text != text.strip(" "):
        raise quantity.QuantityError("spaces around a quantity")
    return quantity.parse(text)


def version_value(text: str, tolerant: bool = False) -> Tagged:
    """A version as the engine takes it, without build metadata, which comparisons ignore. Raises ValueError."""
    if tolerant:
        text = _normalized(text)
    match = _SEMVER.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a semantic version")
    prerelease = match[4]
    prerelease_numbers = [part for part in (prerelease or "").split(".") if part.isdigit()]
    if any(len(number) > 1 and number[0] == "0" for number in prerelease_numbers):
        raise ValueError(f"{text!r} has a number with a leading zero")
    if any(len(number) > 20 or int(number) >= 2**64 for number in [*match.groups()[:3], *prerelease_numbers]):
        raise ValueError(f"{text!r} has a number of more than 64 bits")
    return {VERSION: ".".join(match.groups()[:3]) + (f"-{prerelease}" if prerelease else "")}


def _normalized(text: str) -> str:
    """The text as semver(text, true) normalizes it: without a leading v and leading zeros, with minor and patch."""
    parts = (text[1:] if text.startswith("v") else text).split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            short = part.lstrip("0")
            parts[index] = short if short[:1] in tuple("0123456789") else f"0{short}"
    if len(parts) < 3 and re.search(r"[+-]", parts[-1]):
        raise ValueError("a short version cannot have a pre-release or build metadata")
    return ".".join([*parts, "0", "0"][:3])


def _precedence(version: str) -> tuple[tuple[int, ...], bool, list[tuple[int, int, str]]]:
    """A key that orders versions as semver 2.0.0 does."""
    numbers, _unused, prerelease = version.partition("-")
    parts = (
        [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in prerelease.split(".")] if prerelease else []
    )
    return tuple(int(number) for number in numbers.split(".")), not prerelease, parts


def tag_of(value: object) -> int | None:
    """The tag of an engine value: QUANTITY, VERSION, or None for other values."""
    if isinstance(value, dict) and len(value) == 1:
        for tag in (QUANTITY, VERSION):
            if tag in value and isinstance(next(iter(value)), int):
                return tag
    return None


def no_overload() -> ValueError:
    return ValueError("no such overload")


def _text_of(value: object, tag: int) -> str:
    """The text of a tagged value. Raises ValueError for values of other kinds."""
    if not isinstance(value, dict) or tag_of(value) != tag:
        raise no_overload()
    return str(value[tag])


def as_fraction(value: object) -> Fraction:
    """The value of a quantity. Raises ValueError."""
    return Fraction(_text_of(value, QUANTITY))


def compare(left: object, right: object) -> int:
    """-1, 0 or 1 for two quantities or two versions. Raises ValueError for values of other kinds."""
    tag = tag_of(left)
    if tag is None or tag != tag_of(right):
        raise no_overload()
    if tag == QUANTITY:
        left_value, right_value = as_fraction(left), as_fraction(right)
        return int(left_value > right_value) - int(left_value < right_value)
    left_key, right_key = (_precedence(_text_of(value, VERSION)) for value in (left, right))
    return int(left_key > right_key) - int(left_key < right_key)


def as_float(value: object) -> float:
    """The nearest float to a quantity, infinite if it is too large for one. Raises ValueError."""
    number = as_fraction(value)
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def as_amount(value: object) -> Fraction:
    """The value of a quantity or an integer. Raises ValueError."""
    return Fraction(value) if isinstance(value, int) and not isinstance(value, bool) else as_fraction(value)


def as_integer(value: object) -> int:
    """The value of a quantity that is a 64-bit integer. Raises ValueError."""
    number = as_fraction(value)
    if number.denominator != 1 or number.numerator not in _INT64:
        raise ValueError("cannot convert value to integer")
    return number.numerator


def is_integer(value: object) -> bool:
    """Whether a quantity is a 64-bit integer."""
    number = as_fraction(value)
    return number.denominator == 1 and number.numerator in _INT64


def version_part(index: int) -> t.Callable[[object], int]:
    """A function that returns the major, minor or patch number of a version."""

    def get(value: object) -> int:
        return int(_text_of(value, VERSION).partition("-")[0].split(".")[index])

    return get


def reads_without_error(read: t.Callable[..., object]) -> t.Callable[..., bool]:
    """A function that returns whether `read` accepts its arguments."""

    def check(*arguments: object) -> bool:
        try:
            read(*arguments)
        except ValueError:
            return False
        return True

    return check


def cel_equal(left: object, right: object) -> bool:
    """Equality as in cel-go. Raises ValueError if `left` is a quantity or version and `right` has another type."""
    tag = tag_of(left)
    if tag is not None and tag != tag_of(right):
        raise no_overload()
    return _equal(left, right)


def cel_in_list(left: object, right: t.Iterable[object]) -> bool:
    """Membership in a list of constants, which cel-go turns into a set.

    Raises ValueError for values of Kubernetes' own types, which have no hash.
    """
    if tag_of(left) is not None:
        raise ValueError("hash of unhashable type")
    return any(_equal(left, item) for item in right)


def _equal(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)
