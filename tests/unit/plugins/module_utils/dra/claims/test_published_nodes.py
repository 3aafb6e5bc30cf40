# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims of a site whose nodes are known only by their ResourceSlices, which were recorded on real nodes."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EvaluationError
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_reasons import unpaired
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.selector_cache import SelectorCache
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import (
    PublishedNodes,
    nodes_from_slices,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_devices import identify
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
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
    """The recorded ResourceSlices of these nodes."""
    return [item for node in nodes for item in json.loads((FOLDER / f"{node}.json").read_text())]


def site(
    objects: t.Sequence[Object], claims: t.Mapping[str, Object], claims_known: bool = False, **more: t.Any
) -> Site:
    """A site compiled for the nodes whose slices are in `objects`. `claims` are the keys of each template, by its name.

    `claims_known` means that `objects` contains all claims of the cluster.
    """
    templates = [{"name": name, "namespace": "ml", **body} for name, body in claims.items()]
    values = {"dra_claims_site": "s", "dra_claims_drivers": DRIVERS, "dra_claims_templates": templates, **more}
    return compile_site(values, nodes_from_slices(objects, claims_known=claims_known).nodes)


def pair(kind: str, **more: t.Any) -> Object:
    return {"devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": kind}], **more}


def reach_by_claim(compiled: Site) -> dict[str, tuple[list[str], Object, Object]]:
    """By claim: the nodes that satisfy it, the nodes that cannot, and the nodes that are unknown, with the reasons."""
    return {entry.claim.partition("/")[2]: (entry.nodes, entry.refused, entry.unknown) for entry in compiled.reach}


