# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replacing a card of a node: the node's pods are evicted, and return when the new card works and is published.

The API server, scheduler and controllers are real. The node is a sandbox in which an example machine's tree is mounted
over /sys, so that the playbook reads the machine as the running node. There is no kubelet and no driver: the test
publishes the slices that a driver would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import DRIVER, publication
from ansible_collections.lanewise.dra.tests.cluster import sandbox
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.machines.builder import build

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
NAME, NODE = "gpu-01", "/api/v1/nodes/gpu-01"
MARK = "fabric.lanewise.dev/replace-nic"
RESOURCE = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
SLICE = f"{RESOURCE}/resourceslices/gpu-01-lanewise"
MACHINE, SLOT, CARD = "hgx-h100", "9", "0000:59:00.0"
NEW: dict[str, t.Any] = {"oui": "a0:88:c3", "vpd": {"SN": "MT2646X00001"}}
RECORDS = "/var/lib/kubelet/plugins/lanewise.dev/state"  # the driver's records of prepared claims
SETTING, SETTING_VALUE = "net/core/somaxconn", "8192"  # each network namespace has its own

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("pyroute2", reason="needs pyroute2")
NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc")
pytestmark = [
    pytest.mark.skipif(not os.environ.get("LANEWISE_SLOW"), reason="takes minutes: set LANEWISE_SLOW=1 to run it"),
    pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python"),
    pytest.mark.skipif(
        os.geteuid() != 0
        or not shutil.which("unshare")
        or subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0,
        reason="needs root, for a node's namespaces",
    ),
]


class Machine:
    """A sandbox whose /sys, and the hardware files of /proc, come from a tree of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trees = 0
        command = [sys.executable, sandbox.__file__, "sh", "-c", "echo ready; exec cat"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout and self._process.stdout.readline() == "ready\n"
        unshare = self._child(self._process.pid)
        self._enter = ["nsenter", f"--target={self._child(unshare)}", "--mount", "--net", "--pid", "--ipc", "--uts"]
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {" ".join(self._enter)} {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        self.become({})

    @staticmethod
    def _child(pid: int) -> int:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def run(self, *command: str) -> str:
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def become(self, override: dict[str, t.Any]) -> dict[str, t.Any]:
        """Become the machine with other options for some PCI addresses. Returns its topology facts."""
        tree = self.folder / f"tree{self.trees}"
        # made-up values are derived from the description's name, so everything else stays the same
        build({"like": MACHINE, "name": MACHINE, "override": override}, tree)
        if self.trees:
            self.run("umount", "/sys")
        else:
            for name in ("cmdline", "cpuinfo", "meminfo"):
                self.run("mount", "--bind", str(tree / "proc" / name), f"/proc/{name}")
        self.run("mount", "--bind", str(tree / "sys"), "/sys")
        self.trees += 1
        return as_dict(probe(str(tree), diagnose=diagnose))

    def setting(self, value: str = "") -> str:
        """The machine's setting. If `value` is not empty, it is set first."""
        if value:
            self.run("sh", "-c", f"echo {value} > /proc/sys/{SETTING}")
        return self.run("cat", f"/proc/sys/{SETTING}").strip()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(name="machine", scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Machine]:
    before = Path("/proc/sys", SETTING).read_text()
    machine = Machine(tmp_path_factory.mktemp("machine"))
    yield machine
    machine.close()
    assert Path("/proc/sys", SETTING).read_text() == before  # the host's setting is unchanged


