# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The first run of the role on a node."""

from __future__ import annotations


def test_the_predicted_changes_are_made(reported):
    assert reported["predicted"] == reported["done"]
    assert ("sriov", "0000:23:00.0", "num_vfs", 2) in reported["done"]
    assert ("sysctl", "node", "net.core.rmem_max") in {change[:3] for change in reported["done"]}
