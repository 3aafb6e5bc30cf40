# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Intel's GPUs, as intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-gpu-plugin) publishes them."""

from __future__ import annotations

from ...topology.publish import Facts
from .knowledge import PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Kind, Published, Term, at_least, text
from .offer import DeviceMaker, Offer, Options, Vendor, gpus_of, unpublished

_KNOWLEDGE = DriverKnowledge(
    name="gpu.intel.com",
    title="Intel GPU DRA driver",
    vendors=("8086",),
    kubernetes="1.34",
    oldest="0.9.0",
    newest="0.11.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            # from 0.11.0 on VFs are published beside their GPU
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
        "numa_node": "gpu.intel.com publishes no NUMA node; align on pcie_root",
        "pcie_root": "gpu.intel.com publishes the PCIe root from 0.10.0 on",
        "partition": "gpu.intel.com publishes whole GPUs and VFs, no partitions",
        "uuid": "gpu.intel.com publishes no uuid; ask for pci_address",
    },
)


def _offers(node: str, facts: Facts, known: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for _index, gpu, function in gpus_of(facts, known):
        if gpu["kind"] != "gpu":
            continue
        maker = DeviceMaker(known)
        maker.put("model", gpu["model"], sure=False)
        maker.put("driver", gpu["driver"])
        maker.put("sriov", bool((function["sriov"] or {}).get("total_vfs")))
        maker.put("pciId", f"0x{function['device_id']}" if function["device_id"] else None)
        maker.put("pciAddress", function["address"])
        if known.publishes(PCIE_ROOT):
            # where the root is not found the driver publishes an empty one, which all such devices have in common
            maker.attributes[PCIE_ROOT] = {"string": function["kubernetes"].get("pcieRoot", "")}
        if known.has("0.10.0"):
            maker.standard(function["kubernetes"], PCI_BUS_ID)
        if known.has("0.11.0"):
            maker.put("type", "gpu" if function["vf_number"] is None else "vf")
        unknown = maker.unknown("family", "health", "memory", "millicores", *unpublished(function, facts))
        name = f"{function['address']}-{maker.attributes.get('pciId', {}).get('string', '')}"
        name = name.replace(":", "-").replace(".", "-").rstrip("-")
        result.append(maker.offer(node, name, unknown, function["address"]))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
