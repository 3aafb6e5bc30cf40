# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Steps that change devices, servers, drivers and workloads; quotas; the value of stranded devices; the fleet map."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import KEY
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import quotas, reader, report_lines
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Node, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet_map import counts, fleet_map
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.scenario import Scenario, after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import Stranded, stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded_value import (
    StrandedValue,
    prices,
    stranded_value,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.test_fit import (
    CLASSES,
    DRIVERS,
    SPECS,
    claim,
    cluster,
    node,
    probed,
    workload,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

NODES = [node("a-0"), node("b-0")]
TAINT = {"key": "example.com/slow", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def _first_pair(fleet: Fleet, engine: Engine, name: str = "a-0") -> tuple[str, str]:
    """The names of the GPU and the NIC of the first pair that is placed on a node."""
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    by_driver = dict(device.split("/")[::2] for device in found.nodes[name].placements[0])
    return by_driver["gpu.nvidia.com"], by_driver["lanewise.dev"]


def _total(scenario: Scenario, engine: Engine) -> int:
    (found,) = fits.fit(scenario.fleet, scenario.workloads, engine)
    return found.total


def _totals(fleet: Fleet, steps: list[Object], engine: Engine, work: Workload) -> list[int]:
    """How many pods fit after each of the steps."""
    return [_total(scenario, engine) for scenario in after(Scenario(fleet, (work,)), steps)]


def test_a_nic_can_be_degraded_and_replaced(engine: Engine) -> None:
    """A pair with a NIC of 400 Gbit/s, and a pair with any NIC."""
    fleet = cluster(NODES)
    _gpu, nic = _first_pair(fleet, engine)
    target = {"node": "a-0", "devices": [nic]}
    fast = 'device.attributes["lanewise.dev"].linkSpeedMbps >= 400000'
    spec = SPECS["one-pair"]
    requests = []
    for request in spec["devices"]["requests"]:
        body = request["exactly"]
        speed_selectors = [{"cel": {"expression": fast}}] if request["name"] == "nic" else []
        requests.append({**request, "exactly": {**body, "selectors": [*body.get("selectors", ()), *speed_selectors]}})
    fast_pair = Workload("fast", ({"devices": {**spec["devices"], "requests": requests}},))
    steps: list[Object] = [
        {"degrade": {**target, "attributes": {"linkSpeedMbps": 100_000}, "capacity": {"bandwidth": "100G"}}},
        {"replace": {**target, "attributes": {"linkSpeedMbps": 800_000}}},
        {"degrade": {**target, "taint": TAINT}},
        {"replace": target},
    ]
    assert _totals(fleet, steps, engine, fast_pair) == [15, 16, 15, 16]
    assert _totals(fleet, steps, engine, workload("one-pair")) == [16, 16, 15, 16]


def test_a_replaced_device_is_free(engine: Engine) -> None:
    empty = cluster(NODES)
    gpu, nic = _first_pair(empty, engine)
    names = [offer.device["name"] for offer in empty.nodes["a-0"].offers]
    fleet = cluster(NODES, claim("c", empty, "a-0", names.index(gpu), names.index(nic)))
    step = {"replace": {"node": "a-0", "devices": [nic]}}
    assert _totals(fleet, [step], engine, workload("one-pair")) == [16]
    assert _total(Scenario(fleet, (workload("one-pair"),)), engine) == 15


@pytest.mark.parametrize(
    ("step", "reported"),
    [
        ({"degrade": {"node": "a-0", "devices": ["gpu-0"]}}, "must have attributes, capacity or a taint"),
        (
            {"degrade": {"node": "a-0", "devices": ["gpu-0"], "taint": {"key": "x"}}},
            "must have a key, and one of the known effects",
        ),
        (
            {"degrade": {"node": "a-0", "devices": ["gpu-0"], "taint": {"key": "x", "effect": "noschedule"}}},
            "must have a key, and one of the known effects (the effects are NoExecute, NoSchedule, None)",
        ),
        (
            {"degrade": {"node": "a-0", "devices": ["gpu-0"], "capacity": {"memory": -1}}},
            "memory: -1 is less than zero",
        ),
        ({"server": {"feature_gates": {"DRADeviceTaints": "false"}}}, "must be true or false, without quotes"),
        ({"server": {"feature_gates": ["DRADeviceTaints"]}}, "feature_gates: is not a mapping"),
        ({"replace": {"node": "a-0", "devices": ["gpu-0"], "attributes": {"x": [1]}}}, "is not a string"),
        ({"replace": {"node": "a-0", "devices": ["gpu-0"], "capacity": {"x": "much"}}}, "capacity.x"),
        ({"replace": {"node": "a-0", "devices": ["gpu-0"], "taint": TAINT}}, "and nothing else"),
        ({"server": {"version": "1.12"}}, "1.12"),
        ({"server": {}}, "must have version or feature_gates"),
        ({"driver": {"name": "x.example.com", "version": "1"}}, "is not a driver whose devices"),
        ({"workload": {"name": "other"}}, "there is no workload 'other'"),
        ({"shrink": {}}, "give one of cordon"),
        ({"add": {"like": "a-0", "count": 1, "labels": {"rack": 4}}}, "add.labels: is not a mapping of strings"),
        ({"add": {"like": ["a-0"], "count": 1}}, "add.like: there is no node ['a-0']"),
        ({"add": {"like": "a-0", "count": 1, "allocatable": {"cpu": "1"}}}, "has facts and is not a node"),
        ({"add": {"like": "spare", "count": 1, "allocatable": {"cpu": "x"}}}, "add.allocatable"),
        ({"add": {"like": "spare", "count": 1, "allocatable": ["cpu"]}}, "add.allocatable: is not a mapping"),
        ({"add": {"like": "bare", "count": 1}}, "no driver publishes a device of this machine"),
        ({"add": {"like": "other", "count": 1}}, "there is no node 'other'"),
    ],
)
def test_a_step_that_cannot_be_taken_is_refused(step: Object, reported: str) -> None:
    bare = {**facts("hgx-h100"), "gpus": [], "nics": []}
    known = {"spare": facts("hgx-h100"), "bare": bare}
    with pytest.raises(Problems) as caught:
        after(Scenario(cluster([node("a-0")]), (workload("one-pair"),), known, None, DRIVERS), [step])
    assert reported in str(caught.value) and "what_if[0]" in str(caught.value)


def test_an_older_server_ignores_taint_rules(engine: Engine) -> None:
    """1.34 ignores the DeviceTaintRule, and 1.37 applies it again."""
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "a-0"}, "taint": TAINT},
    }
    fleet = cluster(NODES, rule)
    steps: list[Object] = [{"server": {"version": "1.34"}}, {"server": {"version": "1.37"}}]
    assert _total(Scenario(fleet, (workload("one-gpu"),)), engine) == 8
    assert _totals(fleet, steps, engine, workload("one-gpu")) == [16, 8]


