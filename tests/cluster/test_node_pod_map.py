# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The map of a claim inside its pod is correct, with a GPU from NVIDIA's driver and a NIC from lanewise.dev.

The checks (map_judge.py) use the pod's device numbers and MAC addresses and the machine's tree, and no driver's
records.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml
from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode
from ansible_collections.lanewise.dra.tests.cluster.map_judge import (
    PAIRS_VARIABLE,
    environment,
    faults,
    pod_map,
    variable_faults,
    wrong_maps,
)

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "nic"}]
INVENTORY: Object = {
    "dra_claims_site": "maps",
    "dra_claims_drivers": {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_templates": [
        {"name": "pair", "namespace": "default", "align": "pcie_root", "devices": PAIR},
        {
            "name": "two-pairs",
            "namespace": "default",
            "groups": [{"count": 2, "align": "pcie_root", "devices": PAIR}],
        },
        {"name": "nic-alone", "namespace": "default", "devices": PAIR[1:]},
    ],
}


@pytest.fixture(name="gpus", scope="module", params=["hgx-h100", "dgx-a100"])
def _gpus(node: Node, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[GpuNode]:
    try:
        gpus = GpuNode(node, request.param, tmp_path_factory.mktemp(request.param), "0.5.0")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        for manifest in compile_site(INVENTORY, {node.name: gpus.facts}).objects:
            collection = f"{API}/deviceclasses" if manifest["kind"] == "DeviceClass" else ""
            if manifest["kind"] == "ResourceClaimTemplate":
                collection = f"{API}/namespaces/default/resourceclaimtemplates"
            if collection:
                path = f"{collection}/{manifest['metadata']['name']}?fieldManager=test&force=true"
                node.plane.expect("PATCH", path, manifest, "application/apply-patch+yaml")
        yield gpus
    finally:
        gpus.close()


@pytest.fixture(autouse=True)
def _remove_pods(node: Node) -> t.Iterator[None]:
    yield
    for item in node.plane.expect("GET", PODS)["items"]:
        node.delete_pod(item["metadata"]["name"], wait=False)
    node.plane.wait_for(lambda: not node.plane.expect("GET", PODS)["items"], "the deletion of the pods", 120)
    node.plane.wait_for(lambda: not node.plane.expect("GET", CLAIMS)["items"], "the deletion of the claims", 60)


def test_the_map_of_every_pod_is_correct(node: Node, gpus: GpuNode) -> None:
    """Six pods have one pair, and one has two. The test also shows that the checks detect wrong maps."""
    pods = {**{f"pair-{number}": "pair" for number in range(6)}, "two": "two-pairs"}
    gpus.start(pods)
    maps = {}
    for name in pods:
        content = maps[name] = pod_map(node, name)
        assert not faults(gpus, name, content), content
        variables = environment(node, name)
        assert not variable_faults(variables, content), variables
        assert not {"NCCL_IB_HCA", "NCCL_TOPO_FILE", "UCX_NET_DEVICES", "VLLM_GPU_NIC_PCIE_MAPPING"} & set(variables)
    specs_before = specs()
    assert len(specs_before) == len(pods)
    gpus.lanewise.stop()
    gpus.lanewise.start()
    gpus.lanewise.wait_ready(60)
    assert specs() == specs_before, "after a restart of the driver, restarted containers would get other devices"
    assert {name: pod_map(node, name) for name in pods} == maps
    assert faults(gpus, "pair-0", maps["pair-1"]), "the map of another pod"
    for change, wrong in wrong_maps(maps["two"]).items():
        assert faults(gpus, "two", wrong), change


def specs() -> dict[str, bytes]:
    """The lanewise driver's CDI specs."""
    return {path.name: path.read_bytes() for path in Path("/var/run/cdi").glob("k8s.lanewise.dev-claim-*.json")}


def test_the_map_of_a_claim_without_a_gpu_has_no_pairs(node: Node, gpus: GpuNode) -> None:
    gpus.start({"alone": "nic-alone"})
    content = pod_map(node, "alone")
    assert (content["gpus"], content["pairs"], content["others"]) == ([], [], [])
    assert [nic["pciAddress"] for nic in content["nics"]] == gpus.seen("alone").nics
    assert PAIRS_VARIABLE not in environment(node, "alone")


def set_environment(gpus: GpuNode, names: list[str]) -> None:
    """Change the setting `pod_environment`, and wait until the driver has read it."""
    before = gpus.lanewise.log().count("read new settings")
    gpus.lanewise.write_settings(pod_environment=names)
    gpus.node.plane.wait_for(lambda: gpus.lanewise.log().count("read new settings") > before, "the new settings", 30)


def test_the_topology_file_for_nccl_describes_the_machine(node: Node, gpus: GpuNode, tmp_path: Path) -> None:
    """With the setting `pod_environment`, NCCL's topology file describes the machine. The variables that name RDMA
    devices are left out, because the machine has none."""
    set_environment(gpus, ["nccl", "nccl_topology", "vllm"])
    try:
        gpus.start({"file": "pair"})
        variables = environment(node, "file")
        (tmp_path / "nccl.xml").write_text(node.execute("file", "cat", variables["NCCL_TOPO_FILE"]))
        topology = read_xml(str(tmp_path / "nccl.xml"))
        assert {gpu.address for gpu in topology.gpus} == {gpu["address"] for gpu in gpus.facts["gpus"]}
        for gpu in topology.gpus:
            near = next(entry for entry in gpus.facts["gpus"] if entry["address"] == gpu.address)["nearest_nics"][
                "devices"
            ]
            assert sorted(gpu.nearest_nics.devices) == sorted(near)
        content = pod_map(node, "file")
        assert not faults(gpus, "file", content)
        assert not {"NCCL_IB_HCA", "VLLM_GPU_NIC_PCIE_MAPPING"} & set(variables)
        assert set(content["leftOut"]) == {"nccl", "vllm"} and set(content["environment"]) <= set(variables)
    finally:
        set_environment(gpus, [])
