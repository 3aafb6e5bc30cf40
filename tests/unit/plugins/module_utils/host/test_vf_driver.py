# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.vf_driver import VfDriver
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

EMPTY_PF, LEGACY_PF = "0000:c9:00.0", "0000:16:00.0"


@pytest.fixture
def machine():
    with Machine("sriov") as one:
        yield one


def vf(machine: Machine, number: int) -> str:
    return (machine.root / f"sys/bus/pci/devices/{LEGACY_PF}/virtfn{number}").resolve().name


def test_vfs_change_from_one_driver_to_another(machine):
    """The machine's VFs 0 to 4 have mlx5_core, 5 and 6 vfio-pci, and 7 has no driver."""
    plan = machine.planned(VfDriver, {LEGACY_PF: {"vfs": [{"index": "3-7", "driver": "native"}]}})
    assert [str(change) for change in plan.changes] == [
        f"{LEGACY_PF} vf 5: driver vfio-pci -> native",
        f"{LEGACY_PF} vf 6: driver vfio-pci -> native",
        f"{LEGACY_PF} vf 7: driver none -> native",
    ]
    plan = machine.planned(VfDriver, {LEGACY_PF: {"vfs": [{"index": "4-7", "driver": "vfio-pci"}]}})
    assert not plan.refusals
    assert [change.before for change in plan.changes] == ["mlx5_core", "none"]
    assert [bool(change.interrupts) for change in plan.changes] == [True, False]


def test_a_driver_is_planned_for_vfs_that_do_not_exist_yet(machine):
    plan = machine.planned(VfDriver, {EMPTY_PF: {"num_vfs": 2, "vf": {"driver": "vfio-pci"}}})
    assert not plan.refusals and [change.before for change in plan.changes] == [None, None]


def test_an_iommu_group_with_a_device_that_the_node_uses_is_refused(machine):
    one, other = vf(machine, 7), vf(machine, 0)
    group = (machine.root / f"sys/bus/pci/devices/{one}/iommu_group").resolve().name
    machine.link(f"/sys/kernel/iommu_groups/{group}/devices/{other}", f"../../../../devices/{other}")
    plan = machine.planned(VfDriver, {LEGACY_PF: {"vfs": [{"index": 7, "driver": "vfio-pci"}]}})
    assert f"{one} shares IOMMU group {group} with {other}, which is bound to mlx5_core" in str(plan.refusals[0])


def test_a_vf_without_an_iommu_group_is_refused_unless_vfio_allows_it(machine):
    machine.remove(f"/sys/bus/pci/devices/{vf(machine, 7)}/iommu_group")
    settings = {LEGACY_PF: {"vfs": [{"index": 7, "driver": "vfio-pci"}]}}
    assert "not in an IOMMU group" in str(machine.planned(VfDriver, settings).refusals[0])
    machine.write("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
    assert not machine.planned(VfDriver, settings).refusals


def test_a_driver_that_is_not_loaded_is_refused_unless_this_run_loads_it(machine):
    settings = {LEGACY_PF: {"vfs": [{"index": 7, "driver": "some-driver"}]}}
    assert "no driver some-driver is loaded" in str(machine.planned(VfDriver, settings).refusals[0])
    assert not machine.planned(VfDriver, settings, kernel_modules=["some_driver"]).refusals


def test_a_vf_of_a_pod_is_never_rebound(machine):
    record = "/var/lib/kubelet/plugins/lanewise.dev/state/0000-11.json"
    machine.write(record, f'{{"devices": ["{vf(machine, 4)}"]}}')
    settings = {LEGACY_PF: {"vfs": [{"index": 4, "driver": "vfio-pci"}]}}
    refusal = machine.planned(VfDriver, settings).refusals[0]
    assert "in use: a pod has it" in refusal.message and refusal.drain
    assert not machine.planned(VfDriver, {LEGACY_PF: {"vfs": [{"index": 4, "driver": "native"}]}}).refusals
