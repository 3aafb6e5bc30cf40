# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Number of VFs of a PF (Documentation/ABI/testing/sysfs-bus-pci, sriov_*)."""

from __future__ import annotations

import time

from ..access.system import HostError
from ..access.usage import users
from ..engine.change import Change, Plan, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource
from . import owner
from .vf_driver import restore_vf_states, stored_vf_state, vf_states
from .vfs import require_unused

_DEVICES = "/sys/bus/pci/devices"
#: Maximum time until all VFs exist. On large cards, they appear one after the other, and each starts its driver.
_VFS_TIMEOUT_SECONDS = 120.0
#: How long no further VF may get a driver until the rest is taken for VFs without one, once all VFs exist.
_NO_DRIVER_SECONDS = 10.0
_NO_SPACE_FIX = (
    "if 'dmesg' says 'not enough MMIO resources', enable 'above 4G decoding' in the firmware setup, "
    "or add the kernel argument pci=realloc"
)


class Sriov(Resource):
    """`num_vfs` and `vfs_autoprobe` of a PF.

    A PF that is `externally_managed` is only checked, never changed: fewer VFs are refused, more are accepted.
    """

    name = "sriov"
    recreates_devices = True
    first_settings = ("vfs_autoprobe",)  # the kernel reads it when a VF appears

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            values: dict[str, object] = {}
            if "vfs_autoprobe" in settings:
                values["vfs_autoprobe"] = settings["vfs_autoprobe"]
            if "num_vfs" in settings:
                values["num_vfs"] = settings["num_vfs"]
            if settings.get("externally_managed"):
                values.pop("vfs_autoprobe", None)
                if (self.system.integer(f"{_DEVICES}/{key}/sriov_numvfs") or 0) >= settings.get("num_vfs", 0):
                    continue
            if values:
                state[key] = values
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key in wanted:
            autoprobe = self.system.integer(f"{_DEVICES}/{key}/sriov_drivers_autoprobe")
            state[key] = {
                "num_vfs": self.system.integer(f"{_DEVICES}/{key}/sriov_numvfs"),
                "vfs_autoprobe": None if autoprobe is None else bool(autoprobe),
            }
        return state

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)
        for key, settings in (self.wanted(node) if wanted is None else {}).items():
            if "num_vfs" in settings and not node.settings[key].get("externally_managed"):
                for interface in node.device(key).interfaces:
                    plan.refusals += owner.vfs_refusals(self.system, key, interface, node.settings[key]["num_vfs"])
        return plan

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "", drain: bool = False) -> Refusal:
            return Refusal(change.device, change.setting, message, fix, drain)

        device = node.device(change.device)
        if device.physfn:
            return refusal(f"is itself a VF of {device.physfn}", "choose PFs only: type: pf")
        if change.before is None:
            fix = "enable SR-IOV in the machine's and the card's firmware, and bind a driver that supports it"
            return refusal("the kernel offers no SR-IOV here", fix)
        if change.setting != "num_vfs":
            return None
        total = device.total_vfs or 0
        if change.after > total:
            fix = f"request at most {total}" if total else "raise the number in the card's firmware first"
            return refusal(f"{change.after} VFs are wanted, but the card offers {total}", fix)
        if node.settings.get(change.device, {}).get("externally_managed"):
            return refusal(f"has {change.before} VFs and is externally managed, but {change.after} are wanted")
        for vf in device.vfs:  # all VFs must be removed, as the kernel accepts a new number only after 0
            reason = users(self.system, vf)
            if reason:
                fix = "drain the node first, or leave the number as it is"
                return refusal(f"its VF {vf} is in use: {reason}", fix, drain=True)
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        if change.setting == "num_vfs" and change.before:
            return f"all {change.before} VFs of {change.device} are removed and recreated"
        return ""

    def from_stored(self, setting: str, value: object) -> object:
        return stored_vf_state(self.system, setting, value)

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        return vf_states(self.system, node, change.device) if change.setting == "num_vfs" else {}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        restore_vf_states(self.system, node, change.device, effects)

    def apply(self, node: Node, change: Change) -> None:
        folder = f"{_DEVICES}/{change.device}"
        step = f"set {change.setting} of {node.device(change.device)} to {change.after}"
        if change.setting == "vfs_autoprobe":
            self.system.write(f"{folder}/sriov_drivers_autoprobe", str(int(change.after)), step)
            return
        if self.system.integer(f"{folder}/sriov_numvfs"):
            require_unused(self.system, change.device, step)
            self.system.write(f"{folder}/sriov_numvfs", "0", step, "a VF is in use: drain the node first")
        if not change.after:
            return
        self.system.write(f"{folder}/sriov_numvfs", str(change.after), step, _NO_SPACE_FIX)
        self._wait_for_vfs(folder, change.after, step)

    def _wait_for_vfs(self, folder: str, number: int, step: str) -> None:
        """Wait until the VFs exist and, if the kernel binds drivers automatically, have theirs; but not longer if no
        driver is bound for a while, because a driver may not be installed."""
        bound = self.system.integer(f"{folder}/sriov_drivers_autoprobe")
        deadline = time.monotonic() + _VFS_TIMEOUT_SECONDS
        bound_vfs, last_bound = -1, time.monotonic()
        while True:
            present = [n for n in range(number) if self.system.link(f"{folder}/virtfn{n}")]
            ready = [n for n in present if not bound or self.system.exists(f"{folder}/virtfn{n}/driver")]
            if len(ready) == number:
                return
            if len(ready) != bound_vfs:
                bound_vfs, last_bound = len(ready), time.monotonic()
            if len(present) == number and time.monotonic() - last_bound >= _NO_DRIVER_SECONDS:
                return
            if time.monotonic() >= deadline:
                if len(present) == number:
                    return  # no driver is bound automatically
                reason = f"{len(present)} of {number} VFs exist after {_VFS_TIMEOUT_SECONDS:.0f} s"
                raise HostError(step, reason, "look at 'dmesg' for errors of the card's driver")
            time.sleep(0.05)
