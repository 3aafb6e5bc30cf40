# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The node whose configuration is changed: its devices, their wanted settings, and its protected interfaces."""

from __future__ import annotations

import math
import typing as t

from ...topology.model import as_dict
from ...topology.probe import probe
from ...topology.selector import values_of, values_of_interface
from ..access.management import management_interfaces
from ..access.system import HostError, System
from ..access.usage import as_published, users
from .change import NODE, Change, Refusal, shown
from .device import Device, devices_of
from .rules import Candidate, Rule, choose
from .settings import NicSettings, NodeSettings

if t.TYPE_CHECKING:
    from ...topology.facts import NodeFacts
    from ...topology.selector import DeviceValues


class Node:
    """One node: its `devices` by key, and the merged `settings` of those that rules choose.

    `general` are the settings of the node itself. If several rules choose a device, their mappings are merged: values
    of a later rule override, and None removes a setting. `idle` are the rules that choose nothing, each with a hint,
    which may be empty. A NIC whose interface is in another network namespace counts for a rule, but gets no settings;
    `left_alone` says what uses the NIC. With `only`, no other device has settings.

    Raises Unfit if a rule chooses fewer or more NICs than it states, or none because its selector contains only part of
    a model's or driver's name.
    """

    def __init__(
        self,
        system: System,
        rules: t.Sequence[Rule] = (),
        general: NodeSettings | None = None,
        allow_management: bool = False,
        connection: str = "",
        only: str = "",
    ) -> None:
        self.system = system
        self.rules = rules
        self.general: NodeSettings = general or {}
        self.allow_management = allow_management
        self._connection = connection
        self._only = only
        self._management: dict[str, str] | None = None
        self.left_alone: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the devices again, for example after VFs were created. Each device keeps its settings."""
        topology = probe(self.system.reader.root, with_vpd=False, with_gids=False)
        self.facts: NodeFacts = as_dict(topology)
        self.devices = {device.key: device for device in devices_of(self.facts)}
        self.settings = self._choose()

    def _choose(self) -> dict[str, NicSettings]:
        """The settings of the devices that rules choose; also sets `idle`, `left_alone` and the rates."""
        values = {nic["address"]: values_of(nic, self.facts) for nic in self.facts["nics"]}
        for entry in self.facts["interfaces"]:
            if entry["address"] is None:
                values[entry["name"]] = values_of_interface(entry)
        elsewhere = {nic["address"] for nic in self.facts["nics"] if nic["elsewhere"]}
        # while a pod has a NIC, the claim's record has the values that the driver published
        published = {key: as_published(self.system, key) for key in elsewhere} if self.rules else {}
        for key, record in published.items():
            values[key].update(t.cast("DeviceValues", record))
        invisible = {key for key, record in published.items() if not record}
        rates = {
            key: device_values["speed_mbps"] or 0
            for key, device_values in values.items()
            if device_values["type"] == "pf"
        }
        self._rates = {key: math.inf if key in invisible else rate for key, rate in rates.items()}
        candidates = {
            key: Candidate(self.devices[key], device_values, key not in invisible)
            for key, device_values in values.items()
            if key in self.devices
        }
        chosen, self.idle = choose(self.rules, candidates)
        self.left_alone = {key: users(self.system, key) for key in sorted(chosen.keys() & elsewhere)}
        excluded = elsewhere | {key for key in chosen if self._only and key != self._only}
        return {key: settings for key, settings in chosen.items() if key not in excluded}

    def fast_pfs(self, rule: Rule) -> tuple[str, ...]:
        """The PFs with the rate that a rule's selector requires, for `Rule.fast`; empty if it requires none."""
        min_rate = rule.select.min_speed_mbps
        return tuple(sorted(key for key, rate in self._rates.items() if rate >= min_rate)) if min_rate else ()

    @property
    def management(self) -> dict[str, str]:
        """Interfaces that are needed to reach the node, and why; read when first used. Raises HostError."""
        if self._management is None and self.system.live:
            self._management = management_interfaces(self.system, self._connection)
        elif self._management is None:  # a recorded tree only shows the default route
            names = {name for nic in self.facts["nics"] if nic["default_route"] for name in nic["interfaces"]}
            names.update(entry["name"] for entry in self.facts["interfaces"] if entry["default_route"])
            self._management = dict.fromkeys(names, "it carries the default route")
        return self._management

    def device(self, name: str) -> Device:
        """The device of a change; for `ADDRESS vf NUMBER` the PF. Raises HostError if it no longer exists."""
        key = name.partition(" ")[0]
        if key not in self.devices:
            raise HostError(f"find {key}", "it no longer exists", "look at 'dmesg', then run again")
        return self.devices[key]

    def management_interface(self, change: Change) -> str:
        """An interface that a change affects and that is needed to reach the node, with the reason; empty if none is.

        A change of a PF affects its VFs. Raises HostError.
        """
        if change.device == NODE:
            return ""
        device = self.device(change.device)
        affected = set(device.interfaces)
        if " vf " not in change.device:
            affected.update(name for vf in device.vfs if vf in self.devices for name in self.devices[vf].interfaces)
        return next((f"{name}: {self.management[name]}" for name in sorted(affected) if name in self.management), "")

    def management_refusal(self, change: Change) -> Refusal | None:
        """The refusal of a change that could make the node unreachable. Raises HostError."""
        reason = "" if self.allow_management else self.management_interface(change)
        if not reason:
            return None
        fix = "exclude it in the selector, or set allow_management with a second way to reach the node"
        return Refusal(change.device, change.setting, f"not changed to {shown(change.after)}: {reason}", fix)
