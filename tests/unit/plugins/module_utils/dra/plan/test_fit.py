# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many more pods of a workload fit, on example machines."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader, states
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.snapshot import snapshot_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.4.1"}, "lanewise.dev": {}}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def _pairs(count: int, *levels: str) -> Object:
    """A group of a template: pairs of a GPU and a NIC, by default below one PCIe root."""
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    return {"count": count, "align": list(levels or ["pcie_root"]), "devices": devices}


TEMPLATES = {
    "one-pair": [_pairs(1)],
    "two-pairs": [_pairs(2)],
    "three-pairs": [_pairs(3)],
    "one-gpu": [{"devices": [{"name": "gpu", "kind": "gpu"}]}],
    "one-nic": [{"devices": [{"name": "nic", "kind": "rdma"}]}],
}
_SITE = compile_site(
    {
        "dra_claims_drivers": DRIVERS,
        "dra_claims_templates": [
            {"name": name, "namespace": "team", "groups": groups} for name, groups in TEMPLATES.items()
        ],
    }
).objects
CLASSES = {obj["metadata"]["name"]: obj for obj in _SITE if obj["kind"] == "DeviceClass"}
SPECS = {obj["metadata"]["name"]: obj["spec"]["spec"] for obj in _SITE if obj["kind"] == "ResourceClaimTemplate"}


def workload(name: str, **pod: t.Any) -> Workload:
    """A workload with the claim of a template, and with these fields of the pod's spec."""
    return Workload(name, (SPECS[name],), pod, labels={"app": name})


def probed(*machines: str) -> Fleet:
    """A probed fleet with one node for each of these example machines."""
    nodes = {f"{name}-{number}": facts(name) for number, name in enumerate(machines)}
    return reader.probed(nodes, DRIVERS, CLASSES)


def node(name: str, cpu: str = "128", pods: str = "110", **more: t.Any) -> Object:
    status = {"allocatable": {"cpu": cpu, "memory": "2Ti", "pods": pods}}
    labels = {"zone": name.partition("-")[0], **more.pop("labels", {})}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": more, "status": status}


def cluster(nodes: t.Sequence[Object], *more: Object, machine: str = "hgx-h100") -> Fleet:
    """A cluster in which each node publishes a machine's devices."""
    fleet = reader.probed({node_object["metadata"]["name"]: facts(machine) for node_object in nodes}, DRIVERS, CLASSES)
    published = [resource_slice for fleet_node in fleet.nodes.values() for resource_slice in slices(fleet_node.offers)]
    return reader.read([*nodes, *published, *CLASSES.values(), *more])


