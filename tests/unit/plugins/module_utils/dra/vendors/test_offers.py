# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that drivers would publish on the example machines, and the slices with these devices."""

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

#: A server that does not support counters by default.
SERVER_WITHOUT_COUNTERS = Server("1.34")

#: Options of all drivers.
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


def certain_offers(name: str, driver: str, **options: t.Any) -> list[Offer]:
    """The devices that a driver certainly publishes on an example machine."""
    return [
        offer for offer in offers("node-1", facts(name), {driver: {**ALL[driver], **options}}) if not offer.possible
    ]


def dranet_offers(node: dict[str, t.Any]) -> list[Offer]:
    """The devices that DRANET would publish on a node with these facts."""
    return offers("node-1", node, {"dra.net": ALL["dra.net"]})


def remove_functions(node: dict[str, t.Any], addresses: list[str]) -> None:
    """Remove PCI functions and their interfaces from the facts of a node."""
    for address in addresses:
        del node["functions"][address]
    for kind in ("nics", "interfaces", "rdma_devices"):
        node[kind] = [entry for entry in node[kind] if entry["address"] not in addresses]


def values(offer: Offer) -> dict[str, t.Any]:
    """The values of the attributes of a device, without their types."""
    return {name: next(iter(value.values())) for name, value in offer.device["attributes"].items()}


@pytest.mark.parametrize("kubernetes", ["1.34", "1.36", "1.37"])
@pytest.mark.parametrize("name", names())
def test_slices_are_valid_and_have_all_certain_devices(name: str, kubernetes: str) -> None:
    found = offers("node-1", facts(name), ALL)
    published_slices = slices(found, generation=7)
    for resource_slice in published_slices:
        assert not [str(problem) for problem in validate(resource_slice, kubernetes=kubernetes)]
    published = [
        (resource_slice["spec"]["driver"], device["name"])
        for resource_slice in published_slices
        for device in resource_slice["spec"].get("devices", ())
    ]
    assert published == [(offer.driver, offer.device["name"]) for offer in found if not offer.possible]
    assert len(set(published)) == len(published)
    pools: dict[str, list[t.Any]] = {}
    for resource_slice in published_slices:
        pools.setdefault(resource_slice["spec"]["driver"], []).append(resource_slice)
    for members in pools.values():
        assert {resource_slice["spec"]["pool"]["resourceSliceCount"] for resource_slice in members} == {len(members)}
        assert [resource_slice["metadata"]["name"] for resource_slice in members] == sorted(
            resource_slice["metadata"]["name"] for resource_slice in members
        )
        assert not limits.dns_subdomain(members[0]["metadata"]["name"])


def test_slices_are_split_at_the_limits_of_devices_and_counter_sets() -> None:
    published_slices = slices(offers("node-1", facts("sriov"), {"lanewise.dev": {}}))
    assert [len(resource_slice["spec"].get("devices", ())) for resource_slice in published_slices] == [64, 64, 21, 0]
    assert len(published_slices[3]["spec"]["sharedCounters"]) == 3
    without_counters = [Offer("a.example.com", "p", "n", {"name": f"d{i}"}) for i in range(300)]
    assert [len(resource_slice["spec"]["devices"]) for resource_slice in slices(without_counters)] == [128, 128, 44]
    with_counters = [
        Offer(
            "a.example.com",
            "p",
            "n",
            {"name": f"d{i}", "consumesCounters": [{"counterSet": f"s{i}", "counters": {"c": {"value": "1"}}}]},
            counter_sets=({"name": f"s{i}", "counters": {"c": {"value": "1"}}},),
        )
        for i in range(20)
    ]
    split = slices(with_counters)
    assert [len(resource_slice["spec"].get("sharedCounters", ())) for resource_slice in split] == [0, 8, 8, 4]
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
    for offer in certain_offers("hgx-h100", "gpu.nvidia.com", version=version):
        assert set(present) <= set(values(offer)) and not set(absent) & set(values(offer))


