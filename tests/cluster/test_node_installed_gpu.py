# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""On a machine with an NVIDIA GPU, pods get the GPU from NVIDIA's own driver, with claims of an inventory, and compute
on it. Skipped on other machines."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from ansible_collections.lanewise.dra.tests.nvidia.driver import MODES, SLICES, NvidiaDriver
from ansible_collections.lanewise.dra.tests.nvidia.installed import Installed
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

GPUS = Path("/proc/driver/nvidia/gpus")
pytestmark = pytest.mark.skipif(not GPUS.is_dir(), reason="this machine has no NVIDIA GPU")

PODS = "/api/v1/namespaces/default/pods"
#: Writes to the GPU's memory and reads it back; prints the GPU's UUID. The driver's library is its argument.
COMPUTE = """
import ctypes, sys, uuid
cuda = ctypes.CDLL(sys.argv[1])
def call(name, *arguments):
    answer = getattr(cuda, name)(*arguments)
    if answer:
        sys.exit(f"{name}: error {answer}")
count, device, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
raw = ctypes.create_string_buffer(16)
call("cuDeviceGetUuid_v2", raw, device)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 << 20))
call("cuMemsetD32_v2", memory, 0x5EED, ctypes.c_size_t(1 << 20))
back = (ctypes.c_uint32 * (1 << 20))()
call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(4 << 20))
print(count.value, f"GPU-{uuid.UUID(bytes=raw.raw)}", set(back) == {0x5EED})
"""


@pytest.fixture(name="usr")
def _usr(tmp_path: Path) -> t.Iterator[Path]:
    """An overlay of the machine's /usr, in which NVIDIA's libraries are mounted for a container."""
    for name in ("upper", "work", "usr"):
        (tmp_path / name).mkdir()
    options = f"lowerdir=/usr,upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(tmp_path / "usr")], check=True)
    (tmp_path / "usr/local/bin/compute.py").write_text(COMPUTE)
    yield tmp_path / "usr"
    subprocess.run(["umount", "--lazy", str(tmp_path / "usr")], check=True)


#: The mode of NVIDIA's driver and further site variables, by the number of pods that share a GPU.
SHARERS: dict[int, tuple[str, dict[str, str]]] = {1: ("plain", {}), 2: ("memory", {"engine": "consumable-shares"})}


@pytest.mark.parametrize("sharers", SHARERS)
def test_pods_get_the_gpus_of_this_machine_and_compute_on_them(
    node: Node, usr: Path, tmp_path: Path, sharers: int
) -> None:
    """Each GPU is for one pod, or for two pods with two fifths of its memory each. One more pod has to wait."""
    mode, engine = SHARERS[sharers]
    stated, options = MODES[mode]
    facts = as_dict(probe("/"))
    assert {gpu["address"] for gpu in facts["gpus"]} >= {folder.name for folder in GPUS.iterdir()}
    try:
        installed = Installed(tmp_path / "driver")
        nvidia = NvidiaDriver(node.plane, node.name, installed, **options)
    except Missing as missing:
        pytest.skip(str(missing))
    pods: list[str] = []
    try:
        published = {device["name"]: device for entry in nvidia.wait() for device in entry["spec"]["devices"]}
        gpu: dict[str, t.Any] = dict(gpu_claims.GPU)
        if sharers > 1:
            smallest = min(int(entry["capacity"]["memory"]["value"].removesuffix("Mi")) for entry in published.values())
            gpu["share"] = {"memory": f"{smallest * 2 // 5}Mi"}
        drivers = {"gpu.nvidia.com": {"version": "0.5.0", **stated, **engine}}
        template = {"name": "gpu", "namespace": "default", "devices": [gpu]}
        site = gpu_claims.apply(node, gpu_claims.variables("0.5.0", [template], drivers=drivers), facts)
        assert [entry.nodes for entry in site.reach] == [[node.name]]
        pods += [f"job-{number}" for number in range(sharers * len(published) + 1)]
        for name in pods[:-1]:
            node.run_pod(_pod(node, name, usr), 60)
        node.plane.expect("POST", PODS, _pod(node, pods[-1], usr))
        allocated = [_allocated(node, name) for name in pods[:-1]]
        assert sorted(allocated) == sorted([*published] * sharers)
        library = f"/usr/lib64/{installed.library('libcuda').name}"
        for name, device in zip(pods, allocated):
            device_nodes = node.execute(name, "find", "/dev", "-name", "nvidia[0-9]*").split()
            minor = int(device.removeprefix("gpu-"))
            assert device_nodes == [f"/dev/nvidia{minor}"]
            inside = node.execute(name, "stat", "-c", "%t:%T", *device_nodes).strip()
            assert inside == "{:x}:{:x}".format(*_numbers(f"/dev/nvidia{minor}"))
            computed = node.execute(name, "python3", "/usr/local/bin/compute.py", library)
            assert computed.split() == ["1", published[device]["attributes"]["uuid"]["string"], "True"]
        node.plane.wait_for(lambda: _rejected(node, pods[-1]), "the scheduler to reject one more pod", 30)
    finally:
        for name in pods:
            node.delete_pod(name, wait=False)
        for name in pods:
            node.plane.wait_for(
                lambda name=name: node.plane.request("GET", f"{PODS}/{name}")[0] == 404, f"the deletion of {name}"
            )
        nvidia.stop()
        for resource_slice in nvidia.slices():
            node.plane.expect("DELETE", f"{SLICES}/{resource_slice['metadata']['name']}")
        gpu_claims.remove_templates(node)


def _pod(node: Node, name: str, usr: Path) -> dict[str, t.Any]:
    claims = [{"name": "devices", "resourceClaimTemplateName": "gpu"}]
    pod = node.pod(name, resourceClaims=claims, volumes=[{"name": "usr", "hostPath": {"path": str(usr)}}])
    pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = False
    return pod


def _allocated(node: Node, pod: str) -> str:
    """The device of a pod's claim."""
    [status] = node.plane.expect("GET", f"{PODS}/{pod}")["status"]["resourceClaimStatuses"]
    claim = node.plane.expect("GET", f"{gpu_claims.CLAIMS}/{status['resourceClaimName']}")
    [result] = claim["status"]["allocation"]["devices"]["results"]
    return str(result["device"])


def _numbers(path: str) -> tuple[int, int]:
    device = os.stat(path).st_rdev
    return os.major(device), os.minor(device)


def _rejected(node: Node, pod: str) -> bool:
    conditions = node.plane.expect("GET", f"{PODS}/{pod}")["status"].get("conditions", ())
    return any("cannot allocate all claims" in condition.get("message", "") for condition in conditions)
