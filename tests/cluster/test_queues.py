# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Teams lend each other devices, with the real Kueue, JobSet and scheduler, and with simulated nodes.

Two nodes have eight aligned pairs each, and two others have divided NICs. Each test compares what Kueue has charged to
a team with what the scheduler has allocated to it.
"""

from __future__ import annotations

import typing as t
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.cluster import title
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue, reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.inputs import objects_of
from ansible_collections.lanewise.dra.tests.cluster.queue_site import DIVIDED, QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing, pod_template
from ansible_collections.lanewise.dra.tests.common.engine import require_engine

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

RESOURCES = [
    {"name": "gpus", "classes": ["gpu"]},
    {"name": "nics", "classes": ["rdma"]},
    {"name": "bandwidth", "classes": ["nic-share"], "capacity": "bandwidth"},
]
BUNDLES = {"pairs": {"gpus": 1, "nics": 1}}
TIMEOUT_SECONDS = 120.0  # on a busy machine
_PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
#: Kueue's settings for gangs: if not all pods are ready in time, all are evicted and start again.
GANGS: Object = {
    "waitForPodsReady": {
        "timeout": "15s",
        "recoveryTimeout": "15s",
        "blockAdmission": False,
        "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 1, "backoffMaxSeconds": 2},
    }
}


def _claims(*teams: str) -> Object:
    return {
        "dra_claims_site": teams[0],
        "dra_claims_templates": [
            {"name": "pair", "namespaces": list(teams), "align": "pcie_root", "devices": _PAIR},
            {
                "name": "share",
                "namespaces": list(teams),
                "devices": [{"name": "nic", "kind": "nic", "share": {"bandwidth": "99.5G"}}],
            },
        ],
    }


def _queues(*teams: Object, **more: t.Any) -> Object:
    named = [{"namespaces": [team["name"]], **team} for team in teams]
    return {
        "queues_resources": RESOURCES,
        "queues_bundles": BUNDLES,
        "queues_teams": named,
        "queues_priorities": [{"name": "urgent", "value": 1000}],
        **{f"queues_{key}": value for key, value in more.items()},
    }


@pytest.fixture(scope="module")
def site(queueing: Queueing) -> QueueSite:
    nodes = {name: machine("hgx-h100") for name in ("pairs-a", "pairs-b")}
    nodes.update({name: machine("sriov", DIVIDED) for name in ("shares-a", "shares-b")})
    return QueueSite(queueing, nodes)


class Work:
    """The teams' jobs and their state."""

    def __init__(self, site: QueueSite) -> None:
        self.site, self.queueing, self.plane = site, site.queueing, site.plane
        self.jobs: dict[str, list[str]] = {}

    def submit(self, team: str, count: int, template: str = "pair", priority: str = "", prefix: str = "job") -> None:
        """Submit jobs with one pod each."""
        names = self.jobs.setdefault(team, [])
        for _index in range(count):
            name = f"{prefix}-{len(names)}"
            self.queueing.submit(team, self.queueing.job(name, team, template, priority=priority))
            names.append(name)

    def running(self, team: str) -> list[str]:
        """The jobs of a team that have a running pod."""
        pods = self.queueing.pods(team)
        owners = [
            pod["metadata"]["ownerReferences"][0]["name"]
            for pod in pods
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]
        return sorted(owners)

    def wait_running(self, **counts: int) -> None:
        """Wait until this many jobs of each team run, and Kueue has charged what the scheduler has allocated."""

        def as_expected() -> bool:
            for team, count in counts.items():
                allocated = self.site.allocated(team)
                if len(self.running(team)) != count or allocated.get("lanewise.dev", 0) != count:
                    return False
            return all(self.site.charged(team, "nics") == count for team, count in counts.items())

        try:
            self.plane.wait_for(as_expected, f"{counts} running jobs", TIMEOUT_SECONDS)
        except Exception as error:
            shown = {
                team: (len(self.running(team)), self.site.allocated(team), self.queueing.usage(team)) for team in counts
            }
            raise AssertionError(f"{error}: {shown}\n{self.queueing.log('kueue')[-3000:]}") from error

    def reasons(self, team: str, kind: str = "Preempted") -> list[str]:
        """The reasons for which jobs of a team were preempted or evicted."""
        reasons = []
        for workload in self.queueing.workloads(team):
            for condition in workload.get("status", {}).get("conditions") or ():
                if condition["type"] == kind and condition["status"] == "True":
                    reasons.append(condition["reason"])
        return sorted(reasons)

    def end(self) -> None:
        """Delete all jobs, and wait until their devices are free."""
        for team, names in self.jobs.items():
            self.queueing.remove(team, *names)
        teams, self.jobs = list(self.jobs), {}
        self.plane.wait_for(
            lambda: not any(self.site.allocated(team) for team in teams),
            f"devices of {', '.join(teams)} to be free",
            TIMEOUT_SECONDS,
        )


