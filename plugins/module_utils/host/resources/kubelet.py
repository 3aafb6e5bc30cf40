# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How kubelet places pods on CPUs and memory (KubeletConfiguration, kubelet.config.k8s.io/v1beta1)."""

from __future__ import annotations

import json
import re
import time
import typing as t

from ..access import units
from ..access.processes import is_of_node
from ..access.system import HostError, System
from ..engine.change import NODE, Change, Refusal, SideEffects, State
from ..engine.node import Node
from ..engine.resource import Resource

FILE = "90-lanewise.conf"
#: The fields that every drop-in must have.
_HEADER = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
_FIELDS = {
    "cpu_manager_policy": "cpuManagerPolicy",
    "cpu_manager_policy_options": "cpuManagerPolicyOptions",
    "reserved_system_cpus": "reservedSystemCPUs",
    "memory_manager_policy": "memoryManagerPolicy",
    "reserved_memory": "reservedMemory",
    "topology_manager_policy": "topologyManagerPolicy",
    "topology_manager_scope": "topologyManagerScope",
    "topology_manager_policy_options": "topologyManagerPolicyOptions",
}
#: The fields on which each state file depends. kubelet does not start if its state was written with other values.
_STATES = {
    "cpu_manager_state": ("cpuManagerPolicy", ("cpuManagerPolicyOptions", "reservedSystemCPUs")),
    "memory_manager_state": ("memoryManagerPolicy", ("reservedMemory",)),
}
#: The last file that kubelet creates after all its managers have started. It does not depend on `--root-dir`.
_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
_UNIT = "kubelet.service"
_ERROR = re.compile(r'^[EF]\d{4} .* err="(.*)"$')
_START_TIMEOUT_SECONDS = 60.0


