# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure planning. It is compared with the real scheduler, and with the code of its allocator."""

from __future__ import annotations

import json
import random
import resource
import shutil
import statistics
import sys
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import forms, reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.states import MAX_PLACEMENTS, States
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster import fleets
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.hard_refusals import HardRefusals
from ansible_collections.lanewise.dra.tests.oracle.program import Program
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

from tests.bench.figures import Figures, scheduler_cpu_seconds

MACHINES = ("hgx-h100", "dgx-a100", "hgx-b200", "missing-nic")
DRIVERS = {"gpu.nvidia.com": fleets.OPTIONS["plain"], "lanewise.dev": {}}
ALLOCATOR = Path(__file__).resolve().parents[1] / "oracle" / "allocator"
SEED = 20261124
ROUNDS = 7
REFUSALS = 200
NODES = 100  # in the comparisons with the scheduler and its allocator


def objects(count: int, machines: t.Sequence[str] = MACHINES[:1], held: float = 0) -> list[Object]:
    """The objects of a cluster with this many nodes.

    A random fraction `held` of the devices is allocated, so that nearly every node is in a different state.
    """
    rng = random.Random(SEED)
    slices_of_machines = [json.dumps(slices(offers("NODE", facts(name), DRIVERS))) for name in machines]
    cluster: list[Object] = list(fleets.CLASSES.values())
    for number in range(count):
        name = f"node-{number:05d}"
        cluster.append({"kind": "Node", "metadata": {"name": name}, "status": {}})
        published = json.loads(slices_of_machines[number % len(machines)].replace("NODE", name))
        cluster += published
        results = [
            {"driver": item["spec"]["driver"], "pool": item["spec"]["pool"]["name"], "device": device["name"]}
            for item in published
            for device in item["spec"].get("devices", ())
            if rng.random() < held
        ]
        for index, result in enumerate(results):
            claim: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            claim["metadata"] = {"name": f"c-{number}-{index}", "namespace": "team"}
            claim["spec"] = {"devices": {}}
            claim["status"] = {"allocation": {"devices": {"results": [{"request": "r", **result}]}}}
            cluster.append(claim)
    return cluster


def workload(name: str = "one-pair") -> Workload:
    return Workload(name, (fleets.SPECS[name],))


def plans(trees: Path) -> Figures:
    engine = Engine()
    seconds, counting_seconds, total = _fit_of_1000_nodes(engine)
    yield {
        "name": "plan_fit_1000_nodes_s",
        "value": round(seconds, 3),
        "unit": "s",
        "against": f"limit 2 s (measured {seconds:.2f} s of CPU for {total} pairs)",
        "method": "CPU time of checking and reading the objects of 1,000 nodes with 8 GPUs and 8 NICs, all free, and "
        "of counting the pairs; median of 3",
    }
    yield from _against_the_scheduler(counting_seconds, seconds, total)
    yield from _against_the_allocator(engine)
    yield from _by_size(engine)
    yield from _half_full(engine)
    yield from _refusals(engine)


def _fit_of_1000_nodes(engine: Engine) -> tuple[float, float, int]:
    """CPU seconds including and excluding reading, and the number of pairs."""
    cluster = objects(1000)
    times = []
    total = 0
    for _round in range(3):
        start = time.process_time()
        forms.check(cluster)
        fleet = reader.read(cluster)
        after_reading = time.process_time()
        (fit,) = fits.fit(fleet, [workload()], engine)
        end = time.process_time()
        times.append((end - start, end - after_reading))
        total = fit.total
    return (*sorted(times)[1], total)


