# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the collection. Each figure is compared with another program, a lower bound or a limit, in the same run.

Prints a table and writes docs/bench/latest.jsonl, one object a line: name, value, unit, against, method, date.
Needs lstopo (Debian: hwloc-nox) for the comparison with hwloc; without it that figure is left out, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import keep_relevant, probe
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import Request, Site
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from environment import Missing  # the import above has added tools/ to sys.path

from tests.bench.boards import board_pairs
from tests.bench.driver import driver
from tests.bench.fabric import fabric
from tests.bench.plan import plans
from tests.bench.queues import queues
from tests.bench.replay import replays
from tests.bench.site import site_of_many_hosts
from tests.bench.swaps import swaps
from tests.machines import description
from tests.machines.builder import build, synthetic

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "docs" / "bench" / "latest.jsonl"


def _cpu_seconds() -> float:
    """CPU seconds of this process and of all children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _interleaved(
    rounds: int, burst: int = 1, clock: t.Callable[[], float] = time.perf_counter, **actions: t.Callable[[], object]
) -> dict[str, float]:
    """The median seconds of each action, run in turns so that noise affects all equally. A first round is not counted.

    In each turn the action runs `burst` times and the fastest run counts, so that caches that another action left cold
    do not matter.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            burst_seconds = []
            for _repeat in range(burst):
                start = clock()
                action()
                burst_seconds.append(clock() - start)
            if turn:
                times[name].append(min(burst_seconds))
    return {name: statistics.median(values) for name, values in times.items()}


def probe_against_lstopo(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    lstopo = shutil.which("lstopo-no-graphics")
    if lstopo is None:
        print("probe_in_process_vs_lstopo left out: no lstopo-no-graphics (install hwloc-nox)", file=sys.stderr)
        return
    root = build(synthetic(137, pairs=2), trees / "synthetic-137")
    environment = {
        **os.environ,
        "HWLOC_FSROOT": str(root),
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_DUMPED_HWDATA_DIR": "/var/run/hwloc",
        "LC_ALL": "C",
    }
    command = [lstopo, "--of", "xml", "--whole-io"]
    seconds = _interleaved(
        15,
        burst=3,
        clock=_cpu_seconds,
        probe=lambda: probe(str(root), only_relevant=True, diagnose=diagnose),
        lstopo=lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL),
    )
    yield {
        "name": "probe_in_process_vs_lstopo",
        "value": round(seconds["probe"] / seconds["lstopo"], 3),
        "unit": "ratio",
        "against": f"a whole lstopo run, {seconds['lstopo'] * 1000:.1f} ms (probe {seconds['probe'] * 1000:.1f} ms)",
        "method": "CPU time; a two-socket tree of 137 PCI functions, most of them the CPUs', 15 interleaved rounds of "
        "3, medians of the fastest; read as the module reads it by default",
    }


def cost_per_function(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    roots = {size: str(build(synthetic(size), trees / f"synthetic-{size}")) for size in (10, 100, 1000, 5000)}
    baseline = {
        size: _interleaved(3, read=lambda root=root: _read_class_files(root))["read"] for size, root in roots.items()
    }
    for size, root in roots.items():
        seconds = _interleaved(3, probe=lambda root=root: probe(root, diagnose=diagnose))["probe"]
        yield {
            "name": f"probe_us_per_function_{size}",
            "value": round(seconds / size * 1e6, 1),
            "unit": "us",
            "against": f"reading each function's class file alone, {baseline[size] / size * 1e6:.1f} us a function "
            f"(ratio {seconds / baseline[size]:.1f})",
            "method": "whole probe in process, median of 3, divided by the PCI functions of the tree",
        }


def _read_class_files(root: str) -> None:
    folder = f"{root}/sys/bus/pci/devices"
    for name in os.listdir(folder):
        with open(f"{folder}/{name}/class", "rb") as file:
            file.read()


def module_against_ping(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    root = build(synthetic(137, pairs=2), trees / "synthetic-137")
    playbook = shutil.which("ansible-playbook")
    if playbook is None:
        print("topology_info_vs_ping left out: no ansible-playbook on the path", file=sys.stderr)
        return
    count = 20
    with tempfile.TemporaryDirectory() as folder:
        plays = {}
        for name, task in {
            "nothing": None,
            "ping": {"ansible.builtin.ping": {}},
            "topology_info": {"lanewise.dra.topology_info": {"root": str(root)}},
        }.items():
            path = Path(folder) / f"{name}.yml"
            tasks = [task] * count if task else []
            path.write_text(
                json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]), encoding="utf-8"
            )
            plays[name] = [playbook, "-i", "localhost,", "-c", "local", str(path)]
        environment = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_PYTHON_INTERPRETER": sys.executable}

        def run(command: list[str]) -> t.Callable[[], object]:
            return lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        runs = {name: run(command) for name, command in plays.items()}
        seconds = _interleaved(3, clock=_cpu_seconds, **runs)
    ping = (seconds["ping"] - seconds["nothing"]) / count
    module = (seconds["topology_info"] - seconds["nothing"]) / count
    yield {
        "name": "topology_info_vs_ping",
        "value": round(module / ping, 3),
        "unit": "ratio",
        "against": f"ansible.builtin.ping, {ping * 1000:.0f} ms a task (topology_info {module * 1000:.0f} ms)",
        "method": f"CPU time; {count} tasks on the local connection less an empty play, a tree of 137 PCI functions, "
        "3 interleaved rounds, medians",
    }


