# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A resource: a part of a node's configuration that can be read, compared with the wanted state, and changed."""

from __future__ import annotations

from dataclasses import replace

from ..access.system import System
from .change import Beside, Change, Plan, Refusal, State
from .node import Node


class Resource:
    """One part of a node's configuration. A subclass sets `name`, and `boot` if its settings are lost at a reboot.

    All resources of a run plan before any of them changes something, so a plan starts from the unchanged node: what
    another resource will create (such as VFs) reads as None.
    """

    name = ""
    #: Whether the settings are lost at a reboot, so that the unit that runs at boot applies them again.
    boot = True
    #: Whether it needs the network (addresses, links that are up), so that at boot it waits for it.
    network = False
    #: A recorded tree without these files does not show the resource, and nothing is planned.
    recorded_in: tuple[str, ...] = ()
    #: Whether a change creates or removes devices, so that the node is read again.
    renews = False

    def __init__(self, system: System) -> None:
        self.system = system

    def wanted(self, node: Node) -> State:
        """The values that the site wants; devices and settings that it does not mention are left out."""
        raise NotImplementedError

    def read(self, node: Node, wanted: State) -> State:
        """The present values of all wanted settings. Raises HostError."""
        raise NotImplementedError

    def apply(self, node: Node, change: Change) -> None:
        """Make one change; also called with the change reversed, to undo it. Raises HostError."""
        raise NotImplementedError

    def beside(self, node: Node, change: Change) -> Beside:
        """Values that a change may alter besides its own setting, by name: read before it, and after it was undone.

        A value is JSON, or `Unread`. Raises HostError.
        """
        return {}

    def put_back(self, node: Node, change: Change, beside: Beside) -> None:
        """Restore the values of `beside`, after the change itself was undone. Raises HostError."""

    def same(self, setting: str, before: object, after: object) -> bool:
        """Whether a present value is as good as the wanted one."""
        return bool(before == after)

    def from_stored(self, setting: str, value: object) -> object:
        """Parse a value from a file of an earlier run; the reverse of `change.stored`. Raises ValueError."""
        return value

    def check(self, node: Node, change: Change) -> Refusal | None:
        """The refusal of a change, if it must not be made."""
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        """What stops working for a moment while the change is made; empty for nothing."""
        return ""

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        """Reasons for a reboot that remain whether or not something is changed now."""
        return []

    def after_reboot(self, change: Change) -> str:
        """Why this change takes effect only at a reboot; empty if it takes effect at once."""
        return ""

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """Compare what the site wants, or `wanted`, with the present state.

        Raises HostError if the present state cannot be read.
        """
        wanted = self.wanted(node) if wanted is None else wanted
        if not wanted:
            return Plan()
        state = self.read(node, wanted)
        plan = Plan(reboot=self.pending(node, wanted, state))
        for device, settings in wanted.items():
            for setting, after in settings.items():
                before = state.get(device, {}).get(setting)
                if self.same(setting, before, after):
                    continue
                change = Change(self.name, device, setting, before, after)
                change = replace(change, interrupts=self.interrupts(node, change))
                refusal = node.protects(change) or self.check(node, change)
                if refusal:
                    plan.refusals.append(refusal)
                if refusal and not refusal.drain:
                    continue
                plan.changes.append(change)
                reason = self.after_reboot(change)
                if reason:
                    plan.reboot.append(reason)
        return plan
