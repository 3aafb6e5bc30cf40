# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What the driver lanewise.dev publishes for the NICs of a probed node.

Only this module decides which functions pods may get, and with which attributes. The driver publishes the result, and
the collection checks claims against it before there is a cluster. What only the running driver knows (the node's
settings, the routes, the devices that pods have) is passed as a :class:`Policy`.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field, replace

from .publish_device import (
    DATA_DIRECT_ROOT,
    DRIVER,
    LINK_DOWN,
    PCIE_ROOT,
    Node,
    device_name,
    interface_device,
    interface_device_name,
    nic_device,
)
from .publish_shares import VFS, Divided, HeldShares, Object, ShareRule, rule_for, share_name
from .publish_shares import add as add_shares
from .selector import DeviceValues, Selector, like, values_of, values_of_interface

if t.TYPE_CHECKING:
    from .facts import InterfaceFacts, NicFacts, NodeFacts

__all__ = [
    "COUNTER",
    "DATA_DIRECT_ROOT",
    "DRIVER",
    "LINK_DOWN",
    "MISSING",
    "PCIE_ROOT",
    "INTERFACE_ATTRIBUTES",
    "UNCLEAN",
    "USER_SPACE",
    "VERSION_ANNOTATION",
    "Policy",
    "Publication",
    "Selector",
    "device_name",
    "interface_device_name",
    "publication",
    "without_link",
]

#: User-space drivers: the function has no network interface to move into a pod.
USER_SPACE = ("vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub")

#: The taint of a device that a pod has and that is no longer visible on the node, so that no other pod gets it.
MISSING = f"{DRIVER}/missing"
#: The taint of a device that came back from a pod in a changed state. The value is the kind of change.
UNCLEAN = f"{DRIVER}/unclean"
COUNTER = "functions"
#: The annotation of a slice with the version of the driver that wrote it.
VERSION_ANNOTATION = f"{DRIVER}/version"
#: Attributes and capacities of a function that a probe cannot read while the interface is in another namespace.
INTERFACE_ATTRIBUTES = (
    *("alias", "bandwidth", "firmware", "ifName", "linkLayer", "linkSpeedMbps"),
    *("mac", "mtu", "nodeGUID", "rdmaDevice", "up"),
)


@dataclass
class Publication:
    """The pool of a node.

    `devices` and `counter_sets` are v1 Device and CounterSet objects in the order of PCI addresses. `addresses` maps
    device names to PCI addresses, and `interfaces` maps the names of devices without a PCI address to interfaces.
    `withheld` contains the reasons why devices are not published, by PCI address, or else by interface name. `away` are
    the devices whose interface the probe did not see, such as those that pods have: their `INTERFACE_ATTRIBUTES` are
    unknown. `shared` maps the names of devices for shares to the NICs that they divide.
    """

    devices: list[Object] = field(default_factory=list)
    counter_sets: list[Object] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    shared: dict[str, Divided] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """What a node's driver knows in addition to the facts.

    - `include` and `exclude` select the devices to publish. An empty `include` means all, and `exclude` takes
      precedence.
    - `virtual` are patterns of interfaces without a PCI function that are published, too.
    - `management` are patterns of interface names and PCI addresses that are never published.
    - `aliases` are names of devices, by PCI address or interface.
    - `rails` are the rails of interfaces without a PCI function, by name.
    - `uplinks` are the reasons why the node needs interfaces (a default route in any table, an SSH session, or being
      below such an interface), by name.
    - With `keep_ib`, interfaces of InfiniBand functions stay on the node, whatever they carry there, and pods get only
      the RDMA device.
    - With `exclusive`, RDMA devices belong to network namespaces, and an interface moves with its RDMA device.
    - `held` are the devices that pods have, by name, as they were published when they were allocated.
    - `held_shares` are the shares that pods have, by the names of the devices for shares.
    - `unclean` are the devices that are withheld because a pod has changed their state.
    """

    include: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()
    virtual: tuple[str, ...] = ()
    management: tuple[str, ...] = ()
    aliases: t.Mapping[str, str] = field(default_factory=dict)
    rails: t.Mapping[str, int] = field(default_factory=dict)
    uplinks: t.Mapping[str, str] = field(default_factory=dict)
    keep_ib: bool = False
    exclusive: bool = False
    held: t.Mapping[str, Object] = field(default_factory=dict)
    held_shares: t.Mapping[str, HeldShares] = field(default_factory=dict)
    unclean: t.AbstractSet[str] = frozenset()

    def keeps_interface(self, nic: NicFacts) -> bool:
        """Whether pods get the RDMA device of a function without its interface."""
        return self.keep_ib and nic["link_layer"] == "infiniband" and bool(nic["rdma_devices"])


