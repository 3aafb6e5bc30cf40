# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The limit of locked memory of pods and logins, as RDMA locks buffers in memory (setrlimit(2), systemd.exec(5))."""

from __future__ import annotations

import resource

from ..access.system import HostError, System
from ..engine.change import NODE, Change, State
from ..engine.node import Node
from ..engine.resource import Resource

#: Containers inherit the limits of the unit that starts their runtime.
UNITS = (
    "containerd.service",
    "crio.service",
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
)
LOGINS = "/etc/security/limits.d/90-lanewise-memlock.conf"
_HEADER = "# Written by the Ansible collection lanewise.dra, which owns this file.\n"
_DROP_IN = f"{_HEADER}[Service]\nLimitMEMLOCK=infinity\n"
_LOGIN_LIMITS = _HEADER + "".join(
    f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard")
)
_NOW = "memlock of {} now"
_AT_START = "memlock of {} at its start"
_LOGINS_SETTING = "memlock of logins"
_UNLIMITED = "unlimited"


def limits(text: str) -> list[str] | None:
    """The soft and the hard limit of locked memory in `/proc/PID/limits`, each `unlimited` or a number of bytes."""
    for line in text.splitlines():
        if line.startswith("Max locked memory"):
            return line[len("Max locked memory") :].split()[:2]
    return None


class Memlock(Resource):
    """`memlock_unlimited` of the node: for container runtimes and kubelet, now and after a restart, and for logins.
    Running pods keep the limit that they were started with.
    """

    name = "memlock"
    recorded_in = ("/etc/systemd",)
    boot = False

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._units: dict[str, int] | None = None

    def units(self) -> dict[str, int]:
        """The node's units with their main processes; 0 for a unit that does not run. Raises HostError."""
        if self._units is None:
            argv = ["systemctl", "show", "--property=Id,LoadState,MainPID", *UNITS]
            processes: dict[str, int] = {}
            for block in self.system.query(argv, "read the units of kubelet and the container runtimes").split("\n\n"):
                values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
                if values.get("LoadState") == "loaded":
                    processes[values["Id"]] = int(values.get("MainPID") or 0)
            self._units = processes
        return self._units

    def wanted(self, node: Node) -> State:
        unlimited = node.general.get("memlock_unlimited")
        if unlimited is None:
            return {}
        settings: dict[str, object] = {}
        if self.system.exists(LOGINS.rpartition("/")[0]):  # otherwise PAM does not set limits of logins
            settings[_LOGINS_SETTING] = _LOGIN_LIMITS if unlimited else None
        for unit, process in self.units().items():
            settings[_AT_START.format(unit)] = _DROP_IN if unlimited else None
            if unlimited and process:
                settings[_NOW.format(unit)] = [_UNLIMITED, _UNLIMITED]
        return {NODE: settings} if settings else {}

    def read(self, node: Node, wanted: State) -> State:
        current: dict[str, object] = {}
        for setting in wanted.get(NODE, {}):
            if setting.endswith(" now"):
                process = self.units().get(setting.split()[2])
                current[setting] = limits(self.system.content(f"/proc/{process}/limits") or "") if process else None
            else:
                current[setting] = self.system.content(_path(setting))
        return {NODE: current}

    def apply(self, node: Node, change: Change) -> None:
        step = f"set the {change.setting}"
        if change.setting == _LOGINS_SETTING:
            self.system.install(LOGINS, change.after, step)
        elif change.setting.endswith(" now"):
            process = self.units().get(change.setting.split()[2])
            if process and change.after:
                soft, hard = (resource.RLIM_INFINITY if value == _UNLIMITED else int(value) for value in change.after)
                fix = "it may have been restarted: run again"
                limit = (soft, hard)
                self.system.request_change(step, lambda: resource.prlimit(process, resource.RLIMIT_MEMLOCK, limit), fix)
        else:
            unit = change.setting.split()[2]
            self.system.install(_path(change.setting), change.after, step)
            self.system.command(["systemctl", "daemon-reload"], step)
            if change.after is None:
                return
            effective = self.system.query(
                ["systemctl", "show", "--property=LimitMEMLOCK", "--value", unit], step
            ).strip()
            if effective != "infinity":
                fix = f"'systemctl cat {unit}' shows which later drop-in sets LimitMEMLOCK: remove the line there"
                raise HostError(step, f"systemd still uses {effective}", fix)


def _path(setting: str) -> str:
    if setting == _LOGINS_SETTING:
        return LOGINS
    return f"/etc/systemd/system/{setting.split()[2]}.d/90-lanewise-memlock.conf"
