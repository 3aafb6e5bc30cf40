# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What drivers would publish for the example machines, and the slices that hold it."""

from __future__ import annotations

import json
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.quantity import parse
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer, numa_list
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

SLICES = Path(__file__).resolve().parents[5] / "claims" / "slices"

#: A server without counters: the feature is off there by default.
OLD = Server("1.34")

ALL: dict[str, dict[str, t.Any]] = {
    "gpu.nvidia.com": {"version": "0.5.0"},
    "gpu.amd.com": {"version": "1.0.0"},
    "gpu.intel.com": {"version": "0.11.0"},
    "gaudi.intel.com": {"version": "0.7.0"},
    "dra.cpu": {"version": "main"},
    "dra.net": {"version": "main"},
    "sriovnetwork.k8snetworkplumbingwg.io": {"version": "main"},
    "lanewise.dev": {},
}


def of(name: str, driver: str, **options: t.Any) -> list[Offer]:
    return [one for one in offers("node-1", facts(name), {driver: {**ALL[driver], **options}}) if not one.possible]


def of_node(node: dict[str, t.Any]) -> list[Offer]:
    """What DRANET would publish for a node."""
    return offers("node-1", node, {"dra.net": ALL["dra.net"]})


def without(node: dict[str, t.Any], addresses: list[str]) -> None:
    """Take PCI functions out of a node's facts, with their interfaces."""
    for one in addresses:
        del node["functions"][one]
    for kind in ("nics", "interfaces", "rdma_devices"):
        node[kind] = [one for one in node[kind] if one["address"] not in addresses]


def values(offer: Offer) -> dict[str, t.Any]:
    return {name: next(iter(value.values())) for name, value in offer.device["attributes"].items()}


@pytest.mark.parametrize("kubernetes", ["1.34", "1.36", "1.37"])
@pytest.mark.parametrize("name", names())
def test_slices_are_valid_and_complete(name: str, kubernetes: str) -> None:
    given = offers("node-1", facts(name), ALL)
    made = slices(given, generation=7)
    for one in made:
        assert not [str(problem) for problem in validate(one, kubernetes=kubernetes)]
    published = [(one["spec"]["driver"], device["name"]) for one in made for device in one["spec"].get("devices", ())]
    assert published == [(offer.driver, offer.device["name"]) for offer in given if not offer.possible]
    assert len(set(published)) == len(published)
    pools: dict[str, list[t.Any]] = {}
    for one in made:
        pools.setdefault(one["spec"]["driver"], []).append(one)
    for members in pools.values():
        assert {one["spec"]["pool"]["resourceSliceCount"] for one in members} == {len(members)}
        assert [one["metadata"]["name"] for one in members] == sorted(one["metadata"]["name"] for one in members)
        assert not limits.dns_subdomain(members[0]["metadata"]["name"])


def test_slices_are_split_at_the_limits_of_devices_and_counter_sets() -> None:
    made = slices(offers("node-1", facts("sriov"), {"lanewise.dev": {}}))
    assert [len(one["spec"].get("devices", ())) for one in made] == [64, 64, 21, 0]
    assert len(made[3]["spec"]["sharedCounters"]) == 3
    plain = [Offer("a.example.com", "p", "n", {"name": f"d{i}"}) for i in range(300)]
    assert [len(one["spec"]["devices"]) for one in slices(plain)] == [128, 128, 44]
    sets = [
        Offer(
            "a.example.com",
            "p",
            "n",
            {"name": f"d{i}", "consumesCounters": [{"counterSet": f"s{i}", "counters": {"c": {"value": "1"}}}]},
            counter_sets=({"name": f"s{i}", "counters": {"c": {"value": "1"}}},),
        )
        for i in range(20)
    ]
    assert [len(one["spec"].get("sharedCounters", ())) for one in slices(sets)] == [0, 8, 8, 4]
    assert slices([Offer("a.example.com", "p", "n", {"name": "d"}, possible=True)]) == []


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("25.8.0", ["pcieBusID", PCIE_ROOT], [PCI_BUS_ID, NUMA_NODE]),
        ("25.12.0", [PCI_BUS_ID, PCIE_ROOT], ["pcieBusID", NUMA_NODE]),
        ("0.5.0", [PCI_BUS_ID, PCIE_ROOT, NUMA_NODE], ["pcieBusID"]),
    ],
)
def test_the_version_of_nvidias_driver_decides_its_attributes(
    version: str, present: list[str], absent: list[str]
) -> None:
    for offer in of("hgx-h100", "gpu.nvidia.com", version=version):
        assert set(present) <= set(values(offer)) and not set(absent) & set(values(offer))


