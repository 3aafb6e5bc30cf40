# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import roce
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.roce import Roce
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

ETHERNET_PF, INFINIBAND_PF, NIC_WITHOUT_RDMA = "0000:16:00.0", "0000:49:00.0", "0000:01:00.0"
CONFIGFS = "/sys/kernel/config/rdma_cm"


@pytest.fixture
def machine():
    with Machine("sriov") as machine:
        (machine.root / CONFIGFS.lstrip("/")).mkdir(parents=True)
        yield machine


def rdma_device(machine: Machine) -> str:
    return next((machine.root / f"sys/bus/pci/devices/{ETHERNET_PF}/infiniband").iterdir()).name


def test_values_without_a_folder_are_unset_and_a_plan_makes_no_folder(machine):
    plan = machine.plan(Roce, {ETHERNET_PF: {"roce": {"mode": "v2", "tos": 106}}})
    device = rdma_device(machine)
    assert [str(change) for change in plan.changes] == [
        f"{ETHERNET_PF}: {device} port 1 mode unset -> v2",
        f"{ETHERNET_PF}: {device} port 1 tos unset -> 106",
    ]
    assert not list((machine.root / CONFIGFS.lstrip("/")).iterdir())


def test_a_value_in_configfs_is_compared(machine):
    folder = f"{CONFIGFS}/{rdma_device(machine)}/ports/1"
    machine.write(f"{folder}/default_roce_mode", "RoCE v2")
    machine.write(f"{folder}/default_roce_tos", "0")
    plan = machine.plan(Roce, {ETHERNET_PF: {"roce": {"mode": "v2", "tos": 106}}})
    assert [(change.before, change.after) for change in plan.changes] == [(0, 106)]


def test_a_traffic_class_is_read_as_the_driver_shows_it(machine):
    path = f"/sys/class/infiniband/{rdma_device(machine)}/tc/1/traffic_class"
    settings = {ETHERNET_PF: {"roce": {"traffic_class": 106}}}
    assert "only DOCA-OFED has it" in str(machine.plan(Roce, settings).refusals[0])
    machine.write(path, "Global tclass=106")
    assert not machine.plan(Roce, settings).changes
    machine.write(path, "Global tclass=106\nsrc_ip=192.0.2.1,tclass=8")
    assert not machine.plan(Roce, settings).changes
    machine.write(path, "src_ip=192.0.2.1,tclass=106")
    assert machine.plan(Roce, settings).changes
    machine.write(path, "")
    assert [str(change) for change in machine.plan(Roce, settings).changes][0].endswith("traffic_class unset -> 106")


def test_unsupported_values_are_refused(machine):
    assert "is InfiniBand" in str(machine.plan(Roce, {INFINIBAND_PF: {"roce": {"tos": 1}}}).refusals[0])
    assert "not in the range 0 to 255" in str(machine.plan(Roce, {ETHERNET_PF: {"roce": {"tos": 256}}}).refusals[0])
    machine.remove(CONFIGFS)
    assert not machine.plan(Roce, {ETHERNET_PF: {"roce": {"tos": 1}}}, kernel_modules=["rdma-cm"]).refusals
    assert "load rdma_cm" in str(machine.plan(Roce, {ETHERNET_PF: {"roce": {"tos": 1}}}).refusals[0])
    machine.remove("/sys/kernel/config")
    settings = {ETHERNET_PF: {"roce": {"tos": 1}}}
    assert "mount configfs" in str(machine.plan(Roce, settings, kernel_modules=["rdma_cm"]).refusals[0])
    with pytest.raises(HostError, match="has no RDMA device"):
        machine.plan(Roce, {NIC_WITHOUT_RDMA: {"roce": {"tos": 1}}})


def test_settings_of_a_loaded_rdma_cm_are_read_when_configfs_is_mounted(machine, monkeypatch):
    """At boot, systemd mounts configfs only after rdma_cm was loaded. It is waited for once, not for each NIC."""
    settings = {ETHERNET_PF: {"roce": {"tos": 106}}}
    machine.remove(CONFIGFS)
    machine.write("/sys/module/rdma_cm/refcnt", "0")
    assert "mount configfs" in str(machine.plan(Roce, settings).refusals[0])
    machine.write("/run/systemd/system/x", "")
    waited = []

    def mount(seconds: float) -> None:
        waited.append(seconds)
        machine.write(f"{CONFIGFS}/{rdma_device(machine)}/ports/1/default_roce_tos", "106")

    monkeypatch.setattr(roce.time, "sleep", mount)
    plan = machine.plan(Roce, settings)
    assert waited and not plan.changes and not plan.refusals
    machine.remove(CONFIGFS)
    monkeypatch.setattr(roce.time, "sleep", waited.append)
    monkeypatch.setattr(roce, "_MOUNT_TIMEOUT_SECONDS", 0.01)
    assert "mount configfs" in str(machine.plan(Roce, settings).refusals[0])


@pytest.mark.parametrize("supported", ["v1", "v2"])
def test_values_that_could_not_be_read_become_the_defaults_of_the_kernel(machine, supported):
    """The timer that undoes a run's changes runs in another process, which has only the recorded values."""
    device = rdma_device(machine)
    shown = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
    folder, traffic_class = f"{CONFIGFS}/{device}/ports/1", f"/sys/class/infiniband/{device}/tc/1/traffic_class"
    machine.write(f"/sys/class/infiniband/{device}/ports/1/gid_attrs/types/0", "IB/RoCE v1")
    machine.write(f"/sys/class/infiniband/{device}/ports/1/gid_attrs/types/1", shown[supported])
    machine.write(f"{folder}/default_roce_mode", shown["v1" if supported == "v2" else "v2"])
    machine.write(f"{folder}/default_roce_tos", "106")
    machine.write(traffic_class, "Global tclass=106")
    changes = [
        Change("roce", ETHERNET_PF, f"{device} port 1 {name}", None, after)
        for name, after in (("mode", "v1"), ("tos", 106), ("traffic_class", 106))
    ]
    assert not boot.undo(System(str(machine.root)), changes)
    texts = [machine.root / path[1:] for path in (f"{folder}/default_roce_mode", f"{folder}/default_roce_tos")]
    assert [path.read_text() for path in texts] == [shown[supported], "0"]
    assert (machine.root / traffic_class[1:]).read_text() == "-1"  # the driver then shows no value


def test_values_that_were_lost_with_rdma_cm_or_their_device_are_not_restored(machine):
    device = rdma_device(machine)
    system = System(str(machine.root))
    node = Node(system, allow_management=True)
    wanted = {ETHERNET_PF: {"mlx5_99 port 1 tos": 0, f"{device} port 1 tos": 0}}
    assert [change.setting for change in Roce(system).plan(node, wanted).changes] == [f"{device} port 1 tos"]
    machine.remove(CONFIGFS)
    plan = Roce(system).plan(node, wanted)
    assert not plan.changes and not plan.refusals
