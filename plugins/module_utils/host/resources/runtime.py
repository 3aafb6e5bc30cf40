# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Settings of a container runtime that DRA drivers need: CDI, and NRI for the drivers that use it."""

from __future__ import annotations

import re

from ..access import units
from ..access.system import HostError
from ..engine.change import NODE, Change, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/90-lanewise.toml"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/90-lanewise.conf"
_HEADER = "# Written by the Ansible collection lanewise.dra, which owns this file.\n"
_BINARIES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")
_VERSION = re.compile(r"\sv?(\d+)\.(\d+)\.\d+")
_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*=\s*(.*?)\s*$")
#: The plugins with the settings: CRI of containerd 1.x, CRI of containerd 2.x, where CDI is on by default, and NRI.
_CRI_1 = "io.containerd.grpc.v1.cri"
_CRI_2 = "io.containerd.cri.v1.runtime"
_NRI = "io.containerd.nri.v1.nri"


def values(dump: str) -> dict[str, str]:
    """The settings of `containerd config dump` as `TABLE:KEY`, without quotes. A list is returned as text."""
    settings: dict[str, str] = {}
    table = ""
    for line in dump.splitlines():
        header = _TABLE.match(line)
        if header:
            table = header.group(1).replace("'", "").replace('"', "").replace(" ", "")
            continue
        pair = _KEY.match(line)
        if pair:
            settings[f"{table}:{pair.group(1)}"] = pair.group(2).strip("'\"")
    return settings


def with_key(text: str, plugin: str, key: str, value: str) -> str:
    """A TOML configuration with a single key of a plugin's table changed."""
    lines = text.splitlines()
    table = f"plugins.{plugin}"
    table_line = None
    for number, line in enumerate(lines):
        header = _TABLE.match(line)
        if header:
            if table_line is not None:
                break
            if header.group(1).replace("'", "").replace('"', "").replace(" ", "") == table:
                table_line = number
            continue
        pair = _KEY.match(line)
        if table_line is not None and pair and pair.group(1) == key:
            lines[number] = f"{line[: len(line) - len(line.lstrip())]}{key} = {value}"
            return "\n".join(lines) + "\n"
    if table_line is not None:
        lines.insert(table_line + 1, f"  {key} = {value}")
    else:
        lines += ["", f'[plugins."{plugin}"]', f"  {key} = {value}"]
    return "\n".join(lines) + "\n"


