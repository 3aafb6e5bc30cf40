# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""VFs for VFIO, on a node with an IOMMU."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab.fabric import converge, converge_checked, copy_package
from ansible_collections.lanewise.dra.tests.lab.node import Lab, Node, Shape
from environment import Missing  # tools/lab.py has put its folder on the path

SYS = "/sys/bus/pci/devices"
VF_DRIVER = ("vf_driver", "VfDriver")


@pytest.fixture(scope="module")
def vm() -> t.Iterator[Node]:
    try:
        lab = Lab()
    except Missing as missing:
        pytest.skip(str(missing))
    with lab:
        (node,) = lab.start(1, shape=Shape(iommu=True))
        copy_package(node)
        yield node


@pytest.fixture
def pf(vm: Node) -> t.Iterator[str]:
    address = [device.address for device in vm.devices if device.kind == "nic"][0]
    vm.ssh(f"modprobe igbvf; echo 3 > {SYS}/{address}/sriov_numvfs; udevadm settle")
    yield address
    vm.ssh(f"echo 0 > {SYS}/{address}/sriov_numvfs")


def link_targets(vm: Node, pf: str, link: str) -> list[str]:
    """The name that a symbolic link of each VF points to."""
    return vm.ssh(f"for vf in {SYS}/{pf}/virtfn*; do basename $(readlink $vf/{link} || echo none); done").split()


def test_vfs_are_unbound_and_bound_to_a_driver_by_name(vm: Node, pf: str) -> None:
    converge_checked(vm, [VF_DRIVER], {pf: {"vf": {"driver": "native"}, "vfs": [{"index": "0-1", "driver": "none"}]}})
    assert link_targets(vm, pf, "driver") == ["none", "none", "igbvf"]
    assert len(converge_checked(vm, [VF_DRIVER], {pf: {"vf": {"driver": "igbvf"}}})) == 2
    assert link_targets(vm, pf, "driver") == ["igbvf"] * 3
    assert set(vm.ssh(f"cat {SYS}/{pf}/virtfn*/driver_override").splitlines()) == {"(null)"}


def test_vfio_needs_a_separate_iommu_group(vm: Node, pf: str) -> None:
    if vm.status("modprobe vfio-pci"):
        pytest.skip("this kernel has no vfio-pci")
    groups = link_targets(vm, pf, "iommu_group")
    assert "none" not in groups
    settings = {pf: {"vfs": [{"index": 0, "driver": "vfio-pci"}]}}
    if groups.count(groups[0]) > 1:  # QEMU's switches have no ACS between the VFs of a card
        result = converge(vm, [VF_DRIVER], settings)
        assert f"shares IOMMU group {groups[0]} with" in result["refusals"][0] and not result["steps"]
        assert link_targets(vm, pf, "driver") == ["igbvf"] * 3
    else:
        converge_checked(vm, [VF_DRIVER], settings)
        assert link_targets(vm, pf, "driver") == ["vfio-pci", "igbvf", "igbvf"]
