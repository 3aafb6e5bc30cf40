# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes that were changed outside the collection. The last run repaired the first node, an earlier run the second."""

from __future__ import annotations


def test_drift_is_predicted_and_repaired(host, reported):
    if host.ansible.get_variables()["inventory_hostname"] != "lab-0":
        assert reported["predicted"] == []
        return
    assert reported["predicted"] == reported["done"]
    assert {change[:3] for change in reported["done"]} >= {
        ("sriov", "0000:43:00.0", "num_vfs"),
        ("vf", "0000:43:00.0 vf 0", "trust"),
        ("sysctl", "node", "net.core.rmem_max"),
    }
    assert not any(device.startswith("0000:23") for _resource, device, _setting, _after in reported["done"])
