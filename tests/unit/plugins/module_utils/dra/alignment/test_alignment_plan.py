# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Predicted rates between GPUs and NICs, and claims that compare a GPU's nearest NIC with its farthest NIC."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.check import Check
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.devices import Machine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.plan import (
    comparison_claims,
    placements,
    predict,
    predict_claims,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    DRIVERS,
    NODE,
    NodeWithClaims,
    add_vf_with_shared_counters,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

H100_GPUS = 8


def pair_at(machine, *levels):
    """The first GPU with a NIC of 400 Gbit/s at one of these levels, and that NIC."""
    for gpu in machine.gpus:
        for nic, fact in machine.nics.items():
            if machine.level(gpu, nic)[0] in levels and fact["speed_mbps"] == 400_000:
                return gpu, nic
    raise KeyError(levels)


def predict_pair(machine, pair):
    """The prediction for a flow between a GPU and a NIC, without other flows."""
    [found] = predict(machine, [pair])
    return found


def test_an_aligned_flow_is_limited_by_its_nic():
    machine = Machine(facts("hgx-h100"))
    found = predict_pair(machine, pair_at(machine, "PIX"))
    rate = machine.nics[found["nic_address"]]["speed_mbps"] / 8000
    assert found["prediction"] is True and found["direct"] is True
    assert found["gb_per_s"]["likely"] == pytest.approx(rate * 0.93, abs=0.02)
    assert found["gb_per_s"]["low"] <= found["gb_per_s"]["likely"] <= found["gb_per_s"]["high"] <= rate


def test_measured_rates_of_b200_are_in_the_predicted_range():
    """From DRANET's paper: B200 with 400 Gbit/s NICs, 46.59 GB/s aligned, 26.7 to 29.2 GB/s unaligned."""
    machine = Machine(facts("hgx-b200"))
    aligned, unaligned = predict_pair(machine, pair_at(machine, "PXB")), predict_pair(machine, pair_at(machine, "SYS"))
    bounds = aligned["gb_per_s"]
    assert bounds["low"] <= 46.59 <= bounds["high"]
    for measured in (26.7, 29.2):
        assert unaligned["gb_per_s"]["low"] <= measured <= unaligned["gb_per_s"]["high"]
    assert unaligned["direct"] is False and unaligned["limits"]["between sockets"][1] is None


def with_cpu_and_ports(machine_facts, cpu, port_id):
    """The facts of a GB200 machine with the name `cpu` of its CPU and the device ID `port_id` of its root ports."""
    machine_facts["system"]["cpu_model"] = cpu
    for function in machine_facts["functions"].values():
        if function["vendor_id"] == "10de" and function["device_id"] == "22b8":
            function["device_id"] = port_id
    return machine_facts


@pytest.mark.parametrize(("cpu", "port_id"), [(None, "22b8"), ("Neoverse-V2", "22b1"), ("NVIDIA Grace CPU", "22b1")])
def test_measured_rates_of_gb200_are_in_the_predicted_range(cpu, port_id):
    """OCI's GB200 with 400 Gbit/s NICs: 46 GB/s aligned (no pair is nearer than NODE), 25 GB/s unaligned."""
    machine = Machine(with_cpu_and_ports(facts("gb200"), cpu, port_id))
    aligned, unaligned = predict_pair(machine, pair_at(machine, "NODE")), predict_pair(machine, pair_at(machine, "SYS"))
    assert aligned["gb_per_s"]["low"] <= 46 <= aligned["gb_per_s"]["high"] and aligned["direct"] is None
    assert unaligned["gb_per_s"]["low"] <= 25 <= unaligned["gb_per_s"]["high"] < 46 and unaligned["direct"] is False


def test_only_an_nvidia_gpu_on_grace_may_send_directly_beyond_its_host_bridge():
    machine_facts = with_cpu_and_ports(facts("gb200"), None, "22b1")
    machine = Machine(machine_facts)
    assert predict_pair(machine, pair_at(machine, "NODE"))["direct"] is False
    machine_facts = facts("gb200")
    gpu, nic = pair_at(machine, "NODE")
    machine_facts["functions"][gpu]["vendor_id"] = "1002"
    assert predict_pair(Machine(machine_facts), (gpu, nic))["direct"] is False
    machine = Machine(facts("hgx-h100"))
    assert predict_pair(machine, pair_at(machine, "NODE"))["direct"] is False


def test_flows_share_the_links_that_they_cross():
    machine = Machine(facts("hgx-h100"))
    gpus = [gpu for gpu in machine.gpus if machine.numa_of(gpu) == 0]
    far_nics = [nic for nic in machine.nics if all(machine.level(gpu, nic)[0] == "SYS" for gpu in gpus)]
    far_nics = [nic for nic in far_nics if machine.nics[nic]["speed_mbps"]]
    assert len(gpus) >= 2 and len(far_nics) >= 2
    alone = predict_pair(machine, (gpus[0], far_nics[0]))
    separate_nics = predict(machine, [(gpus[0], far_nics[0]), (gpus[1], far_nics[1])])[0]
    same_nic = predict(machine, [(gpus[0], far_nics[0]), (gpus[1], far_nics[0])])[0]
    half = alone["limits"]["between sockets"][0] / 2
    assert separate_nics["limits"]["between sockets"][0] == pytest.approx(half)
    assert same_nic["limits"]["nic"][0] == pytest.approx(alone["limits"]["nic"][0] / 2, abs=0.01)
    assert separate_nics["gb_per_s"]["low"] <= alone["gb_per_s"]["low"]
    assert same_nic["gb_per_s"]["high"] <= alone["gb_per_s"]["high"]


@pytest.mark.parametrize("name", names())
def test_predictions_have_ordered_bounds_below_the_rate_of_the_nic(name):
    machine = Machine(facts(name))
    pairs = [(gpu, nic) for gpu in machine.gpus for nic in list(machine.nics)[:40]]
    for pair, found in zip(pairs, [predict_pair(machine, pair) for pair in pairs]):
        assert found["prediction"] is True and found["level"] == machine.level(*pair)[0]
        bounds = found["gb_per_s"]
        if bounds is None:
            assert found["unknown"]
        else:
            assert found["level"] != "UNKNOWN"
            assert 0 < bounds["low"] <= bounds["likely"] <= bounds["high"]
            rate = machine.nics[pair[1]]["speed_mbps"] / 8000
            assert bounds["high"] <= rate * 1.001


def test_the_lowered_link_speed_of_an_idle_gpu_is_not_a_limit():
    """An idle GPU lowers the speed of its link, which the port above it also reports, and raises it when it sends."""
    machine_facts = facts("hgx-h100")
    machine = Machine(machine_facts)
    gpu, nic = pair_at(machine, "PIX")
    expected = predict_pair(machine, (gpu, nic))
    function = machine_facts["functions"][gpu]
    ends = [function, machine_facts["functions"][function["bridges"][-1]]]
    for end in ends:
        end["link"].update(speed_gts=2.5)
    found = predict_pair(Machine(machine_facts), (gpu, nic))
    assert found["gb_per_s"] == expected["gb_per_s"] and found["limits"] == expected["limits"]
    assert found["unknown"] == [f"whether the link of {gpu} is slow, or the GPU is idle"] and not expected["unknown"]
    # the end with the lower maximum speed is the limit
    ends[1]["link"]["max_speed_gts"] = 8.0
    assert predict_pair(Machine(machine_facts), (gpu, nic))["gb_per_s"]["high"] < 16
    # fewer lanes than the maximum are a fault, not a way to save power
    ends[1]["link"]["max_speed_gts"] = ends[0]["link"]["max_speed_gts"]
    ends[0]["link"]["width"] = 4
    assert predict_pair(Machine(machine_facts), (gpu, nic))["gb_per_s"]["high"] < 16
    # NICs do not lower the speed of their links
    ends[0]["link"]["width"] = 16
    machine_facts["functions"][nic]["link"]["speed_gts"] = 2.5
    assert predict_pair(Machine(machine_facts), (gpu, nic))["gb_per_s"]["high"] < 5


def test_vfs_share_the_port_and_the_link_of_their_pf():
    node = NodeWithClaims("hgx-h100")
    machine = node.machine
    gpu, pf = pair_at(machine, "PIX")
    other_gpu = next(address for address in machine.gpus if address != gpu)
    rate = machine.nics[pf]["speed_mbps"]
    vf = add_vf_with_shared_counters(node, pf)
    node.facts["functions"][vf] = {**node.facts["functions"][vf], "link": None}
    machine = Machine(node.facts)
    machine.nics[vf] = {**machine.nics[vf], "speed_mbps": rate}
    of_vf, of_pf = predict_pair(machine, (gpu, vf)), predict_pair(machine, (gpu, pf))
    assert of_vf["limits"] == of_pf["limits"] and not of_vf["unknown"]
    together = predict(machine, [(gpu, vf), (other_gpu, pf)])[0]
    for name in ("nic", f"link of {pf}"):
        assert together["limits"][name][1] == pytest.approx(of_vf["limits"][name][1] / 2, abs=0.01)


def test_no_rate_is_predicted_from_unknown_values():
    machine_facts = facts("hgx-h100")
    machine = Machine(machine_facts)
    gpu, nic = pair_at(machine, "PIX")
    for entry in machine_facts["nics"]:
        entry["speed_mbps"] = None
    found = predict_pair(Machine(machine_facts), (gpu, nic))
    assert found["gb_per_s"] is None and "the NIC's rate" in found["unknown"]
    assert predict_pair(Machine(machine_facts), (gpu, "0000:ff:00.0"))["level"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C", 22),
        ("Intel(R) Xeon(R) Platinum 8568Y+", 40),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 10),
        ("Intel(R) Xeon(R) CPU E5-2697 v4 @ 2.30GHz", 6),
        ("AMD EPYC 9654 96-Core Processor", 16),
        ("Neoverse-V2", 6),
        (None, 6),
    ],
)
def test_the_cpu_model_decides_the_rate_between_sockets(name, rate):
    machine_facts = facts("hgx-h100")
    machine_facts["system"]["cpu_model"] = name
    machine = Machine(machine_facts)
    assert predict_pair(machine, pair_at(machine, "SYS"))["limits"]["between sockets"] == [rate, None]


