# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Promises of claims are compared with slices and with what the kernel reports, on example machines.

A promise is a constraint or selector of a claim that its devices met when they were allocated. Each test chooses the
devices of its claims, aligned or not.

This file has more than 500 lines because it has a case for each verdict of each promise.
"""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.check import cgroup_cpusets
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.devices import Machine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.verdicts import failures, worst
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import Uncheckable
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools, address_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import NUMA_NODE, PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    NODE,
    NodeWithClaims,
    add_vf_with_shared_counters,
    finding_ids,
    match_attribute,
    nearest_nic,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "mi300x", "hgx-b200"])
def test_the_promise_of_an_aligned_pair_is_kept_and_proven(machine: str) -> None:
    node = NodeWithClaims(machine)
    gpu, nic = node.pair("PIX", "PXB")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    report = node.report()
    assert (report["verdict"], report["proven"], report["node"]) == ("kept", True, NODE)
    [promise] = report["promises"]
    assert set(promise["values"].values()) == set(promise["kernel"].values()) and len(promise["values"]) == 2
    [pair] = report["pairs"]
    assert pair["level"] in ("PIX", "PXB") and pair["promised"] == [PCIE_ROOT]
    assert {device["kind"] for device in report["devices"]} == {"gpu", "nic"}
    assert [pod["phase"] for pod in report["pods"]] == ["Running"]
    assert not finding_ids(report, "error") and not finding_ids(report, "warning")


def test_without_facts_of_the_node_a_promise_is_kept_but_unproven() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    answer = node.check(probed=False)
    [report] = answer["claims"]
    assert (report["verdict"], report["proven"]) == ("kept", False)
    assert report["pairs"][0]["level"] == "UNKNOWN"
    assert answer["summary"]["unproven"] == 1


def test_a_promise_is_unknown_if_only_the_slices_have_another_root() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    node.published_device(nic)["attributes"][PCIE_ROOT] = {"string": "pci0000:ff"}
    report = node.report()
    assert report["verdict"] == "unknown" and "disagree" in report["promises"][0]["reason"]
    assert "pci0000:ff" in report["promises"][0]["reason"] and "probe" in report["promises"][0]["fix"]
    # without a probe, only the published values count
    report = node.report(probed=False)
    assert report["verdict"] == "broken" and finding_ids(report, "error") == ["promise-broken"]
    # if the kernel reports the same value, the promise is broken
    node.facts["functions"][nic]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    assert node.report()["verdict"] == "broken"


def test_a_promise_is_unknown_if_only_the_kernel_reports_another_root() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    node.facts["functions"][nic]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    report = node.report()
    assert report["verdict"] == "unknown" and "the kernel reports pci0000:ff" in report["promises"][0]["reason"]
    # the kernel reports the same other root for both devices: the promise is kept, with values that are not published
    node.facts["functions"][gpu]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    report = node.report()
    assert report["verdict"] == "kept" and "driver-and-kernel-differ" in finding_ids(report, "warning")
    # the kernel does not report the device at all
    del node.facts["functions"][nic]
    report = node.report()
    assert report["verdict"] == "unknown"
    assert any("has no PCI function" in finding["summary"] for finding in report["findings"])


def test_a_promise_is_unknown_if_a_device_left_its_pool() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    name = node.devices()[nic]["device"]
    gone = copy.deepcopy(node)
    for resource_slice in gone.slices:
        devices = resource_slice["spec"].get("devices", [])
        resource_slice["spec"]["devices"] = [device for device in devices if device["name"] != name]
    report = gone.report()
    assert report["verdict"] == "unknown" and {device["state"] for device in report["devices"]} == {"current", "gone"}
    assert any("is no longer in its pool" in finding["summary"] and finding["fix"] for finding in report["findings"])

    stale = copy.deepcopy(node)
    newer = copy.deepcopy(
        [resource_slice for resource_slice in gone.slices if resource_slice["spec"]["driver"] == "lanewise.dev"]
    )
    for resource_slice in newer:
        resource_slice["spec"]["pool"]["generation"] = 4
    stale.slices += newer
    report = stale.report()
    assert "stale" in {device["state"] for device in report["devices"]} and report["verdict"] == "unknown"
    assert any("only in generation 3" in finding["summary"] for finding in report["findings"])

    incomplete = copy.deepcopy(gone)
    for resource_slice in incomplete.slices:
        if resource_slice["spec"]["driver"] == "lanewise.dev":
            resource_slice["spec"]["pool"]["resourceSliceCount"] += 1
    assert "incomplete" in {device["state"] for device in incomplete.report()["devices"]}

    node.slices = [
        resource_slice for resource_slice in node.slices if resource_slice["spec"]["driver"] != "lanewise.dev"
    ]
    report = node.report()
    assert "no-pool" in {device["state"] for device in report["devices"]} and report["verdict"] == "unknown"
    assert report["node"] == NODE


@pytest.mark.parametrize(
    ("value", "word"),
    [(None, "is no longer published for"), ({"string": ""}, "does not know"), ({"int": -1}, "does not know")],
)
def test_a_promise_is_unknown_if_an_attribute_has_no_usable_value(value: Object | None, word: str) -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    for address in (gpu, nic):
        attributes = node.published_device(address)["attributes"]
        if value is None:
            del attributes[PCIE_ROOT]
        else:
            attributes[PCIE_ROOT] = value
    report = node.report()
    assert report["verdict"] == "unknown" and word in report["promises"][0]["reason"]


def test_pods_that_moved_ended_or_are_missing_are_reported() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    moved = copy.deepcopy(node)
    moved.pods[0]["spec"]["nodeName"] = "node-2"
    report = moved.report()
    assert report["verdict"] == "unknown"
    assert any("runs on node-2" in finding["summary"] for finding in report["findings"])

    replaced = copy.deepcopy(node)
    replaced.pods[0]["metadata"]["uid"] = "another"
    assert any("another pod has its name" in finding["summary"] for finding in replaced.report()["findings"])

    gone = copy.deepcopy(node)
    gone.pods.clear()
    report = gone.report()
    assert report["verdict"] == "unknown" and report["pods"][0]["phase"] == "Gone"

    ended = copy.deepcopy(node)
    ended.pods[0]["status"]["phase"] = "Succeeded"
    assert ended.report()["verdict"] == "kept" and "ended" in finding_ids(ended.report(), "note")

    unused = copy.deepcopy(node)
    unused.claims[0]["status"]["reservedFor"] = []
    assert unused.report()["verdict"] == "kept" and "unused" in finding_ids(unused.report(), "note")


def test_devices_of_other_nodes_are_reported() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    claim = node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    term = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]
    term["matchFields"][0]["values"] = ["node-9"]
    report = node.report()
    assert report["verdict"] == "unknown"
    assert any("allocated to node node-9" in finding["summary"] for finding in report["findings"])
    for resource_slice in node.slices:
        if resource_slice["spec"]["driver"] == "lanewise.dev":
            resource_slice["spec"]["nodeName"] = "node-2"
    report = node.report()
    assert report["verdict"] == "broken" and report["node"] is None
    assert "do not mean the same location" in report["promises"][0]["reason"]


def test_an_unaligned_pair_without_promise_is_a_note() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("SYS")
    node.add_claim({"gpu": gpu, "nic": nic})
    report = node.report()
    assert report["verdict"] == "none" and report["promises"] == []
    assert report["pairs"][0]["level"] == "SYS" and report["pairs"][0]["promised"] == []
    [finding] = report["findings"]
    assert finding["severity"] == "note" and finding["summary"].startswith("could be aligned:")
    assert "which is free" in finding["summary"] and "at PIX" in finding["summary"]
    node.add_claim({"nic": nearest_nic(node, gpu)}, name="other")
    found = node.check()["claims"][0]["findings"]
    assert any("which ml/other has" in finding["summary"] for finding in found)


def test_a_pf_is_not_free_while_a_claim_has_one_of_its_vfs() -> None:
    """Both consume the same counters."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("SYS")
    near = nearest_nic(node, gpu)
    node.add_claim({"gpu": gpu, "nic": nic})
    vf = add_vf_with_shared_counters(node, near)
    [finding] = node.check()["claims"][0]["findings"]
    assert "which is free" in finding["summary"] and node.devices()[near]["device"] in finding["summary"]
    node.add_claim({"vf": vf}, name="other")
    [finding] = node.check()["claims"][0]["findings"]
    assert "which ml/other has in part" in finding["summary"]


