# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""AMD's GPUs, as ROCm/k8s-gpu-dra-driver (cmd/gpu-kubeletplugin/deviceinfo.go) publishes them."""

from __future__ import annotations

from ...topology.publish import Facts
from .knowledge import PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Kind, Published, Term, at_least, number, text, version
from .offer import DeviceMaker, Offer, Options, Vendor, gpus_of, partitions, unpublished

_KNOWLEDGE = DriverKnowledge(
    name="gpu.amd.com",
    title="AMD GPU DRA driver",
    vendors=("1002",),
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            terms=(Term("type", "amdgpu"),),
            instead={"partition": (Term("type", "amdgpu-partition"),)},
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
        "numa_node": "gpu.amd.com publishes the NUMA node only as gpu.amd.com/numaNode, which no other driver has; "
        "align on pcie_root, or ask every device for the same numa_node with where",
        "architecture": "ask for the model",
        "uuid": "gpu.amd.com publishes no uuid; ask for pci_address",
    },
)


_MOST_PARTITIONS = 8  # compute partitions of an MI300X in CPX mode


def _offers(node: str, facts: Facts, known: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for index, gpu, function in gpus_of(facts, known):
        maker = DeviceMaker(known)
        maker.put("type", "amdgpu")
        maker.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
        maker.put("deviceID", f"0x{function['device_id']}" if function["device_id"] else None)
        # the driver publishes the kernel's -1 as well
        maker.put("numaNode", -1 if gpu["numa_node"] is None else gpu["numa_node"])
        maker.standard(function["kubernetes"], PCI_BUS_ID, PCIE_ROOT)
        unknown = maker.unknown(
            "driverVersion",
            "driverVersionFull",
            "partitionProfile",
            "memory",
            "computeUnits",
            "simdUnits",
            *([] if "productName" in maker.attributes else ["productName"]),
            *unpublished(function, facts),
        )
        # the driver numbers cards and render nodes; every card has one of each
        whole = maker.offer(node, f"gpu-{index}-{128 + index}", unknown, function["address"])
        result.append(whole)
        result += partitions(whole, known, "amdgpu-partition", _MOST_PARTITIONS, frozenset())
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