def pools_of(name):
    return Pools(slices(offers(NODE, facts(name), DRIVERS)))


@pytest.mark.parametrize("name", names())
def test_placements_take_the_nearest_and_the_farthest_free_nic(name):
    machine, pools = Machine(facts(name)), pools_of(name)
    for gpu in machine.gpus:
        plan = placements(NODE, machine, pools.on(NODE), gpu)
        near, far = plan["nearest"], plan["farthest"]
        if near is None or far is None:
            assert plan["reason"]
            continue
        free = [entry.address for entry in pools.on(NODE) if entry.address in machine.nics]
        levels = [RANK[machine.level(gpu, nic)[0]] for nic in free if not _tainted(pools, nic)]
        assert RANK[near["level"]] == min(levels) < RANK[far["level"]] < RANK["UNKNOWN"]
        assert machine.level(gpu, far["address"])[0] == far["level"]
        assert machine.nics[near["address"]]["speed_mbps"] == machine.nics[far["address"]]["speed_mbps"]


def _tainted(pools, address):
    return any(entry.device.get("taints") for entry in pools.on(NODE) if entry.address == address)


class ComparisonEngine:
    """Evaluates comparisons (name == value, joined by &&), for tests that run without a CEL engine."""

    def matches(self, expression, device, driver):
        for part in expression.split(" && "):
            left, _equals, right = part.partition(" == ")
            if part.startswith("has("):
                continue
            if left == "device.driver":
                if right.strip('"') != driver:
                    return False
                continue
            name = right.split('attributes["')[1].replace('"].', "/")
            value = (device["attributes"].get(name) or device["attributes"].get(name.partition("/")[2]) or {}).values()
            wanted = {"true": True, "false": False}.get(left, left.strip('"'))
            if wanted not in list(value):
                return False
        return True


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "mi300x"])
def test_comparison_claims_get_exactly_the_planned_devices(name):
    machine, pools = Machine(facts(name)), pools_of(name)
    gpu = next(iter(machine.gpus))
    plan = placements(NODE, machine, pools.on(NODE), gpu)
    objects, reason = comparison_claims(plan, machine, "bench", DRIVERS)
    assert not reason
    for item in objects:
        assert not [str(problem) for problem in validate(item)]
    classes = {item["metadata"]["name"]: item for item in objects if item["kind"] == "DeviceClass"}
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    assert len(claims) == 2 and {item["metadata"]["namespace"] for item in claims} == {"bench"}
    for claim, part in zip(claims, ("nearest", "farthest")):
        found = allocate([claim["spec"]], classes, offers(NODE, facts(name), DRIVERS), ComparisonEngine())
        assert isinstance(found, Allocation), found
        assert {result.offer.address for result in found.results} == {gpu, plan[part]["address"]}