class Site:
    """The machine as a node of a cluster, and the playbooks for it."""

    def __init__(self, plane: ControlPlane, machine: Machine, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.inventory = folder / "inventory.json"
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(machine.python),
            "ansible_remote_tmp": str(folder / "tmp"),
            "site_become": False,
            "site_report_dest": str(folder / "report"),
            "fabric_kubeconfig": str(plane.write_kubeconfig_with_two_contexts(folder / "kubeconfig")),
            "fabric_context": "test",
            "fabric_node": {"sysctl": {SETTING.replace("/", "."): SETTING_VALUE}},
            "fabric_persist": False,
        }
        self.inventory.write_text(json.dumps({"all": {"hosts": {NAME: host}}}))

    def start(self, playbook: str, *options: str) -> subprocess.Popen[str]:
        paths = [str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]
        environment = {
            "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(filter(None, paths)),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",  # one line per result
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        }
        return subprocess.Popen(
            [str(ANSIBLE_PLAYBOOK), "-i", str(self.inventory), f"lanewise.dra.{playbook}", *options],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def play(self, playbook: str, *options: str, rc: int = 0) -> str:
        with self.start(playbook, *options) as process:
            output = process.communicate()[0]
        assert process.returncode == rc, output
        return output

    def before(self, *options: str, rc: int = 0) -> str:
        """Run the playbook before the card is replaced."""
        return self.play("replace_nic", "-e", f"replace_nic_slot={SLOT}", *options, rc=rc)

    def after(self, *options: str, rc: int = 0) -> str:
        """Run the playbook after the card was replaced."""
        return self.play("replace_nic", "-e", "replace_nic_phase=after", *options, rc=rc)

    def record(self) -> dict[str, t.Any]:
        return json.loads((self.folder / "report" / "replaced" / f"{NAME}.json").read_text())

    def publish(self, facts: dict[str, t.Any], generation: int) -> None:
        """Replace the slice by the one that the driver would publish on a node with these facts."""
        pool = {"name": NAME, "generation": generation, "resourceSliceCount": 1}
        spec = {"nodeName": NAME, "driver": DRIVER, "pool": pool, "devices": publication(facts).devices}
        self.plane.request("DELETE", SLICE)
        metadata = {"name": SLICE.rpartition("/")[2]}
        self.plane.expect("POST", f"{RESOURCE}/resourceslices", {"metadata": metadata, "spec": spec})

    def run_pods(self) -> None:
        """Create a ReplicaSet with one pod, which has a claim for the card."""
        driver = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        self.plane.expect(
            "POST", f"{RESOURCE}/deviceclasses", {"metadata": {"name": "nic"}, "spec": {"selectors": [driver]}}
        )
        bus = {"cel": {"expression": f'device.attributes["resource.kubernetes.io"].pciBusID == "{CARD}"'}}
        request = {"name": "nic", "exactly": {"deviceClassName": "nic", "selectors": [bus]}}
        self.plane.expect(
            "POST",
            f"{RESOURCE}/namespaces/default/resourceclaims",
            {"metadata": {"name": "storage"}, "spec": {"devices": {"requests": [request]}}},
        )
        labels = {"app": "reader"}
        pod = {
            "containers": [{"name": "reader", "image": "reader", "resources": {"claims": [{"name": "nic"}]}}],
            "resourceClaims": [{"name": "nic", "resourceClaimName": "storage"}],
            "terminationGracePeriodSeconds": 0,  # no kubelet would report that the pod has ended
        }
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        self.plane.expect(
            "POST", "/apis/apps/v1/namespaces/default/replicasets", {"metadata": {"name": "reader"}, "spec": spec}
        )

    def pod(self, node: str) -> str:
        """Wait until the only pod is on `node`, or pending if `node` is empty. Returns the pod's name."""

        def pod_name() -> str:
            pods = self.plane.expect("GET", PODS)["items"]
            as_expected = len(pods) == 1 and pods[0]["spec"].get("nodeName", "") == node
            return pods[0]["metadata"]["name"] if as_expected else ""

        return str(self.plane.wait_for(pod_name, f"the pod to be on {node or 'no node'}"))

    def state(self) -> tuple[bool, bool]:
        """Whether the node is cordoned, and whether it has the playbook's annotation."""
        node = self.plane.expect("GET", NODE)
        return bool(node["spec"].get("unschedulable")), MARK in node["metadata"].get("annotations", {})


@pytest.fixture(name="site")
def _site(newest: ControlPlane, machine: Machine, tmp_path: Path) -> t.Iterator[Site]:
    newest.add_node(NAME)
    yield Site(newest, machine, tmp_path)
    newest.expect("DELETE", NODE)


def test_pods_are_evicted_and_return_when_the_new_card_is_published(site: Site, machine: Machine) -> None:
    site.publish(machine.become({}), 1)
    site.run_pods()
    pod = site.pod(NAME)

    output = site.before()
    device = f"pci-{CARD.replace(':', '-').replace('.', '-')}"
    assert f"{DRIVER} publishes {device} ({CARD}): allocated to claim default/storage, used by pod {pod}" in output
    assert "is cordoned until its new card is checked" in output
    assert site.state() == (True, True) and site.record()["state"] == "out"
    assert site.pod("") != pod  # the old pod was evicted, and a new pod waits

    node, record = site.plane.expect("GET", NODE), site.record()
    assert "changed=0" in site.before()
    assert site.plane.expect("GET", NODE) == node and site.record() == record

    assert machine.setting() != SETTING_VALUE
    assert "done: 1 node" in site.play("rollout")
    assert machine.setting() == SETTING_VALUE and site.state() == (True, True)

    facts = machine.become({CARD: NEW, "0000:59:00.1": NEW})
    machine.setting("4096")  # as after a boot
    output = site.after("-e", "replace_nic_timeout=5", rc=2)
    assert "The new card is not published like the old one" in output and "a0:88:c2" in output
    assert "is still there" in output and "stays cordoned" in output
    assert machine.setting() == SETTING_VALUE and site.state() == (True, True) and site.record() == record

    with site.start("replace_nic", "-e", "replace_nic_phase=after") as process:
        assert process.stdout
        for line in process.stdout:
            if "RETRYING: " in line and "Wait until the new card is published" in line:
                break
        assert site.state() == (True, True)
        site.publish(facts, 2)
        output = process.communicate()[0]
    assert process.returncode == 0 and "gpu-01 is uncordoned and takes pods again" in output, output
    assert site.state() == (False, False) and site.record()["state"] == "done"
    site.pod(NAME)  # the waiting pod gets the new card
    claim = site.plane.expect("GET", f"{RESOURCE}/namespaces/default/resourceclaims/storage")
    assert [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]] == [device]


