# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get a GPU from NVIDIA's driver and a nearest NIC from lanewise.dev, with the claims of an inventory."""

from __future__ import annotations

import functools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Refusal, Result, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import ROOT, MachineTree
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
#: Machines whose GPUs have a NIC below their PCIe root, and versions of NVIDIA's driver.
ROOTS = [("hgx-h100", "0.5.0"), ("hgx-h100", "0.4.1"), ("dgx-a100", "0.5.0"), ("hgx-b200", "0.5.0")]
#: A machine on which only the board's map pairs GPUs and NICs.
MAPS = [("gb200", "0.5.0"), ("gb200", "0.4.1")]

on_machines = functools.partial(pytest.mark.parametrize, "gpus", indirect=True, ids="-".join)


def fallback(tree: MachineTree, version: str) -> list[Object]:
    """Templates for all NICs below the first GPU's PCIe root, and for that GPU with the nearest NIC that is free."""
    levels = ["pcie_root", *(["numa_node"] if version == "0.5.0" else []), "any"]
    first = tree.gpu_by_minor[0]
    root = tree.pcie_root(first)
    count = sum(tree.pcie_root(nic) == root for nic in tree.nic_by_mac.values())
    nics = {"name": "nics", "kind": "nic", "count": count, "where": {"pcie_root": root}}
    gpu = {**gpu_claims.GPU, "where": {"pci_address": first}}
    return [
        {"name": "same-root", "namespace": "default", "devices": [nics]},
        {"name": "chain", "namespace": "default", "align": levels, "devices": [gpu, {"name": "nic", "kind": "nic"}]},
    ]


