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
    """One field of a configuration.

    `type` is string, int, bool, setting (a string or an int), ip, address (with a prefix length), network (without host
    bits), list, map or object. `description` says what a value must be. `minimum` and `maximum` limit a number;
    `maximum` also limits the entries of a list or map. `choices` are all valid strings, `forbidden` are strings that
    are invalid although they match `pattern`. `item` is the field of each entry of a list or map, `key` the pattern of
    a map's keys, and `fields` are the fields of an object by name.
    """

    type: str
    description: str
    pattern: str = ""
    choices: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    required: bool = False
    item: Field | None = None
    key: str = ""
    fields: t.Mapping[str, Field] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


def number(minimum: int, maximum: int, required: bool = False, description: str = "") -> Field:
    description = description or f"a whole number from {minimum} to {maximum}"
    return Field("int", description, minimum=minimum, maximum=maximum, required=required)


def enum_of(*choices: str, required: bool = False) -> Field:
    return Field("string", f"one of {', '.join(choices)}", choices=choices, required=required)


def flag() -> Field:
    return Field("bool", "true or false")


def ip(required: bool = False) -> Field:
    return Field("ip", "an IP address", required=required)


def network(required: bool = False) -> Field:
    return Field("network", "a network such as 10.0.0.0/8, without host bits", required=required)


def list_of(item: Field, maximum: int, plural: str) -> Field:
    """A list without duplicates. `plural` is the noun for its items in messages."""
    return Field("list", f"a list of up to {maximum} different {plural}", item=item, maximum=maximum)


def object_of(
    fields: t.Mapping[str, Field], *rules: Rule, description: str = "a mapping", required: bool = False
) -> Field:
    return Field("object", description, fields=fields, rules=rules, required=required)


def map_of(key: str, item: Field, maximum: int, description: str) -> Field:
    return Field("map", description, key=key, item=item, maximum=maximum)


def family(text: str) -> int:
    """The IP family of a valid address or network: 4 or 6."""
    return 6 if ":" in text else 4


def same_family(*names: str) -> Rule:
    """The fields that are set have addresses or networks of one IP family."""

    def holds(value: ObjectView) -> bool:
        return len({family(value[name]) for name in names if name in value}) < 2

    pairs = [
        f"(!has({{x}}.{first}) || !has({{x}}.{second}) || {{x}}.{first}.contains(':') == {{x}}.{second}.contains(':'))"
        for index, first in enumerate(names)
        for second in names[index + 1 :]
    ]
    return Rule(f"{', '.join(names)} must be of the same IP family", holds, " && ".join(pairs))


def not_both(first: str, second: str) -> Rule:
    return Rule(
        f"{first} and {second} cannot be combined",
        lambda value: first not in value or second not in value,
        f"!has({{x}}.{first}) || !has({{x}}.{second})",
    )


def needs(name: str, required: str) -> Rule:
    return Rule(
        f"{name} needs {required}",
        lambda value: name not in value or required in value,
        f"!has({{x}}.{name}) || has({{x}}.{required})",
    )