def publication(
    facts: NodeFacts, counters: bool = True, policy: Policy | None = None, shares: t.Sequence[ShareRule] = ()
) -> Publication:
    """The devices of a node, from its topology facts (see :func:`model.as_dict`).

    A function is withheld if the node itself needs it: it carries the default route or is below an interface that does,
    it is part of a bond, bridge or VLAN, or a guest or a user-space program uses it. It is also withheld if it has
    neither an interface nor an RDMA device. A PF and its VFs exclude each other through a counter set that the PF
    consumes completely. With `counters` False, for API servers before 1.36 that drop counters, a PF with VFs is
    withheld instead. Unknown values are left out, and so are strings that are too long for an attribute: if they were
    truncated, they could equal another string.

    Without a `policy`, a function whose interface is in a pod is published too, as `away`: the driver that gave it to
    the pod would publish more attributes. With a policy, which only a running driver has, two more kinds are withheld:
    a RoCE function whose interface is in another namespace, and a function with several interfaces, because a claim
    could not choose among them. Devices that pods have keep their attributes, and are never withheld.

    With `shares`, the NICs that these rules match get a second device, from which pods get shares. Both devices consume
    the same counters, so that a NIC is either shared or given as a whole; without `counters` there are no shares.
    """
    return _Publisher(facts, counters, policy, shares if counters else ()).run()


