# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The DeviceTaintRules to create, replace and delete in order to make or release a hold."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..kube.objects import Object, ObjectView
from .hold import KEY, SWAP, Hold, holds, printable, rule


class Refused(ValueError):
    """A hold or swap is refused.

    It conflicts with another one, a pod or a budget forbids the swap, or other runs keep changing the same rules.
    """


class Overtaken(Refused):
    """Another run has removed or replaced rules of this hold or swap since this run read or created them."""


@dataclass(frozen=True)
class Changes:
    """The differences between the existing rules and the desired ones.

    `create` has new rules, `replace` new rules with the resourceVersion of the existing ones, `delete` existing rules.
    """

    create: tuple[Object, ...] = ()
    replace: tuple[Object, ...] = ()
    delete: tuple[ObjectView, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.replace or self.delete)


def changes_to_make(desired: Hold, existing: t.Iterable[ObjectView], api_version: str) -> Changes:
    """The changes that make the `desired` hold. `existing` are the rules of all holds.

    Raises Refused if the hold belongs to another owner or has another purpose, if another hold has a device, or if a
    rule has the name of a rule of the hold but another taint.
    """
    by_name = {str(device_rule["metadata"]["name"]): device_rule for device_rule in existing}
    for device_rule in by_name.values():  # each rule: another run may have added one of another owner
        if _hold_name(device_rule) != desired.name:
            continue
        (old,) = holds([device_rule])
        check_owner(old, desired.owner)
        if old.purpose != desired.purpose:
            raise Refused(f"{old.title()} has the purpose {old.purpose}: choose another name, or release it first")
    create, replaced, rule_names = [], [], set()
    conflicts = []
    for device in dict.fromkeys(desired.devices):
        new = rule(desired, device, api_version)
        name = new["metadata"]["name"]
        old_rule = by_name.get(name)
        if old_rule is None:
            create.append(new)
        elif _hold_name(old_rule) is None:
            key = printable(((old_rule.get("spec") or {}).get("taint") or {}).get("key"))
            raise Refused(
                f"DeviceTaintRule {name} of {'/'.join(device)} has the taint {key}, so it holds nothing: delete it, "
                "and run this again"
            )
        elif _hold_name(old_rule) != desired.name:
            conflicts.append(f"{'/'.join(device)} belongs to {holds([old_rule])[0].title()}")
        else:
            rule_names.add(name)
            if _differs(old_rule, new):
                new["metadata"]["resourceVersion"] = old_rule["metadata"].get("resourceVersion")
                replaced.append(new)
    if conflicts:
        raise Refused(f"{'; '.join(conflicts)}. Choose other devices, or ask the owner to release that hold first")
    delete = [
        device_rule
        for name, device_rule in by_name.items()
        if _hold_name(device_rule) == desired.name and name not in rule_names
    ]
    return Changes(tuple(create), tuple(replaced), tuple(delete))


def changes_to_release(name: str, owner: str, existing: t.Iterable[ObjectView], may_be_swap: bool = False) -> Changes:
    """The changes that remove a hold. With an `owner`, raises Refused if a rule of the hold belongs to another one.
    Raises Refused for the hold of a swap, unless it `may_be_swap`."""
    rules = [device_rule for device_rule in existing if _hold_name(device_rule) == name]
    for device_rule in rules:
        (old,) = holds([device_rule])
        if owner:
            check_owner(old, owner)
        if old.purpose == SWAP and not may_be_swap:
            raise Refused(f"{old.title()} belongs to a swap: return the swap with lanewise.dra.swap")
    return Changes(delete=tuple(rules))


def check_owner(old: Hold, owner: str) -> None:
    """Raises Refused for a hold of another owner."""
    if old.owner != owner:
        raise Refused(f"{old.title()} does not belong to {owner}: choose another name")


def _hold_name(device_rule: ObjectView) -> str | None:
    """The name of the hold that a rule belongs to; None for other rules."""
    taint = (device_rule.get("spec") or {}).get("taint") or {}
    return printable(taint.get("value") or "") if taint.get("key") == KEY else None


def _differs(old: ObjectView, new: ObjectView) -> bool:
    """Whether a rule differs from a new one in a field that the new one sets. Foreign labels and annotations may."""

    def entries_of_hold(device_rule: ObjectView, part: str) -> dict[str, t.Any]:
        return {
            name: value for name, value in (device_rule["metadata"].get(part) or {}).items() if name.startswith(KEY)
        }

    return any(entries_of_hold(old, part) != entries_of_hold(new, part) for part in ("labels", "annotations")) or any(
        (old["spec"].get(part) or {}).get(name) != value
        for part in ("deviceSelector", "taint")
        for name, value in new["spec"][part].items()
    )
