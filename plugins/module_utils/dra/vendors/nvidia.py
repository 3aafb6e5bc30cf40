# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NVIDIA's GPUs, as kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go) publishes them."""

from __future__ import annotations

from ...topology.publish import Facts
from .knowledge import (
    NUMA_NODE,
    PCI_BUS_ID,
    PCIE_ROOT,
    DriverKnowledge,
    Kind,
    Published,
    Term,
    at_least,
    number,
    text,
    version,
)
from .offer import DeviceMaker, Offer, Options, Vendor, gpus_of, partitions, unpublished

_KNOWLEDGE = DriverKnowledge(
    name="gpu.nvidia.com",
    title="NVIDIA GPU DRA driver",
    vendors=("10de",),
    kubernetes="1.32",
    # 25.12.0 was followed by 0.4.0; what was called 0.1.0 came before the calendar versions.
    epochs=("0.1.0", "25.3.0", "0.4.0"),
    oldest="25.3.0",
    newest="0.5.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            terms=(Term("type", "gpu"),),
            instead={"partition": (Term("type", "mig"),)},
            filters={
                "model": (text("productName", "contains"),),
                "min_memory": (at_least("memory"),),
                "architecture": (text("architecture"),),
                "min_driver_version": (version("driverVersion"),),
                "partition": (text("profile"),),
                "uuid": (text("uuid"),),
                "numa_node": (number(NUMA_NODE, since="0.5.0"),),
                "pci_address": (text(PCI_BUS_ID, since="25.12.0"), text("pcieBusID", until="25.12.0")),
                "pcie_root": (text(PCIE_ROOT, since="25.3.0"),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT, since="25.3.0"),),
        "numa_node": (Published(NUMA_NODE, since="0.5.0"),),
    },
    hints={
        "numa_node": "gpu.nvidia.com publishes resource.kubernetes.io/numaNode from 0.5.0 on; before it, align on "
        "pcie_root, or name the GPUs' PCIe roots with where: {pcie_root: ...}",
        "version": "0.4.0 and later are newer than 25.12.0",
    },
)


#: NVML's names of what the chip's code name begins with.
_ARCHITECTURES = (
    ("V100", "Volta"),
    ("T4", "Turing"),
    ("A100", "Ampere"),
    ("A10", "Ampere"),
    ("A40", "Ampere"),
    ("L40", "Ada Lovelace"),
    ("L4", "Ada Lovelace"),
    ("H100", "Hopper"),
    ("H200", "Hopper"),
    ("H800", "Hopper"),
    ("GH200", "Hopper"),
    ("B200", "Blackwell"),
    ("GB200", "Blackwell"),
    ("GB300", "Blackwell"),
)


_MOST_MIG = 7  # GPU instances of a GPU


def _offers(node: str, facts: Facts, known: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for index, gpu, function in gpus_of(facts, known):
        maker = DeviceMaker(known)
        maker.put("type", "gpu")
        # /proc/driver/nvidia has the name that NVML reports; a name by device id is a guess
        maker.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
        words = (gpu["model"] or "").replace("-", " ").split()
        maker.put("architecture", next((a for chip, a in _ARCHITECTURES if chip in words), None), sure=False)
        own = function["kubernetes"]
        if known.has("25.12.0"):
            maker.standard(own, PCI_BUS_ID)
        else:
            maker.put("pcieBusID", function["address"])
        maker.standard(own, PCIE_ROOT)
        if known.publishes(NUMA_NODE):
            maker.standard(own, NUMA_NODE)
        unknown = maker.unknown(
            "uuid",
            "brand",
            "cudaComputeCapability",
            "driverVersion",
            "cudaDriverVersion",
            "addressingMode",
            "memory",
            *([] if "productName" in maker.attributes else ["productName"]),
            *([] if "architecture" in maker.attributes else ["architecture"]),
            *unpublished(function, facts),
        )
        whole = maker.offer(node, f"gpu-{index}", unknown, function["address"])
        result.append(whole)
        result += partitions(whole, known, "mig", _MOST_MIG, maker.unknown("profile", "parentUUID", "multiprocessors"))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