def test_held_or_tainted_devices_are_not_planned():
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    pools = Pools(node.slices)
    held = {tuple(node.devices()[nic][key] for key in ("driver", "pool", "device"))}
    plan = placements(NODE, node.machine, pools.on(NODE), gpu, held)
    assert plan["nearest"]["address"] != nic
    node.published_device(plan["nearest"]["address"])["taints"] = [{"key": "x", "effect": "NoSchedule"}]
    replanned = placements(NODE, node.machine, Pools(node.slices).on(NODE), gpu, held)
    assert replanned["nearest"]["address"] not in (nic, plan["nearest"]["address"])
    busy = {tuple(node.devices()[gpu][key] for key in ("driver", "pool", "device"))}
    assert "in use" in placements(NODE, node.machine, pools.on(NODE), gpu, busy)["reason"]
    assert "no driver publishes" in placements(NODE, node.machine, [], gpu)["reason"]


def test_devices_that_share_counters_with_a_held_device_are_not_planned():
    node = NodeWithClaims("hgx-h100")
    gpu = next(iter(node.machine.gpus))
    before = placements(NODE, node.machine, Pools(node.slices).on(NODE), gpu)["nearest"]["address"]
    vf = add_vf_with_shared_counters(node, before)
    node.add_claim({"vf": vf})
    check = Check(node.slices, machines={NODE: node.facts})
    check.run(node.claims)
    machine, published = check.machines[NODE], check.pools.on(NODE)
    assert placements(NODE, machine, published, gpu, check.taken)["nearest"]["address"] not in (before, vf)
    assert placements(NODE, machine, published, gpu, {})["nearest"]["address"] == before