def test_the_devices_of_another_driver_version_are_known_only_on_probed_nodes(engine: Engine) -> None:
    """With DynamicMIG, each GPU of the probed node has seven partitions. Those of the other node are unknown."""
    fleet = cluster(NODES)
    expression = (
        'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig" && '
        'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'
    )
    partition = {
        "name": "part",
        "exactly": {"deviceClassName": "plan-any", "selectors": [{"cel": {"expression": expression}}]},
    }
    any_class = {"plan-any": {"metadata": {"name": "plan-any"}, "spec": {}}}
    work = Workload("parts", ({"devices": {"requests": [partition]}},))
    start = Scenario(replace(fleet, classes={**CLASSES, **any_class}), (work,), {"a-0": facts("hgx-h100")})
    (then,) = after(
        start, [{"driver": {"name": "gpu.nvidia.com", "version": "0.5.0", "feature_gates": {"DynamicMIG": True}}}]
    )
    (before,), (found,) = (fits.fit(scenario.fleet, scenario.workloads, engine) for scenario in (start, then))
    assert before.total == 0 and found.total == 7 * 8 and found.at_least
    assert found.nodes["b-0"].kind == fits.UNKNOWN and "not probed" in found.nodes["b-0"].reason
    assert [note for note in found.notes if "1 node(s) with gpu.nvidia.com were not probed" in note]


