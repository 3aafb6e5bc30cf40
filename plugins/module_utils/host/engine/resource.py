# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A resource: a part of a node's configuration that can be read, compared with the wanted state, and changed."""

from __future__ import annotations

from dataclasses import replace

from ..access.system import System
from .change import Change, Plan, Refusal, SideEffects, State
from .node import Node


class Resource:
    """One part of a node's configuration. A subclass sets `name`, and `boot` to False if a reboot keeps its settings.

    All resources of a run make their plans before the first change. So a plan is based on the unchanged node: settings
    of devices that another resource will create (such as VFs) have the current value None.
    """

    name = ""
    #: Whether a reboot loses the settings, so that the unit that runs at boot applies them again.
    boot = True
    #: Whether the resource needs the network (addresses, links that are up). At boot, it is then applied after the
    #: network is up.
    network = False
    #: Files that a recorded tree must contain to show the resource. Without them, nothing is planned.
    recorded_in: tuple[str, ...] = ()
    #: Settings that are changed before the others of a device, in this order, also when earlier values are restored.
    first_settings: tuple[str, ...] = ()
    #: Whether a change creates or removes devices, so that the node is read again afterwards.
    recreates_devices = False
    #: Whether another process can restore the side effects of changes. Otherwise only the process can that made them.
    side_effects_outlive_run = True

    def __init__(self, system: System) -> None:
        self.system = system

    def wanted(self, node: Node) -> State:
        """The wanted values of all devices and settings that the site configures."""
        raise NotImplementedError

    def read(self, node: Node, wanted: State) -> State:
        """The current values of all wanted settings. Raises HostError."""
        raise NotImplementedError

    def apply(self, node: Node, change: Change) -> None:
        """Make one change; also called with the change reversed, to undo it. Raises HostError."""
        raise NotImplementedError

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        """Values that a change may alter in addition to its own setting, by name. A value is JSON, or `Unread`.

        They are read before the change, and again after it was undone. Raises HostError.
        """
        return {}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        """Restore the values of `side_effects` after the change itself was undone. Raises HostError."""

    def same(self, setting: str, before: object, after: object) -> bool:
        """Whether the current value `before` satisfies the wanted value `after`."""
        return bool(before == after)

    def from_stored(self, setting: str, value: object) -> object:
        """Parse a value of a setting or a side effect from a file of an earlier run; the reverse of `change.stored`.

        Raises ValueError.
        """
        return value

    def check(self, node: Node, change: Change) -> Refusal | None:
        """The refusal of a change, if it must not be made."""
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        """What is interrupted while the change is made; empty if nothing is."""
        return ""

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        """Reasons for a reboot that do not depend on the changes of this run."""
        return []

    def after_reboot(self, change: Change) -> str:
        """Why this change takes effect only at a reboot; empty if it takes effect immediately."""
        return ""

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """Compare the state that the site wants, or `wanted`, with the current state.

        Raises HostError if the current state cannot be read.
        """
        wanted = self.wanted(node) if wanted is None else wanted
        if not wanted:
            return Plan()
        state = self.read(node, wanted)
        plan = Plan(reboot=self.pending(node, wanted, state))
        for device, settings in wanted.items():
            for setting in sorted(settings, key=lambda name: name not in self.first_settings):
                after = settings[setting]
                before = state.get(device, {}).get(setting)
                if self.same(setting, before, after):
                    continue
                change = Change(self.name, device, setting, before, after)
                change = replace(change, interrupts=self.interrupts(node, change))
                refusal = node.management_refusal(change) or self.check(node, change)
                if refusal:
                    plan.refusals.append(refusal)
                if refusal and not refusal.drain:
                    continue
                plan.changes.append(change)
                reason = self.after_reboot(change)
                if reason:
                    plan.reboot.append(reason)
        return plan