def test_a_gpu_of_which_a_partition_is_held_is_in_use():
    node = NodeWithClaims("hgx-h100")
    gpu = next(iter(node.machine.gpus))
    [gpu_slice] = [gpu_slice for gpu_slice in node.slices if gpu_slice["spec"]["driver"] == "gpu.nvidia.com"]
    gpu_slice["spec"]["devices"].append({**node.published_device(gpu), "name": "gpu-0-mig-1g10gb-0"})
    held = {("gpu.nvidia.com", NODE, "gpu-0-mig-1g10gb-0")}
    assert "in use" in placements(NODE, node.machine, Pools(node.slices).on(NODE), gpu, held)["reason"]


def test_predictions_include_nics_in_use():
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    node.add_claim({"gpu": gpu, "nic": nic})

    def predicted():
        check = Check(node.slices, machines={NODE: node.facts})
        return predict_claims(check.run(node.claims)["claims"], check.machines)["ml/claim"]

    expected = predicted()
    node.move_into_pod(nic)
    assert predicted() == expected and expected[0]["gb_per_s"]["likely"] > 40
    del node.published_device(nic)["attributes"]["linkSpeedMbps"]
    assert predicted()[0]["gb_per_s"] is None


def test_each_gpu_of_a_claim_sends_through_its_nearest_nic():
    node = NodeWithClaims("hgx-h100")
    published = node.devices()
    gpus = [gpu for gpu in node.machine.gpus if gpu in published]
    nics = [next(nic for nic in node.machine.nics if node.machine.level(gpu, nic)[0] == "PIX") for gpu in gpus]
    assert len(set(nics)) == len(gpus) == H100_GPUS
    given = {f"gpu-{index}": gpu for index, gpu in enumerate(gpus)}
    node.add_claim({**given, **{f"nic-{index}": nic for index, nic in enumerate(nics)}})
    reports = node.check()["claims"]
    predictions = predict_claims(reports, {NODE: node.machine})
    assert list(predictions) == ["ml/claim"]
    found = predictions["ml/claim"]
    assert {(entry["gpu_address"], entry["nic_address"]) for entry in found} == set(zip(gpus, nics))
    assert all(entry["gb_per_s"]["likely"] > 40 for entry in found)


