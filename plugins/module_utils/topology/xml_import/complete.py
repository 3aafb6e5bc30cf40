# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Completing the topology of a file: ordering its parts as a probe does, and deriving the rest."""

from __future__ import annotations

from .. import pci, probe
from ..diagnosis.diagnose import diagnose
from ..model import Nvme, PciFunction, Topology
from ..overrides import Override


def finish(topology: Topology, stated: list[Override], models: dict[str, str]) -> None:
    """Order the parts of a topology as a probe of the node does, and derive the rest."""
    addresses = sorted(topology.functions, key=pci.sort_key)
    topology.functions = {address: topology.functions[address] for address in addresses}
    topology.interfaces.sort(key=lambda interface: interface.name)
    topology.rdma_devices.sort(key=lambda device: device.name)
    topology.numa_nodes.sort(key=lambda node: node.id)
    for device in topology.rdma_devices:
        device.ports.sort(key=lambda port: port.port)
        device.interfaces = sorted({interface for port in device.ports for interface in port.interfaces})
    carriers = {interface.address for interface in topology.interfaces if interface.address and interface.kind != "usb"}
    carriers |= {device.address for device in topology.rdma_devices if device.address}
    for address in carriers:
        if topology.functions[address].kind == "other":
            topology.functions[address].kind = "nic"
    described = {nvme.address: nvme for nvme in topology.nvme}
    topology.nvme = [
        described.get(function.address) or Nvme(address=function.address)
        for function in topology.functions.values()
        if function.kind == "nvme"
    ]
    probe.complete(topology, stated, models, diagnose=diagnose)
    for nvme in topology.nvme:
        nvme.numa_node = topology.functions[nvme.address].numa_node


def interface_kind(function: PciFunction | None) -> str:
    """The kind of an interface below a function: `virtual`, `usb` or `physical`."""
    if function is None:
        return "virtual"
    # a device on a USB bus is listed below its host controller, which is not a NIC
    return "usb" if (function.class_code or "").startswith("0c03") else "physical"
