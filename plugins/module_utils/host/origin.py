# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What the node's settings were before this collection first changed them, so that they can be put back."""

from __future__ import annotations

import json
import typing as t

from .resource import NODE, Change, State
from .system import HostError, System

if t.TYPE_CHECKING:
    from .node import Node

PATH = "/var/lib/lanewise/fabric-origin.json"


def load(system: System) -> dict[str, State]:
    """By resource. Raises HostError where the file is damaged."""
    text = system.content(PATH)
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise HostError(f"read {PATH}", str(error), "remove it: the settings then stay as they are") from None
    return t.cast("dict[str, State]", found)


def remember(system: System, changes: t.Sequence[Change]) -> None:
    """Note the values before the changes, of settings that are not known yet. Raises HostError."""
    known = load(system)
    before = json.dumps(known, indent=2, sort_keys=True)
    for change in changes:
        known.setdefault(change.resource, {}).setdefault(change.device, {}).setdefault(change.setting, change.before)
    text = json.dumps(known, indent=2, sort_keys=True)
    if text != before:
        system.install(PATH, text + "\n", "note what the settings were", 0o600)


def wanted(system: System, node: Node) -> dict[str, State]:
    """What to put back, by resource: of the devices that the node still has. Raises HostError."""
    found: dict[str, State] = {}
    for resource, state in load(system).items():
        for device, settings in state.items():
            if device == NODE or device.partition(" ")[0] in node.devices:
                found.setdefault(resource, {})[device] = settings
    return found


def forget(system: System) -> None:
    """Remove the notes. Raises HostError."""
    system.install(PATH, None, "remove the notes of what the settings were")