def claim_with(name: str, *devices: tuple[str, str, str], admin: bool = False) -> Object:
    """A claim of namespace ml that has these devices (driver, node, name)."""
    more = {"adminAccess": True} if admin else {}
    results = [dict(zip(("driver", "pool", "device"), device), request="r", **more) for device in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ml"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def devices_below(root: str, node: str, driver: str) -> list[tuple[str, str]]:
    """The name and PCI address of each device that a driver publishes below a PCIe root of a recorded node."""
    node_offers = nodes_from_slices(recorded(node)).nodes[node].offers
    key = "resource.kubernetes.io/pcieRoot"
    below = [
        offer
        for offer in node_offers
        if offer.driver == driver and offer.device["attributes"].get(key) == {"string": root}
    ]
    return [(str(offer.device["name"]), offer.address) for offer in below]


def test_claims_are_checked_on_a_fleet_that_was_never_probed() -> None:
    claims = {
        "gpus": {"devices": [{"name": "gpu", "kind": "gpu", "count": 8}]},
        "aligned": pair("rdma", align="pcie_root"),
        "any": pair("rdma", align="any"),
        "own-pcie-root": {"devices": [{"name": "nic", "kind": "rdma", "where": {"pcie_root": "pci0000:10"}}]},
    }
    reach = reach_by_claim(site(recorded(*NODES), claims, claims_known=True))
    assert reach["gpus"][0] == ["eks-p4d"] and "gpu.nvidia.com publishes none" in reach["gpus"][1]["aks-mi300x"]
    satisfying, refused, unknown = reach["aligned"]
    assert satisfying == ["eks-p4d"] and not unknown
    assert "resource.kubernetes.io/pcieRoot" in refused["aks-gb300"], "DRANET publishes no root there"
    assert "pci0008:00" in refused["oke-gb200"] and "pci0000:00" in refused["oke-gb200"], (
        "both have roots, none in common"
    )
    assert reach["any"][0] == ["aks-gb300", "eks-p4d", "oke-gb200"]
    assert reach["own-pcie-root"][0] == ["eks-p4d"]


@pytest.mark.parametrize(
    "test", ['{}.existsOne(k, v, k.startsWith("product"))', "size({}) > 8", "{}.size() > 8", '"product" + "Name" in {}']
)
def test_a_selector_that_names_no_attribute_may_depend_on_any(test: str) -> None:
    objects = recorded("eks-p4d")
    for item in copy.deepcopy(objects):
        item["spec"]["nodeName"] = item["spec"]["pool"]["name"] = "other"
        item["metadata"]["name"] += "-other"
        for device in item["spec"]["devices"]:
            device["attributes"].pop("productName", None)
        objects.append(item)
    selector = test.format('device.attributes["gpu.nvidia.com"]')
    classes = [{"name": "any", "cel": ["device.driver == 'gpu.nvidia.com'", selector]}]
    claims = {"gpu": {"devices": [{"name": "gpu", "class": "any"}]}}
    satisfying, refused, unknown = reach_by_claim(site(objects, claims, dra_claims_classes=classes))["gpu"]
    assert (satisfying, list(refused), unknown) == (["eks-p4d"], ["other"], {})


def test_a_cached_error_keeps_no_frames_of_earlier_calls() -> None:
    cache = SelectorCache(Engine())
    device: Object = {"attributes": {}}
    depths = set()
    for _time in range(3):
        with pytest.raises(EvaluationError) as error:
            cache.matches('device.attributes["a"].missing == 1', device, "a")
        depths.add(len(error.traceback))
    assert len(depths) == 1


def test_the_end_of_the_callers_stack_is_no_answer_of_a_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SelectorCache(Engine())
    selector, device = 'device.driver == "a"', {"attributes": {}}
    with monkeypatch.context() as patch, pytest.raises(RecursionError):
        patch.setattr(cache.engine, "selects", _ends_the_stack)
        cache.matches(selector, device, "a")
    assert cache.matches(selector, device, "a")


def _ends_the_stack(*arguments: object) -> bool:
    return _ends_the_stack(*arguments)


def test_omitted_attributes_of_a_device_in_use_are_unknown() -> None:
    """DRANET does not publish whether a NIC is a VF while its interface is in a pod, which only the claims show."""
    claims = {"rdma": {"devices": [{"name": "nic", "kind": "rdma"}]}}
    satisfying, refused, unknown = reach_by_claim(site(recorded("aks-mi300x", "oke-gb200"), claims))["rdma"]
    assert (satisfying, refused, list(unknown)) == (["oke-gb200"], {}, ["aks-mi300x"])
    assert "dra.net/isSriovVf" in unknown["aks-mi300x"]
    assert reach_by_claim(site(recorded("aks-mi300x"), claims, claims_known=True))["rdma"][0] == ["aks-mi300x"]
    # the claims show that one NIC is in use, so the omitted attributes of the seven others are absent
    claim = claim_with("job", ("dra.net", "aks-mi300x", "pci-0101-00-00-0"))
    eight = {"rdma": {"devices": [{"name": "nic", "kind": "rdma", "count": 8}]}}
    satisfying, _refused, unknown = reach_by_claim(site([*recorded("aks-mi300x"), claim], eight))["rdma"]
    assert not satisfying and "dra.net/isSriovVf" in unknown["aks-mi300x"]
    seven = {"rdma": {"devices": [{"name": "nic", "kind": "rdma", "count": 7}]}}
    assert reach_by_claim(site([*recorded("aks-mi300x"), claim], seven))["rdma"][0] == ["aks-mi300x"]


def test_free_devices_whose_partners_are_in_use_are_named_with_the_claim() -> None:
    """On p4d two GPUs share a root with one NIC. The node can satisfy the claim once its devices are released."""
    gpus = devices_below("pci0000:10", "eks-p4d", "gpu.nvidia.com")
    ((nic, address),) = devices_below("pci0000:10", "eks-p4d", "dra.net")
    another_node = recorded("eks-p4d")
    for item in another_node:
        item["spec"]["nodeName"] = item["spec"]["pool"]["name"] = "another"
        item["metadata"]["name"] += "-another"
    claims = {"aligned": pair("rdma", align="pcie_root"), "any": pair("rdma", align="any")}
    objects = [*recorded("eks-p4d"), *another_node]
    (aligned, anything) = site([*objects, claim_with("job", ("dra.net", "eks-p4d", nic))], claims).reach
    assert aligned.nodes == anything.nodes == ["another", "eks-p4d"]
    expected = [f"gpu {gpu} is free, but its nic {address} is in use by ml/job" for _name, gpu in gpus]
    assert aligned.unpaired == {"eks-p4d": expected} and not anything.unpaired
    assert [f"  eks-p4d: {line}" for line in expected] == [line for line in aligned.lines() if "in use" in line]
    # both GPUs of the root are in use, so its free NIC cannot be used
    held = claim_with("job", *(("gpu.nvidia.com", "eks-p4d", name) for name, _gpu in gpus))
    expected = [f"nic {address} is free, but its gpu {gpus[0][1]} is in use by ml/job"]
    assert site([*objects, held], claims).reach[0].unpaired == {"eks-p4d": expected}
    # admin access uses no device, and without claims nothing is known to be in use
    for current_objects in ([*objects, claim_with("admin", ("dra.net", "eks-p4d", nic), admin=True)], objects):
        assert not site(current_objects, claims).reach[0].unpaired


def _by_switch(driver: str, name: str, address: str = "", **more: t.Any) -> Offer:
    """A device with the attribute `example.com/switch`."""
    device = {"name": name, "attributes": {"example.com/switch": {"string": "s"}}, **more}
    return Offer(driver, "n", "n", device, address)


_SWITCH_CLASSES: Object = {
    driver: {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}} for driver in ("g", "n")
}
_SAME_SWITCH = [{"requests": ["gpu", "nic"], "matchAttribute": "example.com/switch"}]