def claim(name: str, fleet: Fleet, node_name: str, *positions: int) -> Object:
    """An allocated claim that has the devices at these positions in the node's offers."""
    offers = [fleet.nodes[node_name].offers[position] for position in positions]
    results = [
        {"request": "r", "driver": offer.driver, "pool": offer.pool, "device": offer.device["name"]} for offer in offers
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def positions_of(fleet: Fleet, driver: str) -> list[int]:
    """The positions of a driver's devices in the offers of the first node."""
    first = next(iter(fleet.nodes.values()))
    return [position for position, offer in enumerate(first.offers) if offer.driver == driver]


def test_all_pairs_of_a_machine_are_counted(engine: Engine) -> None:
    names = ("one-pair", "two-pairs", "three-pairs")
    found = fits.fit(probed("hgx-h100"), [workload(name) for name in names], engine)
    assert [workload_fit.total for workload_fit in found] == [8, 4, 2]
    assert not found[0].at_least and not found[0].at_most
    (three_pairs,) = found[2].nodes.values()
    assert three_pairs.kind == fits.DEVICES and three_pairs.reason and len(three_pairs.placements[0]) == 6


def test_nodes_in_the_same_state_have_the_same_key(engine: Engine) -> None:
    fleet = probed(*["hgx-h100"] * 50)
    workloads = [workload("one-pair")]
    assert fits.fit(fleet, workloads, engine)[0].total == 400
    node_states = fits.States(fleet, workloads, engine)
    assert len({node_states.key(fleet_node) for fleet_node in fleet.nodes.values()}) == 1
    mixed = probed("hgx-h100", "dgx-a100", "hgx-h100")
    assert len({fits.States(mixed, workloads, engine).key(fleet_node) for fleet_node in mixed.nodes.values()}) == 2


def test_devices_in_use_are_not_counted(engine: Engine) -> None:
    empty = cluster([node("a-0"), node("a-1")])
    held = claim("c", empty, "a-0", positions_of(empty, "gpu.nvidia.com")[0])
    fleet = cluster([node("a-0"), node("a-1")], held)
    workloads = [workload("one-pair"), workload("one-gpu"), workload("one-nic")]
    before, after_claim = fits.fit(empty, workloads, engine), fits.fit(fleet, workloads, engine)
    assert [free.total - used.total for free, used in zip(before, after_claim)] == [1, 1, 0]
    assert after_claim[0].nodes["a-0"].count == 7 and after_claim[0].nodes["a-1"].count == 8


def test_the_count_ends_when_cpus_or_pods_of_the_node_are_used_up(engine: Engine) -> None:
    fleet = cluster([node("a-0", cpu="10"), node("b-0", pods="3")])
    pod_spec = {"containers": [{"resources": {"requests": {"cpu": "1500m"}}}]}
    (found,) = fits.fit(fleet, [workload("one-pair", **pod_spec)], engine)
    assert found.nodes["a-0"].count == 6 and found.nodes["a-0"].reason == "too little cpu is left"
    assert found.nodes["b-0"].count == 3 and found.nodes["b-0"].reason == "too little pods is left"
    assert found.total == 9


def test_nodes_that_are_cordoned_tainted_or_not_selected_get_no_pod(engine: Engine) -> None:
    taint = {"key": "maintenance", "effect": "NoExecute"}
    nodes = [node("a-0", unschedulable=True), node("b-0", taints=[taint]), node("c-0"), node("d-0", labels={"x": "y"})]
    fleet = cluster(nodes)
    (plain,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert {name: node_fit.count for name, node_fit in plain.nodes.items()} == {"a-0": 0, "b-0": 0, "c-0": 8, "d-0": 8}
    assert plain.nodes["a-0"].reason == "the node is cordoned"
    assert plain.nodes["b-0"].reason == "the node has the taint maintenance:NoExecute"
    (selected,) = fits.fit(fleet, [workload("one-pair", nodeSelector={"x": "y"})], engine)
    assert selected.total == 8 and selected.nodes["c-0"].kind == fits.REFUSED
    (tolerant,) = fits.fit(fleet, [workload("one-pair", tolerations=[{"operator": "Exists"}])], engine)
    assert tolerant.total == 32


@pytest.mark.parametrize(("skew", "total"), [(1, 17), (2, 18), (8, 24), (20, 24)])
def test_a_topology_spread_constraint_limits_the_count(engine: Engine, skew: int, total: int) -> None:
    """Zone b has eight pairs and zone a sixteen: b is full with eight pods, and a may have `skew` more."""
    fleet = cluster([node("a-0"), node("a-1"), node("b-0")])
    rule = {
        "topologyKey": "zone",
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "one-pair"}},
    }
    (found,) = fits.fit(fleet, [workload("one-pair", topologySpreadConstraints=[rule])], engine)
    assert found.total == total
    assert found.counts_by_label(fleet, "zone") == {"a": total - 8, "b": 8} == found.spread["zone"]
    assert found.counts_by_label(fleet, "rack") == {"": 24}


def spread_rule(key: str, selector: Object) -> Object:
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}


def test_nodes_without_the_labels_of_all_spread_constraints_do_not_limit_the_others(engine: Engine) -> None:
    """The node without a zone has room for no pod, which would limit the others by the constraint for hosts."""
    hosts = [node(name, labels={"host": name}) for name in ("a-0", "b-0")]
    full = node("c-0", pods="0", labels={"host": "c-0"})
    del full["metadata"]["labels"]["zone"]
    app = {"matchLabels": {"app": "one-pair"}}
    rules = [spread_rule("zone", app), spread_rule("host", app)]
    (found,) = fits.fit(cluster([*hosts, full]), [workload("one-pair", topologySpreadConstraints=rules)], engine)
    assert found.total == 16


