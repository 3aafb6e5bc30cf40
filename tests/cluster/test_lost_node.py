# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node is lost while a queued job has devices on the node, and while a swap is evicting the node's pods.

The API server, scheduler, controllers and Kueue are real, including the node lifecycle controller. kwok simulates the
pods and renews the nodes' leases, until the test removes a node from its control.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import ANSIBLE_PLAYBOOK, RESOURCE, Playbooks
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing, pod_template
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

TEAM, SWAPPED, TIMEOUT_SECONDS = "farm", "swapped", 180.0
NODES = ("left", "right")
#: With a grace period, a deleted pod exists until its node reports that the containers have ended.
GRACE_PERIOD = {"terminationGracePeriodSeconds": 30}
_PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
CLAIMS: Object = {
    "dra_claims_tiers": [{"name": "gold"}, {"name": "batch", "grace": 0}],
    "dra_claims_templates": [
        {"name": "pair", "namespaces": [TEAM], "align": "pcie_root", "devices": _PAIR},
        *(
            {"name": tier, "namespaces": [SWAPPED], "align": "pcie_root", "tier": tier, "devices": _PAIR}
            for tier in ("gold", "batch")
        ),
    ],
}
QUEUES: Object = {
    "queues_resources": [{"name": "gpus", "classes": ["gpu"]}, {"name": "nics", "classes": ["rdma"]}],
    "queues_teams": [{"name": TEAM, "namespaces": [TEAM], "guaranteed": {"gpus": 2, "nics": 2}}],
}
TIER = {"swap_tier": "gold", "swap_owner": "team a"}
REQUEST = {**TIER, "swap_reason": "release", "swap_count": 2, "swap_timeout": 3}
WORKLOAD = {"name": "pair", "namespace": SWAPPED, "templates": ["gold"]}


@pytest.fixture(scope="module")
def site() -> t.Iterator[QueueSite]:
    flags = {"kube-apiserver": ["--default-unreachable-toleration-seconds=2"]}
    try:
        with ControlPlane(flags=flags, node_lifecycle=True) as plane:
            site = QueueSite(Queueing(plane, lease_seconds=8), {name: machine("hgx-h100") for name in NODES})
            compiled = site.compile(QUEUES, CLAIMS)
            site.queueing.configure(compiled.configuration)
            site.apply_queues(compiled)
            yield site
    except Missing as missing:
        pytest.skip(str(missing))


class Cluster:
    """The cluster's pods, claims and taint rules."""

    def __init__(self, site: QueueSite) -> None:
        self.site, self.plane, self.queueing = site, site.plane, site.queueing

    def pods(self, namespace: str) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.queueing.pods(namespace)}

    def running(self, namespace: str, node: str = "") -> list[str]:
        """The running pods that are not being deleted, on all nodes or on one."""
        return sorted(
            name
            for name, pod in self.pods(namespace).items()
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
            and node in ("", pod["spec"]["nodeName"])
        )

    def rules(self) -> list[Object]:
        return t.cast("list[Object]", self.plane.expect("GET", f"{RESOURCE}/devicetaintrules")["items"])

    def hold(self) -> hold_rules.Hold:
        (hold,) = hold_rules.holds(self.rules())
        return hold

    def start_low_priority(self, node: str, *numbers: int) -> None:
        for number in numbers:
            spec = pod_template("batch", node_selector={"kubernetes.io/hostname": node})["spec"]
            pod = {"metadata": {"name": f"low-{number}"}, "spec": {**spec, **GRACE_PERIOD}}
            self.plane.expect("POST", f"/api/v1/namespaces/{SWAPPED}/pods", pod)

    def leaked(self) -> list[str]:
        """The claims and rules that block devices for nothing: claims without a pod, and rules without owner or
        reason."""
        uids = {pod["metadata"]["uid"] for space in (TEAM, SWAPPED) for pod in self.queueing.pods(space)}
        claims = self.plane.expect("GET", f"{RESOURCE}/resourceclaims")["items"]
        leaked = [
            f"claim {claim['metadata']['name']}"
            for claim in claims
            if (claim.get("status") or {}).get("allocation")
            and not uids & {user["uid"] for user in claim["status"].get("reservedFor") or ()}
        ]
        for rule in self.rules():
            notes = rule["metadata"].get("annotations") or {}
            if not notes.get(hold_rules.OWNER) or not notes.get(hold_rules.REASON):
                leaked.append(f"rule {rule['metadata']['name']}")
        return leaked


