# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The boards of a site, and the nodes that have them."""

from __future__ import annotations

import collections
import copy

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.boards import (
    Boards,
    MatchedBoard,
    RequestSelectors,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts

pytest.importorskip("cel_expr_python")


@pytest.mark.parametrize("first", ["large", "small"])
def test_a_board_has_the_largest_number_of_devices_of_its_nodes(first: str) -> None:
    """The search for devices takes the longest on the node with the most devices."""
    large, small = (copy.deepcopy(relevant_facts("hgx-h100")) for _node in range(2))
    small["packages"][0]["cpus"] = "0-1"
    nodes = {first: large if first == "large" else small, "z": small if first == "large" else large}
    drivers = {
        "gpu.nvidia.com": {"version": "0.5.0"},
        "lanewise.dev": {},
        "dra.cpu": {"version": "main", "group_by": "individual"},
    }
    known = {name: knowledge(name, options) for name, options in drivers.items()}
    boards = Boards(nodes, drivers, known, Server(), Engine())
    gpu, nic = (RequestSelectors(name, (f'device.driver == "{name}"',)) for name in ("gpu.nvidia.com", "lanewise.dev"))
    [matched] = boards.matched(gpu, [nic], "PHB")
    assert matched.nodes == [first, "z"]
    assert matched.max_devices == len(offers("large", large, drivers, known)) > len(offers("a", small, drivers, known))


def test_a_gpu_has_the_largest_number_of_parts_of_its_nodes() -> None:
    matched = MatchedBoard(
        board_map(relevant_facts("hgx-h100")), ["a"], {}, [], 60, collections.Counter(gpu0=1, gpu1=7)
    )
    matched.add("b", 20, collections.Counter(gpu0=7, gpu1=1))
    assert matched.gpu_parts == {"gpu0": 7, "gpu1": 7}
