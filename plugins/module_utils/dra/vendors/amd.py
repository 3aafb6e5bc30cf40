# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""AMD's GPUs, as ROCm/k8s-gpu-dra-driver (cmd/gpu-kubeletplugin/deviceinfo.go) publishes them."""

from __future__ import annotations

from dataclasses import replace

from ...topology.facts import FunctionFacts, NodeFacts
from ..kube.objects import Object
from .filters import at_least, number, text, version
from .knowledge import PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Gate, Kind, Published, Term
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, possible_partitions, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="gpu.amd.com",
    title="AMD GPU DRA driver",
    vendors=("1002",),
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",
    release_lines=("1.0",),
    source="repository ROCm/k8s-gpu-dra-driver, commits 08bc729 and 586f959",
    # all but DeviceMetadata are in builds after 1.0.0; AutoPartition needs Kubernetes 1.36
    gates={"DeviceMetadata": Gate(), "VFIOPassthrough": Gate(">1.0.0"), "AutoPartition": Gate(">1.0.0")},
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory", "partitions": "partitions"},
            terms=(Term("type", "amdgpu"),),
            terms_by_filter={"partition": (Term("type", "amdgpu-partition"),)},
            filters={
                "model": (text("productName", "contains"),),
                "min_memory": (at_least("memory"),),
                "min_driver_version": (version("driverVersion"),),
                "partition": (text("partitionProfile"),),
                "numa_node": (number("numaNode"),),
                "pci_address": (text(PCI_BUS_ID),),
                "pcie_root": (text(PCIE_ROOT),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published("numaNode"),),
    },
    hints={
        "numa_node": "gpu.amd.com publishes the NUMA node only as gpu.amd.com/numaNode, and no other driver does; "
        "align on pcie_root, or request the same numa_node for every device with where",
        "architecture": "ask for the model",
        "uuid": "gpu.amd.com publishes no uuid; ask for pci_address",
    },
)


#: The number of compute partitions of an MI300X in CPX mode.
_MAX_PARTITIONS = 8

#: The modes of an MI300X that are published with the gate AutoPartition (pkg/consts/consts.go): compute mode, memory
#: mode and number of partitions. A probe does not read which modes a GPU supports.
_MODES = (
    ("spx", "nps1", 1),
    ("dpx", "nps1", 2),
    ("dpx", "nps2", 2),
    ("qpx", "nps1", 4),
    ("qpx", "nps4", 4),
    ("cpx", "nps1", 8),
    ("cpx", "nps4", 8),
)


def _partition_modes(whole: Offer, index: int, driver: DriverKnowledge, counters: bool) -> list[Offer]:
    """A device for each mode of a GPU (partition.go). Claims allocate the partitions of a mode one by one.

    All modes consume the same counter, so that only devices of one mode can be allocated at a time.
    """
    counter_set = f"gpu-{index}-mutex"
    counters_of_mode = {"partition-mode": {"value": "1"}}
    modes = []
    for compute, memory, count in _MODES:
        attributes = {
            **whole.device["attributes"],
            "type": {"string": "amdgpu-partition"},
            "partitionProfile": {"string": f"{compute}_{memory}"},
        }
        capacity: Object = {"value": str(count)}
        if count > 1:
            capacity["requestPolicy"] = {"default": "1", "validValues": ["1"]}
        device: Object = {
            "name": f"gpu-{index}-{compute}-{memory}",
            "attributes": attributes,
            "capacity": {"partitions": capacity},
            **({"allowMultipleAllocations": True} if count > 1 else {}),
            **({"consumesCounters": [{"counterSet": counter_set, "counters": counters_of_mode}]} if counters else {}),
        }
        sets: tuple[Object, ...] = ({"name": counter_set, "counters": counters_of_mode},) if counters else ()
        unknown = whole.unknown - {driver.qualified("partitionProfile")}
        modes.append(replace(whole, device=device, counter_sets=sets, unknown=unknown, possible=True))
    return modes


def _product_name(model: str) -> str:
    """The name in the form that the driver publishes: `AMD_Instinct_MI300X_OAM` (pkg/amdgpu/amdgpu.go)."""
    return model.replace(" ", "_").replace("(", "").replace(")", "")


def _numa_node(function: FunctionFacts) -> int:
    """The NUMA node that the driver publishes: the kernel's, also if the local CPUs or the site say another one. The
    kernel reports no NUMA node as -1."""
    is_of_kernel = function["numa_source"] in ("kernel", "import")
    numa_node = function["numa_node"] if is_of_kernel else function["kubernetes"].get("numaNode")
    return -1 if numa_node is None else numa_node


def _vfio_devices(node: str, facts: NodeFacts, driver: DriverKnowledge) -> list[Offer]:
    """The devices of type vfio: GPUs that are bound to vfio-pci. Depending on its settings, the driver has others
    too."""
    bound = [gpu for gpu in facts["gpus"] if gpu["driver"] == "vfio-pci"]
    bound = [gpu for gpu in bound if facts["functions"][gpu["address"]]["vendor_id"] in driver.vendors]
    result = []
    for index, gpu in enumerate(bound):
        function = facts["functions"][gpu["address"]]
        builder = DeviceBuilder(driver)
        builder.put("type", "vfio")
        builder.put("pciAddr", function["address"])
        builder.put("isVF", function["physfn"] is not None)
        builder.put("numaNode", _numa_node(function))
        builder.put("vendorID", f"0x{function['vendor_id']}")
        builder.put("deviceID", f"0x{function['device_id']}" if function["device_id"] else None)
        builder.put("iommuGroup", None if function["iommu_group"] is None else str(function["iommu_group"]))
        builder.put_standard(function["kubernetes"], PCI_BUS_ID, PCIE_ROOT)
        unknown = builder.qualified(
            "productName",
            *builder.missing("deviceID"),
            *unknown_standard_attributes(function, facts),
        )
        result.append(builder.offer(node, f"gpu-vfio-{index}", unknown, function["address"]))
    return result


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for index, gpu, function in gpus_of(facts, driver):
        builder = DeviceBuilder(driver)
        builder.put("type", "amdgpu")
        name = _product_name(gpu["model"] or "")
        builder.put("productName", name, sure=bool(name) and gpu["model"] != function["name"])
        builder.put("deviceID", f"0x{function['device_id']}" if function["device_id"] else None)
        builder.put("numaNode", _numa_node(function))
        builder.put_standard(function["kubernetes"], PCI_BUS_ID, PCIE_ROOT)
        unknown = builder.qualified(
            "driverVersion",
            "driverVersionFull",
            "partitionProfile",
            "memory",
            "computeUnits",
            "simdUnits",
            *builder.missing("productName", "deviceID"),
            *unknown_standard_attributes(function, facts),
        )
        # the name has the numbers of the DRM card and render node; each GPU has one of each
        whole = builder.offer(node, f"gpu-{index}-{128 + index}", unknown, function["address"])
        if "AutoPartition" in driver.enabled:
            result += _partition_modes(whole, index, driver, options["counters"])
            continue
        result.append(whole)
        result += possible_partitions(whole, "amdgpu-partition", _MAX_PARTITIONS, frozenset())
    return result + (_vfio_devices(node, facts, driver) if "VFIOPassthrough" in driver.enabled else [])


VENDOR = Vendor(_KNOWLEDGE, _offers)