def _unpaired_by_switch(offered: t.Sequence[Offer], held: t.Collection[str], **of_nic: t.Any) -> list[str]:
    """The free devices without a partner, for a GPU of class `g` and a NIC of class `n` below one switch.

    The devices named in `held` are those of claim c. `of_nic` are more keys of the NIC's request.
    """
    requests = [
        {"name": "gpu", "exactly": {"deviceClassName": "g"}},
        {"name": "nic", "exactly": {"deviceClassName": "n", **of_nic}},
    ]
    owners = {identify(offer): "c" for offer in offered if offer.device["name"] in held}
    asked = {"requests": requests, "constraints": _SAME_SWITCH}
    return unpaired(asked, _SWITCH_CLASSES, offered, SelectorCache(Engine()), owners)


def test_devices_with_one_address_or_none_are_told_apart() -> None:
    """Partitions of a GPU have its address, and not every device has an address."""
    partitions = [_by_switch("g", name, "0000:1b:00.0") for name in ("part-0", "part-1")]
    nics = [_by_switch("n", name) for name in ("eth0", "eth1")]
    assert _unpaired_by_switch([*partitions, *nics], ["part-1", "eth1"]) == []
    assert _unpaired_by_switch([*partitions, *nics], ["eth0", "eth1"]) == [
        f"gpu {name} is free, but its nic eth0 is in use by c" for name in ("part-0", "part-1")
    ]
    assert _unpaired_by_switch([partitions[0], *nics], ["eth0", "eth1"]) == [
        "gpu 0000:1b:00.0 is free, but its nic eth0 is in use by c"
    ]


def test_only_taints_that_block_the_request_are_named() -> None:
    gpu = _by_switch("g", "gpu")
    effects = {"a": "NoSchedule", "b": "NoExecute", "c": "None"}
    nic = _by_switch("n", "eth0", taints=[{"key": key, "effect": effect} for key, effect in effects.items()])
    tolerate_a = [{"key": "a", "operator": "Exists"}]
    assert _unpaired_by_switch([gpu, nic], []) == ["gpu gpu is free, but its nic eth0 is tainted with a, b"]
    assert _unpaired_by_switch([gpu, nic], [], tolerations=tolerate_a) == [
        "gpu gpu is free, but its nic eth0 is tainted with b"
    ]
    assert _unpaired_by_switch([gpu, nic], [], tolerations=[{"operator": "Exists"}]) == []


def test_a_claim_that_no_published_node_satisfies_is_refused_with_the_reason() -> None:
    with pytest.raises(Problems, match="are disjoint on this board"):
        site(recorded("oke-gb200"), {"aligned": pair("rdma", align="pcie_root")}, claims_known=True)
    with pytest.raises(Problems, match="no node of the site has been probed"):
        site(recorded("oke-gb200"), {"nearest": pair("rdma", align="nearest")}, claims_known=True)


