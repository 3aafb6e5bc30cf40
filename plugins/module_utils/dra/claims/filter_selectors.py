# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Selectors for the filters, kinds and CEL expressions of an inventory."""

from __future__ import annotations

import typing as t

from ..kube import quantity
from ..kube.reader import child
from ..vendors.knowledge import DriverKnowledge, Filter, Term
from . import selectors


def kind_selectors(driver: DriverKnowledge, terms: t.Iterable[Term], path: str) -> list[tuple[selectors.Selector, str]]:
    """The selectors of a driver's devices that meet all terms, each with `path`."""
    parts = [(selectors.driver_is(driver.name), path)]
    for term in terms:
        part = selectors.equals(term.name, term.value)
        parts.append((selectors.negate(part) if term.compare == "not_equals" else part, path))
    return parts


def raw_selectors(expressions: list[str], path: str) -> list[tuple[selectors.Selector, str]]:
    """The CEL expressions of an entry of the inventory, each with its path."""
    return [(selectors.Selector(text), child(child(path, "cel"), index)) for index, text in enumerate(expressions)]


def filter_selector(test: Filter, value: t.Any) -> selectors.Selector:
    """The selector of a filter. Raises ValueError if the value is invalid for the driver's attribute."""
    value = test.values.get(value, value) if isinstance(value, str) else value
    if test.conversion == "semver":
        at_least = selectors.version_at_least if test.type == "version" else selectors.text_version_at_least
        return at_least(test.name, value)
    if test.conversion == "mbps":
        return selectors.at_least(test.name, mbps(value))
    if test.type == "quantity":
        return selectors.capacity_at_least(test.name, value)
    if test.type == "int" and not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {value!r}")
    if test.compare == "at_least":
        return selectors.at_least(test.name, value)
    if test.compare == "contains":
        return selectors.contains(test.name, value)
    part = selectors.equals(test.name, value)
    return selectors.negate(part) if test.compare == "not_equals" else part


def mbps(rate: str) -> int:
    """A rate in bit/s such as `400G` as Mbit/s. Raises ValueError if that is not a whole number."""
    number = quantity.parse(rate) / 1_000_000
    if number.denominator != 1:
        raise ValueError(f"{rate!r} is not a whole number of Mbit/s; write a rate in bit/s, such as 400G")
    return number.numerator