@pytest.mark.parametrize(
    ("capacity", "consumed", "state"),
    [
        ({"bandwidth": "400"}, [{"bandwidth": "100"}, {"bandwidth": "100"}], "which is free"),
        ({"bandwidth": "400"}, [{"bandwidth": "300"}, {"bandwidth": "100"}], "which ml/other-1 has in part"),
        ({"bandwidth": "400", "slots": "8"}, [{"bandwidth": "1", "slots": "8"}], "which ml/other-0 has in part"),
        ({"bandwidth": "1k"}, [{"bandwidth": "999"}], "which is free"),
        ({}, [None, None], "which is free"),  # no capacity that could be used up
        ({"bandwidth": "400"}, [{"bandwidth": "100"}, None], "which is shared"),
        ({"bandwidth": "400", "slots": "8"}, [{"bandwidth": "1"}], "which is shared"),
        ({"bandwidth": "400", "slots": "8"}, [{"bandwidth": "400"}], "which ml/other-0 has in part"),
        ({"bandwidth": "400"}, [{"bandwidth": "400"}, None], "which ml/other-1 has in part"),
    ],
)
def test_a_shared_device_is_free_while_it_has_capacity_left(
    capacity: dict[str, str], consumed: list[dict[str, str] | None], state: str
) -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("SYS")
    near = nearest_nic(node, gpu)
    node.add_claim({"gpu": gpu, "nic": nic})
    device = node.published_device(near)
    device["allowMultipleAllocations"] = True
    device["capacity"] = {name: {"value": value} for name, value in capacity.items()}
    for index, share in enumerate(consumed):
        claim = node.add_claim({"nic": near}, name=f"other-{index}")
        if share is not None:
            claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = share
    # admin access consumes nothing
    admin = node.add_claim({"nic": near}, name="admin")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    [finding] = node.check()["claims"][0]["findings"]
    assert f"{device['name']}, {state}, would be at PIX" in finding["summary"]