class Kubelet(Resource):
    """`kubelet` of the node: a drop-in of kubelet's configuration directory (`--config-dir`, since Kubernetes 1.30).

    The value is the content of the file. If the policy or reservation of the CPU or memory manager changes, the
    manager's state is removed while kubelet is stopped, so the node must be drained first.
    """

    name = "kubelet"
    recorded_in = ("/etc/kubernetes",)
    boot = False

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._arguments: list[str] | None = None

    def arguments(self) -> list[str]:
        """The command line of the running kubelet; empty if none runs."""
        if self._arguments is None:
            self._arguments = []
            for process in filter(str.isdigit, self.system.names("/proc")):
                if self.system.text(f"/proc/{process}/comm") == "kubelet" and self._is_of_node(process):
                    data = self.system.reader.data(f"/proc/{process}/cmdline", 65536) or b""
                    self._arguments = data.decode(errors="replace").rstrip("\0").split("\0")
                    break
        return self._arguments

    def _is_of_node(self, process: str) -> bool:
        try:
            return is_of_node(process, self.system.reader.root)
        except PermissionError:
            return True  # without root, nothing can be changed
        except OSError:
            return False  # the process has ended

    def option(self, name: str) -> str | None:
        """The value of an option of the running kubelet; None if it is not set. The last one counts."""
        value = None
        arguments = self.arguments()
        for index, argument in enumerate(arguments):
            if argument.startswith(f"--{name}="):
                value = argument.partition("=")[2]
            elif argument == f"--{name}" and index + 1 < len(arguments):
                value = arguments[index + 1]
        return value

    def root(self) -> str:
        """The folder of kubelet's own files, which include the states of its managers."""
        return self.option("root-dir") or "/var/lib/kubelet"

    def wanted(self, node: Node) -> State:
        requested = node.general.get("kubelet")
        if requested is None:
            return {}
        fields = {_FIELDS[name]: value for name, value in requested.items() if value is not None}
        text = None
        if fields:
            text = json.dumps({**_HEADER, **fields}, indent=2, sort_keys=True) + "\n"  # JSON is YAML
        return {NODE: {f"{self.option('config-dir') or 'kubelet'}/{FILE}": text}}

    def read(self, node: Node, wanted: State) -> State:
        return {NODE: {path: self.system.content(path) for path in wanted.get(NODE, {}) if path.startswith("/")}}

    def same(self, setting: str, before: object, after: object) -> bool:
        return _fields(t.cast("str | None", before)) == _fields(t.cast("str | None", after))

    def check(self, node: Node, change: Change) -> Refusal | None:
        if not self.arguments():
            if change.after is None:
                return None  # only the file is removed
            return Refusal(NODE, "kubelet", "no kubelet runs on this node", "join it to the cluster first")
        if not change.setting.startswith("/"):
            fix = (
                "create /etc/kubernetes/kubelet.conf.d first, as kubelet does not start without it, then add "
                "--config-dir=/etc/kubernetes/kubelet.conf.d to KUBELET_EXTRA_ARGS (/etc/default/kubelet or "
                "/etc/sysconfig/kubelet), and restart kubelet"
            )
            return Refusal(NODE, "kubelet", "kubelet has no directory for drop-ins of its configuration", fix)
        fields = _fields(change.after)
        if fields.get("cpuManagerPolicy") == "static" and not fields.get("reservedSystemCPUs"):
            fix = "set reserved_system_cpus to CPUs of a NUMA node without GPUs, if there is one"
            return Refusal(NODE, "kubelet", "the static CPU policy needs CPUs that are reserved for the system", fix)
        if fields.get("memoryManagerPolicy") == "Static" and not fields.get("reservedMemory"):
            fix = (
                "set reserved_memory for each NUMA node; the total is the sum of kubeReserved, systemReserved and the "
                "hard eviction threshold"
            )
            return Refusal(
                NODE, "kubelet", "the Static memory policy needs memory that is reserved for the system", fix
            )
        override = self._override(change.setting, fields)
        if override:
            return Refusal(NODE, "kubelet", override, "remove it there")
        for name in sorted(fields):
            option = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).replace(
                "-c-p-us", "-cpus"
            )
            if self.option(option) is not None:
                return Refusal(
                    NODE, "kubelet", f"its command line contains --{option}, which takes precedence", "remove it there"
                )
        return None

    def _override(self, path: str, fields: t.Mapping[str, object]) -> str:
        """Why a later drop-in overrides one of the fields; empty if none does. Drop-ins are JSON or YAML."""
        folder, _slash, file = path.rpartition("/")
        for name in self.system.names(folder):
            if name.endswith(".conf") and name > file:
                text = self.system.content(f"{folder}/{name}") or ""
                for field in sorted(set(fields) - set(_HEADER)):
                    if re.search(rf"""(?:^|[{{,])\s*["']?{field}["']?\s*:""", text, re.MULTILINE):
                        return f"{folder}/{name} sets {field} too, and takes precedence"
        return ""

    def _changed_states(self, change: Change) -> list[str]:
        """The state files that kubelet would not accept after the change."""
        before, after = _fields(change.before), _fields(change.after)
        paths = []
        for file, (policy, fields) in _STATES.items():
            # if this file sets no policy, another file may set one
            same_policy = before.get(policy) == after.get(policy)
            without_policy = str(after.get(policy)).lower() == "none" and policy in after
            if not same_policy or not without_policy and any(before.get(field) != after.get(field) for field in fields):
                paths.append(f"{self.root()}/{file}")
        return paths

    def interrupts(self, node: Node, change: Change) -> str:
        if self._changed_states(change):
            return "kubelet restarts without its state of placed pods, so the node must be drained"
        return "kubelet restarts; running pods keep running"

    def apply(self, node: Node, change: Change) -> None:
        step = f"write {change.setting}"
        states = self._changed_states(change)
        # before kubelet is stopped, so that it keeps running if the disk is full; it reads the file only at its start
        self.system.install(change.setting, change.after, step)
        if change.after is None and not self.arguments():
            return  # the node has left the cluster
        self.system.command(["systemctl", "stop", _UNIT], step)
        for path in (*states, _SOCKET):
            self.system.remove(path, f"remove {path}")
        self.system.command(["systemctl", "start", _UNIT], step, "see 'journalctl -u kubelet'")
        self._wait_until_started(step)
        fields = _fields(change.after)
        for path in states:
            policy = _STATES[path.rpartition("/")[2]][0]
            name = json.loads(self.system.content(path) or "{}").get("policyName", "nothing")
            if policy in fields and name.lower() != str(fields[policy]).lower():
                raise HostError(
                    step, f"kubelet has started with {policy}={name}", "find the configuration that sets it"
                )

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        return {_UNIT: units.state(self.system, _UNIT)}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        if effects[_UNIT] == units.RUNNING:
            units.start(self.system, _UNIT)
            self._wait_until_started(f"start {_UNIT} again")

    def _wait_until_started(self, step: str) -> None:
        """Wait until kubelet has started its managers. Raises HostError if kubelet stops first, or takes too long."""
        main_pid_query = ["systemctl", "show", _UNIT, "--property=MainPID", "--value"]
        main_pid = self.system.query(main_pid_query, step).strip()
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self.system.exists(_SOCKET):
            stopped = main_pid == "0" or self.system.query(main_pid_query, step).strip() != main_pid
            if stopped or time.monotonic() >= deadline:
                lines = self.system.query(["journalctl", f"--unit={_UNIT}", "--output=cat", "--lines=50"], step)
                errors = [match.group(1) for match in map(_ERROR.match, lines.splitlines()) if match]
                reason = (
                    "kubelet stopped"
                    if stopped
                    else f"kubelet has not started its managers after {_START_TIMEOUT_SECONDS:.0f} s"
                )
                raise HostError(step, ": ".join([reason, *errors[-1:]]), "see 'journalctl -u kubelet'")
            time.sleep(0.2)


def _fields(text: str | None) -> dict[str, object]:
    """The fields in the content of the drop-in; empty without a file. Raises HostError if it is not a JSON object."""
    try:
        fields = json.loads(text) if text else {}
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        raise HostError(f"read {FILE}", f"it is not JSON: {error}", "remove this file, then run again") from None
    return fields