def test_a_spread_constraint_with_an_empty_selector_limits_nothing(engine: Engine) -> None:
    """The scheduler counts no pods for it. A missing selector selects no pods, so it limits nothing either."""
    running = [bound_pod(f"p-{number}", "a-0") for number in range(3)]
    fleet = cluster([node("a-0"), node("b-0", pods="0")], *running)
    for rule in (spread_rule("zone", {}), {**spread_rule("zone", {}), "labelSelector": None}):
        (found,) = fits.fit(fleet, [workload("one-pair", topologySpreadConstraints=[rule])], engine)
        assert found.total == 8


def test_pods_that_are_being_deleted_do_not_count_for_spread_constraints(engine: Engine) -> None:
    rule = spread_rule("zone", {"matchLabels": {"app": "one-pair"}})
    for ending, total in ((False, 0), (True, 1)):
        running = bound_pod("p", "a-0", app="one-pair")
        if ending:
            running["metadata"]["deletionTimestamp"] = "2026-11-24T00:00:00Z"
        fleet = cluster([node("a-0"), node("b-0", pods="0")], snapshot_of(running))
        (found,) = fits.fit(fleet, [workload("one-pair", topologySpreadConstraints=[rule])], engine)
        assert found.total == total


def bound_pod(name: str, node_name: str, **labels: str) -> Object:
    """A running pod without devices."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node_name}, "status": {"phase": "Running"}}


def test_a_node_with_an_incomplete_pool_is_unknown(engine: Engine) -> None:
    published = slices(reader.probed({"a-0": facts("hgx-h100")}, DRIVERS, CLASSES).nodes["a-0"].offers)
    gpus = next(resource_slice for resource_slice in published if resource_slice["spec"]["driver"] == "gpu.nvidia.com")
    gpus["spec"]["pool"]["resourceSliceCount"] += 1
    fleet = reader.read([node("a-0"), *published, *CLASSES.values()])
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 0 and found.at_least and found.nodes["a-0"].kind == fits.UNKNOWN
    assert "the scheduler does not use it" in found.nodes["a-0"].reason
    (nics,) = fits.fit(fleet, [workload("one-nic")], engine)
    assert nics.total > 0 and not nics.at_least


def test_a_count_that_takes_too_long_ends_early_with_a_reason(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "NODE_SEARCH_BUDGET", 5)
    (found,) = fits.fit(probed("hgx-h100"), [workload("one-pair")], engine)
    (node_fit,) = found.nodes.values()
    assert 0 < found.total < 8 and found.at_least and len(node_fit.placements) == found.total
    assert node_fit.reason == f"counted only up to {found.total}: searching for more takes too long"


def test_claims_of_missing_devices_and_waiting_pods_are_noted(engine: Engine) -> None:
    empty = cluster([node("a-0")])
    lost = claim("lost", empty, "a-0", 0)
    lost["status"]["allocation"]["devices"]["results"][0]["device"] = "gone"
    waiting = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"resourceClaims": [{"name": "x"}]},
        "status": {"phase": "Pending"},
    }
    fleet = cluster([node("a-0")], lost, waiting)
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 8
    assert [note for note in found.notes if "team/lost" in note and "no complete pool lists" in note]
    assert [note for note in found.notes if note.startswith("1 pod(s) with claims wait")]


def test_an_allocated_device_that_is_not_published_makes_its_node_unknown(engine: Engine) -> None:
    """The driver of the node may be starting, or its slices may not have been read."""
    nodes = [node("a-0"), node("b-0")]
    empty = cluster(nodes)
    published = list(slices(empty.nodes["b-0"].offers))
    held = claim("c", empty, "a-0", positions_of(empty, "gpu.nvidia.com")[0])
    fleet = reader.read([*nodes, *published, *CLASSES.values(), held])
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 8 and found.at_least and not found.at_most
    assert found.nodes["a-0"].kind == fits.UNKNOWN and "which has no slice" in found.nodes["a-0"].reason
    # if the pool does not have the name of a node, the node of the claim's pod is used
    results = held["status"]["allocation"]["devices"]["results"]
    other_pool = {**held, "status": {"allocation": {"devices": {"results": [{**results[0], "pool": "cards"}]}}}}
    (found,) = fits.fit(
        reader.read([*nodes, *published, *CLASSES.values(), other_pool]), [workload("one-pair")], engine
    )
    assert found.total == 8 and not found.at_least
    spec = {"nodeName": "a-0", "containers": [], "resourceClaims": [{"name": "x", "resourceClaimName": "c"}]}
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": spec}
    fleet = reader.read([*nodes, *published, *CLASSES.values(), other_pool, pod])
    (found,) = fits.fit(fleet, [workload("one-pair")], engine)
    assert found.total == 8 and found.at_least and found.nodes["a-0"].kind == fits.UNKNOWN


def test_a_workload_without_claims_or_with_invalid_requests_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="workload bare has no claims"):
        fits.fit(probed("hgx-h100"), [Workload("bare", ())], engine)
    with pytest.raises(ValueError, match="workload one-pair: its requests cannot be read"):
        invalid = {"containers": [{"resources": {"requests": {"cpu": "much"}}}]}
        fits.fit(probed("hgx-h100"), [workload("one-pair", **invalid)], engine)


def test_a_gpu_whose_nic_is_in_use_is_stranded(engine: Engine) -> None:
    empty = cluster([node("a-0"), node("b-0")])
    pair = fits.fit(empty, [workload("one-pair")], engine)[0].nodes["a-0"].placements[0]
    names = ["/".join((offer.driver, offer.pool, offer.device["name"])) for offer in empty.nodes["a-0"].offers]
    nic = next(device for device in pair if device.startswith("lanewise.dev/"))
    gpu = next(device for device in pair if device.startswith("gpu.nvidia.com/"))
    fleet = cluster([node("a-0"), node("b-0")], claim("c", empty, "a-0", names.index(nic)))
    found = {
        stranded_device.device: stranded_device
        for stranded_device in stranded(fleet, [workload("one-pair")], engine)
        if stranded_device.certain
    }
    assert found[gpu].holders == ("team/c",) and found[gpu].node == "a-0"
    assert "gpu.nvidia.com/b-0/" + gpu.rpartition("/")[2] not in found
    # another workload can still use the GPU
    still_stranded = stranded(fleet, [workload("one-pair"), workload("one-gpu")], engine)
    assert gpu not in {stranded_device.device for stranded_device in still_stranded}


def test_stranded_devices_name_the_claims_of_their_own_node(engine: Engine) -> None:
    """The nodes are in the same state, but their devices are used by different claims."""
    empty = cluster([node("a-0"), node("b-0")])
    nic = positions_of(empty, "lanewise.dev")[0]
    fleet = cluster([node("a-0"), node("b-0")], claim("c", empty, "a-0", nic), claim("d", empty, "b-0", nic))
    found = stranded(fleet, [workload("one-pair")], engine)
    by_node = {
        name: {
            stranded_device.holders
            for stranded_device in found
            if stranded_device.node == name and stranded_device.holders
        }
        for name in ("a-0", "b-0")
    }
    assert by_node == {"a-0": {("team/c",)}, "b-0": {("team/d",)}}


def test_steps_change_how_many_pods_fit(engine: Engine) -> None:
    fleet = cluster([node("a-0"), node("a-1"), node("b-0")])

    def total(*steps: Object) -> int:
        return fits.fit(after(fleet, steps), [workload("one-pair")], engine)[0].total

    assert total() == 24
    assert total({"cordon": {"labels": {"zone": "a"}}}) == 8
    assert total({"remove": {"nodes": ["b-0"]}}, {"add": {"like": "a-0", "count": 10}}) == 96
    assert total({"cordon": {"nodes": ["a-0"]}}, {"uncordon": {"nodes": ["a-0"]}}) == 24
    pair = fits.fit(fleet, [workload("one-pair")], engine)[0].nodes["a-0"].placements[0]
    nic = next(device for device in pair if device.startswith("lanewise.dev/")).rpartition("/")[2]
    assert total({"lose": {"node": "a-0", "devices": [nic]}}) == 23


def test_a_feature_gate_that_is_not_true_or_false_is_refused() -> None:
    """The string `false` would count as on."""
    gates = t.cast(t.Any, {"DRADeviceTaints": "false"})
    with pytest.raises(ValueError, match="without quotes"):
        reader.read([], gates=gates)
    with pytest.raises(ValueError, match="without quotes"):
        reader.probed({}, DRIVERS, CLASSES, gates=gates)


def test_a_new_or_uncordoned_node_does_not_have_the_cordon(engine: Engine) -> None:
    """Uncordoning removes the taint of the cordon. A new node has neither the cordon of the node that it is like nor
    the taints of that node's devices by rules, but it has the node's other taints."""
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    nodes = [node("a-0", unschedulable=True, taints=[cordon]), node("b-0", taints=[{**cordon, "key": "kept"}])]
    probed_fleet = reader.probed({"a-0": facts("hgx-h100")}, DRIVERS, CLASSES)
    nic = next(offer for offer in probed_fleet.nodes["a-0"].offers if offer.driver == "lanewise.dev")
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {
            "deviceSelector": {"driver": nic.driver, "pool": nic.pool, "device": nic.device["name"]},
            "taint": {"key": "broken", "effect": "NoSchedule"},
        },
    }
    fleet = cluster(nodes, rule)

    def total(step: Object) -> int:
        return fits.fit(after(fleet, [step]), [workload("one-pair")], engine)[0].total

    assert fits.fit(fleet, [workload("one-pair")], engine)[0].total == 0
    assert total({"uncordon": {"nodes": ["a-0"]}}) == 7
    assert total({"add": {"like": "a-0", "count": 2}}) == 16
    assert total({"add": {"like": "b-0", "count": 2}}) == total({"uncordon": {"nodes": ["b-0"]}}) == 0


@pytest.mark.parametrize(
    ("step", "reported"),
    [
        ({"cordon": {"nodes": ["x"]}}, "what_if[0].cordon.nodes: names nodes that do not exist: x"),
        ({"cordon": {"nodes": "a-0"}}, "what_if[0].cordon.nodes: is not a list"),
        ({"cordon": {}}, "what_if[0].cordon: must have nodes or labels"),
        ({"cordon": {"nodes": [["a-0"]]}}, "what_if[0].cordon.nodes: names nodes that do not exist: ['a-0']"),
        ({"cordon": {"labels": ["a"]}}, "what_if[0].cordon.labels: is not a mapping"),
        ({"shrink": {}}, "what_if[0]: is not a mapping with one step"),
        ({"add": {"like": "x", "count": 0}}, "what_if[0].add.count: is not a number from 1 to 10000"),
        ({"lose": {"node": "a-0", "devices": ["x"]}}, "what_if[0].lose.devices: node a-0 has no device x"),
        ({"lose": {"node": "a-0", "devices": [{"x": 1}]}}, "what_if[0].lose.devices: node a-0 has no device {'x': 1}"),
        ({"lose": {"node": ["a-0"], "devices": ["x"]}}, "what_if[0].lose.node: there is no node ['a-0']"),
        ({"release": {"claims": ["team/x"]}}, "what_if[0].release.claims: have no devices: team/x"),
        ({"release": {"claims": [["team/x"]]}}, "what_if[0].release.claims: have no devices: ['team/x']"),
    ],
)
def test_a_step_that_cannot_be_taken_is_refused(step: Object, reported: str) -> None:
    with pytest.raises(Problems) as caught:
        after(cluster([node("a-0")]), [step])
    assert reported in str(caught.value)
