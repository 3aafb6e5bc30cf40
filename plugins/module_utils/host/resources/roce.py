# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""RoCE version and traffic class of connections (Documentation/ABI/testing/configfs-rdma_cm)."""

from __future__ import annotations

import re
import typing as t

from ..access.system import HostError, System
from ..engine.change import Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

_CONFIGFS = "/sys/kernel/config/rdma_cm"
_CLASS = "/sys/class/infiniband"
_MODES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
_FILES = {"mode": "default_roce_mode", "tos": "default_roce_tos"}


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

    def wanted(self, node: Node) -> State:
        found: State = {}
        for key, settings in node.settings.items():
            for name, value in (settings.get("roce") or {}).items():
                if value is not None:
                    found.setdefault(key, {}).update(
                        (f"{device} port {port} {name}", value)
                        for device in self._devices(node, key)
                        for port in self._ports(device)
                    )
        return found

    def read(self, node: Node, wanted: State) -> State:
        return {key: {setting: self._value(setting) for setting in settings} for key, settings in wanted.items()}

    def same(self, setting: str, before: object, after: object) -> bool:
        if after is None:  # the value could not be read before the folder was created
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
        elif not self.system.exists(_CONFIGFS):
            fix = "load rdma_cm (kernel_modules) and mount configfs on /sys/kernel/config"
            return refusal("the RDMA connection manager shows no settings", fix)
        limit = 255
        if name != "mode" and not 0 <= change.after <= limit:
            return refusal(f"{change.after} is not in the range 0 to {limit}")
        if name == "mode" and change.after not in _MODES:
            return refusal(f"{change.after} is not a RoCE version", "use v1 or v2")
        return None

    def apply(self, node: Node, change: Change) -> None:
        device, port, name = _parts(change.setting)
        after = self._originals.get(change.setting) if change.after is None else change.after
        if after is None:
            return
        step = f"set RoCE {name} of {device} port {port} of {node.device(change.device)} to {after}"
        if name == "traffic_class":
            self.system.write(_traffic_class_path(device, port), str(after), step)
            return
        if not self.system.exists(f"{_CONFIGFS}/{device}"):
            self.system.make_folder(f"{_CONFIGFS}/{device}", step)
        self._originals.setdefault(change.setting, self._value(change.setting))
        path = f"{_CONFIGFS}/{device}/ports/{port}/{_FILES[name]}"
        self.system.write(path, _MODES[str(after)] if name == "mode" else str(after), step)

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
            digits = re.search(r"\d+\s*$", self.system.text(_traffic_class_path(device, port)) or "")
            return int(digits[0]) if digits else None
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
