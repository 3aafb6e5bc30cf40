# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Drivers of VFs (Documentation/ABI/testing/sysfs-bus-pci: driver_override, drivers_probe, unbind)."""

from __future__ import annotations

from ..access.system import HostError, System
from ..access.usage import users
from ..engine.change import Change, Refusal, SideEffects, State, Unread
from ..engine.node import Node
from ..engine.resource import Resource
from .vf import SETTINGS, Vf
from .vf import read as settings_of_vfs
from .vfs import (
    address,
    is_vfio,
    number_of_vfs,
    per_vf,
    refusal_if_missing,
    require_vf_unused,
    split_name,
    will_be_recreated,
)

_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
#: The kernel's default driver, and no driver.
NATIVE, NONE = "native", "none"
_USER_SPACE_DRIVERS = ("uio_pci_generic", "igb_uio")
_NO_IOMMU = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
_BRIDGE = "0x0604"


def _leaves_group_to_vfio(driver: str | None) -> bool:
    """Whether VFIO can use an IOMMU group in which a device has this driver, or none.

    Other drivers, also those for user space such as uio_pci_generic, own the DMA of the group (driver_managed_dma in
    struct pci_driver).
    """
    return driver in (None, "pci-stub") or is_vfio(driver)


class VfDriver(Resource):
    """`driver` of `vf` and `vfs`: `native`, `vfio-pci`, the name of another driver, or `none`.

    It is applied after the settings that the PF applies to its VFs, as a VF without a driver of the node accepts no
    address. The driver override is cleared when the driver is bound, so that it has no later effect.
    """

    name = "vf_driver"
    recreates_devices = True

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            for number, requested in per_vf(self.system, key, settings).items():
                if requested.get("driver"):
                    state[f"{key} vf {number}"] = {"driver": requested["driver"]}
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for name in wanted:
            key, number = split_name(name)
            vf = None if will_be_recreated(self.system, node, key) else address(self.system, key, number)
            state[name] = {"driver": (self.system.link(f"{_DEVICES}/{vf}/driver") or NONE) if vf else None}
        return state

    def same(self, setting: str, before: object, after: object) -> bool:
        if after == NATIVE:
            driver = None if before in (None, NONE) else str(before)
            return driver not in _USER_SPACE_DRIVERS and not _leaves_group_to_vfio(driver)
        return after is None or bool(before == after)

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "", drain: bool = False) -> Refusal:
            return Refusal(change.device, change.setting, message, fix, drain)

        missing = refusal_if_missing(self.system, node, change)
        if missing:
            return missing
        key, number = split_name(change.device)
        driver = str(change.after)
        if driver not in (NATIVE, NONE) and not self._is_available(node, driver):
            return refusal(f"no driver {driver} is loaded", f"load it: add {driver} to kernel_modules")
        if driver == NATIVE and not self._probes_vfs(node, key):
            return refusal(
                "the kernel binds no driver while vfs_autoprobe is false", "name the driver of the VF instead"
            )
        if change.before is None:
            return None  # the VF and its IOMMU group do not exist yet
        vf = address(self.system, key, number) or ""
        reason = users(self.system, vf)
        if reason:
            return refusal(f"{vf} is in use: {reason}", "drain the node first", drain=True)
        reason, fix = self._vfio_problem(vf, driver)
        return refusal(reason, fix) if reason else None

    def _probes_vfs(self, node: Node, key: str) -> bool:
        """Whether the kernel binds drivers to a PF's VFs, now or after this run. Without this, only a driver override
        makes it bind one (pci_device_can_probe in drivers/pci/pci-driver.c)."""
        wanted = node.settings.get(key, {}).get("vfs_autoprobe")
        if wanted is not None:
            return bool(wanted)
        return self.system.text(f"{_DEVICES}/{key}/sriov_drivers_autoprobe") != "0"

    def _is_available(self, node: Node, driver: str) -> bool:
        """Whether a driver is loaded, or will be loaded by this run."""
        requested = (str(module) for module in node.general.get("kernel_modules") or ())
        return self.system.exists(f"{_DRIVERS}/{driver}") or driver.replace("-", "_") in [
            module.replace("-", "_") for module in requested
        ]

    def _vfio_problem(self, vf: str, driver: str) -> tuple[str, str]:
        """Why a VF cannot be bound to VFIO, and how to fix it; both empty if it can be bound."""
        if not is_vfio(driver):
            return "", ""
        group = self.system.link(f"{_DEVICES}/{vf}/iommu_group")
        if not group:
            if self.system.text(_NO_IOMMU) == "Y":
                return "", ""
            return (
                f"{vf} is not in an IOMMU group, which VFIO needs",
                "enable the IOMMU in the firmware and the kernel",
            )
        for other in self.system.names(f"/sys/kernel/iommu_groups/{group}/devices"):
            kind = self.system.text(f"{_DEVICES}/{other}/class") or ""
            bound = self.system.link(f"{_DEVICES}/{other}/driver")
            if other != vf and not kind.startswith(_BRIDGE) and not _leaves_group_to_vfio(bound):
                reason = f"{vf} shares IOMMU group {group} with {other}, which is bound to {bound}"
                return reason, "leave ACS enabled between them, or put the card in another slot"
        return "", ""

    def interrupts(self, node: Node, change: Change) -> str:
        if change.before in (None, NONE):
            return ""
        return f"the VF {address(self.system, *split_name(change.device))} is unbound from its driver {change.before}"

    def apply(self, node: Node, change: Change) -> None:
        key, number = split_name(change.device)
        vf = address(self.system, key, number)
        step = f"set driver of VF {number} of {node.device(key)} to {change.after}"
        if change.after is None:
            return
        if vf is None:
            raise HostError(step, "the VF does not exist", "look at 'dmesg' for the reason")
        if self.same("driver", self._driver(vf), change.after):
            return
        # also if it was just created, and in an undo: a pod may have got it meanwhile
        require_vf_unused(self.system, vf, step)
        reason, fix = self._vfio_problem(vf, change.after)
        if reason:
            raise HostError(step, reason, fix)
        folder = f"{_DEVICES}/{vf}"
        override = "" if change.after in (NATIVE, NONE) else change.after
        try:
            if override or self._overridden(vf):
                # an empty line removes an override
                self.system.write(f"{folder}/driver_override", override or "\n", step)
            if self._driver(vf) != NONE:
                self.system.write(f"{folder}/driver/unbind", vf, step)
            if change.after != NONE:
                self.system.write("/sys/bus/pci/drivers_probe", vf, step)
        finally:
            if override and self._overridden(vf):
                self.system.write(f"{folder}/driver_override", "\n", f"{step}, and to clear its override")
        bound = self._driver(vf)
        if not self.same("driver", bound, change.after):
            raise HostError(step, f"its driver is {bound}", "look at 'dmesg', as the driver may have rejected this VF")

    def _driver(self, vf: str) -> str:
        """The driver that a VF is bound to, or `none`."""
        return self.system.link(f"{_DEVICES}/{vf}/driver") or NONE

    def _overridden(self, vf: str) -> bool:
        """Whether a VF has a driver override."""
        return self.system.text(f"{_DEVICES}/{vf}/driver_override") not in (None, "", "(null)")


