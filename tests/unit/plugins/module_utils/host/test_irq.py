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
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.irq import Irq, _banned
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

NIC = "0000:16:00.0"


@pytest.fixture
def machine():
    with Machine("sriov") as one:
        for irq in (98, 99, 100):
            one.write(f"/sys/bus/pci/devices/{NIC}/msi_irqs/{irq}", "msix")
            one.write(f"/proc/irq/{irq}/smp_affinity_list", "0-63")
        one.cpus = (one.root / "sys/devices/system/node/node0/cpulist").read_text().strip()
        yield one


def run(machine: Machine, way: str, system: System | None = None):
    system = system or System(str(machine.root))
    rules = [Rule(NIC, selector({"address": NIC}), {"irq_affinity": way}, count=1)]
    return converge(Node(system, rules, allow_management=True), [Irq(system)])


def shown(machine: Machine) -> list[str]:
    return [(machine.root / f"proc/irq/{irq}/smp_affinity_list").read_text().strip() for irq in (98, 99, 100)]


def test_local_lets_all_cpus_of_the_numa_node_serve_each_interrupt(machine):
    assert len(run(machine, "local").changes) == 1
    assert shown(machine) == [machine.cpus] * 3
    assert not run(machine, "local").changes


def test_spread_gives_each_interrupt_a_cpu_in_turn(machine):
    """By number, not by name: 98, 99, 100."""
    run(machine, "spread")
    assert shown(machine) == ["0", "1", "2"]
    assert not run(machine, "spread").changes


def test_the_affinity_of_each_interrupt_is_restored(machine):
    machine.write("/proc/irq/99/smp_affinity_list", "7")
    (change,) = run(machine, "local").changes
    system = System(str(machine.root))
    Irq(system).apply(Node(system, allow_management=True), change.reversed())
    assert shown(machine) == ["0-63", "7", "0-63"]


def test_interrupts_that_the_kernel_manages_are_not_changed(machine):
    (machine.root / "proc/irq/99/smp_affinity_list").chmod(0o444)
    run(machine, "local")
    assert shown(machine) == [machine.cpus, "0-63", machine.cpus]


class Refusing(System):
    """Refuses writes to one interrupt like a kernel."""

    def __init__(self, root: str, code: int) -> None:
        super().__init__(root)
        self._code = code

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        if "/99/" in path:
            raise refused(step, self._code, path)
        super().write(path, value, step, fix)


def test_a_refusal_at_the_write_is_skipped_or_undone(machine):
    assert run(machine, "local", Refusing(str(machine.root), errno.EIO)).changes
    assert shown(machine) == [machine.cpus, "0-63", machine.cpus]
    machine.write("/proc/irq/98/smp_affinity_list", "0-63")
    with pytest.raises(Failed, match="let CPUs 0-.* handle interrupt 99 .*ENOSPC.*The node is in its previous state"):
        run(machine, "local", Refusing(str(machine.root), errno.ENOSPC))
    assert shown(machine)[:2] == ["0-63", "0-63"]


def test_irqbalance_is_refused_unless_it_leaves_the_nic_alone(machine):
    machine.write("/proc/812/comm", "irqbalance")
    machine.write("/proc/812/cmdline", "/usr/sbin/irqbalance\0--foreground\0")
    plan = machine.planned(Irq, {NIC: {"irq_affinity": "local"}})
    assert "start it with --banmod=mlx5_core" in str(plan.refusals[0])
    machine.write("/proc/812/cmdline", "/usr/sbin/irqbalance\0--banmod=mlx5_core\0")
    assert not machine.planned(Irq, {NIC: {"irq_affinity": "local"}}).refusals


def test_which_options_make_irqbalance_leave_an_interrupt_alone():
    assert _banned(["irqbalance", "-m", "ice"], "ice", ["1"])
    assert _banned(["irqbalance", "-i", "1", "--banirq=2"], "ice", ["1", "2"])
    assert not _banned(["irqbalance", "--banirq=2"], "ice", ["1", "2"])
    assert not _banned(["irqbalance"], "ice", [])


def test_devices_without_interrupts_or_cpus_are_refused(machine):
    system = System(str(machine.root))
    rules = [Rule("bond", selector({"interface": "bond0", "type": "virtual"}), {"irq_affinity": "local"})]
    with pytest.raises(HostError, match="bond0: it has no interrupts of its own"):
        Irq(system).plan(Node(system, rules, allow_management=True))
    machine.write("/sys/devices/system/node/node0/cpulist", "")
    with pytest.raises(HostError, match="NUMA node 0 has no CPUs"):
        machine.planned(Irq, {NIC: {"irq_affinity": "local"}})
