# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The amounts of a device's capacities that a request consumes, as in kube-scheduler 1.37 (consumable_capacity.go)."""

from __future__ import annotations

from fractions import Fraction

from ..kube import limits, quantity
from ..kube.quantity import Quantity
from .search_devices import Spec


class Unrepresentable(ValueError):
    """An amount that the scheduler cannot represent: scheduling of the pod fails."""


def consumed(wanted: Quantity | None, entry: Spec) -> Fraction:
    """The amount of a v1 DeviceCapacity that a request for `wanted` consumes; None requests no amount.

    Raises Unrepresentable.
    """
    policy = entry.get("requestPolicy") or {}
    if wanted is None:
        default = policy.get("default")
        return quantity.parse(entry["value"] if default is None else default)
    amount = quantity.parse(wanted)
    valid = policy.get("validRange") or {}
    if valid.get("min") is not None:
        return _rounded_up(amount, valid)
    for value in policy.get("validValues") or ():
        if amount <= quantity.parse(value):
            return quantity.parse(value)
    return amount


def _rounded_up(amount: Fraction, valid: Spec) -> Fraction:
    least = quantity.parse(valid["min"])
    if amount < least:
        return least
    if valid.get("step") is None:
        return amount
    step = quantity.parse(valid["step"])
    if _in_thousandths(valid):
        if not _is_milli(amount):
            raise Unrepresentable("the scheduler cannot represent the amount in thousandths")
        unit = 1000
    else:
        if amount > limits.INT64_MAX:
            raise Unrepresentable("the amount is beyond 64 bits")
        unit = 1
        amount, least, step = (Fraction(quantity.integer(one)) for one in (amount, least, step))
    if not step:
        return amount
    rounded = least - (least - amount) // step * step
    if rounded * unit > limits.INT64_MAX:
        raise Unrepresentable("the amount is beyond 64 bits when rounded up to a step")
    return rounded


def violates(amount: Fraction, policy: Spec) -> bool:
    """Whether the amount violates this requestPolicy."""
    if policy.get("default") is not None and amount == quantity.parse(policy["default"]):
        return False
    valid = policy.get("validRange")
    if not valid:
        values = policy.get("validValues") or ()
        return bool(values) and all(amount != quantity.parse(value) for value in values)
    if valid.get("max") is not None and amount > quantity.parse(valid["max"]):
        return True
    if valid.get("step") is None:
        return False
    least, step = quantity.parse(valid.get("min") or "0"), quantity.parse(valid["step"])
    if _in_thousandths(valid):
        if not _is_milli(amount):
            return True
    else:
        amount, least, step = (Fraction(quantity.integer(one)) for one in (amount, least, step))
    return bool(step) and (amount - least) % step != 0


def _in_thousandths(valid: Spec) -> bool:
    """Whether the scheduler computes a range in thousandths (gate DRAFractionalCapacityRange, on from 1.37)."""
    given = [quantity.parse(valid[name]) for name in ("min", "max", "step") if valid.get(name) is not None]
    return all(_is_milli(one) for one in given) and quantity.parse(valid["step"]) > 0


def _is_milli(amount: Fraction) -> bool:
    return Fraction(quantity.milli(amount), 1000) == amount
