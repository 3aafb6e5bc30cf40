# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is planned for the VFs of a machine, and what is refused. The lab's tests run it on a real kernel."""

from __future__ import annotations

import json
import os
import signal
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import sriov
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.sriov import Sriov
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode


def planned_changes(node: Node, **options: t.Any) -> list[str]:
    return [str(change) for change in converge(node, [Sriov(node.system)], check_mode=True, **options).changes]


def pf_with_vfs(node: Node, vfs: int) -> str:
    return next(
        key
        for key, device in sorted(node.devices.items())
        if len(device.vfs) == vfs and not device.physfn and device.total_vfs
    )


def test_only_differences_are_planned(make_node: MakeNode) -> None:
    address = pf_with_vfs(make_node("sriov"), 8)
    assert planned_changes(make_node("sriov", {"address": address}, {"num_vfs": 8, "vfs_autoprobe": True})) == []
    node = make_node("sriov", {"address": address}, {"num_vfs": 4, "vfs_autoprobe": False})
    assert planned_changes(node) == [f"{address}: vfs_autoprobe true -> false", f"{address}: num_vfs 8 -> 4"]
    outcome = converge(node, [Sriov(node.system)], check_mode=True)
    assert outcome.drain == [f"{address}: all 8 VFs of {address} are removed and recreated"]


def test_unsupported_values_are_refused_before_any_change(make_node: MakeNode) -> None:
    node = make_node("sriov", {"type": ["pf", "vf"]}, {"num_vfs": 1000})
    with pytest.raises(Refused) as failure:
        planned_changes(node)
    text = str(failure.value)
    assert "1000 VFs are wanted, but the card offers" in text
    assert "is itself a VF" in text and "carries the default route" in text
    assert len(failure.value.refusals) == len(node.settings)


def test_the_pf_of_the_default_route_is_not_changed(make_node: MakeNode) -> None:
    node = make_node("sriov", {"driver": "ixgbe"}, {"num_vfs": 2})
    with pytest.raises(Refused, match="default route.*exclude it in the selector"):
        planned_changes(node)
    with pytest.raises(Refused, match="the kernel offers no SR-IOV here"):
        planned_changes(make_node("sriov", {"driver": "ixgbe"}, {"num_vfs": 2}, allow_management=True))


def test_a_claimed_vf_blocks_the_change_until_the_node_is_drained(make_node: MakeNode) -> None:
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address}, {"num_vfs": 2})
    state = Path(node.system.reader.root) / "var/lib/kubelet/plugins/lanewise.dev/state"
    state.mkdir(parents=True)
    (state / "0b7f.json").write_text(json.dumps({"devices": [{"address": node.devices[address].vfs[3]}]}))
    with pytest.raises(Refused, match="a pod has it through the resource claim with UID 0b7f.*drain the node first"):
        planned_changes(node)
    assert planned_changes(node, drained=True) == [f"{address}: num_vfs 8 -> 2"]


def test_a_vf_that_a_pod_got_after_the_plan_is_not_removed(make_node: MakeNode) -> None:
    """Earlier steps of a run, such as a rebuilt initial RAM disk, may take minutes."""
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address}, {"num_vfs": 2})
    root = Path(node.system.reader.root)

    def claim(_changes: object) -> None:
        state = root / "var/lib/kubelet/plugins/lanewise.dev/state"
        state.mkdir(parents=True)
        (state / "0b7f.json").write_text(json.dumps({"devices": [{"address": node.devices[address].vfs[3]}]}))

    with pytest.raises(Failed, match="is now in use: a pod has it through .*0b7f.*drain the node, then run again"):
        converge(node, [Sriov(node.system)], before_changes=claim)
    assert (root / "sys/bus/pci/devices" / address / "sriov_numvfs").read_text().strip() == "8"


#: The driver of a VF in IOMMU group 7, folders of the VF in sysfs, and the file that a program has open.
OPEN_FILES = {
    "a group": ("vfio-pci", [], "/dev/vfio/7"),
    "a group without an IOMMU": ("vfio-pci", [], "/dev/vfio/noiommu-7"),
    "iommufd": ("vfio-pci", ["vfio-dev/vfio3"], "/dev/vfio/devices/vfio3"),
    "iommufd without an IOMMU": ("vfio-pci", ["vfio-dev/noiommu-vfio3"], "/dev/vfio/devices/noiommu-vfio3"),
    "a vendor's VFIO driver": ("mlx5_vfio_pci", ["vfio-dev/vfio3"], "/dev/vfio/7"),
    "UIO": ("igb_uio", ["uio/uio5"], "/dev/uio5"),
}


