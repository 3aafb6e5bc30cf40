# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Network interfaces, as kubernetes-sigs/dranet (pkg/apis/attributes.go, pkg/inventory) publishes them."""

from __future__ import annotations

import base64
import re
import typing as t
from dataclasses import replace

from ...topology import ids, publish
from ...topology.facts import FunctionFacts, InterfaceFacts, NicFacts, NodeFacts
from ..kube import limits
from .filters import flag, number, text
from .knowledge import NUMA_NODE, NUMA_NODE_DRANET, PCIE_ROOT, DriverKnowledge, Filter, Kind, Published, Term
from .offer import DeviceBuilder, Offer, Options, Vendor, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name="dra.net",
    title="DRANET",
    vendors=(),
    kubernetes="1.34",
    oldest="1.0.1",
    newest="1.4.0",
    release_lines=("1.0", "1.1", "1.2", "1.3", "1.4"),
    source="Go module sigs.k8s.io/dranet v1.4.0; older ones: its repository",
    tested_versions="1.4.0",
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
    # pkg/inventory/db.go, addLinkAttributes; DRANET looks up the attributes of gce.dra.net by the MAC address
    by_interface=(
        *("dra.net/alias", "dra.net/ebpf", "dra.net/encapsulation", "dra.net/ifName", "dra.net/ipv4", "dra.net/ipv6"),
        *("dra.net/isSriovVf", "dra.net/mac", "dra.net/mtu", "dra.net/sriov", "dra.net/sriovVfs", "dra.net/state"),
        *("dra.net/tcFilterNames", "dra.net/tcxProgramNames", "dra.net/type", "dra.net/virtual"),
        *("gce.dra.net/ipAliases", "gce.dra.net/networkName", "gce.dra.net/networkProjectNumber"),
    ),
    # while a pod has the RDMA device in RDMA's exclusive mode, dra.net/rdma is false and dra.net/rdmaDevice is missing
    by_rdma=("dra.net/rdma", "dra.net/rdmaDevice"),
)


#: Interfaces that DRANET never publishes (pkg/inventory/db.go, ignoredInterfaceNames).
_IGNORED = frozenset(("cilium_net", "cilium_host", "docker0"))
#: Kinds of virtual interfaces that are certainly not veth. DRANET's default filter drops veth.
_NOT_VETH = frozenset(("bond", "bridge", "vlan", "macvlan", "ipvlan", "vxlan"))
_ENCAPSULATION = {"ethernet": "ether", "infiniband": "infiniband"}
#: The kernel's interface states that DRANET's netlink library spells differently (link.go, String).
_STATES = {"notpresent": "not-present", "lowerlayerdown": "lower-layer-down"}
#: Attributes of an interface that a probe does not read.
_UNKNOWN_OF_INTERFACE = ("type", "ebpf", "ipv4", "ipv6", "tcFilterNames", "tcxProgramNames")
_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    """A device for each network function, and for each interface without a PCI function (pkg/inventory/db.go, scan).

    Functions that manage NVLink switches count as network functions, because DRANET checks only the PCI class.
    """
    excluded = _uplinks(facts["interfaces"])
    by_address: dict[str, InterfaceFacts] = {}
    for interface in sorted(facts["interfaces"], key=lambda interface: interface["ifindex"] or 0):
        if interface["address"] and interface["kind"] != "usb":  # of a USB NIC, it is the USB controller's
            by_address[interface["address"]] = interface  # of several interfaces of a function, DRANET takes the last
    nics = {nic["address"]: nic for nic in facts["nics"]}
    offers = []
    for address, function in facts["functions"].items():
        network = address in nics or str(function["class_code"] or "").startswith("02")
        if network and function["driver"] is not None and function["driver"] not in publish.USER_SPACE:
            interface_of = by_address.get(address)
            if interface_of is None or interface_of["name"] not in excluded:
                offers.append(_of_function(node, facts, driver, function, nics.get(address), interface_of))
    for interface in facts["interfaces"]:
        if (
            interface["address"] is None
            and interface["kind"] != "loopback"
            and interface["name"] not in excluded | _IGNORED
        ):
            offers.append(_of_interface(node, facts, driver, interface))
    if sum(not offer.possible for offer in offers) > limits.DEVICES:
        return []  # DRANET publishes all devices in one slice, which the API server then refuses
    return sorted(offers, key=lambda offer: str(offer.device["name"]))


