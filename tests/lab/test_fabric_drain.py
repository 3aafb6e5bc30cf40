# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric on a cluster node: it drains the node before changes that affect pods, and then uncordons it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ADMIN, ControlPlane
from ansible_collections.lanewise.dra.tests.lab.cluster import TIMEOUT, Member, one_member
from ansible_collections.lanewise.dra.tests.lab.node import Lab
from ansible_collections.lanewise.dra.tests.lab.test_fabric_role import ansible
from environment import Missing  # tools/lab.py has put its folder on the path

CARD = "0000:23:00.0"
VFS = f"/sys/bus/pci/devices/{CARD}/sriov_numvfs"
NAMESPACE = "/namespaces/default"
PODS = f"/api/v1{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1{NAMESPACE}/deployments"
BUDGETS = f"/apis/policy/v1{NAMESPACE}/poddisruptionbudgets"
LABELS = {"app": "trainer"}


@dataclass
class Site:
    """A cluster node, with a Deployment of one pod."""

    lab: Lab
    node: Member

    @property
    def plane(self) -> ControlPlane:
        return self.node.plane

    def play(self, vfs: int, fails: bool = False, **more: t.Any) -> str:
        """Run the playbook with a number of VFs. Returns its output."""
        variables: Object = {
            "fabric_nics": [{"name": "rails", "select": {"address": [CARD]}, "count": 1, "num_vfs": vfs}],
            "fabric_kubeconfig": str(self.plane.kubeconfig),
            **more,
        }
        arguments = ("-i", str(self.lab.write_inventory()), "-e", json.dumps(variables))
        return ansible("ansible-playbook", "lanewise.dra.fabric", *arguments, fails=fails)

    @property
    def vfs(self) -> int:
        return int(self.node.machine.ssh(f"cat {VFS}"))

    @property
    def cordoned(self) -> bool:
        spec = self.plane.expect("GET", f"/api/v1/nodes/{self.node.name}")["spec"]
        return bool(spec.get("unschedulable", False))

    def cordon(self, state: bool) -> None:
        self.plane.expect("PATCH", f"/api/v1/nodes/{self.node.name}", {"spec": {"unschedulable": state}})

    def pod(self) -> Object:
        """Wait until the Deployment's pod runs. Returns it."""

        def running() -> Object | None:
            time.sleep(0.5)
            for pod in self.plane.expect("GET", PODS)["items"]:
                ready = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", ())}
                if ready.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                    return t.cast(Object, pod)
            return None

        found: Object = self.plane.wait_for(running, "the Deployment's pod", TIMEOUT)
        return found

    def deploy(self, grace: int = 1) -> None:
        spec = self.node.pod("trainer", restartPolicy="Always", terminationGracePeriodSeconds=grace)["spec"]
        del spec["nodeName"]
        template = {"metadata": {"labels": LABELS}, "spec": spec}
        item = {
            "metadata": {"name": "trainer"},
            "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template},
        }
        self.plane.expect("POST", DEPLOYMENTS, item)

    def undeploy(self) -> None:
        self.plane.expect("DELETE", f"{DEPLOYMENTS}/trainer")

        def gone() -> bool:
            time.sleep(0.5)
            pods = self.plane.expect("GET", PODS)["items"]
            for pod in pods:  # a pod may be in its grace period
                self.plane.request("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
            return not pods

        self.plane.wait_for(gone, "the end of the pods", TIMEOUT)

    @contextlib.contextmanager
    def budget(self) -> t.Iterator[None]:
        """A disruption budget that allows no eviction. It is in effect: its controller has counted the pods."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": LABELS}}
        self.plane.expect("POST", BUDGETS, {"metadata": {"name": "trainer"}, "spec": spec})
        path = f"{BUDGETS}/trainer"
        try:
            self.plane.wait_for(
                lambda: self.plane.expect("GET", path).get("status", {}).get("currentHealthy") == 1, "the budget"
            )
            yield
        finally:
            self.plane.request("DELETE", path)


@pytest.fixture(name="site", scope="module")
def _site() -> t.Iterator[Site]:
    with contextlib.ExitStack() as stack:
        try:
            lab, node = stack.enter_context(one_member())
        except Missing as missing:
            pytest.skip(str(missing))
        yield Site(lab, node)


@pytest.fixture(autouse=True)
def _start_with_one_pod_and_two_vfs(site: Site) -> t.Iterator[None]:
    if not site.plane.expect("GET", DEPLOYMENTS)["items"]:
        site.deploy()
    site.cordon(False)
    site.node.machine.ssh(f"[ $(cat {VFS}) = 2 ] || {{ echo 0 > {VFS}; echo 2 > {VFS}; }}; udevadm settle")
    site.pod()
    yield


def test_pods_are_evicted_before_a_change_that_affects_them(site: Site) -> None:
    before = site.pod()["metadata"]
    text = site.play(2, fabric_node={"sysctl": {"net.core.rmem_max": 8388608}})
    assert "changed=1" in text  # without an eviction
    assert site.pod()["metadata"]["uid"] == before["uid"]

    site.play(4)
    assert site.vfs == 4 and not site.cordoned
    after = site.pod()["metadata"]
    assert after["uid"] != before["uid"]
    assert site.plane.request("GET", f"{PODS}/{before['name']}")[0] == 404


def test_a_failed_change_returns_the_node_to_service(site: Site) -> None:
    before = site.pod()["metadata"]["uid"]
    # a program that is not a pod uses the VF
    site.node.machine.ssh(
        f"ip netns add other; ip link set dev $(ls /sys/bus/pci/devices/{CARD}/virtfn0/net) netns other; "
        "ip netns exec other sleep 3600 > /dev/null 2>&1 & echo $! > /run/other.pid"
    )
    try:
        text = site.play(4, fails=True)
        assert "in another network namespace" in text
        assert site.vfs == 2 and not site.cordoned
        assert site.pod()["metadata"]["uid"] != before  # it was evicted
    finally:
        site.node.machine.ssh(
            "kill $(cat /run/other.pid); ip netns delete other; "
            f"until [ $(ls /sys/bus/pci/devices/{CARD}/virtfn0/net) ]; do sleep 0.5; done; udevadm settle"
        )


def test_the_cordon_of_another_user_stays(site: Site) -> None:
    site.cordon(True)
    site.play(4)
    assert site.vfs == 4 and site.cordoned


def test_the_drain_waits_for_a_disruption_budget(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = site.pod()["metadata"]["uid"]
    log = tmp_path / "log"
    monkeypatch.setenv("ANSIBLE_LOG_PATH", str(log))
    client = site.plane.client(*ADMIN)
    ended = threading.Event()

    def allow() -> None:
        """Delete the budget once it has refused an eviction."""
        while not ended.wait(0.2):
            if log.exists() and "RETRYING" in log.read_text():
                client.request("DELETE", f"{BUDGETS}/trainer")
                return

    with site.budget():
        thread = threading.Thread(target=allow)
        thread.start()
        try:
            text = site.play(4)
        finally:
            ended.set()
            thread.join()
            client.close()
    assert "RETRYING" in text and site.vfs == 4 and not site.cordoned
    assert site.pod()["metadata"]["uid"] != before


def test_a_budget_that_allows_no_eviction_ends_the_run_without_a_change(site: Site) -> None:
    before = site.pod()["metadata"]["uid"]
    with site.budget():
        text = site.play(4, fails=True, fabric_drain_timeout=10)
    assert "disruption budget" in text
    assert site.vfs == 2 and not site.cordoned
    assert site.pod()["metadata"]["uid"] == before


def test_a_pod_that_does_not_end_ends_the_run_without_a_change(site: Site) -> None:
    site.undeploy()
    site.deploy(grace=3600)  # it ignores SIGTERM
    before = site.pod()["metadata"]
    try:
        text = site.play(4, fails=True, fabric_drain_timeout=10)
        assert "still has pods after" in text
        assert site.vfs == 2 and not site.cordoned
        assert "deletionTimestamp" in site.plane.expect("GET", f"{PODS}/{before['name']}")["metadata"]
    finally:
        site.undeploy()


def test_a_node_is_uncordoned_once_kubelet_reports_the_new_boot(site: Site) -> None:
    """While another network namespace exists, the exclusive mode of RDMA devices can be set only by a reboot."""
    machine = site.node.machine
    before = site.plane.expect("GET", f"/api/v1/nodes/{site.node.name}")["status"]["nodeInfo"]["bootID"]
    pod = site.pod()["metadata"]["uid"]
    machine.ssh("modprobe ib_core; ip netns add other")
    site.node.stay_connected()
    node = {"rdma_netns_mode": "exclusive", "kernel_modules": ["ib_core"]}
    text = site.play(2, fabric_node=node, fabric_reboot_ok=True)
    assert "Wait until kubelet reports this boot" in text
    boot = machine.ssh("cat /proc/sys/kernel/random/boot_id")
    boot_id = site.plane.expect("GET", f"/api/v1/nodes/{site.node.name}")["status"]["nodeInfo"]["bootID"]
    assert boot == boot_id != before
    assert not site.cordoned and site.vfs == 2
    assert machine.ssh("cat /sys/module/ib_core/parameters/netns_mode") == "N"
    assert site.pod()["metadata"]["uid"] != pod
