# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A device of this node, as published and as stored in records on disk."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, fields, replace

from ..base.objects import Object, ObjectView
from ..topology.publish import device_name
from ..topology.publish_shares import base_name

if t.TYPE_CHECKING:
    from ..interface.identity import Identity


@dataclass(frozen=True)
class Device:
    """A published device.

    `device` is the Device of the API (v1) as published. `interface` is the interface's name in the node's namespace; if
    the device is in a pod, the name at allocation. `rdma_devices` are names as in /sys/class/infiniband. For a VF, `pf`
    is the PCI address of its PF, and `vf` its number.
    """

    name: str
    device: Object
    address: str | None = None
    permanent_mac: str | None = None
    interface: str | None = None
    rdma_devices: tuple[str, ...] = ()
    pf: str | None = None
    vf: int | None = None
    link_layer: str | None = None

    @property
    def identity(self) -> Identity:
        """What identifies the interface in any namespace."""
        from ..interface.identity import Identity

        return Identity(self.address, self.permanent_mac, self.interface or "")

    def with_rdma_devices(self, names: t.Sequence[str]) -> Device:
        """This device with the current names of its RDMA devices, after the kernel has renumbered them."""
        device = self.device
        if "rdmaDevice" in device.get("attributes", {}) and len(names) == 1:
            device = {**device, "attributes": {**device["attributes"], "rdmaDevice": {"string": names[0]}}}
        return replace(self, device=device, rdma_devices=tuple(names))

    def as_json(self) -> Object:
        """The device as JSON for a record on disk, which `from_json` reads."""
        return {**{name: getattr(self, name) for name in _FIELDS}, "rdma_devices": list(self.rdma_devices)}

    @classmethod
    def from_json(cls, data: ObjectView) -> Device:
        """The device in a record on disk. Unknown keys, of another release, are ignored, and missing keys get their
        defaults. Raises ValueError if `data` is not a valid device: if it were published, the API server would refuse
        the node's slices."""
        known = {name: data[name] for name in _FIELDS if name in data}
        known["rdma_devices"] = _names(known.get("rdma_devices", ()))
        if not isinstance(known.get("name"), str) or not known["name"]:
            raise ValueError("the device has no name")
        for name in _STRING_FIELDS:
            if not isinstance(known.get(name), (str, type(None))):
                raise ValueError(f"the device's {name} must be a string")
        if known.get("vf") is not None and known["vf"].__class__ is not int:
            raise ValueError("the device's vf must be an integer")
        _check_published(known.get("device"), known["name"])
        return cls(**known)


def withheld_with(name: str, pf: str | None) -> list[str]:
    """The devices with which a device is withheld while their original state is not restored: the device itself, or
    the NIC that a device for shares divides, and for a VF its PF, at the PCI address `pf`. A PF's settings, flow rules
    and upper interfaces may affect the traffic of its VFs."""
    return [base_name(name), *([device_name(pf)] if pf else [])]


_FIELDS = tuple(field.name for field in fields(Device))
_STRING_FIELDS = ("address", "permanent_mac", "interface", "pf", "link_layer")


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ValueError("the device's rdma_devices must be a list of strings")
    return tuple(value)


def _check_published(value: object, name: str) -> None:
    """Raise ValueError unless `value` has the form of a Device of the API with this name."""
    if not isinstance(value, dict) or value.get("name") != name:
        raise ValueError(f"the published form of device {name} is missing or has another name")
    for key in ("attributes", "capacity"):
        entries = value.get(key, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError(f"the device's {key} must be mappings")
    for key in ("taints", "consumesCounters"):
        if not isinstance(value.get(key, []), list):
            raise ValueError(f"the device's {key} must be a list")
