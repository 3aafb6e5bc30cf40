# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""NICs that are divided among pods: which ones a site divides, and the device from which pods get their shares.

All rates are in bit/s.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from fractions import Fraction

from .selector import DeviceValues, Selector

#: A v1 Device or CounterSet, as the API has it.
Object = dict[str, t.Any]

VFS, MACVLAN = "vfs", "macvlan"
MECHANISMS = (VFS, MACVLAN)
PRIVATE, VEPA = "private", "vepa"
MODES = (PRIVATE, VEPA)
SHARE = "share"
SUFFIX = f"-{SHARE}"
#: The taint of a device for shares that pods still have, while the settings no longer divide the NIC.
WITHDRAWN = "lanewise.dev/withdrawn"
_SUFFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
#: Attributes of the NIC itself, which the device for shares does not have.
_NIC_ONLY = ("mac", "nodeGUID", "rdmaDevice", "totalVFs", "vfIndex")


@dataclass(frozen=True)
class ShareRule:
    """One entry of the setting `shares`: which NICs are divided, and how.

    `factor` multiplies the bandwidth of a NIC: with a factor above 1, more is promised than the NIC has. `minimum` is
    the setting `min`. `ceiling` and `bandwidth` are None for the speed of the link. `bandwidth` is the part of the NIC
    that is divided, or the NIC's speed if the kernel driver reports none. Only the pods of `namespace` may have shares;
    with `vfs` it may be empty, which means any namespace.
    """

    select: Selector
    mechanism: str = VFS
    namespace: str = ""
    mode: str = PRIVATE
    factor: Fraction = Fraction(1)
    step: int = 10**9
    minimum: int = 10**9
    default: int = 10**9
    ceiling: int | None = None
    bandwidth: int | None = None

    def physical(self, mbps: int | None) -> int | None:
        """The bandwidth that is divided, for a NIC whose link has this speed in Mbit/s; None if neither the link nor
        the setting determines it."""
        link = mbps * 10**6 if mbps and mbps > 0 else None
        known = [rate for rate in (link, self.bandwidth) if rate]
        return min(known) if known else None

    def share_ceiling(self, physical: int) -> int:
        """The bandwidth that one share may use while the others are idle, of a NIC with the bandwidth `physical`."""
        return min(physical, self.ceiling or physical)


@dataclass(frozen=True)
class Divided:
    """A NIC that is divided: the rule, its PCI address or else its interface, the speed of its link in Mbit/s, its
    link layer, and the PCI addresses of the VFs that shares can have."""

    rule: ShareRule
    place: str
    mbps: int | None
    link_layer: str | None = None
    vfs: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldShares:
    """The shares of one NIC that pods have: the device for shares as it was published when the last share was
    allocated, and the PCI addresses of the VFs of these shares. `less` returns the rate to subtract from the capacity
    under a factor (`share_rates.capacity_deficit`)."""

    device: Object
    vfs: frozenset[str] = frozenset()
    less: t.Callable[[Fraction], int] = lambda factor: 0


class Published(t.Protocol):
    """The fields of a `publish.Publication` that this module uses."""

    devices: list[Object]
    counter_sets: list[Object]
    addresses: dict[str, str]
    withheld: dict[str, str]
    interfaces: dict[str, str]
    shared: dict[str, Divided]


def rule_for(rules: t.Iterable[ShareRule], values: DeviceValues) -> ShareRule | None:
    """The first rule that matches a PF or an interface without a PCI function. Virtual functions are never divided."""
    if values["type"] == "vf":
        return None
    return next((rule for rule in rules if rule.select.matches(values)), None)


def share_name(device: str) -> str:
    """The name of the device for the shares of a device."""
    return f"{device}{SUFFIX}"


def base_name(device: str) -> str:
    """The name of the device that is divided, from the name of the device for its shares."""
    return device[: -len(SUFFIX)] if device.endswith(SUFFIX) else device


def factor_text(factor: Fraction) -> str:
    """A factor as an attribute: `1`, `1.5`, `1.25`."""
    whole, part = divmod(round(factor * 100), 100)
    return f"{whole}.{part:02d}".rstrip("0").rstrip(".")


def quantity(rate: int) -> str:
    """A rate as the API writes it: `400G`, `2500M`."""
    power = max((power for power in _SUFFIXES if rate and rate % 10**power == 0), default=0)
    return f"{rate // 10**power}{_SUFFIXES[power]}"


