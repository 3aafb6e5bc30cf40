# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes that the playbook switch_driver cannot move to the other driver: it reports them before it changes them, or it
leaves them cordoned and reports that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
LABEL, MARK = "lanewise.dev/nic-driver", "lanewise.dev/switch-driver"
LANEWISE, DRANET = "lanewise.dev", "dra.net"
NODE, DAEMONSET = "/api/v1/nodes/gpu-01", "/apis/apps/v1/namespaces/kube-system/daemonsets"
PODS = "/api/v1/namespaces/default/pods"

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")


class Fleet:
    """A Node without a kubelet, and DRANET's DaemonSet, which avoids nodes with the label of lanewise.dev."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        plane.add_node("gpu-01")
        term = {"matchExpressions": [{"key": LABEL, "operator": "NotIn", "values": [LANEWISE]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        pod = {"affinity": {"nodeAffinity": required}, "containers": [{"name": "dranet", "image": "dranet"}]}
        labels = {"app": "dranet"}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        plane.expect("POST", DAEMONSET, {"metadata": {"name": "dranet"}, "spec": spec})

    def publish(self, driver: str) -> None:
        pool = {"name": "gpu-01", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": "gpu-01", "pool": pool}
        self.plane.expect("POST", f"{API}/resourceslices", {"metadata": {"name": "gpu-01"}, "spec": spec})

    def switch(self, to: str, **variables: t.Any) -> str:
        """Run the playbook, which must fail. Returns the output, with single spaces instead of longer white space."""
        extra_vars = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "site_become": False,
            "dra_driver_kubeconfig": str(self.plane.kubeconfig),
            "dra_driver_cache": str(self.folder / "cache"),
            "switch_driver_to": to,
            "switch_driver_timeout": 5,
            **variables,
        }
        paths = [str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]
        done = subprocess.run(
            [str(ANSIBLE_PLAYBOOK), "-i", "gpu-01,", "lanewise.dra.switch_driver", "-e", json.dumps(extra_vars)],
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    def state(self) -> tuple[bool, bool, bool]:
        """Whether the node is cordoned, has the playbook's annotation, and has the label of lanewise.dev."""
        node = self.plane.expect("GET", NODE)
        cordoned, metadata = bool(node["spec"].get("unschedulable")), node["metadata"]
        return cordoned, MARK in metadata.get("annotations", {}), LABEL in metadata.get("labels", {})


@pytest.fixture(name="fleet")
def _fleet(newest: ControlPlane, tmp_path: Path) -> t.Iterator[Fleet]:
    yield Fleet(newest, tmp_path)
    for path in (f"{DAEMONSET}/dranet", f"{API}/resourceslices", PODS, NODE):
        newest.expect("DELETE", path)


def test_a_node_that_cannot_run_the_driver_keeps_dranet_and_is_not_cordoned(fleet: Fleet) -> None:
    fleet.publish(DRANET)
    output = fleet.switch(LANEWISE, dra_driver_settings={"no_such_setting": 1})
    assert "gpu-01 cannot run the driver yet. It was neither installed nor changed" in output
    assert "no_such_setting" in output and "stays cordoned" not in output
    assert fleet.state() == (False, False, False)


def test_a_node_that_stays_cordoned_after_a_failure_is_reported(fleet: Fleet) -> None:
    """The eviction fails because the pod has no controller that would recreate it."""
    fleet.publish(LANEWISE)
    pod = {
        "nodeName": "gpu-01",
        "containers": [{"name": "x", "image": "x"}],
        "terminationGracePeriodSeconds": 0,  # no kubelet would report that the pod has ended
    }
    fleet.plane.expect("POST", PODS, {"metadata": {"name": "x"}, "spec": pod})
    output = fleet.switch(DRANET, switch_driver_drain=True)
    assert "Evict the node's pods" in output
    assert "gpu-01 stays cordoned. When this is fixed, run the playbook again to continue" in output
    assert fleet.state() == (True, True, False)
