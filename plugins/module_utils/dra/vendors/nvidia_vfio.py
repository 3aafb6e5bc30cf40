# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Devices and attributes that feature gates of NVIDIA's driver add: whole GPUs for virtual machines
(PassthroughSupport) and partitions of the NVLink fabric (FabricManagerPartitioning). Sources: nvlib.go, vfio-device.go
and fabricmanager of v0.5.0."""

from __future__ import annotations

import uuid

from ...topology.facts import NodeFacts
from .knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge
from .offer import DeviceBuilder, Offer, unpublished

PASSTHROUGH = "PassthroughSupport"
_LISTS = "DRAListTypeAttributes"

#: VGA and 3D controllers, by full class code: go-nvlib (nvpci) accepts no others.
_CLASSES = ("030000", "030200")
_NVSWITCH = "068000"

#: The attributes of a GPU that the gate FabricManagerPartitioning adds.
FABRIC = ("gpuModuleID", "partition1", "partition2", "partition4", "partition8")


def driver_starts(facts: NodeFacts, known: DriverKnowledge) -> bool:
    """Whether the driver starts on the node: GPU passthrough needs an IOMMU."""
    if PASSTHROUGH not in known.enabled or facts["source"]["kind"] != "sysfs":
        return True
    return any(function["iommu_group"] is not None for function in facts["functions"].values())


def fabric_attributes(facts: NodeFacts, known: DriverKnowledge) -> tuple[str, ...]:
    """Attributes that the gate FabricManagerPartitioning adds to a GPU: numbers that only NVML and the fabric
    manager know. Partitions exist where the fabric manager runs: with NVSwitches, or with management functions of
    NVLink 5."""
    if "FabricManagerPartitioning" not in known.enabled:
        return ()
    switches = any(
        (function["vendor_id"] in known.vendors and function["class_code"] == _NVSWITCH)
        or function["kind"] == "nvlink_management"
        for function in facts["functions"].values()
    )
    return FABRIC if switches else FABRIC[:1]


def vfio_devices(node: str, facts: NodeFacts, known: DriverKnowledge) -> list[Offer]:
    """The devices of type vfio. A GPU is published both as type vfio and as type gpu until one of them is prepared."""
    if PASSTHROUGH not in known.enabled:
        return []
    gpus = [
        function
        for function in facts["functions"].values()
        if function["vendor_id"] in known.vendors and function["class_code"] in _CLASSES and not function["physfn"]
    ]
    result = []
    for index, function in enumerate(sorted(gpus, key=lambda function: str(function["address"]))):
        standard = function["kubernetes"]
        builder = DeviceBuilder(known)
        builder.put("type", "vfio")
        # a name-based UUID of the address, as google/uuid's NewSHA1 makes it
        builder.put("uuid", str(uuid.uuid5(uuid.NAMESPACE_DNS, function["address"])))
        builder.put("vendorID", f"0x{function['vendor_id']}")
        builder.put("deviceID", f"0x{function['device_id']}")
        builder.standard(standard, PCI_BUS_ID, PCIE_ROOT)
        if known.publishes(NUMA_NODE):
            builder.numa(facts, function, _LISTS in known.enabled)
        else:
            builder.put("numa", standard.get("numaNode", -1))
        bound = fabric_attributes(facts, known) if function["driver"] == "nvidia" else ()
        unknown = builder.unknown(
            "productName", "iommuFDEnabled", "addressableMemory", *bound, *unpublished(function, facts)
        )
        result.append(builder.offer(node, f"gpu-vfio-{index}", unknown, function["address"]))
    return result
