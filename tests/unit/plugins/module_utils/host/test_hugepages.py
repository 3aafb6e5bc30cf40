# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.hugepages import Hugepages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sockets, and a NUMA node without CPUs for the memory of a GPU, as on Grace Hopper."""
    for number, processors in ((0, "0-71"), (1, "72-143"), (2, "")):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        for size in (2048, 1048576):
            pages = folder / f"hugepages/hugepages-{size}kB"
            pages.mkdir(parents=True)
            (pages / "nr_hugepages").write_text("0\n")
            (pages / "free_hugepages").write_text("0\n")
        (folder / "cpulist").write_text(processors + "\n")
    return tmp_path


def _converge(root: Path, *settings: dict[str, t.Any], check_mode: bool = False) -> t.Any:
    system = System(str(root))
    return converge(Node(system, general={"hugepages": list(settings)}), [Hugepages(system)], check_mode)


def test_numa_nodes_without_cpus_get_pages_only_if_the_setting_names_them(root: Path) -> None:
    outcome = _converge(root, {"size": "2M", "count": 512}, check_mode=True)
    assert [str(change) for change in outcome.changes] == [
        "node: hugepages 2M on NUMA node 0 0 -> 512",
        "node: hugepages 2M on NUMA node 1 0 -> 512",
    ]
    outcome = _converge(root, {"size": "1G", "count": 1, "numa_nodes": [2]}, check_mode=True)
    assert [change.setting for change in outcome.changes] == ["hugepages 1G on NUMA node 2"]


def test_a_second_run_changes_nothing(root: Path) -> None:
    settings = ({"size": "2M", "count": 512}, {"size": "1G", "count": 2, "numa_nodes": [0]})
    assert len(_converge(root, *settings).changes) == 3
    assert not _converge(root, *settings).changes


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"size": "16M", "count": 1}, "available sizes: 1G, 2M"),
        ({"size": "2M", "count": 1, "numa_nodes": [7]}, "no such NUMA node"),
        ({"size": "2M", "count": 3}, "6 of 10 are in use"),
    ],
)
def test_impossible_sizes_nodes_and_counts_are_refused(root: Path, settings: dict[str, t.Any], reason: str) -> None:
    pages = root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    (pages / "nr_hugepages").write_text("10\n")
    (pages / "free_hugepages").write_text("4\n")
    with pytest.raises(Refused, match=reason):
        _converge(root, settings)


def test_an_invalid_size_is_refused(root: Path) -> None:
    with pytest.raises(HostError, match="not a page size"):
        _converge(root, {"size": "2MB", "count": 1})


def _memory_manager_state(policy: str, *totals: int) -> str:
    """The contents of kubelet's memory_manager_state; `totals` are the bytes in pages of 2 MiB by NUMA node."""
    nodes = {
        str(number): {"memoryMap": {"hugepages-2Mi": {"total": total}, "memory": {"total": 1 << 36}}}
        for number, total in enumerate(totals)
    }
    return json.dumps({"policyName": policy, "machineState": nodes, "entries": {}, "checksum": 1})


@pytest.mark.parametrize("folder", ["var/lib/kubelet", "data/kubelet"])
def test_counts_that_differ_from_kubelets_memory_manager_state_are_refused(root: Path, folder: str) -> None:
    process = root / "proc/77"
    process.mkdir(parents=True)
    (process / "comm").write_text("kubelet\n")
    (process / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (process / "root").symlink_to(root)
    (process / "cmdline").write_text(f"/usr/bin/kubelet\0--root-dir=/{folder}\0")
    state = root / folder / "memory_manager_state"
    state.parent.mkdir(parents=True)
    state.write_text(_memory_manager_state("Static", 512 << 21, 0, 0))
    with pytest.raises(Refused, match=f"drain the node, remove /{folder}/memory_manager_state") as failure:
        _converge(root, {"size": "2M", "count": 512})
    assert [refusal.setting for refusal in failure.value.refusals] == ["hugepages 2M on NUMA node 1"]
    assert (root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "0\n"
    with pytest.raises(Refused, match="hugepages 1G on NUMA node 0"):
        _converge(root, {"size": "1G", "count": 1, "numa_nodes": [0]})
    state.unlink()
    assert len(_converge(root, {"size": "2M", "count": 512}).changes) == 2


def test_counts_that_match_kubelets_memory_manager_state_are_allowed(root: Path) -> None:
    state = root / "var/lib/kubelet/memory_manager_state"
    state.parent.mkdir(parents=True)
    state.write_text(_memory_manager_state("Static", 512 << 21, 512 << 21, 0))
    assert len(_converge(root, {"size": "2M", "count": 512}).changes) == 2


@pytest.mark.parametrize(
    "text", [_memory_manager_state("None", 0, 0, 0), '{"policyName": "None", "checksum": 1}', "{", "[]"]
)
def test_state_files_without_the_static_policy_are_ignored(root: Path, text: str) -> None:
    state = root / "var/lib/kubelet/memory_manager_state"
    state.parent.mkdir(parents=True)
    state.write_text(text)
    assert len(_converge(root, {"size": "2M", "count": 512}).changes) == 2


def test_surplus_pages_are_not_counted(root: Path) -> None:
    """The kernel allocates them beyond the number that was set (nr_overcommit_hugepages)."""
    folder = root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    (folder / "nr_hugepages").write_text("105\n")
    (folder / "surplus_hugepages").write_text("5\n")
    assert not _converge(root, {"size": "2M", "count": 100, "numa_nodes": [0]}).changes


def test_a_recorded_numa_node_that_no_longer_exists_is_left_out(root: Path) -> None:
    system = System(str(root))
    before = {"node": {"hugepages 2M on NUMA node 7": 4, "hugepages 2M on NUMA node 0": 2}}
    outcome = converge(Node(system), [Hugepages(system)], wanted={"hugepages": before})
    assert [str(change) for change in outcome.changes] == ["node: hugepages 2M on NUMA node 0 0 -> 2"]
