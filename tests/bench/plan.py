# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure planning, against the real scheduler and the real allocator's own code."""

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

MACHINES = ("hgx-h100", "dgx-a100", "hgx-b200", "missing-nic")
DRIVERS = {"gpu.nvidia.com": fleets.OPTIONS["plain"], "lanewise.dev": {}}
ORACLE = Path(__file__).resolve().parents[1] / "oracle" / "allocator"
SEED = 20261124
ROUNDS = 7
REFUSALS = 200
NODES = 100  # in the comparisons with the real scheduler and the real allocator

Figures = t.Iterator[Object]


def objects(count: int, machines: t.Sequence[str] = MACHINES[:1], held: float = 0) -> list[Object]:
    """A cluster with this many nodes. A random fraction `held` of the devices is allocated, so that nearly every
    node is in a different state."""
    generator = random.Random(SEED)
    texts = [json.dumps(slices(offers("NODE", facts(name), DRIVERS))) for name in machines]
    found: list[Object] = list(fleets.CLASSES.values())
    for number in range(count):
        name = f"node-{number:05d}"
        found.append({"kind": "Node", "metadata": {"name": name}, "status": {}})
        published = json.loads(texts[number % len(texts)].replace("NODE", name))
        found += published
        results = [
            {"driver": one["spec"]["driver"], "pool": one["spec"]["pool"]["name"], "device": device["name"]}
            for one in published
            for device in one["spec"].get("devices", ())
            if generator.random() < held
        ]
        for index, result in enumerate(results):
            claim: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            claim["metadata"] = {"name": f"c-{number}-{index}", "namespace": "team"}
            claim["spec"] = {"devices": {}}
            claim["status"] = {"allocation": {"devices": {"results": [{"request": "r", **result}]}}}
            found.append(claim)
    return found


def workload(name: str = "one-pair") -> Workload:
    return Workload(name, (fleets.SPECS[name],))


def plans(trees: Path) -> Figures:
    engine = Engine()
    seconds, counting, total = _fit_of_1000_nodes(engine)
    yield {
        "name": "plan_fit_1000_nodes_s",
        "value": round(seconds, 3),
        "unit": "s",
        "against": f"limit 2 s (measured {seconds:.2f} s of CPU for {total} pairs)",
        "method": "CPU time of checking and reading the objects of 1,000 nodes with 8 GPUs and 8 NICs, all free, and "
        "of counting the pairs; median of 3",
    }
    yield from _against_the_scheduler(counting, seconds, total)
    yield from _against_the_allocator(engine)
    yield from _by_size(engine)
    yield from _half_full(engine)
    yield from _refusals(engine)


def _fit_of_1000_nodes(engine: Engine) -> tuple[float, float, int]:
    """CPU seconds including and excluding reading, and the number of pairs."""
    given = objects(1000)
    times = []
    total = 0
    for _turn in range(3):
        start = time.process_time()
        forms.check(given)
        fleet = reader.read(given)
        after_reading = time.process_time()
        (found,) = fits.fit(fleet, [workload()], engine)
        end = time.process_time()
        times.append((end - start, end - after_reading))
        total = found.total
    return (*sorted(times)[1], total)


def _against_the_scheduler(seconds: float, with_reading: float, total: int) -> Figures:
    """Pairs that the real scheduler binds per second on 100 such nodes, and pairs that we count per CPU second,
    excluding and including reading."""
    try:
        plane = ControlPlane()
    except Missing as missing:
        print(f"plan_fit_vs_scheduler left out: {missing}", file=sys.stderr)
        return
    with plane:
        plane.add_namespace(fleets.NAMESPACE)
        for one in fleets.CLASSES.values():
            plane.expect("POST", f"{fleets.RESOURCE}/deviceclasses", one)
        site = fleets.Site.__new__(fleets.Site)
        site.plane, site.name, site.started, site.spreads, site.zone = plane, "bench", 0, False, ""
        site.tolerates = False
        published = slices(offers("NODE", facts(MACHINES[0]), DRIVERS))
        for number in range(NODES):
            name = f"bench-{number:03d}"
            plane.add_node(name, {"fleet": "bench"})
            for one in json.loads(json.dumps(published).replace("NODE", name)):
                plane.expect("POST", f"{fleets.RESOURCE}/resourceslices", one)
        pods = 8 * NODES // 4
        start, cpu_before = time.perf_counter(), _scheduler_cpu_seconds(plane)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _turn: site.start("one-pair"), range(pods)))
        bound, _waiting = site.wait_decided()
        per_wall_second = len(bound) / (time.perf_counter() - start)
        theirs = len(bound) / (_scheduler_cpu_seconds(plane) - cpu_before)
        version = plane.version
    ours = total / seconds
    yield {
        "name": "plan_fit_vs_scheduler",
        "value": round(ours / theirs),
        "unit": "ratio",
        "against": f"kube-scheduler {version}, {theirs:.0f} pairs bound per second of its CPU time, "
        f"{per_wall_second:.0f} per second of wall time (ours {ours:.0f} pairs counted per second of CPU time)",
        "method": f"ours on 1,000 identical nodes, already read ({total / with_reading / theirs:.0f} with reading), "
        f"theirs {len(bound)} pods on {NODES} nodes with the API server on loopback; same run",
    }


