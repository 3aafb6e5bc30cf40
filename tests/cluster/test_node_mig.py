# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A pod gets a MIG partition that NVIDIA's own driver makes for it, and the NIC below the same PCIe root."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode


def test_a_partition_and_the_nic_beside_its_gpu(node: Node, tmp_path: Path) -> None:
    """It is made when the pod starts, destroyed when it ends, and the GPU leaves MIG mode."""
    drivers = {
        "gpu.nvidia.com": {"version": "0.5.0", "feature_gates": {"DynamicMIG": True}},
        "lanewise.dev": {"version": "1.0.0"},
    }
    devices = [{"name": "gpu", "kind": "gpu", "where": {"partition": "3g.40gb"}}, {"name": "nic", "kind": "nic"}]
    template = {"name": "part", "namespace": "default", "align": "pcie_root", "devices": devices}
    try:
        machine = GpuNode(node, "hgx-h100", tmp_path, "0.5.0", {"DynamicMIG": True})
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        site = gpu_claims.apply(
            node, gpu_claims.variables("0.5.0", [template], site="mig", drivers=drivers), machine.facts
        )
        assert [one.nodes or one.unknown for one in site.reach]
        before = len(machine.root.calls())
        machine.start({"one": "part"})
        seen = machine.seen("one")
        assert len(seen.gpus) == 1 and machine.judge.aligned(seen), seen
        # the instance's and the compute instance's, by which the kernel module would admit the container
        assert len(node.execute("one", "ls", "/dev/nvidia-caps").split()) == 2
        calls = machine.root.calls()[before:]
        gpu = calls[0].split()[1]
        assert [one.partition(" at ")[0] for one in calls] == [
            f"mode {gpu} 1",
            f"create {gpu} profile 9",
            f"compute {gpu} profile 9",
        ]
        node.delete_pod("one")
        node.plane.wait_for(lambda: machine.root.calls()[-1] == f"mode {gpu} 0", "the end of MIG mode", 30)
        ended = [one.partition(" at ")[0] for one in machine.root.calls()[before + 3 :]]
        assert ended == [f"undo compute {gpu} profile 9", f"destroy {gpu} profile 9", f"mode {gpu} 0"]
    finally:
        machine.close()