def test_dynamic_mig_publishes_every_placement_of_every_profile() -> None:
    """The largest profile consumes all counters, so no other partition fits beside it."""
    found = certain_offers("hgx-h100", "gpu.nvidia.com", feature_gates={"DynamicMIG": True})
    first_gpu = [offer for offer in found if offer.address == found[0].address]
    assert len(found) == 8 * len(first_gpu) and len(first_gpu) == 1 + 7 + 7 + 4 + 3 + 2 + 1 + 1
    by_name = {offer.device["name"]: offer for offer in first_gpu}
    assert {"gpu-0", "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gb-me-20-0", "gpu-0-mig-7g80gb-0-0"} <= by_name.keys()
    [total] = by_name["gpu-0"].counter_sets
    for whole in ("gpu-0", "gpu-0-mig-7g80gb-0-0"):
        assert by_name[whole].device["consumesCounters"] == [
            {"counterSet": "gpu-0-counter-set", "counters": total["counters"]}
        ]
    partition = by_name["gpu-0-mig-3g40gb-9-4"]
    [consumed] = partition.device["consumesCounters"]
    assert {f"memory-slice-{number}" for number in (4, 5, 6, 7)} == {
        name for name in consumed["counters"] if "slice" in name
    }
    assert values(partition)["profile"] == "3g.40gb" and "gpu.nvidia.com/uuid" not in partition.unknown
    for resource_slice in slices(found):
        assert not [str(problem) for problem in validate(resource_slice)]
    # the MIG mode of an A100 changes only by a reset, so the driver creates no partitions
    a100 = certain_offers("dgx-a100", "gpu.nvidia.com", feature_gates={"DynamicMIG": True})
    assert [offer.device["name"] for offer in a100] == [f"gpu-{number}" for number in range(8)]
    on_old_server = offers(
        "n",
        facts("hgx-h100"),
        {"gpu.nvidia.com": {"version": "0.5.0", "feature_gates": {"DynamicMIG": True}}},
        None,
        SERVER_WITHOUT_COUNTERS,
    )
    assert not any("consumesCounters" in offer.device or offer.counter_sets for offer in on_old_server)


@pytest.mark.parametrize(
    ("consumable_shares", "default", "minimum", "capacities"),
    [
        ("memory", "81559Mi", "1Mi", {"memory"}),
        ("unlimited", "0", "0", {"memory"}),
        (4, "0", "0", {"memory", "shares"}),
    ],
)
def test_gpus_with_consumable_shares_publish_capacities(
    consumable_shares: t.Any, default: str, minimum: str, capacities: set[str]
) -> None:
    found = certain_offers("hgx-h100", "gpu.nvidia.com", consumable_shares=consumable_shares)
    for offer in found:
        assert offer.device["allowMultipleAllocations"] and offer.device["capacity"].keys() == capacities
        policy = offer.device["capacity"]["memory"]["requestPolicy"]
        assert (policy["default"], policy["validRange"]["min"]) == (default, minimum)
    for resource_slice in slices(found):
        assert not [str(problem) for problem in validate(resource_slice)]