@pytest.mark.parametrize(("driver", "folders", "path"), OPEN_FILES.values(), ids=OPEN_FILES)
def test_a_vf_that_a_program_has_open_blocks_the_change(
    make_node: MakeNode, driver: str, folders: list[str], path: str
) -> None:
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address}, {"num_vfs": 2})
    root = Path(node.system.reader.root)
    vf = root / "sys/bus/pci/devices" / node.devices[address].vfs[3]
    for name, target in (("driver", f"/sys/bus/pci/drivers/{driver}"), ("iommu_group", "/sys/kernel/iommu_groups/7")):
        (vf / name).unlink(missing_ok=True)
        (vf / name).symlink_to(target)
    for name in folders:
        (vf / name).mkdir(parents=True)
    descriptors = root / "proc/4711/fd"
    descriptors.mkdir(parents=True)
    (descriptors / "0").symlink_to("/dev/null")
    assert planned_changes(node) == [f"{address}: num_vfs 8 -> 2"]
    (descriptors / "9").symlink_to(path)
    with pytest.raises(Refused, match=f"{vf.name} is in use: process 4711 has it open through {driver}"):
        planned_changes(node)


def test_externally_managed_vfs_are_only_counted(make_node: MakeNode) -> None:
    address = pf_with_vfs(make_node("sriov"), 8)
    assert planned_changes(make_node("sriov", {"address": address}, {"num_vfs": 6, "externally_managed": True})) == []
    with pytest.raises(Refused, match="has 8 VFs and is externally managed, but 16 are wanted"):
        planned_changes(make_node("sriov", {"address": address}, {"num_vfs": 16, "externally_managed": True}))


def test_a_setting_is_written_read_back_and_undone(make_node: MakeNode) -> None:
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address}, {"vfs_autoprobe": False})
    outcome = converge(node, [Sriov(node.system)])
    assert outcome.after == {"sriov": {address: {"vfs_autoprobe": False}}}
    assert planned_changes(node) == []
    Sriov(node.system).apply(node, outcome.changes[0].reversed())
    assert planned_changes(node) == [f"{address}: vfs_autoprobe true -> false"]


def test_vfs_without_a_driver_are_not_awaited_for_long(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their driver is not installed. The wait ends some time after the last VF got one."""
    monkeypatch.setattr(sriov, "_NO_DRIVER_SECONDS", 0.3)
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address})
    folder = f"/sys/bus/pci/devices/{address}"
    (Path(f"{node.system.reader.root}{folder}") / "sriov_drivers_autoprobe").write_text("1\n")
    for name in node.devices[address].vfs:
        (Path(node.system.reader.root) / "sys/bus/pci/devices" / name / "driver").unlink(missing_ok=True)
    start = time.monotonic()
    Sriov(node.system)._wait_for_vfs(folder, 8, "set num_vfs")
    assert 0.3 <= time.monotonic() - start < 5
    monkeypatch.setattr(sriov, "_VFS_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(HostError, match="8 of 9 VFs exist"):
        Sriov(node.system)._wait_for_vfs(folder, 9, "set num_vfs")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_undoes_the_changes(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """systemd and sshd send these signals. Another one does not end the undo."""
    address = pf_with_vfs(make_node("sriov"), 8)
    node = make_node("sriov", {"address": address}, {"vfs_autoprobe": False})
    apply = Sriov.apply

    def apply_and_signal(self: Sriov, node: Node, change: Change) -> None:
        apply(self, node, change)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Sriov, "apply", apply_and_signal)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        converge(node, [Sriov(node.system)])
    assert ended.value.code == 128 + number and signal.getsignal(number) is before
    assert planned_changes(node) == [f"{address}: vfs_autoprobe true -> false"]


def test_autoprobe_is_restored_before_the_vfs_are_created(make_node: MakeNode) -> None:
    """The kernel reads it when a VF appears; the recorded settings are in alphabetical order."""
    node = make_node("sriov")
    address = pf_with_vfs(node, 8)
    plan = Sriov(node.system).plan(node, {address: {"num_vfs": 4, "vfs_autoprobe": False}})
    assert [change.setting for change in plan.changes] == ["vfs_autoprobe", "num_vfs"]
