# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who keeps pods off a Node is known after the controller was killed, and nobody else's cordon is taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane

PROGRAM = Path(sys.executable).with_name("ansible-playbook")
COLLECTIONS = Path(__file__).absolute().parents[5]
MARK = "fabric.lanewise.dev/cordoned"
NODE = "/api/v1/nodes/worker"

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="needs ansible-core beside this Python")

Play = t.Callable[..., str]


@pytest.fixture(name="play")
def _play(newest: ControlPlane, tmp_path: Path) -> t.Iterator[Play]:
    """Runs parts of the role; what it learned of the node is the output's last word."""
    newest.expect("POST", "/api/v1/nodes", {"metadata": {"name": "worker"}})
    kubeconfig = newest.write_kubeconfig_of_two(tmp_path / "kubeconfig")

    def play(*parts: str, rc: int = 0, mark: str = MARK, **variables: str) -> str:
        role = "lanewise.dra.fabric"
        tasks: list[dict[str, t.Any]] = [
            {"ansible.builtin.include_role": {"name": role, "tasks_from": part}, "vars": {"__fabric_mark": mark}}
            for part in parts
        ]
        tasks.append({"ansible.builtin.debug": {"msg": "left={{ fabric_left_cordoned }}"}})
        place = tmp_path / "play.yml"
        place.write_text(json.dumps([{"hosts": "worker", "gather_facts": False, "tasks": tasks}]))
        cluster = {"fabric_kubeconfig": str(kubeconfig), "fabric_context": "test"}
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        given = {**cluster, **host, **variables}
        paths = [str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]
        done = subprocess.run(
            [str(PROGRAM), "-i", "worker,", str(place), "-e", json.dumps(given)],
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout

    yield play
    newest.expect("DELETE", NODE)


def state(plane: ControlPlane) -> tuple[bool, bool]:
    """Whether pods are kept off the node, and whether it says that it is us."""
    node = plane.expect("GET", NODE)
    return bool(node["spec"].get("unschedulable")), MARK in node["metadata"].get("annotations", {})


def test_the_next_run_gives_back_what_a_killed_one_has_kept(newest: ControlPlane, play: Play) -> None:
    assert "left=False" in play("cluster", "drain")  # and no further
    assert state(newest) == (True, True)
    assert "left=True" in play("cluster")
    assert "left=False" in play("cluster", "drain", "uncordon")
    assert state(newest) == (False, False)
    assert "left=False" in play("cluster")


def test_the_note_goes_where_somebody_has_given_the_node_back(newest: ControlPlane, play: Play) -> None:
    play("cluster", "drain")
    newest.expect("PATCH", NODE, {"spec": {"unschedulable": None}})
    assert "left=True" in play("cluster")
    play("cluster", "uncordon")
    assert state(newest) == (False, False)


def test_a_replacement_takes_over_what_a_rollout_has_left(newest: ControlPlane, play: Play) -> None:
    play("cluster", "drain")
    assert "left=False" in play("cluster", "drain", mark="of-a-replacement")
    assert state(newest) == (True, False)
    assert "left=True" in play("cluster", mark="of-a-replacement")


def test_a_node_whose_pods_could_not_be_taken_away_is_left(newest: ControlPlane, play: Play, tmp_path: Path) -> None:
    """One without a kubelet has not joined yet, and has no pods."""
    socket = tmp_path / "kubelet.sock"
    given = {"fabric_node_name": "elsewhere", "__fabric_kubelet_socket": str(socket)}
    assert "left=False" in play("cluster", "drain", **given)
    socket.touch()
    output = play("cluster", "drain", rc=2, **given)
    assert "there is no Node elsewhere" in " ".join(output.split()) and "left=" not in output


def test_a_cordon_of_somebody_else_is_not_ours(newest: ControlPlane, play: Play) -> None:
    newest.expect("PATCH", NODE, {"spec": {"unschedulable": True}})
    assert "left=False" in play("cluster", "drain")
    assert state(newest) == (True, False)
