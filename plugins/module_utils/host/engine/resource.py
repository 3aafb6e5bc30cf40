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

    All of a run's resources plan before any of them changes something, so a plan is of the node as it was found: what
    another resource will have made by then (VFs, say) reads as None.
    """

    name = ""
    #: Whether the settings are lost at a reboot, so that they are applied again by the unit that runs at boot.
    boot = True
    #: Whether it needs what the network gives (addresses, links that are up), so that at boot it waits for that.
    network = False
    #: Without these files a recorded tree says nothing about it, and nothing is planned.
    recorded_in: tuple[str, ...] = ()
    #: Whether a change makes or removes devices, so that the node is read again.
    renews = False

    def __init__(self, system: System) -> None:
        self.system = system

    def wanted(self, node: Node) -> State:
        """What the site asks for; devices and settings of which it says nothing are left out."""
        raise NotImplementedError

    def read(self, node: Node, wanted: State) -> State:
        """The present values of all that is wanted. Raises HostError."""
        raise NotImplementedError

    def apply(self, node: Node, change: Change) -> None:
        """Make one change; also called with the change reversed, to undo it. Raises HostError."""
        raise NotImplementedError

    def beside(self, node: Node, change: Change) -> Beside:
        """What a change may alter beside its own setting, by name: read before it is made and after it was undone.

        A value is JSON, or `Unread`. Raises HostError.
        """
        return {}

    def put_back(self, node: Node, change: Change, beside: Beside) -> None:
        """Bring back what `beside` has found, after the change itself was undone. Raises HostError."""

    def same(self, setting: str, before: object, after: object) -> bool:
        """Whether a present value is as good as the wanted one."""
        return bool(before == after)

    def from_stored(self, setting: str, value: object) -> object:
        """A value of a file that a run has stored; the reverse of `change.stored`. Raises ValueError."""
        return value

    def check(self, node: Node, change: Change) -> Refusal | None:
        """Why a change will not be made."""
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        """What stops working for a moment while the change is made; empty for nothing."""
        return ""

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        """Reasons for a reboot that remain whether or not something is changed now."""
        return []

    def after_reboot(self, change: Change) -> str:
        """Why this change takes effect at a reboot only; empty where it does at once."""
        return ""

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """Compare what the site wants, or `wanted`, with what is.

        Raises HostError where the present state cannot be read.
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