def publish_partitions(node, gpu, count):
    """Publish partitions of a GPU instead of the whole GPU. Returns them as in allocation results, without requests."""
    [gpu_slice] = [gpu_slice for gpu_slice in node.slices if gpu_slice["spec"]["driver"] == "gpu.nvidia.com"]
    whole = node.published_device(gpu)
    gpu_slice["spec"]["devices"].remove(whole)
    parts = [{**whole, "name": f"{whole['name']}-mig-{index}"} for index in range(count)]
    gpu_slice["spec"]["devices"] += parts
    return [{"driver": "gpu.nvidia.com", "pool": NODE, "device": part["name"]} for part in parts]


@pytest.mark.parametrize("separate_claims", [True, False], ids=["two claims", "one claim"])
def test_partitions_of_a_gpu_are_separate_flows(separate_claims):
    """Two partitions that send through one NIC get half of it each, whether one or two claims have them."""
    node = NodeWithClaims("hgx-h100")
    gpu, nic = node.pair("PIX")
    claim_for_gpu = node.add_claim({"gpu": gpu, "nic": nic}, name="whole")
    [alone] = predict_claims(node.check()["claims"], {NODE: node.machine})["ml/whole"]
    node.claims.clear()
    parts = publish_partitions(node, gpu, 2)
    nic_results = [
        result for result in claim_for_gpu["status"]["allocation"]["devices"]["results"] if result["request"] == "nic"
    ]
    node.published_device(nic)["allowMultipleAllocations"] = True
    for index, part in enumerate(parts):
        claim = node.add_claim({}, name=f"claim-{index}", requests=claim_for_gpu["spec"]["devices"]["requests"])
        claim["status"]["allocation"]["devices"]["results"] = [{"request": "gpu", **part}, *nic_results]
    if not separate_claims:
        node.claims[0]["status"]["allocation"]["devices"]["results"].append({"request": "gpu", **parts[1]})
        node.claims.pop()
    found = predict_claims(node.check()["claims"], {NODE: node.machine})
    assert {claim: len(flows) for claim, flows in found.items()} == (
        {"ml/claim-0": 1, "ml/claim-1": 1} if separate_claims else {"ml/claim-0": 2}
    )
    for flow in [flow for flows in found.values() for flow in flows]:
        assert (flow["gpu_address"], flow["nic_address"]) == (gpu, nic)
        assert flow["gb_per_s"]["likely"] == pytest.approx(alone["gb_per_s"]["likely"] / 2, abs=0.01)
