# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who uses a card at the moment changes nothing about the machine."""

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

LASTING = ("fingerprint", "groups", "affinity", "gpus")


@pytest.mark.parametrize("name", names())
def test_pods_with_cards_change_no_topology(name: str, tmp_path: Path) -> None:
    root = build(name, tmp_path / name)
    free = as_dict(probe(str(root), diagnose=diagnose))
    nics: list[dict[str, t.Any]] = [nic for nic in free["nics"] if nic["interfaces"] and not nic["representors"]]
    # a pod gets no card that the node needs
    published = set(publication(free).addresses.values())
    given = [nic for nic in nics if nic["address"] in published]
    given = random.Random(name).sample(given, -(-len(given) // 2))
    for nic in given:
        move_to_container(root, nic["address"])
    busy = as_dict(probe(str(root), diagnose=diagnose))
    for part in LASTING:
        assert busy[part] == free[part], part
    elsewhere = {nic["address"]: nic["elsewhere"] for nic in busy["nics"] if nic["elsewhere"]}
    assert elsewhere == {
        nic["address"]: ["interface", "rdma_device"] if nic["rdma_devices"] else ["interface"] for nic in given
    }
    for before, after in zip(free["nics"], busy["nics"]):
        same = ("address", "model", "rail", "rail_source", "nearest_gpus", "numa_node", "physfn", "default_route")
        assert {key: before[key] for key in same} == {key: after[key] for key in same}
    whole = {device["name"]: device for device in publication(free).devices}
    published = publication(busy)
    assert {device["name"] for device in published.devices} == set(whole)
    for device in published.devices:
        same = dict(whole[device["name"]]["attributes"])
        if device["name"] in published.away:
            same = {key: value for key, value in same.items() if key not in INTERFACE_ATTRIBUTES}
        assert device["attributes"] == same
