# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The node whose configuration is changed: its devices, what the site wants of each, and what must not be touched."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field, replace

from ...topology.model import as_dict
from ...topology.probe import probe
from ...topology.selector import NEAR, NUMBERS, TEXTS, Selector, values_of, values_of_interface
from ..access.management import management_interfaces
from ..access.system import HostError, System
from ..access.usage import as_published, users
from .resource import NODE, Change, Refusal

Settings = dict[str, t.Any]


@dataclass(frozen=True)
class Device:
    """A PF, a VF, or an interface without a PCI function. C(key) is its PCI address, else its name."""

    key: str
    address: str | None
    interfaces: tuple[str, ...]
    rdma_devices: tuple[str, ...] = ()
    driver: str | None = None
    vendor_id: str | None = None
    device_id: str | None = None
    model: str | None = None
    link_layer: str | None = None
    numa_node: int | None = None
    physfn: str | None = None
    total_vfs: int | None = None
    vfs: tuple[str, ...] = ()

    @property
    def interface(self) -> str:
        """The one interface. Raises HostError where there is none, or more than one."""
        if len(self.interfaces) == 1:
            return self.interfaces[0]
        if self.interfaces:
            raise HostError(f"choose the interface of {self.key}", f"it has several: {', '.join(self.interfaces)}")
        step = f"find the interface of {self.key}"
        raise HostError(step, "it has none here", "is a driver bound, or is it in a container's namespace?")

    def __str__(self) -> str:
        names = ", ".join(self.interfaces)
        return f"{self.key} ({names})" if names and names != self.key else self.key


@dataclass(frozen=True)
class Rule:
    """Settings for the NICs that a selector chooses. C(count) is how many it must find, C(at_least) the fewest.

    C(fast) are PFs, by address, that are known to have the selector's rate, and their VFs with them: at a boot no link
    is up yet, and the kernel tells no rate (speed_show in net/core/net-sysfs.c).
    """

    name: str
    select: Selector
    settings: Settings = field(default_factory=dict)
    count: int | None = None
    at_least: int | None = None
    fast: tuple[str, ...] = ()


