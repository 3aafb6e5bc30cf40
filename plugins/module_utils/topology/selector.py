# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Selecting NICs by their properties, and not by names that change."""

from __future__ import annotations

import fnmatch
import typing as t
from dataclasses import dataclass

if t.TYPE_CHECKING:
    from .facts import InterfaceFacts, NicFacts, NodeFacts

#: The levels at which a GPU counts as near, the nearest first.
NEAR = ("PIX", "PXB", "PHB", "NODE")
TYPES = ("pf", "vf", "virtual")
LINK_LAYERS = ("ethernet", "infiniband")
#: The fields of a selector that contain shell patterns, and those that contain numbers.
TEXTS = ("address", "interface", "driver", "model", "vendor_id", "device_id", "link_layer", "type", "slot")
NUMBERS = ("rail", "numa_node")


class DeviceValues(t.TypedDict, total=False):
    """The values of a device that a :class:`Selector` is compared with."""

    address: str
    interface: list[str]
    driver: str | None
    model: str | None
    vendor_id: str | None
    device_id: str | None
    link_layer: str | None
    type: str
    slot: str | None
    rail: int | None
    numa_node: int | None
    speed_mbps: int | None
    near_gpu: str


@dataclass(frozen=True)
class Selector:
    """Selects devices by their properties. Every field that is set must match. If a field has several values, one of
    them must match.

    Texts are shell patterns (fnmatch) and case-sensitive. `near_gpu` is one of `NEAR`: the nearest GPU must be at least
    that near. An unknown distance is never near.
    """

    address: tuple[str, ...] = ()
    interface: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    vendor_id: tuple[str, ...] = ()
    device_id: tuple[str, ...] = ()
    link_layer: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    slot: tuple[str, ...] = ()
    rail: tuple[int, ...] = ()
    numa_node: tuple[int, ...] = ()
    min_speed_mbps: int | None = None
    near_gpu: str | None = None

    def matches(self, values: DeviceValues) -> bool:
        """Whether a device with these values matches."""
        for name in TEXTS:
            patterns = getattr(self, name)
            if name != "interface" and patterns and not like(values.get(name), patterns):
                return False
        if self.interface and not any(like(interface, self.interface) for interface in values.get("interface") or ()):
            return False
        for name in NUMBERS:
            if getattr(self, name) and values.get(name) not in getattr(self, name):
                return False
        if self.near_gpu and values.get("near_gpu") not in NEAR[: NEAR.index(self.near_gpu) + 1]:
            return False
        return self.min_speed_mbps is None or (values.get("speed_mbps") or 0) >= self.min_speed_mbps


def like(value: object, patterns: t.Iterable[str]) -> bool:
    """Whether a text matches one of the shell patterns. Values of other types match none."""
    return isinstance(value, str) and any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def type_of(nic: NicFacts) -> str:
    """`vf` or `pf`."""
    return "vf" if nic["physfn"] else "pf"


def values_of(nic: NicFacts, facts: NodeFacts) -> DeviceValues:
    """The values of one NIC in topology facts (see :func:`model.as_dict`), for a selector."""
    function = facts["functions"][nic["address"]]
    return {
        "address": nic["address"],
        "driver": nic["driver"],
        "model": nic["model"],
        "link_layer": nic["link_layer"],
        "rail": nic["rail"],
        "numa_node": nic["numa_node"],
        "speed_mbps": nic["speed_mbps"],
        "interface": nic["interfaces"],
        "vendor_id": function["vendor_id"],
        "device_id": function["device_id"],
        "slot": function["slot"],
        "type": type_of(nic),
        "near_gpu": nic["nearest_gpus"]["level"],
    }


def values_of_interface(entry: InterfaceFacts) -> DeviceValues:
    """The values of an interface without a PCI function, for a selector."""
    return {
        "interface": [entry["name"]],
        "link_layer": entry["link_layer"],
        "type": "virtual",
        "speed_mbps": entry["speed_mbps"],
    }
