# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""One device as the driver lanewise.dev publishes it: the attributes and capacities of a NIC or an interface.

Which devices are published at all is decided in `publish`.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from .boards import Board, board_map
from .publish_shares import SUFFIX, Object
from .selector import LINK_LAYERS, NEAR, type_of

if t.TYPE_CHECKING:
    from .facts import FunctionFacts, GpuFacts, InterfaceFacts, NicFacts, NodeFacts, RdmaDeviceFacts

DRIVER = "lanewise.dev"

_STANDARD = "resource.kubernetes.io/"
PCIE_ROOT = f"{_STANDARD}pcieRoot"
#: dra-driver-cpu and dra-driver-sriov publish the NUMA node under DRANET's name, and constraints compare only
#: attributes with the same name.
_NUMA_NODE_DRANET = "dra.net/numaNode"
#: The root of the function that carries a NIC's GPU traffic, on boards with data-direct functions.
DATA_DIRECT_ROOT = "dataDirectPcieRoot"
_VALUE_BYTES = 64  # a string attribute, resource/v1 DeviceAttributeMaxValueLength

LINK_DOWN = f"{DRIVER}/link-down"


@dataclass(frozen=True)
class Node:
    """The indexed facts of a node. `aliases` are the site's names of devices, by PCI address or interface. `rails` are
    the rails of interfaces without a PCI function, by name."""

    facts: NodeFacts
    aliases: t.Mapping[str, str] = field(default_factory=dict)
    rails: t.Mapping[str, int] = field(default_factory=dict)
    interfaces: t.Mapping[str, InterfaceFacts] = field(init=False)
    rdma: t.Mapping[str, RdmaDeviceFacts] = field(init=False)
    nics: t.Mapping[str, NicFacts] = field(init=False)
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interfaces", {entry["name"]: entry for entry in self.facts["interfaces"]})
        object.__setattr__(self, "rdma", {entry["name"]: entry for entry in self.facts["rdma_devices"]})
        object.__setattr__(self, "nics", {nic["address"]: nic for nic in self.facts["nics"]})
        object.__setattr__(self, "board", board_map(self.facts))

    def function(self, address: str) -> FunctionFacts:
        """The PCI function at an address; empty if the probe has not seen it."""
        return self.facts["functions"].get(address) or {}

    def alias(self, address: str | None, interface: str | None) -> str | None:
        """The site's name of a device, if any."""
        return self.aliases.get(address or "") or self.aliases.get(interface or "")


_PLAIN_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


def interface_device_name(interface: str) -> str:
    """The device name of an interface without a PCI function: `net-eth1`, or `netx-` and the name's bytes in hex.

    An interface `eth1-share` gets the second form: `net-eth1-share` is the device for the shares of `eth1`.
    """
    plain = _PLAIN_NAME.fullmatch(interface) and not interface.endswith(SUFFIX)
    return f"net-{interface}" if plain else f"netx-{interface.encode().hex()}"


def device_name(address: str) -> str:
    """The device name of a PCI function: for `0000:8a:00.0` it is `pci-0000-8a-00-0`."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def nic_device(nic: NicFacts, node: Node) -> Object:
    """The v1 Device of a NIC. Unknown values are left out, and so are strings that are too long for an attribute."""
    # a function with several ports has several interfaces, none of which represents the function
    interface = node.interfaces.get(nic["interfaces"][0], {}) if len(nic["interfaces"]) == 1 else {}
    values = {**_location(nic, node), **_identity(nic, interface, node), **_link(nic, interface)}
    device = _with_attributes(device_name(nic["address"]), values)
    # The part of the port that a VF gets is a setting and not a fact, so VFs have no capacity for bandwidth.
    return _with_state(device, nic["up"], None if nic["physfn"] else nic["speed_mbps"])


def _location(nic: NicFacts, node: Node) -> dict[str, object]:
    """The attributes of a NIC's location. They depend neither on who uses the NIC nor on an interface.

    A VF is as near to GPUs as its PF.
    """
    function = node.function(nic["address"])
    parent = node.function(nic["physfn"] or "")
    standard = function["kubernetes"]
    numa_node = stated_numa_node(function, parent, standard.get("numaNode"))
    level, nearest = node.board.nearest_gpus(nic["physfn"] or nic["address"])
    direct = node.function(nic["data_direct"] or "")
    return {
        PCIE_ROOT: standard.get("pcieRoot"),
        f"{_STANDARD}pciBusID": standard.get("pciBusID"),
        f"{_STANDARD}numaNode": numa_node,
        _NUMA_NODE_DRANET: numa_node,
        "pfPciBusID": nic["physfn"],
        "pcieSwitch": function.get("switch_label") or parent.get("switch_label") or _switch(function["bridges"]),
        "nearestGPU": _nearest_gpu(nic, node.facts["gpus"]),
        "nearestGPUs": ",".join(nearest),
        "nearestGPULevel": level if nearest else None,
        "board": node.board.shape if node.board.levels else None,
        "dataDirectPciBusID": nic["data_direct"],
        DATA_DIRECT_ROOT: (direct.get("kubernetes") or {}).get("pcieRoot"),
        "rail": nic["rail"],
        "vfIndex": function["vf_number"] if nic["physfn"] else None,
    }


def _identity(nic: NicFacts, interface: InterfaceFacts, node: Node) -> dict[str, object]:
    """The attributes that identify a NIC: type, names and identifiers."""
    function = node.function(nic["address"])
    rdma = [node.rdma[name] for name in nic["rdma_devices"] if name in node.rdma]
    rdma_device = rdma[0] if len(rdma) == 1 else {}
    return {
        "type": type_of(nic),
        "alias": node.alias(nic["address"], interface.get("name")),
        "ifName": interface.get("name"),
        "mac": interface.get("permanent_mac"),
        "driver": nic["driver"],
        "vendorID": function["vendor_id"],
        "deviceID": function["device_id"],
        "model": nic["model"],
        "firmware": rdma_device.get("firmware"),
        "rdmaDevice": rdma_device.get("name"),
        "nodeGUID": rdma_device.get("node_guid"),
        "totalVFs": None if nic["physfn"] else (function.get("sriov") or {}).get("total_vfs"),
        "rdma": bool(rdma) or "rdma_device" in nic.get("elsewhere", ()),
    }


def _link(nic: NicFacts, interface: InterfaceFacts) -> dict[str, object]:
    """The attributes of a NIC's link."""
    return {
        "linkLayer": nic["link_layer"] if nic["link_layer"] in LINK_LAYERS else None,
        "linkSpeedMbps": nic["speed_mbps"],
        "mtu": interface.get("mtu"),
        "up": nic["up"],
    }


