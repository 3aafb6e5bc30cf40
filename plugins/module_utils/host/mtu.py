# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""MTU of interfaces (Documentation/ABI/testing/sysfs-class-net, mtu)."""

from __future__ import annotations

from .links import mtu_limits
from .node import Node
from .resource import Change, Plan, Refusal, Resource, State


class Mtu(Resource):
    """C(mtu) of a NIC's interface. A PF is raised before its VFs and lowered after them, as drivers want it."""

    name = "mtu"

    def wanted(self, node: Node) -> State:
        return {key: {"mtu": settings["mtu"]} for key, settings in node.settings.items() if "mtu" in settings}

    def read(self, node: Node, wanted: State) -> State:
        return {key: {"mtu": self.system.integer(_path(node.device(key).interface))} for key in wanted}

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)

        def place(change: Change) -> int:
            raised = change.after > (change.before or 0)
            of_vf = bool(node.device(change.device).physfn)
            return int(raised == of_vf)

        plan.changes.sort(key=place)
        return plan

    def check(self, node: Node, change: Change) -> Refusal | None:
        device = node.device(change.device)
        if not self.system.reader.live:
            return None
        low, high = mtu_limits(self.system, device.interface)
        if (low is None or change.after >= low) and (high is None or change.after <= high):
            return None
        fix = f"ask for {low or 0} to {high}" if high else f"ask for {low} or more"
        if device.link_layer == "infiniband":
            fix += ", the most that this InfiniBand port carries in its present mode"
        return Refusal(change.device, change.setting, f"the driver of {device.interface} takes no {change.after}", fix)

    def interrupts(self, node: Node, change: Change) -> str:
        return f"traffic of {node.device(change.device)} stops while the driver makes its queues anew"

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        step = f"set mtu of {device} to {change.after}"
        fix = ""
        if device.link_layer == "infiniband":
            fix = "the port carries less: compare with the MTU that the subnet manager set, 'ibv_devinfo' tells it"
        self.system.write(_path(device.interface), str(change.after), step, fix)


def _path(interface: str) -> str:
    return f"/sys/class/net/{interface}/mtu"
