# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Virtual functions, as k8snetworkplumbingwg/dra-driver-sriov (pkg/consts, pkg/devicestate) publishes them."""

from __future__ import annotations

from ...topology import publish
from ...topology.facts import NodeFacts
from .filters import flag, number, text
from .knowledge import NUMA_NODE_DRANET, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Kind, Published
from .offer import DeviceBuilder, Offer, Options, Vendor, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="sriovnetwork.k8snetworkplumbingwg.io",
    title="SR-IOV DRA driver",
    kubernetes="1.34",
    oldest="0.1.0",
    source="repository k8snetworkplumbingwg/dra-driver-sriov",
    kinds={
        "vf": Kind(
            filters={
                "interface": (text("PFName"),),
                "pci_address": (text(PCI_BUS_ID),),
                "pcie_root": (text(PCIE_ROOT),),
                "numa_node": (number(NUMA_NODE_DRANET),),
                "link_layer": (text("linkType"),),
                "rdma": (flag("rdmaCapable"),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE_DRANET),),
    },
    hints={
        "min_speed": "this driver publishes no link speed; ask for the interface, which is the PF's name",
        "numa_node": "this driver publishes the NUMA node only as dra.net/numaNode; align on pcie_root",
        "rail": "this driver publishes no rail; ask for the interface, which is the PF's name",
    },
    pf_address="sriovnetwork.k8snetworkplumbingwg.io/pfPciAddress",
)


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    nics = {nic["address"]: nic for nic in facts["nics"]}
    result = []
    for nic in facts["nics"]:
        pf = nics.get(nic["physfn"] or "")
        if pf is None or not pf["interfaces"]:
            continue
        function, parent = facts["functions"][nic["address"]], facts["functions"][pf["address"]]
        builder = DeviceBuilder(driver)
        prefix = driver.name + "/"
        builder.put(prefix + "vendor", parent["vendor_id"])
        builder.put(prefix + "deviceID", function["device_id"])
        builder.put(prefix + "pfDeviceID", parent["device_id"])
        builder.put(prefix + "pciAddress", nic["address"])
        builder.put("k8s.cni.cncf.io/deviceID", nic["address"])
        builder.put(prefix + "PFName", pf["interfaces"][0])
        builder.put(prefix + "vfID", function["vf_number"])
        builder.put(prefix + "pfPciAddress", pf["address"])
        link_type = pf["link_layer"] if pf["link_layer"] in ("ethernet", "infiniband") else "unknown"
        builder.put(prefix + "linkType", link_type)
        builder.put(prefix + "rdmaCapable", bool(nic["rdma_devices"]))
        # the driver publishes the root of the PF, or an empty string if the PF has none
        builder.attributes[PCIE_ROOT] = {"string": parent["kubernetes"].get("pcieRoot", "")}
        builder.put(PCI_BUS_ID, nic["address"])
        numa = function["kubernetes"].get("numaNode")
        builder.put(NUMA_NODE_DRANET, -1 if numa is None else numa)
        result.append(
            builder.offer(
                node,
                publish.device_name(nic["address"])[4:],
                builder.qualified("EswitchMode", "resourceName", *unknown_standard_attributes(function, facts)),
                nic["address"],
            )
        )
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