def _scheduler_cpu_seconds(plane: ControlPlane) -> float:
    """The CPU time of the scheduler so far."""
    tasks = Path(f"/proc/{plane.pids['kube-scheduler']}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _against_the_allocator(engine: Engine) -> Figures:
    """Ask both the same questions in turns: each node is in a different state, and its pairs are placed one by one."""
    if shutil.which("go") is None:
        print("plan_fit_vs_allocator left out: no Go toolchain", file=sys.stderr)
        return
    given = objects(NODES, held=0.3)
    fleet = reader.read(given)
    states = States(fleet, [workload()], engine)
    distinct = len({states.key(node) for node in fleet.nodes.values()})
    (found,) = fits.fit(fleet, [workload()], engine)
    questions = list(_questions(fleet, found))
    our_times, their_times = [], []
    with Program(ORACLE) as oracle:
        for _turn in range(ROUNDS):
            fresh = reader.read(given)
            start = time.process_time()
            states = States(fresh, [workload()], engine)
            for node in fresh.nodes.values():
                states.of(node, workload()).count_up_to(MAX_PLACEMENTS)
            our_times.append(time.process_time() - start)
            answers = [oracle.ask(one) for one in questions]
            their_times.append(sum(one["nanoseconds"] for one in answers) / 1e9)
            refused = sum(not one.get("results") for one in answers)
            assert refused == len(fleet.nodes), (refused, len(fleet.nodes))
    ours, theirs = statistics.median(our_times), statistics.median(their_times)
    yield {
        "name": "plan_fit_vs_allocator",
        "value": round(ours / theirs, 2),
        "unit": "ratio",
        "against": f"k8s.io/dynamic-resource-allocation/structured in its own process, {theirs * 1000:.0f} ms of CPU "
        f"time of the thread that allocates, after decoding (ours {ours * 1000:.0f} ms); limit 4",
        "method": f"{found.total} pairs and {NODES} refusals on {NODES} nodes, {distinct} of them in different states, "
        f"all of one type of machine; objects already read; ours includes the reasons of refusals; median of {ROUNDS} "
        "rounds",
    }


def _questions(fleet: Fleet, found: fits.Fit) -> t.Iterator[Object]:
    classes = {name: one["spec"] for name, one in fleet.classes.items()}
    for node in fleet.nodes.values():
        published = [{**one["spec"], "nodeName": "node"} for one in slices(node.offers)]
        by_name = {f"{o.driver}/{o.pool}/{o.device['name']}": o for o in node.offers}
        held = [one.result for one in node.held]
        for names in [*found.nodes[node.name].placements, ()]:
            yield {
                "claims": [fleets.SPECS["one-pair"]],
                "classes": classes,
                "slices": published,
                "milliseconds": 10_000,
                "held": [
                    {"request": "r", "driver": o.driver, "pool": o.pool, "device": o.device["name"]}
                    for o in (one.offer for one in held)
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
    given = objects(5000, MACHINES, held=0.5)
    works = [workload()]
    start = time.process_time()
    forms.check(given)
    fleet = reader.read(given)
    states = States(fleet, works, engine)
    (found,) = fits.fit(fleet, works, engine, states)
    lost = stranded(fleet, works, engine, states)
    names = list(fleet.nodes)[:500]
    (after_drain,) = fits.fit(after(fleet, [{"drain": {"nodes": names}}]), works, engine, states)
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield {
        "name": "plan_5000_nodes_s",
        "value": round(seconds, 1),
        "unit": "s",
        "against": f"limits 60 s and 1.86 GiB (peak {memory:.2f} GiB, including the benchmarks before)",
        "method": f"CPU time of checking, reading, counting ({found.total} pairs still fit), finding {len(lost)} "
        f"stranded devices and counting again after 500 nodes are drained ({after_drain.total}); {len(MACHINES)} types "
        "of machines, half of the devices in use at random",
    }


def _refusals(engine: Engine) -> Figures:
    """The CPU time of the slowest refusal of random pods that are hard to refuse, including the diagnosis."""
    refusals = HardRefusals(SEED, engine)
    times: list[tuple[float, str]] = []
    last = 0.0

    def timed(place: t.Callable[[], t.Any]) -> t.Any:
        nonlocal last
        start = time.thread_time()
        result = place()
        last = time.thread_time() - start
        return result

    for _turn in range(REFUSALS):
        asked, _refusal = refusals.refusal(timed)
        times.append((last, asked))
    slowest, asked = max(times)
    median = statistics.median(one for one, _asked in times)
    yield {
        "name": "plan_refusal_ms",
        "value": round(slowest * 1000),
        "unit": "ms",
        "against": f"limit 200 ms (median {median * 1000:.1f} ms)",
        "method": f"CPU time of the slowest of {REFUSALS} refusals with their diagnosis: random pods with one to three "
        f"claims on partly used random machines; the slowest was {asked}",
    }
