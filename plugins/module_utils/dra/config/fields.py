# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The types of fields of an InterfaceConfig, and rules between fields."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..kube.objects import ObjectView


@dataclass(frozen=True)
class Rule:
    """A condition on the fields of one mapping, in Python (`holds`) and in CEL for the mapping `{x}`."""

    description: str
    holds: t.Callable[[ObjectView], bool]
    cel: str


@dataclass(frozen=True)
class Field:
    """One field. `type`: string, int, bool, setting (a string or an int), ip, address (with a prefix), network
    (without host bits), list, map, object. `description` says what a value must be."""

    type: str
    description: str
    pattern: str = ""
    words: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    required: bool = False
    item: Field | None = None
    key: str = ""
    fields: t.Mapping[str, Field] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


def number(least: int, most: int, required: bool = False, description: str = "") -> Field:
    description = description or f"a whole number from {least} to {most}"
    return Field("int", description, least=least, most=most, required=required)


def enum_of(*words: str, required: bool = False) -> Field:
    return Field("string", f"one of {', '.join(words)}", words=words, required=required)


def flag() -> Field:
    return Field("bool", "true or false")


def ip(required: bool = False) -> Field:
    return Field("ip", "an IP address", required=required)


def network(required: bool = False) -> Field:
    return Field("network", "a network such as 10.0.0.0/8, without host bits", required=required)


def list_of(item: Field, most: int, what: str) -> Field:
    return Field("list", f"a list of up to {most} different {what}", item=item, most=most)


def object_of(
    fields: t.Mapping[str, Field], *rules: Rule, description: str = "a mapping", required: bool = False
) -> Field:
    return Field("object", description, fields=fields, rules=rules, required=required)


def map_of(key: str, item: Field, most: int, description: str) -> Field:
    return Field("map", description, key=key, item=item, most=most)


def family(text: str) -> int:
    """The IP family of a valid address or network: 4 or 6."""
    return 6 if ":" in text else 4


def same_family(*names: str) -> Rule:
    def holds(value: ObjectView) -> bool:
        return len({family(value[name]) for name in names if name in value}) < 2

    pairs = [
        f"(!has({{x}}.{one}) || !has({{x}}.{two}) || {{x}}.{one}.contains(':') == {{x}}.{two}.contains(':'))"
        for index, one in enumerate(names)
        for two in names[index + 1 :]
    ]
    return Rule(f"{', '.join(names)} must be of the same IP family", holds, " && ".join(pairs))


def not_both(one: str, two: str) -> Rule:
    return Rule(
        f"{one} and {two} exclude each other",
        lambda value: one not in value or two not in value,
        f"!has({{x}}.{one}) || !has({{x}}.{two})",
    )


def needs(one: str, two: str) -> Rule:
    return Rule(
        f"{one} needs {two}",
        lambda value: one not in value or two in value,
        f"!has({{x}}.{one}) || has({{x}}.{two})",
    )