@pytest.mark.parametrize(
    ("driver", "options", "reported"),
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
def test_options_that_a_driver_does_not_have_are_refused(driver: str, options: dict[str, t.Any], reported: str) -> None:
    with pytest.raises(Problems, match=reported):
        offers("n", facts("hgx-h100"), {driver: options})


@pytest.mark.parametrize(
    ("version", "gates", "reported"),
    [
        ("0.5.0", ["DynamicMIG", "PassthroughSupport"], "DynamicMIG and PassthroughSupport together"),
        ("0.5.0", ["DynamicMIG", "MPSSupport"], "DynamicMIG and MPSSupport together"),
        ("0.4.1", ["DynamicMIG", "NVMLDeviceHealthCheck"], "DynamicMIG and NVMLDeviceHealthCheck together"),
        ("0.4.1", ["PassthroughSupport", "NVMLDeviceHealthCheck"], "and NVMLDeviceHealthCheck together"),
        ("0.5.0", ["DeviceMetadata"], "DeviceMetadata unless PassthroughSupport is on"),
        ("0.4.1", ["ConsumableShares"], "from 0.5.0 on"),
    ],
)
def test_feature_gates_with_which_nvidias_driver_does_not_start_are_refused(
    version: str, gates: list[str], reported: str
) -> None:
    enabled = {"version": version, "feature_gates": dict.fromkeys(gates, True)}
    with pytest.raises(Problems, match=reported):
        offers("n", facts("hgx-h100"), {"gpu.nvidia.com": enabled})
    disabled = {"version": version, "feature_gates": dict.fromkeys(gates, False)}
    if version == "0.5.0":
        assert offers("n", facts("hgx-h100"), {"gpu.nvidia.com": disabled})


def test_consumable_shares_need_their_feature_gate() -> None:
    options = {"version": "0.5.0", "consumable_shares": 2, "feature_gates": {"ConsumableShares": False}}
    with pytest.raises(Problems, match="consumable_shares needs the feature gate ConsumableShares"):
        offers("n", facts("hgx-h100"), {"gpu.nvidia.com": options})


def test_passthrough_publishes_gpus_for_virtual_machines() -> None:
    gates = {"PassthroughSupport": True}
    found = certain_offers("dgx-a100", "gpu.nvidia.com", feature_gates=gates)
    vfio_devices = [offer for offer in found if offer.device["name"].startswith("gpu-vfio-")]
    assert len(vfio_devices) == 8 and len(found) == 16
    assert {values(offer)["type"] for offer in vfio_devices} == {"vfio"}
    assert [offer.address for offer in vfio_devices] == sorted(offer.address for offer in vfio_devices)
    assert "numa" not in values(vfio_devices[0])
    assert "numa" in values(certain_offers("dgx-a100", "gpu.nvidia.com", version="0.4.1", feature_gates=gates)[-1])
    # without an IOMMU the driver does not start
    assert not certain_offers("hgx-h100", "gpu.nvidia.com", feature_gates=gates)


@pytest.mark.parametrize(
    ("recorded", "machine"), [("eks-p4d", "dgx-a100"), ("oke-gb200", "gb200"), ("aks-gb300", "gb300")]
)
def test_predictions_agree_with_slices_recorded_on_nodes_of_the_same_model(recorded: str, machine: str) -> None:
    """Compares the names and types of attributes, and the values from the collection's table of GPU models."""
    recorded_slices = json.loads((SLICES / f"{recorded}.json").read_text(encoding="utf-8"))
    [real] = [
        resource_slice["spec"]["devices"]
        for resource_slice in recorded_slices
        if resource_slice["spec"]["driver"] == "gpu.nvidia.com"
    ]
    predicted = certain_offers(machine, "gpu.nvidia.com", version="0.4.1")[0]
    known = predicted.device["attributes"]
    unknown = {name.removeprefix("gpu.nvidia.com/") for name in predicted.unknown}
    for device in real:
        assert device["attributes"].keys() | {"memory"} == known.keys() | unknown
        for name, value in known.items():
            assert device["attributes"][name].keys() == value.keys()
    if machine != "gb300":  # the table of GPU models does not contain it
        assert all(device["attributes"]["architecture"] == known["architecture"] for device in real)
        [memory] = {str(parse(device["capacity"]["memory"]["value"])) for device in real}
        shared = certain_offers(machine, "gpu.nvidia.com", consumable_shares="memory")
        assert {str(parse(offer.device["capacity"]["memory"]["value"])) for offer in shared} == {memory}
    by_address = sorted(real, key=lambda device: str(device["attributes"][PCI_BUS_ID]["string"]))
    assert [device["name"] for device in by_address] == [f"gpu-{number}" for number in range(len(real))]


def test_a_list_of_numa_nodes_aligns_only_with_lists() -> None:
    options = {"version": "0.5.0", "feature_gates": {"DRAListTypeAttributes": True}}
    found = offers("n", facts("epyc-nps4"), {"gpu.nvidia.com": options})
    assert found
    for offer in found:
        assert offer.device["attributes"][NUMA_NODE].keys() == {"ints"}
    known = knowledge("gpu.nvidia.com", options)
    assert known.alignments("numa_node") == [] and known.alignments("numa_node", lists=True) == [NUMA_NODE]
    assert known.filter("gpu", "numa_node") is None


def test_a_list_of_numa_nodes_begins_with_the_node_of_the_gpu() -> None:
    """The nearest other nodes follow, unless they are known to be on another socket."""
    nodes = [
        {"id": 0, "package": 0, "distances": {"0": 10, "1": 12, "2": 12, "3": 32}},
        {"id": 1, "package": 0, "distances": {"0": 12, "1": 10, "2": 12, "3": 32}},
        {"id": 2, "package": 1, "distances": {"0": 12, "1": 12, "2": 10, "3": 12}},
        {"id": 3, "package": None, "distances": {"0": 32, "1": 32, "2": 12, "3": 10}},
    ]
    assert [numa_list({"numa_nodes": nodes}, number) for number in range(4)] == [[0, 1], [1, 0], [2, 3], [3, 2]]


def test_hami_publishes_gpus_with_shared_capacity() -> None:
    found = offers("n", facts("hgx-h100"), {"hami-core-gpu.project-hami.io": {"version": "main"}})
    assert [offer.device["name"] for offer in found] == [f"hami-gpu-{number}" for number in range(8)]
    assert found[0].device["capacity"]["cores"]["requestPolicy"]["validRange"]["max"] == "100"
    assert values(found[0])["pcieBusID"] == found[0].address
    for resource_slice in slices(found):
        assert not [str(problem) for problem in validate(resource_slice)]


def test_cpus_can_be_published_as_individual_devices() -> None:
    found = certain_offers("hgx-h100", "dra.cpu", group_by="individual", reserved_cpus="0-3")
    assert [offer.device["name"] for offer in found[:2]] == ["cpudev004", "cpudev005"]
    assert all("capacity" not in offer.device and "allowMultipleAllocations" not in offer.device for offer in found)
    assert values(found[0])["dra.cpu/cpuID"] == 4 and NUMA_NODE in values(found[0])


def test_partition_modes_of_an_amd_gpu_exclude_each_other() -> None:
    options = {"version": "main", "feature_gates": {"AutoPartition": True}}
    found = offers("n", facts("mi300x"), {"gpu.amd.com": options})
    assert all(offer.possible for offer in found)
    first_gpu = [offer for offer in found if offer.address == found[0].address]
    assert {offer.device["consumesCounters"][0]["counterSet"] for offer in first_gpu} == {"gpu-0-mutex"}
    cpx = next(offer for offer in first_gpu if offer.device["name"] == "gpu-0-cpx-nps4")
    assert cpx.device["capacity"]["partitions"]["value"] == "8" and cpx.device["allowMultipleAllocations"]
    for resource_slice in slices([replace(offer, possible=False) for offer in found]):
        assert not [str(problem) for problem in validate(resource_slice)]


def test_an_intel_gpu_without_a_kernel_driver_is_tainted_from_0_11_on() -> None:
    node = facts("hgx-h100")
    address = node["gpus"][0]["address"]
    node["gpus"] = [{**node["gpus"][0], "driver": None}]
    node["functions"][address].update(vendor_id="8086", driver=None)
    [offer] = offers("n", node, {"gpu.intel.com": {"version": "0.11.0"}})
    assert offer.device["taints"] == [{"key": "UnboundUnmanaged", "effect": "NoSchedule"}]
    assert offer.device["attributes"]["driver"] == {"string": ""}
    [offer] = offers("n", node, {"gpu.intel.com": {"version": "0.10.0"}})
    assert "taints" not in offer.device


def test_attributes_of_nvidia_gpus_that_a_probe_cannot_read_are_unknown() -> None:
    found = offers("node-1", facts("hgx-h100"), {"gpu.nvidia.com": {"version": "0.5.0"}})
    gpus = [offer for offer in found if not offer.possible]
    assert len(gpus) == 8 and len(found) == 8 + 8 * 7
    assert values(gpus[0])["productName"] == "NVIDIA H100 80GB HBM3"
    assert {"gpu.nvidia.com/memory", "gpu.nvidia.com/uuid"} <= gpus[0].unknown
    assert "gpu.nvidia.com/productName" not in gpus[0].unknown | gpus[0].assumed
    assert not any("capacity" in offer.device for offer in found)
    partition = next(offer for offer in found if offer.possible)
    assert values(partition)["type"] == "mig" and "gpu.nvidia.com/profile" in partition.unknown


def test_a_model_name_from_the_device_id_is_an_assumption() -> None:
    node = facts("hgx-h100")
    gpu = node["gpus"][0]
    gpu["model"] = node["functions"][gpu["address"]]["name"]
    offer = offers("node-1", node, {"gpu.nvidia.com": {"version": "0.5.0"}})[0]
    assert "gpu.nvidia.com/productName" in offer.assumed
    gpu["model"] = None
    offer = offers("node-1", node, {"gpu.nvidia.com": {"version": "0.5.0"}})[0]
    assert "gpu.nvidia.com/productName" in offer.unknown and "productName" not in values(offer)


def test_a_gpu_that_is_bound_to_vfio_is_left_out() -> None:
    node = facts("hgx-h100")
    node["gpus"][3]["driver"] = "vfio-pci"
    found = offers("n", node, {"gpu.nvidia.com": {"version": "main"}})
    addresses = [offer.address for offer in found if not offer.possible]
    assert len(addresses) == 7 and node["gpus"][3]["address"] not in addresses


@pytest.mark.parametrize(
    ("machine", "driver", "gates"),
    [
        ("hgx-h100", "gaudi.intel.com", {}),
        ("dgx-a100", "gpu.nvidia.com", {"PassthroughSupport": True}),
        ("mi300x", "gpu.amd.com", {"VFIOPassthrough": True}),
    ],
)
def test_an_unknown_device_id_is_not_published(machine: str, driver: str, gates: dict[str, bool]) -> None:
    """An imported topology may lack device IDs."""
    node = facts(machine)
    for gpu in node["gpus"]:
        node["functions"][gpu["address"]]["device_id"] = None
        if driver == "gaudi.intel.com":
            node["functions"][gpu["address"]]["vendor_id"] = "1da3"
    if driver == "gpu.amd.com":
        node["gpus"][0]["driver"] = "vfio-pci"
    found = offers("node-1", node, {driver: {**ALL[driver], "version": "main", "feature_gates": gates}})
    assert found
    for offer in found:
        assert "None" not in json.dumps(offer.device)
        if driver == "gpu.amd.com" or values(offer).get("type") == "vfio":
            assert f"{driver}/deviceID" in offer.unknown


def test_a_driver_publishes_only_gpus_of_its_vendor() -> None:
    assert not certain_offers("mi300x", "gpu.nvidia.com") and not certain_offers("hgx-h100", "gpu.amd.com")
    amd = certain_offers("mi300x", "gpu.amd.com")
    assert len(amd) == 8 and values(amd[0])["type"] == "amdgpu"
    assert isinstance(values(amd[0])["numaNode"], int) and NUMA_NODE not in values(amd[0])


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("AMD Instinct MI300X OAM", "AMD_Instinct_MI300X_OAM"),
        ("AMD Radeon (TM) Pro W7900", "AMD_Radeon_TM_Pro_W7900"),
        (None, None),
    ],
)
def test_amds_driver_publishes_names_of_products_without_blanks(model: str | None, published: str | None) -> None:
    node = facts("mi300x")
    node["gpus"][0]["model"] = model
    found = offers("node-1", node, {"gpu.amd.com": ALL["gpu.amd.com"]})
    whole = next(offer for offer in found if offer.address == node["gpus"][0]["address"])
    assert values(whole).get("productName") == published
    assert ("gpu.amd.com/productName" in whole.unknown) == (published is None)