def test_a_step_may_change_the_template_of_a_workload(engine: Engine) -> None:
    start = Scenario(
        cluster(NODES), (workload("one-pair"),), {}, lambda value: Workload(value["name"], (SPECS[value["claim"]],))
    )
    then = after(start, [{"workload": {"name": "one-pair", "claim": "three-pairs"}}, {"cordon": {"nodes": ["a-0"]}}])
    assert [_total(scenario, engine) for scenario in then] == [4, 2]


def test_nodes_of_a_probed_machine_can_be_added(engine: Engine) -> None:
    """They have the devices of the probed machine, and the labels and the allocatable resources of the step."""
    drivers = {**DRIVERS, "gpu.nvidia.com": {"version": "0.5.0"}}
    pod_spec = {"containers": [{"resources": {"requests": {"cpu": "10"}}}]}
    start = Scenario(cluster(NODES), (workload("one-pair", **pod_spec),), {"b200": facts("hgx-b200")}, None, drivers)
    step = {"add": {"like": "b200", "count": 2, "labels": {"zone": "c"}, "allocatable": {"cpu": "35", "pods": "9"}}}
    (then,) = after(start, [step])
    (found,) = fits.fit(then.fleet, then.workloads, engine)
    assert found.counts_by_label(then.fleet, "zone") == {"a": 8, "b": 8, "c": 6}
    assert set(then.fleet.nodes) - {"a-0", "b-0"} == {
        "b200-new-0",
        "b200-new-1",
    }
    assert found.nodes["b200-new-0"].kind == fits.ROOM and not found.notes
    (then,) = after(start, [{"add": {"like": "b200", "count": 1}}])
    (found,) = fits.fit(then.fleet, then.workloads, engine)
    assert found.nodes["b200-new-0"].count == 8 and any("room for any number of pods" in note for note in found.notes)
    driver_step = {"driver": {"name": "gpu.nvidia.com", "version": "0.5.0"}}
    then = after(start, [{"add": {"like": "b200", "count": 1}}, {"remove": {"nodes": ["a-0", "b-0"]}}, driver_step])[-1]
    (found,) = fits.fit(then.fleet, then.workloads, engine)
    assert found.total == 8 and not found.at_least  # the devices of another driver are predicted for added nodes, too
    (then,) = after(start, [{"add": {"like": "a-0", "count": 1, "labels": {"zone": "new"}}}])
    (found,) = fits.fit(then.fleet, then.workloads, engine)
    assert found.counts_by_label(then.fleet, "zone") == {"a": 8, "b": 8, "new": 8}


# --- quotas


def quota(hard: Object, used: Object | None = None, **spec: t.Any) -> Object:
    """A ResourceQuota. `spec` are other fields of its spec."""
    return {
        "kind": "ResourceQuota",
        "metadata": {"namespace": "default", "name": "q"},
        "spec": {"hard": hard, **spec},
        "status": {"used": used or {}},
    }


