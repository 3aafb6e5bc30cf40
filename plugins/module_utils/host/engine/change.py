# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Values that resources, a run and an undo exchange: state, change, refusal and plan."""

from __future__ import annotations

import dataclasses
import typing as t
from dataclasses import dataclass, field, replace

#: The device of settings that belong to the node and not to a NIC.
NODE = "node"

#: State of a resource: device -> setting -> value. A value is JSON, or a `Value`. None means absent or unknown.
State = dict[str, dict[str, object]]
#: Values that a change may alter in addition to its own setting, by name. A value may be `Unread`.
SideEffects = t.Mapping[str, object]


class Value:
    """A value with several fields. Messages, results and stored files contain its `str`.

    Two values are equal if all their fields are. The resource parses the stored text (`Resource.from_stored`).
    """


def stored(value: object) -> object:
    """A value in the form of results and stored files: JSON, in which each `Value` is replaced by its text."""
    if isinstance(value, Value):
        return str(value)
    return [stored(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Change:
    """One setting of one device that differs from the wanted value.

    `device` is a PCI address, `ADDRESS vf NUMBER`, the name of an interface without a PCI address, or `NODE`.
    `interrupts` says what is interrupted while the change is made, or is empty.
    """

    resource: str
    device: str
    setting: str
    before: t.Any
    after: t.Any
    interrupts: str = ""

    def reversed(self) -> Change:
        """The change that undoes this one."""
        return replace(self, before=self.after, after=self.before)

    def as_json(self) -> dict[str, object]:
        """The change in the form of results and stored files."""
        fields = {attribute.name: getattr(self, attribute.name) for attribute in dataclasses.fields(self)}
        return {**fields, "before": stored(self.before), "after": stored(self.after)}

    def __str__(self) -> str:
        return f"{self.device}: {self.setting} {shown(self.before)} -> {shown(self.after)}"


class Unread(str):
    """The reason why a value cannot be read. It is used instead of the value."""


@dataclass(frozen=True)
class Refusal:
    """A change that is refused, why, and how to fix it. A single refusal stops the whole run before any change.

    With `drain`, the reason is a pod or guest that a drain of the node removes.
    """

    device: str
    setting: str
    message: str
    fix: str = ""
    drain: bool = False

    def __str__(self) -> str:
        return f"{self.device}: {self.setting}: {self.message}" + (f" ({self.fix})" if self.fix else "")


@dataclass
class Plan:
    """The changes that one resource needs. `reboot` lists why its wanted state is only reached after a reboot."""

    changes: list[Change] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)


def shown(value: object) -> str:
    """A value for a message."""
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(stored(value))