@pytest.mark.parametrize(
    ("driver", "vendor_id", "device_id", "published"),
    [
        ("gaudi.intel.com", "1da3", "1020", "Gaudi2"),
        ("gaudi.intel.com", "1da3", "ffff", None),
        ("gpu.intel.com", "8086", "0bd5", "Max 1550"),
        ("gpu.intel.com", "8086", "ffff", None),
    ],
)
def test_intels_drivers_publish_models_from_their_own_tables(
    driver: str, vendor_id: str, device_id: str, published: str | None
) -> None:
    """The names in the PCI ID database differ: Gaudi 2, Data Center GPU Max 1550."""
    node = facts("hgx-h100")
    for gpu in node["gpus"]:
        node["functions"][gpu["address"]].update(vendor_id=vendor_id, device_id=device_id)
    for offer in offers("node-1", node, {driver: ALL[driver]}):
        assert values(offer).get("model") == published
        assert f"{driver}/model" in (offer.assumed if published else offer.unknown)


@pytest.mark.parametrize(
    ("kernel", "source", "published"), [(1, "override", 1), (None, "override", -1), (None, "local_cpus", -1)]
)
def test_amds_driver_publishes_the_numa_node_of_the_kernel(kernel: int | None, source: str, published: int) -> None:
    """It knows neither what a site states nor what follows from the local CPUs."""
    node = facts("mi300x")
    gpu = node["gpus"][0]
    function = node["functions"][gpu["address"]]
    function.update(numa_node=0, numa_source=source)
    gpu["numa_node"] = 0
    function["kubernetes"] = {} if kernel is None else {"numaNode": kernel}
    found = offers("node-1", node, {"gpu.amd.com": ALL["gpu.amd.com"]})
    assert {values(offer)["numaNode"] for offer in found if offer.address == gpu["address"]} == {published}