@pytest.fixture
def work(site: QueueSite) -> t.Iterator[Work]:
    work = Work(site)
    yield work
    work.end()


def _apply_queues(site: QueueSite, variables: Object, *teams: str, **more: t.Any) -> None:
    compiled = site.compile(variables, _claims(*teams))
    assert compiled.warnings == []
    site.queueing.configure({**compiled.configuration, **more})
    site.apply_queues(compiled)


def test_two_teams_lend_each_other_idle_quota(site: QueueSite, work: Work) -> None:
    """Idle quota is lent, the owner reclaims it, and jobs with a higher priority preempt others. Kueue reports that a
    job is too large."""
    red = {"name": "red", "guaranteed": {"pairs": 8}}
    blue = {"name": "blue", "guaranteed": {"pairs": 8}, "borrow": {"gpus": 4}}
    _apply_queues(site, _queues(red, blue), "red", "blue")
    queueing = site.queueing

    work.submit("blue", 13)
    work.wait_running(blue=12)  # eight guaranteed pairs and four borrowed ones
    assert site.borrowed("blue", "gpus") == 4 and site.charged("blue", "gpus") == 12
    (waiting,) = set(work.jobs["blue"]) - set(work.running("blue"))
    condition = queueing.condition("blue", waiting, "QuotaReserved")
    assert condition["status"] == "False" and "insufficient" in condition["message"], condition
    assert not queueing.admitted("blue", waiting)

    work.submit("red", 8)
    work.wait_running(red=8, blue=8)
    assert work.reasons("blue") == ["InCohortReclamation"] * 4 and work.reasons("red") == []
    assert site.borrowed("blue", "gpus") == 0

    work.submit("red", 1, priority="urgent", prefix="urgent")
    site.plane.wait_for(lambda: work.jobs["red"][-1] in work.running("red"), "the urgent job", TIMEOUT_SECONDS)
    work.wait_running(red=8, blue=8)
    assert work.reasons("red") == ["InClusterQueue"]

    large = queueing.job("large", "blue", "pair", pods=13)
    work.jobs["blue"].append(queueing.submit("blue", large))
    condition = site.plane.wait_for(
        lambda: queueing.condition("blue", "large", "QuotaReserved"),
        "Kueue's message about the large job",
        TIMEOUT_SECONDS,
    )
    assert "request (13) > maximum capacity (12)" in condition["message"], condition


def _pending_jobs(site: QueueSite, name: str) -> int:
    """The number of jobs that wait in a ClusterQueue, according to Kueue, which updates it after the job's status."""
    (queue,) = [entry for entry in site.objects()["ClusterQueue"] if entry["metadata"]["name"] == name]
    return int((queue.get("status") or {}).get("pendingWorkloads") or 0)


def test_a_plan_predicts_the_admitted_jobs(site: QueueSite, work: Work) -> None:
    """The plan counts a team's quota and what it can borrow now, while the lender uses a part of the quota."""
    fig, elm = {"name": "fig", "guaranteed": {"pairs": 5}, "borrow": {"gpus": 4}}, {"name": "elm"}
    _apply_queues(site, _queues(fig, {**elm, "guaranteed": {"pairs": 6}}), "fig", "elm")
    queueing = site.queueing
    work.submit("elm", 4)
    work.submit("fig", 1)
    work.wait_running(elm=4, fig=1)
    objects = objects_of(site.objects())
    (template,) = [
        manifest["spec"]["spec"]
        for manifest in objects
        if manifest["kind"] == "ResourceClaimTemplate" and title(manifest) == "fig/pair"
    ]
    labels = {kueue.QUEUE_LABEL: "fig"}
    job = Workload("job", (template,), pod_template("pair")["spec"], "fig", labels)
    fleet = reader.read(objects, kueue_configuration=queueing.configuration)
    (predicted,) = fits.fit(fleet, [job], require_engine())
    assert not predicted.at_least and not predicted.at_most, predicted.notes
    assert predicted.total == 6 and predicted.over_quota > 0, predicted
    assert predicted.quota.startswith("ClusterQueue"), predicted
    work.submit("fig", predicted.total + 1)
    work.wait_running(elm=4, fig=1 + predicted.total)
    (waiting,) = set(work.jobs["fig"]) - set(work.running("fig"))
    condition = queueing.condition("fig", waiting, "QuotaReserved")
    assert condition["status"] == "False" and "insufficient" in condition["message"], condition
    site.plane.wait_for(lambda: _pending_jobs(site, "fig") == 1, "Kueue to count the waiting job", TIMEOUT_SECONDS)
    (later,) = fits.fit(
        reader.read(objects_of(site.objects()), kueue_configuration=queueing.configuration), [job], require_engine()
    )
    assert later.total == 0 and any("1 job(s) wait" in note for note in later.notes), later