def test_a_tainted_nic_is_not_suggested() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("SYS")
    node.add_claim({"gpu": gpu, "nic": nic})
    for near in node.machine.nics:
        if node.machine.level(gpu, near)[0] == "PIX" and near in node.devices():
            node.published_device(near)["taints"] = [{"key": "lanewise.dev/link-down", "effect": "NoSchedule"}]
    assert all("at PIX" not in finding["summary"] for finding in node.report()["findings"])


def test_a_nic_in_use_is_still_compared_with_others() -> None:
    """The driver publishes the rate and link layer of a NIC that a pod has, which the probe cannot read."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("SYS")
    near = [candidate for candidate in node.machine.nics if node.machine.level(gpu, candidate)[0] == "PIX"]
    node.add_claim({"gpu": gpu, "nic": nic})
    expected = node.report()["findings"]
    node.move_into_pod(nic)
    assert node.report()["findings"] == expected and "which is free" in expected[0]["summary"]
    # the published speeds differ, even though the probe reads the speed of neither NIC
    for near_nic in near:
        node.move_into_pod(near_nic)
        node.published_device(near_nic)["attributes"]["linkSpeedMbps"] = {"int": 25_000}
    facts_before = copy.deepcopy(node.facts)
    assert all("at PIX" not in finding["summary"] for finding in node.report()["findings"])
    assert node.facts == facts_before


def test_a_nearer_nic_is_suggested_although_the_promise_is_kept() -> None:
    """Devices on one NUMA node need not have a common PCIe switch."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("NODE")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic", attribute=NUMA_NODE))
    report = node.report()
    assert report["verdict"] == "kept"
    [summary] = [finding["summary"] for finding in report["findings"] if finding["id"] == "could-be-aligned"]
    assert summary.startswith("aligned as promised by ") and "at PIX" in summary


def test_an_unknown_level_is_reported_without_a_better_pair() -> None:
    """This machine does not report the level of any pair, so no other pair is known to be nearer."""
    node = NodeWithClaims("vmd")
    published = node.devices()
    gpu = next(address for address in node.machine.gpus if address in published)
    nics = [nic for nic in node.machine.nics if nic in published]
    assert nics
    for nic in nics:
        node.claims.clear()
        node.add_claim({"gpu": gpu, "nic": nic})
        report = node.report()
        assert report["pairs"][0]["level"] == "UNKNOWN"
        assert "could-be-aligned" not in finding_ids(report)


def request_with_alternatives(name: str, *subs: str) -> Object:
    return {"name": name, "firstAvailable": [{"name": sub, "deviceClassName": "any"} for sub in subs]}