def test_the_cordon_of_another_user_is_kept(site: Site, machine: Machine) -> None:
    machine.become({})
    site.plane.expect("PATCH", NODE, {"spec": {"unschedulable": True}})
    site.before()
    assert site.state() == (True, False)
    # the old card is still in the slot
    assert "Nothing was changed, and gpu-01 stays cordoned:" in " ".join(site.after(rc=2).split())
    machine.become({CARD: NEW, "0000:59:00.1": NEW})
    record = site.record()
    output = site.after("-e", "fabric_node_name=elsewhere", rc=2)
    assert "There is no Node elsewhere" in output and site.record() == record
    output = site.after()
    assert "gpu-01 stays cordoned, as before" in output and "takes pods again" not in output
    assert site.state() == (True, False) and site.record()["state"] == "done"


def test_a_missing_node_is_reported(site: Site) -> None:
    assert "There is no Node elsewhere" in site.before("-e", "fabric_node_name=elsewhere", rc=2)
    assert not (site.folder / "report").exists() and site.state() == (False, False)


def test_a_card_in_use_is_kept_and_the_node_is_uncordoned(site: Site, machine: Machine) -> None:
    machine.become({})
    content = json.dumps({"devices": [{"address": CARD}]})
    machine.run("sh", "-c", f"mkdir -p {RECORDS} && echo '{content}' > {RECORDS}/7d0c.json")
    output = site.before("-e", "replace_nic_timeout=5", rc=2)
    machine.run("rm", f"{RECORDS}/7d0c.json")
    assert "Do not remove the card: the node's pods have ended, but the card is still in use" in output
    assert f"{CARD}: a pod has it through the resource claim with UID 7d0c" in output
    assert site.state() == (False, False) and not (site.folder / "report").exists()
