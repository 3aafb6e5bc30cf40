# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The kernel's arguments now and at the next boot (Documentation/admin-guide/kernel-parameters.rst)."""

from __future__ import annotations

import re
import typing as t

from ..access.boot_loader import BootLoader, find_boot_loader, why_unsupported
from ..access.command_line import Arguments, equal, key, matches, split
from ..access.system import HostError, System
from ..engine.change import NODE, Change, Plan, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource

_SETTINGS = ("kernel_args", "kernel_args_absent", "iommu")
_COMMAND_LINES = "command lines of the next boot"
#: Arguments that every boot loader's configuration supports.
_PORTABLE = re.compile(r"^[A-Za-z0-9_.,:;=/@+*%\[\]{}()!?~^|&<>-]+$", re.ASCII)
#: Arguments that decide what is booted. They are never changed, as a wrong value could keep the node from booting.
_PROTECTED = ("root", "BOOT_IMAGE", "initrd", "init", "ostree", "rd.luks.uuid", "rd.lvm.lv", "resume")


class KernelArgs(Resource):
    """`kernel_args`, `kernel_args_absent` and `iommu` of the node, as one setting.

    The value is the site's part of the next boot's command line: the recorded arguments, or only some of them if
    another program has changed the command line.
    """

    name = "kernel_args"
    recorded_in = ("/boot",)
    boot = False

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._loader: BootLoader | None = None
        self._searched = False
        self._before: object = None  # the value that the last plan would change

    def _boot_loader(self) -> BootLoader | None:
        if not self._searched:
            self._loader, self._searched = find_boot_loader(self.system), True
        return self._loader

    def running(self) -> list[str]:
        """The arguments of the running kernel."""
        return split(self.system.text("/proc/cmdline") or "")

    def wanted(self, node: Node) -> State:
        if all(node.general.get(name) is None for name in _SETTINGS):
            return {}
        present = list(node.general.get("kernel_args") or [])
        for argument in _iommu(self.system, node.general.get("iommu")) or []:
            if not any(key(argument) == key(other) for other in present):
                present.append(argument)
        return {NODE: {"kernel_args": _value(present, node.general.get("kernel_args_absent") or [])}}

    def read(self, node: Node, wanted: State) -> State:
        loader = self._boot_loader()
        if loader is None:  # without a known boot loader only the running kernel's arguments are known
            site = _arguments(wanted[NODE]["kernel_args"])
            lines, absent = [self.running()], list(site.absent)
        else:
            site = loader.recorded_arguments()
            lines, absent = loader.lines(), list(site.absent)
        for line in lines:
            relevant = site.relevant(line)
            if relevant != site.ordered():
                still_absent = [item for item in absent if not any(matches(item, argument) for argument in line)]
                still_present = [argument for argument in relevant if argument in site.present]
                if still_present == list(site.present) and still_absent == absent:
                    still_present = []  # all are present, but there are others with the same name
                return {NODE: {"kernel_args": _value(still_present, still_absent)}}
        return {NODE: {"kernel_args": _value(site.present, absent)}}

    def check(self, node: Node, change: Change) -> Refusal | None:
        wanted = _arguments(change.after)
        for argument in (*wanted.present, *wanted.absent):
            if not _PORTABLE.match(argument) or not key(argument):
                fix = "write arguments with blanks, quotes, $, # or backslashes to the boot loader's own configuration"
                return Refusal(
                    NODE, change.setting, f"{argument!r} is not an argument that every boot loader supports", fix
                )
            if key(argument) in _PROTECTED:
                return Refusal(
                    NODE, change.setting, f"{argument}: the node would not boot with another {key(argument)}"
                )
        for argument in wanted.present:
            if any(matches(item, argument) for item in wanted.absent):
                return Refusal(
                    NODE,
                    change.setting,
                    f"{argument} is set by kernel_args or iommu, but removed by kernel_args_absent",
                )
        iommu = node.general.get("iommu")
        if iommu is not None and _iommu(self.system, iommu) is None:
            fix = "set the arguments in kernel_args"
            if _processor_family(self.system) == "arm64":
                fix = "use iommu: passthrough, with which accesses of devices are not translated either"
            return Refusal(NODE, "iommu", f"no argument is known for {iommu} on this processor", fix)
        loader = self._boot_loader()
        if loader is None:
            missing = ", ".join(_difference(wanted, self.running()))
            reason, fix = why_unsupported(self.system)
            return Refusal(NODE, change.setting, f"its running kernel differs ({missing}), and {reason}", fix)
        reason, fix = loader.conflict(wanted)
        return Refusal(NODE, change.setting, reason, fix) if reason else None

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource, but arguments that were not in effect after a reboot are refused."""
        wanted = self.wanted(node) if wanted is None else wanted
        plan = super().plan(node, wanted)
        self._before = next((change.before for change in plan.changes), None)
        loader = self._boot_loader() if wanted else None
        if loader is None or plan.changes or plan.refusals:
            return plan
        missing = _difference(_arguments(wanted[NODE]["kernel_args"]), self.running())
        if missing and loader.booted_since():
            plan.reboot.clear()
            message = (
                f"{loader.name} has the arguments, and the node was rebooted since, but the running kernel's arguments "
                f"differ: {', '.join(missing)}"
            )
            fix = "check in /proc/cmdline which entry was booted, and whether by kexec, PXE or another boot loader"
            plan.refusals.append(Refusal(NODE, "kernel_args", message, fix))
        return plan

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        missing = _difference(_arguments(wanted[NODE]["kernel_args"]), self.running())
        return [f"kernel arguments change at the next boot: {', '.join(missing)}"] if missing else []

    def after_reboot(self, change: Change) -> str:
        running = self.running()
        removed = [
            argument for argument in (change.before or {}).get("present", []) if argument not in change.after["present"]
        ]
        removed = [argument for argument in removed if any(equal(argument, other) for other in running)]
        return f"kernel arguments are removed at the next boot: {', '.join(removed)}" if removed else ""

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        """The next boot's command lines. A failed change may alter them although the site's part of them, which `read`
        returns, is as before."""
        loader = self._boot_loader()
        return {_COMMAND_LINES: list(dict.fromkeys(map(" ".join, loader.lines())))} if loader else {}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        loader = self._boot_loader()
        if loader:
            loader.restore()

    def apply(self, node: Node, change: Change) -> None:
        loader = self._boot_loader()
        if loader is None:
            raise HostError("set the kernel arguments", *why_unsupported(self.system))
        wanted = _arguments(change.after)
        if change.after == self._before and loader.changed:
            loader.restore()
        else:
            loader.change(wanted if wanted.present or wanted.absent else None)


def _value(present: t.Iterable[str], absent: t.Iterable[str]) -> dict[str, list[str]]:
    return {"present": list(present), "absent": list(absent)}


def _arguments(setting: object) -> Arguments:
    lists = t.cast("dict[str, list[str]]", setting)
    return Arguments(tuple(lists["present"]), tuple(lists["absent"]))


def _difference(wanted: Arguments, arguments: t.Sequence[str]) -> list[str]:
    """The arguments that a list lacks (`+x`) or must not have (`-x`)."""
    relevant = wanted.relevant(arguments)
    if relevant == wanted.ordered():
        return []
    missing = [f"+{argument}" for argument in wanted.present if argument not in relevant]
    extra = [f"-{argument}" for argument in relevant if argument not in wanted.present]
    return missing + extra or [f"order of {' '.join(wanted.ordered())}"]


def _processor_family(system: System) -> str:
    """`intel`, `amd` or `arm64`; empty for other processors."""
    for line in (system.content("/proc/cpuinfo") or "").splitlines():
        name, _colon, value = line.partition(":")
        if name.strip() == "vendor_id":
            return {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}.get(value.strip(), "")
        if name.strip() == "CPU implementer":
            return "arm64"
    return ""


def _iommu(system: System, mode: str | None) -> list[str] | None:
    """The arguments for a value of `iommu`; None if the processor has none.

    AMD's and arm64's IOMMUs are on by default; Intel's depend on the distribution. No argument disables all of arm64's.
    """
    if mode is None:
        return []
    return {
        ("intel", "passthrough"): ["intel_iommu=on", "iommu=pt"],
        ("intel", "translate"): ["intel_iommu=on", "iommu=nopt"],
        ("intel", "off"): ["intel_iommu=off"],
        ("amd", "passthrough"): ["iommu=pt"],
        ("amd", "translate"): ["iommu=nopt"],
        ("amd", "off"): ["amd_iommu=off"],
        ("arm64", "passthrough"): ["iommu.passthrough=1"],
        ("arm64", "translate"): ["iommu.passthrough=0"],
    }.get((_processor_family(system), mode))