def test_the_chosen_level_of_a_preference_list_is_reported() -> None:
    node = NodeWithClaims("hgx-h100")
    same_root = match_attribute("gpu", "nic/pcie-root")
    same_numa_node = match_attribute("gpu", "nic/numa-node", attribute=NUMA_NODE)
    requests = [
        request_with_alternatives("nic", "pcie-root", "numa-node", "any"),
        {"name": "gpu", "exactly": {"deviceClassName": "a"}},
    ]
    gpu, nic = node.pair("NODE")
    node.add_claim({"nic/numa-node": nic, "gpu": gpu}, same_root, same_numa_node, requests=requests)
    report = node.report()
    assert [promise["subject"] for promise in report["promises"]] == [NUMA_NODE] and report["verdict"] == "kept"
    assert report["preferences"] == [
        {"request": "nic", "chosen": "numa-node", "rank": 2, "of": 3, "better": ["pcie-root"]}
    ]
    assert "fallback" in finding_ids(report, "note")
    node.claims.clear()
    gpu, nic = node.pair("SYS")
    node.add_claim({"nic/any": nic, "gpu": gpu}, same_root, same_numa_node, requests=requests)
    report = node.report()
    assert report["verdict"] == "none" and report["preferences"][0]["rank"] == 3
    assert "could-be-aligned" in finding_ids(report, "note")


def test_distinct_and_list_attributes_are_checked_for_all_requests() -> None:
    node = NodeWithClaims("hgx-h100")
    gpus = list(node.machine.gpus)[:2]
    node.add_claim({"a": gpus[0], "b": gpus[1]}, {"distinctAttribute": PCIE_ROOT})
    assert node.report()["verdict"] == "kept"
    node.claims[0]["spec"]["devices"]["constraints"] = [{"matchAttribute": PCIE_ROOT}]
    report = node.report()
    assert report["verdict"] == "broken" and "scheduled again" in report["promises"][0]["fix"]
    # lists match if they have a value in common
    for address, roots in ((gpus[0], ["r1", "r2"]), (gpus[1], ["r2", "r3"])):
        node.published_device(address)["attributes"]["example.com/roots"] = {"strings": roots}
    node.claims[0]["spec"]["devices"]["constraints"] = [{"matchAttribute": "example.com/roots"}]
    assert node.report()["verdict"] == "kept"
    assert node.report()["proven"]  # the kernel reports no such attribute to compare with
    node.published_device(gpus[1])["attributes"]["example.com/roots"] = {"string": "r3"}
    assert node.report()["verdict"] == "broken"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("value", [None, {"string": ""}])
def test_devices_of_the_same_name_in_two_pools_are_distinguished(order: tuple[int, int], value: Object | None) -> None:
    node = NodeWithClaims("hgx-h100")
    nics = [node.pair("PIX")[1]]
    nics.append(next(address for address in node.machine.nics if address in node.devices() and address not in nics))
    [first] = [resource_slice for resource_slice in node.slices if resource_slice["spec"]["driver"] == "lanewise.dev"]
    devices = [node.published_device(nic) for nic in nics]
    first["spec"]["devices"].remove(devices[1])
    second = copy.deepcopy(first)
    second["spec"]["pool"]["name"] = "more"
    second["spec"]["devices"] = [{**devices[1], "name": devices[0]["name"]}]
    node.slices.append(second)
    claim = node.add_claim({"one": nics[0], "two": nics[0]}, {"distinctAttribute": PCIE_ROOT})
    results = claim["status"]["allocation"]["devices"]["results"]
    results[1]["pool"] = "more"
    claim["status"]["allocation"]["devices"]["results"] = [results[index] for index in order]
    report = node.report()
    assert report["verdict"] == "kept" and report["proven"]
    values = report["promises"][0]["values"]
    assert sorted(values.values()) == sorted(node.machine.functions[nic].kubernetes["pcieRoot"] for nic in nics)
    assert set(values) == {f"lanewise.dev/{pool}/{devices[0]['name']}" for pool in (NODE, "more")}
    # the device of the first result lacks the attribute
    incomplete = (devices[0], second["spec"]["devices"][0])[order[0]]
    if value is None:
        del incomplete["attributes"][PCIE_ROOT]
    else:
        incomplete["attributes"][PCIE_ROOT] = value
    report = node.report()
    assert report["verdict"] == "unknown" and not report["proven"]
    assert f"/{(NODE, 'more')[order[0]]}/" in report["promises"][0]["reason"]


def test_promises_of_several_shares_of_one_device_are_proven() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    claim = node.add_claim({"gpu": gpu, "one": nic, "two": nic}, match_attribute("gpu", "one", "two"))
    for index, result in enumerate(claim["status"]["allocation"]["devices"]["results"][1:]):
        result["shareID"] = f"00000000-0000-0000-0000-00000000000{index}"
    report = node.report()
    assert (report["verdict"], report["proven"]) == ("kept", True)
    assert len(report["promises"][0]["values"]) == 2


