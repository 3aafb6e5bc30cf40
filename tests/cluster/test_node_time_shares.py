# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods share a GPU through MPS and time-slicing, which NVIDIA's DRA driver configures.

The driver calls nvidia-smi and starts the MPS daemon as a Deployment. Here both programs only record their calls, so
their effect on a GPU is not tested.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from ansible_collections.lanewise.dra.tests.nvidia.driver import IMAGE
from ansible_collections.lanewise.dra.tests.nvidia.root import gpus
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip(
    "lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' installs it"
)
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster import map_judge
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
GATES = {"MPSSupport": True, "TimeSlicingSettings": True}
#: The programs that the daemon's Deployment needs in its image.
PROGRAMS = ("sh", "cat", "rm", "tail")
MPS = {"cores": 40, "memory": "10Gi"}
TIME_SLICES = {"interval": "Long"}
NIC = {"name": "nic", "kind": "nic"}


def image() -> dict[str, Path]:
    """The files of an image with this host's PROGRAMS and their libraries."""
    files: dict[str, Path] = {}
    for name in PROGRAMS:
        program = str(shutil.which(name))
        files[f"usr/bin/{name}"] = Path(program)
        listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", listed):
            files[f"usr{path.removeprefix('/usr')}"] = Path(path)
    return files


def site(engine: str, share: dict[str, t.Any]) -> dict[str, t.Any]:
    """A site's variables: a claim that several pods share, and a template that adds a NIC below the GPU's PCIe root."""
    drivers = gpu_claims.drivers("0.5.0")
    drivers["gpu.nvidia.com"] = {**drivers["gpu.nvidia.com"], "engine": engine, "feature_gates": GATES}
    shared_gpu = {**gpu_claims.GPU, "share": share}
    pair = {"name": f"{engine}-nic", "namespace": "default", "align": "pcie_root", "devices": [shared_gpu, NIC]}
    claim = {"name": engine, "namespace": "default", "devices": [shared_gpu]}
    return gpu_claims.variables("0.5.0", [pair], site=engine, drivers=drivers, claims=[claim])


@pytest.fixture(name="machine", scope="module")
def _machine(node: Node, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[GpuNode]:
    node._import(IMAGE, image())
    try:
        machine = GpuNode(node, "hgx-h100", tmp_path_factory.mktemp("sharing"), "0.5.0", GATES)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        for engine, share in (("mps", MPS), ("time-slicing", TIME_SLICES)):
            gpu_claims.apply(node, site(engine, share), machine.facts)
        yield machine
    finally:
        for item in node.plane.expect("GET", PODS)["items"]:
            node.delete_pod(item["metadata"]["name"])
        machine.close()


def uuid_of(machine: GpuNode, address: str) -> str:
    return next(gpu.uuid for gpu in gpus(machine.tree) if gpu.address == address)


def delete_pods(machine: GpuNode, *names: str) -> None:
    """Delete pods, and wait until they no longer exist."""
    for name in names:
        try:
            machine.node.delete_pod(name)
        except Failed as failure:
            failure.add_note(machine.nvidia.log()[-6000:])
            raise


def test_two_pods_time_slice_a_gpu(node: Node, machine: GpuNode) -> None:
    """The driver sets the time slice before the pods start, and restores the default when both have ended."""
    machine.start(dict.fromkeys(("one", "two"), "time-slicing"), "resourceClaimName")
    [gpu] = machine.seen("one").gpus
    assert machine.seen("two").gpus == [gpu]
    uuid = uuid_of(machine, gpu)
    smi = functools.partial(machine.root.calls, "nvidia-smi")
    set_long = [f"-i {uuid} -c DEFAULT", f"compute-policy -i {uuid} --set-timeslice 3"]
    assert smi()[-2:] == set_long
    delete_pods(machine, "one", "two")
    set_default = [set_long[0], f"compute-policy -i {uuid} --set-timeslice 0"]
    node.plane.wait_for(lambda: smi()[-2:] == set_default, "the default interval", 30)


def test_two_pods_share_a_gpu_through_mps(node: Node, machine: GpuNode) -> None:
    """Both pods use one daemon, which has the claim's limits. The daemon's socket and shared memory are visible in the
    pods."""
    machine.start(dict.fromkeys(("one", "two"), "mps"), "resourceClaimName")
    [gpu] = machine.seen("one").gpus
    assert machine.seen("two").gpus == [gpu]
    uuid = uuid_of(machine, gpu)
    assert machine.root.calls("nvidia-smi")[-1] == f"-i {uuid} -c EXCLUSIVE_PROCESS"
    [daemon] = node.plane.expect("GET", DEPLOYMENTS)["items"]
    assert daemon["status"]["readyReplicas"] == 1
    [log] = Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps").glob("*/log/control.log")
    assert log.read_text().splitlines() == [
        f"start -d on {uuid}",
        f"set_default_active_thread_percentage {MPS['cores']}",
        f"set_default_device_pinned_mem_limit {uuid} 10240M",
    ]
    for name in ("one", "two"):
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in node.execute(name, "env").splitlines()
        assert node.execute(name, "ls", "/tmp/nvidia-mps").split() == ["control"]
        assert node.execute(name, "ls", "/dev/shm").split() == ["daemon"]
    delete_pods(machine, "one", "two")
    node.plane.wait_for(
        lambda: not node.plane.expect("GET", DEPLOYMENTS)["items"], "the deletion of the Deployment", 60
    )
    node.plane.wait_for(
        lambda: f"-i {uuid} -c DEFAULT" in machine.root.calls("nvidia-smi")[-3:], "the GPU's default compute mode", 30
    )


@pytest.mark.parametrize("engine", ["mps", "time-slicing"])
def test_a_shared_gpu_is_aligned_with_its_nic(node: Node, machine: GpuNode, engine: str) -> None:
    machine.start({"pair": f"{engine}-nic"})
    seen = machine.seen("pair")
    assert len(seen.gpus) == 1 and machine.judge.aligned(seen), seen
    assert not map_judge.faults(machine, "pair", map_judge.pod_map(node, "pair"))
    delete_pods(machine, "pair")
