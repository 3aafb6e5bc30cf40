# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Devices and attributes that NVIDIA's driver publishes only with some feature gates.

PassthroughSupport adds whole GPUs for virtual machines, FabricManagerPartitioning adds partitions of the NVLink fabric.
Sources: nvlib.go, vfio-device.go and fabricmanager of v0.5.0.
"""

from __future__ import annotations

import uuid

from ...topology.facts import NodeFacts
from .knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge
from .offer import DeviceBuilder, Offer, unknown_standard_attributes

PASSTHROUGH = "PassthroughSupport"
_LISTS = "DRAListTypeAttributes"

#: The class codes of VGA and 3D controllers. go-nvlib (nvpci) accepts no others.
_GPU_CLASSES = ("030000", "030200")
_NVSWITCH_CLASS = "068000"

#: The attributes of a GPU that the gate FabricManagerPartitioning adds.
FABRIC = ("gpuModuleID", "partition1", "partition2", "partition4", "partition8")


def driver_starts(facts: NodeFacts, driver: DriverKnowledge) -> bool:
    """Whether the driver starts on the node. With GPU passthrough it starts only with an IOMMU."""
    if PASSTHROUGH not in driver.enabled or facts["source"]["kind"] != "sysfs":
        return True
    return any(function["iommu_group"] is not None for function in facts["functions"].values())


def fabric_attributes(facts: NodeFacts, driver: DriverKnowledge) -> tuple[str, ...]:
    """The attributes that the gate FabricManagerPartitioning adds to a GPU. Only NVML and the fabric manager know their
    values.

    Partitions exist only where the fabric manager runs: on nodes with NVSwitches or management functions of NVLink 5.
    """
    if "FabricManagerPartitioning" not in driver.enabled:
        return ()
    switches = any(
        (function["vendor_id"] in driver.vendors and function["class_code"] == _NVSWITCH_CLASS)
        or function["kind"] == "nvlink_management"
        for function in facts["functions"].values()
    )
    return FABRIC if switches else FABRIC[:1]


def vfio_devices(node: str, facts: NodeFacts, driver: DriverKnowledge) -> list[Offer]:
    """The devices of type vfio. A GPU has a device of type vfio and one of type gpu until one of the two is
    prepared."""
    if PASSTHROUGH not in driver.enabled:
        return []
    gpus = [
        function
        for function in facts["functions"].values()
        if function["vendor_id"] in driver.vendors and function["class_code"] in _GPU_CLASSES and not function["physfn"]
    ]
    result = []
    for index, function in enumerate(sorted(gpus, key=lambda function: str(function["address"]))):
        standard = function["kubernetes"]
        builder = DeviceBuilder(driver)
        builder.put("type", "vfio")
        # the driver computes a name-based UUID of the address (NewSHA1 of google/uuid)
        builder.put("uuid", str(uuid.uuid5(uuid.NAMESPACE_DNS, function["address"])))
        builder.put("vendorID", f"0x{function['vendor_id']}")
        builder.put("deviceID", f"0x{function['device_id']}" if function["device_id"] else None)
        builder.put_standard(standard, PCI_BUS_ID, PCIE_ROOT)
        if driver.publishes_alignment(NUMA_NODE):
            builder.put_numa_node(facts, function, _LISTS in driver.enabled)
        else:
            builder.put("numa", standard.get("numaNode", -1))
        fabric = fabric_attributes(facts, driver) if function["driver"] == "nvidia" else ()
        unknown = builder.qualified(
            *("productName", "iommuFDEnabled", "addressableMemory", *fabric),
            *builder.missing("deviceID"),
            *unknown_standard_attributes(function, facts),
        )
        result.append(builder.offer(node, f"gpu-vfio-{index}", unknown, function["address"]))
    return result
