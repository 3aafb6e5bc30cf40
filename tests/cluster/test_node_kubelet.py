# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric configures the CPU, memory and topology managers of a kubelet that is a systemd service.

Each test depends on the tests before it. They need two CPUs.
"""

from __future__ import annotations

import json
import os
import shlex
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.cluster.node import ROOT, Node, in_sandbox
from ansible_collections.lanewise.dra.tests.cluster.sandbox import hierarchies
from ansible_collections.lanewise.dra.tests.cluster.site_node import ANSIBLE_PLAYBOOK, Site, SystemdNode
from ansible_collections.lanewise.dra.tests.cluster.systemd import SYSTEMD, Machine

#: Like the unit of the Kubernetes project's kubelet package with kubeadm's drop-in.
UNIT = """[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
EnvironmentFile=-/etc/default/kubelet
# systemd removes empty cgroups that it has not created
ExecStartPre=/bin/sh {folders}
ExecStart={command} $KUBELET_EXTRA_ARGS
Restart=always
StartLimitInterval=0
RestartSec=10
"""
DROP_INS = Path("/etc/kubernetes/kubelet.conf.d")
FILE = DROP_INS / "90-lanewise.conf"
STATES = [ROOT / "cpu_manager_state", ROOT / "memory_manager_state"]
SETTINGS: Object = {
    "cpu_manager_policy": "static",
    "reserved_system_cpus": "0",
    "memory_manager_policy": "Static",
    "reserved_memory": [{"numaNode": 0, "limits": {"memory": "50Mi"}}],  # the node's evictionHard
    "topology_manager_policy": "restricted",
    "topology_manager_scope": "pod",
}
FIELDS = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "reservedMemory": SETTINGS["reserved_memory"],
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
}

pytestmark = [
    pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python"),
    pytest.mark.skipif(not in_sandbox(), reason="needs its own namespaces: 'make test ONLY=install'"),
    pytest.mark.skipif(not Path(SYSTEMD, "systemd").exists(), reason="systemd is not installed"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs a CPU beside the reserved one"),
]


class ServiceNode(SystemdNode):
    """A node whose kubelet runs as `kubelet.service`."""

    def start(self, name: str) -> None:
        if name == "containerd":
            super().start(name)
            return
        self.plane.run = self._install  # type: ignore[method-assign]
        try:
            Node.start(self, name)
        finally:
            del self.plane.run

    def _install(self, _name: str, command: t.Sequence[str]) -> None:
        unit = self.machine.folder / "units" / "kubelet.service"
        folders = self.machine.folder / "cgroups.sh"
        folders.write_text("".join(f"mkdir -p {top / self.folder.name}\n" for top in hierarchies()))
        unit.write_text(UNIT.format(folders=folders, command=shlex.join(["/usr/bin/env", *command[1:]])))
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "start", "kubelet.service")

    def wait_ready(self) -> None:
        try:
            super().wait_ready()
        except Failed as failure:
            journal = self.machine.run(
                "journalctl", "--unit=kubelet.service", "--output=cat", "--lines=30", check=False
            )
            raise Failed(f"{failure}\n{journal.stdout}{journal.stderr}") from None


class KubeletSite(Site):
    """Runs the role fabric with settings for kubelet."""

    def fabric(self, settings: Object, *arguments: str, **options: t.Any) -> int:
        """Run the role. Returns the number of tasks that changed something."""
        node = {"kubelet": settings} if settings else {}
        return self.play(*arguments, playbook="lanewise.dra.fabric", fabric_node=node, fabric_become=False, **options)

    def change(self, settings: Object, **options: t.Any) -> Object:
        """Run only the role's module, which is faster. Returns its result. Raises Failed with its message."""
        return self.module("fabric", node={"kubelet": settings} if settings else {}, **options)

    def pid(self) -> str:
        return self.systemctl("show", "kubelet.service", "--property=MainPID", "--value")

    def reported(self) -> Object:
        """The configuration of the running kubelet, read through the API server once the node is ready."""
        self.node.wait_ready()
        path = f"/api/v1/nodes/{self.node.name}/proxy/configz"

        def served() -> Object | None:
            status, answer = self.plane.request("GET", path)
            return t.cast(Object, answer["kubeletconfig"]) if status == 200 else None

        return t.cast(Object, self.plane.wait_for(served, "kubelet's configuration"))

    def cpus(self, name: str) -> set[int]:
        """The CPUs that a pod's processes may use."""
        text = self.node.execute(name, "/usr/bin/cat", "/proc/self/status")
        (ranges,) = [line.split()[1] for line in text.splitlines() if line.startswith("Cpus_allowed_list:")]
        bounds = [[int(number) for number in part.split("-")] for part in ranges.split(",")]
        return {number for bound in bounds for number in range(bound[0], bound[-1] + 1)}


@pytest.fixture(scope="module")
def site(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[KubeletSite]:
    with Machine() as machine, ServiceNode(newest, machine) as node:
        yield KubeletSite(node, machine, tmp_path_factory.mktemp("site"))


def policies() -> list[str]:
    """The policies in the state files of the CPU and memory managers."""
    return [json.loads(path.read_text())["policyName"] for path in STATES]


def test_a_kubelet_without_drop_ins_is_refused_with_the_fix(site: KubeletSite) -> None:
    before = site.pid()
    with pytest.raises(Failed, match=f"create {DROP_INS} first.*--config-dir={DROP_INS} to KUBELET_EXTRA_ARGS"):
        site.change(SETTINGS)
    assert site.pid() == before and not DROP_INS.exists()
    Path("/etc/default/kubelet").write_text(f"KUBELET_EXTRA_ARGS=--config-dir={DROP_INS}\n")
    DROP_INS.mkdir(parents=True)
    site.systemctl("restart", "kubelet.service")
    assert site.reported()["cpuManagerPolicy"] == "none" and policies() == ["none", "None"]


def test_check_mode_reports_the_change_and_changes_nothing(site: KubeletSite) -> None:
    before = site.pid()
    assert site.fabric(SETTINGS, "--check", "--diff") == 1
    assert '+      "cpuManagerPolicy": "static"' in site.output
    assert site.pid() == before and not list(DROP_INS.iterdir()) and policies() == ["none", "None"]


def test_kubelet_has_the_new_settings_and_new_state_files(site: KubeletSite) -> None:
    before, old = site.pid(), [path.stat().st_ino for path in STATES]
    assert site.fabric(SETTINGS) == 1
    assert site.pid() != before and policies() == ["static", "Static"]
    assert all(path.stat().st_ino != entry for path, entry in zip(STATES, old))
    assert FIELDS.items() <= site.reported().items()


def test_a_pod_with_whole_cpus_has_them_exclusively(site: KubeletSite) -> None:
    node = site.node
    for name, resources in (("shared", {}), ("alone", {"limits": {"cpu": "1", "memory": "64Mi"}})):
        pod = node.pod(name)
        pod["spec"]["containers"][0]["resources"] = resources
        assert node.run_pod(pod)["status"]["qosClass"] == ("Guaranteed" if resources else "BestEffort")
    alone = site.cpus("alone")
    assert len(alone) == 1 and 0 not in alone
    # kubelet updates running containers every ten seconds
    site.plane.wait_for(lambda: not site.cpus("shared") & alone, "the other pod to lose that CPU", 20)
    assert json.loads(STATES[0].read_text())["entries"]
    for name in ("shared", "alone"):
        node.delete_pod(name)


def test_a_second_run_changes_nothing(site: KubeletSite) -> None:
    before = site.pid()
    assert site.fabric(SETTINGS) == 0
    assert not site.change(SETTINGS, _ansible_check_mode=True)["changed"]
    assert site.pid() == before


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"reserved_system_cpus": "0-4095"}, "reserve"),
        ({"cpu_manager_policy_options": {"no-such-option": "true"}}, "no-such-option"),
    ],
)
def test_settings_that_kubelet_rejects_are_reported_and_undone(site: KubeletSite, wrong: Object, reason: str) -> None:
    before = FILE.read_text()
    with pytest.raises(Failed, match=f"kubelet stopped: .*{reason}.*The node is in its previous state"):
        site.change({**SETTINGS, **wrong})
    assert FILE.read_text() == before and policies() == ["static", "Static"]
    assert FIELDS.items() <= site.reported().items()
    assert "cpuManagerPolicyOptions" not in site.reported()


def test_a_new_reservation_gets_new_state_files(site: KubeletSite) -> None:
    """kubelet does not start with the state file of another memory reservation."""
    config = site.node.folder / "kubelet.json"
    settings = json.loads(config.read_text())
    settings["evictionHard"]["memory.available"] = "60Mi"
    config.write_text(json.dumps(settings))
    reserved = [{"numaNode": 0, "limits": {"memory": "60Mi"}}]
    change = site.change({**SETTINGS, "reserved_memory": reserved})
    assert "the node must be drained" in str(change["drain_reasons"])
    assert site.reported()["reservedMemory"] == reserved


def test_absent_restores_the_settings_of_kubelet(site: KubeletSite) -> None:
    before = site.pid()
    assert site.fabric({}, fabric_state="absent") == 1
    assert site.pid() != before and not FILE.exists() and policies() == ["none", "None"]
    reported = site.reported()
    assert reported["cpuManagerPolicy"] == "none" and reported["topologyManagerPolicy"] == "none"
    assert "reservedSystemCPUs" not in reported and "reservedMemory" not in reported
    assert not site.change({}, state="absent")["changed"]
