# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernel has the settings of the inventory."""

from __future__ import annotations

import json


def test_cards_have_the_configured_settings(host, cards):
    for address, interface in cards.items():
        assert host.check_output("cat /sys/bus/pci/devices/%s/sriov_numvfs", address) == "2"
        (link,) = json.loads(host.check_output("ip -json -details link show dev %s", interface))
        assert link["mtu"] == 4200
        assert [(vf["trust"], vf["spoofchk"]) for vf in link["vfinfo_list"]] == [(True, False)] * 2
        now = host.check_output("ethtool --show-ring %s", interface).partition("Current hardware settings")[2]
        assert now.split("RX:")[1].split()[0] == "512"


def test_memory_has_the_configured_settings(host):
    pages = host.check_output("cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages")
    assert pages.split() == ["8", "8"]
    assert host.check_output("systemctl show --property=LimitMEMLOCK containerd.service") == "LimitMEMLOCK=infinity"


def test_the_kernel_has_the_configured_settings(host):
    assert host.check_output("cat /proc/sys/net/core/rmem_max") == "8388608"
    assert "ib_core" in host.check_output("cut -d' ' -f1 /proc/modules").split()


def test_the_boot_service_is_enabled(host):
    assert host.service("lanewise-fabric").is_enabled
