# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Mode of the switch between a PF and its VFs (Documentation/networking/devlink/devlink-eswitch-attr.rst)."""

from __future__ import annotations

from ..access import devlink
from ..access.system import HostError
from ..access.usage import users
from ..engine.change import Change, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource
from .vf_driver import restore_vf_states, stored_vf_state, vf_states
from .vfs import VFS_AFTER_MODE, address, number_of_vfs, require_unused, will_be_recreated

_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
#: Drivers that change the mode only while VFs exist that are not bound to a driver of the node.
_VFS_UNBOUND = ("mlx5_core",)
#: Drivers that change the mode in any state of the VFs.
_VFS_IN_ANY_STATE = ("bnxt_en",)
_FIX = "remove the PF from its bond or bridge and remove its tc rules first; 'dmesg' shows the driver's reason"


class Eswitch(Resource):
    """`eswitch_mode` of a PF: `legacy` or `switchdev`. It is applied after the number of VFs."""

    name = "eswitch"
    recreates_devices = True

    def wanted(self, node: Node) -> State:
        return {
            key: {"eswitch_mode": settings["eswitch_mode"]}
            for key, settings in node.settings.items()
            if settings.get("eswitch_mode") and not settings.get("externally_managed")
        }

    def read(self, node: Node, wanted: State) -> State:
        return {key: {"eswitch_mode": devlink.eswitch_mode(self.system, key)} for key in wanted}

    def check(self, node: Node, change: Change) -> Refusal | None:
        device = node.device(change.device)

        def refusal(message: str, fix: str = "", drain: bool = False) -> Refusal:
            return Refusal(change.device, change.setting, message, fix, drain)

        if device.physfn:
            return refusal(f"is itself a VF of {device.physfn}", "choose PFs only: type: pf")
        if change.before is None:
            if change.after == "legacy":
                return refusal("the driver supports legacy only", "leave eswitch_mode out for this NIC")
            return refusal("the driver offers no switchdev mode", "leave eswitch_mode out for this NIC")
        if device.driver not in (*VFS_AFTER_MODE, *_VFS_UNBOUND, *_VFS_IN_ANY_STATE):
            known = ", ".join((*_VFS_UNBOUND, *VFS_AFTER_MODE, *_VFS_IN_ANY_STATE))
            return refusal(
                f"it is unknown in which order the driver {device.driver} needs VFs and mode", f"known drivers: {known}"
            )
        for vf in device.vfs:
            reason = users(self.system, vf)
            if reason:
                return refusal(f"its VF {vf} is in use: {reason}", "drain the node first", drain=True)
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        device = node.device(change.device)
        count = number_of_vfs(self.system, change.device)
        text = f"the interface of {device} is recreated"
        if count and not will_be_recreated(self.system, node, change.device):
            text += f", and its {count} VFs are unbound from their drivers"
        elif count:
            text += f", and all its {count} VFs"
        return text

    def from_stored(self, setting: str, value: object) -> object:
        return stored_vf_state(self.system, setting, value)

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        return {
            "num_vfs": number_of_vfs(self.system, change.device),
            **vf_states(self.system, node, change.device),
        }

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        count = effects["num_vfs"]
        if number_of_vfs(self.system, change.device) != count:
            path = f"{_DEVICES}/{change.device}/sriov_numvfs"
            self.system.write(path, str(count), f"create the {count} VFs of {change.device} again")
            node.refresh()
        states = {name: state for name, state in effects.items() if name != "num_vfs"}
        restore_vf_states(self.system, node, change.device, states)

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        step = f"set eswitch_mode of {device} to {change.after}"
        require_unused(self.system, change.device, step)
        if device.driver in VFS_AFTER_MODE:
            self._without_vfs(change, step)
        elif device.driver in _VFS_UNBOUND:
            self._with_vfs_unbound(change, step)
        else:
            devlink.set_eswitch_mode(self.system, change.device, change.after, step, _FIX)

    def _without_vfs(self, change: Change, step: str) -> None:
        path = f"{_DEVICES}/{change.device}/sriov_numvfs"
        count = number_of_vfs(self.system, change.device)
        if count:
            self.system.write(path, "0", f"remove its VFs, to {step}")
        try:
            devlink.set_eswitch_mode(self.system, change.device, change.after, step, _FIX)
        finally:
            if count:
                self._restore(path, str(count), f"create the {count} VFs again, to {step}")

    def _with_vfs_unbound(self, change: Change, step: str) -> None:
        bound = []
        for number in range(number_of_vfs(self.system, change.device)):
            vf = address(self.system, change.device, number)
            driver = self.system.link(f"{_DEVICES}/{vf}/driver")
            if vf and driver in _VFS_UNBOUND:
                bound.append((vf, driver))
        try:
            for vf, driver in bound:
                self.system.write(f"{_DRIVERS}/{driver}/unbind", vf, f"stop the driver of {vf}, to {step}")
            devlink.set_eswitch_mode(self.system, change.device, change.after, step, _FIX)
        finally:
            for vf, driver in bound:
                if not self.system.exists(f"{_DEVICES}/{vf}/driver"):
                    self._restore(f"{_DRIVERS}/{driver}/bind", vf, f"start the driver of {vf} again, to {step}")

    def _restore(self, path: str, value: str, step: str) -> None:
        """Restore VFs or their driver. The write is tried twice, because a later run only compares the mode, and would
        not detect missing VFs or drivers."""
        try:
            self.system.write(path, value, step)
        except HostError:
            self.system.write(path, value, step)