class _Publisher:
    """Computes the publication of a node."""

    def __init__(
        self, facts: NodeFacts, counters: bool, policy: Policy | None, shares: t.Sequence[ShareRule] = ()
    ) -> None:
        self.facts, self.counters, self.policy, self.shares = facts, counters, policy, shares
        self.node = Node(facts, policy.aliases if policy else {}, policy.rails if policy else {})
        self.held = policy.held if policy else {}
        #: interfaces without a PCI function that are devices themselves
        self.virtual_interfaces = [entry for entry in facts["interfaces"] if policy and _is_virtual(entry, policy)]
        above = [entry for entry in facts["interfaces"] if _is_of_node(entry)] + self.virtual_interfaces
        self.lower = {name: entry["name"] for entry in above for name in entry["lower"]}
        self.vfs_by_pf: dict[str, list[NicFacts]] = {}
        for nic in self.node.nics.values():
            if nic["physfn"]:
                self.vfs_by_pf.setdefault(nic["physfn"], []).append(nic)
        self.result = Publication()
        rules = {address: rule_for(shares, values_of(nic, facts)) for address, nic in self.node.nics.items()}
        #: the rules that divide PFs, by PCI address
        self.rules = {address: rule for address, rule in rules.items() if rule}

    def run(self) -> Publication:
        result = self.result
        for address, nic in self.node.nics.items():
            if device_name(address) in self.held:
                continue
            reason = self._withheld(nic)
            if reason:
                result.withheld[address] = reason
            elif self._away(nic):
                result.away.add(device_name(address))
        shared = self._shared() if self.counters else {}
        for address, nic in self.node.nics.items():
            if address not in result.withheld:
                device = self._device(nic, shared)
                result.devices.append(device)
                result.addresses[device["name"]] = address
        result.counter_sets = [
            {"name": device_name(pf), "counters": {COUNTER: {"value": str(amount)}}} for pf, amount in shared.items()
        ]
        if self.policy:
            _add_interfaces(result, self.virtual_interfaces, self.node, self.policy)
            _add_held(result, self.held)
        if self.shares or (self.policy and self.policy.held_shares):
            add_shares(result, self._divided(), self.policy.held_shares if self.policy else {}, COUNTER)
        if self.policy:
            result.devices.sort(key=lambda device: _position(device["name"]))
        return result

    def _divided(self) -> dict[str, Divided]:
        """The published devices that the settings divide, by the devices' names."""
        divided = {}
        for address, rule in self.rules.items():
            name, nic = device_name(address), self.node.nics[address]
            if self.result.addresses.get(name) == address:
                vfs = tuple(vf["address"] for vf in self.vfs_by_pf.get(address, []) if self._usable(vf, name))
                vfs = vfs if rule.mechanism == VFS else ()
                divided[name] = Divided(rule, address, nic["speed_mbps"], nic["link_layer"], vfs)
        for entry in self.virtual_interfaces:
            interface_rule = rule_for(self.shares, values_of_interface(entry))
            name = interface_device_name(entry["name"])
            if interface_rule and self.result.interfaces.get(name) == entry["name"]:
                divided[name] = Divided(interface_rule, entry["name"], entry["speed_mbps"], entry["link_layer"])
        return divided

    def _usable(self, vf: NicFacts, pf: str) -> bool:
        """Whether a share can get a VF: the VF is free and the settings do not reserve it, or a share has it already.
        `pf` is the name of the PF's device."""
        policy = self.policy
        shares = policy.held_shares.get(share_name(pf)) if policy else None
        if shares and vf["address"] in shares.vfs:
            return True
        if device_name(vf["address"]) in self.held or _needed(vf, self.node.interfaces, self.lower):
            return False
        if policy and device_name(vf["address"]) in policy.unclean:
            return False
        return len(vf["interfaces"]) == 1 and not self._reserved(vf) if policy else True

    def _reserved(self, vf: NicFacts) -> bool:
        """Whether the settings exclude a VF or keep it for management, or the node's traffic uses it. A selection of
        the devices to publish does not matter, because shares get VFs that are not published."""
        policy = self.policy
        return bool(policy and _excluded(values_of(vf, self.facts), replace(policy, include=())))

    def _away(self, nic: NicFacts) -> bool:
        """Whether a pod has the interface, according to the facts. Facts of an earlier release may not contain this."""
        return not self.policy and bool(nic.get("elsewhere"))

    def _withheld(self, nic: NicFacts) -> str:
        """Why a function is not published; empty if it is."""
        policy, interfaces = self.policy, self.node.interfaces
        vfs = self.vfs_by_pf.get(nic["address"], [])
        keeps = bool(policy and policy.keeps_interface(nic))
        # an interface that stays on the node may be in use there: pods can have the RDMA device anyway
        remaining = {**nic, "interfaces": [], "default_route": False} if keeps else nic
        if self._for_shares(nic):
            return f"its PF {nic['physfn']} is divided into shares, which get its VFs"
        reason = "" if self._away(nic) else _needed(remaining, interfaces, self.lower)
        reason = reason or _needed_for_vfs(nic, vfs, interfaces, self.lower)
        if policy and not reason:
            reason = _rdma_unfit(nic, self.facts, policy) if keeps else _unfit(nic, self.facts, policy)
            reason = reason or _uplink_vf(vfs, policy)
        if reason or self.counters:
            return reason
        if vfs:
            return f"it has {len(vfs)} VFs, and without shared counters pods could get the PF and a VF at once"
        if nic["physfn"] and device_name(nic["physfn"]) in self.held:
            return f"a pod has its PF {nic['physfn']}"
        return ""

    def _for_shares(self, nic: NicFacts) -> bool:
        """Whether only shares get this VF: the PF is published, and is divided into shares through its VFs."""
        address = nic["physfn"] or ""
        rule, pf = self.rules.get(address), self.node.nics.get(address)
        if rule is None or pf is None or rule.mechanism != VFS or pf["link_layer"] == "infiniband":
            return False
        if self._reserved(nic):
            return False
        return device_name(address) in self.held or not self._withheld(pf)

    def _shared(self) -> dict[str, int]:
        """The number of published VFs of each published PF, by the PF's address."""
        published_vfs: dict[str, int] = {}
        nics, withheld = self.node.nics, self.result.withheld
        for address, nic in nics.items():
            pf = nic["physfn"]
            if pf is not None and address not in withheld and pf in nics and pf not in withheld:
                published_vfs[pf] = published_vfs.get(pf, 0) + 1
        return published_vfs

    def _device(self, nic: NicFacts, shared: t.Mapping[str, int]) -> Object:
        address, name = nic["address"], device_name(nic["address"])
        device = _kept(self.held[name]) if name in self.held else nic_device(nic, self.node)
        if name in self.result.away:
            device = _without_interface(device)
        pf = address if address in shared else nic["physfn"] if nic["physfn"] in shared else None
        if pf:
            amount = shared[pf] if pf == address else 1
            device["consumesCounters"] = [
                {"counterSet": device_name(pf), "counters": {COUNTER: {"value": str(amount)}}}
            ]
        return device


def _add_held(result: Publication, held: t.Mapping[str, Object]) -> None:
    """Add the devices that pods have and that the probe did not see."""
    for name in sorted(held):
        if name not in result.addresses and name not in result.interfaces:
            device = _kept(held[name])
            if name.startswith(
                "pci-"
            ):  # the function has disappeared; an interface without a PCI function may be in the pod
                device["taints"] = [{"key": MISSING, "effect": "NoSchedule"}]
            result.devices.append(device)


def without_link(result: Publication) -> set[str]:
    """The names of devices that are tainted because their links are down."""
    return {
        device["name"] for device in result.devices if LINK_DOWN in [taint["key"] for taint in device.get("taints", ())]
    }


