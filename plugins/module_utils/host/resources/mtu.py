# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""MTU of interfaces (Documentation/ABI/testing/sysfs-class-net, mtu)."""

from __future__ import annotations

from ..access.links import mtu_limits
from ..engine.change import Change, Plan, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource
from . import owner


class Mtu(Resource):
    """`mtu` of a NIC's interface. The MTU of a PF is raised before that of its VFs, and lowered after it, as drivers
    require.

    If another program manages the interface's MTU, the value in its configuration is changed, too (see `owner`).
    """

    name = "mtu"

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            if "mtu" in settings:
                mtu = settings["mtu"]
                state[key] = {**owner.mtu_settings(self.system, node.device(key).interface, mtu), "mtu": mtu}
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key, settings in wanted.items():
            state[key] = {
                setting: owner.read(self.system, setting) for setting in settings if owner.is_manager_setting(setting)
            }
            state[key]["mtu"] = self.system.integer(_path(node.device(key).interface))
        return state

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        refusals: list[Refusal] = []
        if wanted is None:
            refusals = self._refusals(node)
        else:
            wanted = {
                key: {
                    setting: value for setting, value in settings.items() if not owner.is_orphaned(self.system, setting)
                }
                for key, settings in wanted.items()
            }
        plan = super().plan(node, wanted)
        plan.refusals += refusals
        raised = {
            change.device: change.after > (change.before or 0) for change in plan.changes if change.setting == "mtu"
        }

        def rank(change: Change) -> int:
            is_vf = bool(node.device(change.device).physfn)
            return int(raised.get(change.device) == is_vf)

        plan.changes.sort(key=rank)
        return plan

    def _refusals(self, node: Node) -> list[Refusal]:
        requested: dict[int, dict[str, str]] = {}
        for key, settings in node.settings.items():
            if "mtu" in settings:
                requested.setdefault(settings["mtu"], {})[key] = node.device(key).interface
        return [
            refusal
            for mtu, interfaces in requested.items()
            for key, interface in interfaces.items()
            for refusal in owner.mtu_refusals(self.system, key, interface, mtu, interfaces.values())
        ]

    def check(self, node: Node, change: Change) -> Refusal | None:
        device = node.device(change.device)
        if owner.reconfigures(change.setting) and "rail_routes" in node.settings.get(change.device, {}):
            # systemd-networkd removes the addresses briefly, and the kernel then removes the routes that depend on them
            message = f"systemd-networkd would reconfigure {device.interface}, which removes its rail routes"
            path = change.setting.removeprefix("mtu in ")
            fix = f"write {path} by hand, run 'networkctl reload', then run again to add the routes"
            return Refusal(change.device, change.setting, message, fix)
        if not self.system.reader.live or change.setting != "mtu":
            return None
        minimum, maximum = mtu_limits(self.system, device.interface)
        if (minimum is None or change.after >= minimum) and (maximum is None or change.after <= maximum):
            return None
        fix = f"request {minimum or 0} to {maximum}" if maximum else f"request at least {minimum}"
        if device.link_layer == "infiniband":
            fix += ", the limit of this InfiniBand port in its current mode"
        return Refusal(
            change.device, change.setting, f"the driver of {device.interface} does not accept {change.after}", fix
        )

    def interrupts(self, node: Node, change: Change) -> str:
        if owner.is_manager_setting(change.setting):
            restarts = owner.reconfigures(change.setting)
            return f"systemd-networkd reconfigures {node.device(change.device)}" if restarts else ""
        return f"traffic of {node.device(change.device)} stops while the driver recreates its queues"

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        """The running MTU, which the program that manages the interface may change when its file changes."""
        if not owner.is_manager_setting(change.setting):
            return {}
        return {"mtu": self.system.integer(_path(node.device(change.device).interface))}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        if effects["mtu"] is not None:
            device = node.device(change.device)
            step = f"set mtu of {device} to {effects['mtu']} again"
            self.system.write(_path(device.interface), str(effects["mtu"]), step)

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        if owner.is_manager_setting(change.setting):
            owner.write(self.system, change.setting, change.after, device.interface)
            return
        step = f"set mtu of {device} to {change.after}"
        fix = ""
        if device.link_layer == "infiniband":
            fix = "the port supports less: compare with the MTU that the subnet manager set ('ibv_devinfo' shows it)"
        self.system.write(_path(device.interface), str(change.after), step, fix)


def _path(interface: str) -> str:
    return f"/sys/class/net/{interface}/mtu"