@pytest.fixture(name="gpus", scope="module")
def _gpus(
    node: Node, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> t.Iterator[tuple[GpuNode, Site, str]]:
    """The node as an example machine, with the site's objects applied."""
    machine, version = request.param
    try:
        gpus = GpuNode(node, machine, tmp_path_factory.mktemp(machine), version)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        templates = gpu_claims.templates(gpus.judge)
        if shares_roots(gpus.judge):
            templates += fallback(gpus.judge, version)
        yield gpus, gpu_claims.apply(node, gpu_claims.variables(version, templates), gpus.facts), version
    finally:
        gpus.close()
        gpu_claims.remove_templates(node)


def shares_roots(tree: MachineTree) -> bool:
    """Whether each GPU of a machine has a NIC below its PCIe root."""
    return all(tree.nearest_level(gpu) == ROOT for gpu in tree.gpus)


@pytest.fixture(autouse=True)
def _remove_pods(node: Node) -> t.Iterator[None]:
    yield
    pods = [item["metadata"]["name"] for item in node.plane.expect("GET", PODS)["items"]]
    for name in pods:
        node.delete_pod(name, wait=False)
    node.plane.wait_for(lambda: not node.plane.expect("GET", PODS)["items"], "the deletion of the pods", 120)
    node.plane.wait_for(lambda: not node.plane.expect("GET", CLAIMS)["items"], "the deletion of the claims", 60)


def unschedulable(node: Node, name: str) -> str:
    """The scheduler's message about a pod that it cannot place."""

    def waiting() -> str:
        conditions = node.plane.expect("GET", f"{PODS}/{name}")["status"].get("conditions", ())
        return next(
            (condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"), ""
        )

    message: str = node.plane.wait_for(waiting, f"the scheduler's message about pod {name}")
    return message


@on_machines([*ROOTS, *MAPS])
def test_every_pod_has_a_nearest_nic_of_its_gpu(node: Node, gpus: tuple[GpuNode, Site, str]) -> None:
    """There is one pod per GPU. The next pod waits, and the offline allocator gives the reason."""
    machine, site, version = gpus
    total = len(machine.judge.gpus)
    assert total == (8 if shares_roots(machine.judge) else 4)
    [reach] = [entry for entry in site.reach if entry.claim.endswith("/pair")]
    assert reach.nodes == [node.name]
    names = [f"pair-{number}" for number in range(total)]
    machine.start(dict.fromkeys(names, "pair"))
    all_seen = [machine.seen(name) for name in names]
    assert all(machine.judge.aligned(entry) for entry in all_seen), all_seen
    assert [len(set(entry)) for entry in zip(*(sum(entry, []) for entry in all_seen))] == [total, total]

    classes = {manifest["metadata"]["name"]: manifest for manifest in site.objects if manifest["kind"] == "DeviceClass"}
    spec = next(manifest for manifest in site.objects if manifest["metadata"]["name"] == "pair")["spec"]["spec"]
    claims = node.plane.expect("GET", CLAIMS)["items"]
    results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
    offered = offers(node.name, machine.facts, gpu_claims.drivers(version))
    by_name = {(offer.driver, offer.device["name"]): offer for offer in offered}
    held = [Result(0, entry["request"], by_name[entry["driver"], entry["device"]]) for entry in results]
    answer = allocate([spec], classes, offered, Engine(), held=held)
    assert isinstance(answer, Refusal), answer
    gpu = next(request for request in spec["devices"]["requests"] if request["name"] == "gpu")
    matching = total // len(gpu.get("firstAvailable", "1"))  # the reason refers to the last alternative
    in_use = "1 of them is in use" if matching == 1 else f"{matching} of them are in use"
    reason = f"request gpu needs 1 device: {matching} match, {in_use}"
    assert (answer.kind, answer.reason) == ("used", reason)
    assert not isinstance(allocate([spec], classes, offered, Engine(), held=held[2:]), Refusal)
    node.plane.expect("POST", PODS, machine.pod("next", "pair"))
    assert "cannot allocate all claims" in unschedulable(node, "next")
    node.delete_pod("pair-0", wait=False)
    node.plane.wait_for(lambda: node._ready(f"{PODS}/next"), "the next pod", 90)
    seen = machine.seen("next")
    assert seen.gpus == all_seen[0].gpus and machine.judge.aligned(seen)


@on_machines([*ROOTS, *MAPS])
def test_a_claim_for_two_pairs_gets_both_aligned(gpus: tuple[GpuNode, Site, str]) -> None:
    machine, _site, _version = gpus
    machine.start({"two": "two-pairs"})
    seen = machine.seen("two")
    assert len(seen.gpus) == len(seen.nics) == 2 and machine.judge.aligned(seen)


@on_machines(ROOTS)
def test_a_pod_gets_a_nic_of_the_next_level_if_the_nearest_nics_are_in_use(gpus: tuple[GpuNode, Site, str]) -> None:
    """A pod has all NICs below the first GPU's PCIe root. The GPU's pod gets a NIC of the same NUMA node, or else of
    another one."""
    machine, _site, version = gpus
    tree = machine.judge
    machine.start({"first": "same-root"})
    used = machine.seen("first").nics
    machine.start({"second": "chain"})
    [gpu], [nic] = machine.seen("second")
    assert gpu == tree.gpu_by_minor[0] and nic not in used
    assert tree.pcie_root(nic) != tree.pcie_root(gpu)
    free = [
        entry["address"]
        for entry in machine.facts["nics"]
        if not entry["default_route"] and entry["address"] not in used
    ]
    if version == "0.5.0" and tree.numa_node(gpu) in map(tree.numa_node, free):
        assert tree.numa_node(nic) == tree.numa_node(gpu)


@on_machines(MAPS)
def test_a_claim_for_a_common_pcie_root_is_refused_if_no_pair_has_one(
    node: Node, gpus: tuple[GpuNode, Site, str]
) -> None:
    """The compiler refuses the claim. If that check is switched off, its pod stays pending."""
    machine, _site, version = gpus
    tree = machine.judge
    strict = {"name": "strict", "namespace": "default", **gpu_claims.pair(tree), "align": "pcie_root"}
    del strict["at_least"]
    site_variables = gpu_claims.variables(version, [strict])
    with pytest.raises(Problems) as caught:
        compile_site(site_variables, {node.name: machine.facts})
    [problem] = caught.value.problems
    roots = [", ".join(sorted({tree.pcie_root(entry) for entry in found})) for found in (tree.gpus, tree.fabric_nics)]
    reason = "no value of resource.kubernetes.io/pcieRoot is common to requests gpu, nic: "
    assert f"{reason}gpu has {roots[0]}; nic has {roots[1]}" in str(problem), problem
    gpu_claims.apply(node, {**site_variables, "dra_claims_allow_unreachable": True}, machine.facts)
    node.plane.expect("POST", PODS, machine.pod("strict", "strict"))
    assert "cannot allocate all claims" in unschedulable(node, "strict")
