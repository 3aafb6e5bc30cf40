# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Kernel modules that are loaded, and their options (modules-load.d(5), modprobe.d(5))."""

from __future__ import annotations

import re
import typing as t

from ..access.system import HostError, System
from ..engine.change import NODE, Change, Plan, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

LOAD = "/etc/modules-load.d/lanewise.conf"
OPTIONS = "/etc/modprobe.d/lanewise.conf"
_HEADER = "# Written by the Ansible collection lanewise.dra, which owns this file.\n"
_NAME = re.compile(r"^[A-Za-z0-9_-]+$", re.ASCII)
_OPTION = re.compile(r"^[A-Za-z0-9_]+=[^\s\"'#\\]+$", re.ASCII)
_LOADED = "module {}"
_AT_BOOT = "module {} at boot"
_OF_MODULE = "options of module {}"
#: Where the resource `roce` creates a folder for each RDMA device.
_RDMA_CM_FOLDER = "/sys/kernel/config/rdma_cm"
_BOOLEANS = {"Y": "1", "N": "0", "y": "1", "n": "0"}
#: Commands that rebuild the initial RAM disk, for all kernels.
_BUILDERS = (
    ("/usr/sbin/update-initramfs", ["update-initramfs", "-u", "-k", "all"]),
    ("/usr/bin/dracut", ["dracut", "--force", "--regenerate-all"]),
    ("/usr/sbin/dracut", ["dracut", "--force", "--regenerate-all"]),
)