def _against_the_scheduler(seconds: float, seconds_with_reading: float, total: int) -> Figures:
    """Pairs that the real scheduler binds per second on 100 such nodes, and pairs that we count per CPU second,
    excluding and including reading."""
    try:
        plane = ControlPlane()
    except Missing as missing:
        print(f"plan_fit_vs_scheduler left out: {missing}", file=sys.stderr)
        return
    with plane:
        plane.add_namespace(fleets.NAMESPACE)
        for device_class in fleets.CLASSES.values():
            plane.expect("POST", f"{fleets.RESOURCE}/deviceclasses", device_class)
        site = fleets.Site.__new__(fleets.Site)  # without the random nodes that its constructor creates
        site.plane, site.name, site.started, site.spreads, site.zone = plane, "bench", 0, False, ""
        site.tolerates = False
        published = slices(offers("NODE", facts(MACHINES[0]), DRIVERS))
        for number in range(NODES):
            name = f"bench-{number:03d}"
            plane.add_node(name, {"fleet": "bench"})
            for item in json.loads(json.dumps(published).replace("NODE", name)):
                plane.expect("POST", f"{fleets.RESOURCE}/resourceslices", item)
        pods = 8 * NODES // 4
        start, cpu_before = time.perf_counter(), scheduler_cpu_seconds(plane)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _pod: site.start("one-pair"), range(pods)))
        bound, _waiting = site.wait_decided()
        per_wall_second = len(bound) / (time.perf_counter() - start)
        bound_per_second = len(bound) / (scheduler_cpu_seconds(plane) - cpu_before)
        version = plane.version
    counted_per_second = total / seconds
    with_reading = total / seconds_with_reading / bound_per_second
    yield {
        "name": "plan_fit_vs_scheduler",
        "value": round(counted_per_second / bound_per_second),
        "unit": "ratio",
        "against": f"kube-scheduler {version}, {bound_per_second:.0f} pairs bound per second of its CPU time, "
        f"{per_wall_second:.0f} per second of wall time "
        f"(ours {counted_per_second:.0f} pairs counted per second of CPU time)",
        "method": f"ours on 1,000 identical nodes, already read ({with_reading:.0f} with reading), "
        f"the scheduler with {len(bound)} pods on {NODES} nodes and the API server on loopback; same run",
    }


def _against_the_allocator(engine: Engine) -> Figures:
    """Compare counting the pairs of nodes, each in a different state, with the allocator placing them one by one."""
    if shutil.which("go") is None:
        print("plan_fit_vs_allocator left out: no Go toolchain", file=sys.stderr)
        return
    cluster = objects(NODES, held=0.3)
    fleet = reader.read(cluster)
    states = States(fleet, [workload()], engine)
    distinct = len({states.key(node) for node in fleet.nodes.values()})
    (fit,) = fits.fit(fleet, [workload()], engine)
    questions = list(_questions(fleet, fit))
    plan_times, allocator_times = [], []
    with Program(ALLOCATOR) as allocator:
        for _round in range(ROUNDS):
            new_fleet = reader.read(cluster)
            start = time.process_time()
            states = States(new_fleet, [workload()], engine)
            for node in new_fleet.nodes.values():
                states.state_of(node, workload()).count_up_to(MAX_PLACEMENTS)
            plan_times.append(time.process_time() - start)
            answers = [allocator.ask(question) for question in questions]
            allocator_times.append(sum(answer["nanoseconds"] for answer in answers) / 1e9)
            refused = sum(not answer.get("results") for answer in answers)
            assert refused == len(fleet.nodes), (refused, len(fleet.nodes))
    plan_time, allocator_time = statistics.median(plan_times), statistics.median(allocator_times)
    yield {
        "name": "plan_fit_vs_allocator",
        "value": round(plan_time / allocator_time, 2),
        "unit": "ratio",
        "against": f"k8s.io/dynamic-resource-allocation/structured in its own process, {allocator_time * 1000:.0f} ms "
        f"of CPU time of the thread that allocates, after decoding (ours {plan_time * 1000:.0f} ms); limit 4",
        "method": f"{fit.total} pairs and {NODES} refusals on {NODES} nodes, {distinct} of them in different states, "
        f"all of one type of machine; objects already read; ours includes the reasons of refusals; median of {ROUNDS} "
        "rounds",
    }


