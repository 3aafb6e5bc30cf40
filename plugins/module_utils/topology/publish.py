# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What the driver lanewise.dev publishes for the NICs of a probed node.

The one place that says which functions may be given to pods, and under which attributes: the driver publishes it, and
the claims of the collection are checked against it before there is a cluster. What only the running driver knows (the
settings of its node, the routes, the devices that pods have) comes in as a :class:`Policy`.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field, replace

from .selector import LINK_LAYERS, NEAR, Selector, like, type_of, values_of, values_of_interface

DRIVER = "lanewise.dev"

_STANDARD = "resource.kubernetes.io/"
#: dra-driver-cpu and dra-driver-sriov publish the NUMA node under DRANET's name, and claims match equal names only.
_NUMA_NODE_DRANET = "dra.net/numaNode"
_VALUE_BYTES = 64  # a string attribute, resource/v1 DeviceAttributeMaxValueLength
#: User-space drivers: the function has no network interface that could be moved into a pod.
USER_SPACE = ("vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub")

LINK_DOWN = f"{DRIVER}/link-down"
#: The taint of a device that a pod has and the node no longer shows: nobody else shall get it.
MISSING = f"{DRIVER}/missing"
#: The taint of a device that came back from a pod in another state than it left. Its value is the kind of reason.
UNCLEAN = f"{DRIVER}/unclean"
COUNTER = "functions"
#: The annotation of a slice that tells the version of the driver that wrote it.
VERSION_ANNOTATION = f"{DRIVER}/version"
#: Attributes and capacities that a probe cannot tell of a function while its interface is in another namespace.
TOLD_BY_INTERFACE = (
    *("alias", "bandwidth", "firmware", "ifName", "linkLayer", "linkSpeedMbps"),
    *("mac", "mtu", "nodeGUID", "rdmaDevice", "up"),
)

Facts = t.Mapping[str, t.Any]