class Runtime(Resource):
    """`runtime_cdi` and `runtime_nri` of the node. The value is the content of the configuration file.

    For containerd 2 this is a drop-in, if the main configuration file imports drop-ins. Without imports, and for
    containerd 1, single lines of the main file are changed: in containerd 1, an imported file would replace the whole
    table of a plugin, including the cgroup driver. The change is undone if anything else in containerd's effective
    configuration changes.
    """

    name = "runtime"
    recorded_in = ("/etc/containerd",)
    boot = False

    def _program(self, name: str) -> str | None:
        """The path of an installed program; None if it is not installed."""
        return next((f"{folder}/{name}" for folder in _BINARIES if self.system.exists(f"{folder}/{name}")), None)

    def _version(self, containerd: str) -> tuple[int, int]:
        step = "find the version of containerd"
        text = self.system.query([containerd, "--version"], step)
        match = _VERSION.search(text)
        if not match:
            raise HostError(step, f"unexpected output {text.strip()!r}")
        return int(match.group(1)), int(match.group(2))

    def _dump(self, containerd: str) -> str:
        return self.system.query([containerd, "config", "dump"], "read containerd's configuration")

    def wanted(self, node: Node) -> State:
        cdi, nri = node.general.get("runtime_cdi"), node.general.get("runtime_nri")
        if cdi is None and nri is None:
            return {}
        if cdi is False:
            return {NODE: {"runtime_cdi": True}}
        contents: dict[str, object] = {}
        containerd, crio = self._program("containerd"), self._program("crio")
        if not containerd and not crio:
            return {NODE: {"runtime": "containerd or crio"}}
        if containerd:
            is_containerd_1 = self._version(containerd) < (2, 0)
            current = values(self._dump(containerd))
            for requested, setting in ((cdi, f"plugins.{_CRI_1}:enable_cdi"), (nri, f"plugins.{_NRI}:disable")):
                if is_containerd_1 and requested and setting not in current:
                    return {NODE: {setting.partition(":")[0]: "known"}}
            changes = []
            cri = _CRI_1 if is_containerd_1 else _CRI_2
            if cdi and current.get(f"plugins.{cri}:enable_cdi", str(not is_containerd_1).lower()) == "false":
                changes.append((cri, "enable_cdi", "true"))
            if nri is not None and current.get(f"plugins.{_NRI}:disable", "false") == str(nri).lower():
                changes.append((_NRI, "disable", str(not nri).lower()))
            path = CONTAINERD_CONFIG if is_containerd_1 or not self._imports() else CONTAINERD_DROP_IN
            text = self.system.content(path)
            if not changes:
                contents[path] = text
            else:
                text = text or (f"{_HEADER}version = 3\n" if path == CONTAINERD_DROP_IN else "version = 2\n")
                for plugin, key, value in changes:
                    text = with_key(text, plugin, key, value)
                contents[path] = text
        if crio and nri is not None:  # CDI is always on in CRI-O
            contents[CRIO_DROP_IN] = f"{_HEADER}[crio.nri]\nenable_nri = {str(bool(nri)).lower()}\n"
        return {NODE: contents} if contents else {}

    def _imports(self) -> bool:
        """Whether containerd 2 reads drop-ins. Its default imports only apply if it has no configuration file."""
        text = self.system.content(CONTAINERD_CONFIG)
        return text is None or "/etc/containerd/conf.d/" in values(text).get(":imports", "")

    def read(self, node: Node, wanted: State) -> State:
        paths = [path for path in wanted.get(NODE, {}) if path.startswith("/")]
        return {NODE: {path: self.system.content(path) for path in paths}}

    def check(self, node: Node, change: Change) -> Refusal | None:
        if change.setting.startswith("plugins."):
            fix = "install containerd 1.7 or newer"
            return Refusal(NODE, "runtime", f"this containerd does not know {change.setting}", fix)
        if change.setting == "runtime_cdi":
            return Refusal(NODE, "runtime_cdi", "DRA drivers need CDI to add devices to containers", "leave it out")
        if not change.setting.startswith("/"):
            fix = "if the Kubernetes distribution has its own runtime (k3s, RKE2), set it in its template"
            return Refusal(NODE, "runtime", "neither containerd nor CRI-O is installed in the usual directories", fix)
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        name = "crio" if change.setting == CRIO_DROP_IN else "containerd"
        return f"{name} restarts; running pods keep running, new ones wait"

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        """Whether the runtime runs, as systemd does not restart a runtime that failed because of its configuration."""
        return {_unit(change): units.state(self.system, _unit(change))}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        if effects[_unit(change)] == units.RUNNING:
            units.start(self.system, _unit(change))

    def apply(self, node: Node, change: Change) -> None:
        step = f"write {change.setting}"
        unit = _unit(change)
        containerd = self._program("containerd") if unit == "containerd.service" else None
        before = values(self._dump(containerd)) if containerd else {}
        before_in_file = values(self.system.content(change.setting) or "")
        self.system.install(change.setting, change.after, step)
        if containerd:
            after = values(self._dump(containerd))
            expected = (":imports", ":version", f"plugins.{_NRI}:disable")
            unexpected = [
                setting
                for setting in sorted({*before, *after})
                if before.get(setting) != after.get(setting)
                and setting not in expected
                and not setting.endswith(":enable_cdi")
            ]
            if unexpected:
                fix = "set runtime_cdi and runtime_nri in containerd's own file by hand"
                raise HostError(
                    step, f"containerd would change more than what is requested: {', '.join(unexpected[:5])}", fix
                )
            after_in_file = values(change.after or "")
            unchanged = [
                setting
                for setting in sorted(after_in_file)
                if "plugins." in setting and before_in_file.get(setting) != after_in_file[setting] != after.get(setting)
            ]
            if unchanged:
                fix = "containerd is too old for this setting, or another file in its imports overrides it"
                raise HostError(step, f"containerd shows no change of {', '.join(unchanged)}", fix)
        self.system.command(["systemctl", "try-restart", unit], f"restart {unit}", f"see 'journalctl -u {unit}'")


def _unit(change: Change) -> str:
    return "crio.service" if change.setting == CRIO_DROP_IN else "containerd.service"
