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
    found = [(selectors.driver_is(driver.name), path)]
    for term in terms:
        part = selectors.equals(term.name, term.value)
        found.append((selectors.negate(part) if term.compare == "not_equals" else part, path))
    return found


def raw_selectors(expressions: list[str], path: str) -> list[tuple[selectors.Selector, str]]:
    return [(selectors.Selector(text), child(child(path, "cel"), index)) for index, text in enumerate(expressions)]


def filter_selector(way: Filter, value: t.Any) -> selectors.Selector:
    """The selector of a filter. Raises ValueError if the value does not suit the attribute of the driver."""
    value = way.values.get(value, value) if isinstance(value, str) else value
    if way.unit == "semver":
        at_least = selectors.version_at_least if way.type == "version" else selectors.text_version_at_least
        return at_least(way.name, value)
    if way.unit == "mbps":
        return selectors.at_least(way.name, mbps(value))
    if way.type == "quantity":
        return selectors.capacity_at_least(way.name, value)
    if way.type == "int" and not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {value!r}")
    if way.compare == "at_least":
        return selectors.at_least(way.name, value)
    if way.compare == "contains":
        return selectors.contains(way.name, value)
    part = selectors.equals(way.name, value)
    return selectors.negate(part) if way.compare == "not_equals" else part


def mbps(rate: str) -> int:
    """Whole Mbit/s of a rate in bit/s such as `400G`. Raises ValueError if it is not one."""
    number = quantity.parse(rate) / 1_000_000
    if number.denominator != 1:
        raise ValueError(f"{rate!r} is not a whole number of Mbit/s; write a rate in bit/s, such as 400G")
    return number.numerator
