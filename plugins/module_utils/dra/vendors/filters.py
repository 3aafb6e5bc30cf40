# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Constructors of filters for the vendors' tables, by the type of the compared value."""

from __future__ import annotations

from .knowledge import Filter


def text(name: str, compare: str = "equals", since: str = "", until: str = "", unit: str = "") -> Filter:
    return Filter(name, "string", compare, unit=unit, since=since, until=until)


def number(name: str, compare: str = "equals", since: str = "", unit: str = "", until: str = "") -> Filter:
    return Filter(name, "int", compare, unit=unit, since=since, until=until)


def flag(name: str) -> Filter:
    return Filter(name, "bool")


def at_least(name: str) -> Filter:
    return Filter(name, "quantity", "at_least", source="capacity")


def version(name: str) -> Filter:
    return Filter(name, "version", "at_least", unit="semver")
