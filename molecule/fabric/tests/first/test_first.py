# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node without any of it."""

from __future__ import annotations


def test_what_is_predicted_is_done(said):
    assert said["predicted"] == said["done"]
    assert ("sriov", "0000:23:00.0", "num_vfs", 2) in said["done"]
    assert ("sysctl", "node", "net.core.rmem_max") in {one[:3] for one in said["done"]}
