# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The map of a board has the levels of the probe, and its hash (`shape`) is the same in every release."""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.devices import Machine
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import Board, board_map, nearest
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils import probed

Facts = dict[str, t.Any]


@pytest.mark.parametrize("name", names())
def test_the_map_has_the_levels_between_the_devices(name: str) -> None:
    facts = probed.facts(name)
    board = board_map(facts)
    machine = Machine(facts)
    assert set(board.nics) == {nic["address"] for nic in facts["nics"] if not nic["physfn"]}
    for gpu in board.gpus:
        for nic in board.nics:
            assert board.level(gpu, nic) == machine.level(gpu, nic)[0]
    assert "UNKNOWN" not in board.levels.values()
    assert len(board.shape) == 16


@pytest.mark.parametrize("name", names())
def test_the_nearest_devices_are_those_of_the_probe(name: str) -> None:
    facts = probed.facts(name)
    board = board_map(facts)
    for nic in facts["nics"]:
        near = nic["nearest_gpus"]
        if not nic["physfn"] and near["level"] not in ("SYS", "UNKNOWN"):
            assert board.nearest_gpus(nic["address"]) == (near["level"], tuple(near["devices"]))
    for gpu in facts["gpus"]:
        near = gpu["nearest_nics"]
        if near["level"] not in ("SYS", "UNKNOWN"):
            assert board.nearest_nics(gpu["address"]) == (near["level"], tuple(near["devices"]))


def test_the_shape_of_known_facts_never_changes() -> None:
    """Slices and templates of earlier releases contain this hash."""
    facts: Facts = {
        "functions": {},
        "gpus": [{"address": "0009:01:00.0"}, {"address": "0008:01:00.0"}],
        "nics": [{"address": "10000:01:00.0", "physfn": None}, {"address": "0002:03:00.0", "physfn": None}],
        "affinity": {
            "devices": ["0009:01:00.0", "0008:01:00.0", "10000:01:00.0", "0002:03:00.0"],
            "levels": [
                ["SELF", "NODE", "SYS", "NODE"],
                ["NODE", "SELF", "UNKNOWN", "PIX"],
                ["SYS", "UNKNOWN", "SELF", "SYS"],
                ["NODE", "PIX", "SYS", "SELF"],
            ],
        },
    }
    board = board_map(facts)
    assert board.gpus == ("0008:01:00.0", "0009:01:00.0")
    assert board.nics == ("0002:03:00.0", "10000:01:00.0")
    assert ("0008:01:00.0", "10000:01:00.0") not in board.levels
    assert board.nearest_nics("0008:01:00.0") == ("PIX", ("0002:03:00.0",))
    assert board.nearest_gpus("10000:01:00.0") == ("SYS", ("0009:01:00.0",))
    assert board.shape == "35d63a2988240cad"


def test_only_devices_and_levels_change_the_shape() -> None:
    facts = probed.facts("hgx-h100")
    shape = board_map(facts).shape
    for nic in facts["nics"]:
        nic.update(up=False, interfaces=[], rdma_devices=[], elsewhere=["interface"], rail=None, default_route=True)
    facts["nics"].reverse()
    assert board_map(facts).shape == shape  # neither the use of NICs nor the order of facts is part of the map
    changed = copy.deepcopy(facts)
    pair, level = next(iter(board_map(changed).levels.items()))
    row, column = (changed["affinity"]["devices"].index(address) for address in pair)
    changed["affinity"]["levels"][row][column] = "PXB" if level != "PXB" else "PHB"
    assert board_map(changed).shape != shape
    without_a_gpu = copy.deepcopy(facts)
    without_a_gpu["gpus"].pop()
    assert board_map(without_a_gpu).shape not in (shape, "")


def test_vfs_are_not_part_of_the_map() -> None:
    facts = probed.facts("sriov")
    board = board_map(facts)
    facts["nics"] = [nic for nic in facts["nics"] if not nic["physfn"]]
    assert board_map(facts) == board


@pytest.mark.parametrize("affinity", [None, {}, {"devices": [], "levels": []}, {"devices": ["0000:01:00.0"]}])
def test_facts_without_affinity_have_no_shape(affinity: t.Any) -> None:
    facts = probed.facts("hgx-h100")
    facts["affinity"] = affinity
    board = board_map(facts)
    assert board.shape == "" and not board.levels and len(board.gpus) == 8
    assert board.nearest_gpus(board.nics[0]) == ("UNKNOWN", ())


def test_devices_of_unknown_level_are_not_nearest() -> None:
    assert nearest({"a": "UNKNOWN", "b": "SYS", "c": "SYS"}) == ("SYS", ("b", "c"))
    assert nearest({"a": "UNKNOWN"}) == nearest({}) == ("UNKNOWN", ())
    assert Board().nearest_nics("a") == ("UNKNOWN", ())
