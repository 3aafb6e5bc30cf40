# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Promises of claims are compared with slices and with what the kernel reports, on example machines.

Each test chooses the devices of its claims, aligned or not.

This file has more than 500 lines because it has a case for each verdict of each promise.
"""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.check import Check, cgroup_cpusets
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.devices import LOCALITY, Machine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.verdicts import failures, worst
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import Uncheckable
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools, address_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from hypothesis import given
from hypothesis import strategies as st

NODE = "node-1"
DRIVERS: dict[str, dict[str, t.Any]] = {
    "gpu.nvidia.com": {"version": "0.5.0"},
    "gpu.amd.com": {"version": "1.0.0"},
    "dra.cpu": {"version": "main"},
    "lanewise.dev": {},
}


class World:
    """One node as the API server and the kernel show it, and claims for its devices."""

    def __init__(self, machine: str, node: str = NODE, drivers: Object | None = None) -> None:
        self.node = node
        self.drivers = DRIVERS if drivers is None else drivers
        self.facts = facts(machine)
        self.machine = Machine(self.facts)
        self.publish()
        self.pods: list[Object] = []
        self.claims: list[Object] = []

    def publish(self) -> None:
        """Let the drivers publish the node as its facts describe it now."""
        self.slices = slices(offers(self.node, self.facts, self.drivers), generation=3)

    def devices(self) -> dict[str, Object]:
        """Published devices by PCI address, each with its driver."""
        found = {}
        for one in self.slices:
            for device in one["spec"].get("devices", ()):
                address = address_of(one["spec"]["driver"], device)
                if address:
                    found[address] = {"driver": one["spec"]["driver"], "pool": self.node, "device": device["name"]}
        return found

    def published(self, address: str) -> Object:
        """The device in its slice, so that a test can change it."""
        wanted = self.devices()[address]
        for one in self.slices:
            for device in one["spec"].get("devices", ()):
                if one["spec"]["driver"] == wanted["driver"] and device["name"] == wanted["device"]:
                    return t.cast(Object, device)
        raise KeyError(address)

    def pair(self, *levels: str) -> tuple[str, str]:
        """A GPU and a NIC, both published, at one of these levels."""
        known = self.devices()
        for gpu in self.machine.gpus:
            for nic in self.machine.nics:
                if gpu in known and nic in known and self.machine.level(gpu, nic)[0] in levels:
                    return gpu, nic
        raise KeyError(levels)

    def claim(self, given: dict[str, str], *constraints: Object, name: str = "claim", **more: t.Any) -> Object:
        """A claim that has the device of an address for each request, and a pod that uses it."""
        known = self.devices()
        results = [{"request": request, **known[address]} for request, address in given.items()]
        fields = [{"key": "metadata.name", "operator": "In", "values": [self.node]}]
        allocation = {
            "devices": {"results": results, "config": []},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        }
        requests = more.pop("requests", None)
        if requests is None:
            requests = [{"name": one, "exactly": {"deviceClassName": "any"}} for one in given]
        made: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": requests, "constraints": list(constraints)}},
            "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": name}]},
        }
        self.pods.append(
            {
                "metadata": {"namespace": "ml", "name": name, "uid": name},
                "spec": {"nodeName": self.node},
                "status": {"phase": "Running"},
            }
        )
        self.claims.append(made)
        return made

    def move_into_pod(self, address: str) -> None:
        """Show the NIC as a probe does while a pod has it: its interface and RDMA device are in another namespace."""
        fact = self.machine.nics[address]
        fact["elsewhere"] = ["interface"] + ["rdma_device"] * bool(fact["rdma_devices"])
        fact.update(interfaces=[], rdma_devices=[], link_layer=None, speed_mbps=None, up=None)
        self.facts["interfaces"] = [one for one in self.facts["interfaces"] if one["address"] != address]

    def check(self, machines: bool = True, **more: t.Any) -> Object:
        known = {self.node: self.facts} if machines else {}
        return Check(self.slices, self.pods, machines=known, **more).run(self.claims)

    def only(self, **more: t.Any) -> Object:
        """The report of the only claim."""
        [report] = self.check(**more)["claims"]
        return t.cast(Object, report)


def match(*requests: str, attribute: str = PCIE_ROOT) -> Object:
    return {"matchAttribute": attribute, "requests": list(requests)}


def ids(report: Object, severity: str | None = None) -> list[str]:
    return [one["id"] for one in report["findings"] if severity in (None, one["severity"])]


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "mi300x", "hgx-b200"])
def test_an_aligned_pair_is_kept_and_proven(machine: str) -> None:
    world = World(machine)
    gpu, nic = world.pair("PIX", "PXB")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    report = world.only()
    assert (report["verdict"], report["proven"], report["node"]) == ("kept", True, NODE)
    [promise] = report["promises"]
    assert set(promise["values"].values()) == set(promise["kernel"].values()) and len(promise["values"]) == 2
    [pair] = report["pairs"]
    assert pair["level"] in ("PIX", "PXB") and pair["promised"] == [PCIE_ROOT]
    assert {one["kind"] for one in report["devices"]} == {"gpu", "nic"}
    assert [one["phase"] for one in report["pods"]] == ["Running"]
    assert not ids(report, "error") and not ids(report, "warning")


def test_without_facts_of_the_node_a_promise_is_kept_but_unproven() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    answer = world.check(machines=False)
    [report] = answer["claims"]
    assert (report["verdict"], report["proven"]) == ("kept", False)
    assert report["pairs"][0]["level"] == "UNKNOWN"
    assert answer["summary"]["unproven"] == 1


def test_a_promise_is_unknown_if_the_slices_moved_a_device() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    world.published(nic)["attributes"][PCIE_ROOT.partition("/")[0] + "/pcieRoot"] = {"string": "pci0000:ff"}
    verdict = world.only()
    assert verdict["verdict"] == "unknown" and "disagree" in verdict["promises"][0]["reason"]
    assert "pci0000:ff" in verdict["promises"][0]["reason"] and "probe" in verdict["promises"][0]["fix"]
    # without a probe, only the published values count
    broken = world.only(machines=False)
    assert broken["verdict"] == "broken" and ids(broken, "error") == ["promise-broken"]
    # if the kernel reports the same value, the promise is broken
    world.facts["functions"][nic]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    assert world.only()["verdict"] == "broken"


def test_a_promise_is_unknown_if_only_the_topology_changed() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    world.facts["functions"][nic]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    report = world.only()
    assert report["verdict"] == "unknown" and "the kernel reports pci0000:ff" in report["promises"][0]["reason"]
    # both moved together: the promise holds, with other values than those published
    world.facts["functions"][gpu]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    report = world.only()
    assert report["verdict"] == "kept" and "driver-and-kernel-differ" in ids(report, "warning")
    # a card that the kernel does not show at all
    del world.facts["functions"][nic]
    report = world.only()
    assert report["verdict"] == "unknown"
    assert any("has no PCI function" in one["summary"] for one in report["findings"])


def test_a_promise_is_unknown_if_a_device_left_its_pool() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    name = world.devices()[nic]["device"]
    gone = copy.deepcopy(world)
    for one in gone.slices:
        devices = one["spec"].get("devices", [])
        one["spec"]["devices"] = [device for device in devices if device["name"] != name]
    report = gone.only()
    assert report["verdict"] == "unknown" and {one["state"] for one in report["devices"]} == {"current", "gone"}
    assert any("is no longer in its pool" in one["summary"] and one["fix"] for one in report["findings"])

    stale = copy.deepcopy(world)
    newer = copy.deepcopy([one for one in gone.slices if one["spec"]["driver"] == "lanewise.dev"])
    for one in newer:
        one["spec"]["pool"]["generation"] = 4
    stale.slices += newer
    report = stale.only()
    assert "stale" in {one["state"] for one in report["devices"]} and report["verdict"] == "unknown"
    assert any("only in generation 3" in one["summary"] for one in report["findings"])

    incomplete = copy.deepcopy(gone)
    for one in incomplete.slices:
        if one["spec"]["driver"] == "lanewise.dev":
            one["spec"]["pool"]["resourceSliceCount"] += 1
    assert "incomplete" in {one["state"] for one in incomplete.only()["devices"]}

    world.slices = [one for one in world.slices if one["spec"]["driver"] != "lanewise.dev"]
    report = world.only()
    assert "no-pool" in {one["state"] for one in report["devices"]} and report["verdict"] == "unknown"
    assert report["node"] == NODE


@pytest.mark.parametrize(
    ("value", "word"), [(None, "no longer has"), ({"string": ""}, "does not know"), ({"int": -1}, "does not know")]
)
def test_a_promise_is_unknown_if_an_attribute_has_no_usable_value(value: Object | None, word: str) -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    for address in (gpu, nic):
        attributes = world.published(address)["attributes"]
        if value is None:
            del attributes[PCIE_ROOT]
        else:
            attributes[PCIE_ROOT] = value
    report = world.only()
    assert report["verdict"] == "unknown" and word in report["promises"][0]["reason"]


def test_moved_ended_and_missing_pods_are_reported() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    elsewhere = copy.deepcopy(world)
    elsewhere.pods[0]["spec"]["nodeName"] = "node-2"
    report = elsewhere.only()
    assert report["verdict"] == "unknown"
    assert any("runs on node-2" in one["summary"] for one in report["findings"])

    other = copy.deepcopy(world)
    other.pods[0]["metadata"]["uid"] = "another"
    assert any("another pod has its name" in one["summary"] for one in other.only()["findings"])

    gone = copy.deepcopy(world)
    gone.pods.clear()
    report = gone.only()
    assert report["verdict"] == "unknown" and report["pods"][0]["phase"] == "Gone"

    ended = copy.deepcopy(world)
    ended.pods[0]["status"]["phase"] = "Succeeded"
    assert ended.only()["verdict"] == "kept" and "ended" in ids(ended.only(), "note")

    unused = copy.deepcopy(world)
    unused.claims[0]["status"]["reservedFor"] = []
    assert unused.only()["verdict"] == "kept" and "unused" in ids(unused.only(), "note")


def test_a_claim_allocated_elsewhere_is_reported() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    claim = world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    term = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]
    term["matchFields"][0]["values"] = ["node-9"]
    report = world.only()
    assert report["verdict"] == "unknown"
    assert any("allocated to node node-9" in one["summary"] for one in report["findings"])
    for one in world.slices:
        if one["spec"]["driver"] == "lanewise.dev":
            one["spec"]["nodeName"] = "node-2"
    report = world.only()
    assert report["verdict"] == "broken" and report["node"] is None
    assert "do not mean the same location" in report["promises"][0]["reason"]


def test_an_unaligned_pair_without_promise_is_a_note() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("SYS")
    world.claim({"gpu": gpu, "nic": nic})
    report = world.only()
    assert report["verdict"] == "none" and report["promises"] == []
    assert report["pairs"][0]["level"] == "SYS" and report["pairs"][0]["promised"] == []
    [finding] = report["findings"]
    assert finding["severity"] == "note" and finding["summary"].startswith("could be aligned:")
    assert "which is free" in finding["summary"] and "at PIX" in finding["summary"]
    near = next(one for one in world.machine.nics if world.machine.level(gpu, one)[0] == "PIX")
    world.claim({"nic": near}, name="other")
    found = world.check()["claims"][0]["findings"]
    assert any("which ml/other has" in one["summary"] for one in found)


def nearest(world: World, gpu: str) -> str:
    return next(one for one in world.machine.nics if world.machine.level(gpu, one)[0] == "PIX")


def test_shared_counters_of_a_pf_and_its_vfs_are_not_free() -> None:
    """A PF cannot be allocated while a claim has one of its VFs, because of their counters."""
    world = World("hgx-h100")
    gpu, nic = world.pair("SYS")
    near = nearest(world, gpu)
    world.claim({"gpu": gpu, "nic": nic})
    vf = share_counters(world, near)
    [finding] = world.check()["claims"][0]["findings"]
    assert "which is free" in finding["summary"] and world.devices()[near]["device"] in finding["summary"]
    world.claim({"vf": vf}, name="other")
    [finding] = world.check()["claims"][0]["findings"]
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
def test_a_shared_device_is_free_while_something_is_left(
    capacity: dict[str, str], consumed: list[dict[str, str] | None], state: str
) -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("SYS")
    near = nearest(world, gpu)
    world.claim({"gpu": gpu, "nic": nic})
    device = world.published(near)
    device["allowMultipleAllocations"] = True
    device["capacity"] = {name: {"value": value} for name, value in capacity.items()}
    for index, share in enumerate(consumed):
        claim = world.claim({"nic": near}, name=f"other-{index}")
        if share is not None:
            claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = share
    # admin access consumes nothing
    watching = world.claim({"nic": near}, name="watching")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    [finding] = world.check()["claims"][0]["findings"]
    assert f"{device['name']}, {state}, would be at PIX" in finding["summary"]


def share_counters(world: World, pf: str) -> str:
    """Publish a VF of a PF and the counters that both use. Returns the address of the VF."""
    vf = f"{pf[:-1]}7"
    world.facts["functions"][vf] = {**world.facts["functions"][pf], "physfn": pf}
    world.facts["nics"].append({**world.machine.nics[pf], "address": vf, "physfn": pf, "speed_mbps": 1})
    device = copy.deepcopy(world.published(pf))
    device["name"] = f"pci-{vf.replace(':', '-').replace('.', '-')}"
    device["attributes"][PCI_BUS_ID] = {"string": vf}
    [one] = [one for one in world.slices if one["spec"]["driver"] == "lanewise.dev"]
    for drawing in (world.published(pf), device):
        drawing["consumesCounters"] = [{"counterSet": "pf", "counters": {"functions": {"value": "1"}}}]
    counters = copy.deepcopy(one)
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "pf", "counters": {"functions": {"value": "1"}}}]
    one["spec"]["devices"].append(device)
    world.slices.append(counters)
    for each in (one, counters):
        each["spec"]["pool"]["resourceSliceCount"] = 2
    return vf


def test_a_tainted_nic_is_not_suggested_as_a_better_one() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("SYS")
    world.claim({"gpu": gpu, "nic": nic})
    for near in world.machine.nics:
        if world.machine.level(gpu, near)[0] == "PIX" and near in world.devices():
            world.published(near)["taints"] = [{"key": "lanewise.dev/link-down", "effect": "NoSchedule"}]
    assert all("at PIX" not in one["summary"] for one in world.only()["findings"])


def test_a_nic_in_use_is_still_compared_with_others() -> None:
    """The probe sees neither rate nor link layer of a NIC while a pod has it: its driver still publishes them."""
    world = World("hgx-h100")
    gpu, nic = world.pair("SYS")
    near = [one for one in world.machine.nics if world.machine.level(gpu, one)[0] == "PIX"]
    world.claim({"gpu": gpu, "nic": nic})
    expected = world.only()["findings"]
    world.move_into_pod(nic)
    assert world.only()["findings"] == expected and "which is free" in expected[0]["summary"]
    # two NICs in pods are not alike only because the probe sees the speed of neither
    for one in near:
        world.move_into_pod(one)
        world.published(one)["attributes"]["linkSpeedMbps"] = {"int": 25_000}
    assert all("at PIX" not in one["summary"] for one in world.only()["findings"])
    assert world.facts["nics"] == list(world.machine.nics.values()), "the given facts are not changed"


def test_a_root_complex_is_not_a_switch() -> None:
    """The promise of pcieRoot is kept, but a NIC at the switch of the GPU would be nearer."""
    world = World("dgx-a100")
    gpu, nic = world.pair("PHB", "PXB")
    near = [one for one in world.machine.nics if world.machine.level(gpu, one)[0] == "PIX"]
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    report = world.only()
    assert report["verdict"] == "kept"
    summaries = [one["summary"] for one in report["findings"] if one["id"] == "could-be-aligned"]
    assert bool(summaries) == bool([one for one in near if one in world.devices()])
    assert all("as promised" in one for one in summaries)


@pytest.mark.parametrize("machine", ["azure-vm", "vmd"])
def test_an_unknown_level_is_reported_without_a_better_pair(machine: str) -> None:
    """If the machine does not report the level, no pair is near or promised, and no better pair is suggested."""
    world = World(machine)
    known = world.devices()
    gpu = next((one for one in world.machine.gpus if one in known), None)
    if gpu is None:
        pytest.skip("this machine publishes no GPU")
    unknown = [one for one in world.machine.nics if one in known and world.machine.level(gpu, one)[0] == "UNKNOWN"]
    for nic in unknown:
        world.claims.clear()
        world.claim({"gpu": gpu, "nic": nic})
        report = world.only()
        assert report["pairs"][0]["level"] == "UNKNOWN"
        assert "could-be-aligned" not in ids(report)


def alternatives(name: str, *subs: str) -> Object:
    return {"name": name, "firstAvailable": [{"name": sub, "deviceClassName": "any"} for sub in subs]}


def test_the_chosen_level_of_a_preference_list_is_reported() -> None:
    world = World("hgx-h100")
    root = match("gpu", "nic/pcie-root")
    node = match("gpu", "nic/numa-node", attribute=NUMA_NODE)
    requests = [
        alternatives("nic", "pcie-root", "numa-node", "any"),
        {"name": "gpu", "exactly": {"deviceClassName": "a"}},
    ]
    gpu, nic = world.pair("NODE")
    world.claim({"nic/numa-node": nic, "gpu": gpu}, root, node, requests=requests)
    report = world.only()
    assert [one["subject"] for one in report["promises"]] == [NUMA_NODE] and report["verdict"] == "kept"
    assert report["preferences"] == [
        {"request": "nic", "chosen": "numa-node", "rank": 2, "of": 3, "better": ["pcie-root"]}
    ]
    assert "fallback" in ids(report, "note")
    world.claims.clear()
    gpu, nic = world.pair("SYS")
    world.claim({"nic/any": nic, "gpu": gpu}, root, node, requests=requests)
    report = world.only()
    assert report["verdict"] == "none" and report["preferences"][0]["rank"] == 3
    assert "could-be-aligned" in ids(report, "note")


def test_distinct_and_list_attributes_are_checked_for_all_requests() -> None:
    world = World("hgx-h100")
    gpus = list(world.machine.gpus)[:2]
    world.claim({"a": gpus[0], "b": gpus[1]}, {"distinctAttribute": PCIE_ROOT})
    assert world.only()["verdict"] == "kept"
    world.claims[0]["spec"]["devices"]["constraints"] = [{"matchAttribute": PCIE_ROOT}]
    report = world.only()
    assert report["verdict"] == "broken" and "scheduled again" in report["promises"][0]["fix"]
    for address, roots in ((gpus[0], ["r1", "r2"]), (gpus[1], ["r2", "r3"])):
        world.published(address)["attributes"]["example.com/roots"] = {"strings": roots}
    world.claims[0]["spec"]["devices"]["constraints"] = [{"matchAttribute": "example.com/roots"}]
    assert world.only()["verdict"] == "kept"
    assert world.only()["proven"]  # the kernel reports no such attribute to compare with
    world.published(gpus[1])["attributes"]["example.com/roots"] = {"string": "r3"}
    assert world.only()["verdict"] == "broken"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("value", [None, {"string": ""}])
def test_devices_of_the_same_name_in_two_pools_are_distinguished(order: tuple[int, int], value: Object | None) -> None:
    world = World("hgx-h100")
    nics = [world.pair("PIX")[1]]
    nics.append(next(one for one in world.machine.nics if one in world.devices() and one not in nics))
    [first] = [one for one in world.slices if one["spec"]["driver"] == "lanewise.dev"]
    devices = [world.published(nic) for nic in nics]
    first["spec"]["devices"].remove(devices[1])
    second = copy.deepcopy(first)
    second["spec"]["pool"]["name"] = "more"
    second["spec"]["devices"] = [{**devices[1], "name": devices[0]["name"]}]
    world.slices.append(second)
    claim = world.claim({"one": nics[0], "two": nics[0]}, {"distinctAttribute": PCIE_ROOT})
    results = claim["status"]["allocation"]["devices"]["results"]
    results[1]["pool"] = "more"
    claim["status"]["allocation"]["devices"]["results"] = [results[at] for at in order]
    report = world.only()
    assert report["verdict"] == "kept" and report["proven"]
    values = report["promises"][0]["values"]
    assert sorted(values.values()) == sorted(world.machine.functions[nic].kubernetes["pcieRoot"] for nic in nics)
    assert set(values) == {f"lanewise.dev/{pool}/{devices[0]['name']}" for pool in (NODE, "more")}
    # one of the two devices, whichever comes first, lacks the attribute
    lost = (devices[0], second["spec"]["devices"][0])[order[0]]
    if value is None:
        del lost["attributes"][PCIE_ROOT]
    else:
        lost["attributes"][PCIE_ROOT] = value
    report = world.only()
    assert report["verdict"] == "unknown" and not report["proven"]
    assert f"/{(NODE, 'more')[order[0]]}/" in report["promises"][0]["reason"]


def test_shares_of_one_device_are_proven_like_devices() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    claim = world.claim({"gpu": gpu, "one": nic, "two": nic}, match("gpu", "one", "two"))
    for number, result in enumerate(claim["status"]["allocation"]["devices"]["results"][1:]):
        result["shareID"] = f"00000000-0000-0000-0000-00000000000{number}"
    report = world.only()
    assert (report["verdict"], report["proven"]) == ("kept", True)
    assert len(report["promises"][0]["values"]) == 2


def test_lists_of_numa_nodes_begin_with_the_devices_own() -> None:
    """The first number is that of the kernel. Equally near nodes follow."""
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic", attribute=NUMA_NODE))
    own = world.machine.numa_of(gpu)
    assert own is not None
    for address in (gpu, nic):
        world.published(address)["attributes"][NUMA_NODE] = {"ints": [own, 1 - own]}
    assert (world.only()["verdict"], world.only()["proven"]) == ("kept", True)
    world.published(nic)["attributes"][NUMA_NODE] = {"ints": [1 - own, own]}
    report = world.only()
    assert report["verdict"] == "unknown" and f"the kernel reports {own}" in report["promises"][0]["reason"]
    # two equally near nodes: kept, but the kernel does not confirm it
    world.facts["functions"][nic]["kubernetes"]["numaNode"] = 1 - own
    assert (world.only()["verdict"], world.only()["proven"]) == ("kept", False)
    # nor does the kernel confirm that two lists have nothing in common
    world.claims[0]["spec"]["devices"]["constraints"] = [{"distinctAttribute": NUMA_NODE}]
    for address, nodes in ((gpu, [own]), (nic, [1 - own, 7])):
        world.published(address)["attributes"][NUMA_NODE] = {"ints": nodes}
    assert (world.only()["verdict"], world.only()["proven"]) == ("kept", False)


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


def gpu_by_selector(*constraints: Object, gpus: int = 2) -> World:
    """A world with a claim for GPUs of one request, by a selector, and a NIC by its class alone."""
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]}
    requests = [{"name": "gpu", "exactly": exactly}, {"name": "nic", "exactly": {"deviceClassName": "any"}}]
    claim = world.claim({"gpu": gpu, "nic": nic}, *constraints, requests=requests)
    others = [one for one in world.machine.gpus if one != gpu]
    results = claim["status"]["allocation"]["devices"]["results"]
    results += [{"request": "gpu", **world.devices()[one]} for one in others[: gpus - 1]]
    return world


def test_selectors_are_promises_if_they_can_be_evaluated() -> None:
    world = gpu_by_selector()
    classes = [device_class("gpu"), device_class("any")]
    assert world.only(engine=FixedEngine(True), classes=classes)["verdict"] == "kept"
    broken = world.only(engine=FixedEngine(False), classes=classes)
    assert broken["verdict"] == "broken" and "no longer matches" in broken["promises"][0]["reason"]


@pytest.mark.parametrize(
    "engine", [None, FixedEngine(Uncheckable("no such function here"))], ids=["no engine", "its limit"]
)
def test_selectors_that_cannot_be_checked_are_unknown(engine: FixedEngine | None) -> None:
    """A selector is a promise: without an engine, or beyond its limits, the verdict is unknown."""
    world = gpu_by_selector()
    [promise] = world.only(engine=engine)["promises"]
    assert (promise["rule"], promise["verdict"], promise["proven"]) == ("selector", "unknown", False)
    assert promise["reason"] and promise["fix"]
    report = world.only(engine=engine)
    assert (report["verdict"], report["proven"]) == ("unknown", False)
    assert not failures([report]) and "is unknown: selector" in failures([report], require_proof=True)[0]
    # a constraint that is kept and proven does not hide the unknown selector
    tied = gpu_by_selector(match("gpu", "nic"), gpus=1).only(engine=engine)
    assert [one["verdict"] for one in tied["promises"]] == ["kept", "unknown"]
    assert (tied["verdict"], tied["proven"]) == ("unknown", False)
    # selectors of the class are promises, too
    [first, second] = world.only(engine=engine, classes=[device_class("gpu", "true"), device_class("any")])["promises"]
    assert (first["subject"], first["verdict"]) == ("true", "unknown") and second["rule"] == "selector"


def in_use_by_dranet(kind: str, rdma_too: bool, *selectors: str) -> tuple[World, list[Object]]:
    """Returns a world and its compiled classes: a claim has a GPU and a NIC of DRANET's, and a pod has the NIC.

    `rdma_too` is False for RDMA's shared mode, in which the RDMA device stays on the node.
    """
    world = World("hgx-h100", drivers={"gpu.nvidia.com": {"version": "0.5.0"}, "dra.net": {"version": "1.4.0"}})
    gpu, nic = world.pair("PIX")
    asked: Object = {
        "dra_claims_site": "site",
        "dra_claims_drivers": world.drivers,
        "dra_claims_claims": [
            {"name": "one", "namespace": "ml", "devices": [{"name": "nic", "kind": kind, "driver": "dra.net"}]}
        ],
    }
    made = compile_site(asked, kubernetes="1.36").objects
    classes = [device_class("any"), *(one for one in made if one["kind"] == "DeviceClass")]
    [exactly] = [one["spec"]["devices"]["requests"][0]["exactly"] for one in made if one["kind"] == "ResourceClaim"]
    body = {**exactly, "selectors": [{"cel": {"expression": text}} for text in selectors]}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}, {"name": "nic", "exactly": body}]
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"), requests=requests)
    before = world.only(engine=Engine(), classes=classes)
    assert selectors or (before["verdict"], before["proven"]) == ("kept", True)
    rdma = world.machine.nics[nic]["rdma_devices"]
    world.move_into_pod(nic)
    if not rdma_too:
        world.machine.nics[nic].update(rdma_devices=rdma)
    world.publish()
    return world, classes


DRANET = 'device.attributes["dra.net"]'


@pytest.mark.parametrize(("kind", "rdma_too"), [("nic", False), ("nic", True), ("rdma", False), ("rdma", True)])
def test_attributes_that_a_driver_omits_for_a_nic_in_use_break_no_claim(kind: str, rdma_too: bool) -> None:
    """DRANET publishes attributes of an interface or RDMA device only while the node has it."""
    pytest.importorskip("cel_expr_python")
    world, classes = in_use_by_dranet(kind, rdma_too)
    nic = next(one["address"] for one in world.only()["devices"] if one["kind"] == "nic")
    report = world.only(engine=Engine(), classes=classes)
    unknown = [one for one in report["promises"] if one["verdict"] == "unknown"]
    assert not ids(report, "error") and not failures([report])
    assert report["promises"][0]["verdict"] == "kept", "the PCIe root is reported nevertheless"
    if kind == "rdma" and not rdma_too:
        assert (report["verdict"], unknown) == ("kept", [])
    else:
        name = "virtual" if kind == "nic" else "rdma"
        assert report["verdict"] == "unknown" and not report["proven"]
        assert [f"does not publish dra.net/{name} " in one["reason"] for one in unknown] == [True]
        assert "PersistentResourceSliceAttributes" in unknown[0]["fix"]
    # while the node has the interface, what is published counts, and what is not published counts as absent
    attributes = world.published(nic)["attributes"]
    attributes.update({"dra.net/ifName": {"string": "eth9"}, "dra.net/virtual": {"bool": True}})
    attributes["dra.net/rdma"] = {"bool": False}
    assert world.only(engine=Engine(), classes=classes)["verdict"] == "broken"


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
def test_attributes_that_a_driver_publishes_for_a_nic_in_use_count(text: str, verdict: str) -> None:
    pytest.importorskip("cel_expr_python")
    world, classes = in_use_by_dranet("rdma", False, text)
    report = world.only(engine=Engine(), classes=classes)
    assert [one["verdict"] for one in report["promises"] if one["subject"] == text] == [verdict]


def test_requirements_of_a_deleted_class_are_unknown() -> None:
    world = gpu_by_selector()
    for classes in ([device_class("gpu")], []):
        report = world.only(engine=FixedEngine(True), classes=classes)
        gone = [one for one in report["promises"] if one["rule"] == "class"]
        assert [one["subject"] for one in gone] == (["any"] if classes else ["gpu", "any"])
        assert {one["verdict"] for one in gone} == {"unknown"} and "no longer exists" in gone[0]["reason"]
        assert (report["verdict"], report["proven"]) == ("unknown", False) and not failures([report])
    # without classes, only the selectors of the claim itself are checked
    assert world.only(engine=FixedEngine(True))["verdict"] == "kept"


def test_taints_and_conditions_are_warnings_and_pending_claims_are_counted() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    claim = world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    world.published(nic)["taints"] = [{"key": "lanewise.dev/link-down", "effect": "NoSchedule"}]
    condition = {"type": "Ready", "status": "False", "reason": "Failed", "message": "no such interface"}
    claim["status"]["devices"] = [{**world.devices()[nic], "conditions": [condition]}]
    report = world.only()
    assert report["verdict"] == "kept" and set(ids(report, "warning")) == {"tainted", "not-ready"}
    pending = copy.deepcopy(claim)
    pending["metadata"]["name"] = "pending"
    pending["status"] = {}
    world.claims.append(pending)
    summary = world.check()["summary"]
    assert (summary["claims"], summary["pending"], summary["kept"]) == (1, 1, 1)


def test_cpus_of_containers_are_near_far_or_spread() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    here = world.machine.numa_of(gpu)
    near = next(node["cpus"] for node in world.facts["numa_nodes"] if node["id"] == here)
    far = next(node["cpus"] for node in world.facts["numa_nodes"] if node["id"] != here)
    container = "c" * 64
    world.pods[0]["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container}"}]
    for cpus, verdict in ((near, "near"), (far, "far"), (f"{near},{far}", "spread"), ("9999", "unknown")):
        report = world.only(cpusets={"claim": {container: cpus, "d" * 64: "0"}})
        assert [(one["container"], one["verdict"]) for one in report["cpus"]] == [("main", verdict)]
        assert report["verdict"] == "kept"
        assert (f"cpus-{verdict}" in ids(report, "note")) == (verdict in ("far", "spread"))


def test_cpusets_are_read_for_both_cgroup_drivers() -> None:
    uid, container = "0a1b2c3d-0000-1111-2222-0123456789ab", "e" * 64
    slash = f"/sys/fs/cgroup/kubepods/burstable/pod{uid}/{container}/cpuset.cpus.effective:0-3,8"
    scope = uid.replace("-", "_")
    systemd = (
        f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{scope}.slice/cri-containerd-{container}.scope/"
        "cpuset.cpus.effective:0-3,8"
    )
    for line in (slash, systemd):
        assert cgroup_cpusets(f"{line}\n/sys/fs/cgroup/system.slice/cpuset.cpus.effective:0-7\n\n") == {
            uid: {container: "0-3,8"}
        }
    assert cgroup_cpusets("nonsense") == {}


def test_older_versions_of_the_api_are_read() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    claim = world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    claim["apiVersion"] = "resource.k8s.io/v1beta1"
    claim["spec"]["devices"]["requests"] = [{"name": name, "deviceClassName": "any"} for name in ("gpu", "nic")]
    for one in world.slices:
        one["apiVersion"] = "resource.k8s.io/v1beta1"
        devices = one["spec"].get("devices", [])
        one["spec"]["devices"] = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in devices
        ]
    assert world.only()["verdict"] == "kept"
    with pytest.raises(ValueError, match="not a ResourceSlice"):
        Pools([claim])


def test_missing_facts_are_reported() -> None:
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic"))
    del world.facts["nics"]
    answer = world.check()
    assert "nics" in answer["unusable_facts"][NODE] and not answer["claims"][0]["proven"]


def test_the_pci_address_is_read_from_the_name_or_an_attribute() -> None:
    assert address_of("lanewise.dev", {"name": "pci-0000-8a-00-0"}) == "0000:8a:00.0"
    assert address_of("gaudi.intel.com", {"name": "0000-8a-00-0-0x1020"}) == "0000:8a:00.0"
    old = {"name": "gpu-0", "attributes": {"pcieBusID": {"string": "0000:1B:00.0"}}}
    assert address_of("gpu.nvidia.com", old) == "0000:1b:00.0"
    assert address_of("lanewise.dev", {"name": "net-eth1"}) is None
    assert address_of("dra.net", {"name": "x", "attributes": {"dra.net/pciAddress": {"string": "0000:01:00.1"}}})


@pytest.mark.parametrize("machine", names())
def test_every_pair_has_the_level_of_the_matrix(machine: str) -> None:
    """Levels that are computed from the facts equal those of the probe."""
    known = facts(machine)
    rebuilt = Machine(known)
    order = known["affinity"]["devices"]
    for gpu in rebuilt.gpus:
        for nic in rebuilt.nics:
            if gpu in order and nic in order:
                expected = known["affinity"]["levels"][order.index(gpu)][order.index(nic)]
                assert rebuilt.level(gpu, nic)[0] == expected


WORLDS = {name: World(name) for name in ("hgx-h100", "epyc-nps4", "mi300x")}


@given(data=st.data())
def test_only_equal_published_values_are_called_kept(data: st.DataObject) -> None:
    """Whatever is lost or changed, the values of a kept claim are equal in the current slices."""
    world = copy.deepcopy(WORLDS[data.draw(st.sampled_from(sorted(WORLDS)))])
    known = sorted(world.devices())
    gpus = [one for one in world.machine.gpus if one in known]
    nics = [one for one in world.machine.nics if one in known]
    gpu, nic = data.draw(st.sampled_from(gpus)), data.draw(st.sampled_from(nics))
    name = data.draw(st.sampled_from([PCIE_ROOT, NUMA_NODE]))
    world.claim({"gpu": gpu, "nic": nic}, match("gpu", "nic", attribute=name))
    for address in (gpu, nic):
        device = world.published(address)
        change = data.draw(st.sampled_from(["nothing", "delete", "move", "drop", "kernel", "lost"]))
        if change == "delete":
            for one in world.slices:
                kept = [entry for entry in one["spec"].get("devices", ()) if entry is not device]
                one["spec"]["devices"] = kept
        elif change == "move":
            device["attributes"][name] = data.draw(st.sampled_from([{"string": "x"}, {"int": 0}, {"string": ""}]))
        elif change == "drop":
            device["attributes"].pop(name, None)
        elif change == "kernel":
            world.facts["functions"][address]["kubernetes"] = {}
        elif change == "lost":
            del world.facts["functions"][address]
    report = world.only()
    assert json.loads(json.dumps(report)) == report
    [promise] = report["promises"]
    assert promise["verdict"] in ("kept", "broken", "unknown") and report["verdict"] == worst(
        [promise["verdict"]] + ["unknown"] * ("cannot-tell" in ids(report))
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
    assert set(promise["values"]) <= {f"{one['driver']}/{one['device']}" for one in report["devices"]}
    assert name in LOCALITY