@pytest.mark.parametrize(
    ("hard", "used", "count"),
    [
        ({"pods": "5"}, {"pods": "2"}, 3),
        ({"requests.cpu": "3500m"}, {"requests.cpu": "500m"}, 2),
        ({"limits.cpu": "9"}, {}, 4),
        ({"count/resourceclaims.resource.k8s.io": "9"}, {"count/resourceclaims.resource.k8s.io": "8"}, 1),
        ({"CLASS.deviceclass.resource.k8s.io/devices": "9"}, {}, 9),
        ({"pods": "2"}, {"pods": "3"}, 0),
        ({"services": "1"}, {}, 16),
    ],
)
def test_a_quota_limits_the_count(engine: Engine, hard: Object, used: Object, count: int) -> None:
    pod = {"containers": [{"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}}]}
    work = workload("one-pair", **pod)
    gpu = next(request["exactly"]["deviceClassName"] for request in work.claims[0]["devices"]["requests"])
    fleet = cluster(NODES, quota({name.replace("CLASS", gpu): amount for name, amount in hard.items()}, used))
    (found,) = fits.fit(fleet, [work], engine)
    assert found.total == count and found.over_quota == 16 - count and bool(found.quota) == (count < 16)
    if count < 16:
        assert found.quota.startswith("quota default/q leaves ")
        assert any("not admitted: quota default/q" in line for line in report_lines.lines([found], [], []))


@pytest.mark.parametrize("name", ["hugepages-2Mi", "requests.hugepages-2Mi"])
def test_a_quota_limits_huge_pages_by_both_names(name: str, engine: Engine) -> None:
    pages = {"hugepages-2Mi": "256Mi", "memory": "1Gi"}
    work = workload("one-pair", containers=[{"resources": {"requests": pages, "limits": pages}}])
    status = {"allocatable": {**NODES[0]["status"]["allocatable"], "hugepages-2Mi": "64Gi"}}
    nodes = [{**node_object, "status": status} for node_object in NODES]
    (found,) = fits.fit(cluster(nodes, quota({name: "1Gi"}, {name: "256Mi"})), [work], engine)
    assert found.total == 3 and found.quota == f"quota default/q leaves {name} for 3 more"


def test_a_quota_charges_extended_resources_only_by_requests() -> None:
    """As in podComputeUsageHelper of Kubernetes' pkg/quota/v1/evaluator/core/pods.go."""
    pod = {"containers": [{"resources": {"limits": {"hugepages-1Gi": "2Gi", "example.com/nic": "1", "cpu": "1"}}}]}
    found = quotas.usage(Workload("w", (), pod=pod), {})
    assert found["hugepages-1Gi"] == found["requests.hugepages-1Gi"] == 2 << 30
    assert found["cpu"] == found["requests.cpu"] == found["limits.cpu"] == 1000
    assert found["requests.example.com/nic"] == 1
    assert not found.keys() & {"example.com/nic", "limits.example.com/nic", "limits.hugepages-1Gi"}


def test_a_quota_charges_overhead_to_requests_and_to_limits_that_are_set() -> None:
    """As in PodRequests and PodLimits of Kubernetes' component-helpers."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "0"}}
    spec = {"containers": [{"resources": resources}], "overhead": {"cpu": "250m", "memory": "64Mi"}}
    found = quotas.usage(Workload("w", (), pod=spec), {})
    assert found["requests.cpu"] == 1250 and found["requests.memory"] == (1024 + 64) << 20
    assert found["limits.cpu"] == 2250 and not found.get("limits.memory")
    del resources["limits"]["memory"]
    assert "limits.memory" not in quotas.usage(Workload("w", (), pod=spec), {})


def test_a_quota_charges_the_maximum_of_alternatives_and_32_for_mode_all() -> None:
    """As in Kubernetes' pkg/quota/v1/evaluator/core/resource_claims.go."""
    body = {"deviceClassName": "a", "allocationMode": "ExactCount", "count": 2}
    alternatives = [
        {"name": "x", **body},
        {"name": "y", **body, "count": 3},
        {"name": "z", **body, "deviceClassName": "b"},
    ]
    mode_all = {"deviceClassName": "b", "allocationMode": "All"}
    requests = [{"name": "one", "firstAvailable": alternatives}, {"name": "two", "exactly": mode_all}]
    found = quotas.usage(Workload("w", ({"devices": {"requests": requests}},)), {})
    assert found["a.deviceclass.resource.k8s.io/devices"] == 3
    assert found["b.deviceclass.resource.k8s.io/devices"] == 34


def test_a_quota_with_scopes_or_an_invalid_amount_is_noted(engine: Engine) -> None:
    fleet = cluster(NODES, quota({"pods": "1"}, scopes=["BestEffort"]), quota({"pods": "many"}))
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 16 and found.at_most
    assert [note for note in found.notes if "has scopes" in note]
    assert [note for note in found.notes if "cannot be read and is ignored" in note]


# --- the value of stranded devices, and the fleet map


def test_stranded_devices_have_a_value_and_are_on_the_map(engine: Engine) -> None:
    empty = cluster(NODES)
    gpu, nic = _first_pair(empty, engine)
    names = [offer.device["name"] for offer in empty.nodes["a-0"].offers]
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "b-0", "device": gpu}, "taint": TAINT},
    }
    hold_rule = {**rule, "metadata": {"name": "h"}}
    hold_rule["spec"] = {**rule["spec"], "taint": {"key": KEY, "value": "mine", "effect": "NoSchedule"}}
    hold_rule["spec"]["deviceSelector"] = {**rule["spec"]["deviceSelector"], "device": "gpu-1"}
    assert gpu != "gpu-1"
    fleet = cluster(NODES, claim("c", empty, "a-0", names.index(gpu)), rule, hold_rule)
    stranded_devices = [
        stranded_device
        for stranded_device in stranded(fleet, [workload("one-pair")], engine)
        if stranded_device.node == "a-0"
    ]
    found = stranded_value(
        fleet,
        stranded_devices,
        prices([{"driver": "lanewise.dev", "price": 1.5, "attributes": {"linkSpeedMbps": 400000}}]),
    )
    assert nic in {stranded_device.device.rpartition("/")[2] for stranded_device in stranded_devices}
    assert found.devices == len(stranded_devices) and found.gbps > 0 and found.cost is not None
    priced = [
        offer
        for offer in fleet.nodes["a-0"].offers
        if offer.device["attributes"].get("linkSpeedMbps") == {"int": 400000}
    ]
    ids = {stranded_device.device for stranded_device in stranded_devices}
    assert found.cost == 1.5 * sum(f"{offer.driver}/{offer.pool}/{offer.device['name']}" in ids for offer in priced)
    nic_value = found.by_device["a-0", f"lanewise.dev/a-0/{nic}"]
    assert nic_value.gbps == 400 and nic_value.cost == 1.5
    assert found.gbps == sum(value_of_device.gbps or 0 for value_of_device in found.by_device.values()) > 400
    # a NIC that is published both as a whole and for shares counts once
    offers = fleet.nodes["a-0"].offers
    (whole,) = [offer for offer in offers if offer.device["name"] == nic]
    share = replace(whole, device={**whole.device, "name": f"{nic}-share"})
    nodes = {**fleet.nodes, "a-0": replace(fleet.nodes["a-0"], offers=(*offers, share))}
    both = [*stranded_devices, Stranded("a-0", f"lanewise.dev/a-0/{nic}-share", "")]
    with_share = stranded_value(replace(fleet, nodes=nodes), both, [])
    assert (with_share.devices, with_share.gbps) == (found.devices + 1, found.gbps)
    device_map = fleet_map(fleet, stranded(fleet, [workload("one-pair")], engine), ["zone"])
    assert len(device_map["shapes"]) == 1
    assert [map_node["labels"]["zone"] for map_node in device_map["nodes"]] == ["a", "b"]
    by_node = {
        map_node["node"]: dict(
            zip([device["device"] for device in device_map["shapes"][map_node["shape"]]], map_node["states"])
        )
        for map_node in device_map["nodes"]
    }
    assert by_node["a-0"][f"gpu.nvidia.com/{gpu}"] == "u" and by_node["a-0"][f"lanewise.dev/{nic}"] == "s"
    assert by_node["b-0"][f"gpu.nvidia.com/{gpu}"] == "d" and by_node["b-0"]["gpu.nvidia.com/gpu-1"] == "h"
    assert counts(device_map)["used"] == 1 and counts(device_map)["held"] == 1 and counts(device_map)["degraded"] == 1


