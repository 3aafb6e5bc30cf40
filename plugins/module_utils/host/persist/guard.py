# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Rollback of changes that may make the node unreachable: a timer undoes them unless they are confirmed in time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
import typing as t

from ...topology.stored import Formats
from ..access.system import HostError, System, refused
from ..engine.change import Change, SideEffects, Unread, stored
from ..engine.node import Node
from ..engine.resource import Resource
from .program import archive

_FOLDER = "/run/lanewise"
_PROGRAM = f"{_FOLDER}/fabric.pyz"
#: Files of the first release have no format number.
_FORMATS = Formats(unnumbered=1)
_FIELDS = [field.name for field in dataclasses.fields(Change)]
_ARM_STEP = "set a timer that undoes the changes if the connection is lost"


def _unit(name: str) -> str:
    return f"lanewise-fabric-undo-{name}"


def _path(name: str) -> str:
    return f"{_FOLDER}/undo-{name}.json"


def _write(
    system: System,
    path: str,
    changes: t.Sequence[Change],
    seconds: float,
    step: str,
    effects: t.Sequence[SideEffects] = (),
) -> None:
    """Write the changes with their side effects, and the time until which they can be confirmed. Raises HostError."""
    # all processes share this clock, which starts at boot and cannot be set
    content = {
        "until": time.monotonic() + seconds,
        "changes": [change.as_json() for change in changes],
        "side_effects": list(effects),
    }
    system.install(path, json.dumps(_FORMATS.write(content)), step, 0o600)


class _Content(t.NamedTuple):
    """What `_write` wrote. `until` is the deadline on the monotonic clock."""

    until: float
    changes: list[Change]
    effects: list[SideEffects]


def _read(path: str) -> _Content:
    """The content of a file that `_write` wrote. Raises OSError, and HostError if the file cannot be used."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        content = _FORMATS.read(json.loads(text))
        if not {"until", "changes"} <= content.keys():
            raise ValueError("it must contain until and changes")
        changes = [
            Change(**{name: value for name, value in fields.items() if name in _FIELDS})
            for fields in content["changes"]
        ]
        # release 1.0.0 did not record side effects
        effects: list[SideEffects] = [
            dict(values) for values in content.get("side_effects") or [{} for _change in changes]
        ]
        return _Content(float(content["until"]), changes, effects)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        fix = "nothing was undone. Set the previous values in the file by hand, then remove it"
        raise HostError("undo changes that were not confirmed", f"{path} cannot be used: {error}", fix) from None


def side_effects(node: Node, resources: t.Iterable[Resource], changes: t.Sequence[Change]) -> list[SideEffects]:
    """For each change, the values that it may alter in addition (`Resource.side_effects`), before any change is made.

    Values that cannot be read, or that the timer's process could not restore, are left out. Raises HostError.
    """
    by_name = {resource.name: resource for resource in resources if resource.side_effects_outlive_run}
    values = [
        by_name[change.resource].side_effects(node, change) if change.resource in by_name else {} for change in changes
    ]
    return [
        {name: stored(value) for name, value in effects.items() if not isinstance(value, Unread)} for effects in values
    ]


def needed(node: Node, changes: t.Sequence[Change]) -> bool:
    """Whether a change affects an interface that is needed to reach the node. Raises HostError."""
    return any(node.management_interface(change) for change in changes)


def arm(system: System, changes: t.Sequence[Change], seconds: int, effects: t.Sequence[SideEffects] = ()) -> str:
    """Let systemd undo the changes and restore their side effects after `seconds`.

    Returns the name for `confirm`. Raises HostError.
    """
    name = str(os.getpid())
    step, path = _ARM_STEP, _path(name)
    if not system.exists("/run/systemd/system"):
        fix = "set rollback_after to 0 to run without a rollback"
        raise HostError(step, "systemd does not run on this node", fix)
    system.install(_PROGRAM, archive(), step, 0o600)
    _write(system, path, changes, seconds, step, effects)
    python = sys.executable or "/usr/bin/python3"
    timer = ["systemd-run", f"--unit={_unit(name)}", f"--on-active={seconds}", "--timer-property=AccuracySec=100ms"]
    try:
        system.command([*timer, python, "-I", _PROGRAM, "undo", path], step)
    except BaseException:
        # nothing was changed yet, and this file would block other runs
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return name


def restart_timer(system: System, name: str, seconds: int) -> None:
    """Start the time for a confirmation again, as making the changes may have taken long. Raises HostError.

    Only the run that made the changes may call this. Its lock on the node blocks the undo meanwhile.
    """
    try:
        content = _read(_path(name))
    except OSError as error:
        raise refused(_ARM_STEP, error.errno or 0, _path(name)) from None
    _write(system, _path(name), content.changes, seconds, _ARM_STEP, content.effects)


def seconds_left(path: str) -> float:
    """Seconds until the changes in a file are undone; 0 if they were confirmed. Raises OSError, HostError."""
    try:
        return max(0.0, _read(path).until - time.monotonic())
    except FileNotFoundError:
        return 0.0


def claimed_changes(path: str) -> list[Change]:
    """The changes in a file that `claim` returned. Raises OSError, HostError."""
    return _read(path).changes


def claimed_side_effects(path: str) -> list[SideEffects]:
    """The side effects of each change in a file that `claim` returned. Raises OSError, HostError."""
    return _read(path).effects


def check_none_pending(system: System) -> None:
    """Raises HostError if changes of an earlier run are neither confirmed nor undone yet.

    Their undo would also undo later changes of another run.
    """
    for entry in system.names(_FOLDER):
        if not entry.startswith("undo-") or not entry.endswith(".json"):
            continue
        unit = _unit(entry[len("undo-") : -len(".json")])
        reason = (
            "an earlier run changed interfaces that are needed to reach the node, and these changes are neither "
            "confirmed nor undone yet"
        )
        fix = f"run again when 'systemctl is-active {unit}.timer' says inactive; if {_FOLDER}/{entry} still exists then"
        raise HostError(
            "configure the node", reason, f"{fix}, nothing will undo them: remove the file to keep the changes"
        )


def claim(path: str) -> str | None:
    """Claim the changes in a file for an undo. Returns the file's new name, or None if they were confirmed.

    Either this function or `confirm` gets the file, never both. The file is removed when everything is undone. If it
    remains, the undo is running or has failed. Raises OSError.
    """
    claimed = _claimed_path(path)
    try:
        os.rename(path, claimed)
    except FileNotFoundError:
        return None
    return claimed


def confirm(system: System, name: str) -> bool:
    """Keep the changes of the run with that name, and stop their timer. Raises HostError if it is too late."""
    path = _path(name)
    step = "confirm the changes"
    reason, fix = "they were already undone, because they were not confirmed in time", "increase rollback_after"
    if not name.isdigit():
        raise HostError(step, reason, fix)
    try:
        os.unlink(path)
    except FileNotFoundError:
        if system.exists(_claimed_path(path)):
            reason = "they were not confirmed in time, and the undo is running or has failed"
            fix = f"look at 'journalctl -u {_unit(name)}', then {fix}"
        raise HostError(step, reason, fix) from None
    except OSError as error:
        raise refused(step, error.errno or 0, path) from None
    try:
        system.command(["systemctl", "stop", f"{_unit(name)}.timer"], step)
    except HostError:
        pass  # the timer has just expired, and its program finds nothing to undo
    return True


def _claimed_path(path: str) -> str:
    return f"{path}.begun"
