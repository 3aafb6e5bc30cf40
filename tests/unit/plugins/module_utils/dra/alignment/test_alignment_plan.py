# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Predictions have ordered bounds. Comparisons name existing devices, and claims that only these devices fit."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment import plan as alignment_plan
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
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.test_alignment import (
    DRIVERS,
    NODE,
    World,
    share_counters,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

H100_GPUS = 8


def at(machine, *levels):
    """The first GPU with a NIC of 400 Gbit/s at one of these levels, and that NIC."""
    for gpu in machine.gpus:
        for nic, fact in machine.nics.items():
            if machine.level(gpu, nic)[0] in levels and fact["speed_mbps"] == 400_000:
                return gpu, nic
    raise KeyError(levels)


def one(machine, pair):
    [found] = predict(machine, [pair])
    return found


def test_an_aligned_flow_is_bound_by_its_nic():
    machine = Machine(facts("hgx-h100"))
    found = one(machine, at(machine, "PIX"))
    rate = machine.nics[found["nic_address"]]["speed_mbps"] / 8000
    assert found["prediction"] is True and found["direct"] is True
    assert found["gb_per_s"]["likely"] == pytest.approx(rate * 0.93, abs=0.02)
    assert found["gb_per_s"]["low"] <= found["gb_per_s"]["likely"] <= found["gb_per_s"]["high"] <= rate


def test_the_published_pairs_lie_in_the_range():
    """DRANET's paper: B200 with 400 Gbit/s NICs, 46.59 GB/s aligned; unaligned 26.7 to 29.2."""
    machine = Machine(facts("hgx-b200"))
    aligned, far = one(machine, at(machine, "PXB")), one(machine, at(machine, "SYS"))
    bounds = aligned["gb_per_s"]
    assert bounds["low"] <= 46.59 <= bounds["high"]
    for measured in (26.7, 29.2):
        assert far["gb_per_s"]["low"] <= measured <= far["gb_per_s"]["high"]
    assert far["direct"] is False and far["limits"]["between sockets"][1] is None


def grace(known, cpu, port):
    """The facts of a GB200 machine that reports a CPU's name and another ID of its root ports, or neither."""
    known["system"]["cpu_model"] = cpu
    for function in known["functions"].values():
        if function["vendor_id"] == "10de" and function["device_id"] == "22b8":
            function["device_id"] = port
    return known


@pytest.mark.parametrize(("cpu", "port"), [(None, "22b8"), ("Neoverse-V2", "22b1"), ("NVIDIA Grace CPU", "22b1")])
def test_the_published_pair_of_gb200_lies_in_the_range(cpu, port):
    """OCI's GB200 with NICs of 400 Gbit/s: 46 GB/s aligned (no pair is nearer than NODE), 25 GB/s unaligned."""
    machine = Machine(grace(facts("gb200"), cpu, port))
    aligned, far = one(machine, at(machine, "NODE")), one(machine, at(machine, "SYS"))
    assert aligned["gb_per_s"]["low"] <= 46 <= aligned["gb_per_s"]["high"] and aligned["direct"] is None
    assert far["gb_per_s"]["low"] <= 25 <= far["gb_per_s"]["high"] < 46 and far["direct"] is False


def test_only_an_nvidia_gpu_on_grace_may_be_direct_beyond_the_host_bridge():
    other = grace(facts("gb200"), None, "22b1")
    machine = Machine(other)
    assert one(machine, at(machine, "NODE"))["direct"] is False
    known = facts("gb200")
    gpu, nic = at(machine, "NODE")
    known["functions"][gpu]["vendor_id"] = "1002"
    assert one(Machine(known), (gpu, nic))["direct"] is False
    machine = Machine(facts("hgx-h100"))
    assert one(machine, at(machine, "NODE"))["direct"] is False


def test_flows_share_the_links_that_they_cross():
    machine = Machine(facts("hgx-h100"))
    gpus = [gpu for gpu in machine.gpus if machine.numa_of(gpu) == 0]
    far = [nic for nic in machine.nics if all(machine.level(gpu, nic)[0] == "SYS" for gpu in gpus)]
    far = [nic for nic in far if machine.nics[nic]["speed_mbps"]]
    assert len(gpus) >= 2 and len(far) >= 2
    alone = one(machine, (gpus[0], far[0]))
    together = predict(machine, [(gpus[0], far[0]), (gpus[1], far[1])])[0]
    shared = predict(machine, [(gpus[0], far[0]), (gpus[1], far[0])])[0]
    half = alone["limits"]["between sockets"][0] / 2
    assert together["limits"]["between sockets"][0] == pytest.approx(half)
    assert shared["limits"]["nic"][0] == pytest.approx(alone["limits"]["nic"][0] / 2, abs=0.01)
    assert together["gb_per_s"]["low"] <= alone["gb_per_s"]["low"]
    assert shared["gb_per_s"]["high"] <= alone["gb_per_s"]["high"]


@pytest.mark.parametrize("name", names())
def test_predictions_have_ordered_bounds_below_the_rate_of_the_nic(name):
    machine = Machine(facts(name))
    pairs = [(gpu, nic) for gpu in machine.gpus for nic in list(machine.nics)[:40]]
    for pair, found in zip(pairs, [one(machine, pair) for pair in pairs]):
        assert found["prediction"] is True and found["level"] == machine.level(*pair)[0]
        bounds = found["gb_per_s"]
        if found["level"] == "UNKNOWN":
            assert bounds is None and found["unknown"]
        elif bounds is None:
            assert found["unknown"]
        else:
            assert 0 < bounds["low"] <= bounds["likely"] <= bounds["high"]
            rate = machine.nics[pair[1]]["speed_mbps"] / 8000
            assert bounds["high"] <= rate * 1.001


def test_the_lowered_link_speed_of_an_idle_gpu_is_not_a_limit():
    """It lowers the speed of its link, which the port above shows too, and raises it when it sends."""
    known = facts("hgx-h100")
    machine = Machine(known)
    gpu, nic = at(machine, "PIX")
    expected = one(machine, (gpu, nic))
    function = known["functions"][gpu]
    ends = [function, known["functions"][function["bridges"][-1]]]
    for end in ends:
        end["link"].update(speed_gts=2.5)
    found = one(Machine(known), (gpu, nic))
    assert found["gb_per_s"] == expected["gb_per_s"] and found["limits"] == expected["limits"]
    assert found["unknown"] == [f"whether the link of {gpu} is slow, or the GPU is idle"] and not expected["unknown"]
    # the slower end of the two decides
    ends[1]["link"]["max_speed_gts"] = 8.0
    assert one(Machine(known), (gpu, nic))["gb_per_s"]["high"] < 16
    # fewer lanes save no power: they are a fault
    ends[1]["link"]["max_speed_gts"] = ends[0]["link"]["max_speed_gts"]
    ends[0]["link"]["width"] = 4
    assert one(Machine(known), (gpu, nic))["gb_per_s"]["high"] < 16
    # NICs do not lower the speed of their links
    ends[0]["link"]["width"] = 16
    known["functions"][nic]["link"]["speed_gts"] = 2.5
    assert one(Machine(known), (gpu, nic))["gb_per_s"]["high"] < 5


def test_vfs_share_the_port_and_the_link_of_their_pf():
    world = World("hgx-h100")
    machine = world.machine
    gpu, pf = at(machine, "PIX")
    other = next(one for one in machine.gpus if one != gpu)
    rate = machine.nics[pf]["speed_mbps"]
    vf = share_counters(world, pf)
    world.facts["functions"][vf] = {**world.facts["functions"][vf], "link": None}
    machine = Machine(world.facts)
    machine.nics[vf] = {**machine.nics[vf], "speed_mbps": rate}
    alone, whole = one(machine, (gpu, vf)), one(machine, (gpu, pf))
    assert alone["limits"] == whole["limits"] and not alone["unknown"]
    together = predict(machine, [(gpu, vf), (other, pf)])[0]
    for name in ("nic", f"link of {pf}"):
        assert together["limits"][name][1] == pytest.approx(alone["limits"][name][1] / 2, abs=0.01)


def test_unknown_values_are_not_predicted():
    known = facts("hgx-h100")
    machine = Machine(known)
    gpu, nic = at(machine, "PIX")
    for entry in known["nics"]:
        entry["speed_mbps"] = None
    found = one(Machine(known), (gpu, nic))
    assert found["gb_per_s"] is None and "the NIC's rate" in found["unknown"]
    assert one(Machine(known), (gpu, "0000:ff:00.0"))["level"] == "UNKNOWN"


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
    known = facts("hgx-h100")
    known["system"]["cpu_model"] = name
    machine = Machine(known)
    assert one(machine, at(machine, "SYS"))["limits"]["between sockets"] == [rate, None]


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


class _Engine:
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
        found = allocate([claim["spec"]], classes, offers(NODE, facts(name), DRIVERS), _Engine())
        assert isinstance(found, Allocation), found
        assert {result.offer.address for result in found.results} == {gpu, plan[part]["address"]}


def test_held_or_tainted_devices_are_not_planned():
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    pools = Pools(world.slices)
    held = {tuple(world.devices()[nic][key] for key in ("driver", "pool", "device"))}
    plan = placements(NODE, world.machine, pools.on(NODE), gpu, held)
    assert plan["nearest"]["address"] != nic
    world.published(plan["nearest"]["address"])["taints"] = [{"key": "x", "effect": "NoSchedule"}]
    other = placements(NODE, world.machine, Pools(world.slices).on(NODE), gpu, held)
    assert other["nearest"]["address"] not in (nic, plan["nearest"]["address"])
    busy = {tuple(world.devices()[gpu][key] for key in ("driver", "pool", "device"))}
    assert "in use" in placements(NODE, world.machine, pools.on(NODE), gpu, busy)["reason"]
    assert "no driver publishes" in placements(NODE, world.machine, [], gpu)["reason"]


def test_devices_that_share_counters_with_a_held_one_are_not_planned():
    world = World("hgx-h100")
    gpu = next(iter(world.machine.gpus))
    before = placements(NODE, world.machine, Pools(world.slices).on(NODE), gpu)["nearest"]["address"]
    vf = share_counters(world, before)
    world.claim({"vf": vf})
    check = Check(world.slices, machines={NODE: world.facts})
    check.run(world.claims)
    machine, published = check.machines[NODE], check.pools.on(NODE)
    assert placements(NODE, machine, published, gpu, check.taken)["nearest"]["address"] not in (before, vf)
    assert placements(NODE, machine, published, gpu, {})["nearest"]["address"] == before


def test_a_gpu_of_which_a_partition_is_held_is_in_use():
    world = World("hgx-h100")
    gpu = next(iter(world.machine.gpus))
    [one] = [one for one in world.slices if one["spec"]["driver"] == "gpu.nvidia.com"]
    one["spec"]["devices"].append({**world.published(gpu), "name": "gpu-0-mig-1g10gb-0"})
    held = {("gpu.nvidia.com", NODE, "gpu-0-mig-1g10gb-0")}
    assert "in use" in placements(NODE, world.machine, Pools(world.slices).on(NODE), gpu, held)["reason"]


def test_predictions_include_nics_in_use():
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    world.claim({"gpu": gpu, "nic": nic})

    def predicted():
        check = Check(world.slices, machines={NODE: world.facts})
        return predict_claims(check.run(world.claims)["claims"], check.machines)["ml/claim"]

    expected = predicted()
    world.move_into_pod(nic)
    assert predicted() == expected and expected[0]["gb_per_s"]["likely"] > 40
    del world.published(nic)["attributes"]["linkSpeedMbps"]
    assert predicted()[0]["gb_per_s"] is None


def test_each_gpu_of_a_claim_sends_through_its_nearest_nic():
    world = World("hgx-h100")
    known = world.devices()
    gpus = [gpu for gpu in world.machine.gpus if gpu in known]
    nics = [next(nic for nic in world.machine.nics if world.machine.level(gpu, nic)[0] == "PIX") for gpu in gpus]
    assert len(set(nics)) == len(gpus) == H100_GPUS
    given = {f"gpu-{index}": gpu for index, gpu in enumerate(gpus)}
    world.claim({**given, **{f"nic-{index}": nic for index, nic in enumerate(nics)}})
    reports = world.check()["claims"]
    predictions = predict_claims(reports, {NODE: world.machine})
    assert list(predictions) == ["ml/claim"]
    found = predictions["ml/claim"]
    assert {(entry["gpu_address"], entry["nic_address"]) for entry in found} == set(zip(gpus, nics))
    assert all(entry["gb_per_s"]["likely"] > 40 for entry in found)
    assert alignment_plan.NIC_SHARE == 0.93


def partitioned(world, gpu, count):
    """Publish partitions of a GPU instead of the whole GPU. Returns them as parts of allocation results."""
    [one] = [one for one in world.slices if one["spec"]["driver"] == "gpu.nvidia.com"]
    whole = world.published(gpu)
    one["spec"]["devices"].remove(whole)
    parts = [{**whole, "name": f"{whole['name']}-mig-{index}"} for index in range(count)]
    one["spec"]["devices"] += parts
    return [{"driver": "gpu.nvidia.com", "pool": NODE, "device": part["name"]} for part in parts]


@pytest.mark.parametrize("apart", [True, False], ids=["claims", "one claim"])
def test_partitions_of_a_gpu_are_separate_flows(apart):
    """Two partitions that send through one NIC get half of it each, whether one or two claims have them."""
    world = World("hgx-h100")
    gpu, nic = world.pair("PIX")
    whole = world.claim({"gpu": gpu, "nic": nic}, name="whole")
    [alone] = predict_claims(world.check()["claims"], {NODE: world.machine})["ml/whole"]
    world.claims.clear()
    parts = partitioned(world, gpu, 2)
    own = [one for one in whole["status"]["allocation"]["devices"]["results"] if one["request"] == "nic"]
    world.published(nic)["allowMultipleAllocations"] = True
    for index, part in enumerate(parts):
        claim = world.claim({}, name=f"claim-{index}", requests=whole["spec"]["devices"]["requests"])
        claim["status"]["allocation"]["devices"]["results"] = [{"request": "gpu", **part}, *own]
    if not apart:
        world.claims[0]["status"]["allocation"]["devices"]["results"].append({"request": "gpu", **parts[1]})
        world.claims.pop()
    found = predict_claims(world.check()["claims"], {NODE: world.machine})
    assert {claim: len(flows) for claim, flows in found.items()} == (
        {"ml/claim-0": 1, "ml/claim-1": 1} if apart else {"ml/claim-0": 2}
    )
    for flow in [flow for flows in found.values() for flow in flows]:
        assert (flow["gpu_address"], flow["nic_address"]) == (gpu, nic)
        assert flow["gb_per_s"]["likely"] == pytest.approx(alone["gb_per_s"]["likely"] / 2, abs=0.01)