def test_a_plan_predicts_jobs_with_a_flavor_for_each_node(site: QueueSite, work: Work) -> None:
    """Each node has a flavor. Jobs use the three pairs of the first flavor's quota, and then all pairs of the second
    node."""
    compiled = site.compile(_queues({"name": "oak", "guaranteed": {"pairs": 3}}), _claims("oak"))
    (queue,) = [manifest for manifest in compiled.objects if manifest["kind"] == "ClusterQueue"]
    (flavor,) = [manifest for manifest in compiled.objects if manifest["kind"] == "ResourceFlavor"]
    (group,) = queue["spec"]["resourceGroups"]
    first = group["flavors"][0]["resources"]
    second = [{**entry, "nominalQuota": "20"} for entry in first]
    group["flavors"] = [{"name": "node-a", "resources": first}, {"name": "node-b", "resources": second}]
    for name in ("a", "b"):
        labels = {"kubernetes.io/hostname": f"pairs-{name}"}
        compiled.objects.append({**flavor, "metadata": {"name": f"node-{name}"}, "spec": {"nodeLabels": labels}})
    site.queueing.configure(compiled.configuration)
    site.apply_queues(compiled)
    objects = objects_of(site.objects())
    (template,) = [
        manifest["spec"]["spec"]
        for manifest in objects
        if manifest["kind"] == "ResourceClaimTemplate" and title(manifest) == "oak/pair"
    ]
    job = Workload("job", (template,), pod_template("pair")["spec"], "oak", {kueue.QUEUE_LABEL: "oak"})
    fleet = reader.read(objects, kueue_configuration=site.queueing.configuration)
    (predicted,) = fits.fit(fleet, [job], require_engine())
    assert (
        predicted.total == 11 and "admits 20 to flavor node-b first, and its nodes have room for 8" in predicted.quota
    ), predicted
    assert not predicted.at_least and not predicted.at_most, predicted.notes
    work.submit("oak", predicted.total + 1)
    site.plane.wait_for(
        lambda: len(work.running("oak")) == predicted.total, "the predicted jobs to run", TIMEOUT_SECONDS
    )
    (waiting,) = set(work.jobs["oak"]) - set(work.running("oak"))
    site.plane.wait_for(lambda: site.queueing.admitted("oak", waiting), "the last job to be admitted", TIMEOUT_SECONDS)
    nodes = [pod["spec"].get("nodeName") for pod in site.queueing.pods("oak")]
    assert sorted(nodes, key=str) == [None] + ["pairs-a"] * 3 + ["pairs-b"] * 8


def test_three_teams_share_the_pool_according_to_their_weights(site: QueueSite, work: Work) -> None:
    """Ten pairs of the pool are divided among three teams with the weights 1, 1 and 3, although two of the teams had
    all pairs before."""
    teams = [
        {"name": name, "guaranteed": {"pairs": 2}, "weight": weight}
        for name, weight in (("ant", 1), ("bee", 1), ("cat", 3))
    ]
    _apply_queues(site, _queues(*teams, pool={"pairs": 10}), "ant", "bee", "cat")
    work.submit("ant", 10)
    work.submit("bee", 10)
    site.plane.wait_for(
        lambda: len(work.running("ant") + work.running("bee")) == 16, "the whole pool to be lent", TIMEOUT_SECONDS
    )
    work.submit("cat", 10)
    work.wait_running(ant=4, bee=4, cat=8)
    assert set(work.reasons("ant") + work.reasons("bee")) <= {"InCohortFairSharing", "InCohortReclamation"}


