# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import GPU, NVME, healthy_machine


@pytest.fixture
def machine(tmp_path):
    return healthy_machine(tmp_path / "machine")


@pytest.fixture
def fingerprint(machine):
    return machine.probe().fingerprint


def test_a_fingerprint_is_16_hexadecimal_digits(fingerprint):
    assert len(fingerprint) == 16 and int(fingerprint, 16) >= 0


def test_the_same_machine_on_other_buses_has_the_same_fingerprint(tmp_path, fingerprint):
    assert healthy_machine(tmp_path / "other", buses=(0x38, 0xC0)).probe().fingerprint == fingerprint


def test_links_serial_numbers_and_drivers_do_not_change_the_fingerprint(machine, fingerprint):
    folder = machine.folder("0000:1b:00.0")
    machine.write(f"{folder}/current_link_width", "8")
    machine.write(f"{folder}/current_link_speed", "2.5 GT/s PCIe")
    machine.write(f"{folder}/vpd", b"\x90\x07\x00SN\x04A123\x78")
    (machine.root / folder / "driver").unlink()
    assert machine.probe().fingerprint == fingerprint


def test_vfs_do_not_change_the_fingerprint(machine, fingerprint):
    pf = "0000:1b:00.0"
    machine.vf(pf, 0, f"{machine.folder(pf)[len('sys/devices/') : -len(pf)]}0000:1b:00.1", {"class": "0x020700"})
    assert machine.probe().fingerprint == fingerprint


def test_one_nic_fewer_changes_the_fingerprint(machine, fingerprint):
    (machine.root / "sys/bus/pci/devices/0000:9b:00.0").unlink()
    assert machine.probe().fingerprint != fingerprint


def test_one_gpu_more_changes_the_fingerprint(machine, fingerprint):
    machine.pci("pci0000:97/0000:97:03.0/0000:a0:00.0", GPU, 1)
    assert machine.probe().fingerprint != fingerprint


def test_another_model_in_the_same_slot_changes_the_fingerprint(machine, fingerprint):
    machine.write(f"{machine.folder('0000:1a:00.0')}/device", "0x2335")
    assert machine.probe().fingerprint != fingerprint


def test_a_card_moved_to_another_port_changes_the_fingerprint(fingerprint, tmp_path):
    other = healthy_machine(tmp_path / "other")
    (other.root / "sys/bus/pci/devices/0000:1c:00.0").unlink()
    other.pci("pci0000:17/0000:17:05.0/0000:30:00.0", NVME, 0)
    assert other.probe().fingerprint != fingerprint


def test_another_numa_node_changes_the_fingerprint(machine, fingerprint):
    machine.write(f"{machine.folder('0000:1a:00.0')}/numa_node", "1")
    assert machine.probe().fingerprint != fingerprint


def test_a_lower_maximum_link_width_changes_the_fingerprint(machine, fingerprint):
    machine.write(f"{machine.folder('0000:1a:00.0')}/max_link_width", "8")
    assert machine.probe().fingerprint != fingerprint


@pytest.mark.parametrize(
    "paths",
    [
        ["0000:17:01.0/0000:18:00.0/0000:1a:00.0", "0000:18:00.0/0000:17:01.0/0000:1b:00.0"],
        ["0000:17:01.0/0000:17:01.0/0000:1a:00.0"],
        ["0000:1a:00.0/0000:1a:00.0"],
    ],
)
def test_functions_below_each_other_give_a_fingerprint(tree, paths):
    for path in paths:
        address = path.rpartition("/")[2]
        folder = f"sys/devices/pci0000:17/{path}"
        tree.link(f"sys/bus/pci/devices/{address}", folder)
        tree.write(f"{folder}/class", "0x030200")
        tree.write(f"{folder}/vendor", "0x10de")
        tree.write(f"{folder}/device", "0x2330")
    assert len(tree.probe().fingerprint) == 16
