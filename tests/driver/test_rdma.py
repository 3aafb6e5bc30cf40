# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA devices: how they are read from a made-up sysfs, and requests to this machine's kernel if it supports RDMA."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod, on_a_node
from lanewise_driver.base.errors import KernelError
from lanewise_driver.kernel import rdma
from lanewise_driver.kernel.rdma import CharDevice


def write_sysfs(root: Path) -> None:
    """Write the sysfs of a node with a RoCE and an InfiniBand device, as in Linux 6.12."""
    for number, (address, layer) in enumerate((("0000:8a:00.0", "Ethernet"), ("0000:8b:00.0", "InfiniBand"))):
        name = f"mlx5_{number}"
        device = root / f"devices/pci0000:80/{address}/infiniband/{name}"
        port = device / "ports/1"
        port.mkdir(parents=True)
        (root / "class/infiniband").mkdir(parents=True, exist_ok=True)
        (root / "class/infiniband" / name).symlink_to(device)
        (port / "link_layer").write_text(f"{layer}\n")
        entries = {"infiniband_verbs": [(f"uverbs{number}", 231, 192 + number)]}
        if layer == "InfiniBand":
            entries["infiniband_mad"] = [("umad0", 231, 0), ("issm0", 231, 64)]
        for subsystem, char_devices in entries.items():
            for entry, major, minor in char_devices:
                folder = root / "class" / subsystem / entry
                folder.mkdir(parents=True)
                (folder / "ibdev").write_text(f"{name}\n")
                (folder / "dev").write_text(f"{major}:{minor}\n")
    for name in ("infiniband_verbs", "infiniband_mad"):
        (root / "class" / name / "abi_version").write_text("6\n")
    manager = root / "class/misc/rdma_cm"
    manager.mkdir(parents=True)
    (manager / "dev").write_text("10:58\n")


def test_rdma_devices_of_a_pci_function_are_found(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_sysfs(tmp_path)
    assert rdma.devices("0000:8a:00.0", root) == ["mlx5_0"]
    assert rdma.devices("0000:8c:00.0", root) == []
    of_subfunction = tmp_path / "devices/pci0000:80/0000:8a:00.0/mlx5_core.sf.4/infiniband/mlx5_7"
    software_device = tmp_path / "devices/virtual/infiniband/rxe0"
    for device in (of_subfunction, software_device):
        device.mkdir(parents=True)
        (tmp_path / "class/infiniband" / device.name).symlink_to(device)
    assert rdma.devices("0000:8a:00.0", root) == ["mlx5_0", "mlx5_7"]
    assert rdma.devices("0000:8a:00.0", str(tmp_path / "none")) == []


def test_only_an_infiniband_device_moves_before_its_interface(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_sysfs(tmp_path)
    assert not rdma.moves_before_interface("mlx5_0", root)
    assert rdma.moves_before_interface("mlx5_1", root)
    assert rdma.link_layer("mlx5_9", root) == ""


def test_management_devices_are_listed_only_on_request(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_sysfs(tmp_path)
    assert rdma.char_devices("mlx5_0", root) == [
        CharDevice("/dev/infiniband/uverbs0", 231, 192),
        CharDevice("/dev/infiniband/rdma_cm", 10, 58),
    ]

    def names(**options: bool) -> list[str]:
        return [device.path.rpartition("/")[2] for device in rdma.char_devices("mlx5_1", root, **options)]

    assert names() == ["uverbs1", "rdma_cm"]
    assert names(management=True) == ["uverbs1", "issm0", "umad0", "rdma_cm"]
    assert rdma.char_devices("mlx5_2", root) == []


@on_a_node
def test_moves_of_an_rdma_device_that_does_not_exist_fail() -> None:
    with Pod() as pod:
        assert rdma.side("no_such_0", pod.pin) == "missing"
        with pytest.raises(KernelError, match="not found"):
            rdma.move("no_such_0", pod.pin)
        with pytest.raises(KernelError, match="not found"):
            rdma.move("no_such_0", pod.pin, back=True)


@on_a_node
def test_the_rdma_mode_is_shared_or_exclusive() -> None:
    mode = rdma.mode()
    if mode is None:
        pytest.skip("this kernel has no RDMA")
    assert mode in ("shared", "exclusive")