def test_cpus_are_grouped_by_numa_node_socket_or_machine() -> None:
    numa = certain_offers("epyc-nps4", "dra.cpu")
    assert [offer.device["name"] for offer in numa] == [f"cpudevnuma{i:03}" for i in range(8)]
    assert [values(offer)[NUMA_NODE] for offer in numa] == list(range(8))
    total = sum(values(offer)["dra.cpu/numCPUs"] for offer in numa)
    sockets = certain_offers("epyc-nps4", "dra.cpu", group_by="socket")
    assert len(sockets) == 2 and sum(values(offer)["dra.cpu/numCPUs"] for offer in sockets) == total
    assert all(NUMA_NODE not in values(offer) for offer in sockets)
    (machine,) = certain_offers("epyc-nps4", "dra.cpu", group_by="machine")
    assert machine.device["capacity"] == {"dra.cpu/cpu": {"value": str(total)}}
    (unreserved,) = certain_offers("epyc-nps4", "dra.cpu", group_by="machine", reserved_cpus="0-3,7")
    assert values(unreserved)["dra.cpu/numCPUs"] == total - 5
    old = certain_offers("epyc-nps4", "dra.cpu", version="0.2.0")
    assert NUMA_NODE not in values(old[0]) and values(old[0])["dra.net/numaNode"] == 0


