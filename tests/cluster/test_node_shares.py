# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get parts of a GPU's memory from NVIDIA's driver, and the NIC below the same PCIe root."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster import map_judge
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

DRIVERS = {
    "gpu.nvidia.com": {"version": "0.5.0", "engine": "consumable-shares", "consumable_shares": "memory"},
    "lanewise.dev": {"version": "1.0.0"},
}
PART = {"name": "gpu", "kind": "gpu", "share": {"memory": "30Gi"}}
TEMPLATES = [
    {
        "name": "with-nic",
        "namespace": "default",
        "align": "pcie_root",
        "devices": [PART, {"name": "nic", "kind": "nic"}],
    },
    {"name": "part", "namespace": "default", "devices": [PART]},
    {"name": "whole", "namespace": "default", "devices": [{"name": "gpu", "kind": "gpu"}]},
]


def test_pods_get_parts_of_a_gpu_and_a_nic_of_the_same_root(node: Node, tmp_path: Path) -> None:
    """A GPU of 80 GB has room for two parts of 30Gi. A claim for a whole GPU gets a GPU of which no part is in use."""
    try:
        machine = GpuNode(node, "hgx-h100", tmp_path, "0.5.0", {"ConsumableShares": True}, shares="memory")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        site_variables = gpu_claims.variables("0.5.0", TEMPLATES, site="shares", drivers=DRIVERS)
        site = gpu_claims.apply(node, site_variables, machine.facts)
        assert all(entry.nodes or entry.unknown for entry in site.reach)
        machine.start({"first": "with-nic"})
        machine.start({"second": "part"})
        machine.start({"third": "part"})
        machine.start({"alone": "whole"})
        first = machine.seen("first")
        assert len(first.gpus) == 1 and machine.judge.aligned(first), first
        assert not map_judge.faults(machine, "first", map_judge.pod_map(node, "first"))
        gpus_of = {name: tuple(machine.seen(name).gpus) for name in ("first", "second", "third", "alone")}
        assert gpus_of["second"] == gpus_of["first"] and gpus_of["third"] != gpus_of["first"]
        assert gpus_of["alone"] not in (gpus_of["first"], gpus_of["third"])
    finally:
        for name in ("first", "second", "third", "alone"):
            node.delete_pod(name)
        machine.close()