def test_a_gang_starts_whole_or_not_at_all(site: QueueSite, work: Work) -> None:
    """A JobSet has two jobs of eight pairs each. While one NIC is broken, one pod waits, and Kueue evicts all pods and
    retries until the NIC works."""
    _apply_queues(site, _queues({"name": "gang", "guaranteed": {"pairs": 16}}), "gang", **GANGS)
    queueing, plane = site.queueing, site.plane
    rule = site.taint_device("broken-nic", "pairs-a", "lanewise.dev", "pci-0000-19-00-0")
    part = {"parallelism": 8, "completions": 8, "backoffLimit": 100, "template": pod_template("pair")}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "gang"}},
        "spec": {
            "failurePolicy": {"maxRestarts": 100},
            "replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": part}}],
        },
    }
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/gang/jobsets"
    plane.expect("POST", path, jobset)
    try:
        plane.wait_for(lambda: len(work.running("gang")) == 15, "15 pods of the gang to run", TIMEOUT_SECONDS)
        first = {pod["metadata"]["uid"] for pod in queueing.pods("gang")}
        plane.wait_for(lambda: site.charged("gang", "gpus") == 16, "Kueue to charge the whole gang", TIMEOUT_SECONDS)
        plane.wait_for(lambda: _requeued(queueing), "the gang to be evicted", TIMEOUT_SECONDS)
        plane.wait_for(
            lambda: not first & {pod["metadata"]["uid"] for pod in queueing.pods("gang")},
            "all pods to end",
            TIMEOUT_SECONDS,
        )
        plane.expect("DELETE", rule)
        plane.wait_for(lambda: len(work.running("gang")) == 16, "all pods of the gang to run", TIMEOUT_SECONDS)
        plane.wait_for(
            lambda: queueing.condition("gang", "train", "PodsReady").get("status") == "True", "ready", TIMEOUT_SECONDS
        )
        assert site.allocated("gang") == {"gpu.nvidia.com": 16, "lanewise.dev": 16}
        # Kueue 0.19.2 requeues an evicted job without its devices, and a moment later with them. If it schedules the
        # job in between, the job is admitted without a charge (docs/queues.md).
        (part,) = queueing.workload("gang", "train")["status"]["admission"]["podSetAssignments"]
        charge = part.get("resourceUsage")
        assert charge is None or {quantity.parse(charge[f"lanewise.dev/{entry}"]) for entry in ("gpus", "nics")} == {16}
        expected = 0 if charge is None else 16
        what = f"Kueue to charge {expected} GPUs"
        plane.wait_for(lambda: site.charged("gang", "gpus") == expected, what, TIMEOUT_SECONDS)
    finally:
        plane.request("DELETE", rule)
        plane.expect("DELETE", f"{path}/train", {"propagationPolicy": "Background"})
        plane.wait_for(lambda: not queueing.pods("gang"), "the gang's pods to be deleted", TIMEOUT_SECONDS)
        plane.wait_for(lambda: not site.allocated("gang"), "the gang's devices to be released", TIMEOUT_SECONDS)


def _requeued(queueing: Queueing) -> bool:
    """Whether Kueue has evicted and requeued the gang because not all of its pods were ready in time."""
    status = queueing.workload("gang", "train").get("status") or {}
    evicted = queueing.condition("gang", "train", "Evicted")
    return bool((status.get("requeueState") or {}).get("count")) and evicted.get("reason") == "PodsReadyTimeout"


def test_bandwidth_is_lent_and_reclaimed(site: QueueSite, work: Work) -> None:
    """The driver rounds shares of 99.5G up to 100G. Kueue charges the amount that the scheduler allocates."""
    teams = [{"name": name, "guaranteed": {"bandwidth": "400G"}} for name in ("sky", "sea")]
    _apply_queues(site, _queues(*teams), "sky", "sea")
    share = Fraction(100 * 10**9)

    def settled(**counts: int) -> t.Callable[[], bool]:
        return lambda: all(
            len(work.running(team)) == count
            and site.consumed(team, "bandwidth") == count * share == site.charged(team, "bandwidth")
            for team, count in counts.items()
        )

    work.submit("sky", 6, "share")
    site.plane.wait_for(settled(sky=6), "six shares", TIMEOUT_SECONDS)
    assert site.borrowed("sky", "bandwidth") == 2 * share
    work.submit("sea", 4, "share")
    site.plane.wait_for(settled(sky=4, sea=4), "four shares each", TIMEOUT_SECONDS)
    assert work.reasons("sky") == ["InCohortReclamation"] * 2