def _uplinks(interfaces: t.Sequence[InterfaceFacts]) -> set[str]:
    """The interfaces that DRANET excludes: those with a default route, and their ports. The parent of a VLAN is not a
    port (pkg/inventory/net.go, getExcludedUplinkInterfaces)."""
    uplinks = {interface["name"] for interface in interfaces if interface["default_route"]}
    added = uplinks
    while added:
        added = {interface["name"] for interface in interfaces if interface["master"] in added} - uplinks
        uplinks |= added
    return uplinks


def _of_function(
    node: str,
    facts: NodeFacts,
    driver: DriverKnowledge,
    function: FunctionFacts,
    nic: NicFacts | None,
    interface: InterfaceFacts | None,
) -> Offer:
    address = function["address"]
    rdma = (
        nic["rdma_devices"]
        if nic
        else [device["name"] for device in facts["rdma_devices"] if device["address"] == address]
    )
    # DRANET publishes the name in the PCI ID database, which does not contain the vendor: MT2910 Family [ConnectX-7]
    model = ids.DEVICES.get((function["vendor_id"] or "", function["device_id"] or ""))
    model = model or (nic["model"] if nic else function["name"])
    builder = DeviceBuilder(driver)
    builder.put("dra.net/pciAddress", address)
    builder.put("dra.net/pciDevice", model, sure=False)
    builder.put("dra.net/numaNode", function["kubernetes"].get("numaNode"))
    builder.put_standard(function["kubernetes"], PCIE_ROOT)
    if driver.publishes_alignment(NUMA_NODE):
        builder.put_standard(function["kubernetes"], NUMA_NODE)
    unknown = ["pciVendor", "pciSubsystem", *unknown_standard_attributes(function, facts)]
    if model is None:
        unknown.append("pciDevice")
    if interface:
        unknown += _link(builder, facts, interface)
        sriov = function["sriov"] or {}
        builder.put("dra.net/sriov", bool(sriov.get("total_vfs")))
        if sriov.get("total_vfs"):
            builder.put("dra.net/sriovVfs", sriov.get("num_vfs"))
        if function["physfn"]:
            builder.put("dra.net/isSriovVf", True)
        builder.put("dra.net/virtual", False)
    elif rdma:  # DRANET publishes rdmaDevice only for functions without an interface
        if len(rdma) == 1:
            builder.put("dra.net/rdmaDevice", rdma[0])
        else:
            unknown.append("rdmaDevice")
    builder.put("dra.net/rdma", bool(rdma))
    return builder.offer(node, publish.device_name(address), builder.qualified(*unknown), address)


def _of_interface(node: str, facts: NodeFacts, driver: DriverKnowledge, interface: InterfaceFacts) -> Offer:
    """An interface without a PCI function. The device is `possible` if the interface may be a veth, which DRANET
    omits."""
    builder = DeviceBuilder(driver)
    unknown = builder.qualified(*_link(builder, facts, interface))
    for name, value in (("sriov", False), ("virtual", True), ("rdma", False)):
        builder.put(f"dra.net/{name}", value)
    name = interface["name"]
    if not _LABEL.match(name):  # pkg/names, NormalizeInterfaceName
        name = "net-" + base64.b32encode(name.encode()).decode().rstrip("=").lower()
    return replace(builder.offer(node, name, unknown), possible=interface["kind"] not in _NOT_VETH)


def _link(builder: DeviceBuilder, facts: NodeFacts, interface: InterfaceFacts) -> list[str]:
    """Add the attributes that DRANET publishes for an interface (addLinkAttributes). Returns the names of the
    attributes whose values the probe does not know."""
    state = interface["operstate"] or ""
    values = {
        "ifName": interface["name"],
        "mac": interface["mac"],
        "mtu": interface["mtu"],
        "encapsulation": _ENCAPSULATION.get(interface["link_layer"] or ""),
        "state": _STATES.get(state, state),
    }
    for name, value in values.items():
        builder.put(f"dra.net/{name}", value)
    unknown = [*_UNKNOWN_OF_INTERFACE, *(name for name, value in values.items() if value in (None, ""))]
    if facts["source"]["kind"] == "sysfs":  # DRANET publishes an empty alias too
        builder.attributes["dra.net/alias"] = {"string": interface["alias"] or ""}
    else:
        unknown.append("alias")
    return unknown


VENDOR = Vendor(_KNOWLEDGE, _offers)
