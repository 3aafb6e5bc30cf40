# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings come back without Ansible."""

from __future__ import annotations


def test_service_has_applied_them(host):
    assert float(host.check_output("cut -d' ' -f1 /proc/uptime")) < 3600
    assert host.service("lanewise-fabric").is_running
