# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node is lost while a queued job has devices on it, and while a swap is ending its pods.

The API server, scheduler, controllers and Kueue are real, including the node lifecycle controller. kwok simulates the
pods and renews the nodes' leases, until the test removes a node from its control.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as forms
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import PROGRAM, RESOURCE, Playbooks
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing, pod_template
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="needs ansible-core beside this Python")

TEAM, SWAPPED, TIMEOUT = "farm", "swapped", 180.0
NODES = ("left", "right")
#: With a grace period, a deleted pod exists until its node reports its end.
ENDING = {"terminationGracePeriodSeconds": 30}
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
ASK = {**TIER, "swap_reason": "release", "swap_count": 2, "swap_timeout": 3}
WORK = {"name": "pair", "namespace": SWAPPED, "templates": ["gold"]}


@pytest.fixture(scope="module")
def site() -> t.Iterator[QueueSite]:
    flags = {"kube-apiserver": ["--default-unreachable-toleration-seconds=2"]}
    try:
        with ControlPlane(flags=flags, node_lifecycle=True) as plane:
            made = QueueSite(Queueing(plane, lease_seconds=8), {name: machine("hgx-h100") for name in NODES})
            compiled = made.compile(QUEUES, CLAIMS)
            made.queueing.configure(compiled.configuration)
            made.apply_queues(compiled)
            yield made
    except Missing as missing:
        pytest.skip(str(missing))


class Cluster:
    """The cluster's pods, claims and taint rules."""

    def __init__(self, site: QueueSite) -> None:
        self.site, self.plane, self.queueing = site, site.plane, site.queueing

    def pods(self, namespace: str) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in self.queueing.pods(namespace)}

    def running(self, namespace: str, node: str = "") -> list[str]:
        """The running pods that are not being deleted, on all nodes or on one."""
        return sorted(
            name
            for name, one in self.pods(namespace).items()
            if one["status"].get("phase") == "Running"
            and not one["metadata"].get("deletionTimestamp")
            and node in ("", one["spec"]["nodeName"])
        )

    def rules(self) -> list[Object]:
        return t.cast("list[Object]", self.plane.expect("GET", f"{RESOURCE}/devicetaintrules")["items"])

    def hold(self) -> forms.Hold:
        (found,) = forms.holds(self.rules())
        return found

    def start_low_priority(self, node: str, *numbers: int) -> None:
        for number in numbers:
            spec = pod_template("batch", node_selector={"kubernetes.io/hostname": node})["spec"]
            pod = {"metadata": {"name": f"low-{number}"}, "spec": {**spec, **ENDING}}
            self.plane.expect("POST", f"/api/v1/namespaces/{SWAPPED}/pods", pod)

    def unrecorded(self) -> list[str]:
        """The claims and rules that block devices for nothing: claims without a pod, and rules without owner or
        reason."""
        uids = {one["metadata"]["uid"] for space in (TEAM, SWAPPED) for one in self.queueing.pods(space)}
        claims = self.plane.expect("GET", f"{RESOURCE}/resourceclaims")["items"]
        found = [
            f"claim {one['metadata']['name']}"
            for one in claims
            if (one.get("status") or {}).get("allocation")
            and not uids & {user["uid"] for user in one["status"].get("reservedFor") or ()}
        ]
        for one in self.rules():
            notes = one["metadata"].get("annotations") or {}
            if not notes.get(forms.OWNER) or not notes.get(forms.REASON):
                found.append(f"rule {one['metadata']['name']}")
        return found


