# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The example site's claims on slices of the real driver: the scheduler allocates each GPU with a NIC below its PCIe
root.

The nodes are example machines. The driver publishes the slices of their NICs. The test publishes the slices of the GPUs
in place of the vendor's driver, which cannot run here.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils import probed

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed")

from ansible_collections.lanewise.dra.tests.cluster.driver_node import Node
from ansible_collections.lanewise.dra.tests.cluster.test_driver_cluster import DRIVER, Installed, install

EXAMPLE = COLLECTION / "inventories/example/group_vars/all/claims.yml"
RESOURCE = "/apis/resource.k8s.io/v1"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.fixture(name="site", scope="module")
def _site(newest: ControlPlane) -> tuple[Installed, dict[str, Object]]:
    """The cluster with the driver's manifests and the example's classes, and the claim templates by name."""
    variables = yaml.safe_load(EXAMPLE.read_text())
    objects = compile_site({name: value for name, value in variables.items() if name != "dra_claims_workloads"}).objects
    for manifest in objects:
        if manifest["kind"] == "DeviceClass":
            path = f"{RESOURCE}/deviceclasses/{manifest['metadata']['name']}?fieldManager=example&force=true"
            newest.expect("PATCH", path, manifest, "application/apply-patch+yaml")
    templates = {entry["metadata"]["name"]: entry for entry in objects if entry["kind"] == "ResourceClaimTemplate"}
    return install(newest), templates


@pytest.mark.parametrize(
    ("machine", "template", "pairs", "gpu"),
    [
        ("hgx-h100", "eight-pairs", 8, "gpu.nvidia.com"),
        ("dgx-a100", "gpu-with-nic", 1, "gpu.nvidia.com"),
        ("mi300x", "two-amd-pairs", 2, "gpu.amd.com"),
    ],
)
def test_each_gpu_gets_a_nic_below_its_pcie_root(
    site: tuple[Installed, dict[str, Object]], tmp_path: Path, machine: str, template: str, pairs: int, gpu: str
) -> None:
    installed, templates = site
    plane, name = installed.plane, f"example-{template}"
    plane.add_node(name)
    plane.add_namespace(name)
    drivers = yaml.safe_load(EXAMPLE.read_text())["dra_claims_drivers"]
    for resource_slice in slices(
        [offer for offer in offers(name, probed.facts(machine), drivers) if offer.driver == gpu]
    ):
        plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)
    root = build(machine, tmp_path / machine)
    try:
        port, authority = int(plane.url.rsplit(":", 1)[1]), plane.authority.certificate
        node = Node(port, tmp_path, installed.token(name), authority, name, f"node_name: {name}\n", str(root))
    except OSError as error:
        pytest.skip(f"namespaces cannot be created: {error}")
    try:
        plane.wait_for(lambda: installed.devices(name), "the driver's slices")
        claim = {"metadata": {"name": "pairs"}, "spec": templates[template]["spec"]["spec"]}
        plane.expect("POST", f"{RESOURCE}/namespaces/{name}/resourceclaims", claim)
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": name},
            "containers": [container],
            "resourceClaims": [{"name": "d", "resourceClaimName": "pairs"}],
        }
        plane.expect("POST", f"/api/v1/namespaces/{name}/pods", {"metadata": {"name": "pod"}, "spec": spec})

        def allocation() -> t.Any:
            stored = plane.expect("GET", f"{RESOURCE}/namespaces/{name}/resourceclaims/pairs")
            return stored.get("status", {}).get("allocation")

        results = plane.wait_for(allocation, "the scheduler's allocation", 90)["devices"]["results"]
        published = installed.devices(name)
        roots: dict[str, list[str]] = {gpu: [], DRIVER: []}
        for result in results:
            device = published[result["device"]] if result["driver"] == DRIVER else _device(plane, name, result)
            roots[result["driver"]].append(device["attributes"][PCIE_ROOT]["string"])
        assert len(set(roots[gpu])) == len(roots[gpu]) == pairs
        assert sorted(roots[gpu]) == sorted(roots[DRIVER])
    finally:
        node.close()


def _device(plane: ControlPlane, node: str, result: Object) -> Object:
    query = f"fieldSelector=spec.nodeName={node},spec.driver={result['driver']}"
    items = plane.expect("GET", f"{RESOURCE}/resourceslices?{query}")["items"]
    return next(device for item in items for device in item["spec"]["devices"] if device["name"] == result["device"])
