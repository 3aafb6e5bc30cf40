# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the CPU time of a run of the role fabric that finds nothing to change, against ping and stock modules."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe

from tests.bench.figures import Figures
from tests.machines.builder import build

MACHINE = "hgx-h100"
ROUNDS = {10: 3, 100: 1}
FORKS = 10


def _children_seconds() -> float:
    """CPU seconds of all descendants of this process that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fabric(trees: Path) -> Figures:
    playbook = shutil.which("ansible-playbook")
    if playbook is None:
        print("fabric_noop left out: no ansible-playbook on the path", file=sys.stderr)
        return
    root = build(MACHINE, trees / f"fabric-{MACHINE}")
    facts = as_dict(probe(str(root)))
    rails = [nic for nic in facts["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plays = _plays(root, facts, rails, folder)
        for play, tasks in plays.items():
            (folder / f"{play}.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))

        def run(play: str, hosts: int, *options: str) -> str:
            return _run(playbook, folder / f"{play}.yml", hosts, options)

        round_trips = {play: len(re.findall(r"^<node-0> EXEC ", run(play, 1, "-vvv"), re.MULTILINE)) for play in plays}
        yield {
            "name": "fabric_noop_round_trips",
            "value": round_trips["fabric"],
            "unit": "commands",
            "against": f"ansible.builtin.ping, {round_trips['ping']} "
            f"(the same read by stock modules: {round_trips['stock']})",
            "method": "commands that the connection plugin runs for the whole role on one host, pipelining on; a tree "
            f"of an HGX H100 with {len(rails)} rails, number of VFs and MTU of each",
        }
        for hosts, rounds in ROUNDS.items():
            yield from _cpu_time_ratios(list(plays), hosts, rounds, run)


def _plays(root: Path, facts: dict[str, t.Any], rails: list[dict[str, t.Any]], folder: Path) -> dict[str, t.Any]:
    """The tasks of each play: none, ping, the role, and stock modules that read the same. No task changes anything."""
    vf_counts = [f"{root}/sys/bus/pci/devices/{nic['address']}/sriov_numvfs" for nic in rails]
    interfaces = {interface["name"]: interface for interface in facts["interfaces"]}
    mtus = {interfaces[nic["interfaces"][0]]["mtu"] for nic in rails}
    rule = {"name": "rails", "select": {"near_gpu": "PIX"}, "count": len(rails), "num_vfs": 0, "mtu": max(mtus)}
    content = "net.core.rmem_max=1\n"
    copy = {"content": content, "dest": str(folder / "{{ inventory_hostname }}.conf"), "mode": "0644"}
    for number in range(max(ROUNDS)):  # the files that the copy task would write
        (folder / f"node-{number}.conf").write_text(content)
        (folder / f"node-{number}.conf").chmod(0o644)
    files = [*vf_counts, *(f"{root}/sys/class/net/{nic['interfaces'][0]}/mtu" for nic in rails)]
    role = {"name": "lanewise.dra.fabric"}
    variables = {"fabric_root": str(root), "fabric_nics": [rule], "fabric_persist": False}
    return {
        "nothing": [],
        "ping": [{"ansible.builtin.ping": {}}],
        "fabric": [{"ansible.builtin.import_role": role, "vars": variables}],
        "stock": [{"ansible.builtin.slurp": {"src": "{{ item }}"}, "loop": files}, {"ansible.builtin.copy": copy}],
    }


def _run(playbook: str, play: Path, hosts: int, options: t.Sequence[str]) -> str:
    """Run a play and return its output. Raises AssertionError if a task changed something."""
    environment = {
        **os.environ,
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_FORKS": str(FORKS),
    }
    inventory = ",".join(f"node-{number}" for number in range(hosts)) + ","
    command = [playbook, "-i", inventory, "-c", "local", str(play), *options]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    if "changed=1" in done.stdout:
        raise AssertionError(f"a play that should find nothing to change did change something: {done.stdout}")
    return done.stdout


def _cpu_time_ratios(plays: list[str], hosts: int, rounds: int, run: t.Callable[[str, int], str]) -> Figures:
    """The CPU time of the role divided by that of ping and of stock modules, all less an empty play."""
    seconds: dict[str, list[float]] = {play: [] for play in plays}
    for _round in range(rounds):
        for play in plays:
            start = _children_seconds()
            run(play, hosts)
            seconds[play].append(_children_seconds() - start)
    medians = {play: statistics.median(values) for play, values in seconds.items()}
    ms = {play: (value - medians["nothing"]) / hosts * 1000 for play, value in medians.items()}
    for play, description in (
        ("ping", "ansible.builtin.ping"),
        ("stock", "the same read by slurp in a loop and one copy"),
    ):
        yield {
            "name": f"fabric_noop_{hosts}_hosts_vs_{play}",
            "value": round(ms["fabric"] / ms[play], 3),
            "unit": "ratio",
            "against": f"{description}, {ms[play]:.0f} ms a host (the role {ms['fabric']:.0f} ms)",
            "method": f"CPU time of all processes; {hosts} hosts on the local connection, {FORKS} forks, less "
            f"an empty play; {rounds} interleaved rounds, medians; load {os.getloadavg()[0]:.0f} on "
            f"{os.cpu_count()} CPUs at the end",
        }