def _value_of(*devices: Object) -> StrandedValue:
    """The value of these devices of lanewise.dev, all stranded on one node."""
    offers = tuple(
        Offer("lanewise.dev", "n", "n", device, f"0000:8a:00.{number}") for number, device in enumerate(devices)
    )
    stranded_devices = [Stranded("n", f"lanewise.dev/n/{device['name']}", "") for device in devices]
    return stranded_value(Fleet({"n": Node("n", offers=offers)}, {}, Server()), stranded_devices, [])


@pytest.mark.parametrize(
    ("capacity", "attributes"),
    [
        ("1e400", {}),
        ("10E", {}),
        ("-100G", {}),
        (None, {"linkSpeedMbps": {"bool": True}}),
        (None, {"linkSpeedMbps": {"int": -1}}),
        (None, {"linkSpeedMbps": {"int": 10**400}}),
    ],
)
def test_a_bandwidth_that_no_link_has_is_unknown(capacity: str | None, attributes: Object) -> None:
    device: Object = {"name": "a", "attributes": attributes}
    if capacity is not None:
        device["capacity"] = {"bandwidth": {"value": capacity}}
    found = _value_of(device, {"name": "b", "capacity": {"bandwidth": {"value": "100G"}}})
    assert (found.devices, found.gbps) == (2, 100)
    assert found.by_device["n", "lanewise.dev/n/a"].gbps is None


