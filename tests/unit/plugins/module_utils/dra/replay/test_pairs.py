# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the devices of a job are aligned pairs of a GPU and a NIC."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.pairs import aligned, kinds

SITE = {
    "accelerators.example.com": {"knowledge": {"kinds": {"gpu": {}}}},
    "gpu-nics.example.com": {"knowledge": {"kinds": {"rdma": {}}}},
    "lanewise.dev": None,
}
ROOTS: dict[tuple[str, str, str], str | None] = {
    ("accelerators.example.com", "n", "0"): "pci0000:00",
    ("accelerators.example.com", "n", "1"): "pci0000:40",
    ("accelerators.example.com", "n", "2"): None,
    ("gpu-nics.example.com", "n", "0"): "pci0000:00",
    ("gpu-nics.example.com", "n", "1"): "pci0000:40",
}


def allocation_results(*names: str) -> list[dict[str, str]]:
    """The results of an allocation. The name g0 stands for the first GPU, n1 for the second NIC, c0 for a CPU."""
    drivers = {"g": "accelerators.example.com", "n": "gpu-nics.example.com", "c": "dra.cpu"}
    return [{"driver": drivers[name[0]], "pool": "n", "device": name[1:]} for name in names]


def test_kinds_follow_from_the_drivers_of_the_site() -> None:
    found = kinds(SITE)
    assert found["accelerators.example.com"] == "gpu" and found["gpu-nics.example.com"] == "nic"
    assert found["gpu.nvidia.com"] == found["gaudi.intel.com"] == "gpu" and found["lanewise.dev"] == "nic"
    assert "dra.cpu" not in found
    with pytest.raises(Problems):
        kinds({"gpu.example.com": {}})


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("g0", "n0"), True),
        (("g0", "g1", "n1", "n0", "c0"), True),
        (("g0", "n1"), False),
        (("g0", "g1", "n0"), False),
        (("g2", "n0"), False),
        (("g0", "n0", "n1"), True),
        (("n0", "n1"), None),
        (("g0", "g1"), None),
        ((), None),
    ],
)
def test_devices_are_aligned_if_each_gpu_has_a_nic_on_its_root(devices: tuple[str, ...], expected: bool | None) -> None:
    assert aligned(allocation_results(*devices), ROOTS, kinds(SITE)) is expected
