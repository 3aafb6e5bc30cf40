# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""RoCE version and traffic class of connections (Documentation/ABI/testing/configfs-rdma_cm)."""

from __future__ import annotations

import re
import time
import typing as t

from ..access.system import HostError, System
from ..engine.change import Change, Plan, Refusal, State, shown
from ..engine.node import Node
from ..engine.resource import Resource

_MOUNT_POINT = "/sys/kernel/config"
_CONFIGFS = f"{_MOUNT_POINT}/rdma_cm"
_MODULE = "/sys/module/rdma_cm"
_MOUNT_FIX = f"load rdma_cm (kernel_modules) and mount configfs on {_MOUNT_POINT}"
#: systemd mounts configfs after its module was loaded, for example by rdma_cm.
_MOUNT_TIMEOUT_SECONDS = 10.0
_CLASS = "/sys/class/infiniband"
_MODES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
_FILES = {"mode": "default_roce_mode", "tos": "default_roce_tos"}
_NO_TRAFFIC_CLASS = "-1"


class Roce(Resource):
    """`roce` of a NIC: `mode` and `tos` of the RDMA connection manager, and the forced `traffic_class`, for each port.

    The connection manager's values can only be read after a folder was created for the device. Check mode does not
    create the folder, so it reports an unreadable value as a change.
    """

    name = "roce"
    recorded_in = ("/sys/kernel/config",)

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._originals: dict[str, int | str | None] = {}
        self._deadline: float | None = None  # of the wait for configfs, which all NICs share

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            for name, value in (settings.get("roce") or {}).items():
                if value is not None:
                    state.setdefault(key, {}).update(
                        (f"{device} port {port} {name}", value)
                        for device in self._devices(node, key)
                        for port in self._ports(device)
                    )
        return state

    def read(self, node: Node, wanted: State) -> State:
        return {key: {setting: self._value(setting) for setting in settings} for key, settings in wanted.items()}

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource, but values to restore are skipped if their RDMA device or rdma_cm no longer exists: the
        values were lost with it.

        If rdma_cm was loaded just before, as at boot, its settings appear only when configfs is mounted, so this waits.
        """
        states = self.wanted(node) if wanted is None else wanted
        in_configfs = any(_parts(setting)[2] in _FILES for settings in states.values() for setting in settings)
        if in_configfs and self.system.exists(_MODULE):
            self._wait_for_configfs()
        if wanted is not None:
            wanted = {
                key: {setting: value for setting, value in settings.items() if self._exists(setting)}
                for key, settings in wanted.items()
            }
        return super().plan(node, wanted)

    def _exists(self, setting: str) -> bool:
        """Whether the kernel has a setting, or would show it in a new folder."""
        device, port, name = _parts(setting)
        if name == "traffic_class":
            return self.system.exists(_traffic_class_path(device, port))
        return self.system.exists(_CONFIGFS) and self.system.exists(f"{_CLASS}/{device}")

    def from_stored(self, setting: str, value: object) -> object:
        """A value of an earlier run. If that run could not read a value before it created the folder, this is the
        kernel's default (cma_add_one in drivers/infiniband/core/cma.c)."""
        device, port, name = _parts(setting)
        if value is not None or name == "traffic_class":
            return value
        if name == "tos":
            return 0
        folder = f"{_CLASS}/{device}/ports/{port}/gid_attrs/types"
        supported = {self.system.text(f"{folder}/{index}") for index in self.system.names(folder)}
        return next((mode for mode in ("v2", "v1") if _MODES[mode] in supported), None)

    def same(self, setting: str, before: object, after: object) -> bool:
        if after is None and not setting.endswith(" traffic_class"):
            # the value could not be read before the folder was created
            return setting not in self._originals or bool(before == self._originals[setting])
        return bool(before == after)

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "") -> Refusal:
            return Refusal(change.device, change.setting, message, fix)

        device, port, name = _parts(change.setting)
        if node.device(change.device).link_layer == "infiniband":
            return refusal(f"{device} is InfiniBand", "leave roce out for it")
        if name == "traffic_class":
            if not self.system.exists(_traffic_class_path(device, port)):
                return refusal("this RDMA driver has no such setting", "only DOCA-OFED has it: leave it out")
            if change.after is None:
                return None
        elif not self._is_available(node):
            return refusal("the RDMA connection manager shows no settings", _MOUNT_FIX)
        limit = 255
        if name != "mode" and not 0 <= change.after <= limit:
            return refusal(f"{change.after} is not in the range 0 to {limit}")
        if name == "mode" and change.after not in _MODES:
            return refusal(f"{change.after} is not a RoCE version", "use v1 or v2")
        return None

    def _is_available(self, node: Node) -> bool:
        """Whether the connection manager shows its settings, or will when this run has loaded it."""
        requested = {str(module).replace("-", "_") for module in node.general.get("kernel_modules") or ()}
        mounted_later = any(map(self.system.exists, (_MOUNT_POINT, "/run/systemd/system")))
        return self.system.exists(_CONFIGFS) or ("rdma_cm" in requested and mounted_later)

    def apply(self, node: Node, change: Change) -> None:
        device, port, name = _parts(change.setting)
        after = self._originals.get(change.setting) if change.after is None else change.after
        step = f"set RoCE {name} of {device} port {port} of {node.device(change.device)} to {shown(after)}"
        if name == "traffic_class":
            value = _NO_TRAFFIC_CLASS if after is None else str(after)
            self.system.write(_traffic_class_path(device, port), value, step)
            return
        if after is None:
            return
        if not self._wait_for_configfs():
            raise HostError(step, "the RDMA connection manager shows no settings", _MOUNT_FIX)
        if not self.system.exists(f"{_CONFIGFS}/{device}"):
            self.system.make_folder(f"{_CONFIGFS}/{device}", step)
        self._originals.setdefault(change.setting, self._value(change.setting))
        path = f"{_CONFIGFS}/{device}/ports/{port}/{_FILES[name]}"
        self.system.write(path, _MODES[str(after)] if name == "mode" else str(after), step)

    def _wait_for_configfs(self) -> bool:
        """Wait until the connection manager shows its settings. Returns whether it does."""
        if self._deadline is None:
            seconds = _MOUNT_TIMEOUT_SECONDS if self.system.exists("/run/systemd/system") else 0.0
            self._deadline = time.monotonic() + seconds
        while not self.system.exists(_CONFIGFS):
            if time.monotonic() >= self._deadline:
                return False
            time.sleep(0.05)
        return True

    def _devices(self, node: Node, key: str) -> t.Sequence[str]:
        """The RDMA devices of a NIC. Raises HostError if it has none."""
        device = node.device(key)
        if not device.rdma_devices:
            fix = "load its RDMA driver, and check whether a container has the device"
            raise HostError(f"set RoCE of {device}", "it has no RDMA device in the node's network namespace", fix)
        return device.rdma_devices

    def _ports(self, device: str) -> list[str]:
        return [name for name in self.system.names(f"{_CLASS}/{device}/ports") if name.isdigit()]

    def _value(self, setting: str) -> int | str | None:
        """The current value of a setting; None if it cannot be read."""
        device, port, name = _parts(setting)
        if name == "traffic_class":
            # further lines are for single addresses, which this resource does not set
            match = re.match(
                r"(?:Global tclass=)?(\d+)$",
                self.system.text(_traffic_class_path(device, port)) or "",
                re.ASCII | re.MULTILINE,
            )
            return int(match[1]) if match else None
        text = self.system.text(f"{_CONFIGFS}/{device}/ports/{port}/{_FILES[name]}")
        if name == "mode":
            return next((mode for mode, shown in _MODES.items() if shown == text), text)
        return int(text) if text and text.isdigit() else None


def _traffic_class_path(device: str, port: str) -> str:
    return f"{_CLASS}/{device}/tc/{port}/traffic_class"


def _parts(setting: str) -> tuple[str, str, str]:
    """RDMA device, port and name of `DEVICE port NUMBER NAME`."""
    device, _port, port, name = setting.split(" ")
    return device, port, name
