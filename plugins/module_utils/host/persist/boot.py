# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The commands of the program on a node: `boot` applies settings that a reboot loses, `network` those that need the
network, and `undo FILE` undoes changes."""

# pylint: disable=ansible-bad-function
# There is no AnsibleModule here, so this file prints and exits itself.

from __future__ import annotations

import os
import subprocess
import sys
import time
import typing as t
from dataclasses import replace

from ..access.system import HostError, System
from ..engine.change import Change, SideEffects
from ..engine.converge import LOCK, converge, node_lock
from ..engine.node import Node
from ..engine.resource import Resource
from ..engine.rules import Rule, Unfit, selector
from ..engine.settings import NodeSettings
from ..engine.undo import describe
from ..resources.catalogue import named, resources
from . import guard
from .program import Boot, StoredRule, load

#: How long an undo waits for the node's lock, which the run whose changes it undoes may still hold.
_UNDO_LOCK_TIMEOUT_SECONDS = 3600.0


def rules(nics: t.Iterable[StoredRule]) -> list[Rule]:
    """Rules from their JSON form: `name`, `select`, `settings`, `count`, `at_least`, `fast`. Raises Unfit."""
    return [
        Rule(
            rule["name"],
            selector(rule["select"]),
            rule["settings"],
            rule.get("count"),
            rule.get("at_least"),
            tuple(rule.get("fast", ())),
        )
        for rule in nics
    ]


def _run(argv: list[str]) -> tuple[int, str, str]:
    """Run a command line. Returns its exit status, output and error output."""
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout, process.stderr


def _boot(system: System, network: bool = False) -> None:
    """Apply the stored settings; with `network`, those that need the network, such as settings of bonds and VLANs,
    which only exist after the network is configured."""
    stored_rules, general = load(system)
    nics = rules(stored_rules)
    nic_resources = [resource.name for resource in resources(system, (rule.settings for rule in nics), {}, boot=True)]
    failed = []
    for resource in resources(system, (rule.settings for rule in nics), general, boot=True):
        # a failed resource must not stop the others
        errors: list[str] = []
        if resource.network == network:
            errors = [_apply(system, nics, general, resource)]
            # a failed NIC must not stop the others either (a run of the module undoes everything instead)
            keys = _chosen(system, nics) if errors[0] and resource.name in nic_resources else []
            if len(keys) > 1:
                errors = [_apply(system, nics, general, resource, key) for key in keys]
        elif network and resource.name in nic_resources:
            errors = [_apply(system, nics, general, resource, key) for key in _chosen(system, nics, virtual=True)]
        failed += [error for error in errors if error]
    if failed:
        sys.exit("\n".join(failed))


def _apply(system: System, nics: t.Sequence[Rule], general: NodeSettings, resource: Resource, only: str = "") -> str:
    """Apply the settings of a resource; with `only`, those of one device. Returns the error, or an empty string."""
    try:
        # at boot there is no connection that could be lost
        node = Node(system, nics, general, allow_management=True, only=only)
        for change in converge(node, [resource]).changes:
            print(change)
    except Exception as error:  # noqa: BLE001  # the other resources and NICs must still get their settings
        return f"{resource.name}: {describe(error)}"
    return ""


def _chosen(system: System, nics: t.Sequence[Rule], virtual: bool = False) -> list[str]:
    """The devices that rules choose; with `virtual`, those without a PCI function. Empty on an error."""
    try:
        node = Node(system, nics, allow_management=True)
        return [key for key in node.settings if not (virtual and node.devices[key].address)]
    except (HostError, Unfit):
        return []


def undo(system: System, changes: t.Sequence[Change], side_effects: t.Sequence[SideEffects] = ()) -> list[str]:
    """Undo changes, the last first, then restore the `side_effects` of each change.

    Returns the changes that could not be undone or whose side effects could not be restored, each with the reason.
    """
    node = Node(system, allow_management=True)
    known_resources = [*named(system, {change.resource for change in changes}), Boot(system, {})]
    by_name = {resource.name: resource for resource in known_resources}
    steps: list[tuple[Change, SideEffects | None]] = [(change, None) for change in reversed(changes)]
    steps += [(change, effects) for change, effects in reversed(list(zip(changes, side_effects))) if effects]
    failed = []
    for change, effects in steps:
        try:
            resource = by_name[change.resource]
            if effects is None:
                before, after = (resource.from_stored(change.setting, value) for value in (change.before, change.after))
                resource.apply(node, replace(change, before=after, after=before))
            else:
                _restore_side_effects(node, resource, change, effects)
            if resource.recreates_devices:
                node.refresh()
        except Exception as error:  # noqa: BLE001  # the other changes must still be undone
            failed.append(f"{change}: {describe(error)}")
    return failed


def _restore_side_effects(node: Node, resource: Resource, change: Change, effects: SideEffects) -> None:
    """Restore the recorded side effects of a change if one of them differs. Raises HostError."""
    wanted = {name: resource.from_stored(name, value) for name, value in effects.items()}
    now = resource.side_effects(node, change)
    if any(now.get(name) != value for name, value in wanted.items()):
        resource.restore_side_effects(node, change, wanted)


def _undo(system: System, path: str) -> None:
    """Undo the changes in a file, unless they were confirmed. The file is kept if some could not be undone."""
    claimed = guard.claim(path)
    if not claimed:
        print("the changes were confirmed")
        return
    failed = undo(system, guard.claimed_changes(claimed), guard.claimed_side_effects(claimed))
    if failed:
        sys.exit("\n".join(failed))
    os.unlink(claimed)


def main() -> None:
    """Run the command in the program's arguments. On errors, exits with status 1 and prints them on standard error."""
    command = sys.argv[1:]
    system = System(run=_run)
    try:
        if command in (["boot"], ["network"]):
            with node_lock(LOCK):
                _boot(system, network=command == ["network"])
        elif len(command) == 2 and command[0] == "undo":
            while True:
                with node_lock(LOCK, _UNDO_LOCK_TIMEOUT_SECONDS):
                    seconds_left = guard.seconds_left(command[1])
                    if not seconds_left:
                        _undo(system, command[1])
                        break
                time.sleep(seconds_left)  # the run took longer than the timer, and can still be confirmed
        else:
            sys.exit("usage: fabric.pyz boot | network | undo FILE")
    except (HostError, OSError, ValueError) as error:
        sys.exit(str(error))
