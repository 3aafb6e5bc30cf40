# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Network interfaces, as kubernetes-sigs/dranet (pkg/apis/attributes.go, pkg/inventory) publishes them."""

from __future__ import annotations

from ...topology import publish
from ...topology.publish import Facts
from .knowledge import (
    NUMA_NODE,
    NUMA_NODE_DRANET,
    PCIE_ROOT,
    DriverKnowledge,
    Filter,
    Kind,
    Published,
    Term,
    flag,
    number,
    text,
)
from .offer import DeviceMaker, Offer, Options, Vendor, unpublished

_KNOWLEDGE = DriverKnowledge(
    name="dra.net",
    title="DRANET",
    vendors=(),
    kubernetes="1.34",
    oldest="1.0.1",
    newest="1.4.0",
    kinds={
        kind: Kind(
            terms=terms,
            filters={
                "interface": (text("ifName"),),
                "numa_node": (number(NUMA_NODE, since=">1.4.0"), number(NUMA_NODE_DRANET)),
                "pci_address": (text("pciAddress"),),
                "pcie_root": (text(PCIE_ROOT),),
                "min_mtu": (number("mtu", "at_least"),),
                "rdma": (flag("rdma"),),
                # netlink's name of the hardware type
                "link_layer": (Filter("encapsulation", values={"ethernet": "ether"}),),
                "model": (text("pciDevice", "contains"),),
            },
        )
        for kind, terms in {
            "nic": (Term("virtual", False), Term("isSriovVf", True, "not_equals")),
            "rdma": (Term("rdma", True), Term("isSriovVf", True, "not_equals")),
            "vf": (Term("isSriovVf", True),),
        }.items()
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE, since=">1.4.0"), Published(NUMA_NODE_DRANET)),
    },
    hints={
        "min_speed": "dra.net publishes no link speed; ask for the model, or let lanewise.dev serve these NICs",
        "rail": "dra.net publishes no rail; ask for the interface or the pci_address",
        "min_firmware": "dra.net publishes no firmware version",
        "numa_node": "dra.net publishes resource.kubernetes.io/numaNode in builds after 1.4.0; with older ones align "
        "on pcie_root",
        "in_use": "from 1.4.0 on, DRANET's feature gate PersistentResourceSliceAttributes (alpha) keeps them published",
    },
    # pkg/inventory/db.go, addLinkAttributes; those of gce.dra.net are found by the MAC address
    by_interface=(
        *("dra.net/alias", "dra.net/ebpf", "dra.net/encapsulation", "dra.net/ifName", "dra.net/ipv4", "dra.net/ipv6"),
        *("dra.net/isSriovVf", "dra.net/mac", "dra.net/mtu", "dra.net/sriov", "dra.net/sriovVfs", "dra.net/state"),
        *("dra.net/tcFilterNames", "dra.net/tcxProgramNames", "dra.net/type", "dra.net/virtual"),
        *("gce.dra.net/ipAliases", "gce.dra.net/networkName", "gce.dra.net/networkProjectNumber"),
    ),
    # in RDMA's exclusive mode the first is false and the second missing
    by_rdma=("dra.net/rdma", "dra.net/rdmaDevice"),
)


def _offers(node: str, facts: Facts, known: DriverKnowledge, options: Options) -> list[Offer]:
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    result = []
    for nic in facts["nics"]:
        if nic["default_route"] or nic["driver"] is None or nic["driver"] in publish.USER_SPACE:
            continue
        function = facts["functions"][nic["address"]]
        maker = DeviceMaker(known)
        maker.put("dra.net/pciAddress", nic["address"])
        maker.put("dra.net/pciDevice", nic["model"], sure=False)
        maker.put("dra.net/numaNode", function["kubernetes"].get("numaNode"))
        maker.standard(function["kubernetes"], PCIE_ROOT)
        if known.publishes(NUMA_NODE):
            maker.standard(function["kubernetes"], NUMA_NODE)
        interface = interfaces.get(nic["interfaces"][-1]) if nic["interfaces"] else None
        if interface:
            maker.put("dra.net/ifName", interface["name"])
            maker.put("dra.net/mac", interface["mac"])
            maker.put("dra.net/mtu", interface["mtu"])
            maker.put(
                "dra.net/encapsulation",
                {"ethernet": "ether", "infiniband": "infiniband"}.get(interface["link_layer"] or ""),
            )
            maker.put("dra.net/state", interface["operstate"])
            sriov = function["sriov"] or {}
            maker.put("dra.net/sriov", bool(sriov.get("total_vfs")))
            if sriov.get("total_vfs"):
                maker.put("dra.net/sriovVfs", sriov.get("num_vfs"))
            if nic["physfn"]:
                maker.put("dra.net/isSriovVf", True)
            maker.put("dra.net/virtual", False)
        maker.put("dra.net/rdma", bool(nic["rdma_devices"]))
        if len(nic["rdma_devices"]) == 1:
            maker.put("dra.net/rdmaDevice", nic["rdma_devices"][0])
        unknown = maker.unknown(
            *("pciVendor", "pciSubsystem", "alias", "type", "ipv4", "ipv6", "ebpf", "tcFilterNames", "tcxProgramNames"),
            *unpublished(function, facts),
        )
        result.append(maker.offer(node, publish.device_name(nic["address"]), unknown, nic["address"]))
    return sorted(result, key=lambda offer: str(offer.device["name"]))


VENDOR = Vendor(_KNOWLEDGE, _offers)
