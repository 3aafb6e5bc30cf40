# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The amounts of a device's capacities that a request consumes, as in kube-scheduler 1.37 (consumable_capacity.go)."""

from __future__ import annotations

from fractions import Fraction

from ..kube import limits, quantity
from ..kube.objects import ObjectView
from ..kube.quantity import Quantity


class Unrepresentable(ValueError):
    """The scheduler cannot represent an amount, so scheduling of the pod fails."""


def consumed(requested: Quantity | None, entry: ObjectView) -> Fraction:
    """The amount of a v1 DeviceCapacity that a request for the amount `requested` consumes. None requests no amount.

    Raises Unrepresentable.
    """
    policy = entry.get("requestPolicy") or {}
    if requested is None:
        default = policy.get("default")
        return quantity.parse(entry["value"] if default is None else default)
    amount = quantity.parse(requested)
    valid_range = policy.get("validRange") or {}
    if valid_range.get("min") is not None:
        return _rounded_up(amount, valid_range)
    for value in policy.get("validValues") or ():
        if amount <= quantity.parse(value):
            return quantity.parse(value)
    return amount


def _rounded_up(amount: Fraction, valid_range: ObjectView) -> Fraction:
    """The amount, rounded up to the next step of a range. Raises Unrepresentable."""
    minimum = quantity.parse(valid_range["min"])
    if amount < minimum:
        return minimum
    if valid_range.get("step") is None:
        return amount
    step = quantity.parse(valid_range["step"])
    if _in_thousandths(valid_range):
        if not _is_milli(amount):
            raise Unrepresentable("the scheduler cannot represent the amount in thousandths")
        unit = 1000
    else:
        if amount > limits.INT64_MAX:
            raise Unrepresentable("the amount does not fit in 64 bits")
        unit = 1
        amount, minimum, step = (Fraction(quantity.integer(number)) for number in (amount, minimum, step))
    if not step:
        return amount
    rounded = minimum - (minimum - amount) // step * step
    if rounded * unit > limits.INT64_MAX:
        raise Unrepresentable("the amount, rounded up to a step, does not fit in 64 bits")
    return rounded


def violates(amount: Fraction, policy: ObjectView) -> bool:
    """Whether the amount violates this requestPolicy."""
    if policy.get("default") is not None and amount == quantity.parse(policy["default"]):
        return False
    valid_range = policy.get("validRange")
    if not valid_range:
        values = policy.get("validValues") or ()
        return bool(values) and all(amount != quantity.parse(value) for value in values)
    if valid_range.get("max") is not None and amount > quantity.parse(valid_range["max"]):
        return True
    if valid_range.get("step") is None:
        return False
    minimum, step = quantity.parse(valid_range.get("min") or "0"), quantity.parse(valid_range["step"])
    if _in_thousandths(valid_range):
        if not _is_milli(amount):
            return True
    else:
        amount, minimum, step = (Fraction(quantity.integer(number)) for number in (amount, minimum, step))
    return bool(step) and (amount - minimum) % step != 0


def _in_thousandths(valid_range: ObjectView) -> bool:
    """Whether the scheduler computes a range in thousandths.

    It does with the gate DRAFractionalCapacityRange (1.37). Without the gate, the API server accepts only ranges of
    whole numbers. The result is the same for these, unless an amount has more than three decimals.
    """
    bounds = [quantity.parse(valid_range[name]) for name in ("min", "max", "step") if valid_range.get(name) is not None]
    return all(_is_milli(bound) for bound in bounds) and quantity.parse(valid_range["step"]) > 0


def _is_milli(amount: Fraction) -> bool:
    """Whether an amount is a whole number of thousandths that fits in 64 bits."""
    return Fraction(quantity.milli(amount), 1000) == amount
