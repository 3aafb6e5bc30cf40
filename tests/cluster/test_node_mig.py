# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get MIG partitions from NVIDIA's driver, and the NIC below the same PCIe root."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import Seen
from ansible_collections.lanewise.dra.tests.cluster.map_judge import pod_map

PART = {"name": "gpu", "kind": "gpu", "share": {"partition": "3g.40gb"}}
DEVICES = [PART, {"name": "nic", "kind": "nic"}]
TEMPLATE = {"name": "part", "namespace": "default", "align": "pcie_root", "devices": DEVICES}
PROFILE = 9  # NVML's number of 3g.40gb


def site(engine: str) -> Object:
    drivers = gpu_claims.drivers("0.5.0")
    drivers["gpu.nvidia.com"] = {**drivers["gpu.nvidia.com"], "engine": engine}
    return gpu_claims.variables("0.5.0", [TEMPLATE], site=engine, drivers=drivers)


def capabilities(node: Node, pod: str) -> list[str]:
    """The device nodes through which the kernel module grants access to the GPU instance and the compute instance."""
    return sorted(node.execute(pod, "ls", "/dev/nvidia-caps").split())


def paired(node: Node, pod: str) -> Seen:
    """The GPU of the partition and its NIC, according to the map in the pod."""
    [pair] = pod_map(node, pod)["pairs"]
    return Seen([pair["gpu"]], [pair["nic"]])


def test_a_pod_gets_a_new_partition_and_a_nic_of_the_same_root(node: Node, tmp_path: Path) -> None:
    """The partition is created when the pod starts, and destroyed when it ends. Then the GPU leaves MIG mode."""
    try:
        machine = GpuNode(node, "hgx-h100", tmp_path, "0.5.0", {"DynamicMIG": True})
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        compiled = gpu_claims.apply(node, site("dynamic-mig"), machine.facts)
        assert all(entry.nodes or entry.unknown for entry in compiled.reach)
        before = len(machine.root.calls())
        machine.start({"one": "part"})
        seen = machine.seen("one")
        assert len(seen.gpus) == 1 and machine.judge.aligned(seen), seen
        assert paired(node, "one") == seen
        assert len(capabilities(node, "one")) == 2
        calls = machine.root.calls()[before:]
        gpu = calls[0].split()[1]
        assert [call.partition(" at ")[0] for call in calls] == [
            f"mode {gpu} 1",
            f"create {gpu} profile {PROFILE}",
            f"compute {gpu} profile {PROFILE}",
        ]
        node.delete_pod("one")
        node.plane.wait_for(lambda: machine.root.calls()[-1] == f"mode {gpu} 0", "the end of MIG mode", 30)
        later_calls = [call.partition(" at ")[0] for call in machine.root.calls()[before + 3 :]]
        assert later_calls == [
            f"undo compute {gpu} profile {PROFILE}",
            f"destroy {gpu} profile {PROFILE}",
            f"mode {gpu} 0",
        ]
    finally:
        machine.close()
        gpu_claims.remove_templates(node)


def test_pods_get_existing_partitions_and_nics_of_the_same_root(node: Node, tmp_path: Path) -> None:
    """There are three partitions, two of them on one GPU, and each PCIe root has only one NIC. So two pods start, and
    one waits."""
    instances = {0: [(PROFILE, 0), (PROFILE, 4)], 5: [(PROFILE, 4)]}
    try:
        machine = GpuNode(node, "hgx-h100", tmp_path, "0.5.0")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        machine.divide(instances)
        gpu_claims.apply(node, site("mig"), machine.facts)
        machine.start({"one": "part", "two": "part"})
        seen = [machine.seen(name) for name in ("one", "two")]
        assert all(machine.judge.aligned(entry) for entry in seen), seen
        assert [paired(node, name) for name in ("one", "two")] == seen
        assert {entry.gpus[0] for entry in seen} == {machine.judge.gpu_by_minor[minor] for minor in instances}
        assert all(len(capabilities(node, name)) == 2 for name in ("one", "two"))
        assert not {*capabilities(node, "one")} & {*capabilities(node, "two")}
        path = "/api/v1/namespaces/default/pods"
        node.plane.expect("POST", path, machine.pod("three", "part"))

        def waits() -> bool:
            conditions = node.plane.expect("GET", f"{path}/three")["status"].get("conditions", ())
            return any("cannot allocate all claims" in condition.get("message", "") for condition in conditions)

        node.plane.wait_for(waits, "the scheduler to reject the pod")
        assert not machine.root.calls(), "partitions were created or destroyed"
    finally:
        for name in ("one", "two", "three"):
            node.delete_pod(name)
        machine.close()
        gpu_claims.remove_templates(node)
