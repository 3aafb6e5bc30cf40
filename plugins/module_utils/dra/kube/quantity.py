# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Kubernetes quantities (k8s.io/apimachinery/pkg/api/resource/quantity.go) as exact fractions."""

from __future__ import annotations

import json
import math
import re
import typing as t
from fractions import Fraction
from functools import lru_cache

from . import limits

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# Kubernetes' parser requires no digit: it reads ".", "-" and "k" as zeros.
_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*(?:[-+]?[0-9]*))", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_NANO = Fraction(1, 10**9)
# The largest exponent: no device needs more, and larger powers of ten would use much memory.
_EXPONENT_MAX = 4096
# The longest text, in characters. With the largest exponent, a number then has fewer digits than the 4300 that Python
# converts.
_LENGTH_MAX = 128

#: A quantity in JSON.
Quantity = t.Union[str, int, float]

DECIMAL_SI, DECIMAL_EXPONENT, BINARY_SI = "DecimalSI", "DecimalExponent", "BinarySI"


class QuantityError(ValueError):
    """The text is not a quantity."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Fraction, str]:
    """The value of a quantity and its format. Raises QuantityError."""
    if not text:
        raise QuantityError("must not be empty")
    if len(text) > _LENGTH_MAX:
        raise QuantityError(f"must be no more than {_LENGTH_MAX} characters")
    if not text.strip("+-0") and not text[1:].strip("0"):
        return Fraction(0), DECIMAL_SI
    match = _FORM.fullmatch(text)
    if not match:
        raise QuantityError(f"{text!r} is not a number with an optional suffix")
    sign, whole, fraction, suffix = match.group(1), match.group(2), match.group(3) or "", match.group(4)
    number = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    if suffix in _BINARY:
        form = BINARY_SI
        number = min(_round_up(number * 2 ** _BINARY[suffix]), Fraction(limits.INT64_MAX))
        if 0 < number < 1:
            form = DECIMAL_SI
    else:
        exponent = _EXPONENT.fullmatch(suffix)
        if suffix in _DECIMAL:
            form, power = DECIMAL_SI, _DECIMAL[suffix]
        elif exponent and limits.INT64_MIN <= int(exponent.group(1)) <= limits.INT64_MAX:
            form, power = DECIMAL_EXPONENT, int(exponent.group(1))
        else:
            raise QuantityError(f"{text!r} has the unknown suffix {suffix!r}")
        number = _round_up(number * Fraction(10) ** max(-_EXPONENT_MAX, min(_EXPONENT_MAX, power)))
    return (-number if sign == "-" else number), form


def _round_up(number: Fraction) -> Fraction:
    """The number rounded away from zero to 10^-9, the smallest unit of a quantity."""
    return Fraction(math.ceil(number / _NANO)) * _NANO


def _text(value: object) -> str:
    """The text of a JSON value that may be a quantity. Raises QuantityError for other types."""
    if isinstance(value, str):
        return value.strip(" ")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return json.dumps(value)
        except ValueError:
            raise QuantityError("has too many digits") from None
    raise QuantityError("must be a string or a number")


def parse(value: object) -> Fraction:
    """The exact value of a quantity, given as a string or as a JSON number.

    Accepts what the API accepts: a sign, digits with one point, and `n u m k M G T P E`, `Ki` to `Ei` or an exponent
    (`1e3`, `2E-3`), but no more than 128 characters. Values are rounded away from zero to 10^-9; with a binary suffix
    they are capped at 2^63-1. Raises QuantityError.
    """
    return _parse(_text(value))[0]


def suffix_form(value: object) -> str:
    """`DecimalSI`, `DecimalExponent` or `BinarySI`: the format in which the API returns this quantity."""
    return _parse(_text(value))[1]


def compare(left: object, right: object) -> int:
    """-1, 0 or 1 if `left` is less than, equal to or greater than `right`. Raises QuantityError."""
    left_value, right_value = parse(left), parse(right)
    return (left_value > right_value) - (left_value < right_value)


def integer(number: Fraction) -> int:
    """The result of Go's `Quantity.Value()`: rounded away from zero; zero if it does not fit in 64 bits."""
    whole = math.ceil(number) if number > 0 else math.floor(number)
    return whole if limits.INT64_MIN <= whole <= limits.INT64_MAX else 0


def milli(number: Fraction) -> int:
    """The result of Go's `Quantity.MilliValue()`: thousandths, rounded as in `integer`."""
    return integer(number * 1000)


def canonical(number: Fraction, form: str = DECIMAL_SI) -> str:
    """The text that the API writes for a value: the largest suffix that leaves no fraction.

    Raises QuantityError if the value is not a multiple of 10^-9.
    """
    if number % _NANO:
        raise QuantityError("has more than nine decimal places")
    if not number:
        return "0"
    if form == BINARY_SI and abs(number) >= 1024 and number.denominator == 1:
        whole = number.numerator
        suffix = max((s for s, power in _BINARY.items() if whole % 2**power == 0), key=lambda s: _BINARY[s], default="")
        return f"{whole // 2 ** _BINARY[suffix]}{suffix}" if suffix else str(whole)
    powers = [power for power in range(-9, 19, 3) if (number / Fraction(10) ** power).denominator == 1]
    power = max(powers)
    mantissa = (number / Fraction(10) ** power).numerator
    if form == DECIMAL_EXPONENT:
        while mantissa % 1000 == 0:
            mantissa, power = mantissa // 1000, power + 3
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{next(s for s, p in _DECIMAL.items() if p == power)}"
