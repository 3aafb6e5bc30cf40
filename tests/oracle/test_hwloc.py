# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the probe with hwloc's lstopo."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import compare, lstopo, trees, variants

pytestmark = pytest.mark.skipif(lstopo.BINARY is None, reason="lstopo is not installed (Debian: hwloc-nox)")


def check(name: str, root: Path, summarize: t.Callable[[t.Any], None]) -> compare.Comparison:
    """Fail if a difference is not explained by a rule. Skip a tree that hwloc does not load."""
    topology = probe(str(root))
    try:
        machine = lstopo.run_lstopo(root)
    except lstopo.TreeNotLoaded as error:
        pytest.skip(f"hwloc does not load this tree: {error}")
    result = compare.compare(name, root, topology, machine)
    summarize(result)
    assert result.facts, "nothing was compared"
    assert not result.unexplained, str(result)
    return result


@pytest.mark.parametrize("name", trees.ALL)
def test_every_difference_of_a_tree_has_a_rule(name: str, summarize: t.Callable[[t.Any], None]) -> None:
    check(name, trees.root_of(name), summarize)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_a_variant_triggers_its_rules_and_no_others(
    name: str, tmp_path: Path, summarize: t.Callable[[t.Any], None]
) -> None:
    result = check(f"variant:{name}", variants.make(name).write(tmp_path), summarize)
    assert set(result.rules) - variants.COMMON_RULES == variants.VARIANTS[name][1]
    if name == "unchanged":
        assert set(result.rules) == variants.COMMON_RULES


def test_each_rule_is_declared_by_a_variant() -> None:
    declared = set().union(*(rules for _change, rules in variants.VARIANTS.values()))
    assert declared | variants.COMMON_RULES == set(compare.RULES)


def _remove_a_bridge(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].bridges.pop()


def _move_to_another_root_complex(topology: Topology) -> None:
    for address in ("0000:97:01.0", "0000:98:00.0", "0000:98:00.1"):
        topology.functions[address].root_complex = "pci0000:15"


def _change_an_id(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].subsystem_device_id = "0001"


def _halve_a_link_speed(topology: Topology) -> None:
    link = topology.functions["0000:18:00.0"].link
    assert link and link.gb_per_s
    link.gb_per_s /= 2


def _change_the_numa_node(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].numa_node = 1


def _remove_the_numa_node(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].numa_node = None


def _change_local_cpus(topology: Topology) -> None:
    topology.functions["0000:18:00.0"].local_cpus = "4-7"


def _remove_a_function(topology: Topology) -> None:
    del topology.functions["0000:18:00.0"]


def _swap_interfaces(topology: Topology) -> None:
    first, second = [i for i in topology.interfaces if i.address in ("0000:98:00.0", "0000:98:00.1")]
    first.address, second.address = second.address, first.address


def _change_a_guid(topology: Topology) -> None:
    topology.rdma_devices[0].node_guid = topology.rdma_devices[1].node_guid


def _remove_a_gid(topology: Topology) -> None:
    topology.rdma_devices[0].ports[0].gids.pop()


def _remove_nvme_drives(topology: Topology) -> None:
    topology.nvme.clear()


def _change_the_memory_of_a_node(topology: Topology) -> None:
    topology.numa_nodes[0].memory_bytes = 1 << 30


def _change_a_distance(topology: Topology) -> None:
    topology.numa_nodes[0].distances["1"] += 1


def _add_cpus_to_a_package(topology: Topology) -> None:
    topology.packages[0].cpus = "0-7"


@pytest.mark.parametrize(
    "corrupt",
    [
        _remove_a_bridge,
        _move_to_another_root_complex,
        _change_an_id,
        _halve_a_link_speed,
        _change_the_numa_node,
        _remove_the_numa_node,
        _change_local_cpus,
        _remove_a_function,
        _swap_interfaces,
        _change_a_guid,
        _remove_a_gid,
        _remove_nvme_drives,
        _change_the_memory_of_a_node,
        _change_a_distance,
        _add_cpus_to_a_package,
    ],
)
def test_a_wrong_probe_result_is_found(corrupt: t.Callable[[Topology], None], small_machine: Path) -> None:
    """No rule may accept a wrong result of the probe."""
    topology = probe(str(small_machine))
    corrupt(topology)
    assert compare.compare("corrupted", small_machine, topology, lstopo.run_lstopo(small_machine)).unexplained


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variants.make("unchanged").write(tmp_path_factory.mktemp("small"))
