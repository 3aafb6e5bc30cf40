# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the CPU time of a run of the site playbook that finds nothing to change, on many hosts, against ping."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.bench.figures import Figures
from tests.machines.builder import build

MACHINE = "hgx-h100"
HOSTS = (50, 200)
FORKS = 10
REPOSITORY = Path(__file__).absolute().parents[2]
CLAIMS = REPOSITORY / "inventories/example/group_vars/all/claims.yml"


def site_of_many_hosts(trees: Path) -> Figures:
    playbook = shutil.which("ansible-playbook")
    if playbook is None:
        print("site_noop left out: no ansible-playbook on the path", file=sys.stderr)
        return
    root = build(MACHINE, trees / f"site-{MACHINE}")
    with tempfile.TemporaryDirectory() as folder:
        yield from _figures(_Runner(playbook, root, Path(folder)))


class _Runner:
    """Runs playbooks on hosts that all have the files of the same machine, below `root`."""

    def __init__(self, program: str, root: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.variables = {
            **yaml.safe_load(CLAIMS.read_text(encoding="utf-8")),
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "topology_root": str(root),
            "fabric_nics": [{"name": "rails", "select": {"near_gpu": "PIX"}, "count": 8, "num_vfs": 0}],
            "fabric_persist": False,
            "site_become": False,
            "dra_claims_allow_unreachable": True,
        }
        self.ping = folder / "ping.yml"
        tasks = [{"ansible.builtin.ping": {}}]
        self.ping.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        destinations = ("-e", f"site_report_dest={folder}/report", "-e", f"site_claims_dest={folder}/kubernetes")
        self.site = ("playbooks/site.yml", *destinations)

    def run(self, hosts: int, playbook: str, *options: str) -> tuple[float, float, str]:
        """CPU seconds of all processes, the resident memory of the largest of them in MiB, and the output."""
        inventory = self.folder / f"{hosts}.json"
        names = {f"node-{number:03}": {} for number in range(hosts)}
        inventory.write_text(json.dumps({"all": {"hosts": names, "vars": self.variables}}))
        environment = {**os.environ, "ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": str(FORKS), "ANSIBLE_NOCOLOR": "1"}
        output = self.folder / "output"
        with open(output, "wb") as stream:
            command = [self.program, "-i", str(inventory), playbook, *options]
            process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=stream)
            _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        text = output.read_text(encoding="utf-8")
        if process.returncode:
            raise RuntimeError(f"{playbook} ended with {process.returncode}:\n{text[-3000:]}")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def _figures(runner: _Runner) -> Figures:
    seconds: dict[tuple[str, int], float] = {}
    memory: dict[tuple[str, int], float] = {}
    for hosts in HOSTS:
        shutil.rmtree(runner.folder / "report", ignore_errors=True)
        runner.run(hosts, *runner.site)  # writes the report and the manifests
        # ping before and after, so that both are measured under the same conditions
        before, _memory, _text = runner.run(hosts, str(runner.ping))
        seconds["site", hosts], memory["site", hosts], text = runner.run(hosts, *runner.site, "--check")
        after, memory["ping", hosts], _text = runner.run(hosts, str(runner.ping))
        seconds["ping", hosts] = statistics.mean((before, after))
        changed = sum(int(number) for number in re.findall(r"changed=(\d+)", text))
        if changed:
            raise RuntimeError(f"{changed} tasks of the second run changed something, which should change nothing")
    _seconds, _memory, text = runner.run(1, *runner.site, "--check", "-vvv")
    commands = len(re.findall(r"^<node-000> EXEC ", text, re.MULTILINE))
    few, many = HOSTS
    load = f"{FORKS} forks; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs at the end"
    yield {
        "name": f"site_noop_{many}_hosts_vs_ping",
        "value": round(seconds["site", many] / seconds["ping", many], 2),
        "unit": "ratio",
        "against": f"ansible.builtin.ping on the same hosts, {seconds['ping', many]:.0f} s "
        f"(the site {seconds['site', many]:.0f} s)",
        "method": f"CPU time of all processes, ping before and after; site.yml --check on {many} hosts on the "
        "local connection, trees of an HGX H100: probe, report, plan of the configuration, claims of the example "
        f"site; {load}",
    }
    yield {
        "name": "site_noop_commands_a_host",
        "value": commands,
        "unit": "commands",
        "against": "ansible.builtin.ping, 1",
        "method": "commands that the connection plugin runs on one host for the same run, pipelining on",
    }
    for play in ("site", "ping"):
        growth = (memory[play, many] - memory[play, few]) / (many - few)
        yield {
            "name": f"{play}_controller_mib_a_host",
            "value": round(growth, 3),
            "unit": "MiB",
            "against": f"{memory[play, few]:.0f} MiB for {few} hosts, {memory[play, many]:.0f} MiB for {many}",
            "method": "the resident memory of the largest process on the controller, ansible-playbook or one that it "
            "starts: what each additional host adds",
        }