def test_other_nic_drivers_publish_the_nics_that_they_can_use() -> None:
    assert not certain_offers("sriov", "dra.net"), (
        "there are more devices than fit in the only slice that DRANET writes"
    )
    node = facts("sriov")
    # with fewer functions, the devices fit in one slice
    removed = [address for address in node["functions"] if address.startswith("0000:c9:")]
    removed.remove("0000:c9:00.0")
    remove_functions(node, removed)
    dranet = {offer.address: values(offer) for offer in dranet_offers(node)}
    for nic in node["nics"]:
        assert (nic["address"] in dranet) == (nic["driver"] not in (None, "vfio-pci"))
    # DRANET leaves out a VLAN with the default route, but neither the bond below it nor the bond's NICs
    assert (
        values(next(offer for offer in dranet_offers(node) if offer.device["name"] == "bond0"))["dra.net/virtual"]
        is True
    )
    assert [nic["address"] in dranet for nic in node["nics"] if nic["default_route"]] == [True, True]
    assert dranet["0000:16:00.2"]["dra.net/isSriovVf"] is True
    assert "dra.net/isSriovVf" not in dranet["0000:16:00.0"]
    node = facts("sriov")
    vfs = {offer.address: values(offer) for offer in certain_offers("sriov", "sriovnetwork.k8snetworkplumbingwg.io")}
    assert set(vfs) == {nic["address"] for nic in node["nics"] if nic["physfn"]}
    domain = "sriovnetwork.k8snetworkplumbingwg.io"
    assert vfs["0000:16:00.2"][f"{domain}/PFName"] == "enp22s0f0np0" and vfs["0000:16:00.2"][f"{domain}/vfID"] == 0