def test_the_job_and_the_swap_move_from_a_lost_node_to_the_other(site: QueueSite, tmp_path: Path) -> None:
    cluster, plane = Cluster(site), site.plane
    playbooks = Playbooks(plane, tmp_path)
    job = site.queueing.job("train", TEAM, "pair")
    job["spec"]["template"]["spec"].update(GRACE_PERIOD)
    site.queueing.submit(TEAM, job)
    plane.wait_for(lambda: cluster.running(TEAM), "the job", TIMEOUT_SECONDS)
    (first,) = cluster.running(TEAM)
    lost_node = str(cluster.pods(TEAM)[first]["spec"]["nodeName"])
    (other,) = set(NODES) - {lost_node}
    cluster.start_low_priority(lost_node, 0, 1)
    cluster.start_low_priority(other, 2, 3)
    plane.wait_for(lambda: len(cluster.running(SWAPPED)) == 4, "the low-priority pods", TIMEOUT_SECONDS)
    plane.wait_for(lambda: site.charged(TEAM, "gpus") == 1, "Kueue to charge the job", TIMEOUT_SECONDS)
    devices = _devices(cluster, "low-0", "low-1")
    assert len(devices) == 4 and {device.split("/")[1] for device in devices} == {lost_node}

    # Kubernetes has not yet detected the loss: the node's pods are deleted, but continue to exist
    site.queueing.lose(lost_node)
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=devices)
    assert "2 pod(s) still have devices" in reported and f"on {lost_node}" in reported, reported
    assert "If a node is lost" in reported, reported
    hold = cluster.hold()
    assert {"/".join(device) for device in hold.devices} == set(devices) and hold.owner == "team a"
    assert sum(swap.swap_of(rule) == "gold" for rule in cluster.rules()) == 4

    # the job restarts on the other node: Kueue charges it once, and the first pod still has its devices
    plane.wait_for(lambda: _unreachable(plane, lost_node), "the node to be lost", TIMEOUT_SECONDS)
    plane.wait_for(lambda: cluster.running(TEAM, other), "the job on the other node", TIMEOUT_SECONDS)
    assert cluster.pods(TEAM)[first]["metadata"].get("deletionTimestamp") and site.allocated(TEAM)["lanewise.dev"] == 2
    assert site.charged(TEAM, "gpus") == site.charged(TEAM, "nics") == 1
    plane.wait_for(lambda: not cluster.leaked(), "claims with pods and rules with owners only", TIMEOUT_SECONDS)

    # the next run holds devices of the other node, and releases those of the lost node
    reported = playbooks.run("swap", **REQUEST, swap_workload=WORKLOAD)
    assert {device[1] for device in cluster.hold().devices} == {other} and len(cluster.hold().devices) == 4, reported
    assert not any(swap.swap_of(rule) for rule in cluster.rules())
    assert set(cluster.running(SWAPPED)) <= {"low-2", "low-3"}

    # an operator removes the lost node; its slices are removed with it
    plane.expect("DELETE", f"/api/v1/nodes/{lost_node}")
    plane.expect("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{lost_node}")
    plane.wait_for(
        lambda: site.allocated(TEAM).get("lanewise.dev") == 1, "the lost pod's devices to be free", TIMEOUT_SECONDS
    )
    assert site.charged(TEAM, "gpus") == 1
    plane.wait_for(
        lambda: not {"low-0", "low-1"} & set(cluster.pods(SWAPPED)),
        "the removal of the lost node's pods",
        TIMEOUT_SECONDS,
    )
    assert "changed=0" in playbooks.run("swap", **REQUEST, swap_workload=WORKLOAD)
    playbooks.run("swap", **TIER, swap_state="returned")
    assert cluster.rules() == []
    plane.wait_for(lambda: not cluster.leaked(), "claims with pods and rules with owners only", TIMEOUT_SECONDS)


def _devices(cluster: Cluster, *pods: str) -> list[str]:
    """The devices of the pods' claims, as driver/pool/device."""
    names = [
        status["resourceClaimName"]
        for pod in pods
        for status in cluster.pods(SWAPPED)[pod]["status"]["resourceClaimStatuses"]
    ]
    path = f"{RESOURCE}/namespaces/{SWAPPED}/resourceclaims"
    claims = [cluster.plane.expect("GET", f"{path}/{name}") for name in names]
    results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
    return ["/".join((result["driver"], result["pool"], result["device"])) for result in results]


def _unreachable(plane: ControlPlane, node: str) -> bool:
    taints = plane.expect("GET", f"/api/v1/nodes/{node}")["spec"].get("taints") or ()
    return any(taint["key"] == "node.kubernetes.io/unreachable" and taint["effect"] == "NoExecute" for taint in taints)