def test_the_job_and_the_swap_of_a_lost_node_move_to_the_other(site: QueueSite, tmp_path: Path) -> None:
    found, plane = Cluster(site), site.plane
    playbooks = Playbooks(plane, tmp_path)
    job = site.queueing.job("train", TEAM, "pair")
    job["spec"]["template"]["spec"].update(ENDING)
    site.queueing.submit(TEAM, job)
    plane.wait_for(lambda: found.running(TEAM), "the job", TIMEOUT)
    (first,) = found.running(TEAM)
    lost_node = str(found.pods(TEAM)[first]["spec"]["nodeName"])
    (other,) = set(NODES) - {lost_node}
    found.start_low_priority(lost_node, 0, 1)
    found.start_low_priority(other, 2, 3)
    plane.wait_for(lambda: len(found.running(SWAPPED)) == 4, "the low-priority pods", TIMEOUT)
    plane.wait_for(lambda: site.charged(TEAM, "gpus") == 1, "Kueue to charge the job", TIMEOUT)
    devices = _devices(found, "low-0", "low-1")
    assert len(devices) == 4 and {one.split("/")[1] for one in devices} == {lost_node}

    # Kubernetes has not detected the loss yet: the node's pods are deleted, but do not end
    site.queueing.lose(lost_node)
    reported = playbooks.run("swap", rc=2, **ASK, swap_devices=devices)
    assert "2 pod(s) still have devices" in reported and f"on {lost_node}" in reported, reported
    assert "If a node is lost" in reported, reported
    hold = found.hold()
    assert {"/".join(one) for one in hold.devices} == set(devices) and hold.owner == "team a"
    assert sum(swap.swap_of(one) == "gold" for one in found.rules()) == 4

    # the job restarts on the other node: Kueue charges it once, and its first pod keeps its devices until it ends
    plane.wait_for(lambda: _unreachable(plane, lost_node), "the node to be lost", TIMEOUT)
    plane.wait_for(lambda: found.running(TEAM, other), "the job on the other node", TIMEOUT)
    assert found.pods(TEAM)[first]["metadata"].get("deletionTimestamp") and site.allocated(TEAM)["lanewise.dev"] == 2
    assert site.charged(TEAM, "gpus") == site.charged(TEAM, "nics") == 1
    plane.wait_for(lambda: not found.unrecorded(), "claims with pods and rules with owners only", TIMEOUT)

    # the next run holds devices of the other node, and releases those of the lost node
    reported = playbooks.run("swap", **ASK, swap_workload=WORK)
    assert {one[1] for one in found.hold().devices} == {other} and len(found.hold().devices) == 4, reported
    assert not any(swap.swap_of(one) for one in found.rules())
    assert set(found.running(SWAPPED)) <= {"low-2", "low-3"}

    # an operator removes the lost node; its slices are removed with it
    plane.expect("DELETE", f"/api/v1/nodes/{lost_node}")
    plane.expect("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{lost_node}")
    plane.wait_for(lambda: site.allocated(TEAM).get("lanewise.dev") == 1, "the lost pod's devices to be free", TIMEOUT)
    assert site.charged(TEAM, "gpus") == 1
    plane.wait_for(lambda: not {"low-0", "low-1"} & set(found.pods(SWAPPED)), "pods of the lost node to go", TIMEOUT)
    assert "changed=0" in playbooks.run("swap", **ASK, swap_workload=WORK)
    playbooks.run("swap", **TIER, swap_state="returned")
    assert found.rules() == []
    plane.wait_for(lambda: not found.unrecorded(), "claims with pods and rules with owners only", TIMEOUT)


def _devices(found: Cluster, *pods: str) -> list[str]:
    """The devices of the pods' claims, as driver/pool/device."""
    names = [
        one["resourceClaimName"] for pod in pods for one in found.pods(SWAPPED)[pod]["status"]["resourceClaimStatuses"]
    ]
    path = f"{RESOURCE}/namespaces/{SWAPPED}/resourceclaims"
    claims = [found.plane.expect("GET", f"{path}/{name}") for name in names]
    results = [one for claim in claims for one in claim["status"]["allocation"]["devices"]["results"]]
    return ["/".join((one["driver"], one["pool"], one["device"])) for one in results]


def _unreachable(plane: ControlPlane, node: str) -> bool:
    taints = plane.expect("GET", f"/api/v1/nodes/{node}")["spec"].get("taints") or ()
    return any(one["key"] == "node.kubernetes.io/unreachable" and one["effect"] == "NoExecute" for one in taints)
