# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role alignment measures the bandwidth between real pods with the driver's devices."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, Driver, add_rail

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


pytestmark = [
    pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python"),
    pytest.mark.skipif(not shutil.which("iperf3"), reason="iperf3 is not installed"),
]


@pytest.fixture(name="pods", scope="module")
def _pods(node: Node) -> t.Iterator[Node]:
    """Two pods, each with a NIC and a route to the other pod's NIC."""
    for number in (0, 1):
        add_rail(number)
    ip("netns exec switch sysctl -w net.ipv4.ip_forward=1")
    driver = Driver(node)
    driver.wait_ready()
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    for number, name in enumerate(("one", "two")):
        subnet, other_subnet = number * 16, (1 - number) * 16
        config = {
            "name": "net1",
            "addresses": [f"203.0.113.{subnet + 2}/28"],
            "routes": [{"destination": f"203.0.113.{other_subnet}/28", "gateway": f"203.0.113.{subnet + 1}"}],
        }
        expression = f'device.attributes["{NAME}"].ifName == "rail{number}"'
        request = {"deviceClassName": "nic", "selectors": [{"cel": {"expression": expression}}]}
        devices = {
            "requests": [{"name": "nic", "exactly": request}],
            "config": [{"opaque": {"driver": NAME, "parameters": parameters(config)}}],
        }
        claim = {"metadata": {"name": name}, "spec": {"devices": devices}}
        node.plane.expect("POST", f"{API}/namespaces/default/resourceclaims", claim)
        node.run_pod(node.pod(name, resourceClaims=[{"name": "net", "resourceClaimName": name}]))
        path = f"{API}/namespaces/default/resourceclaims/{name}"
        node.plane.wait_for(
            lambda path=path: node.plane.expect("GET", path)["status"].get("devices", [{}])[0].get("networkData"),
            "the address in the claim's status",
        )
    yield node
    driver.stop()


def verify(node: Node, folder: Path, **variables: t.Any) -> Object:
    """Run the playbook verify on the node. Returns its JSON report."""
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {node.name: host}}}))
    # a relative path, which Ansible resolves in the folder that the command runs in
    shutil.copy(node.plane.kubeconfig, folder / "kubeconfig")
    extra_vars = {"alignment_kubeconfig": "kubeconfig", "verify_become": False, **variables}
    (folder / "variables.json").write_text(json.dumps(extra_vars))
    hidden = ("ANSIBLE_", "KUBE", "K8S_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
    environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
    environment["ANSIBLE_HOME"] = str(folder / "home")
    command = [str(ANSIBLE_PLAYBOOK), "-i", "hosts.json", "lanewise.dra.verify", "-e", "@variables.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return t.cast(Object, json.loads((folder / "report" / "alignment.json").read_text()))


def test_the_bandwidth_between_two_pods_is_measured(pods: Node, tmp_path: Path) -> None:
    """The bandwidth between the two NICs is measured only on request, with a program that runs in both pods."""
    assert all(entry["measured"] == [] for entry in verify(pods, tmp_path)["claims"])
    answer = verify(pods, tmp_path, alignment_measure=True, alignment_measure_seconds=2)
    found = {entry["claim"]: entry["measured"] for entry in answer["claims"]}
    assert set(found) == {"default/one", "default/two"}
    for claim, peer in (("default/one", "default/two"), ("default/two", "default/one")):
        [measured] = found[claim]
        assert (measured["tool"], measured["peer"], measured["problem"]) == ("iperf3", peer, "")
        assert measured["gb_per_s"] > 0.001 and measured["details"]["streams"] == 4
    page = (tmp_path / "report" / "alignment.html").read_text()
    assert "(iperf3)" in page


def test_a_missing_measuring_program_is_reported(pods: Node, tmp_path: Path) -> None:
    answer = verify(
        pods, tmp_path, alignment_measure=True, alignment_measure_most=1, alignment_measure_nccl="all_gather_perf -b 8"
    )
    [measured] = [entry for claim in answer["claims"] for entry in claim["measured"]]
    assert measured["tool"] == "all_gather_perf" and measured["gb_per_s"] is None and measured["problem"]
