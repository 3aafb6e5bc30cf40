# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role alignment measures pods whose programs never end: the run goes on with the next pair."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

#: The module kubernetes.core.k8s_exec, without a cluster. In the pod `late-STEP`, the command of that step takes longer
#: than its task may.
K8S_EXEC = """
import time

from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({name: {} for name in ("namespace", "pod", "container", "command", "kubeconfig", "context")})
command = module.params["command"]
step = "search" if "command -v" in command else "server" if "-s" in command.split() else "client"
if module.params["pod"] == f"late-{step}":
    time.sleep(15)
programs = "/usr/bin/timeout\\n/usr/bin/iperf3\\n"
module.exit_json(stdout=programs if step == "search" else command, stderr="", rc=0)
"""


def measure(folder: Path, pods: t.Sequence[str], **variables: t.Any) -> tuple[list[dict[str, t.Any]], str]:
    """Measure with the server in each of the pods and the client in the pod `fine`, except for `late-client`. Returns
    the role's measurements and the whole output."""
    modules = folder / "collections/ansible_collections/kubernetes/core/plugins/modules"
    modules.mkdir(parents=True)
    (modules / "k8s_exec.py").write_text(K8S_EXEC)
    (modules.parents[1] / "galaxy.yml").write_text("{namespace: kubernetes, name: core, version: 99.0.0}")
    commands = {"iperf3": {"server": "iperf3 -s", "client": "iperf3 -c 192.0.2.1"}}
    pairs = [
        {
            "claim": f"team/{pod}",
            "client": {"namespace": "team", "pod": pod if pod == "late-client" else "fine"},
            "server": {"namespace": "team", "pod": pod},
            "commands": commands,
        }
        for pod in pods
    ]
    role = {
        "ansible.builtin.include_role": {"name": "lanewise.dra.alignment", "tasks_from": "measure"},
        "loop": pairs,
        "loop_control": {"loop_var": "alignment_pair"},
    }
    copy = {"content": "{{ alignment_measured }}", "dest": str(folder / "measured.json"), "mode": "0600"}
    tasks = [{"ansible.builtin.set_fact": {"alignment_measured": []}}, role, {"ansible.builtin.copy": copy}]
    playbook = folder / "play"
    playbook.with_suffix(".yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    options = ("-e", json.dumps(variables))
    paths = f"{folder / 'collections'}{os.pathsep}{COLLECTIONS}"
    output = run_playbook(folder, {"node": {}}, str(playbook), *options, ANSIBLE_COLLECTIONS_PATH=paths)
    return json.loads((folder / "measured.json").read_text()), output


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("search", "not measured: the command of the search for programs did not end within 3 seconds"),
        ("server", "not measured: the server did not start: the command of the server did not end within 3 seconds"),
        ("client", "the command of the client did not end within 3 seconds"),
    ],
)
def test_a_pod_whose_program_never_ends_does_not_stop_the_run(tmp_path: Path, step: str, problem: str) -> None:
    limits = {"search": 60, "server": 60, "client": 60, step: "{{ 3 if 'late' in alignment_pair.claim else 60 }}"}
    (late, fine), output = measure(tmp_path, [f"late-{step}", "other"], __alignment_limits=limits)
    assert late == {
        "claim": f"team/late-{step}",
        "peer": f"team/late-{step}",
        "tool": "iperf3",
        "output": f"{problem}, and may still run in its pod",
        "rc": 0,
    }
    assert fine["output"] == "timeout 70 iperf3 -c 192.0.2.1" and fine["rc"] == 0
    assert "DEPRECATION" not in output


def test_a_command_of_the_site_that_never_ends_does_not_stop_the_run(tmp_path: Path) -> None:
    limit = "{{ 3 if 'late' in alignment_pair.claim else 60 }}"
    variables = {"alignment_measure_nccl": "mpirun all_gather_perf", "alignment_measure_nccl_seconds": limit}
    (late, fine), _output = measure(tmp_path, ["late-client", "other"], **variables)
    assert late["output"] == "the command of the client did not end within 3 seconds, and may still run in its pod"
    assert fine["output"] == "mpirun all_gather_perf"


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "timeout 70 iperf3 -c 192.0.2.1"),
        ({"alignment_measure_seconds": 2}, "timeout 62 iperf3 -c 192.0.2.1"),
        # a command of the site has its own limit: this duration would make that of the client a single second
        (
            {"alignment_measure_seconds": -89, "alignment_measure_nccl": "mpirun all_gather_perf"},
            "mpirun all_gather_perf",
        ),
    ],
)
def test_a_pair_is_measured_with_the_default_limits(tmp_path: Path, variables: dict[str, t.Any], command: str) -> None:
    ([measured], output) = measure(tmp_path, ["late-client" if "mpirun" in command else "fine"], **variables)
    assert (measured["output"], measured["rc"]) == (command, 0) and "ignored=0" in output
