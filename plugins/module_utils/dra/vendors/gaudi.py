# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Gaudi accelerators, as intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-gaudi-plugin) publishes them."""

from __future__ import annotations

from ...topology import publish
from ...topology.facts import NodeFacts
from .filters import text
from .knowledge import PCIE_ROOT, DriverKnowledge, Kind, Published
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="gaudi.intel.com",
    title="Intel Gaudi DRA driver",
    vendors=("1da3",),
    kubernetes="1.34",
    oldest="0.5.0",
    newest="0.7.0",
    release_lines=("0.5", "0.6", "0.7"),
    source="repository intel/intel-resource-drivers-for-kubernetes",
    kinds={
        "gpu": Kind(
            filters={
                "model": (text("model", "contains"),),
                "uuid": (text("serial", since="0.7.0"), text("serial", until="0.6.0")),
                "pcie_root": (text(PCIE_ROOT, since="0.7.0"),),
            },
        )
    },
    align={"pcie_root": (Published(PCIE_ROOT, since="0.7.0"),)},
    hints={
        "numa_node": "gaudi.intel.com publishes no NUMA node; from 0.7.0 on, align on pcie_root",
        "pcie_root": "gaudi.intel.com publishes the PCIe root from 0.7.0 on",
        "pci_address": "gaudi.intel.com publishes no PCI address; except with 0.6.x, ask for uuid, which is the card's "
        "serial number",
        "min_memory": "ask for the model",
        "uuid": "gaudi.intel.com 0.6.x publishes no serial number; ask for the model, or upgrade the driver to 0.7.0",
    },
)

#: The models that the driver publishes, by PCI device ID (pkg/gaudi/device/device.go).
_MODELS = {
    **dict.fromkeys(("1000", "1001", "1010", "1011"), "Gaudi"),
    "1020": "Gaudi2",
    **dict.fromkeys(("1030", "1060", "1061", "1062", "1063"), "Gaudi3"),
}


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    result = []
    for _index, _gpu, function in gpus_of(facts, driver):
        builder = DeviceBuilder(driver)
        builder.put("model", _MODELS.get(function["device_id"] or ""), sure=False)
        if driver.publishes_alignment(PCIE_ROOT):
            builder.put_standard(function["kubernetes"], PCIE_ROOT)
        serial = driver.filter("gpu", "uuid")
        standard = unknown_standard_attributes(function, facts)
        unknown = builder.qualified(
            *(["serial"] if serial else []),
            *builder.missing("model"),
            *("healthy", *standard),
        )
        name = publish.device_name(function["address"])[4:]
        name += f"-0x{function['device_id']}" if function["device_id"] else ""
        result.append(builder.offer(node, name, unknown, function["address"]))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
