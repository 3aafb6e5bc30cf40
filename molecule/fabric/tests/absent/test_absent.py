# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes have their state from before the first run of the role."""

from __future__ import annotations

import pytest


def test_cards_have_their_original_settings(host, cards):
    for address, interface in cards.items():
        assert host.check_output("cat /sys/bus/pci/devices/%s/sriov_numvfs", address) == "0"
        assert host.check_output("cat /sys/class/net/%s/mtu", interface) == "1500"
        now = host.check_output("ethtool --show-ring %s", interface).partition("Current hardware settings")[2]
        assert now.split("RX:")[1].split()[0] == "256"


def test_the_node_has_its_original_settings(host):
    pages = host.check_output("cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages")
    assert pages.split() == ["0", "0"]
    assert host.check_output("cat /proc/sys/net/core/rmem_max") == "212992"
    assert "infinity" not in host.check_output("systemctl show --property=LimitMEMLOCK containerd.service")


@pytest.mark.parametrize(
    "path",
    (
        "/etc/lanewise",
        "/etc/sysctl.d/90-lanewise.conf",
        "/etc/systemd/system/lanewise-fabric.service",
        "/etc/systemd/system/lanewise-fabric-network.service",
        "/opt/lanewise",
    ),
)
def test_files_of_the_role_are_removed(host, path):
    assert not host.file(path).exists
