# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims are rendered and checked with the ResourceSlices of a running API server instead of a probe, and the nodes
that can satisfy them are reported. The scheduler, which uses the same slices, agrees."""

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
from ansible_collections.lanewise.dra.tests.cluster.test_role import ANSIBLE_PLAYBOOK, SITE, Controller
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")


RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
PODS = "/api/v1/namespaces/training/pods"
#: The machines by node name. No PCIe root of a GB200 has both a GPU and a NIC.
MACHINES = {"h100": "hgx-h100", "a100": "dgx-a100", "gb200": "gb200"}
DRIVERS = SITE["dra_claims_drivers"]
PAIR = {
    "name": "pair",
    "namespace": "training",
    "align": "pcie_root",
    "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}],
}
REACHED = {"training/pair": ["a100", "h100"]}
FROM_SLICES: Object = {**SITE, "dra_claims_nodes_from": "slices", "dra_claims_templates": [PAIR]}
CHECK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: List published slices and claims
      lanewise.dra.dra_objects_info:
        kubeconfig: "{{ kubeconfig }}"
        kinds: [ResourceSlice, ResourceClaim]
      register: published
    - name: Check the manifests
      lanewise.dra.dra_manifests:
        paths: ["{{ manifests }}"]
        definitions: "{{ published.objects.ResourceSlice + published.objects.ResourceClaim }}"
        nodes_from: slices
        drivers: "{{ dra_claims_drivers }}"
      register: checked
    - name: Write the results to a file
      ansible.builtin.copy:
        content: "{{ checked | to_json }}"
        dest: "{{ result_file }}"
        mode: "0600"
"""


@pytest.fixture(name="controller")
def _controller(control_plane: ControlPlane, tmp_path: Path) -> t.Iterator[Controller]:
    """A controller of a cluster with the slices of three machines."""
    controller = Controller(control_plane, tmp_path)
    (tmp_path / "check.yml").write_text(CHECK)
    for node, machine in MACHINES.items():
        control_plane.request("DELETE", f"/api/v1/nodes/{node}")
        control_plane.add_node(node)
        for resource_slice in slices(offers(node, facts(machine), DRIVERS)):
            control_plane.expect("POST", SLICES, resource_slice)
    yield controller
    control_plane.expect("DELETE", f"{PODS}?gracePeriodSeconds=0")
    control_plane.expect("DELETE", SLICES)
    control_plane.expect("DELETE", f"{RESOURCE}/namespaces/training/resourceclaimtemplates")
    control_plane.expect("DELETE", f"{RESOURCE}/deviceclasses")


def reached(result: Object) -> dict[str, list[str]]:
    return {entry["claim"]: entry["nodes"] for entry in result["reach"]}


def test_claims_are_rendered_checked_and_scheduled_from_published_slices(controller: Controller) -> None:
    result, _output = controller.role(FROM_SLICES)
    nodes_by_claim = reached(result["rendered"])
    probed = compile_site(FROM_SLICES, {node: facts(machine) for node, machine in MACHINES.items()})
    assert nodes_by_claim == {entry.claim: entry.nodes for entry in probed.reach} == REACHED

    # the files have the same spec as the server's object
    files = [path for path in controller.dest.rglob("*.yaml") if "resourceclaimtemplate" in path.read_text().lower()]
    (written,) = [
        entry
        for path in files
        for entry in yaml.safe_load_all(path.read_text())
        if entry["kind"] == "ResourceClaimTemplate"
    ]
    path = f"{RESOURCE}/namespaces/training/resourceclaimtemplates/pair"
    assert controller.plane.expect("GET", path)["spec"] == written["spec"]

    # a check of these files against the cluster has the same result
    extra_vars = {"kubeconfig": str(controller.plane.kubeconfig), "manifests": str(controller.dest), **FROM_SLICES}
    checked, _output = controller.play("check", extra_vars)
    assert not checked["problems"] and reached(checked) == nodes_by_claim

    # the scheduler binds a pod to each node that can satisfy it, and to no other
    for node in MACHINES:
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "pair"}],
        }
        controller.plane.expect("POST", PODS, {"metadata": {"name": node}, "spec": spec})

    def decided() -> bool:
        pods = controller.plane.expect("GET", PODS)["items"]
        return all(any(c["type"] == "PodScheduled" for c in pod["status"].get("conditions", ())) for pod in pods)

    controller.plane.wait_for(decided, "the scheduler's decisions")
    bound = {
        item["metadata"]["name"]
        for item in controller.plane.expect("GET", PODS)["items"]
        if item["spec"].get("nodeName")
    }
    assert bound == {"a100", "h100"}

    # reach does not depend on which devices are in use
    again, _output = controller.role(FROM_SLICES)
    assert reached(again["rendered"]) == nodes_by_claim


def test_a_claim_that_no_published_node_can_satisfy_is_refused(controller: Controller) -> None:
    many = {"name": "many", "namespace": "training", "devices": [{"kind": "gpu", "count": 16}]}
    output = controller.role({**FROM_SLICES, "dra_claims_templates": [many]}, rc=2)[1]
    assert "dra_claims_templates[0]" in output and "h100" in output
    assert not controller.dest.exists() and controller.names("deviceclasses") == []


def test_an_incomplete_pool_is_unknown(controller: Controller) -> None:
    """A driver has published only the first of two new slices."""
    published = controller.plane.expect("GET", SLICES)["items"]
    specs = [device["spec"] for device in published if device["spec"]["nodeName"] == "h100"]
    complete = next(spec for spec in specs if spec["driver"] == "lanewise.dev")
    pool = {"name": "h100", "generation": complete["pool"]["generation"] + 1, "resourceSliceCount": 2}
    controller.plane.expect("POST", SLICES, {"metadata": {"name": "half"}, "spec": {**complete, "pool": pool}})
    result, output = controller.role(FROM_SLICES)
    assert reached(result["rendered"]) == {"training/pair": ["a100"]}
    (reported,) = result["rendered"]["reach"]
    assert set(reported["unknown"]) == {"h100"} and set(reported["refused"]) == {"gb200"}
    assert "pool h100 of lanewise.dev has 1 of 2 slices" in output
