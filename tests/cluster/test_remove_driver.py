# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver is removed from nodes in batches. Its account stays in the cluster as long as a node needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import ACCOUNT, API, NAME
from ansible_collections.lanewise.dra.tests.cluster.stubs import stubbed
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
HOSTS = ("one", "two", "three")

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

#: A stand-in for the driver's program on a node: deletes the node's slice, if the driver's account still exists.
DRIVER = """#!/bin/sh
set -e
{kubectl} get serviceaccount --namespace lanewise-system lanewise-driver >&2
{kubectl} delete resourceslice --ignore-not-found {host} >&2
echo '{{"deleted": ["{host}"]}}'
"""
#: A stub of the module that reads the state of a node: the driver is installed, and pods of some nodes have devices.
STATE = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        claim = {"uid": "1", "name": "", "namespace": "", "pod": "", "devices": []}
        claims = [claim] if task_vars["inventory_hostname"] in task_vars["busy"] else []
        return {"changed": False, "release": "1", "claims": claims, "service": {"installed": False}}
"""


class Fleet:
    """Nodes that publish devices, and the playbook that removes the driver from them."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        kubectl = f"{plane.programs['kubectl']} --kubeconfig {plane.kubeconfig}"
        subprocess.run([*kubectl.split(), "apply", "-f", str(COLLECTION / "driver/manifests")], check=True)
        for host in HOSTS:
            program = folder / host / "current/bin/lanewise-driver"
            program.parent.mkdir(parents=True)
            program.write_text(DRIVER.format(kubectl=kubectl, host=host))
            program.chmod(0o755)
            pool = {"name": host, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": NAME, "nodeName": host, "pool": pool}
            plane.expect("POST", f"{API}/resourceslices", {"metadata": {"name": host}, "spec": spec})
        self.collections = stubbed(folder / "stub", {"plugins/action/dra_driver_info.py": STATE})

    def remove(self, *arguments: str, rc: int = 0, **variables: t.Any) -> str:
        """Remove the driver. Returns the output, with single spaces instead of longer white space."""
        extra_vars = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "busy": [],
            "driver_become": False,
            "dra_driver_kubeconfig": str(self.plane.kubeconfig),
            "dra_driver_state": "absent",
            "dra_driver_remove_manifests": True,
            "__dra_driver_folder": f"{self.folder}/{{{{ inventory_hostname }}}}",
            "__dra_driver_config": str(self.folder / "etc"),
            "__dra_driver_files": [],
            **variables,
        }
        paths = [str(self.collections), str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]
        done = subprocess.run(
            [
                str(ANSIBLE_PLAYBOOK),
                "-i",
                ",".join(HOSTS),
                "lanewise.dra.driver",
                "-e",
                json.dumps(extra_vars),
                *arguments,
            ],
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    def published(self) -> list[str]:
        """The nodes that publish devices."""
        return sorted(item["spec"]["nodeName"] for item in self.plane.expect("GET", f"{API}/resourceslices")["items"])

    def account(self) -> bool:
        """Whether the driver's account exists."""
        return self.plane.request("GET", ACCOUNT)[0] == 200


@pytest.fixture(name="fleet")
def _fleet(newest: ControlPlane, tmp_path: Path) -> t.Iterator[Fleet]:
    newest.wait_for(lambda: newest.request("GET", "/api/v1/namespaces/lanewise-system")[0] == 404, "a clean cluster")
    yield Fleet(newest, tmp_path)
    newest.expect("DELETE", f"{API}/resourceslices")
    newest.request("DELETE", "/api/v1/namespaces/lanewise-system")


def test_the_account_is_kept_for_the_nodes_of_later_batches(fleet: Fleet) -> None:
    output = fleet.remove("--check")
    assert "stay in the cluster until this playbook has removed the driver from: two, three." in output
    assert "because these nodes publish devices" not in output
    assert fleet.published() == sorted(HOSTS) and fleet.account()
    fleet.remove()
    assert fleet.published() == [] and not fleet.account()


def test_the_account_is_kept_for_a_node_that_failed(fleet: Fleet) -> None:
    output = fleet.remove(rc=2, busy=["two"], driver_serial="100%", driver_max_fail_percentage=100)
    assert "stay in the cluster until this playbook has removed the driver from: two." in output
    assert fleet.published() == ["two"] and fleet.account()
    fleet.remove()
    assert fleet.published() == [] and not fleet.account()


def test_the_account_is_kept_for_a_node_outside_the_run(fleet: Fleet) -> None:
    output = fleet.remove("--limit", "one,two")
    assert "because these nodes publish devices: three." in output
    assert fleet.published() == ["three"] and fleet.account()
