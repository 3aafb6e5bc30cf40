# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Features that an interface or its driver lacks: their settings are refused, and reading them is no error."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.host.access import devlink
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import vf
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.dcb import Dcb
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair
from ansible_collections.lanewise.dra.tests.host.node import refusals


@on_a_node
def test_dcb_is_refused_if_the_driver_does_not_support_it():
    pair("rail0")
    requested = {"trust": "dscp", "pfc": [3], "ets": {"priority_tc": [0] * 8}, "buffer": {"size": [0] * 8}}
    refused = refusals(Dcb, {"rail0": {"dcb": requested}})
    assert len(refused) == 4 and all(
        "the driver of rail0 does not support this part of DCB" in reason for reason in refused
    )


@on_a_node
def test_an_interface_without_vfs_and_a_device_without_an_eswitch_are_no_errors():
    pair("rail0")
    system = System()
    assert vf.read(system, "rail0") == {}
    assert devlink.eswitch_mode(system, "0000:00:00.0") is None
    system.close()
