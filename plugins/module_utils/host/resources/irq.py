# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The CPUs that handle the interrupts of a NIC (Documentation/core-api/irq/irq-affinity.rst)."""

from __future__ import annotations

import errno
import typing as t

from ...topology import cpuset
from ..access.processes import users_of
from ..access.system import HostError, System
from ..engine.change import Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

_DEVICES = "/sys/bus/pci/devices"
LOCAL, SPREAD = "local", "spread"
#: How much is read of a process's files.
_MAX_COMMAND_BYTES, _MAX_MOUNTS_BYTES = 65536, 1 << 20
_FIX = "'No space left' means that these CPUs have no free vectors: use fewer channels; otherwise look at 'dmesg'"


class Irq(Resource):
    """`irq_affinity` of a NIC: all CPUs of the NIC's NUMA node handle each interrupt (`local`), or the interrupts are
    assigned to these CPUs one by one (`spread`).

    The current state contains the CPUs of each interrupt. The wanted state only contains the mode and the NUMA node's
    CPUs, since interrupts are recreated if the number of queues changes. Interrupts that the kernel manages itself are
    not changed, as far as the mode of their files shows which these are (see `apply`).
    """

    name = "irq"
    network = True  # many drivers create the interrupts only when the interface is up

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._managed: set[str] = set()

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            mode = settings.get("irq_affinity")
            if mode:
                state[key] = {"irq_affinity": {mode: self._local_cpus(node, key)}}
        return state

    def read(self, node: Node, wanted: State) -> State:
        return {key: {"irq_affinity": self._current(key)} for key in wanted}

    def same(self, setting: str, before: object, after: object) -> bool:
        current, wanted = t.cast("dict[str, str]", before), t.cast("dict[str, str]", after)
        expected = _expected(sorted(current, key=int), wanted)
        return all(
            current[irq] == cpus for irq, cpus in expected.items() if irq in current and irq not in self._managed
        )

    def check(self, node: Node, change: Change) -> Refusal | None:
        if not {LOCAL, SPREAD} & t.cast("dict[str, str]", change.after).keys():
            return None  # the CPUs before the first run, which irqbalance may have chosen
        driver = node.device(change.device).driver or ""
        if all(_excluded(command, driver, list(change.before)) for command in self._irqbalance()):
            return None
        fix = f"stop and disable irqbalance{f', or start it with --banmod={driver}' if driver else ''}"
        return Refusal(change.device, change.setting, "irqbalance is running and would move the interrupts again", fix)

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        current = self._current(change.device)
        for irq, cpus in _expected(sorted(current, key=int), change.after).items():
            if current.get(irq) in (None, cpus):
                continue
            try:
                self.system.write(_path(irq), cpus, f"let CPUs {cpus} handle interrupt {irq} of {device}", _FIX)
            except HostError as error:
                if error.code != errno.EIO:
                    raise
                self._managed.add(irq)  # an older kernel shows only by this error that it manages the interrupt

    def _current(self, key: str) -> dict[str, str]:
        """The CPUs of each of a device's interrupts, without those that the kernel manages itself."""
        cpus_by_irq = {}
        for irq in self.system.names(f"{_DEVICES}/{key}/msi_irqs"):
            cpus = self.system.text(_path(irq))
            if cpus and (self.system.mode(_path(irq)) or 0) & 0o200:
                cpus_by_irq[irq] = cpus
        return cpus_by_irq

    def _local_cpus(self, node: Node, key: str) -> str:
        """The CPUs of the device's NUMA node, as a list such as `0-15,32-47`. Raises HostError."""
        device = node.device(key)
        step = f"set irq_affinity of {device}"
        if device.address is None:
            raise HostError(step, "it has no interrupts of its own", "choose NICs with a PCI address")
        if device.numa_node is None:
            raise HostError(step, "the machine does not report its NUMA node", "leave irq_affinity out for it")
        cpus = self.system.text(f"/sys/devices/system/node/node{device.numa_node}/cpulist")
        if not cpus or not cpuset.from_list(cpus):
            raise HostError(step, f"NUMA node {device.numa_node} has no CPUs", "leave irq_affinity out for it")
        return cpus

    def _irqbalance(self) -> list[list[str]]:
        """The command lines of the processes named irqbalance that can move interrupts. Any pod may use that name."""
        commands = []
        for process in self.system.names("/proc"):
            if not process.isdigit() or self.system.text(f"/proc/{process}/comm") != "irqbalance":
                continue
            if self._may_move_interrupts(process):
                words = self.system.reader.data(f"/proc/{process}/cmdline", _MAX_COMMAND_BYTES) or b""
                commands.append([word for word in words.decode(errors="replace").split("\0") if word])
        return commands

    def _may_move_interrupts(self, process: str) -> bool:
        """Whether a process is one of root, and not in an ordinary container, where /proc/irq is mounted read-only."""
        try:
            if 0 not in users_of(process, self.system.reader.root):
                return False
        except OSError:
            return False  # it has ended
        mounts = self.system.reader.data(f"/proc/{process}/mountinfo", _MAX_MOUNTS_BYTES) or b""
        read_only = any(
            fields[4] == b"/proc/irq" and b"ro" in fields[5].split(b",")
            for fields in map(bytes.split, mounts.splitlines())
            if len(fields) > 5
        )
        return not read_only


def _path(irq: str) -> str:
    return f"/proc/irq/{irq}/smp_affinity_list"


def _expected(irqs: t.Sequence[str], after: t.Mapping[str, str]) -> dict[str, str]:
    """The CPUs of each interrupt, from a mode and its CPUs, or from a recorded state."""
    if LOCAL in after:
        return dict.fromkeys(irqs, after[LOCAL])
    if SPREAD in after:
        bits = cpuset.from_list(after[SPREAD]) or 0  # `_local_cpus` refuses an empty list
        cpus = [cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1]
        return {irq: str(cpus[index % len(cpus)]) for index, irq in enumerate(irqs)} if cpus else {}
    return dict(after)


def _excluded(command: t.Sequence[str], driver: str, irqs: t.Sequence[str]) -> bool:
    """Whether a command line of irqbalance excludes a driver, or all of these interrupts."""
    modules = _values_of(command, "-m", "--banmod")
    excluded_irqs = _values_of(command, "-i", "--banirq")
    return driver in modules or (bool(irqs) and set(irqs) <= excluded_irqs)


def _values_of(command: t.Sequence[str], short: str, long: str) -> set[str]:
    """The values of an option in a command line: `-m X`, `-mX`, `--banmod X` or `--banmod=X`."""
    values = set()
    for word, following in zip(command, [*command[1:], ""]):
        if word in (short, long):
            values.add(following)
        elif word.startswith(f"{long}="):
            values.add(word[len(long) + 1 :])
        elif word.startswith(short) and not word.startswith("--"):
            values.add(word[len(short) :])
    return values