def _questions(fleet: Fleet, fit: fits.Fit) -> t.Iterator[Object]:
    """What the allocator is asked for each node: to place each pair that fits, then one that no longer fits."""
    classes = {name: device_class["spec"] for name, device_class in fleet.classes.items()}
    for node in fleet.nodes.values():
        published = [{**item["spec"], "nodeName": "node"} for item in slices(node.offers)]
        by_name = {f"{offer.driver}/{offer.pool}/{offer.device['name']}": offer for offer in node.offers}
        held = [allocated.result for allocated in node.held]
        for names in [*fit.nodes[node.name].placements, ()]:
            yield {
                "claims": [fleets.SPECS["one-pair"]],
                "classes": classes,
                "slices": published,
                "milliseconds": 10_000,
                "held": [
                    {"request": "r", "driver": offer.driver, "pool": offer.pool, "device": offer.device["name"]}
                    for offer in (result.offer for result in held)
                ],
            }
            held += [Result(0, "r", by_name[name]) for name in names]


def _by_size(engine: Engine) -> Figures:
    """CPU time per node, each in a different state, for three sizes of fleets."""
    ms_per_node = {}
    for count in (100, 1000, 10_000):
        fleet = reader.read(objects(count, held=0.5))
        start = time.process_time()
        fits.fit(fleet, [workload()], engine)
        ms_per_node[count] = (time.process_time() - start) / count * 1000
    yield {
        "name": "plan_ms_per_state_10000",
        "value": round(ms_per_node[10_000], 2),
        "unit": "ms",
        "against": f"with 100 nodes, {ms_per_node[100]:.2f} ms, and with 1,000, {ms_per_node[1000]:.2f} ms",
        "method": "CPU time of counting aligned pairs, divided by the number of nodes; half of the devices are in use, "
        "at random",
    }


def _half_full(engine: Engine) -> Figures:
    cluster = objects(5000, MACHINES, held=0.5)
    workloads = [workload()]
    start = time.process_time()
    forms.check(cluster)
    fleet = reader.read(cluster)
    states = States(fleet, workloads, engine)
    (fit,) = fits.fit(fleet, workloads, engine, states)
    stranded_devices = stranded(fleet, workloads, engine, states)
    names = list(fleet.nodes)[:500]
    (after_drain,) = fits.fit(after(fleet, [{"drain": {"nodes": names}}]), workloads, engine, states)
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield {
        "name": "plan_5000_nodes_s",
        "value": round(seconds, 1),
        "unit": "s",
        "against": f"limits 60 s and 1.86 GiB (peak {memory:.2f} GiB, including the benchmarks before)",
        "method": f"CPU time of checking, reading, counting ({fit.total} pairs still fit), finding "
        f"{len(stranded_devices)} stranded devices and counting again after 500 nodes are drained "
        f"({after_drain.total}); {len(MACHINES)} types of machines, half of the devices in use at random",
    }


def _refusals(engine: Engine) -> Figures:
    """The CPU time of the slowest of random refusals that need a long search, including the diagnosis."""
    refusals = HardRefusals(SEED, engine)
    times: list[tuple[float, str]] = []
    last = 0.0

    def timed(place: t.Callable[[], t.Any]) -> t.Any:
        nonlocal last
        start = time.thread_time()
        result = place()
        last = time.thread_time() - start
        return result

    for _refusal in range(REFUSALS):
        pod, _reason = refusals.refusal(timed)
        times.append((last, pod))
    slowest, slowest_pod = max(times)
    median = statistics.median(seconds for seconds, _pod in times)
    yield {
        "name": "plan_refusal_ms",
        "value": round(slowest * 1000),
        "unit": "ms",
        "against": f"limit 200 ms (median {median * 1000:.1f} ms)",
        "method": f"CPU time of the slowest of {REFUSALS} refusals with their diagnosis: random pods with one to three "
        f"claims on partly used random machines; the slowest was {slowest_pod}",
    }
