# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What the driver lanewise.dev publishes for the NICs of a probed node.

The one place that says which functions may be given to pods, and under which attributes: the driver publishes it, and
the claims of the collection are checked against it before there is a cluster.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

DRIVER = "lanewise.dev"

_STANDARD = "resource.kubernetes.io/"
#: dra-driver-cpu and dra-driver-sriov publish the NUMA node under DRANET's name, and claims match equal names only.
_NUMA_NODE_DRANET = "dra.net/numaNode"
_VALUE_BYTES = 64  # a string attribute, resource/v1 DeviceAttributeMaxValueLength
_LINK_LAYERS = ("ethernet", "infiniband")
_NEAR = ("PIX", "PXB", "PHB", "NODE")
#: User-space drivers: the function has no network interface that could be moved into a pod.
USER_SPACE = ("vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub")

LINK_DOWN = f"{DRIVER}/link-down"
COUNTER = "functions"

Facts = t.Mapping[str, t.Any]


@dataclass
class Publication:
    """The pool of a node.

    C(devices) and C(counter_sets) are v1 Device and CounterSet objects in the order of PCI addresses; C(addresses) maps
    device names to PCI addresses; C(withheld) tells by address why a NIC function is not published.
    """

    devices: list[dict[str, t.Any]] = field(default_factory=list)
    counter_sets: list[dict[str, t.Any]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)


