# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.node import apply, refusals


@on_a_node
def test_an_mtu_is_set_and_a_second_run_changes_nothing():
    pair("rail0")
    assert apply(Mtu, {"rail0": {"mtu": 9000}}, check_mode=True).changes
    assert "mtu 1500" in run("ip link show rail0")
    outcome = apply(Mtu, {"rail0": {"mtu": 9000}})
    assert [str(change) for change in outcome.changes] == ["rail0: mtu 1500 -> 9000"]
    assert "stops while the driver" in outcome.changes[0].interrupts
    assert "mtu 9000" in run("ip link show rail0")


@on_a_node
def test_an_mtu_outside_the_limits_of_the_driver_is_refused():
    pair("rail0")
    refused = refusals(Mtu, {"rail0": {"mtu": 70000}})
    assert refused == ["rail0: mtu: the driver of rail0 does not accept 70000 (request 68 to 65535)"]
    assert "mtu 1500" in run("ip link show rail0")
    assert refusals(Mtu, {"rail0": {"mtu": 60}})
