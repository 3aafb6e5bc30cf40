# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.vf_driver import VfDriver, restore_vf_states
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

PF_WITHOUT_VFS, PF_WITH_VFS = "0000:c9:00.0", "0000:16:00.0"


@pytest.fixture
def machine():
    with Machine("sriov") as machine:
        yield machine


def vf_address(machine: Machine, number: int) -> str:
    return (machine.root / f"sys/bus/pci/devices/{PF_WITH_VFS}/virtfn{number}").resolve().name


def test_vfs_change_from_one_driver_to_another(machine):
    """The machine's VFs 0 to 4 have mlx5_core, 5 and 6 vfio-pci, and 7 has no driver."""
    plan = machine.plan(VfDriver, {PF_WITH_VFS: {"vfs": [{"index": "3-7", "driver": "native"}]}})
    assert [str(change) for change in plan.changes] == [
        f"{PF_WITH_VFS} vf 5: driver vfio-pci -> native",
        f"{PF_WITH_VFS} vf 6: driver vfio-pci -> native",
        f"{PF_WITH_VFS} vf 7: driver none -> native",
    ]
    plan = machine.plan(VfDriver, {PF_WITH_VFS: {"vfs": [{"index": "4-7", "driver": "vfio-pci"}]}})
    assert not plan.refusals
    assert [change.before for change in plan.changes] == ["mlx5_core", "none"]
    assert [bool(change.interrupts) for change in plan.changes] == [True, False]


def test_a_driver_is_planned_for_vfs_that_do_not_exist_yet(machine):
    plan = machine.plan(VfDriver, {PF_WITHOUT_VFS: {"num_vfs": 2, "vf": {"driver": "vfio-pci"}}})
    assert not plan.refusals and [change.before for change in plan.changes] == [None, None]


def test_an_iommu_group_with_a_device_that_the_node_uses_is_refused(machine):
    address, other = vf_address(machine, 7), vf_address(machine, 0)
    group = (machine.root / f"sys/bus/pci/devices/{address}/iommu_group").resolve().name
    machine.link(f"/sys/kernel/iommu_groups/{group}/devices/{other}", f"../../../../devices/{other}")
    plan = machine.plan(VfDriver, {PF_WITH_VFS: {"vfs": [{"index": 7, "driver": "vfio-pci"}]}})
    assert f"{address} shares IOMMU group {group} with {other}, which is bound to mlx5_core" in str(plan.refusals[0])


@pytest.mark.parametrize(
    ("driver", "refused"),
    [("uio_pci_generic", True), ("igb_uio", True), ("pci-stub", False), ("vfio-pci", False), ("mlx5_vfio_pci", False)],
)
def test_vfio_needs_an_iommu_group_without_devices_of_other_drivers_for_user_space(machine, driver, refused):
    address, other = vf_address(machine, 7), vf_address(machine, 0)
    group = (machine.root / f"sys/bus/pci/devices/{address}/iommu_group").resolve().name
    machine.link(f"/sys/kernel/iommu_groups/{group}/devices/{other}", f"../../../../devices/{other}")
    machine.remove(f"/sys/bus/pci/devices/{other}/driver")
    machine.link(f"/sys/bus/pci/devices/{other}/driver", f"../../../bus/pci/drivers/{driver}")
    plan = machine.plan(VfDriver, {PF_WITH_VFS: {"vfs": [{"index": 7, "driver": "vfio-pci"}]}})
    assert bool(plan.refusals) is refused
    assert not refused or f"{other}, which is bound to {driver}" in str(plan.refusals[0])


def test_a_vf_without_an_iommu_group_is_refused_unless_vfio_allows_it(machine):
    machine.remove(f"/sys/bus/pci/devices/{vf_address(machine, 7)}/iommu_group")
    settings = {PF_WITH_VFS: {"vfs": [{"index": 7, "driver": "vfio-pci"}]}}
    assert "not in an IOMMU group" in str(machine.plan(VfDriver, settings).refusals[0])
    machine.write("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
    assert not machine.plan(VfDriver, settings).refusals


def test_a_driver_that_is_not_loaded_is_refused_unless_this_run_loads_it(machine):
    settings = {PF_WITH_VFS: {"vfs": [{"index": 7, "driver": "some-driver"}]}}
    assert "no driver some-driver is loaded" in str(machine.plan(VfDriver, settings).refusals[0])
    assert not machine.plan(VfDriver, settings, kernel_modules=["some_driver"]).refusals


def test_a_vf_of_a_pod_is_never_rebound(machine):
    record = "/var/lib/kubelet/plugins/lanewise.dev/state/0000-11.json"
    machine.write(record, f'{{"devices": ["{vf_address(machine, 4)}"]}}')
    settings = {PF_WITH_VFS: {"vfs": [{"index": 4, "driver": "vfio-pci"}]}}
    refusal = machine.plan(VfDriver, settings).refusals[0]
    assert "in use: a pod has it" in refusal.message and refusal.drain
    assert not machine.plan(VfDriver, {PF_WITH_VFS: {"vfs": [{"index": 4, "driver": "native"}]}}).refusals


def test_native_is_not_a_driver_for_guests_or_user_space(machine):
    resource = VfDriver(System(str(machine.root)))
    for driver in ("vfio-pci", "mlx5_vfio_pci", "pci-stub", "igb_uio", "none", None):
        assert not resource.same("driver", driver, "native")
    assert resource.same("driver", "mlx5_core", "native")


def test_native_needs_that_the_kernel_binds_drivers(machine):
    def refusals(**settings):
        native = {"vfs": [{"index": 5, "driver": "native"}], **settings}
        return [refusal.message for refusal in machine.plan(VfDriver, {PF_WITH_VFS: native}).refusals]

    assert refusals() == [] and refusals(vfs_autoprobe=True) == []
    assert refusals(vfs_autoprobe=False) == ["the kernel binds no driver while vfs_autoprobe is false"]
    machine.write(f"/sys/bus/pci/devices/{PF_WITH_VFS}/sriov_drivers_autoprobe", "0")
    assert refusals() and not refusals(vfs_autoprobe=True)


def test_an_undo_does_not_rebind_a_vf_of_a_pod(machine):
    """The undo of a failed change of num_vfs restores the drivers of all VFs."""
    address = vf_address(machine, 4)
    machine.write("/var/lib/kubelet/plugins/lanewise.dev/state/0000-11.json", f'{{"devices": ["{address}"]}}')
    system = System(str(machine.root))
    override = machine.root / f"sys/bus/pci/devices/{address}/driver_override"
    before = override.read_text() if override.exists() else None
    with pytest.raises(HostError, match="is now in use: a pod has it"):
        restore_vf_states(system, Node(system, allow_management=True), PF_WITH_VFS, {"driver of VF 4": "vfio-pci"})
    assert (override.read_text() if override.exists() else None) == before