def test_dynamic_mig_publishes_every_place_of_every_profile() -> None:
    """The largest profile takes all counters, so that nothing fits beside it."""
    found = of("hgx-h100", "gpu.nvidia.com", feature_gates={"DynamicMIG": True})
    first = [one for one in found if one.address == found[0].address]
    assert len(found) == 8 * len(first) and len(first) == 1 + 7 + 7 + 4 + 3 + 2 + 1 + 1
    names = {one.device["name"]: one for one in first}
    assert {"gpu-0", "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gb-me-20-0", "gpu-0-mig-7g80gb-0-0"} <= names.keys()
    [total] = names["gpu-0"].counter_sets
    for whole in ("gpu-0", "gpu-0-mig-7g80gb-0-0"):
        assert names[whole].device["consumesCounters"] == [
            {"counterSet": "gpu-0-counter-set", "counters": total["counters"]}
        ]
    part = names["gpu-0-mig-3g40gb-9-4"]
    [used] = part.device["consumesCounters"]
    assert {f"memory-slice-{number}" for number in (4, 5, 6, 7)} == {n for n in used["counters"] if "slice" in n}
    assert values(part)["profile"] == "3g.40gb" and "gpu.nvidia.com/uuid" not in part.unknown
    for one in slices(found):
        assert not [str(problem) for problem in validate(one)]
    # the MIG mode of an A100 changes only by a reset, so the driver makes no partitions
    assert [one.device["name"] for one in of("dgx-a100", "gpu.nvidia.com", feature_gates={"DynamicMIG": True})] == [
        f"gpu-{number}" for number in range(8)
    ]
    bare = offers(
        "n",
        facts("hgx-h100"),
        {"gpu.nvidia.com": {"version": "0.5.0", "feature_gates": {"DynamicMIG": True}}},
        None,
        OLD,
    )
    assert not any("consumesCounters" in one.device or one.counter_sets for one in bare)


@pytest.mark.parametrize(
    ("shares", "default", "least", "capacities"),
    [
        ("memory", "81559Mi", "1Mi", {"memory"}),
        ("unlimited", "0", "0", {"memory"}),
        (4, "0", "0", {"memory", "shares"}),
    ],
)
def test_gpus_with_consumable_shares_publish_capacities(
    shares: t.Any, default: str, least: str, capacities: set[str]
) -> None:
    found = of("hgx-h100", "gpu.nvidia.com", consumable_shares=shares)
    for one in found:
        assert one.device["allowMultipleAllocations"] and one.device["capacity"].keys() == capacities
        policy = one.device["capacity"]["memory"]["requestPolicy"]
        assert (policy["default"], policy["validRange"]["min"]) == (default, least)
    for one in slices(found):
        assert not [str(problem) for problem in validate(one)]


