# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get a GPU from NVIDIA's own driver and the NIC beside it from ours, by the claims of an inventory."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Refusal, Result, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import MACHINES, GpuNode

Object = dict[str, t.Any]
PODS = "/api/v1/namespaces/default/pods"
PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "nic"}]
RUNS = [("hgx-h100", "0.5.0"), ("hgx-h100", "0.4.1"), ("dgx-a100", "0.5.0"), ("hgx-b200", "0.5.0")]


def drivers(version: str) -> Object:
    return {"gpu.nvidia.com": {"version": version}, "lanewise.dev": {"version": "1.0.0"}}


def inventory(version: str, facts: Object) -> Object:
    """A site's variables: one pair, two pairs in one claim, the NICs beside the first GPU, and that GPU with a NIC as
    near as there is one."""
    levels = ["pcie_root", *(["numa_node"] if version == "0.5.0" else []), "any"]
    first = facts["gpus"][0]["address"]
    root = facts["functions"][first]["kubernetes"]["pcieRoot"]
    beside = [nic for nic in facts["nics"] if facts["functions"][nic["address"]]["kubernetes"].get("pcieRoot") == root]
    nics = {"name": "nics", "kind": "nic", "count": len(beside), "where": {"pcie_root": root}}
    gpu = {**PAIR[0], "where": {"pci_address": first}}
    templates = [
        {"name": "pair", "namespace": "default", "align": "pcie_root", "devices": PAIR},
        {
            "name": "two-pairs",
            "namespace": "default",
            "groups": [{"count": 2, "align": "pcie_root", "devices": PAIR}],
        },
        {"name": "beside", "namespace": "default", "devices": [nics]},
        {"name": "nearest", "namespace": "default", "align": levels, "devices": [gpu, PAIR[1]]},
    ]
    return {"dra_claims_site": "pairs", "dra_claims_drivers": drivers(version), "dra_claims_templates": templates}


@pytest.fixture(name="gpus", scope="module", params=RUNS, ids="-".join)
def _gpus(
    node: Node, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> t.Iterator[tuple[GpuNode, Site, str]]:
    """The node as a machine, with the site's objects applied."""
    machine, version = request.param
    try:
        gpus = GpuNode(node, machine, tmp_path_factory.mktemp(machine), version)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        site = compile_site(inventory(version, gpus.facts), {node.name: gpus.facts})
        for one in site.objects:
            place = f"{API}/deviceclasses" if one["kind"] == "DeviceClass" else ""
            if one["kind"] == "ResourceClaimTemplate":
                place = f"{API}/namespaces/default/resourceclaimtemplates"
            if place:
                path = f"{place}/{one['metadata']['name']}?fieldManager=test&force=true"
                node.plane.expect("PATCH", path, one, "application/apply-patch+yaml")
        yield gpus, site, version
    finally:
        gpus.close()
        for one in node.plane.expect("GET", f"{API}/namespaces/default/resourceclaimtemplates")["items"]:
            name = one["metadata"]["name"]
            node.plane.expect("DELETE", f"{API}/namespaces/default/resourceclaimtemplates/{name}")


@pytest.fixture(autouse=True)
def _nothing_is_left(node: Node) -> t.Iterator[None]:
    yield
    pods = [one["metadata"]["name"] for one in node.plane.expect("GET", PODS)["items"]]
    for name in pods:
        node.delete_pod(name, wait=False)
    node.plane.wait_for(lambda: not node.plane.expect("GET", PODS)["items"], "the end of the pods", 120)
    claims = f"{API}/namespaces/default/resourceclaims"
    node.plane.wait_for(lambda: not node.plane.expect("GET", claims)["items"], "the end of the claims", 60)


def test_every_pod_has_the_nic_beside_its_gpu(node: Node, gpus: tuple[GpuNode, Site, str]) -> None:
    """Eight pairs, eight pods at once. The ninth waits, for the reason that the search gives."""
    machine, site, version = gpus
    [reach] = [one for one in site.reach if one.claim.endswith("/pair")]
    assert reach.nodes == [node.name]
    names = [f"pair-{number}" for number in range(8)]
    machine.start(dict.fromkeys(names, "pair"))
    found = [machine.seen(name) for name in names]
    assert all(machine.aligned(one) for one in found), found
    assert [len(set(one)) for one in zip(*(sum(one, []) for one in found))] == [8, 8]

    classes = {one["metadata"]["name"]: one for one in site.objects if one["kind"] == "DeviceClass"}
    spec = next(one for one in site.objects if one["metadata"]["name"] == "pair")["spec"]["spec"]
    claims = node.plane.expect("GET", f"{API}/namespaces/default/resourceclaims")["items"]
    results = [result for one in claims for result in one["status"]["allocation"]["devices"]["results"]]
    offered = offers(node.name, machine.facts, drivers(version))
    named = {(one.driver, one.device["name"]): one for one in offered}
    held = [Result(0, one["request"], named[one["driver"], one["device"]]) for one in results]
    answer = allocate([spec], classes, offered, Engine(), held=held)
    assert isinstance(answer, Refusal), answer
    assert (answer.kind, answer.reason) == ("used", "request gpu needs 1 device: 8 match, 8 of them are in use")
    assert not isinstance(allocate([spec], classes, offered, Engine(), held=held[2:]), Refusal)
    node.plane.expect("POST", PODS, machine.pod("ninth", "pair"))

    def waiting() -> str:
        conditions = node.plane.expect("GET", f"{PODS}/ninth")["status"].get("conditions", ())
        return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")

    message = node.plane.wait_for(waiting, "the scheduler's word about the ninth pod")
    assert "cannot allocate all claims" in message
    node.delete_pod("pair-0", wait=False)
    node.plane.wait_for(lambda: node._ready(f"{PODS}/ninth"), "the ninth pod", 90)
    assert machine.seen("ninth") == found[0]


def test_two_pairs_of_one_claim(gpus: tuple[GpuNode, Site, str]) -> None:
    machine, _site, _version = gpus
    machine.start({"two": "two-pairs"})
    seen = machine.seen("two")
    assert len(seen.gpus) == len(seen.nics) == 2 and machine.aligned(seen)


def test_the_next_level_where_the_nearest_nic_is_taken(gpus: tuple[GpuNode, Site, str]) -> None:
    """A pod takes the NICs beside the first GPU. The GPU's pod gets one of its socket, or of another one."""
    machine, _site, version = gpus
    machine.start({"first": "beside"})
    taken = machine.seen("first").nics
    machine.start({"second": "nearest"})
    [gpu], [nic] = machine.seen("second")
    assert gpu == machine.facts["gpus"][0]["address"] and nic not in taken
    assert machine.pcie_root(nic) != machine.pcie_root(gpu)
    free = [one["address"] for one in machine.facts["nics"] if not one["default_route"] and one["address"] not in taken]
    if version == "0.5.0" and machine.numa_node(gpu) in map(machine.numa_node, free):
        assert machine.numa_node(nic) == machine.numa_node(gpu)


def test_machines_have_a_part_each() -> None:
    assert {machine for machine, _version in RUNS} == set(MACHINES)
