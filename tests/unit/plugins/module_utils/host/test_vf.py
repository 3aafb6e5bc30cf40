# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.vf import Vf
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.vfs import indexes
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

PF_WITHOUT_VFS, INFINIBAND_PF, PF_WITH_VFS = "0000:c9:00.0", "0000:49:00.0", "0000:16:00.0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, [3]), ("3", [3]), ("0-3,6", [0, 1, 2, 3, 6]), (["0-1", 5], [0, 1, 5]), ("7 - 8", None), ("3-1", None)],
)
def test_indexes_are_numbers_ranges_and_lists_of_both(value, expected):
    if expected is None:
        with pytest.raises(ValueError, match="is not an index"):
            indexes(value)
    else:
        assert indexes(value) == expected


@pytest.fixture(scope="module")
def machine():
    with Machine("sriov") as machine:
        yield machine


def test_all_settings_of_vfs_that_do_not_exist_yet_are_planned(machine):
    settings = {
        "num_vfs": 3,
        "vf": {"trust": True, "vlan": 100, "qos": 3},
        "vfs": [{"index": 1, "mac": "02-00-00-00-00-0A"}, {"index": "1-2", "vlan": 7, "qos": 0, "max_rate": 100}],
    }
    plan = machine.plan(Vf, {PF_WITHOUT_VFS: settings})
    assert not plan.refusals
    assert [str(change).replace(PF_WITHOUT_VFS, "PF") for change in plan.changes] == [
        "PF vf 0: trust unset -> true",
        "PF vf 0: vlan unset -> 100 qos 3",
        "PF vf 1: trust unset -> true",
        "PF vf 1: mac unset -> 02:00:00:00:00:0a",
        "PF vf 1: vlan unset -> 7",
        "PF vf 1: rate unset -> 0 to 100 Mbit/s",
        "PF vf 2: trust unset -> true",
        "PF vf 2: vlan unset -> 7",
        "PF vf 2: rate unset -> 0 to 100 Mbit/s",
    ]


def test_recreated_vfs_lose_their_settings(machine):
    plan = machine.plan(Vf, {PF_WITH_VFS: {"num_vfs": 2, "vf": {"trust": True}}})
    assert [change.before for change in plan.changes] == [None, None]


def test_settings_of_existing_vfs_cannot_be_read_without_a_kernel(machine):
    with pytest.raises(HostError, match="a recorded tree has no kernel"):
        machine.plan(Vf, {PF_WITH_VFS: {"vf": {"trust": True}}})


def test_guids_are_for_infiniband_and_mac_addresses_for_ethernet(machine):
    guids = {"num_vfs": 2, "vfs": [{"index": 0, "node_guid": "11:22:33:44:55:66:77:88"}]}
    assert not machine.plan(Vf, {INFINIBAND_PF: guids}).refusals
    assert "use mac" in str(machine.plan(Vf, {PF_WITHOUT_VFS: guids}).refusals[0])
    mac = {"num_vfs": 2, "vfs": [{"index": 0, "mac": "02:00:00:00:00:01"}]}
    assert "use node_guid and port_guid" in str(machine.plan(Vf, {INFINIBAND_PF: mac}).refusals[0])
    vlan = {"num_vfs": 2, "vf": {"vlan": 3}}
    assert "does not have this setting (leave it out" in str(machine.plan(Vf, {INFINIBAND_PF: vlan}).refusals[0])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"vfs": [{"index": "0-1", "mac": "02:00:00:00:00:01"}]}, "are several VFs, but each needs a different value"),
        ({"vfs": [{"index": 0, "mac": "02:00:00:00:00"}]}, "is not a MAC address"),
        ({"vf": {"qos": 3}}, "qos and vlan_protocol need a VLAN"),
        ({"vfs": [{"index": "x", "trust": True}]}, "not an index or a range"),
        ({"vf": {"vlan": 4096}}, "set vlan of .* vf 0: 4096 is not in the range 0 to 4095"),
        ({"vf": {"vlan": 1, "qos": -1}}, "-1 is not in the range 0 to 7"),
        ({"vf": {"max_rate": 2**32}}, "set max_rate of .* is not in the range"),
    ],
)
def test_invalid_and_contradictory_vf_settings_are_refused(machine, settings, reason):
    with pytest.raises(HostError, match=reason):
        machine.plan(Vf, {PF_WITHOUT_VFS: {"num_vfs": 2, **settings}})


def test_an_index_beyond_the_number_of_vfs_is_refused(machine):
    plan = machine.plan(Vf, {PF_WITHOUT_VFS: {"num_vfs": 2, "vfs": [{"index": 5, "trust": True}]}})
    assert "the PF has 2 VFs (increase num_vfs to 6" in str(plan.refusals[0])