class Unfit(ValueError):
    """What the site wants does not fit the node; C(problems) are all the reasons."""

    def __init__(self, problems: t.Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def selector(values: t.Mapping[str, t.Any]) -> Selector:
    """A selector from a mapping of its fields, each a value or a list. Raises Unfit."""
    found: dict[str, t.Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key in TEXTS or key in NUMBERS:
            found[key] = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        elif key in ("min_speed_mbps", "near_gpu"):
            if key == "near_gpu" and value not in NEAR:
                raise Unfit([f"near_gpu must be one of {', '.join(NEAR)}, not {value!r}"])
            found[key] = value
        else:
            raise Unfit([f"{key} is not known in a selector"])
    return Selector(**found)


class Node:
    """One node: its C(devices) by key, and the merged C(settings) of those that rules choose.

    C(general) are the settings of the node itself. Where several rules choose a device, a later one replaces what an
    earlier one says, mapping by mapping, and takes away what it gives as None. C(idle) are the rules that choose
    nothing, each with what may be meant. A NIC whose interface is in another network namespace counts for a rule, and
    has no settings: C(left_alone) tells who has it. With C(only), no device but that has settings. Raises Unfit where a
    rule finds fewer or more NICs than it says, or finds none as its model or driver is not written whole.
    """

    def __init__(
        self,
        system: System,
        rules: t.Sequence[Rule] = (),
        general: Settings | None = None,
        allow_management: bool = False,
        connection: str = "",
        only: str = "",
    ) -> None:
        self.system = system
        self.rules = rules
        self.general = general or {}
        self.allow_management = allow_management
        self._connection = connection
        self._only = only
        self._management: dict[str, str] | None = None
        self.left_alone: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the devices again, as after VFs were made. The settings go with the device that they were for."""
        topology = probe(self.system.reader.root, with_vpd=False, with_gids=False)
        self.facts: dict[str, t.Any] = as_dict(topology)
        self.devices = {device.key: device for device in _devices(self.facts)}
        self.settings = self._choose()

    def _choose(self) -> dict[str, Settings]:
        values = {nic["address"]: values_of(nic, self.facts) for nic in self.facts["nics"]}
        for entry in self.facts["interfaces"]:
            if entry["address"] is None:
                values[entry["name"]] = values_of_interface(entry)
        elsewhere = {nic["address"] for nic in self.facts["nics"] if nic["elsewhere"]}
        published = {key: as_published(self.system, key) for key in elsewhere} if self.rules else {}
        for key, more in published.items():
            values[key].update(more)
        unseen = {key for key, more in published.items() if not more}
        rates = {key: one["speed_mbps"] or 0 for key, one in values.items() if one["type"] == "pf"}
        self._rates = {key: math.inf if key in unseen else rate for key, rate in rates.items()}
        chosen: dict[str, Settings] = {}
        problems = []
        self.idle: dict[str, str] = {}
        for rule in self.rules:
            # what nobody can tell of a NIC while a container has it does not make the NIC a missing one
            blind = replace(rule.select, interface=(), link_layer=(), min_speed_mbps=None)
            found = [
                key for key, one in values.items() if _chooses(blind if key in unseen else self._select(rule, key), one)
            ]
            wrong = rule.count is not None and len(found) != rule.count
            if wrong or len(found) < (rule.at_least or 0):
                wanted = rule.count if wrong else f"at least {rule.at_least}"
                which = ": " + ", ".join(str(self.devices[key]) for key in found) if found else ""
                problems.append(f"{rule.name}: chooses {len(found)} NICs of this node, not {wanted}{which}")
            if not found:
                part = _part_of_a_name(rule.select, values.values())
                if part:
                    problems.append(f"{rule.name}: chooses no NIC of this node: {part}")
                elif not wrong:
                    self.idle[rule.name] = _of_another_type(rule.select, values.values())
            for key in found:
                chosen[key] = merged(chosen.get(key, {}), rule.settings)
        if problems:
            raise Unfit(problems)
        self.left_alone = {key: users(self.system, key) for key in sorted(chosen.keys() & elsewhere)}
        elsewhere |= {key for key in chosen if self._only and key != self._only}
        return {key: settings for key, settings in chosen.items() if key not in elsewhere}

    def _select(self, rule: Rule, key: str) -> Selector:
        known = {key, getattr(self.devices.get(key), "physfn", None)}.intersection(rule.fast)
        return replace(rule.select, min_speed_mbps=None) if known else rule.select

    def fast(self, rule: Rule) -> tuple[str, ...]:
        """The PFs that have the rate which a rule's selector asks for, if it asks for one; for L(Rule.fast,)."""
        least = rule.select.min_speed_mbps
        return tuple(sorted(key for key, rate in self._rates.items() if rate >= least)) if least else ()

    @property
    def management(self) -> dict[str, str]:
        """Interfaces that the node is reached by, and why; read when first asked for. Raises HostError."""
        if self._management is None and self.system.live:
            self._management = management_interfaces(self.system, self._connection)
        elif self._management is None:  # of a recorded tree only the default route is known
            names = {name for nic in self.facts["nics"] if nic["default_route"] for name in nic["interfaces"]}
            names.update(entry["name"] for entry in self.facts["interfaces"] if entry["default_route"])
            self._management = dict.fromkeys(names, "it carries the default route")
        return self._management

    def device(self, name: str) -> Device:
        """The device that a change is of; of C(ADDRESS vf NUMBER) its PF. Raises HostError where it has gone."""
        key = name.partition(" ")[0]
        if key not in self.devices:
            raise HostError(f"find {key}", "the node no longer shows it", "look at 'dmesg', then run again")
        return self.devices[key]

    def reached_by(self, change: Change) -> str:
        """The interface, with the reason, that a change touches and the node is reached by; empty where there is none.

        What happens to a PF happens to its VFs. Raises HostError.
        """
        if change.device == NODE:
            return ""
        device = self.device(change.device)
        own = set(device.interfaces)
        if " vf " not in change.device:
            own.update(name for vf in device.vfs if vf in self.devices for name in self.devices[vf].interfaces)
        return next((f"{name}: {self.management[name]}" for name in sorted(own) if name in self.management), "")

    def protects(self, change: Change) -> Refusal | None:
        """Why a change must not be made because of what the node is reached by. Raises HostError."""
        found = "" if self.allow_management else self.reached_by(change)
        if not found:
            return None
        fix = "exclude it in the selector, or set allow_management with a second way to the node at hand"
        return Refusal(change.device, change.setting, f"not changed to {change.after}: {found}", fix)


def _chooses(select: Selector, values: t.Mapping[str, t.Any]) -> bool:
    """VFs and interfaces without a PCI function are meant only where the selector names their type."""
    return select.matches(values) and (values["type"] == "pf" or bool(select.type) or bool(select.address))


def _part_of_a_name(select: Selector, values: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """Which part of a name was given for the whole, where a selector chooses nothing because of that."""
    wider: dict[str, t.Any] = {}
    parts = []
    for name in ("model", "driver"):
        given = getattr(select, name)
        plain = [one for one in given if not set("*?[") & set(one)]
        if plain:
            wider[name] = tuple(f"*{one}*" if one in plain else one for one in given)
            parts += [f"{name} {one!r} is compared with the whole name: write '*{one}*'" for one in plain]
    if not parts or not any(_chooses(replace(select, **wider), one) for one in values):
        return ""
    return " and ".join(parts)


def _of_another_type(select: Selector, values: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """What a selector would choose if it named a type, as the end of a sentence; empty for nothing."""
    if select.type or select.address:
        return ""
    kinds = sorted({str(one["type"]) for one in values if select.matches(one)})
    return f"without type it chooses PFs only, and it fits others: say type: [{', '.join(kinds)}]" if kinds else ""


def merged(base: Settings, more: t.Mapping[str, t.Any]) -> Settings:
    """C(base) with what C(more) says; mappings are merged, None takes away, and all else is replaced."""
    result = overlaid(base, more)
    return {key: merged({}, one) if isinstance(one, dict) else one for key, one in result.items() if one is not None}


def overlaid(base: Settings, more: t.Mapping[str, t.Any]) -> Settings:
    """The same, where None stays: it is to take away what is still to come below."""
    result = dict(base)
    for key, value in more.items():
        if isinstance(value, dict):
            result[key] = overlaid(result[key] if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = value
    return result


def _devices(facts: dict[str, t.Any]) -> t.Iterator[Device]:
    for nic in facts["nics"]:
        function = facts["functions"][nic["address"]]
        sriov = function["sriov"] or {}
        yield Device(
            key=nic["address"],
            address=nic["address"],
            interfaces=tuple(nic["interfaces"]),
            rdma_devices=tuple(nic["rdma_devices"]),
            driver=nic["driver"],
            vendor_id=function["vendor_id"],
            device_id=function["device_id"],
            model=nic["model"],
            link_layer=nic["link_layer"],
            numa_node=nic["numa_node"],
            physfn=nic["physfn"],
            total_vfs=sriov.get("total_vfs"),
            vfs=tuple(sriov.get("vfs") or ()),
        )
    for entry in facts["interfaces"]:
        if entry["address"] is None and entry["kind"] != "loopback":
            rdma = [one["name"] for one in facts["rdma_devices"] if entry["name"] in one["interfaces"]]
            yield Device(
                key=entry["name"],
                address=None,
                interfaces=(entry["name"],),
                rdma_devices=tuple(rdma),
                link_layer=entry["link_layer"],
            )
