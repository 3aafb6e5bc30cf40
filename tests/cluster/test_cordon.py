# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric cordons and uncordons a Node, also after a run was killed, but keeps the cordon of another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout_owner import Owner, _started, this_run
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.stubs import stubbed
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
MARK = "fabric.lanewise.dev/cordoned"
NODE = "/api/v1/nodes/worker"

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

Play = t.Callable[..., str]


@pytest.fixture(name="play")
def _play(newest: ControlPlane, tmp_path: Path) -> t.Iterator[Play]:
    """A function that runs parts of the role. Its output ends with `left=`: whether a killed run left the node
    cordoned."""
    newest.expect("POST", "/api/v1/nodes", {"metadata": {"name": "worker"}})
    kubeconfig = newest.write_kubeconfig_with_two_contexts(tmp_path / "kubeconfig")

    def play(*parts: str, rc: int = 0, mark: str = MARK, stub: str = "", **variables: t.Any) -> str:
        role, key = "lanewise.dra.fabric", {"__fabric_annotation_key": mark}
        tasks: list[dict[str, t.Any]] = [
            {"ansible.builtin.include_role": {"name": role, "tasks_from": part}, "vars": key} for part in parts
        ]
        tasks.append({"ansible.builtin.debug": {"msg": "left={{ fabric_left_cordoned }}"}})
        playbook = tmp_path / "play.yml"
        playbook.write_text(json.dumps([{"hosts": "worker", "gather_facts": False, "tasks": tasks}]))
        cluster = {"fabric_kubeconfig": str(kubeconfig), "fabric_context": "test"}
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        extra_vars = {**cluster, **host, **variables}
        paths = [stub, str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]
        done = subprocess.run(
            [str(ANSIBLE_PLAYBOOK), "-i", "worker,", str(playbook), "-e", json.dumps(extra_vars)],
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
    """Whether the node is cordoned, and whether it has this role's annotation."""
    node = plane.expect("GET", NODE)
    return bool(node["spec"].get("unschedulable")), MARK in node["metadata"].get("annotations", {})


def test_the_next_run_uncordons_the_node_that_a_killed_run_cordoned(newest: ControlPlane, play: Play) -> None:
    assert "left=False" in play("cluster", "drain")  # the run ends here, as if it was killed
    assert state(newest) == (True, True)
    assert "left=True" in play("cluster")
    assert "left=False" in play("cluster", "drain", "uncordon")
    assert state(newest) == (False, False)
    assert "left=False" in play("cluster")


def test_the_annotation_is_removed_if_another_user_has_uncordoned_the_node(newest: ControlPlane, play: Play) -> None:
    play("cluster", "drain")
    newest.expect("PATCH", NODE, {"spec": {"unschedulable": None}})
    assert "left=True" in play("cluster")
    play("cluster", "uncordon")
    assert state(newest) == (False, False)


def test_a_replacement_takes_over_the_cordon_of_a_killed_rollout(newest: ControlPlane, play: Play) -> None:
    play("cluster", "drain")
    assert "left=False" in play("cluster", "drain", mark="of-a-replacement")
    assert state(newest) == (True, False)
    assert "left=True" in play("cluster", mark="of-a-replacement")


def test_a_kubelet_without_a_node_object_is_an_error(newest: ControlPlane, play: Play, tmp_path: Path) -> None:
    """A machine without a kubelet has not joined the cluster and has no pods, so it is not an error."""
    socket = tmp_path / "kubelet.sock"
    variables = {"fabric_node_name": "elsewhere", "__fabric_kubelet_socket": str(socket)}
    assert "left=False" in play("cluster", "drain", **variables)
    socket.touch()
    output = play("cluster", "drain", rc=2, **variables)
    assert "there is no Node elsewhere" in " ".join(output.split()) and "left=" not in output


def test_the_cordon_of_another_user_is_kept(newest: ControlPlane, play: Play) -> None:
    newest.expect("PATCH", NODE, {"spec": {"unschedulable": True}})
    assert "left=False" in play("cluster", "drain")
    assert state(newest) == (True, False)


def cordon_as(plane: ControlPlane, owner: Owner) -> None:
    """Cordon the node, with the annotation of another run."""
    patch = {"metadata": {"annotations": {MARK: owner.text}}, "spec": {"unschedulable": True}}
    plane.expect("PATCH", NODE, patch)


def test_the_node_of_another_active_run_is_not_taken_over(newest: ControlPlane, play: Play) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        running = replace(this_run(), process=other.pid, started=_started(other.pid) or "")
        cordon_as(newest, running)
        output = " ".join(play("cluster", rc=2, fabric_take_over="true").split())
        assert running.name in output and "That run continues: wait until it has ended" in output
        output = " ".join(play("uncordon", rc=2).split())
        assert f"worker was not uncordoned: another run ({running.name})" in output
        assert state(newest) == (True, True)
        other.kill()
    play("cluster", "uncordon")  # the other run no longer exists
    assert state(newest) == (False, False)


def test_a_run_of_another_controller_is_taken_over_on_request(newest: ControlPlane, play: Play) -> None:
    cordon_as(newest, replace(this_run(), controller="deploy-2"))
    output = " ".join(play("cluster", rc=2).split())
    assert "@deploy-2, process" in output and "it was interrupted, run again with fabric_take_over=true." in output
    assert "left=False" in play("cluster", "drain", "uncordon", fabric_take_over="true")
    assert state(newest) == (False, False)


ANSWERS: dict[str, tuple[dict[str, t.Any], bool]] = {
    "changed": ({"changed": True}, True),
    "restored": ({"failed": True, "msg": "no", "remaining": [], "rollback": None}, True),
    "half restored": ({"failed": True, "msg": "no", "remaining": [{"setting": "mtu"}], "rollback": None}, False),
    "rollback pending": ({"failed": True, "msg": "no", "remaining": [], "rollback": {"id": "1", "seconds": 60}}, False),
    "no details": ({"failed": True, "msg": "MODULE FAILURE"}, False),
    "not confirmed": ({"changed": True, "rollback": {"id": "1", "seconds": 60}}, False),
    # Ansible refuses to reboot the machine that it runs on
    "not rebooted": ({"changed": True, "reboot_required": True, "reboot_reasons": ["iommu"]}, False),
}
#: A stub of the module: it returns ANSWER, and fails a confirmation because the rollback has already run.
MODULE = """#!/usr/bin/python
import json, sys
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"confirm": {"type": "str"}}, supports_check_mode=True)
answer = json.loads(ANSWER)
if module.params["confirm"]:
    module.fail_json(msg="the changes were already rolled back")
answer = {"drain_reasons": [], "reboot_required": False, "reboot_reasons": [], "changed": False, **answer}
module.fail_json(**answer) if answer.get("failed") else module.exit_json(**answer)
"""


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_node_is_uncordoned_only_if_its_changes_are_complete_or_rolled_back(
    newest: ControlPlane, play: Play, tmp_path: Path, kind: str
) -> None:
    answer, uncordoned = ANSWERS[kind]
    stub = stubbed(tmp_path / "stub", {"plugins/modules/fabric.py": MODULE.replace("ANSWER", repr(json.dumps(answer)))})
    plan = {"changes": [{}], "drain_reasons": ["its VFs go"], "reboot_required": False}
    output = play(
        "cluster", "change", rc=0 if kind == "changed" else 2, stub=str(stub), fabric_plan=plan, fabric_reboot_ok=True
    )
    assert state(newest) == ((False, False) if uncordoned else (True, True)), output
    assert ("worker stays cordoned" in " ".join(output.split())) is not uncordoned
