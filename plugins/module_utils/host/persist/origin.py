# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The settings of the node before this collection first changed them, so that they can be restored."""

from __future__ import annotations

import json
import typing as t

from ...topology.stored import Conversion, Formats, NewerFormat
from ..access.system import HostError, System
from ..engine.change import NODE, Change, State, stored
from ..engine.node import Node
from ..engine.resource import Resource
from ..resources.catalogue import named

PATH = "/var/lib/lanewise/fabric-origin.json"
#: The file with the ID of the rollback of a run that restored the settings. It exists until that run is confirmed.
_RESTORED_BY = "/run/lanewise/fabric-restored-by"
#: The settings by resource, device and name. The first format had only these.
_FORMATS = Formats(
    conversions={2: Conversion(up=lambda value: {"resources": value}, down=lambda value: value["resources"])},
    unnumbered=1,
    bare=True,
)
_FIX = "run the role fabric of the release that wrote it, or of a newer one; the file was not changed"


def load(system: System) -> dict[str, State]:
    """The recorded settings by resource; empty if the file does not exist.

    Raises HostError if the file is damaged, or if only a newer release can read it.
    """
    text = system.content(PATH)
    try:
        recorded = _FORMATS.read(json.loads(text or "{}"))["resources"]
        if not all(isinstance(level, dict) for level in _levels(recorded)):
            raise ValueError("it must contain settings by resource and device")
    except NewerFormat as error:
        raise HostError(f"read {PATH}", str(error), _FIX) from None
    except (ValueError, KeyError, RecursionError) as error:
        fix = "remove it; the original settings are then not restored"
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise HostError(f"read {PATH}", reason, fix) from None
    return t.cast("dict[str, State]", recorded)


def _levels(recorded: dict[str, dict[str, object]]) -> t.Iterator[object]:
    """The mapping of resources, then those of their devices, then those of the devices' settings."""
    yield recorded
    for state in recorded.values():
        yield state
        yield from state.values()


def remember(system: System, changes: t.Sequence[Change]) -> None:
    """Record the values before the changes, except for settings that are already recorded. Raises HostError."""
    if system.exists(_RESTORED_BY):  # of an earlier run that was rolled back; later rollbacks may have the same name
        system.install(_RESTORED_BY, None, "record the original settings")
    recorded = load(system)
    before = json.dumps(recorded, indent=2, sort_keys=True)
    for change in changes:
        recorded.setdefault(change.resource, {}).setdefault(change.device, {}).setdefault(
            change.setting, stored(change.before)
        )
    if json.dumps(recorded, indent=2, sort_keys=True) != before:
        text = json.dumps(_FORMATS.write({"resources": recorded}), indent=2, sort_keys=True)
        system.install(PATH, text + "\n", "record the original settings", 0o600)


def wanted(system: System, node: Node) -> dict[str, State]:
    """The values to restore, by resource, for devices that still exist.

    Raises HostError, also if only a newer release knows a recorded resource: its settings would be lost.
    """
    recorded = load(system)
    known = {resource.name: resource for resource in named(system, recorded)}
    if newer := sorted(set(recorded) - {*known, "boot"}):
        reason = f"it has settings of {', '.join(newer)}, which this release does not know"
        raise HostError(f"restore the settings in {PATH}", reason, _FIX)
    states: dict[str, State] = {}
    for resource, state in recorded.items():
        for device, settings in state.items():
            if device == NODE or device.partition(" ")[0] in node.devices:
                states.setdefault(resource, {})[device] = _values(known.get(resource), settings)
    return states


def _values(resource: Resource | None, settings: dict[str, object]) -> dict[str, object]:
    """The settings of a device, parsed by their resource. Without a resource they are returned unchanged."""
    if resource is None:
        return settings
    try:
        return {setting: resource.from_stored(setting, value) for setting, value in settings.items()}
    except ValueError as error:
        fix = "remove it; the original settings are then not restored"
        raise HostError(f"read {PATH}", f"{resource.name}: {error}", fix) from None


def forget(system: System) -> None:
    """Remove the recorded settings. Raises HostError."""
    step = "remove the record of the original settings"
    system.install(PATH, None, step)
    system.install(_RESTORED_BY, None, step)


def mark_restored(system: System, rollback: str) -> None:
    """Keep the recorded settings until the run with this rollback is confirmed, as its changes may be undone.

    Raises HostError.
    """
    system.install(_RESTORED_BY, f"{rollback}\n", "keep the record of the original settings", 0o600)


def restored_by(system: System, rollback: str) -> bool:
    """Whether the run with this rollback has restored the recorded settings."""
    return system.text(_RESTORED_BY) == rollback