def test_dranet_withholds_nics_only_by_the_default_route_and_the_pci_class() -> None:
    """NICs below a bond or a bridge with the default route are withheld. Functions that manage NVLink switches are
    published."""
    for name in ("hgx-h100", "epyc-nps4"):
        node = facts(name)
        default_route_nics = {nic["address"] for nic in node["nics"] if nic["default_route"]}
        assert default_route_nics and not [
            offer.address for offer in dranet_offers(node) if offer.address in default_route_nics
        ]
    node = facts("hgx-b200")
    nvlink_managers = {
        address for address, function in node["functions"].items() if function["kind"] == "nvlink_management"
    }
    published = {offer.address: values(offer) for offer in dranet_offers(node) if offer.address in nvlink_managers}
    assert len(published) == 4
    for attributes in published.values():
        assert attributes["dra.net/rdma"] and "dra.net/rdmaDevice" in attributes
    assert not any("dra.net/rdmaDevice" in values(offer) for offer in dranet_offers(facts("hgx-h100")))


def test_dranet_publishes_names_of_devices_without_the_vendor() -> None:
    models = [values(offer).get("dra.net/pciDevice") for offer in dranet_offers(facts("hgx-h100"))]
    assert models.count("ConnectX-7") == 10 and not any("NVIDIA" in model for model in models if model)


def test_dranet_publishes_interfaces_without_a_pci_function() -> None:
    node = facts("hgx-h100")
    bond = next(interface for interface in node["interfaces"] if interface["kind"] == "bond")
    added = [("storage_1", "bridge"), ("docker0", "bridge"), ("cali1", "virtual"), ("vlan7", "vlan")]
    node["interfaces"] += [
        {**bond, "name": name, "kind": kind, "lower": [], "default_route": False, "operstate": "lowerlayerdown"}
        for name, kind in added
    ]
    found = {offer.device["name"]: offer for offer in dranet_offers(node) if not offer.address}
    # a name that is not a valid label is encoded in base 32; DRANET leaves out docker0, and cali1 if it is a veth
    assert {name: offer.possible for name, offer in found.items()} == {
        "net-on2g64tbm5sv6mi": False,
        "vlan7": False,
        "cali1": True,
    }
    assert values(found["vlan7"])["dra.net/state"] == "lower-layer-down"


def test_the_standard_attributes_of_devices_imported_from_hwloc_are_unknown() -> None:
    node = facts("hgx-h100")
    node["source"]["kind"] = "hwloc_xml"
    for function in node["functions"].values():
        function["kubernetes"] = {}
    for offer in offers("node-1", node, ALL):
        if offer.driver != "dra.cpu":
            assert {PCIE_ROOT, NUMA_NODE} <= offer.unknown and PCIE_ROOT not in values(offer)


def test_fields_that_an_old_server_drops_are_not_published() -> None:
    """Servers before 1.36 drop taints and counters. Without counters, the driver withholds a PF that has VFs."""
    new, old = (
        {(offer.driver, offer.device["name"]): offer for offer in offers("n", facts("sriov"), ALL, server=server)}
        for server in (None, Server("1.35"))
    )
    assert set(new) - set(old) >= {("lanewise.dev", "pci-0000-49-00-0")}
    for field in ("taints", "consumesCounters", "allowMultipleAllocations"):
        assert any(field in offer.device for offer in new.values())
        assert not any(field in offer.device for offer in old.values())
    assert not any(offer.counter_sets for offer in old.values())
    gates = {"DRADeviceTaints": True}
    with_gate = offers("n", facts("sriov"), ALL, server=Server("1.35", gates))
    assert any("taints" in offer.device for offer in with_gate)


def test_taint_rules_taint_the_devices_that_they_select() -> None:
    taint = {"key": "example.com/cable", "effect": "NoSchedule"}

    def tainted(**selector: str | None) -> list[str]:
        rule = {"spec": {"deviceSelector": selector, "taint": taint}}
        found = offers("n", facts("hgx-h100"), ALL, server=Server(rules=[rule]))
        return [f"{offer.driver}/{offer.device['name']}" for offer in found if taint in offer.device.get("taints", ())]

    assert tainted(driver="gpu.nvidia.com", pool="n", device="gpu-3") == ["gpu.nvidia.com/gpu-3"]
    assert tainted(driver="gpu.nvidia.com", pool=None, device="gpu-3") == ["gpu.nvidia.com/gpu-3"]
    assert tainted(pool="other") == [] and tainted(driver="gpu.nvidia.com", device="gpu-99") == []
    assert len(tainted()) == len(offers("n", facts("hgx-h100"), ALL))
