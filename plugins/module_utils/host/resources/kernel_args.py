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
#: The arguments by processor and value of `iommu`. AMD's and arm64's IOMMUs are on by default; Intel's depend on the
#: distribution. No argument disables all of arm64's.
_IOMMU = {
    ("intel", "passthrough"): Arguments(("intel_iommu=on", "iommu=pt")),
    ("intel", "translate"): Arguments(("intel_iommu=on", "iommu=nopt")),
    ("intel", "off"): Arguments(("intel_iommu=off",)),
    ("amd", "passthrough"): Arguments(("iommu=pt",), ("amd_iommu=off",)),
    ("amd", "translate"): Arguments(("iommu=nopt",), ("amd_iommu=off",)),
    ("amd", "off"): Arguments(("amd_iommu=off",)),
    ("arm64", "passthrough"): Arguments(("iommu.passthrough=1",)),
    ("arm64", "translate"): Arguments(("iommu.passthrough=0",)),
}
#: The values of these arguments that set a mode. An argument may have other values, too, such as `sm_on`
#: (intel_iommu_setup, iommu_setup and parse_amd_iommu_options in the kernel).
_IOMMU_MODES = {"on", "off", "pt", "nopt", "0", "1"}
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
    side_effects_outlive_run = False  # only the run's own boot loader knows the files' content before the change

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
        absent = list(node.general.get("kernel_args_absent") or [])
        iommu = _iommu(self.system, node.general.get("iommu")) or Arguments()
        names = [key(argument) for argument in present]
        present += [argument for argument in iommu.present if key(argument) not in names]
        absent += [item for item in iommu.absent if item not in absent]
        return {NODE: {"kernel_args": _value(present, absent)}}

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
        """As for any resource, but arguments that contradict `iommu`, or had no effect after a reboot, are refused."""
        wanted = self.wanted(node) if wanted is None else wanted
        contradiction = self._contradiction(node) or self._contradiction_at_boot(node, wanted) if wanted else None
        if contradiction:
            return Plan(refusals=[contradiction])
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

    def _contradiction(self, node: Node) -> Refusal | None:
        """The refusal of an argument in `kernel_args` that sets another mode than `iommu`."""
        mode = node.general.get("iommu")
        iommu = _iommu(self.system, mode) or Arguments()
        for argument in (*iommu.present, *iommu.absent):
            same_name = [other for other in node.general.get("kernel_args") or [] if key(other) == key(argument)]
            values = {value for other in same_name for value in _comma_values(other)}
            names = " ".join(same_name)
            if argument in iommu.absent and _comma_values(argument) <= values:
                message = f"{names} is in kernel_args, but iommu: {mode} removes {argument}"
                return Refusal(NODE, "kernel_args", message, "remove one of them")
            if argument in iommu.present and same_name and values & _IOMMU_MODES != _comma_values(argument):
                message = f"{names} in kernel_args replaces {argument}, which iommu: {mode} needs"
                fix = f"remove one of them; for further values, write {argument},VALUE"
                return Refusal(NODE, "kernel_args", message, fix)
        return None

    def _contradiction_at_boot(self, node: Node, wanted: State) -> Refusal | None:
        """The refusal of `iommu` if another program sets an argument with several values, one of which contradicts it.

        The argument is not removed, as its other values may be wanted.
        """
        mode = node.general.get("iommu")
        if mode is None:
            return None
        loader = self._boot_loader()
        for line in loader.lines() if loader else [self.running()]:
            for argument in self._contradicting(node, _arguments(wanted[NODE]["kernel_args"]), line):
                path = "the running kernel's command line" if loader is None else loader.name
                message = f"{argument} in {path} contradicts iommu: {mode}"
                fix = f"set {key(argument)} in kernel_args, with the values that are still wanted, or remove it there"
                return Refusal(NODE, "iommu", message, fix)
        return None

    def _contradicting(self, node: Node, wanted: Arguments, line: t.Sequence[str]) -> list[str]:
        """The arguments with several values, one of which `iommu` removes; without those that `wanted` replaces."""
        iommu = _iommu(self.system, node.general.get("iommu")) or Arguments()
        return [
            argument
            for argument in line
            for item in iommu.absent
            if key(argument) == key(item)
            and _comma_values(item) < _comma_values(argument)
            and not wanted.removes(argument)
        ]

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        arguments = _arguments(wanted[NODE]["kernel_args"])
        missing = _difference(arguments, self.running())
        missing += [f"-{argument}" for argument in self._contradicting(node, arguments, self.running())]
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


def _iommu(system: System, mode: str | None) -> Arguments | None:
    """The arguments for a value of `iommu`; None if none are known for the processor."""
    return Arguments() if mode is None else _IOMMU.get((_processor_family(system), mode))


def _comma_values(argument: str) -> set[str]:
    """The values of an argument, which commas separate."""
    return set(argument.partition("=")[2].split(","))