def test_the_first_of_several_numa_nodes_is_compared_with_the_kernel() -> None:
    """A driver publishes the NUMA node of the device first, and then NUMA nodes that are equally near."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic", attribute=NUMA_NODE))
    numa_id = node.machine.numa_of(gpu)
    assert numa_id is not None
    for address in (gpu, nic):
        node.published_device(address)["attributes"][NUMA_NODE] = {"ints": [numa_id, 1 - numa_id]}
    assert (node.report()["verdict"], node.report()["proven"]) == ("kept", True)
    node.published_device(nic)["attributes"][NUMA_NODE] = {"ints": [1 - numa_id, numa_id]}
    report = node.report()
    assert report["verdict"] == "unknown" and f"the kernel reports {numa_id}" in report["promises"][0]["reason"]
    # two equally near nodes: kept, but the kernel does not confirm it
    node.facts["functions"][nic]["kubernetes"]["numaNode"] = 1 - numa_id
    assert (node.report()["verdict"], node.report()["proven"]) == ("kept", False)
    # nor does the kernel confirm that two lists have nothing in common
    node.claims[0]["spec"]["devices"]["constraints"] = [{"distinctAttribute": NUMA_NODE}]
    for address, nodes in ((gpu, [numa_id]), (nic, [1 - numa_id, 7])):
        node.published_device(address)["attributes"][NUMA_NODE] = {"ints": nodes}
    assert (node.report()["verdict"], node.report()["proven"]) == ("kept", False)


class FixedEngine:
    """An engine that gives every selector the same answer, or raises the same error."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer

    def matches(self, expression: str, device: t.Mapping[str, t.Any], driver: str) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def device_class(name: str, *selectors: str) -> Object:
    spec = {"selectors": [{"cel": {"expression": text}} for text in selectors]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def node_with_selector_claim(*constraints: Object, gpus: int = 2) -> NodeWithClaims:
    """A node with a claim: its request for GPUs has a selector, and its request for a NIC only names a class."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]}
    requests = [{"name": "gpu", "exactly": exactly}, {"name": "nic", "exactly": {"deviceClassName": "any"}}]
    claim = node.add_claim({"gpu": gpu, "nic": nic}, *constraints, requests=requests)
    others = [address for address in node.machine.gpus if address != gpu]
    results = claim["status"]["allocation"]["devices"]["results"]
    results += [{"request": "gpu", **node.devices()[address]} for address in others[: gpus - 1]]
    return node


def test_selectors_are_promises_if_they_can_be_evaluated() -> None:
    node = node_with_selector_claim()
    classes = [device_class("gpu"), device_class("any")]
    assert node.report(engine=FixedEngine(True), classes=classes)["verdict"] == "kept"
    broken = node.report(engine=FixedEngine(False), classes=classes)
    assert broken["verdict"] == "broken" and "no longer matches" in broken["promises"][0]["reason"]


@pytest.mark.parametrize(
    "engine", [None, FixedEngine(Uncheckable("no such function here"))], ids=["no engine", "beyond the engine's limits"]
)
def test_selectors_that_cannot_be_checked_are_unknown(engine: FixedEngine | None) -> None:
    """A selector is a promise: without an engine, or beyond its limits, the verdict is unknown."""
    node = node_with_selector_claim()
    [promise] = node.report(engine=engine)["promises"]
    assert (promise["rule"], promise["verdict"], promise["proven"]) == ("selector", "unknown", False)
    assert promise["reason"] and promise["fix"]
    report = node.report(engine=engine)
    assert (report["verdict"], report["proven"]) == ("unknown", False)
    assert not failures([report]) and "is unknown: selector" in failures([report], require_proof=True)[0]
    # a constraint that is kept and proven does not hide the unknown selector
    constrained = node_with_selector_claim(match_attribute("gpu", "nic"), gpus=1).report(engine=engine)
    assert [promise["verdict"] for promise in constrained["promises"]] == ["kept", "unknown"]
    assert (constrained["verdict"], constrained["proven"]) == ("unknown", False)
    # selectors of the class are promises, too
    [first, second] = node.report(engine=engine, classes=[device_class("gpu", "true"), device_class("any")])["promises"]
    assert (first["subject"], first["verdict"]) == ("true", "unknown") and second["rule"] == "selector"


def node_with_dranet_nic_in_use(kind: str, rdma_in_pod: bool, *selectors: str) -> tuple[NodeWithClaims, list[Object]]:
    """A node on which a pod has the GPU and the NIC of a claim, and the classes of the claim. DRANET publishes the NIC.

    `rdma_in_pod` is False for RDMA's shared mode, in which the RDMA device stays on the node.
    """
    node = NodeWithClaims("hgx-h100", drivers={"gpu.nvidia.com": {"version": "0.5.0"}, "dra.net": {"version": "1.4.0"}})
    gpu, nic = node.pair("PIX")
    inventory: Object = {
        "dra_claims_site": "site",
        "dra_claims_drivers": node.drivers,
        "dra_claims_claims": [
            {"name": "claim", "namespace": "ml", "devices": [{"name": "nic", "kind": kind, "driver": "dra.net"}]}
        ],
    }
    objects = compile_site(inventory, kubernetes="1.36").objects
    classes = [device_class("any"), *(item for item in objects if item["kind"] == "DeviceClass")]
    [exactly] = [
        item["spec"]["devices"]["requests"][0]["exactly"] for item in objects if item["kind"] == "ResourceClaim"
    ]
    exactly["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}, {"name": "nic", "exactly": exactly}]
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"), requests=requests)
    if not selectors:
        report = node.report(engine=Engine(), classes=classes)
        assert (report["verdict"], report["proven"]) == ("kept", True), "before the NIC is in the pod"
    rdma = node.machine.nics[nic]["rdma_devices"]
    node.move_into_pod(nic)
    if not rdma_in_pod:
        t.cast("dict[str, t.Any]", node.machine.nics[nic])["rdma_devices"] = rdma
    node.publish()
    return node, classes


DRANET = 'device.attributes["dra.net"]'


@pytest.mark.parametrize(("kind", "rdma_in_pod"), [("nic", False), ("nic", True), ("rdma", False), ("rdma", True)])
def test_attributes_that_a_driver_omits_for_a_nic_in_use_break_no_promise(kind: str, rdma_in_pod: bool) -> None:
    """DRANET publishes attributes of an interface or RDMA device only while the node has it."""
    pytest.importorskip("cel_expr_python")
    node, classes = node_with_dranet_nic_in_use(kind, rdma_in_pod)
    nic = next(device["address"] for device in node.report()["devices"] if device["kind"] == "nic")
    report = node.report(engine=Engine(), classes=classes)
    unknown = [promise for promise in report["promises"] if promise["verdict"] == "unknown"]
    assert not finding_ids(report, "error") and not failures([report])
    assert report["promises"][0]["verdict"] == "kept", "the PCIe root is reported nevertheless"
    if kind == "rdma" and not rdma_in_pod:
        assert (report["verdict"], unknown) == ("kept", [])
    else:
        name = "virtual" if kind == "nic" else "rdma"
        assert report["verdict"] == "unknown" and not report["proven"]
        assert [f"does not publish dra.net/{name} " in promise["reason"] for promise in unknown] == [True]
        assert "PersistentResourceSliceAttributes" in unknown[0]["fix"]
    # while the node has the interface, what is published counts, and what is not published counts as absent
    attributes = node.published_device(nic)["attributes"]
    attributes.update({"dra.net/ifName": {"string": "eth9"}, "dra.net/virtual": {"bool": True}})
    attributes["dra.net/rdma"] = {"bool": False}
    assert node.report(engine=Engine(), classes=classes)["verdict"] == "broken"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"has({DRANET}.ifName) && {DRANET}.ifName == 'eth0' && has({DRANET}.pciAddress)", "unknown"),
        (f"has({DRANET}.ifName) || has({DRANET}.mtu)", "unknown"),
        (f"has({DRANET}.ifName) && {DRANET}.pciAddress == '0000:00:00.0'", "broken"),
        (f"{DRANET}.ifName == 'eth0' && {DRANET}.pciAddress == '0000:00:00.0'", "broken"),
        (f"{DRANET}.pciAddress == '0000:00:00.0'", "broken"),
        ("device.driver == 'lanewise.dev'", "broken"),
        (f"has({DRANET}.pciAddress)", "kept"),
    ],
)
def test_selectors_of_a_nic_in_use_are_checked_as_far_as_its_attributes_are_published(text: str, verdict: str) -> None:
    pytest.importorskip("cel_expr_python")
    node, classes = node_with_dranet_nic_in_use("rdma", False, text)
    report = node.report(engine=Engine(), classes=classes)
    assert [promise["verdict"] for promise in report["promises"] if promise["subject"] == text] == [verdict]


def test_promises_of_a_deleted_class_are_unknown() -> None:
    node = node_with_selector_claim()
    for classes in ([device_class("gpu")], []):
        report = node.report(engine=FixedEngine(True), classes=classes)
        deleted = [promise for promise in report["promises"] if promise["rule"] == "class"]
        assert [promise["subject"] for promise in deleted] == (["any"] if classes else ["gpu", "any"])
        assert {promise["verdict"] for promise in deleted} == {"unknown"} and "no longer exists" in deleted[0]["reason"]
        assert (report["verdict"], report["proven"]) == ("unknown", False) and not failures([report])
    # without classes, only the selectors of the claim itself are checked
    assert node.report(engine=FixedEngine(True))["verdict"] == "kept"


def test_taints_and_conditions_are_warnings_and_pending_claims_are_counted() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    claim = node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    node.published_device(nic)["taints"] = [{"key": "lanewise.dev/link-down", "effect": "NoSchedule"}]
    condition = {"type": "Ready", "status": "False", "reason": "Failed", "message": "no such interface"}
    claim["status"]["devices"] = [{**node.devices()[nic], "conditions": [condition]}]
    report = node.report()
    assert report["verdict"] == "kept" and set(finding_ids(report, "warning")) == {"tainted", "not-ready"}
    pending = copy.deepcopy(claim)
    pending["metadata"]["name"] = "pending"
    pending["status"] = {}
    node.claims.append(pending)
    summary = node.check()["summary"]
    assert (summary["claims"], summary["pending"], summary["kept"]) == (1, 1, 1)


def test_cpus_of_containers_are_near_far_spread_or_unknown() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    numa_id = node.machine.numa_of(gpu)
    near = next(numa_node["cpus"] for numa_node in node.facts["numa_nodes"] if numa_node["id"] == numa_id)
    far = next(numa_node["cpus"] for numa_node in node.facts["numa_nodes"] if numa_node["id"] != numa_id)
    container = "c" * 64
    node.pods[0]["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container}"}]
    for cpus, verdict in ((near, "near"), (far, "far"), (f"{near},{far}", "spread"), ("9999", "unknown")):
        report = node.report(cpusets={"claim": {container: cpus, "d" * 64: "0"}})
        assert [(entry["container"], entry["verdict"]) for entry in report["cpus"]] == [("main", verdict)]
        assert report["verdict"] == "kept"
        assert (f"cpus-{verdict}" in finding_ids(report, "note")) == (verdict in ("far", "spread"))


def test_cpusets_are_read_for_both_cgroup_drivers() -> None:
    uid, container = "0a1b2c3d-0000-1111-2222-0123456789ab", "e" * 64
    cgroupfs = f"/sys/fs/cgroup/kubepods/burstable/pod{uid}/{container}/cpuset.cpus.effective:0-3,8"
    systemd_uid = uid.replace("-", "_")
    systemd = (
        f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{systemd_uid}.slice/cri-containerd-{container}.scope/"
        "cpuset.cpus.effective:0-3,8"
    )
    for line in (cgroupfs, systemd):
        assert cgroup_cpusets(f"{line}\n/sys/fs/cgroup/system.slice/cpuset.cpus.effective:0-7\n\n") == {
            uid: {container: "0-3,8"}
        }
    assert cgroup_cpusets("nonsense") == {}


@pytest.mark.parametrize("monitor_first", [True, False])
def test_the_cpus_of_the_monitor_of_cri_o_are_not_those_of_the_container(monitor_first: bool) -> None:
    uid, container = "0a1b2c3d-0000-1111-2222-0123456789ab", "e" * 64
    systemd = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
    for folder, suffix in ((systemd, ".scope"), (f"/sys/fs/cgroup/kubepods/pod{uid}", "")):
        lines = [
            f"{folder}/crio-conmon-{container}{suffix}/cpuset.cpus.effective:0-63",
            f"{folder}/crio-{container}{suffix}/cpuset.cpus.effective:0-3",
        ]
        assert cgroup_cpusets("\n".join(sorted(lines, reverse=not monitor_first))) == {uid: {container: "0-3"}}


def test_older_versions_of_the_api_are_read() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    claim = node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    claim["apiVersion"] = "resource.k8s.io/v1beta1"
    claim["spec"]["devices"]["requests"] = [{"name": name, "deviceClassName": "any"} for name in ("gpu", "nic")]
    for resource_slice in node.slices:
        resource_slice["apiVersion"] = "resource.k8s.io/v1beta1"
        devices = resource_slice["spec"].get("devices", [])
        resource_slice["spec"]["devices"] = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in devices
        ]
    assert node.report()["verdict"] == "kept"
    with pytest.raises(ValueError, match="not a ResourceSlice"):
        Pools([claim])


def test_missing_facts_are_reported() -> None:
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    del node.facts["nics"]
    answer = node.check()
    assert "nics" in answer["unusable_facts"][NODE] and not answer["claims"][0]["proven"]


def test_the_pci_address_is_read_from_the_name_or_an_attribute() -> None:
    assert address_of("lanewise.dev", {"name": "pci-0000-8a-00-0"}) == "0000:8a:00.0"
    assert address_of("gaudi.intel.com", {"name": "0000-8a-00-0-0x1020"}) == "0000:8a:00.0"
    old = {"name": "gpu-0", "attributes": {"pcieBusID": {"string": "0000:1B:00.0"}}}
    assert address_of("gpu.nvidia.com", old) == "0000:1b:00.0"
    assert address_of("lanewise.dev", {"name": "net-eth1"}) is None
    assert address_of("dra.net", {"name": "x", "attributes": {"dra.net/pciAddress": {"string": "0000:01:00.1"}}})


@pytest.mark.parametrize("machine", names())
def test_every_pair_has_the_level_that_the_probe_reports(machine: str) -> None:
    """Levels that are computed from the functions in the facts equal those in the matrix of the probe."""
    machine_facts = facts(machine)
    rebuilt = Machine(machine_facts)
    order = machine_facts["affinity"]["devices"]
    for gpu in rebuilt.gpus:
        for nic in rebuilt.nics:
            if gpu in order and nic in order:
                expected = machine_facts["affinity"]["levels"][order.index(gpu)][order.index(nic)]
                assert rebuilt.level(gpu, nic)[0] == expected


EXAMPLES = {name: NodeWithClaims(name) for name in ("hgx-h100", "epyc-nps4", "mi300x")}


@given(data=st.data())
def test_only_equal_published_values_are_called_kept(data: st.DataObject) -> None:
    """Whatever is removed or changed, a promise is only kept if its values are equal in the current slices."""
    node = copy.deepcopy(EXAMPLES[data.draw(st.sampled_from(sorted(EXAMPLES)))])
    published = sorted(node.devices())
    gpus = [address for address in node.machine.gpus if address in published]
    nics = [address for address in node.machine.nics if address in published]
    gpu, nic = data.draw(st.sampled_from(gpus)), data.draw(st.sampled_from(nics))
    name = data.draw(st.sampled_from([PCIE_ROOT, NUMA_NODE]))
    node.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic", attribute=name))
    for address in (gpu, nic):
        device = node.published_device(address)
        change = data.draw(
            st.sampled_from(
                ["none", "no device", "other value", "no attribute", "no kernel attributes", "no kernel function"]
            )
        )
        if change == "no device":
            for resource_slice in node.slices:
                kept = [entry for entry in resource_slice["spec"].get("devices", ()) if entry is not device]
                resource_slice["spec"]["devices"] = kept
        elif change == "other value":
            device["attributes"][name] = data.draw(st.sampled_from([{"string": "x"}, {"int": 0}, {"string": ""}]))
        elif change == "no attribute":
            device["attributes"].pop(name, None)
        elif change == "no kernel attributes":
            node.facts["functions"][address]["kubernetes"] = {}
        elif change == "no kernel function":
            del node.facts["functions"][address]
    report = node.report()
    assert json.loads(json.dumps(report)) == report
    [promise] = report["promises"]
    assert promise["verdict"] in ("kept", "broken", "unknown") and report["verdict"] == worst(
        [promise["verdict"]] + ["unknown"] * ("cannot-tell" in finding_ids(report))
    )
    if promise["verdict"] == "kept":
        values = list(promise["values"].values())
        assert len(values) == 2 and values[0] == values[1] and values[0] not in ("", -1, None)
    else:
        assert promise["reason"] and promise["fix"] and not report["proven"]
    if report["proven"]:
        assert len(set(promise["kernel"].values())) == 1 and None not in promise["kernel"].values()
    if report["pairs"]:
        assert report["pairs"][0]["level"] in RANK
    assert set(promise["values"]) <= {f"{device['driver']}/{device['device']}" for device in report["devices"]}
