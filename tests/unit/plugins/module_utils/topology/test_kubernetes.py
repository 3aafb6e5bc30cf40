# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.kubernetes import standard_attributes

PATH = "/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0"


def test_a_pci_function_has_all_three_attributes():
    assert standard_attributes("0000:1b:00.0", PATH, 1) == {
        "pciBusID": "0000:1b:00.0",
        "pcieRoot": "pci0000:17",
        "numaNode": 1,
    }


@pytest.mark.parametrize("numa", [None, -1])
def test_without_a_numa_node_there_is_no_numanode_attribute(numa):
    assert "numaNode" not in standard_attributes("0000:1b:00.0", PATH, numa)


@pytest.mark.parametrize(
    "path",
    [
        None,
        "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0000:1b:00.0",
        "/sys/devices/platform/40000000.pcie/pci0000:00/0000:1b:00.0",
        "/sys/devices/pci0000:17/0000:17:01.0/0000:1c:00.0",
        "/sys/devices/pci0000:17",
    ],
)
def test_without_a_valid_path_there_is_no_pcieroot_attribute(path):
    assert "pcieRoot" not in standard_attributes("0000:1b:00.0", path, 0)


def test_a_function_in_a_vmd_domain_has_no_attributes():
    path = "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:01:00.0"
    assert standard_attributes("10000:01:00.0", path, 0) == {}
