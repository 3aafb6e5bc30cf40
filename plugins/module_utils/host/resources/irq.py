# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The CPUs that handle the interrupts of a NIC (Documentation/core-api/irq/irq-affinity.rst)."""

from __future__ import annotations

import errno
import re
import typing as t

from ...topology import cpuset
from ..access.system import HostError, System
from ..engine.change import Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

_DEVICES = "/sys/bus/pci/devices"
LOCAL, SPREAD = "local", "spread"
_FIX = "'No space left' means that these CPUs have no free vectors: use fewer channels; otherwise look at 'dmesg'"


class Irq(Resource):
    """`irq_affinity` of a NIC: all CPUs of the NIC's NUMA node handle each interrupt (`local`), or the interrupts are
    assigned to these CPUs one by one (`spread`).

    The current state contains the CPUs of each interrupt. The wanted state only contains the mode and the NUMA node's
    CPUs, since interrupts are recreated if the number of queues changes. Interrupts that the kernel manages itself are
    not changed.
    """

    name = "irq"

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
        driver = node.device(change.device).driver or ""
        command = self._irqbalance()
        if command is None or _banned(command, driver, list(change.before)):
            return None
        fix = f"stop and disable irqbalance, or start it with --banmod={driver}"
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
                self._managed.add(irq)  # the error means that an older kernel manages the interrupt itself

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
        if not cpus:
            raise HostError(step, f"NUMA node {device.numa_node} has no CPUs", "leave irq_affinity out for it")
        return cpus

    def _irqbalance(self) -> list[str] | None:
        """The command line of irqbalance; None if it does not run."""
        for process in self.system.names("/proc"):
            if process.isdigit() and self.system.text(f"/proc/{process}/comm") == "irqbalance":
                return [word for word in (self.system.content(f"/proc/{process}/cmdline") or "").split("\0") if word]
        return None


def _path(irq: str) -> str:
    return f"/proc/irq/{irq}/smp_affinity_list"


def _expected(irqs: t.Sequence[str], after: t.Mapping[str, str]) -> dict[str, str]:
    """The CPUs of each interrupt, from a mode and its CPUs, or from a recorded state."""
    if LOCAL in after:
        return dict.fromkeys(irqs, after[LOCAL])
    if SPREAD in after:
        bits = cpuset.from_list(after[SPREAD]) or 1
        cpus = [cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1]
        return {irq: str(cpus[index % len(cpus)]) for index, irq in enumerate(irqs)}
    return dict(after)


def _banned(command: t.Sequence[str], driver: str, irqs: t.Sequence[str]) -> bool:
    """Whether a command line of irqbalance excludes a driver, or all of these interrupts."""
    text = " ".join(command)
    modules = re.findall(r"(?:--banmod[= ]|-m ?)(\S+)", text)
    banned = set(re.findall(r"(?:--banirq[= ]|-i ?)(\d+)", text))
    return driver in modules or (bool(irqs) and set(irqs) <= banned)