def device_name(address: str) -> str:
    """The device of a PCI function: C(0000:8a:00.0) is C(pci-0000-8a-00-0)."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def publication(facts: Facts, counters: bool = True) -> Publication:
    """The devices of a node, from its topology facts (see :func:`model.as_dict`).

    A function is withheld where the node itself needs it: it carries the default route or lies below an interface that
    does, it is part of a bond, bridge or VLAN, a guest or a user-space program holds it, or it has neither interface
    nor RDMA device to give. A PF and its VFs exclude each other by a counter set that the PF consumes whole; with
    C(counters) False, for API servers before 1.36 that drop counters, a PF with VFs is withheld instead. What the probe
    does not know is left out, and so is a string too long for an attribute: cut short it would equal another's.
    """
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    lower = {name: entry["name"] for entry in facts["interfaces"] for name in entry["lower"] if _hosts(entry)}
    nics: dict[str, Facts] = {nic["address"]: nic for nic in facts["nics"]}
    virtual: dict[str, list[Facts]] = {}
    for nic in nics.values():
        if nic["physfn"]:
            virtual.setdefault(nic["physfn"], []).append(nic)

    result = Publication()
    for address, nic in nics.items():
        reason = _needed(nic, interfaces, lower) or _needed_for_vfs(nic, virtual.get(address, []), interfaces, lower)
        if not reason and not counters and virtual.get(address):
            reason = f"it has {len(virtual[address])} VFs, and without shared counters both could be given away"
        if reason:
            result.withheld[address] = reason
    published = [nic for address, nic in nics.items() if address not in result.withheld]

    shared: dict[str, int] = {}  # PF -> its published VFs
    for nic in published:
        if nic["physfn"] in nics and nic["physfn"] not in result.withheld:
            shared[nic["physfn"]] = shared.get(nic["physfn"], 0) + 1
    for nic in published:
        device = _device(nic, facts, interfaces)
        pf = nic["address"] if nic["address"] in shared else nic["physfn"] if nic["physfn"] in shared else None
        if pf:
            amount = shared[pf] if pf == nic["address"] else 1
            device["consumesCounters"] = [
                {"counterSet": device_name(pf), "counters": {COUNTER: {"value": str(amount)}}}
            ]
        result.devices.append(device)
        result.addresses[device["name"]] = nic["address"]
    result.counter_sets = [
        {"name": device_name(pf), "counters": {COUNTER: {"value": str(amount)}}} for pf, amount in shared.items()
    ]
    return result


def _hosts(entry: Facts) -> bool:
    """Whether an interface on top of others is the node's own; a macvlan or ipvlan may be a pod's."""
    return entry["kind"] in ("bond", "bridge", "vlan")


def _needed(nic: Facts, interfaces: t.Mapping[str, Facts], lower: t.Mapping[str, str]) -> str:
    """Why the node keeps this function; empty where it does not."""
    if nic["default_route"]:
        return "it carries the node's default route"
    if nic["driver"] is None:
        return "no kernel driver is bound"
    if nic["driver"] in USER_SPACE:
        return f"{nic['driver']} holds it for a guest or a user-space program"
    for name in nic["interfaces"]:
        master = interfaces[name]["master"] if name in interfaces else None
        if master or name in lower:
            return f"its interface {name} is part of {master or lower[name]}"
    if nic["representors"]:
        return "it is in switchdev mode, where it carries the traffic of its VFs"
    if not nic["interfaces"] and not nic["rdma_devices"]:
        return "it has neither a network interface nor an RDMA device"
    return ""


def _needed_for_vfs(nic: Facts, vfs: list[Facts], interfaces: t.Mapping[str, Facts], lower: t.Mapping[str, str]) -> str:
    """Why a PF cannot be given away because of its VFs: one that the node or a guest uses would lose its link."""
    for vf in vfs:
        if vf["driver"] in USER_SPACE or (vf["driver"] and vf["interfaces"] and _needed(vf, interfaces, lower)):
            return f"its VF {vf['address']} is in use: {_needed(vf, interfaces, lower)}"
    return ""


def _device(nic: Facts, facts: Facts, interfaces: t.Mapping[str, Facts]) -> dict[str, t.Any]:
    function: Facts = facts["functions"][nic["address"]]
    rdma = [device for device in facts["rdma_devices"] if device["name"] in nic["rdma_devices"]]
    # a function with several ports has several interfaces, and then none is the function's
    interface = interfaces.get(nic["interfaces"][0], {}) if len(nic["interfaces"]) == 1 else {}
    one = rdma[0] if len(rdma) == 1 else {}
    sriov = function.get("sriov") or {}
    standard = function["kubernetes"]
    values: dict[str, t.Any] = {_STANDARD + key: standard.get(key) for key in ("pcieRoot", "pciBusID", "numaNode")}
    values.update(
        {
            _NUMA_NODE_DRANET: standard.get("numaNode"),
            "type": "vf" if nic["physfn"] else "pf",
            "ifName": interface.get("name"),
            "mac": interface.get("permanent_mac"),
            "driver": nic["driver"],
            "vendorID": function["vendor_id"],
            "deviceID": function["device_id"],
            "model": nic["model"],
            "firmware": one.get("firmware"),
            "linkLayer": nic["link_layer"] if nic["link_layer"] in _LINK_LAYERS else None,
            "rdmaDevice": one.get("name"),
            "nodeGUID": one.get("node_guid"),
            "pfPciBusID": nic["physfn"],
            "pcieSwitch": _switch(function["bridges"]),
            "nearestGPU": _nearest_gpu(nic, facts["gpus"]),
            "linkSpeedMbps": nic["speed_mbps"],
            "mtu": interface.get("mtu"),
            "rail": nic["rail"],
            "vfIndex": function["vf_number"] if nic["physfn"] else None,
            "totalVFs": None if nic["physfn"] else sriov.get("total_vfs"),
            "rdma": bool(rdma),
            "up": nic["up"],
        }
    )
    attributes = {name: typed for name, typed in ((key, _attribute(value)) for key, value in values.items()) if typed}
    device: dict[str, t.Any] = {"name": device_name(nic["address"]), "attributes": attributes}
    # A VF's share of the port is a setting and not a fact, so VFs have no bandwidth to count on.
    if nic["speed_mbps"] and not nic["physfn"]:
        device["capacity"] = {"bandwidth": {"value": _rate(nic["speed_mbps"])}}
    if nic["up"] is False:
        device["taints"] = [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    return device


def _attribute(value: t.Any) -> dict[str, t.Any] | None:
    """A v1 DeviceAttribute; None for what cannot be one."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str) and value and len(value.encode()) <= _VALUE_BYTES:
        return {"string": value}
    return None


def _rate(mbps: int) -> str:
    """A quantity in bit/s: C(400G)."""
    return f"{mbps // 1000}G" if mbps % 1000 == 0 else f"{mbps}M"


def _switch(bridges: list[str]) -> str | None:
    """The upstream port of the PCIe switch that a function hangs on; None where it hangs on a root port.

    Below a host bridge a root port, upstream port, downstream port, upstream port ... take turns. All functions below
    one switch have the upstream port in common; each has a downstream port of its own.
    """
    if not bridges:
        return None
    domain = bridges[-1].partition(":")[0]
    own = 0
    while own < len(bridges) and bridges[-1 - own].partition(":")[0] == domain:
        own += 1
    return bridges[-2] if own >= 3 and own % 2 else None


def _nearest_gpu(nic: Facts, gpus: t.Sequence[Facts]) -> str | None:
    """The GPU that this NIC is for: the one nearest, or of several as near the one on its rail."""
    near = nic["nearest_gpus"]
    if near["level"] not in _NEAR:
        return None
    candidates = list(near["devices"])
    if len(candidates) > 1:
        rails = {gpu["address"]: gpu["rail"] for gpu in gpus}
        candidates = [one for one in candidates if nic["rail"] is not None and rails.get(one) == nic["rail"]]
    return candidates[0] if len(candidates) == 1 else None