def _position(name: str) -> tuple[object, ...]:
    """The sort key of devices: functions in the node's order, then interfaces by name. So a device that comes back from
    a pod gets its previous position: every scheduler has to process each change of a slice."""
    numbers = [int(digits) for digits in re.findall("[0-9]+", name)]
    return (0,) if name.startswith("pci-") else (1, re.split("[0-9]", name, maxsplit=1)[0], numbers, name)


def _add_interfaces(result: Publication, entries: list[InterfaceFacts], node: Node, policy: Policy) -> None:
    """Add the interfaces without a PCI function, or the reasons why they are withheld."""
    interfaces = node.interfaces
    lower = {name: entry["name"] for entry in interfaces.values() for name in entry["lower"]}
    for entry in entries:
        name = interface_device_name(entry["name"])
        if name in policy.held:
            # the interface of that device is in the pod, so this is another one with the same name
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
        result.devices.append(interface_device(entry, node))
        result.interfaces[name] = entry["name"]


def _is_virtual(entry: InterfaceFacts, policy: Policy) -> bool:
    """Whether an interface has no PCI function and matches the patterns of the settings."""
    return entry["address"] is None and entry["kind"] != "loopback" and like(entry["name"], policy.virtual)


def _kept(device: Object) -> Object:
    """A device as it was published, without counters, which depend on other devices, and without taints, which only
    concern other pods."""
    return {key: value for key, value in device.items() if key not in ("consumesCounters", "taints")}


def _without_interface(device: Object) -> Object:
    """A device with those attributes that are known while its interface is in another namespace."""
    known = {key: value for key, value in device["attributes"].items() if key not in INTERFACE_ATTRIBUTES}
    return {"name": device["name"], "attributes": known}


def _excluded(values: DeviceValues, policy: Policy) -> str:
    """Why a device is withheld by the node's settings or routes; empty if it is not."""
    for name in values["interface"]:
        if policy.uplinks.get(name):
            return policy.uplinks[name]
    for name in (*([values["address"]] if "address" in values else []), *values["interface"]):
        if like(name, policy.management):
            return f"the settings keep {name} for management"
    if any(selector.matches(values) for selector in policy.exclude):
        return "the settings exclude it"
    if policy.include and not any(selector.matches(values) for selector in policy.include):
        return "the settings do not include it"
    return ""


def _unfit(nic: NicFacts, facts: NodeFacts, policy: Policy) -> str:
    """Why a function of a running node is withheld, besides the reasons that its facts contain; empty if it is not."""
    reason = _excluded(values_of(nic, facts), policy)
    if reason:
        return reason
    if len(nic["interfaces"]) > 1:
        return f"it has several interfaces: {', '.join(nic['interfaces'])}"
    if not nic["interfaces"] and nic["link_layer"] == "ethernet":
        return "its network interface is in another namespace"
    return ""


def _rdma_unfit(nic: NicFacts, facts: NodeFacts, policy: Policy) -> str:
    """Why the RDMA device of a function whose interface stays on the node is withheld; empty if it is not."""
    if policy.exclusive:
        return "the settings keep its interface on the node, which in RDMA's exclusive mode moves with the RDMA device"
    return _excluded(values_of(nic, facts), replace(policy, uplinks={}))


def _uplink_vf(vfs: list[NicFacts], policy: Policy) -> str:
    """Why a PF is withheld because the node needs one of its VFs; empty if it does not."""
    for vf in vfs:
        for name in vf["interfaces"]:
            if policy.uplinks.get(name):
                return f"its VF {vf['address']} is in use: {policy.uplinks[name]}"
    return ""


def _is_of_node(entry: InterfaceFacts) -> bool:
    """Whether an upper interface certainly belongs to the node; a macvlan or ipvlan may belong to a pod."""
    return entry["kind"] in ("bond", "bridge", "vlan")


def _needed(nic: NicFacts, interfaces: t.Mapping[str, InterfaceFacts], lower: t.Mapping[str, str]) -> str:
    """Why the node needs a function, or why pods cannot use it; empty if neither applies."""
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


def _needed_for_vfs(
    nic: NicFacts, vfs: list[NicFacts], interfaces: t.Mapping[str, InterfaceFacts], lower: t.Mapping[str, str]
) -> str:
    """Why a PF is withheld because the node or a guest uses one of its VFs, which would lose its link; empty if not."""
    for vf in vfs:
        if vf["driver"] in USER_SPACE or (vf["driver"] and vf["interfaces"] and _needed(vf, interfaces, lower)):
            return f"its VF {vf['address']} is in use: {_needed(vf, interfaces, lower)}"
    return ""
