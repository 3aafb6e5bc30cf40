# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure a run of the role fabric that finds nothing to change against ping and stock modules, by CPU time."""

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

from tests.machines.builder import build

MACHINE = "hgx-h100"
ROUNDS = {10: 3, 100: 1}
FORKS = 10

Figures = t.Iterator[dict[str, t.Any]]


def _children_seconds() -> float:
    """CPU seconds of all descendants of this process that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fabric(trees: Path) -> Figures:
    playbook = shutil.which("ansible-playbook")
    if playbook is None:
        print("fabric_noop left out: no ansible-playbook on the path", file=sys.stderr)
        return
    root = build(MACHINE, trees / f"fabric-{MACHINE}")
    facts = as_dict(probe(str(root)))
    rails = [nic for nic in facts["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plays = _plays(root, facts, rails, folder)
        for key, tasks in plays.items():
            (folder / f"{key}.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))

        def run(play: str, hosts: int, *more: str) -> str:
            return _run(playbook, folder / f"{play}.yml", hosts, more)

        trips = {play: len(re.findall(r"^<node-0> EXEC ", run(play, 1, "-vvv"), re.MULTILINE)) for play in plays}
        yield {
            "name": "fabric_noop_round_trips",
            "value": trips["fabric"],
            "unit": "commands",
            "against": f"ansible.builtin.ping, {trips['ping']} (the same read by stock modules: {trips['stock']})",
            "method": "commands that the connection plugin runs for the whole role on one host, pipelining on; a tree "
            f"of an HGX H100 with {len(rails)} rails, number of VFs and MTU of each",
        }
        for hosts, rounds in ROUNDS.items():
            yield from _compared(list(plays), hosts, rounds, run)


def _plays(root: Path, facts: dict[str, t.Any], rails: list[dict[str, t.Any]], folder: Path) -> dict[str, t.Any]:
    """The tasks of each play: none, ping, the role, and stock modules that read the same. None of them finds anything
    to change."""
    attributes = [f"{root}/sys/bus/pci/devices/{nic['address']}/sriov_numvfs" for nic in rails]
    interfaces = {one["name"]: one for one in facts["interfaces"]}
    mtus = {interfaces[nic["interfaces"][0]]["mtu"] for nic in rails}
    rule = {"name": "rails", "select": {"near_gpu": "PIX"}, "count": len(rails), "num_vfs": 0, "mtu": max(mtus)}
    content = "net.core.rmem_max=1\n"
    file = {"content": content, "dest": str(folder / "{{ inventory_hostname }}.conf"), "mode": "0644"}
    for number in range(max(ROUNDS)):  # the files as stock modules would have written them
        (folder / f"node-{number}.conf").write_text(content)
        (folder / f"node-{number}.conf").chmod(0o644)
    slurp = [*attributes, *(f"{root}/sys/class/net/{nic['interfaces'][0]}/mtu" for nic in rails)]
    role = {"name": "lanewise.dra.fabric"}
    given = {"fabric_root": str(root), "fabric_nics": [rule], "fabric_persist": False}
    return {
        "nothing": [],
        "ping": [{"ansible.builtin.ping": {}}],
        "fabric": [{"ansible.builtin.import_role": role, "vars": given}],
        "stock": [{"ansible.builtin.slurp": {"src": "{{ item }}"}, "loop": slurp}, {"ansible.builtin.copy": file}],
    }


def _run(playbook: str, play: Path, hosts: int, more: t.Sequence[str]) -> str:
    environment = {
        **os.environ,
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_FORKS": str(FORKS),
    }
    inventory = ",".join(f"node-{number}" for number in range(hosts)) + ","
    command = [playbook, "-i", inventory, "-c", "local", str(play), *more]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    if "changed=1" in done.stdout:
        raise AssertionError(f"a play that should find nothing to change did change something: {done.stdout}")
    return done.stdout


def _compared(plays: list[str], hosts: int, rounds: int, run: t.Callable[[str, int], str]) -> Figures:
    """The CPU time of the role as a ratio to that of each peer, all less an empty play."""
    seconds: dict[str, list[float]] = {play: [] for play in plays}
    for _round in range(rounds):
        for play in plays:
            start = _children_seconds()
            run(play, hosts)
            seconds[play].append(_children_seconds() - start)
    medians = {play: statistics.median(values) for play, values in seconds.items()}
    own = {play: (value - medians["nothing"]) / hosts * 1000 for play, value in medians.items()}
    for peer in ("ping", "stock"):
        what = "ansible.builtin.ping" if peer == "ping" else "the same read by slurp in a loop and one copy"
        yield {
            "name": f"fabric_noop_{hosts}_hosts_vs_{peer}",
            "value": round(own["fabric"] / own[peer], 3),
            "unit": "ratio",
            "against": f"{what}, {own[peer]:.0f} ms a host (the role {own['fabric']:.0f} ms)",
            "method": f"CPU time of all processes; {hosts} hosts on the local connection, {FORKS} forks, less "
            f"an empty play; {rounds} interleaved rounds, medians; load {os.getloadavg()[0]:.0f} on "
            f"{os.cpu_count()} CPUs at the end",
        }
