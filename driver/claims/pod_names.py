# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the names of a pod's interfaces and VRFs, which must be unique among all claims of the pod."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..base.errors import Refused
from .records import DeviceRecord, Record

#: The name of the interface that the cluster's network gives to a pod.
CLUSTER_INTERFACE = "eth0"


@dataclass(frozen=True)
class NamedDevice:
    """A device, and the paths of the fields that determine the name of its interface and its VRF."""

    device: DeviceRecord
    name_path: str
    vrf_path: str


class _TakenNames:
    """The names in use in the pod's namespace, each with its owner, and the tables of VRFs. Several interfaces can be
    in one VRF."""

    def __init__(self, others: t.Iterable[Record]) -> None:
        self.names = {CLUSTER_INTERFACE: "that of the cluster's network"}
        self.tables: dict[str, int] = {}
        for record in others:
            for device in record.held:
                self._add(device, record)

    def _add(self, device: DeviceRecord, record: Record) -> None:
        if device.interface:
            self.names[device.interface] = f"that of {device.device} of claim {record.claim}"
        if vrf := device.config.get("vrf"):
            self.names[vrf["name"]] = f"that of the VRF of {device.device}"
            self.tables[vrf["name"]] = vrf["table"]

    def add_interface(self, named_device: NamedDevice) -> None:
        """Add the name of a device's interface. Raises Refused if it is in use."""
        name = named_device.device.interface
        if name in self.names:
            raise Refused(
                f"{named_device.name_path}: the pod would have two interfaces {name}: "
                f"that of {named_device.device.device} and {self.names[name]}; give one of them another name"
            )
        self.names[name] = f"that of {named_device.device.device}"

    def add_vrf(self, named_device: NamedDevice) -> None:
        """Add the VRF of a device. Raises Refused if the VRF has another table in the pod, or the name of an
        interface."""
        vrf = named_device.device.config["vrf"]
        name, table = vrf["name"], vrf["table"]
        known = self.tables.get(name)
        if known is None and name in self.names:
            raise Refused(
                f"{named_device.vrf_path}.name: the pod would have two interfaces {name}: a VRF and {self.names[name]}"
            )
        if known not in (None, table):
            raise Refused(f"{named_device.vrf_path}.table: VRF {name} of the pod already has table {known}")
        self.tables[name] = table


def check(devices: t.Sequence[NamedDevice], others: t.Iterable[Record]) -> None:
    """Check the names of a claim's devices against each other and the pod's other claims. Raises Refused."""
    taken = _TakenNames(others)
    for named_device in devices:
        if named_device.device.interface:
            taken.add_interface(named_device)
    for named_device in devices:
        if named_device.device.config.get("vrf") is not None:
            taken.add_vrf(named_device)