@pytest.mark.parametrize(
    ("driver", "options", "words"),
    [
        ("gpu.nvidia.com", {"version": "0.4.1", "consumable_shares": "memory"}, "from 0.5.0 on, but version is 0.4.1"),
        ("gpu.nvidia.com", {"version": "25.8.0", "feature_gates": {"DynamicMIG": True}}, "from 25.12.0 on"),
        ("gpu.nvidia.com", {"version": "0.5.0", "consumable_shares": 0}, "a whole number of at least 1"),
        ("gpu.nvidia.com", {"version": "0.5.0", "consumable_shares": True}, "a whole number of at least 1"),
        ("gpu.nvidia.com", {"version": "0.5.0", "feature_gates": {"DynamicMIG": "yes"}}, "true or false"),
        ("gpu.nvidia.com", {"version": "0.5.0", "feature_gates": {"DynamicMig": True}}, "did you mean 'DynamicMIG'"),
        ("gpu.amd.com", {"version": "1.0.0", "feature_gates": {"DynamicMIG": True}}, "no such feature gate"),
        ("gpu.amd.com", {"version": "1.0.0", "feature_gates": {"AutoPartition": True}}, "in builds after 1.0.0"),
        ("gpu.amd.com", {"version": "1.0.0", "consumable_shares": 2}, "only gpu.nvidia.com has this option"),
    ],
)
def test_options_that_a_driver_does_not_have_are_refused(driver: str, options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(Problems, match=words):
        offers("n", facts("hgx-h100"), {driver: options})


@pytest.mark.parametrize(
    ("version", "on", "words"),
    [
        ("0.5.0", ["DynamicMIG", "PassthroughSupport"], "DynamicMIG and PassthroughSupport together"),
        ("0.5.0", ["DynamicMIG", "MPSSupport"], "DynamicMIG and MPSSupport together"),
        ("0.4.1", ["DynamicMIG", "NVMLDeviceHealthCheck"], "DynamicMIG and NVMLDeviceHealthCheck together"),
        ("0.4.1", ["PassthroughSupport", "NVMLDeviceHealthCheck"], "and NVMLDeviceHealthCheck together"),
        ("0.5.0", ["DeviceMetadata"], "DeviceMetadata unless PassthroughSupport is on"),
        ("0.4.1", ["ConsumableShares"], "from 0.5.0 on"),
    ],
)
def test_gates_that_nvidias_driver_does_not_start_with_are_refused(version: str, on: list[str], words: str) -> None:
    given = {"version": version, "feature_gates": dict.fromkeys(on, True)}
    with pytest.raises(Problems, match=words):
        offers("n", facts("hgx-h100"), {"gpu.nvidia.com": given})
    fewer = {"version": version, "feature_gates": dict.fromkeys(on, False)}
    if version == "0.5.0":
        assert offers("n", facts("hgx-h100"), {"gpu.nvidia.com": fewer})


def test_shares_need_their_gate() -> None:
    given = {"version": "0.5.0", "consumable_shares": 2, "feature_gates": {"ConsumableShares": False}}
    with pytest.raises(Problems, match="consumable_shares needs the feature gate ConsumableShares"):
        offers("n", facts("hgx-h100"), {"gpu.nvidia.com": given})


def test_passthrough_publishes_gpus_for_virtual_machines() -> None:
    gates = {"PassthroughSupport": True}
    found = of("dgx-a100", "gpu.nvidia.com", feature_gates=gates)
    machines = [one for one in found if one.device["name"].startswith("gpu-vfio-")]
    assert len(machines) == 8 and len(found) == 16
    assert {values(one)["type"] for one in machines} == {"vfio"}
    assert [one.address for one in machines] == sorted(one.address for one in machines)
    assert "numa" not in values(machines[0])
    assert "numa" in values(of("dgx-a100", "gpu.nvidia.com", version="0.4.1", feature_gates=gates)[-1])
    # without an IOMMU the driver does not start
    assert not of("hgx-h100", "gpu.nvidia.com", feature_gates=gates)


@pytest.mark.parametrize(
    ("recorded", "alike"), [("eks-p4d", "dgx-a100"), ("oke-gb200", "gb200"), ("aks-gb300", "gb300")]
)
def test_real_nodes_publish_what_is_predicted_for_machines_of_their_kind(recorded: str, alike: str) -> None:
    """Names and types of attributes and capacities, and the values that come from our table of models."""
    loaded = json.loads((SLICES / f"{recorded}.json").read_text(encoding="utf-8"))
    [real] = [one["spec"]["devices"] for one in loaded if one["spec"]["driver"] == "gpu.nvidia.com"]
    predicted = of(alike, "gpu.nvidia.com", version="0.4.1")
    ours = predicted[0]
    for device in real:
        blind = {name.removeprefix("gpu.nvidia.com/") for name in ours.unknown}
        assert device["attributes"].keys() | {"memory"} == ours.device["attributes"].keys() | blind
        for name, value in ours.device["attributes"].items():
            assert device["attributes"][name].keys() == value.keys()
        if alike != "gb300":  # our table of models does not contain it
            assert device["attributes"]["architecture"] == ours.device["attributes"]["architecture"]
    shares = {} if alike == "gb300" else {"consumable_shares": "memory"}
    [memory] = {str(parse(one["capacity"]["memory"]["value"])) for one in real}
    if shares:
        [model] = {
            str(parse(one.device["capacity"]["memory"]["value"])) for one in of(alike, "gpu.nvidia.com", **shares)
        }
        assert memory == model
    by_address = sorted(real, key=lambda device: str(device["attributes"][PCI_BUS_ID]["string"]))
    assert [device["name"] for device in by_address] == [f"gpu-{number}" for number in range(len(real))]


def test_a_list_of_numa_nodes_aligns_only_with_lists() -> None:
    options = {"version": "0.5.0", "feature_gates": {"DRAListTypeAttributes": True}}
    found = offers("n", facts("epyc-nps4"), {"gpu.nvidia.com": options})
    for one in found:
        assert one.device["attributes"][NUMA_NODE].keys() == {"ints"}
    known = knowledge("gpu.nvidia.com", options)
    assert known.alignments("numa_node") == [] and known.alignments("numa_node", lists=True) == [NUMA_NODE]
    assert known.filter("gpu", "numa_node") is None


def test_a_list_of_numa_nodes_begins_with_the_gpus_own() -> None:
    """The nearest other nodes follow, unless they are known to be on another socket."""
    nodes = [
        {"id": 0, "package": 0, "distances": {"0": 10, "1": 12, "2": 12, "3": 32}},
        {"id": 1, "package": 0, "distances": {"0": 12, "1": 10, "2": 12, "3": 32}},
        {"id": 2, "package": 1, "distances": {"0": 12, "1": 12, "2": 10, "3": 12}},
        {"id": 3, "package": None, "distances": {"0": 32, "1": 32, "2": 12, "3": 10}},
    ]
    assert [numa_list({"numa_nodes": nodes}, own) for own in range(4)] == [[0, 1], [1, 0], [2, 3], [3, 2]]


def test_hami_publishes_gpus_with_shared_capacity() -> None:
    found = offers("n", facts("hgx-h100"), {"hami-core-gpu.project-hami.io": {"version": "main"}})
    assert [one.device["name"] for one in found] == [f"hami-gpu-{number}" for number in range(8)]
    assert found[0].device["capacity"]["cores"]["requestPolicy"]["validRange"]["max"] == "100"
    assert values(found[0])["pcieBusID"] == found[0].address
    for one in slices(found):
        assert not [str(problem) for problem in validate(one)]


def test_cpus_can_be_published_one_by_one() -> None:
    found = of("hgx-h100", "dra.cpu", group_by="individual", reserved_cpus="0-3")
    assert [one.device["name"] for one in found[:2]] == ["cpudev004", "cpudev005"]
    assert all("capacity" not in one.device and "allowMultipleAllocations" not in one.device for one in found)
    assert values(found[0])["dra.cpu/cpuID"] == 4 and NUMA_NODE in values(found[0])


def test_modes_of_an_amd_gpu_exclude_each_other() -> None:
    options = {"version": "main", "feature_gates": {"AutoPartition": True}}
    found = offers("n", facts("mi300x"), {"gpu.amd.com": options})
    assert all(one.possible for one in found)
    of_one = [one for one in found if one.address == found[0].address]
    assert {one.device["consumesCounters"][0]["counterSet"] for one in of_one} == {"gpu-0-mutex"}
    cpx = next(one for one in of_one if one.device["name"] == "gpu-0-cpx-nps4")
    assert cpx.device["capacity"]["partitions"]["value"] == "8" and cpx.device["allowMultipleAllocations"]
    shown = slices([replace(one, possible=False) for one in found])
    assert not [str(problem) for one in shown for problem in validate(one)]


def test_an_unbound_intel_gpu_is_tainted() -> None:
    given = facts("hgx-h100")
    address = given["gpus"][0]["address"]
    gpu = {**given["gpus"][0], "driver": None}
    function = {**given["functions"][address], "vendor_id": "8086", "driver": None}
    changed = {**given, "gpus": [gpu], "functions": {**given["functions"], address: function}}
    [one] = offers("n", changed, {"gpu.intel.com": {"version": "0.11.0"}})
    assert one.device["taints"] == [{"key": "UnboundUnmanaged", "effect": "NoSchedule"}]
    [one] = offers("n", changed, {"gpu.intel.com": {"version": "0.10.0"}})
    assert "taints" not in one.device


def test_attributes_of_nvidia_gpus_that_a_probe_cannot_read_are_unknown() -> None:
    found = offers("node-1", facts("hgx-h100"), {"gpu.nvidia.com": {"version": "0.5.0"}})
    gpus = [one for one in found if not one.possible]
    assert len(gpus) == 8 and len(found) == 8 + 8 * 7
    assert values(gpus[0])["productName"] == "NVIDIA H100 80GB HBM3"
    assert {"gpu.nvidia.com/memory", "gpu.nvidia.com/uuid"} <= gpus[0].unknown
    assert "gpu.nvidia.com/productName" not in gpus[0].unknown | gpus[0].assumed
    assert not any("capacity" in one.device for one in found)
    part = next(one for one in found if one.possible)
    assert values(part)["type"] == "mig" and "gpu.nvidia.com/profile" in part.unknown


def test_a_model_name_from_the_device_id_is_an_assumption() -> None:
    node = facts("hgx-h100")
    gpu = node["gpus"][0]
    gpu["model"] = node["functions"][gpu["address"]]["name"]
    offer = offers("node-1", node, {"gpu.nvidia.com": {"version": "0.5.0"}})[0]
    assert "gpu.nvidia.com/productName" in offer.assumed
    gpu["model"] = None
    offer = offers("node-1", node, {"gpu.nvidia.com": {"version": "0.5.0"}})[0]
    assert "gpu.nvidia.com/productName" in offer.unknown and "productName" not in values(offer)


def test_a_gpu_of_a_guest_is_left_out() -> None:
    node = facts("hgx-h100")
    node["gpus"][3]["driver"] = "vfio-pci"
    addresses = [o.address for o in offers("n", node, {"gpu.nvidia.com": {"version": "main"}}) if not o.possible]
    assert len(addresses) == 7 and node["gpus"][3]["address"] not in addresses


def test_vendors_are_distinguished() -> None:
    assert not of("mi300x", "gpu.nvidia.com") and not of("hgx-h100", "gpu.amd.com")
    amd = of("mi300x", "gpu.amd.com")
    assert len(amd) == 8 and values(amd[0])["type"] == "amdgpu"
    assert isinstance(values(amd[0])["numaNode"], int) and NUMA_NODE not in values(amd[0])


def test_cpus_are_grouped_by_numa_node_socket_or_machine() -> None:
    numa = of("epyc-nps4", "dra.cpu")
    assert [offer.device["name"] for offer in numa] == [f"cpudevnuma{n:03}" for n in range(8)]
    assert [values(offer)[NUMA_NODE] for offer in numa] == list(range(8))
    total = sum(values(offer)["dra.cpu/numCPUs"] for offer in numa)
    sockets = of("epyc-nps4", "dra.cpu", group_by="socket")
    assert len(sockets) == 2 and sum(values(offer)["dra.cpu/numCPUs"] for offer in sockets) == total
    assert all(NUMA_NODE not in values(offer) for offer in sockets)
    (machine,) = of("epyc-nps4", "dra.cpu", group_by="machine")
    assert machine.device["capacity"] == {"dra.cpu/cpu": {"value": str(total)}}
    (left,) = of("epyc-nps4", "dra.cpu", group_by="machine", reserved_cpus="0-3,7")
    assert values(left)["dra.cpu/numCPUs"] == total - 5
    old = of("epyc-nps4", "dra.cpu", version="0.2.0")
    assert NUMA_NODE not in values(old[0]) and values(old[0])["dra.net/numaNode"] == 0


def test_other_nic_drivers_publish_the_nics_that_they_can_use() -> None:
    assert not of("sriov", "dra.net"), "more devices than a slice has, and DRANET writes one"
    node = facts("sriov")
    without(node, [one for one in node["functions"] if one.startswith("0000:c9:") and one != "0000:c9:00.0"])
    dranet = {offer.address: values(offer) for offer in of_node(node)}
    for nic in node["nics"]:
        assert (nic["address"] in dranet) == (nic["driver"] not in (None, "vfio-pci"))
    # DRANET leaves out a VLAN with the default route, but neither the bond below it nor the bond's NICs
    assert values(next(o for o in of_node(node) if o.device["name"] == "bond0"))["dra.net/virtual"] is True
    assert [nic["address"] in dranet for nic in node["nics"] if nic["default_route"]] == [True, True]
    assert dranet["0000:16:00.2"]["dra.net/isSriovVf"] is True
    assert "dra.net/isSriovVf" not in dranet["0000:16:00.0"]
    node = facts("sriov")
    vfs = {offer.address: values(offer) for offer in of("sriov", "sriovnetwork.k8snetworkplumbingwg.io")}
    assert set(vfs) == {nic["address"] for nic in node["nics"] if nic["physfn"]}
    own = "sriovnetwork.k8snetworkplumbingwg.io/"
    assert vfs["0000:16:00.2"][own + "PFName"] == "enp22s0f0np0" and vfs["0000:16:00.2"][own + "vfID"] == 0


def test_dranet_withholds_nics_only_by_the_default_route_and_the_pci_class() -> None:
    """A bond with the default route takes its NICs with it. Functions that manage NVLink switches are published."""
    for name, kept in (("hgx-h100", []), ("epyc-nps4", [])):
        node = facts(name)
        routed = {nic["address"] for nic in node["nics"] if nic["default_route"]}
        assert routed and [one.address for one in of_node(node) if one.address in routed] == kept
    node = facts("hgx-b200")
    managers = {address for address, one in node["functions"].items() if one["kind"] == "nvlink_management"}
    published = {one.address: values(one) for one in of_node(node) if one.address in managers}
    assert len(published) == 4 and all(
        one["dra.net/rdma"] and "dra.net/rdmaDevice" in one for one in published.values()
    )
    assert not any("dra.net/rdmaDevice" in values(one) for one in of_node(facts("hgx-h100")))


def test_dranet_publishes_interfaces_without_a_function() -> None:
    node = facts("hgx-h100")
    bond = next(one for one in node["interfaces"] if one["kind"] == "bond")
    more = [("storage_1", "bridge"), ("docker0", "bridge"), ("cali1", "virtual"), ("vlan7", "vlan")]
    node["interfaces"] += [
        {**bond, "name": name, "kind": kind, "lower": [], "default_route": False, "operstate": "lowerlayerdown"}
        for name, kind in more
    ]
    found = {one.device["name"]: one for one in of_node(node) if not one.address}
    # a name that is not a valid label is encoded in base 32; an interface that may be a veth may be left out
    assert {name: one.possible for name, one in found.items()} == {
        "net-on2g64tbm5sv6mi": False,
        "vlan7": False,
        "cali1": True,
    }
    assert values(found["vlan7"])["dra.net/state"] == "lower-layer-down"


def test_an_import_leaves_the_standard_attributes_unknown() -> None:
    node = facts("hgx-h100")
    node["source"]["kind"] = "hwloc_xml"
    for function in node["functions"].values():
        function["kubernetes"] = {}
    for offer in offers("node-1", node, ALL):
        if offer.driver != "dra.cpu":
            assert {PCIE_ROOT, NUMA_NODE} <= offer.unknown and PCIE_ROOT not in values(offer)


def test_fields_that_an_old_server_drops_are_not_published() -> None:
    """Before 1.36 servers drop taints and counters, and the driver withholds a PF that only counters would protect."""
    new, old = (
        {(one.driver, one.device["name"]): one for one in offers("n", facts("sriov"), ALL, server=server)}
        for server in (None, Server("1.35"))
    )
    assert set(new) - set(old) >= {("lanewise.dev", "pci-0000-49-00-0")}
    for field in ("taints", "consumesCounters", "allowMultipleAllocations"):
        assert any(field in one.device for one in new.values())
        assert not any(field in one.device for one in old.values())
    assert not any(one.counter_sets for one in old.values())
    gates = {"DRADeviceTaints": True}
    some = offers("n", facts("sriov"), ALL, server=Server("1.35", gates))
    assert any("taints" in one.device for one in some)


def test_taint_rules_reach_the_devices_that_they_name() -> None:
    taint = {"key": "example.com/cable", "effect": "NoSchedule"}

    def tainted(**selector: str) -> list[str]:
        rule = {"spec": {"deviceSelector": selector, "taint": taint}}
        found = offers("n", facts("hgx-h100"), ALL, server=Server(rules=[rule]))
        return [f"{one.driver}/{one.device['name']}" for one in found if taint in one.device.get("taints", ())]

    assert tainted(driver="gpu.nvidia.com", pool="n", device="gpu-3") == ["gpu.nvidia.com/gpu-3"]
    assert tainted(pool="other") == [] and tainted(driver="gpu.nvidia.com", device="gpu-99") == []
    assert len(tainted()) == len(offers("n", facts("hgx-h100"), ALL))
