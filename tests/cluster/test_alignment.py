# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook verify on a real control plane: claims that the scheduler allocates from the driver's slices are
aligned, and changes that break the alignment afterwards are reported.

The node is an example machine. The driver publishes the slices of its NICs. The test publishes the slices of its GPUs,
as the vendor's driver would. The playbook probe stores the topology of the same machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils import probed

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed")
pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

from ansible_collections.lanewise.dra.tests.cluster.driver_node import Node
from ansible_collections.lanewise.dra.tests.cluster.test_driver_cluster import DRIVER, Installed, install

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
EXAMPLE = COLLECTION / "inventories/example/group_vars/all/claims.yml"
RESOURCE = "/apis/resource.k8s.io/v1"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MACHINE, NODE, NAMESPACE, GPU = "hgx-h100", "aligned-1", "aligned", "gpu.nvidia.com"


pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")


class Site:
    """A cluster with one node and its driver, and an Ansible controller."""

    def __init__(self, plane: ControlPlane, installed: Installed, folder: Path, machine: Path) -> None:
        self.plane, self.installed, self.folder = plane, installed, folder
        self.report = folder / "report"
        self.pair: list[Object] = []  # the allocation results of the claim `pair`
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "probe_become": False}
        inventory = {"all": {"hosts": {NODE: {**host, "topology_root": str(machine)}}}}
        (folder / "hosts.json").write_text(json.dumps(inventory))

    def play(self, name: str, variables: Object, *arguments: str, rc: int = 0) -> str:
        (self.folder / "variables.json").write_text(json.dumps(variables))
        command = [
            str(ANSIBLE_PLAYBOOK),
            "-i",
            "hosts.json",
            f"lanewise.dra.{name}",
            "-e",
            "@variables.json",
            *arguments,
        ]
        hidden = ("ANSIBLE_", "KUBE", "K8S_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
        environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
        environment["ANSIBLE_HOME"] = str(self.folder / "home")
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, env=environment)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    def verify(self, *arguments: str, rc: int = 0, **variables: t.Any) -> tuple[Object, str]:
        """Run the playbook. Returns its JSON report and its output."""
        kubeconfig = self.plane.write_kubeconfig_with_two_contexts(self.folder / "kubeconfig")
        cluster = {"dra_claims_kubeconfig": str(kubeconfig), "dra_claims_context": "test"}
        extra_vars = {**cluster, "alignment_namespaces": [NAMESPACE], **variables}
        output = self.play("verify", extra_vars, *arguments, rc=rc)
        written = self.report / "alignment.json"
        return (json.loads(written.read_text()) if written.exists() else {}), output

    def claim(self, answer: Object, name: str) -> Object:
        [found] = [entry for entry in answer["claims"] if entry["claim"] == f"{NAMESPACE}/{name}"]
        return t.cast(Object, found)

    def allocate(self, name: str, spec: Object | None = None) -> list[Object]:
        """Create a pod with a claim, and with `spec` also the claim. Returns the allocation results."""
        if spec is not None:
            claim = {"metadata": {"name": name}, "spec": spec}
            self.plane.expect("POST", f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims", claim)
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        pod = {"containers": [container], "resourceClaims": [{"name": "d", "resourceClaimName": name}]}
        self.plane.expect("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": pod})

        def allocation() -> t.Any:
            found = self.plane.expect("GET", f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims/{name}")
            bound = self.plane.expect("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")["spec"].get("nodeName")
            return bound and found.get("status", {}).get("allocation")

        found = self.plane.wait_for(allocation, f"the allocation of {name}", 90)
        return t.cast("list[Object]", found["devices"]["results"])

    @property
    def nic(self) -> str:
        """The name of the pair's NIC."""
        return str(next(entry["device"] for entry in self.pair if entry["driver"] == DRIVER))

    @contextlib.contextmanager
    def slice_with(self, change: t.Callable[[list[Object]], list[Object]]) -> t.Iterator[None]:
        """Within this context, the devices of the driver's slice with the pair's NIC are changed."""
        [before] = [
            resource_slice
            for resource_slice in self.installed.slices(NODE)
            if self.nic in [device["name"] for device in resource_slice["spec"].get("devices") or ()]
        ]
        path = f"{RESOURCE}/resourceslices/{before['metadata']['name']}"
        devices = change(copy.deepcopy(before["spec"]["devices"]))
        self.plane.expect("PUT", path, {**before, "spec": {**before["spec"], "devices": devices}})
        try:
            yield
        finally:
            version = self.plane.expect("GET", path)["metadata"]["resourceVersion"]
            metadata = {**before["metadata"], "resourceVersion": version}
            self.plane.expect("PUT", path, {**before, "metadata": metadata})


@pytest.fixture(name="site", scope="module")
def _site(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    folder = tmp_path_factory.mktemp("alignment")
    installed = install(newest)
    variables = yaml.safe_load(EXAMPLE.read_text())
    compiled = compile_site(
        {name: value for name, value in variables.items() if name != "dra_claims_workloads"}
    ).objects
    for manifest in compiled:
        if manifest["kind"] == "DeviceClass":
            path = f"{RESOURCE}/deviceclasses/{manifest['metadata']['name']}?fieldManager=example&force=true"
            newest.expect("PATCH", path, manifest, "application/apply-patch+yaml")
    newest.add_node(NODE)
    newest.add_namespace(NAMESPACE)
    for resource_slice in slices(
        [offer for offer in offers(NODE, probed.facts(MACHINE), variables["dra_claims_drivers"]) if offer.driver == GPU]
    ):
        newest.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)
    machine = build(MACHINE, folder / MACHINE)
    site = Site(newest, installed, folder, machine)
    try:
        port, authority = int(newest.url.rsplit(":", 1)[1]), newest.authority.certificate
        settings = f"node_name: {NODE}\n"
        node = Node(port, folder, installed.token(NODE), authority, NODE, settings, str(machine))
    except OSError as error:
        pytest.skip(f"namespaces cannot be created: {error}")
    try:
        newest.wait_for(lambda: installed.devices(NODE), "the driver's slices")
        site.play("probe", {})
        templates = {entry["metadata"]["name"]: entry for entry in compiled if entry["kind"] == "ResourceClaimTemplate"}
        site.pair = site.allocate("pair", templates["gpu-with-nic"]["spec"]["spec"])
    finally:
        node.close()  # the slices remain, and from now on only tests change them
    yield site


def test_verify_finds_the_allocated_pair_aligned(site: Site) -> None:
    answer, output = site.verify()
    found = site.claim(answer, "pair")
    assert (found["verdict"], found["proven"], found["node"]) == ("kept", True, NODE)
    assert f"{NAMESPACE}/pair on {NODE}: aligned as promised" in output
    assert found["preferences"][0]["rank"] == 1
    assert [pair["promised"] for pair in found["pairs"]] == [[PCIE_ROOT]]
    assert {promise["rule"] for promise in found["promises"]} == {"match", "selector"}
    assert found["pods"][0]["name"] == "pair" and found["pods"][0]["node"] == NODE
    page = (site.report / "alignment.html").read_text()
    assert f"{NAMESPACE}/pair" in page and "<svg" in page and "Content-Security-Policy" in page
    assert answer["notes"] == []

    _answer, again = site.verify(alignment_require_proof=True)
    assert "changed=0" in again
    (site.report / "alignment.html").unlink()
    _answer, dry = site.verify("--check", "--diff")
    assert "alignment.html" in dry and not (site.report / "alignment.html").exists()


@pytest.mark.parametrize("odd", [b"[" * 4900 + b"]" * 4900, b'"\xff"'], ids=["deep", "bytes"])
def test_an_unreadable_claim_does_not_hide_others(site: Site, odd: bytes) -> None:
    """Any tenant of the cluster can create such a claim: the API server accepts it."""
    path = f"{RESOURCE}/namespaces/default/resourceclaims"
    head = b'{"metadata":{"name":"odd"},"spec":{"devices":{"config":[{"opaque":{"driver":"d.example.com",'
    rest = b'"parameters":{"a":%s}}}],"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}}' % odd
    site.plane.expect("POST", path, head + rest)
    try:
        answer, _output = site.verify()
        assert site.claim(answer, "pair")["verdict"] == "kept"
    finally:
        site.plane.expect("DELETE", f"{path}/odd")


def test_namespaces_without_claims_are_reported(site: Site) -> None:
    answer, output = site.verify(alignment_namespaces=["nobody", "here"])
    assert answer["claims"] == [] and "msg: []" not in output
    assert "No allocated claim was found in nobody, here, so there is nothing to verify." in " ".join(output.split())


def test_applied_and_removed_objects_are_listed(site: Site) -> None:
    kubeconfig = site.plane.write_kubeconfig_with_two_contexts(site.folder / "kubeconfig")
    variables = {
        "dra_claims_kubeconfig": str(kubeconfig),
        "dra_claims_context": "test",
        "dra_claims_site": "shown",
        "dra_claims_drivers": yaml.safe_load(EXAMPLE.read_text())["dra_claims_drivers"],
        "dra_claims_classes": [{"name": "shown", "kind": "nic"}],
        "dra_claims_prune": True,
        "dra_claims_applyset": "shown",
    }
    assert "would be applied: DeviceClass shown" in site.play("claims", variables, "--check")
    assert "applied: DeviceClass shown" in site.play("claims", variables)
    assert "nothing applied: the cluster is up to date" in site.play("claims", variables)
    variables["dra_claims_classes"] = [{"name": "other", "kind": "nic"}]
    output = site.play("claims", variables)
    assert "applied: DeviceClass other" in output and "removed: DeviceClass shown" in output
    variables["dra_claims_apply"] = False
    assert "nothing applied: dra_claims_apply is false" in site.play("claims", variables)


def test_near_and_far_claims_are_planned_allocated_and_verified(site: Site) -> None:
    """Planned claims get exactly the planned devices, and verify reports how near these are to each other."""
    variables = yaml.safe_load(EXAMPLE.read_text())
    published = {
        offer.device["name"]: offer for offer in offers(NODE, probed.facts(MACHINE), variables["dra_claims_drivers"])
    }
    used = {published[entry["device"]].address for entry in site.pair}
    gpu = next(entry["address"] for entry in probed.facts(MACHINE)["gpus"] if entry["address"] not in used)
    compare = [{"node": NODE, "gpu": gpu, "namespace": NAMESPACE}]
    answer, _output = site.verify(alignment_compare=compare, alignment_drivers=variables["dra_claims_drivers"])
    [plan] = answer["comparisons"]
    assert (plan["nearest"]["level"], plan["farthest"]["level"]) == ("PIX", "SYS")
    near, far = (entry for entry in plan["objects"] if entry["kind"] == "ResourceClaim")
    for manifest in plan["objects"]:
        if manifest["kind"] == "DeviceClass":
            path = f"{RESOURCE}/deviceclasses/{manifest['metadata']['name']}?fieldManager=plan&force=true"
            site.plane.expect("PATCH", path, manifest, "application/apply-patch+yaml")
    for claim, part in ((near, "nearest"), (far, "farthest")):
        name = claim["metadata"]["name"]
        site.plane.expect("POST", f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims", claim)
        results = site.allocate(name)
        assert {result["device"] for result in results} == {plan["gpu"]["device"], plan[part]["device"]}
        found = site.claim(site.verify()[0], name)
        assert [pair["level"] for pair in found["pairs"]] == [plan[part]["level"]]
        assert found["pairs"][0]["promised"] == []
        notes = [finding["summary"] for finding in found["findings"] if finding["id"] == "could-be-aligned"]
        assert bool(notes) == (part == "farthest") and all(plan["nearest"]["device"] in note for note in notes)
        # the other claim needs the same GPU
        site.plane.expect("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0")
        site.plane.expect("DELETE", f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims/{name}")


def test_a_device_that_slices_and_kernel_place_differently_is_unknown(site: Site) -> None:
    def move(devices: list[Object]) -> list[Object]:
        for device in devices:
            if device["name"] == site.nic:
                device["attributes"][PCIE_ROOT]["string"] = "pci0000:ff"
        return devices

    with site.slice_with(move):
        answer, output = site.verify(alignment_require_proof=True, alignment_strict=False)
        assert site.claim(answer, "pair")["verdict"] == "unknown" and ": unknown" in output
        [promise] = [entry for entry in site.claim(answer, "pair")["promises"] if entry["subject"] == PCIE_ROOT]
        assert "disagree" in promise["reason"] and "pci0000:ff" in promise["reason"]
        assert answer["summary"]["unknown"] == 1
        # without a probe, only the slices count, and according to them the claim is broken
        answer, output = site.verify(rc=2, alignment_report="")
        assert site.claim(answer, "pair")["verdict"] == "broken" and f"{NAMESPACE}/pair is broken" in output
        assert "not probed, so only compared" in " ".join(answer["notes"])


def test_a_device_that_is_deleted_from_the_slices_makes_its_claim_unknown(site: Site) -> None:
    with site.slice_with(lambda devices: [device for device in devices if device["name"] != site.nic]):
        answer, output = site.verify(rc=2, alignment_require_proof=True)
    found = site.claim(answer, "pair")
    assert found["verdict"] == "unknown" and f"{NAMESPACE}/pair is unknown" in output
    assert {device["device"]: device["state"] for device in found["devices"]}[site.nic] == "gone"


def test_a_device_that_a_new_probe_finds_elsewhere_is_unknown(site: Site) -> None:
    """A new probe finds the card first in another slot and then not at all. The slices are older than the probe."""
    [stored] = (site.report / "nodes").glob("*.json")
    before = stored.read_text()
    node = json.loads(before)
    address = site.nic.replace("pci-", "", 1).replace("-", ":", 2).replace("-", ".")
    node["facts"]["functions"][address]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    try:
        stored.write_text(json.dumps(node))
        verdict = site.claim(site.verify()[0], "pair")
        assert verdict["verdict"] == "unknown" and "the kernel reports pci0000:ff" in json.dumps(verdict["findings"])
        del node["facts"]["functions"][address]
        node["facts"]["nics"] = [nic for nic in node["facts"]["nics"] if nic["address"] != address]
        stored.write_text(json.dumps(node))
        verdict = site.claim(site.verify()[0], "pair")
        assert verdict["verdict"] == "unknown" and "has no PCI function" in json.dumps(verdict["findings"])
    finally:
        stored.write_text(before)


def test_a_claim_is_proven_with_an_older_api_and_unused_without_its_pod(site: Site) -> None:
    """With the slices restored, the claim is proven again, also with an older version of the API. After its pod was
    deleted, the claim is unused."""
    older = site.verify(alignment_api_version="resource.k8s.io/v1beta1")[0]
    assert site.claim(older, "pair")["proven"]
    site.plane.expect("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/pair?gracePeriodSeconds=0")

    def released() -> bool:
        found = site.plane.expect("GET", f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims/pair")
        return not found.get("status", {}).get("reservedFor")

    site.plane.wait_for(released, "the reservation to be removed", 60)
    answer, _output = site.verify()
    assert answer["summary"]["pending"] == 1 or "unused" in json.dumps(site.claim(answer, "pair")["findings"])
