# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System, refused
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.irq import Irq, _excluded
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

NIC = "0000:16:00.0"
IRQS = (98, 99, 100)


@pytest.fixture
def machine():
    with Machine("sriov") as machine:
        for irq in IRQS:
            machine.write(f"/sys/bus/pci/devices/{NIC}/msi_irqs/{irq}", "msix")
            machine.write(f"/proc/irq/{irq}/smp_affinity_list", "0-63")
        yield machine


def local_cpus(machine: Machine) -> str:
    return (machine.root / "sys/devices/system/node/node0/cpulist").read_text().strip()


def set_affinity(machine: Machine, affinity: str, system: System | None = None):
    system = system or System(str(machine.root))
    rules = [Rule(NIC, selector({"address": NIC}), {"irq_affinity": affinity}, count=1)]
    return converge(Node(system, rules, allow_management=True), [Irq(system)])


def affinities(machine: Machine) -> list[str]:
    return [(machine.root / f"proc/irq/{irq}/smp_affinity_list").read_text().strip() for irq in IRQS]


def test_local_assigns_all_cpus_of_the_numa_node_to_each_interrupt(machine):
    assert len(set_affinity(machine, "local").changes) == 1
    assert affinities(machine) == [local_cpus(machine)] * 3
    assert not set_affinity(machine, "local").changes


def test_spread_assigns_one_cpu_after_another_to_the_interrupts(machine):
    """Interrupts are sorted as numbers: 98, 99, 100."""
    set_affinity(machine, "spread")
    assert affinities(machine) == ["0", "1", "2"]
    assert not set_affinity(machine, "spread").changes


def test_the_affinity_of_each_interrupt_is_restored(machine):
    machine.write("/proc/irq/99/smp_affinity_list", "7")
    (change,) = set_affinity(machine, "local").changes
    system = System(str(machine.root))
    Irq(system).apply(Node(system, allow_management=True), change.reversed())
    assert affinities(machine) == ["0-63", "7", "0-63"]


def test_interrupts_that_the_kernel_manages_are_not_changed(machine):
    (machine.root / "proc/irq/99/smp_affinity_list").chmod(0o444)
    set_affinity(machine, "local")
    assert affinities(machine) == [local_cpus(machine), "0-63", local_cpus(machine)]


class RefusingSystem(System):
    """Refuses writes to interrupt 99 with an error of the kernel."""

    def __init__(self, root: str, code: int) -> None:
        super().__init__(root)
        self._code = code

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        if "/99/" in path:
            raise refused(step, self._code, path)
        super().write(path, value, step, fix)


def test_an_interrupt_is_skipped_for_eio_and_all_are_restored_for_another_error(machine):
    assert set_affinity(machine, "local", RefusingSystem(str(machine.root), errno.EIO)).changes
    assert affinities(machine) == [local_cpus(machine), "0-63", local_cpus(machine)]
    machine.write("/proc/irq/98/smp_affinity_list", "0-63")
    with pytest.raises(Failed, match="let CPUs 0-.* handle interrupt 99 .*ENOSPC.*The node is in its previous state"):
        set_affinity(machine, "local", RefusingSystem(str(machine.root), errno.ENOSPC))
    assert affinities(machine)[:2] == ["0-63", "0-63"]


def test_irqbalance_is_refused_unless_it_leaves_the_nic_alone(machine):
    machine.write("/proc/812/comm", "irqbalance")
    machine.write("/proc/812/status", "Uid:\t0\t0\t0\t0")
    machine.write("/proc/812/cmdline", "/usr/sbin/irqbalance\0--foreground\0")
    plan = machine.plan(Irq, {NIC: {"irq_affinity": "local"}})
    assert "start it with --banmod=mlx5_core" in str(plan.refusals[0])
    machine.write("/proc/812/cmdline", "/usr/sbin/irqbalance\0--banmod=mlx5_core\0")
    assert not machine.plan(Irq, {NIC: {"irq_affinity": "local"}}).refusals


def test_options_of_irqbalance_that_exclude_an_interrupt_are_recognized():
    assert _excluded(["irqbalance", "-m", "ice"], "ice", ["1"])
    assert _excluded(["irqbalance", "-i", "1", "--banirq=2"], "ice", ["1", "2"])
    assert not _excluded(["irqbalance", "--banirq=2"], "ice", ["1", "2"])
    assert not _excluded(["irqbalance"], "ice", [])
    assert _excluded(["irqbalance", "-mice"], "ice", ["1"]) and _excluded(["irqbalance", "--banmod", "ice"], "ice", [])
    assert not _excluded(["irqbalance", "--pid=/run/x-mice"], "ice", ["1"])
    assert not _excluded(["irqbalance", "--policyscript=/etc/a -m ice"], "ice", ["1"])


def test_a_process_of_a_pod_with_the_name_of_irqbalance_does_not_count(machine):
    """It can neither prevent the change nor hide the real irqbalance."""

    def process(number, command, user="0", mounts=""):
        machine.write(f"/proc/{number}/comm", "irqbalance")
        machine.write(f"/proc/{number}/cmdline", command)
        machine.write(f"/proc/{number}/status", f"Name:\tirqbalance\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        machine.write(f"/proc/{number}/mountinfo", mounts)

    def refusals():
        return machine.plan(Irq, {NIC: {"irq_affinity": "local"}}).refusals

    in_container = "600 599 0:55 /irq /proc/irq ro,nosuid - proc proc rw\n"
    process(1000, "irqbalance\0", user="1000")
    process(1001, "irqbalance\0", mounts=in_container)
    (machine.root / "proc/1001/cmdline").write_bytes(b"\xff\xfe\0")
    assert not refusals()
    process(812, "/usr/sbin/irqbalance\0--foreground\0")
    process(1002, "irqbalance\0--banmod=mlx5_core\0", mounts=in_container)
    assert refusals()
    process(812, "/usr/sbin/irqbalance\0--banmod=mlx5_core\0")
    assert not refusals()
    process(1003, "irqbalance\0")
    (machine.root / "proc/1003/status").unlink()  # it is just ending
    assert not refusals()


def test_irqbalance_does_not_prevent_that_recorded_cpus_are_restored(machine):
    (change,) = set_affinity(machine, "local").changes
    machine.write("/proc/812/comm", "irqbalance")
    machine.write("/proc/812/status", "Uid:\t0\t0\t0\t0")
    machine.write("/proc/812/cmdline", "/usr/sbin/irqbalance\0")
    system = System(str(machine.root))
    assert Irq(system).check(Node(system, allow_management=True), change.reversed()) is None


def test_devices_without_interrupts_or_cpus_are_refused(machine):
    system = System(str(machine.root))
    rules = [Rule("bond", selector({"interface": "bond0", "type": "virtual"}), {"irq_affinity": "local"})]
    with pytest.raises(HostError, match="bond0: it has no interrupts of its own"):
        Irq(system).plan(Node(system, rules, allow_management=True))
    machine.write("/sys/devices/system/node/node0/cpulist", "")
    with pytest.raises(HostError, match="NUMA node 0 has no CPUs"):
        machine.plan(Irq, {NIC: {"irq_affinity": "local"}})