def test_a_pool_that_is_being_written_is_unknown() -> None:
    objects = recorded("eks-p4d")
    for item in objects:
        if item["spec"]["driver"] == "dra.net":
            item["spec"]["pool"]["resourceSliceCount"] = 2
    nodes = nodes_from_slices(objects)
    assert nodes.notes == [
        "pool eks-p4d of dra.net has 1 of 2 slices, so the scheduler does not use it; its devices are not counted"
    ]
    satisfying, refused, unknown = reach_by_claim(site(objects, {"any": pair("rdma", align="any")}))["any"]
    assert (satisfying, refused) == ([], {}) and "1 of 2 slices" in unknown["eks-p4d"]
    all_nodes = recorded("eks-p4d")
    for item in all_nodes:
        if item["spec"]["driver"] == "dra.net":
            del item["spec"]["nodeName"]
            item["spec"]["allNodes"] = True
    satisfying, refused, unknown = reach_by_claim(site(all_nodes, {"any": pair("rdma", align="any")}))["any"]
    assert (satisfying, refused) == ([], {}) and "belong to several nodes" in unknown["eks-p4d"]


def test_taints_of_the_site_exclude_published_devices() -> None:
    taint = {"name": "gpus", "driver": "gpu.nvidia.com", "key": "example.com/x", "effect": "NoSchedule"}
    body = {"devices": [{"name": "gpu", "kind": "gpu"}]}
    compiled = site(recorded("eks-p4d"), {"gpu": body}, dra_claims_taints=[{**taint, "device": "gpu-0"}])
    assert reach_by_claim(compiled)["gpu"][0] == ["eks-p4d"]
    compiled = site(recorded("eks-p4d"), {"gpu": body}, dra_claims_taints=[taint])
    assert "example.com/x" in reach_by_claim(compiled)["gpu"][1]["eks-p4d"] and compiled.warnings


@pytest.mark.parametrize("machine", names())
def test_slices_of_a_machine_give_the_answers_of_its_probe(machine: str) -> None:
    """The slices of a node give the same answers as its probe, unless the answer of the probe is unknown."""
    drivers = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
    machine_facts = facts(machine)
    published = slices(offers("node", machine_facts, drivers))
    if not published:
        pytest.skip("nothing to publish")
    templates = [
        {"name": f"{kind}-{level}".replace("_", "-"), "namespace": "ml", **pair(kind, align=level)}
        for kind in ("nic", "rdma", "vf")
        for level in ("pcie_root", "numa_node", "any")
    ]
    values: Object = {"dra_claims_site": "s", "dra_claims_drivers": drivers, "dra_claims_templates": templates}
    values["dra_claims_allow_unreachable"] = True
    compiled = [compile_site(values, nodes) for nodes in ({"node": machine_facts}, nodes_from_slices(published).nodes)]
    assert compiled[0].objects == compiled[1].objects
    for by_probe, by_slices in zip(compiled[0].reach, compiled[1].reach, strict=True):
        if not by_probe.unknown:
            assert (by_slices.nodes, list(by_slices.refused), by_slices.unknown) == (
                by_probe.nodes,
                list(by_probe.refused),
                {},
            )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda item: item.clear(), "there is no ResourceSlice"),
        (lambda item: item["spec"].pop("pool"), "cannot be read: KeyError 'pool'"),
        (lambda item: item["spec"].update(devices="x"), "cannot be read: "),
        (lambda item: item.update(spec=None), "cannot be read: "),
    ],
)
def test_an_object_that_is_not_a_slice_is_an_error(change: t.Callable[[Object], t.Any], words: str) -> None:
    objects = [copy.deepcopy(recorded("eks-p4d")[0])]
    change(objects[0])
    with pytest.raises(ValueError, match=words):
        nodes_from_slices(objects)


def test_plans_and_claims_read_the_same_devices() -> None:
    """For claims, attributes that a driver omits while a device is in use are unknown. For plans, they are absent."""
    objects = recorded(*NODES)
    plan_nodes, claim_nodes = PublishedNodes(objects), nodes_from_slices(objects)
    assert list(plan_nodes.nodes) == list(claim_nodes.nodes) == sorted(NODES)
    for name in NODES:
        devices = [[offer.device for offer in nodes.nodes[name].offers] for nodes in (plan_nodes, claim_nodes)]
        assert devices[0] == devices[1]
    assert not any(offer.unknown for offer in plan_nodes.nodes["aks-mi300x"].offers)
    assert all(offer.unknown for offer in claim_nodes.nodes["aks-mi300x"].offers)
