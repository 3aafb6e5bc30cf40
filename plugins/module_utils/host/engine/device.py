# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A network device of the node, as the probe reports it."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..access.system import HostError

if t.TYPE_CHECKING:
    from ...topology.facts import NodeFacts


@dataclass(frozen=True)
class Device:
    """A PF, a VF, or an interface without a PCI function. `key` is its PCI address, else its name."""

    key: str
    address: str | None
    interfaces: tuple[str, ...]
    rdma_devices: tuple[str, ...] = ()
    driver: str | None = None
    vendor_id: str | None = None
    device_id: str | None = None
    model: str | None = None
    link_layer: str | None = None
    numa_node: int | None = None
    physfn: str | None = None
    total_vfs: int | None = None
    vfs: tuple[str, ...] = ()

    @property
    def interface(self) -> str:
        """The only interface. Raises HostError if there is none, or more than one."""
        if len(self.interfaces) == 1:
            return self.interfaces[0]
        if self.interfaces:
            raise HostError(f"choose the interface of {self.key}", f"it has several: {', '.join(self.interfaces)}")
        step = f"find the interface of {self.key}"
        fix = "check whether a driver is bound, and whether a container has the interface"
        raise HostError(step, "it has none in the node's network namespace", fix)

    def __str__(self) -> str:
        names = ", ".join(self.interfaces)
        return f"{self.key} ({names})" if names and names != self.key else self.key


def devices_of(facts: NodeFacts) -> t.Iterator[Device]:
    """The devices in a node's facts, without the loopback interface."""
    for nic in facts["nics"]:
        function = facts["functions"][nic["address"]]
        sriov = function["sriov"] or {}
        yield Device(
            key=nic["address"],
            address=nic["address"],
            interfaces=tuple(nic["interfaces"]),
            rdma_devices=tuple(nic["rdma_devices"]),
            driver=nic["driver"],
            vendor_id=function["vendor_id"],
            device_id=function["device_id"],
            model=nic["model"],
            link_layer=nic["link_layer"],
            numa_node=nic["numa_node"],
            physfn=nic["physfn"],
            total_vfs=sriov.get("total_vfs"),
            vfs=tuple(sriov.get("vfs") or ()),
        )
    for entry in facts["interfaces"]:
        if entry["address"] is None and entry["kind"] != "loopback":
            rdma = [device["name"] for device in facts["rdma_devices"] if entry["name"] in device["interfaces"]]
            yield Device(
                key=entry["name"],
                address=None,
                interfaces=(entry["name"],),
                rdma_devices=tuple(rdma),
                link_layer=entry["link_layer"],
            )
