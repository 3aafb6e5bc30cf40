# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Short constructors of filters for the vendors' tables, by the type of the published value."""

from __future__ import annotations

from .knowledge import Filter


def text(name: str, compare: str = "equals", since: str = "", until: str = "", conversion: str = "") -> Filter:
    return Filter(name, "string", compare, conversion=conversion, since=since, until=until)


def number(name: str, compare: str = "equals", since: str = "", conversion: str = "", until: str = "") -> Filter:
    return Filter(name, "int", compare, conversion=conversion, since=since, until=until)


def flag(name: str) -> Filter:
    return Filter(name, "bool")


def at_least(name: str) -> Filter:
    return Filter(name, "quantity", "at_least", source="capacity")


def version(name: str) -> Filter:
    return Filter(name, "version", "at_least", conversion="semver")
