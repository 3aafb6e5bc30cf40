# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The probe against hwloc's lstopo."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import compare, lstopo, trees, variants

pytestmark = pytest.mark.skipif(lstopo.BINARY is None, reason="lstopo is not installed (Debian: hwloc-nox)")


def check(name: str, root: Path, summarize: t.Callable[[t.Any], None]) -> compare.Comparison:
    topology = probe(str(root))
    try:
        seen = lstopo.run_lstopo(root)
    except lstopo.TreeNotLoaded as error:
        pytest.skip(f"hwloc does not load this tree: {error}")
    result = compare.compare(name, root, topology, seen)
    summarize(result)
    assert result.facts, "nothing was compared"
    assert not result.unexplained, str(result)
    return result


@pytest.mark.parametrize("name", trees.ALL)
def test_tree(name: str, summarize: t.Callable[[t.Any], None]) -> None:
    check(name, trees.root_of(name), summarize)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_variant(name: str, tmp_path: Path, summarize: t.Callable[[t.Any], None]) -> None:
    result = check(f"variant:{name}", variants.make(name).write(tmp_path), summarize)
    assert set(result.rules) - variants.EVERYWHERE == variants.VARIANTS[name][1]
    if name == "unchanged":
        assert set(result.rules) == variants.EVERYWHERE


def test_each_rule_is_triggered() -> None:
    triggered = set().union(*(rules for _change, rules in variants.VARIANTS.values()))
    assert triggered | variants.EVERYWHERE == set(compare.RULES)


def _lose_a_bridge(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].bridges.pop()


def _mix_up_roots(topology: Topology) -> None:
    for address in ("0000:97:01.0", "0000:98:00.0", "0000:98:00.1"):
        topology.functions[address].root_complex = "pci0000:15"


def _change_an_id(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].subsystem_device_id = "0001"


def _halve_a_link(topology: Topology) -> None:
    link = topology.functions["0000:18:00.0"].link
    assert link and link.gb_per_s
    link.gb_per_s /= 2


def _move_to_the_other_node(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].numa_node = 1


def _forget_the_node(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].numa_node = None


def _change_local_cpus(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].local_cpus = "4-7"


def _forget_a_function(topology: Topology) -> None:
    del topology.functions["0000:18:00.0"]


def _swap_interfaces(topology: Topology) -> None:
    one, other = [i for i in topology.interfaces if i.address in ("0000:98:00.0", "0000:98:00.1")]
    one.address, other.address = other.address, one.address


def _change_a_guid(topology: Topology) -> None:
    topology.rdma_devices[0].node_guid = topology.rdma_devices[1].node_guid


def _forget_a_gid(topology: Topology) -> None:
    topology.rdma_devices[0].ports[0].gids.pop()


def _lose_a_drive(topology: Topology) -> None:
    topology.nvme.clear()


def _change_memory(topology: Topology) -> None:
    topology.numa_nodes[0].memory_bytes = 1 << 30


def _change_a_distance(topology: Topology) -> None:
    topology.numa_nodes[0].distances["1"] += 1


def _merge_packages(topology: Topology) -> None:
    topology.packages[0].cpus = "0-7"


@pytest.mark.parametrize(
    "spoil",
    [
        _lose_a_bridge,
        _mix_up_roots,
        _change_an_id,
        _halve_a_link,
        _move_to_the_other_node,
        _forget_the_node,
        _change_local_cpus,
        _forget_a_function,
        _swap_interfaces,
        _change_a_guid,
        _forget_a_gid,
        _lose_a_drive,
        _change_memory,
        _change_a_distance,
        _merge_packages,
    ],
)
def test_a_wrong_probe_result_is_found(spoil: t.Callable[[Topology], None], small: Path) -> None:
    """No rule may accept a wrong result of the probe."""
    topology = probe(str(small))
    spoil(topology)
    assert compare.compare("spoiled", small, topology, lstopo.run_lstopo(small)).unexplained


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variants.make("unchanged").write(tmp_path_factory.mktemp("small"))