def probe_of_each_machine(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    lstopo = shutil.which("lstopo-no-graphics")
    if lstopo is None:
        return
    ratios = {}
    for name in description.names():
        root = str(build(name, trees / name))
        environment = {**os.environ, "HWLOC_FSROOT": root, "HWLOC_COMPONENTS": "linux,stop", "LC_ALL": "C"}
        seconds = _interleaved(
            5,
            burst=3,
            clock=_cpu_seconds,
            probe=lambda root=root: probe(root, only_relevant=True, diagnose=diagnose),
            lstopo=lambda environment=environment: subprocess.run(
                [lstopo, "--of", "xml", "--whole-io"],
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ),
        )
        ratios[name] = seconds["probe"] / seconds["lstopo"]
    yield {
        "name": "probe_in_process_vs_lstopo_machines",
        "value": round(statistics.median(ratios.values()), 3),
        "unit": "ratio",
        "against": "a whole lstopo run on each example machine: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda item: item[1])),
        "method": "CPU time; median of the machines; each 5 interleaved rounds of 3, medians of the fastest. "
        "lstopo reads neither SR-IOV, ACS, VPD nor IOMMU groups",
    }


def _hosts(trees: Path, count: int) -> tuple[list[dict[str, t.Any]], dict[str, dict[str, t.Any]]]:
    """The facts of each example machine, and of a site of `count` such machines, each with other GUIDs."""
    facts = []
    for name in description.names():
        topology = probe(str(build(name, trees / name)), diagnose=diagnose)
        keep_relevant(topology)
        facts.append(as_dict(topology))
    hosts = {}
    for number in range(count):
        copy = json.loads(json.dumps(facts[number % len(facts)]))
        for device in copy["rdma_devices"]:
            device["node_guid"] = f"{number:04x}:{device['node_guid'] or ''}"
        hosts[f"node-{number:04d}"] = copy
    return facts, hosts


def report_of_a_large_site(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    count = 1000
    facts, hosts = _hosts(trees, count)
    templates = str(REPOSITORY / "roles" / "topology" / "templates" / "report")
    request = Request(facts=hosts, play=set(hosts), inventory=set(hosts), now="2026-01-01T00:00:00Z")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for host, host_facts in hosts.items():
            Path(folder, f"{host}.json").write_text(json.dumps(host_facts), encoding="utf-8")
        baseline = time.perf_counter() - start
        for name in ("new", "unchanged"):
            start = time.perf_counter()
            Site(f"{folder}/report", Pages([templates], "Site"), "Site").update(request)
            seconds = time.perf_counter() - start
            yield {
                "name": f"site_report_1000_nodes_{name}",
                "value": round(seconds, 1),
                "unit": "s",
                "against": f"writing the same facts as {count} JSON files, {baseline:.1f} s "
                f"(ratio {seconds / baseline:.1f})",
                "method": f"{count} nodes of {len(facts)} shapes, rendering and files, one run",
            }
        size = Path(folder, "report", "index.html").stat().st_size
        facts_size = sum(len(json.dumps(host_facts)) for host_facts in hosts.values())
        yield {
            "name": "site_report_1000_nodes_index",
            "value": round(size / 1e6, 2),
            "unit": "MB",
            "against": f"the facts of all nodes, {facts_size / 1e6:.0f} MB as JSON",
            "method": "size of index.html",
        }


def _timed(action: t.Callable[[], t.Any]) -> tuple[t.Any, float, float]:
    """The result of an action, its wall-clock seconds and its CPU seconds. Other work hardly affects the latter."""
    start, cpu_start = time.perf_counter(), time.process_time()
    result = action()
    return result, time.perf_counter() - start, time.process_time() - cpu_start


def claims_of_a_large_site(trees: Path) -> t.Iterator[dict[str, t.Any]]:
    """Compile and check 1,000 templates and try them on 1,000 nodes, compared with a server-side dry run."""
    count = 1000
    hosts = _hosts(trees, count)[1]
    templates = [
        {
            "name": f"claim-{number:04d}",
            "namespace": "bench",
            "groups": [
                {
                    "count": 1 + number % 4,
                    "align": (["pcie_root", "numa_node", "any"], ["pcie_root"], ["numa_node"])[number % 3],
                    "devices": [
                        {"name": "gpu", "kind": "gpu"},
                        {"name": "nic", "kind": "rdma", "where": {"min_speed": f"{100 + number}M"}},
                    ],
                }
            ],
        }
        for number in range(count)
    ]
    drivers = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
    variables = {"dra_claims_drivers": drivers, "dra_claims_templates": templates}
    site, *with_nodes = _timed(lambda: compile_site(variables, hosts))
    _site, *without_nodes = _timed(lambda: compile_site(variables))
    engine = Engine()
    problems, *checks = _timed(lambda: [problem for item in site.objects for problem in validate(item, cel=engine)])
    assert not problems
    try:
        plane = ControlPlane(scheduler=False, controller_manager=False)
    except Missing as missing:
        print(f"claims_1000_vs_server_dry_run left out: {missing}", file=sys.stderr)
        return
    with plane:
        plane.add_namespace("bench")
        start = time.perf_counter()
        for item in site.objects:
            path = "deviceclasses" if item["kind"] == "DeviceClass" else "namespaces/bench/resourceclaimtemplates"
            plane.expect("POST", f"/apis/resource.k8s.io/v1/{path}?dryRun=All&fieldValidation=Strict", item)
        server_seconds = time.perf_counter() - start
    ms_per_object = server_seconds / len(site.objects) * 1000
    against = f"a server-side dry run of the same {len(site.objects)} objects, {ms_per_object:.2f} ms each"
    method = f"{count} different templates of 2 to 8 devices, one process, one run; the server on loopback, one client"
    for name, (seconds, cpu_seconds), work in (
        ("claims_1000_validate", checks, "the offline check alone, with CEL"),
        ("claims_1000_compile", without_nodes, "compiled and checked, without nodes"),
        ("claims_1000_compile_1000_nodes", with_nodes, f"compiled, checked and tried on {count} nodes of 13 shapes"),
    ):
        yield {
            "name": f"{name}_vs_server_dry_run",
            "value": round(seconds / server_seconds, 3),
            "unit": "ratio",
            "against": f"{against} (ours {seconds / count * 1000:.2f} ms a template, {seconds:.1f} s in all, "
            f"{cpu_seconds:.1f} s of CPU)",
            "method": f"{work}; {method}",
        }


BENCHMARKS = (
    claims_of_a_large_site,
    probe_against_lstopo,
    probe_of_each_machine,
    cost_per_function,
    module_against_ping,
    report_of_a_large_site,
    board_pairs,
    driver,
    fabric,
    site_of_many_hosts,
    plans,
    queues,
    swaps,
    replays,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--trees", type=Path, help="where to keep the generated trees (default: a temporary folder)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    names = [benchmark.__name__ for benchmark in BENCHMARKS]
    parser.add_argument("--only", choices=names, help="measure only this part, and keep the other lines of the output")
    arguments = parser.parse_args()
    # with this variable Python reads pipelined modules byte by byte: 0.4 ms more of CPU time for each KiB
    os.environ.pop("PYTHONUNBUFFERED", None)
    today = datetime.date.today().isoformat()
    figures: dict[str, dict[str, t.Any]] = {}
    if arguments.only and arguments.output.exists():
        kept = [json.loads(line) for line in arguments.output.read_text(encoding="utf-8").splitlines()]
        figures = {figure["name"]: figure for figure in kept}
    with contextlib.ExitStack() as stack:
        trees = arguments.trees or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for benchmark in BENCHMARKS:
            if arguments.only not in (None, benchmark.__name__):
                continue
            for figure in benchmark(trees):
                figure["date"] = today
                figures[figure["name"]] = figure
                print(
                    f"{figure['name']:32} {figure['value']:>9} {figure['unit']:6} against {figure['against']}",
                    flush=True,
                )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("".join(json.dumps(figure) + "\n" for figure in figures.values()), encoding="utf-8")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
