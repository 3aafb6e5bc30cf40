# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims of a site whose nodes are known only by their ResourceSlices, which were recorded on real nodes."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import (
    PublishedNodes,
    nodes_from_slices,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

pytest.importorskip("cel_expr_python")

FOLDER = COLLECTION / "tests" / "claims" / "slices"
NODES = ("eks-p4d", "aks-gb300", "oke-gb200", "aks-mi300x")
DRIVERS = {"gpu.nvidia.com": {"version": "25.12.0"}, "dra.net": {"version": "1.4.0"}}


def recorded(*nodes: str) -> list[Object]:
    return [one for node in nodes for one in json.loads((FOLDER / f"{node}.json").read_text())]


def site(
    objects: t.Sequence[Object], claims: t.Mapping[str, Object], claims_known: bool = False, **more: t.Any
) -> Site:
    """The site's claims (name to the rest of a template), compiled for the nodes of the objects' slices."""
    templates = [{"name": name, "namespace": "ml", **body} for name, body in claims.items()]
    asked = {"dra_claims_site": "s", "dra_claims_drivers": DRIVERS, "dra_claims_templates": templates, **more}
    return compile_site(asked, nodes_from_slices(objects, claims_known=claims_known).nodes)


def pair(kind: str, **more: t.Any) -> Object:
    return {"devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": kind}], **more}


def reach_of(made: Site) -> dict[str, tuple[list[str], Object, Object]]:
    return {one.claim.partition("/")[2]: (one.nodes, one.refused, one.unknown) for one in made.reach}


def test_claims_are_checked_on_a_fleet_that_was_never_probed() -> None:
    """Every node can satisfy a claim, cannot, or is unknown, with what its slices lack."""
    claims = {
        "gpus": {"devices": [{"name": "gpu", "kind": "gpu", "count": 8}]},
        "aligned": pair("rdma", align="pcie_root"),
        "any": pair("rdma", align="any"),
        "own-pcie-root": {"devices": [{"name": "nic", "kind": "rdma", "where": {"pcie_root": "pci0000:10"}}]},
    }
    found = reach_of(site(recorded(*NODES), claims, claims_known=True))
    assert found["gpus"][0] == ["eks-p4d"] and "gpu.nvidia.com publishes none" in found["gpus"][1]["aks-mi300x"]
    yes, no, unknown = found["aligned"]
    assert yes == ["eks-p4d"] and not unknown
    assert "resource.kubernetes.io/pcieRoot" in no["aks-gb300"], "DRANET publishes no root there"
    assert "pci0008:00" in no["oke-gb200"] and "pci0000:00" in no["oke-gb200"], "both have roots, none in common"
    assert found["any"][0] == ["aks-gb300", "eks-p4d", "oke-gb200"]
    assert found["own-pcie-root"][0] == ["eks-p4d"]


