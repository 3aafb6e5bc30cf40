# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Shares of NVIDIA's GPUs, as Project-HAMi/k8s-dra-driver (cmd/hami-kubelet-plugin/hami_core.go) publishes them.

HAMi-core, a library that the driver preloads into each container, limits the memory and cores of processes.
"""

from __future__ import annotations

from ...topology.facts import NodeFacts
from ..kube.objects import Object
from .filters import at_least, text, version
from .knowledge import PCIE_ROOT, DriverKnowledge, Kind, Published, Term
from .nvidia_gpus import MODELS
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="hami-core-gpu.project-hami.io",
    title="HAMi-core GPU DRA driver",
    vendors=("10de",),
    kubernetes="1.34",
    source="repository Project-HAMi/k8s-dra-driver, commit 008d0e1",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory", "cores": "cores"},
            terms=(Term("type", "hami-gpu"),),
            filters={
                "model": (text("productName", "contains"),),
                "min_memory": (at_least("memory"),),
                "architecture": (text("architecture"),),
                "min_driver_version": (version("driverVersion"),),
                "uuid": (text("uuid"),),
                "pci_address": (text("pcieBusID"),),
                "pcie_root": (text(PCIE_ROOT),),
            },
        )
    },
    align={"pcie_root": (Published(PCIE_ROOT),)},
    hints={
        "numa_node": "HAMi's driver publishes no NUMA node; align on pcie_root",
        "partition": "HAMi's driver shares whole GPUs; ask for a share",
    },
)


def _divisible(value: str, minimum: str, step: str) -> Object:
    """A capacity of which a claim can consume a part. By default a claim consumes all of it."""
    return {
        "value": value,
        "requestPolicy": {"default": value, "validRange": {"min": minimum, "max": value, "step": step}},
    }


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for index, gpu, function in gpus_of(facts, driver):
        model = MODELS.get(function["device_id"] or "")
        builder = DeviceBuilder(driver)
        builder.put("type", "hami-gpu")
        builder.put("minor", index)
        builder.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
        builder.put("architecture", model.architecture if model else None, sure=False)
        builder.put("pcieBusID", function["address"])
        builder.put_standard(function["kubernetes"], PCIE_ROOT)
        capacity = {"cores": _divisible("100", "0", "1")}
        if model:
            capacity["memory"] = _divisible(f"{model.memory_mib}Mi", "1Mi", "1Mi")
            builder.assumed.add(driver.qualified("memory"))
        unknown = builder.qualified(
            *("uuid", "brand", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"),
            *([] if model else ["memory", "architecture"]),
            *builder.missing("productName"),
            *unknown_standard_attributes(function, facts),
        )
        more: Object = {"capacity": capacity, "allowMultipleAllocations": True}
        result.append(builder.offer(node, f"hami-gpu-{index}", unknown, function["address"], **more))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