def test_the_vfs_of_a_nic_count_as_one_link() -> None:
    def vf(name: str, pf: str) -> Object:
        return {"name": name, "attributes": {"pfPciBusID": {"string": pf}, "linkSpeedMbps": {"int": 100000}}}

    pf = {"name": "pf", "capacity": {"bandwidth": {"value": "100G"}}}  # its address is 0000:8a:00.0
    vfs = [vf(f"vf-{number}", "0000:8a:00.0") for number in range(4)]
    assert (_value_of(pf, *vfs).devices, _value_of(pf, *vfs).gbps) == (5, 100)
    assert _value_of(*vfs).gbps == 100
    assert _value_of(*vfs, vf("other", "0000:8b:00.0")).gbps == 200
    assert _value_of(pf, {"name": "odd", "attributes": {"pfPciBusID": {"int": 1}}}).gbps == 100


def test_large_values_are_reported_in_full() -> None:
    value = StrandedValue(40, 16000.5, 1234567.5, 0)
    (line,) = report_lines.lines([], [], [], value, "USD")
    assert line == "certainly stranded in total: 40 device(s), 16000.5 Gbit/s, 1234567.5 USD"


@pytest.mark.parametrize(
    ("causes", "remedy"),
    [
        ({"holders": ("team/c",)}, "; usable once claim team/c ends"),
        ({"holders": ("team/c", "team/d")}, "; usable once claim team/c or team/d ends"),
        ({"together": ("team/c", "team/d")}, "; usable once claims team/c and team/d have ended"),
        ({"holders": ("team/c",), "certain": False}, " (not certain)"),
        ({}, ""),
    ],
)
def test_the_claims_that_keep_devices_from_use_are_named(causes: Object, remedy: str) -> None:
    devices = [Stranded("a-0", device, "no GPU is free", **causes) for device in ("nic-0", "nic-1")]
    assert report_lines.lines([], [], devices) == [f"stranded: nic-0, nic-1: no GPU is free{remedy}"]


@pytest.mark.parametrize(
    "price",
    [
        {"driver": "x"},
        {"driver": "x", "price": -1},
        {"driver": "x", "price": 10**400},
        {"price": 1},
        {"driver": "x", "price": True},
    ],
)
def test_an_invalid_price_is_refused(price: Object) -> None:
    with pytest.raises(Problems, match=r"prices\[0\]"):
        prices([price])


def test_counts_of_all_steps_are_shown_side_by_side(engine: Engine) -> None:
    fleet = probed("hgx-h100")
    found = fits.fit(fleet, [workload("one-pair")], engine)
    assert report_lines.table(["one-pair"], [("now", found), ("cordon", found)]) == [
        "          now  cordon",
        "one-pair    8       8",
    ]


# --- drivers without knowledge, and probed fleets


def test_devices_of_an_unknown_driver_are_counted(engine: Engine) -> None:
    """A search needs only the published devices, and no knowledge of their driver."""
    device = {"name": "d", "attributes": {}}
    spec = {
        "driver": "x.example.com",
        "nodeName": "a-0",
        "pool": {"name": "a-0", "generation": 1, "resourceSliceCount": 1},
    }
    resource_slice = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}}
    request = {"name": "r", "exactly": {"deviceClassName": "x"}}
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "x"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "x.example.com"'}}]},
    }
    fleet = reader.read([node("a-0"), {**resource_slice, "spec": {**spec, "devices": [device]}}, device_class])
    (found,) = fits.fit(fleet, [Workload("w", ({"devices": {"requests": [request]}},))], engine)
    assert found.total == 1 and not found.at_least


def test_a_probed_fleet_has_the_devices_that_drivers_would_publish(engine: Engine) -> None:
    fleet = reader.probed({"n": facts("hgx-h100")}, {**DRIVERS, "gpu.nvidia.com": {"version": "0.5.0"}}, CLASSES)
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 8