def test_omitted_attributes_of_a_device_in_use_are_unknown() -> None:
    """DRANET does not publish whether a NIC whose interface is in a pod is a VF. The claims show that a NIC is free."""
    claims = {"rdma": {"devices": [{"name": "nic", "kind": "rdma"}]}}
    yes, no, unknown = reach_of(site(recorded("aks-mi300x", "oke-gb200"), claims))["rdma"]
    assert (yes, no, list(unknown)) == (["oke-gb200"], {}, ["aks-mi300x"])
    assert "dra.net/isSriovVf" in unknown["aks-mi300x"]
    assert reach_of(site(recorded("aks-mi300x"), claims, claims_known=True))["rdma"][0] == ["aks-mi300x"]
    # one of the NICs is in use; for the others, what is published counts
    result = {"driver": "dra.net", "pool": "aks-mi300x", "device": "pci-0101-00-00-0", "request": "nic"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "ml"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    eight = {"rdma": {"devices": [{"name": "nic", "kind": "rdma", "count": 8}]}}
    yes, _no, unknown = reach_of(site([*recorded("aks-mi300x"), claim], eight))["rdma"]
    assert not yes and "dra.net/isSriovVf" in unknown["aks-mi300x"]
    seven = {"rdma": {"devices": [{"name": "nic", "kind": "rdma", "count": 7}]}}
    assert reach_of(site([*recorded("aks-mi300x"), claim], seven))["rdma"][0] == ["aks-mi300x"]


def in_use(name: str, *devices: tuple[str, str, str], admin: bool = False) -> Object:
    """A claim of namespace ml that has these devices (driver, node, name)."""
    more = {"adminAccess": True} if admin else {}
    results = [dict(zip(("driver", "pool", "device"), one), request="r", **more) for one in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ml"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def address_of(node: str, driver: str, root: str) -> list[tuple[str, str]]:
    """Name and address of the devices of a recorded node below a PCIe root."""
    found = nodes_from_slices(recorded(node)).nodes[node].offers
    key = "resource.kubernetes.io/pcieRoot"
    below = [one for one in found if one.driver == driver and one.device["attributes"].get(key) == {"string": root}]
    return [(str(one.device["name"]), one.address) for one in below]


def test_free_devices_whose_partners_are_in_use_are_named_with_the_claim() -> None:
    """On p4d two GPUs share a root with one NIC. The node can satisfy the claim once its devices are released."""
    gpus = address_of("eks-p4d", "gpu.nvidia.com", "pci0000:10")
    ((nic, address),) = address_of("eks-p4d", "dra.net", "pci0000:10")
    other = recorded("eks-p4d")
    for one in other:
        one["spec"]["nodeName"] = one["spec"]["pool"]["name"] = "another"
        one["metadata"]["name"] += "-another"
    claims = {"aligned": pair("rdma", align="pcie_root"), "any": pair("rdma", align="any")}
    objects = [*recorded("eks-p4d"), *other]
    (aligned, anything) = site([*objects, in_use("job", ("dra.net", "eks-p4d", nic))], claims).reach
    assert aligned.nodes == anything.nodes == ["another", "eks-p4d"]
    expected = [f"gpu {gpu} is free, but its nic {address} is in use by ml/job" for _name, gpu in gpus]
    assert aligned.unpaired == {"eks-p4d": expected} and not anything.unpaired
    assert [f"  eks-p4d: {one}" for one in expected] == [line for line in aligned.lines() if "in use" in line]
    # if both GPUs of the root are in use, its free NIC cannot be used
    held = in_use("job", *(("gpu.nvidia.com", "eks-p4d", name) for name, _gpu in gpus))
    expected = [f"nic {address} is free, but its gpu {gpus[0][1]} is in use by ml/job"]
    assert site([*objects, held], claims).reach[0].unpaired == {"eks-p4d": expected}
    # admin access uses no device, and without claims nothing is known to be in use
    for objects_now in ([*objects, in_use("admin", ("dra.net", "eks-p4d", nic), admin=True)], objects):
        assert not site(objects_now, claims).reach[0].unpaired


def test_a_claim_that_no_published_node_satisfies_is_refused_with_the_reason() -> None:
    with pytest.raises(Problems, match="are disjoint on this board"):
        site(recorded("oke-gb200"), {"aligned": pair("rdma", align="pcie_root")}, claims_known=True)
    with pytest.raises(Problems, match="no node of the site has been probed"):
        site(recorded("oke-gb200"), {"nearest": pair("rdma", align="nearest")}, claims_known=True)


def test_a_pool_that_is_being_written_is_unknown() -> None:
    objects = recorded("eks-p4d")
    for one in objects:
        if one["spec"]["driver"] == "dra.net":
            one["spec"]["pool"]["resourceSliceCount"] = 2
    found = nodes_from_slices(objects)
    assert found.notes == [
        "pool eks-p4d of dra.net has 1 of 2 slices: it is being written; its devices are not counted"
    ]
    yes, no, unknown = reach_of(site(objects, {"any": pair("rdma", align="any")}))["any"]
    assert (yes, no) == ([], {}) and "1 of 2 slices" in unknown["eks-p4d"]
    shared = recorded("eks-p4d")
    for one in shared:
        if one["spec"]["driver"] == "dra.net":
            del one["spec"]["nodeName"]
            one["spec"]["allNodes"] = True
    yes, no, unknown = reach_of(site(shared, {"any": pair("rdma", align="any")}))["any"]
    assert (yes, no) == ([], {}) and "belong to several nodes" in unknown["eks-p4d"]


def test_taints_of_the_site_count() -> None:
    taint = {"name": "gpus", "driver": "gpu.nvidia.com", "key": "example.com/x", "effect": "NoSchedule"}
    body = {"devices": [{"name": "gpu", "kind": "gpu"}]}
    made = site(recorded("eks-p4d"), {"gpu": body}, dra_claims_taints=[{**taint, "device": "gpu-0"}])
    assert reach_of(made)["gpu"][0] == ["eks-p4d"]
    made = site(recorded("eks-p4d"), {"gpu": body}, dra_claims_taints=[taint])
    assert "example.com/x" in reach_of(made)["gpu"][1]["eks-p4d"] and made.warnings


@pytest.mark.parametrize("machine", names())
def test_slices_of_a_machine_give_the_answers_of_its_probe(machine: str) -> None:
    """The slices of a fleet give the same answers as its probe, where the probe has a definite answer."""
    drivers = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
    known = facts(machine)
    published = slices(offers("node", known, drivers))
    if not published:
        pytest.skip("nothing to publish")
    templates = [
        {"name": f"{kind}-{level}".replace("_", "-"), "namespace": "ml", **pair(kind, align=level)}
        for kind in ("nic", "rdma", "vf")
        for level in ("pcie_root", "numa_node", "any")
    ]
    asked: Object = {"dra_claims_site": "s", "dra_claims_drivers": drivers, "dra_claims_templates": templates}
    asked["dra_claims_allow_unreachable"] = True
    both = [compile_site(asked, nodes) for nodes in ({"node": known}, nodes_from_slices(published).nodes)]
    assert both[0].objects == both[1].objects
    for probed, read in zip(*(one.reach for one in both), strict=True):
        if not probed.unknown:
            assert (read.nodes, list(read.refused), read.unknown) == (probed.nodes, list(probed.refused), {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.clear(), "there is no ResourceSlice"),
        (lambda one: one["spec"].pop("pool"), "cannot be read: KeyError 'pool'"),
        (lambda one: one["spec"].update(devices="x"), "cannot be read: "),
        (lambda one: one.update(spec=None), "cannot be read: "),
    ],
)
def test_an_object_that_is_not_a_slice_is_an_error(change: t.Callable[[Object], t.Any], words: str) -> None:
    objects = [copy.deepcopy(recorded("eks-p4d")[0])]
    change(objects[0])
    with pytest.raises(ValueError, match=words):
        nodes_from_slices(objects)


def test_plans_and_claims_read_the_same_devices() -> None:
    """From the same slices. A plan uses the values that are published now as they are."""
    objects = recorded(*NODES)
    now, free = PublishedNodes(objects), nodes_from_slices(objects)
    assert list(now.nodes) == list(free.nodes) == sorted(NODES)
    for name in NODES:
        devices = [[one.device for one in nodes.nodes[name].offers] for nodes in (now, free)]
        assert devices[0] == devices[1]
    assert not any(one.unknown for one in now.nodes["aks-mi300x"].offers)
    assert all(one.unknown for one in free.nodes["aks-mi300x"].offers)