def interface_device(entry: InterfaceFacts, node: Node) -> Object:
    """The v1 Device of an interface without a PCI function."""
    rdma = [device for device in node.facts["rdma_devices"] if entry["name"] in device["interfaces"]]
    up = {"up": True, "down": False}.get(entry["operstate"] or "", entry["carrier"])
    values = {
        "type": "virtual",
        "kind": entry["kind"],
        "alias": node.alias(None, entry["name"]),
        "rail": node.rails.get(entry["name"]),
        "ifName": entry["name"],
        "mac": entry["mac"],
        "linkLayer": entry["link_layer"] if entry["link_layer"] in LINK_LAYERS else None,
        "rdmaDevice": rdma[0]["name"] if len(rdma) == 1 else None,
        "linkSpeedMbps": entry["speed_mbps"],
        "mtu": entry["mtu"],
        "rdma": bool(rdma),
        "up": up,
    }
    return _with_state(_with_attributes(interface_device_name(entry["name"]), values), up, entry["speed_mbps"])


def _with_state(device: Object, up: bool | None, mbps: int | None) -> Object:
    """A device with the bandwidth of its link, and a taint if the link is down."""
    if mbps is not None and _is_rate(mbps):
        device["capacity"] = {"bandwidth": {"value": _rate(mbps)}}
    if up is False:
        device["taints"] = [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    return device


def stated_numa_node(function: FunctionFacts, parent: FunctionFacts, kernel: int | None) -> int | None:
    """The NUMA node of a function: as the site states it for the function or its PF, or else as the kernel reports it.

    `parent` is the PF of a VF; empty for others. Both are as `functions` of the topology facts.
    """
    for candidate in (function, parent):
        if candidate.get("numa_source") == "override":
            stated: int | None = candidate["numa_node"]
            return stated
    return kernel


def _with_attributes(name: str, values: t.Mapping[str, object]) -> Object:
    attributes = {key: typed for key, typed in ((key, _attribute(value)) for key, value in values.items()) if typed}
    return {"name": name, "attributes": attributes}


def _attribute(value: object) -> Object | None:
    """A v1 DeviceAttribute; None for a value that cannot be one."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str) and value and len(value.encode()) <= _VALUE_BYTES:
        return {"string": value}
    return None


def _is_rate(mbps: object) -> bool:
    return isinstance(mbps, int) and not isinstance(mbps, bool) and mbps > 0


def _rate(mbps: int) -> str:
    """A quantity in bit/s: `400G`."""
    return f"{mbps // 1000}G" if mbps % 1000 == 0 else f"{mbps}M"


def _switch(bridges: list[str]) -> str | None:
    """The upstream port of the PCIe switch that a function is below; None if it is directly below a root port.

    Below a host bridge, a root port is followed by upstream and downstream ports in turn. All functions below one
    switch have the upstream port in common, and each has its own downstream port.
    """
    if not bridges:
        return None
    domain = bridges[-1].partition(":")[0]
    depth = 0  # the number of bridges in the function's domain
    while depth < len(bridges) and bridges[-1 - depth].partition(":")[0] == domain:
        depth += 1
    return bridges[-2] if depth >= 3 and depth % 2 else None


def _nearest_gpu(nic: NicFacts, gpus: t.Sequence[GpuFacts]) -> str | None:
    """The GPU that this NIC serves: the nearest one, or, if several are as near, the one on its rail."""
    near = nic["nearest_gpus"]
    if near["level"] not in NEAR:
        return None
    candidates = list(near["devices"])
    if len(candidates) > 1:
        rails = {gpu["address"]: gpu["rail"] for gpu in gpus}
        candidates = [
            address for address in candidates if nic["rail"] is not None and rails.get(address) == nic["rail"]
        ]
    return candidates[0] if len(candidates) == 1 else None
