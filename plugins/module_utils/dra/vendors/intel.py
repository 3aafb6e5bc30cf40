# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Intel's GPUs, as intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-gpu-plugin) publishes them."""

from __future__ import annotations

from ...topology.facts import FunctionFacts, GpuFacts, NodeFacts
from ..kube.objects import Object
from .filters import at_least, text
from .knowledge import PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Kind, Published, Term
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="gpu.intel.com",
    title="Intel GPU DRA driver",
    vendors=("8086",),
    kubernetes="1.34",
    oldest="0.9.0",
    newest="0.11.0",
    release_lines=("0.9", "0.10", "0.11"),
    source="repository intel/intel-resource-drivers-for-kubernetes",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            # from 0.11.0 on, VFs are published in addition to their GPU
            terms=(Term("type", "vf", "not_equals"),),
            filters={
                "model": (text("model", "contains"),),
                "architecture": (text("family"),),
                "min_memory": (at_least("memory"),),
                "pci_address": (text(PCI_BUS_ID, since="0.10.0"), text("pciAddress", until="0.10.0")),
                "pcie_root": (text(PCIE_ROOT, since="0.10.0"),),
            },
        )
    },
    align={"pcie_root": (Published(PCIE_ROOT, since="0.10.0"),)},
    hints={
        "numa_node": "gpu.intel.com publishes no NUMA node; from 0.10.0 on, align on pcie_root",
        "pcie_root": "gpu.intel.com publishes the PCIe root from 0.10.0 on",
        "partition": "gpu.intel.com publishes whole GPUs and VFs, no partitions",
        "uuid": "gpu.intel.com publishes no uuid; ask for pci_address",
    },
)


#: The models that the driver publishes, by PCI device ID (pkg/gpu/device/models.go), without client GPUs.
_MODELS = {
    **dict.fromkeys(("0b69", "0bd0", "0bd5"), "Max 1550"),
    "0bd6": "Max 1450",
    **dict.fromkeys(("0bd9", "0bda", "0bdb"), "Max 1100"),
    "56c0": "Flex 170",
    "56c1": "Flex 140",
}

#: The taint of a GPU that is not bound to a kernel driver, unless the DRA driver manages the binding: an option that is
#: assumed to be off.
_UNBOUND_TAINT = {"key": "UnboundUnmanaged", "effect": "NoSchedule"}


def _functions(facts: NodeFacts, driver: DriverKnowledge) -> list[tuple[GpuFacts, FunctionFacts]]:
    """GPUs with their PCI functions. From 0.11.0 on they include GPUs that are passed through to VMs. The driver then
    also publishes VFs, which are not among the GPUs of a node's facts."""
    if not driver.version_in_range("0.11.0"):
        return [(gpu, function) for _index, gpu, function in gpus_of(facts, driver) if gpu["kind"] == "gpu"]
    gpus = [(gpu, facts["functions"][gpu["address"]]) for gpu in facts["gpus"] if gpu["kind"] == "gpu"]
    return [(gpu, function) for gpu, function in gpus if function["vendor_id"] in driver.vendors]


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for gpu, function in _functions(facts, driver):
        builder = DeviceBuilder(driver)
        builder.put("model", _MODELS.get(function["device_id"] or ""), sure=False)
        if driver.version_in_range("0.11.0"):  # empty without a kernel driver
            builder.attributes["driver"] = {"string": gpu["driver"] or ""}
        else:
            builder.put("driver", gpu["driver"])
        builder.put("sriov", bool((function["sriov"] or {}).get("total_vfs")))
        builder.put("pciId", f"0x{function['device_id']}" if function["device_id"] else None)
        builder.put("pciAddress", function["address"])
        if driver.publishes_alignment(PCIE_ROOT):
            # without a PCIe root the driver publishes an empty string, so all such devices seem to have the same root
            if PCIE_ROOT not in unknown_standard_attributes(function, facts):
                builder.attributes[PCIE_ROOT] = {"string": function["kubernetes"].get("pcieRoot", "")}
        if driver.version_in_range("0.10.0"):
            builder.put_standard(function["kubernetes"], PCI_BUS_ID)
        if driver.version_in_range("0.11.0"):
            builder.put("type", "gpu")
        unknown = builder.qualified(
            *("family", "health", "memory", "millicores"),
            *builder.missing("model"),
            *unknown_standard_attributes(function, facts),
        )
        name = f"{function['address']}-{builder.attributes.get('pciId', {}).get('string', '')}"
        name = name.replace(":", "-").replace(".", "-").rstrip("-")
        # a probe does not read a GPU's health, so other taints are unknown
        unbound = driver.version_in_range("0.11.0") and gpu["driver"] is None
        taints: Object = {"taints": [dict(_UNBOUND_TAINT)]} if unbound else {}
        result.append(builder.offer(node, name, unknown, function["address"], **taints))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
