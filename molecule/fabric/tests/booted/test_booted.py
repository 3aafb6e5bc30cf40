# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After a boot, the settings are applied without Ansible."""

from __future__ import annotations


def test_the_boot_service_has_applied_the_settings(host):
    assert host.service("lanewise-fabric").is_running
    reported = host.check_output("journalctl --boot --output=cat --unit=lanewise-fabric")
    assert reported.count("num_vfs") == 2
