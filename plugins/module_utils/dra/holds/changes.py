# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The DeviceTaintRules to create, replace and delete in order to make or release a hold."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..kube.objects import Object, ObjectView
from . import hold as forms
from .hold import KEY, Hold


class Refused(ValueError):
    """A hold cannot be made or released: another hold has its name or one of its devices."""


@dataclass(frozen=True)
class Changes:
    """The differences between the existing rules and the wanted ones.

    `create` has new rules, `replace` new rules with the resourceVersion of the existing ones, `delete` existing rules.
    """

    create: tuple[Object, ...] = ()
    replace: tuple[Object, ...] = ()
    delete: tuple[ObjectView, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.replace or self.delete)


def changes_to_make(wanted: Hold, existing: t.Iterable[ObjectView], api_version: str) -> Changes:
    """The changes that make the `wanted` hold. `existing` are the rules of all holds.

    Raises Refused if the hold belongs to another owner or has another purpose, or if another hold has a device.
    """
    named = {str(one["metadata"]["name"]): one for one in existing}
    of_name = forms.holds(one for one in named.values() if _name(one) == wanted.name)
    for old in of_name:
        check_owner(old, wanted.owner)
        if old.purpose != wanted.purpose:
            raise Refused(f"{old.title()} was made to {old.purpose}: choose another name, or release it first")
    create, replaced, kept = [], [], set()
    taken = []
    for one in dict.fromkeys(wanted.devices):
        new = forms.rule(wanted, one, api_version)
        old_rule = named.get(new["metadata"]["name"])
        if old_rule is None:
            create.append(new)
        elif _name(old_rule) != wanted.name:
            taken.append(f"{'/'.join(one)} belongs to {forms.holds([old_rule])[0].title()}")
        else:
            kept.add(new["metadata"]["name"])
            if _differs(old_rule, new):
                new["metadata"]["resourceVersion"] = old_rule["metadata"].get("resourceVersion")
                replaced.append(new)
    if taken:
        raise Refused(f"{'; '.join(taken)}. Choose other devices, or ask the owner to release that hold first")
    delete = [one for name, one in named.items() if _name(one) == wanted.name and name not in kept]
    return Changes(tuple(create), tuple(replaced), tuple(delete))


def changes_to_release(name: str, owner: str, existing: t.Iterable[ObjectView]) -> Changes:
    """The changes that remove a hold. With an `owner`, raises Refused if the hold belongs to another one."""
    rules = [one for one in existing if _name(one) == name]
    for old in forms.holds(rules):
        if owner:
            check_owner(old, owner)
    return Changes(delete=tuple(rules))


def check_owner(old: Hold, owner: str) -> None:
    """Raises Refused for a hold of another owner."""
    if old.owner != owner:
        raise Refused(f"{old.title()} does not belong to {owner}: choose another name")


def _name(one: ObjectView) -> str | None:
    taint = (one.get("spec") or {}).get("taint") or {}
    return forms.printable(taint.get("value") or "") if taint.get("key") == KEY else None


def _differs(old: ObjectView, new: ObjectView) -> bool:
    def kept(one: ObjectView, part: str) -> dict[str, t.Any]:
        return {name: value for name, value in (one["metadata"].get(part) or {}).items() if name.startswith(KEY)}

    return any(kept(old, part) != kept(new, part) for part in ("labels", "annotations")) or any(
        (old["spec"].get(part) or {}).get(name) != value
        for part in ("deviceSelector", "taint")
        for name, value in new["spec"][part].items()
    )