def refusal(rule: ShareRule, physical: int | None, link_layer: str | None, vfs: int) -> str:
    """Why a NIC cannot be divided; empty if it can. `vfs` is the number of VFs that shares can get."""
    if link_layer == "infiniband":
        return "it is InfiniBand, where the rate of a VF cannot be limited"
    if physical is None:
        return "the speed of its link is unknown; set bandwidth in its entry of the setting shares"
    if rule.mechanism == VFS and not vfs:
        return "it has no VF that a share could get"
    if rule.minimum + rule.step > physical * rule.factor:
        return f"it has {quantity(physical)}bit/s, less than min and step of its entry of the setting shares"
    return ""


def share_device(base: Object, rule: ShareRule, physical: int, vfs: int, less: int = 0) -> Object:
    """The v1 Device for shares of the device `base`, without counters.

    `less` is subtracted from the capacity, because hard shares that were allocated under a lower factor have consumed
    less capacity than they use now. `vfs` is as for `refusal`.
    """
    name = share_name(base["name"])
    attributes = {key: value for key, value in base.get("attributes", {}).items() if key not in _NIC_ONLY}
    attributes["type"] = {"string": SHARE}
    attributes["mechanism"] = {"string": rule.mechanism}
    attributes["shareFactor"] = {"string": factor_text(rule.factor)}
    if rule.namespace:
        attributes["shareNamespace"] = {"string": rule.namespace}
    if rule.mechanism == MACVLAN:
        attributes["rdma"] = {"bool": False}
    whole = max(int(physical * rule.factor) - less, rule.minimum + rule.step)
    span = {"min": quantity(rule.minimum), "step": quantity(rule.step)}
    policy = {"default": quantity(rule.default), "validRange": span}
    capacity: Object = {"bandwidth": {"value": quantity(whole), "requestPolicy": policy}}
    if rule.mechanism == VFS:
        capacity["vfs"] = {"value": str(vfs), "requestPolicy": {"default": "1", "validValues": ["1"]}}
    device = {"name": name, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": True}
    if base.get("taints"):
        device["taints"] = [dict(taint) for taint in base["taints"]]
    return device


def withdrawn(held: Object, base: Object) -> Object:
    """The device for shares that pods still have, if the NIC cannot be divided now: the link is down, or the settings
    no longer divide it. `base` is the NIC's own device."""
    remaining = {key: value for key, value in held.items() if key not in ("consumesCounters", "taints")}
    return {**remaining, "taints": base.get("taints") or [{"key": WITHDRAWN, "effect": "NoSchedule"}]}


def add(result: Published, divided: t.Mapping[str, Divided], held: t.Mapping[str, HeldShares], counter: str) -> None:
    """Add the devices for shares to a publication: for each NIC in `divided` (by the name of the NIC's device), and for
    each NIC whose shares pods still have (`held`, by the name of the device for shares). If a NIC in `divided` cannot
    be divided, the reason is added instead."""
    devices = []
    for base in result.devices:
        devices.append(base)
        name = share_name(base["name"])
        nic, shares = divided.get(base["name"]), held.get(name)
        device = _device(result, base, nic, shares) if nic else None
        if device is None and shares:
            device = withdrawn(shares.device, base)
        if device is None:
            continue
        devices.append(device)
        for locations in (result.addresses, result.interfaces):
            if base["name"] in locations:
                locations[name] = locations[base["name"]]
        if nic:
            result.shared[name] = nic
        _exclude(result, base, device, counter)
    result.devices[:] = devices


def _device(result: Published, base: Object, nic: Divided, shares: HeldShares | None) -> Object | None:
    """The device for shares of a NIC; None if it cannot be divided. The reason is recorded unless pods have shares."""
    # while a pod has the whole NIC, the speed of the link is that in the NIC's own device
    mbps = nic.mbps or base.get("attributes", {}).get("linkSpeedMbps", {}).get("int")
    physical = nic.rule.physical(mbps)
    reason = refusal(nic.rule, physical, nic.link_layer, len(nic.vfs))
    if reason or physical is None:
        if not shares:
            result.withheld[share_name(nic.place)] = f"no shares: {reason}"
        return None
    return share_device(base, nic.rule, physical, len(nic.vfs), shares.less(nic.rule.factor) if shares else 0)


def _exclude(result: Published, base: Object, device: Object, counter: str) -> None:
    """Let a NIC's own device and the one for its shares each consume all of the same counters, so that they exclude
    each other."""
    sets = {counter_set["name"]: counter_set for counter_set in result.counter_sets}
    if base["name"] not in sets:
        result.counter_sets.append({"name": base["name"], "counters": {counter: {"value": "1"}}})
        amount = "1"
    else:
        amount = sets[base["name"]]["counters"][counter]["value"]
    for consumer in (base, device):
        consumer["consumesCounters"] = [{"counterSet": base["name"], "counters": {counter: {"value": amount}}}]
