# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""CPU frequency and idle states (Documentation/admin-guide/pm/cpufreq.rst, cpuidle.rst)."""

from __future__ import annotations

import re
import typing as t

from ..access.system import System
from ..engine.change import NODE, Change, Plan, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

_CPU = "/sys/devices/system/cpu"
_POLICIES = f"{_CPU}/cpufreq"
_FILES = {"cpu_governor": "scaling_governor", "cpu_energy_preference": "energy_performance_preference"}
_AVAILABLE_VALUES = {
    "cpu_governor": "scaling_available_governors",
    "cpu_energy_preference": "energy_performance_available_preferences",
}
#: A preference on the processor's own scale, 0 to 255.
_RAW_PREFERENCE = re.compile(r"[0-9]{1,2}|1[0-9]{2}|2[0-4][0-9]|25[0-5]")

#: The names that intel_pstate shows for numbers (HWP_EPP_* in arch/x86/include/asm/msr-index.h).
_NAMES = {"0": "performance", "128": "balance_performance", "192": "balance_power", "255": "power"}


class Cpu(Resource):
    """`cpu_governor`, `cpu_energy_preference` and `cpu_idle_max_latency_us` of the node.

    A value is a string if it is the same for all processors, otherwise a mapping of processors to values.
    """

    name = "cpu"
    recorded_in = ("/sys/devices/system/cpu/cpufreq",)
    first_settings = ("cpu_governor",)  # it decides which preferences are available

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._planned_governor: object = None

    def wanted(self, node: Node) -> State:
        requested: t.Mapping[str, object] = node.general
        settings = {name: requested[name] for name in _FILES if requested.get(name) is not None}
        limit = node.general.get("cpu_idle_max_latency_us")
        if limit is not None:
            for state, latency in self._idle_states().items():
                settings[f"idle state {state}"] = "on" if latency <= limit else "off"
        return {NODE: settings} if settings else {}

    def _idle_states(self) -> dict[str, int]:
        """The idle states of the first processor that has any, by name, with their exit latencies in microseconds."""
        for cpu in self._cpus():
            latencies = {}
            for state in self.system.names(f"{_CPU}/{cpu}/cpuidle"):
                name = self.system.text(f"{_CPU}/{cpu}/cpuidle/{state}/name")
                latency = self.system.integer(f"{_CPU}/{cpu}/cpuidle/{state}/latency")
                if name and latency is not None:
                    latencies[name] = latency
            if latencies:
                return latencies
        return {}

    def _cpus(self) -> list[str]:
        return [name for name in self.system.names(_CPU) if re.match(r"^cpu\d+$", name, re.ASCII)]

    def _paths(self, setting: str) -> dict[str, str]:
        """The file of each processor or policy for a setting. The files of a policy whose processors are all offline
        cannot be read; it is left out."""
        if setting in _FILES:
            paths = {
                name: f"{_POLICIES}/{name}/{_FILES[setting]}"
                for name in self.system.names(_POLICIES)
                if re.match(r"^policy\d+$", name, re.ASCII)
            }
            return {name: path for name, path in paths.items() if self.system.text(path) is not None}
        state_name = setting[len("idle state ") :]
        paths = {}
        for cpu in self._cpus():
            for state in self.system.names(f"{_CPU}/{cpu}/cpuidle"):
                if self.system.text(f"{_CPU}/{cpu}/cpuidle/{state}/name") == state_name:
                    paths[cpu] = f"{_CPU}/{cpu}/cpuidle/{state}/disable"
        return paths

    def read(self, node: Node, wanted: State) -> State:
        current: dict[str, object] = {}
        for setting in wanted.get(NODE, {}):
            values = {name: self.system.text(path) for name, path in self._paths(setting).items()}
            if setting not in _FILES:
                values = {name: "off" if value == "1" else "on" for name, value in values.items()}
            distinct = set(values.values())
            current[setting] = values if len(distinct) > 1 else next(iter(distinct), None)
        return {NODE: current}

    def same(self, setting: str, before: object, after: object) -> bool:
        """As for other resources; intel_pstate also shows some numbers of preferences as names."""
        return before == after or (setting == "cpu_energy_preference" and before == _NAMES.get(str(after), after))

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        settings: t.Mapping[str, object] = node.general if wanted is None else wanted.get(NODE, {})
        self._planned_governor = settings.get("cpu_governor")
        return super().plan(node, wanted)

    def check(self, node: Node, change: Change) -> Refusal | None:
        if change.before is None and change.setting == "cpu_energy_preference" and self._governor() is not None:
            message = "the frequency driver has no energy preferences"
            return Refusal(NODE, change.setting, message, "leave it out: cpu_governor works here")
        if change.before is None:
            fix = "set it in the firmware setup, or in the hypervisor"
            return Refusal(NODE, change.setting, "the kernel does not control this processor's power", fix)
        if change.setting not in _FILES:
            return None
        for path in self._paths(change.setting).values():
            folder = path.rpartition("/")[0]
            offered = (self.system.text(f"{folder}/{_AVAILABLE_VALUES[change.setting]}") or "").split()
            for value in change.after.values() if isinstance(change.after, dict) else (change.after,):
                if change.setting == "cpu_energy_preference" and _RAW_PREFERENCE.fullmatch(str(value)):
                    continue
                if value not in offered:
                    return Refusal(
                        NODE, change.setting, f"{value} is not available here", f"use one of {', '.join(offered)}"
                    )
        governor = self._planned_governor or self._governor()
        if change.setting == "cpu_energy_preference" and governor == "performance" and self._in_active_mode():
            if change.after not in ("performance", "0", 0):
                fix = "leave it out, or choose the governor powersave, which follows the load here"
                message = "with the governor performance the driver accepts only the preference performance"
                return Refusal(NODE, change.setting, message, fix)
        return None

    def _governor(self) -> str | None:
        """The current governor of the first policy."""
        return next((self.system.text(path) for path in self._paths("cpu_governor").values()), None)

    def _in_active_mode(self) -> bool:
        """Whether the frequency driver is intel_pstate or amd_pstate in its active mode."""
        return any(self.system.text(f"{_CPU}/{driver}/status") == "active" for driver in ("intel_pstate", "amd_pstate"))

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting} to {change.after}"
        for name, path in self._paths(change.setting).items():
            value = change.after.get(name) if isinstance(change.after, dict) else change.after
            if value is None:
                continue
            if change.setting not in _FILES:
                value = "1" if value == "off" else "0"
            if self.system.text(path) != str(value):
                self.system.write(path, str(value), step)