class KernelModules(Resource):
    """`kernel_modules`, a list of modules that are loaded now and at each boot, and `module_options`, a mapping of
    modules to `name=value ...`.

    A module reads its options when it is loaded. If it is already loaded with other options, a reboot is needed. The
    initial RAM disk is rebuilt, because modules may be loaded from it with the options that it contains.
    """

    name = "kernel_modules"
    recorded_in = ("/etc/modprobe.d",)
    boot = False

    def wanted(self, node: Node) -> State:
        modules, options = node.general.get("kernel_modules"), node.general.get("module_options")
        settings: dict[str, object] = {}
        if options is not None:  # before modules are loaded, as they read their options then
            stored = self._options()
            for module, text in options.items():
                if not isinstance(text, str):
                    reason = f"{text!r} is not a text"
                    raise HostError(f"set options of module {module}", reason, "write 'NAME=VALUE NAME=VALUE'")
                settings[_OF_MODULE.format(_kernel_name(module))] = " ".join(text.split()) or None
            for module in stored:
                settings.setdefault(_OF_MODULE.format(module), None)
        if modules is not None:
            for module in modules:
                settings[_LOADED.format(_kernel_name(module))] = True
                settings[_AT_BOOT.format(_kernel_name(module))] = True
            for module in self._at_boot():
                settings.setdefault(_AT_BOOT.format(module), None)
        return {NODE: settings} if settings else {}

    def _at_boot(self) -> list[str]:
        """The modules that the site loads at boot."""
        lines = (self.system.content(LOAD) or "").splitlines()
        return [line for line in lines if line and line[0] not in "#;"]

    def _options(self) -> dict[str, str]:
        """The options that the site sets, by module."""
        lines = [line.split(None, 2) for line in (self.system.content(OPTIONS) or "").splitlines()]
        return {fields[1]: fields[2] for fields in lines if len(fields) == 3 and fields[0] == "options"}

    def _booted_since(self) -> bool:
        """Whether the node was booted after the site's options were written."""
        text = self.system.content(OPTIONS) or ""
        boot_ids = [line[8:].strip() for line in text.splitlines() if line.startswith("#: boot ")]
        return bool(boot_ids) and boot_ids[0] != self._boot_id()

    def _boot_id(self) -> str:
        return self.system.text("/proc/sys/kernel/random/boot_id") or "unknown"

    def read(self, node: Node, wanted: State) -> State:
        at_boot, options = self._at_boot(), self._options()
        current: dict[str, object] = {}
        for setting in wanted.get(NODE, {}):
            module = _module(setting)
            if setting.startswith("options of "):
                current[setting] = options.get(module)
            elif setting.endswith(" at boot"):
                current[setting] = True if module in at_boot else None
            else:
                current[setting] = self.system.exists(f"/sys/module/{module}") or self._is_built_in(module)
        return {NODE: current}

    def check(self, node: Node, change: Change) -> Refusal | None:
        module = _module(change.setting)
        if not _NAME.match(module):
            return Refusal(NODE, change.setting, "is not a valid name of a kernel module")
        if change.after is None:
            return None
        if change.setting.startswith("options"):
            invalid = [option for option in change.after.split() if not _OPTION.match(option)]
            if invalid:
                return Refusal(NODE, change.setting, f"{invalid[0]!r} is not an option of the form name=value")
            if self.system.exists(f"/sys/module/{module}") and not self._is_loaded(module):
                arguments = ", ".join(f"{module}.{option}" for option in change.after.split())
                fix = f"kernel_args: [{arguments}]"
                return Refusal(NODE, change.setting, "it is built into this kernel, where options have no effect", fix)
            for path in self._other_files(module):
                return Refusal(NODE, change.setting, f"{path} has options for it as well", "remove them there")
        elif change.setting == _LOADED.format(module):
            try:
                self.system.query(["modprobe", "--show-depends", module], f"find the module {module}")
            except HostError as error:
                return Refusal(
                    NODE, change.setting, error.reason, "install the package that contains it for this kernel"
                )
        return None

    def _is_built_in(self, module: str) -> bool:
        """Whether the kernel contains the module. Without parameters it is then not in /sys/module."""
        release = self.system.text("/proc/sys/kernel/osrelease")
        lines = (self.system.content(f"/lib/modules/{release}/modules.builtin") or "").splitlines()
        return any(_kernel_name(line.rpartition("/")[2]) == f"{module}.ko" for line in lines)

    def _is_loaded(self, module: str) -> bool:
        lines = (self.system.content("/proc/modules") or "").splitlines()
        return any(line.split(" ", 1)[0] == module for line in lines)

    def _other_files(self, module: str) -> t.Iterator[str]:
        """Other files of modprobe.d with options for the module. modprobe combines the options of all files."""
        for name in self.system.names("/etc/modprobe.d"):
            path = f"/etc/modprobe.d/{name}"
            if name.endswith(".conf") and path != OPTIONS:
                for line in (self.system.content(path) or "").splitlines():
                    fields = line.split(None, 2)
                    if fields[:1] == ["options"] and len(fields) > 1 and _kernel_name(fields[1]) == module:
                        yield path

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource, but options that were not in effect after a reboot are refused."""
        wanted = self.wanted(node) if wanted is None else wanted
        plan = super().plan(node, wanted)
        if wanted and not plan.changes and plan.reboot and self._booted_since():
            fix = "look for other options of the module in 'modprobe --showconfig' and the initial RAM disk"
            refusals = [
                Refusal(NODE, "module_options", f"the node was rebooted since, but {reason}", fix)
                for reason in plan.reboot
            ]
            plan.refusals += refusals
            plan.reboot.clear()
        return plan

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        reasons = []
        for setting, value in wanted.get(NODE, {}).items():
            if not setting.startswith("options of ") or not isinstance(value, str):
                continue
            module = _module(setting)
            for option in value.split():
                name, _equals, wanted_value = option.partition("=")
                current = self.system.text(f"/sys/module/{module}/parameters/{name}")
                if current is not None and _BOOLEANS.get(current, current) != _BOOLEANS.get(wanted_value, wanted_value):
                    reasons.append(f"module {module} was loaded with {name}={current}, not {wanted_value}")
        return reasons

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting}"
        if change.setting.startswith("options"):
            self._write_options(change, step)
        elif change.setting.endswith(" at boot"):
            module = _module(change.setting)
            modules = [name for name in self._at_boot() if name != module] + ([module] if change.after else [])
            text = _HEADER + "".join(f"{name}\n" for name in modules) if modules else None
            self.system.install(LOAD, text, step)
        else:
            module = _module(change.setting)
            if not change.after:
                # a folder in configfs keeps its module loaded (configfs_mkdir in fs/configfs/dir.c)
                for name in self.system.names(_RDMA_CM_FOLDER) if module == "rdma_cm" else []:
                    self.system.remove_folder(f"{_RDMA_CM_FOLDER}/{name}", step)
            argv = ["modprobe", module] if change.after else ["modprobe", "--remove", module]
            self.system.command(argv, step, "look at 'dmesg'; with Secure Boot, the module must be signed")

    def _write_options(self, change: Change, step: str) -> None:
        options = self._options()
        module = _module(change.setting)
        options.pop(module, None)
        if change.after:
            options[module] = change.after
        lines = [
            _HEADER,
            f"#: boot {self._boot_id()}\n",
            *(f"options {name} {options[name]}\n" for name in sorted(options)),
        ]
        self.system.install(OPTIONS, "".join(lines) if options else None, step)
        rebuild_initramfs(self.system, module)


def rebuild_initramfs(system: System, module: str) -> None:
    """Rebuild the initial RAM disk, which contains the options of modules. Raises HostError."""
    for program, argv in _BUILDERS:
        if system.exists(program):
            system.command(argv, f"rebuild the initial RAM disk for the options of {module}")
            return


def _module(setting: str) -> str:
    """The module in the name of a setting."""
    setting = setting[len("options of ") :] if setting.startswith("options of ") else setting
    setting = setting[: -len(" at boot")] if setting.endswith(" at boot") else setting
    return setting[len("module ") :]


def _kernel_name(module: str) -> str:
    """The kernel's name of a module: `nvidia_peermem` for `nvidia-peermem`."""
    return module.replace("-", "_")
