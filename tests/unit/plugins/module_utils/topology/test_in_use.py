# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology of a machine stays the same while pods have its NICs."""

from __future__ import annotations

import random
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import INTERFACE_ATTRIBUTES, publication
from ansible_collections.lanewise.dra.tests.machines.builder import build, move_to_container
from ansible_collections.lanewise.dra.tests.machines.description import names

#: The parts of the facts that contain no state of interfaces.
UNCHANGED = ("fingerprint", "groups", "affinity", "gpus")


@pytest.mark.parametrize("name", names())
def test_nics_in_pods_do_not_change_the_topology(name: str, tmp_path: Path) -> None:
    root = build(name, tmp_path / name)
    free = as_dict(probe(str(root), diagnose=diagnose))
    published = publication(free)
    candidates: list[dict[str, t.Any]] = [
        nic
        for nic in free["nics"]
        if nic["interfaces"] and not nic["representors"] and nic["address"] in published.addresses.values()
    ]
    in_pods = random.Random(name).sample(candidates, -(-len(candidates) // 2))
    for nic in in_pods:
        move_to_container(root, nic["address"])
    busy = as_dict(probe(str(root), diagnose=diagnose))
    for part in UNCHANGED:
        assert busy[part] == free[part], part
    elsewhere = {nic["address"]: nic["elsewhere"] for nic in busy["nics"] if nic["elsewhere"]}
    assert elsewhere == {
        nic["address"]: ["interface", "rdma_device"] if nic["rdma_devices"] else ["interface"] for nic in in_pods
    }
    for before, after in zip(free["nics"], busy["nics"]):
        unchanged = ("address", "model", "rail", "rail_source", "nearest_gpus", "numa_node", "physfn", "default_route")
        assert {key: before[key] for key in unchanged} == {key: after[key] for key in unchanged}
    devices_before = {device["name"]: device for device in published.devices}
    published = publication(busy)
    assert {device["name"] for device in published.devices} == set(devices_before)
    for device in published.devices:
        expected = devices_before[device["name"]]["attributes"]
        if device["name"] in published.away:
            expected = {key: value for key, value in expected.items() if key not in INTERFACE_ATTRIBUTES}
        assert device["attributes"] == expected