@dataclass
class Publication:
    """The pool of a node.

    C(devices) and C(counter_sets) are v1 Device and CounterSet objects in the order of PCI addresses; C(addresses) maps
    device names to PCI addresses, and C(interfaces) names the interfaces of devices that have none; C(withheld) tells
    by address, or by name of an interface without one, why something is not published. C(away) are the devices whose
    interface the probe did not see, as those that pods have: C(TOLD_BY_INTERFACE) is unknown of them.
    """

    devices: list[dict[str, t.Any]] = field(default_factory=list)
    counter_sets: list[dict[str, t.Any]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Policy:
    """What a node's driver knows besides the facts.

    C(include) empty means all devices, C(exclude) wins. C(virtual) are patterns of interfaces without a PCI function
    that are published too. C(management) are patterns of interface names and PCI addresses that never are. C(aliases)
    names devices by PCI address or interface. C(uplinks) tells by interface why the node needs it (a default route in
    any table, an SSH session, or being below such a one). C(keep_ib) says that interfaces of InfiniBand functions stay
    on the node, whatever they carry there, and pods get the RDMA device alone; C(exclusive) that RDMA devices belong to
    network namespaces, where an interface goes with its RDMA device. C(held) are the devices that pods have, by name,
    as they were published when they were allocated.
    """

    include: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()
    virtual: tuple[str, ...] = ()
    management: tuple[str, ...] = ()
    aliases: t.Mapping[str, str] = field(default_factory=dict)
    uplinks: t.Mapping[str, str] = field(default_factory=dict)
    keep_ib: bool = False
    exclusive: bool = False
    held: t.Mapping[str, dict[str, t.Any]] = field(default_factory=dict)

    def keeps_interface(self, nic: Facts) -> bool:
        """Whether pods get the RDMA device of a function without its interface."""
        return self.keep_ib and nic["link_layer"] == "infiniband" and bool(nic["rdma_devices"])


_PLAIN_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


def interface_device_name(interface: str) -> str:
    """The device of an interface without a PCI function: C(net-eth1), or C(netx-) and the name's bytes in hex."""
    return f"net-{interface}" if _PLAIN_NAME.fullmatch(interface) else f"netx-{interface.encode().hex()}"


def device_name(address: str) -> str:
    """The device of a PCI function: C(0000:8a:00.0) is C(pci-0000-8a-00-0)."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def publication(facts: Facts, counters: bool = True, policy: Policy | None = None) -> Publication:  # noqa: C901, PLR0915
    """The devices of a node, from its topology facts (see :func:`model.as_dict`).

    A function is withheld where the node itself needs it: it carries the default route or lies below an interface that
    does, it is part of a bond, bridge or VLAN, a guest or a user-space program holds it, or it has neither interface
    nor RDMA device to give. A PF and its VFs exclude each other by a counter set that the PF consumes whole; with
    C(counters) False, for API servers before 1.36 that drop counters, a PF with VFs is withheld instead. What the probe
    does not know is left out, and so is a string too long for an attribute: cut short it would equal another's.

    Without a C(policy) a function whose interface is in a pod is published all the same, as C(away): the driver
    that gave it to the pod would say more of it. With one the node is the running one: a RoCE function without its
    interface, which is then in some other namespace, and one with several interfaces, of which a claim could name none,
    are withheld too. Devices that pods have keep their attributes, and are never withheld.
    """
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    rdma = {entry["name"]: entry for entry in facts["rdma_devices"]}
    lower = {name: entry["name"] for entry in facts["interfaces"] for name in entry["lower"] if _hosts(entry)}
    nics: dict[str, Facts] = {nic["address"]: nic for nic in facts["nics"]}
    held = policy.held if policy else {}
    own: list[Facts] = []  # interfaces that are devices of their own
    if policy:
        own = [entry for entry in facts["interfaces"] if _is_virtual(entry, policy)]
        lower.update({name: entry["name"] for entry in own for name in entry["lower"]})
    virtual: dict[str, list[Facts]] = {}
    for nic in nics.values():
        if nic["physfn"]:
            virtual.setdefault(nic["physfn"], []).append(nic)

    result = Publication()
    for address, nic in nics.items():
        if device_name(address) in held:
            continue
        away = not policy and bool(nic.get("elsewhere"))  # facts that an earlier release stored do not have it
        keeps = bool(policy and policy.keeps_interface(nic))
        # what an interface does that stays where it is keeps nobody from the RDMA device
        given = {**nic, "interfaces": [], "default_route": False} if keeps else nic
        reason = "" if away else _needed(given, interfaces, lower)
        reason = reason or _needed_for_vfs(nic, virtual.get(address, []), interfaces, lower)
        if policy and not reason:
            reason = _rdma_unfit(nic, facts, policy) if keeps else _unfit(nic, facts, interfaces, policy)
            reason = reason or _uplink_vf(virtual.get(address, []), policy)
        if not reason and not counters and virtual.get(address):
            reason = f"it has {len(virtual[address])} VFs, and without shared counters both could be given away"
        if not reason and not counters and nic["physfn"] and device_name(nic["physfn"]) in held:
            reason = f"a pod has its PF {nic['physfn']}"
        if reason:
            result.withheld[address] = reason
        elif away:
            result.away.add(device_name(address))
    published = [nic for address, nic in nics.items() if address not in result.withheld]

    shared: dict[str, int] = {}  # PF -> its published VFs
    if counters:
        for nic in published:
            if nic["physfn"] in nics and nic["physfn"] not in result.withheld:
                shared[nic["physfn"]] = shared.get(nic["physfn"], 0) + 1
    for nic in published:
        name = device_name(nic["address"])
        device = _kept(held[name]) if name in held else _device(nic, facts, interfaces, rdma, policy)
        if name in result.away:
            device = _without_interface(device)
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
    if policy:
        _add_interfaces(result, own, facts, policy)
        for name in sorted(held):
            if name not in result.addresses and name not in result.interfaces:
                device = _kept(held[name])
                if name.startswith("pci-"):  # its function is gone; an interface may just be in the pod
                    device["taints"] = [{"key": MISSING, "effect": "NoSchedule"}]
                result.devices.append(device)
        result.devices.sort(key=lambda device: _place(device["name"]))
    return result


def without_link(result: Publication) -> set[str]:
    """The names of devices that nobody gets as their links are down."""
    return {one["name"] for one in result.devices if LINK_DOWN in [taint["key"] for taint in one.get("taints", ())]}


def _place(name: str) -> tuple[t.Any, ...]:
    """Functions as the node lists them, then interfaces by their names: one that comes back from a pod stands where it
    stood, as each change of a slice is news for every scheduler."""
    numbers = [int(digits) for digits in re.findall("[0-9]+", name)]
    return (0,) if name.startswith("pci-") else (1, re.split("[0-9]", name, maxsplit=1)[0], numbers, name)


def _add_interfaces(result: Publication, own: list[Facts], facts: Facts, policy: Policy) -> None:
    """Publish the interfaces that are devices of their own, or say why not."""
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    lower = {name: entry["name"] for entry in facts["interfaces"] for name in entry["lower"]}
    for entry in own:
        name = interface_device_name(entry["name"])
        if name in policy.held:
            # the one that the pod has is elsewhere: this is another interface of the same name
            result.withheld[entry["name"]] = "a pod has a device of this name"
            continue
        master = entry["master"] or lower.get(entry["name"])
        reason = "it carries the node's default route" if entry["default_route"] else ""
        if master and master in interfaces:
            reason = reason or f"it is part of {master}"
        reason = reason or _excluded(values_of_interface(entry), policy)
        if reason:
            result.withheld[entry["name"]] = reason
            continue
        result.devices.append(_interface_device(entry, facts, policy))
        result.interfaces[name] = entry["name"]


def _is_virtual(entry: Facts, policy: Policy) -> bool:
    """Whether an interface has no PCI function and the settings name it."""
    return entry["address"] is None and entry["kind"] != "loopback" and like(entry["name"], policy.virtual)


def _kept(device: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A device as it was published, without what follows from its neighbours or is for those who do not have it."""
    return {key: value for key, value in device.items() if key not in ("consumesCounters", "taints")}


def _without_interface(device: dict[str, t.Any]) -> dict[str, t.Any]:
    """A device with what is sure of it while its interface is away."""
    known = {key: value for key, value in device["attributes"].items() if key not in TOLD_BY_INTERFACE}
    return {"name": device["name"], "attributes": known}


def _excluded(values: t.Mapping[str, t.Any], policy: Policy) -> str:
    """Why the node's settings or routes keep a device."""
    for name in values["interface"]:
        if policy.uplinks.get(name):
            return policy.uplinks[name]
    for name in (values.get("address"), *values["interface"]):
        if like(name, policy.management):
            return f"the settings keep {name} for management"
    if any(selector.matches(values) for selector in policy.exclude):
        return "the settings exclude it"
    if policy.include and not any(selector.matches(values) for selector in policy.include):
        return "the settings do not include it"
    return ""


def _unfit(nic: Facts, facts: Facts, interfaces: t.Mapping[str, Facts], policy: Policy) -> str:
    """Why a function of a running node is not given away, besides what its facts say."""
    reason = _excluded(values_of(nic, facts), policy)
    if reason:
        return reason
    if len(nic["interfaces"]) > 1:
        return f"it has several interfaces: {', '.join(nic['interfaces'])}"
    if not nic["interfaces"] and nic["link_layer"] == "ethernet":
        return "its network interface is in another namespace"
    return ""


def _rdma_unfit(nic: Facts, facts: Facts, policy: Policy) -> str:
    """Why a function whose interface stays on the node is not given away."""
    if policy.exclusive:
        return "the settings keep its interface on the node, which in RDMA's exclusive mode goes with the RDMA device"
    return _excluded(values_of(nic, facts), replace(policy, uplinks={}))


def _uplink_vf(vfs: list[Facts], policy: Policy) -> str:
    """Why a PF is kept: the node needs one of its VFs."""
    for vf in vfs:
        for name in vf["interfaces"]:
            if policy.uplinks.get(name):
                return f"its VF {vf['address']} is in use: {policy.uplinks[name]}"
    return ""


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


def _device(
    nic: Facts,
    facts: Facts,
    interfaces: t.Mapping[str, Facts],
    rdma_devices: t.Mapping[str, Facts],
    policy: Policy | None = None,
) -> dict[str, t.Any]:
    function: Facts = facts["functions"][nic["address"]]
    rdma = [rdma_devices[name] for name in nic["rdma_devices"] if name in rdma_devices]
    # a function with several ports has several interfaces, and then none is the function's
    interface = interfaces.get(nic["interfaces"][0], {}) if len(nic["interfaces"]) == 1 else {}
    one = rdma[0] if len(rdma) == 1 else {}
    sriov = function.get("sriov") or {}
    standard = function["kubernetes"]
    values: dict[str, t.Any] = {_STANDARD + key: standard.get(key) for key in ("pcieRoot", "pciBusID", "numaNode")}
    values.update(
        {
            _NUMA_NODE_DRANET: standard.get("numaNode"),
            "type": type_of(nic),
            "alias": _alias(policy, nic["address"], interface.get("name")),
            "ifName": interface.get("name"),
            "mac": interface.get("permanent_mac"),
            "driver": nic["driver"],
            "vendorID": function["vendor_id"],
            "deviceID": function["device_id"],
            "model": nic["model"],
            "firmware": one.get("firmware"),
            "linkLayer": nic["link_layer"] if nic["link_layer"] in LINK_LAYERS else None,
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
            "rdma": bool(rdma) or "rdma_device" in nic.get("elsewhere", ()),
            "up": nic["up"],
        }
    )
    device = _with_attributes(device_name(nic["address"]), values)
    # A VF's share of the port is a setting and not a fact, so VFs have no bandwidth to count on.
    if _is_rate(nic["speed_mbps"]) and not nic["physfn"]:
        device["capacity"] = {"bandwidth": {"value": _rate(nic["speed_mbps"])}}
    if nic["up"] is False:
        device["taints"] = [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    return device


def _interface_device(entry: Facts, facts: Facts, policy: Policy) -> dict[str, t.Any]:
    """The device of an interface without a PCI function."""
    rdma = [device for device in facts["rdma_devices"] if entry["name"] in device["interfaces"]]
    up = {"up": True, "down": False}.get(entry["operstate"] or "", entry["carrier"])
    device = _with_attributes(
        interface_device_name(entry["name"]),
        {
            "type": "virtual",
            "kind": entry["kind"],
            "alias": _alias(policy, None, entry["name"]),
            "ifName": entry["name"],
            "mac": entry["mac"],
            "linkLayer": entry["link_layer"] if entry["link_layer"] in LINK_LAYERS else None,
            "rdmaDevice": rdma[0]["name"] if len(rdma) == 1 else None,
            "linkSpeedMbps": entry["speed_mbps"],
            "mtu": entry["mtu"],
            "rdma": bool(rdma),
            "up": up,
        },
    )
    if _is_rate(entry["speed_mbps"]):
        device["capacity"] = {"bandwidth": {"value": _rate(entry["speed_mbps"])}}
    if up is False:
        device["taints"] = [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    return device


def _alias(policy: Policy | None, address: str | None, interface: str | None) -> str | None:
    """The site's own name of a device."""
    aliases = policy.aliases if policy else {}
    return aliases.get(address or "") or aliases.get(interface or "")


def _with_attributes(name: str, values: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    attributes = {key: typed for key, typed in ((key, _attribute(value)) for key, value in values.items()) if typed}
    return {"name": name, "attributes": attributes}


def _attribute(value: t.Any) -> dict[str, t.Any] | None:
    """A v1 DeviceAttribute; None for what cannot be one."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str) and value and len(value.encode()) <= _VALUE_BYTES:
        return {"string": value}
    return None


def _is_rate(mbps: t.Any) -> bool:
    return isinstance(mbps, int) and not isinstance(mbps, bool) and mbps > 0


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
    if near["level"] not in NEAR:
        return None
    candidates = list(near["devices"])
    if len(candidates) > 1:
        rails = {gpu["address"]: gpu["rail"] for gpu in gpus}
        candidates = [one for one in candidates if nic["rail"] is not None and rails.get(one) == nic["rail"]]
    return candidates[0] if len(candidates) == 1 else None