def vf_states(system: System, node: Node, key: str) -> dict[str, object]:
    """Drivers and settings of a PF's VFs, for `Resource.side_effects`. Raises HostError."""
    states: dict[str, object] = {}
    count = number_of_vfs(system, key)
    if not count:
        return states
    settings: dict[int, dict[str, object]] = {}
    reason = ""
    try:
        settings = settings_of_vfs(system, node.device(key).interface)
    except HostError as error:
        reason = str(error)
    for number in range(count):
        driver = system.link(f"{_DEVICES}/{key}/virtfn{number}/driver") or NONE
        states[f"driver of VF {number}"] = driver
        if reason:
            states[f"settings of VF {number}"] = Unread(reason)
        for name in SETTINGS:
            if name in settings.get(number, {}):
                states[f"{name} of VF {number}"] = settings[number][name]
    return states


def stored_vf_state(system: System, name: str, value: object) -> object:
    """Parse a value of `vf_states` from a file, for `Resource.from_stored`. Raises ValueError."""
    return Vf(system).from_stored(name.partition(" of VF ")[0], value)


def restore_vf_states(system: System, node: Node, key: str, wanted: SideEffects) -> None:
    """Restore the values of `vf_states` for a PF's VFs; a failure does not stop the rest.

    Raises HostError with all failures.
    """
    current = vf_states(system, node, key)
    failed = []
    # drivers last: a VF without a driver of the node accepts no address
    for name, value in sorted(wanted.items(), key=lambda item: item[0].startswith("driver of")):
        setting, _of, number = name.partition(" of VF ")
        if isinstance(value, Unread) or current.get(name) == value:
            continue
        resource = VfDriver(system) if setting == "driver" else Vf(system)
        try:
            resource.apply(node, Change(resource.name, f"{key} vf {number}", setting, None, value))
        except HostError as error:
            failed.append(str(error))
    if failed:
        raise HostError(f"restore the settings of the VFs of {key}", "; ".join(failed))
