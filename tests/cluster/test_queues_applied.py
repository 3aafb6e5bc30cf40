# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/queues.yml on a real API server with Kueue: it applies and prunes queues, and configures Kueue."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.objects import LOANS
from ansible_collections.lanewise.dra.tests.claims.test_claims_playbook import ANSIBLE_PLAYBOOK, Folder
from ansible_collections.lanewise.dra.tests.claims.test_queues_playbook import EXAMPLE
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import CONFIG_KEY, CONFIG_MAP, KUEUE, NAMESPACE, Queueing
from ansible_collections.lanewise.dra.tests.common.process_tree import kill_tree

pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")
pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kueue-controller-manager"
CONFIGURATION = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"
MARK = "lanewise.dev/queues-configuration"
VERSION = "lanewise.dev/queues-configuration-version"


@pytest.fixture
def installed(queueing: Queueing) -> Queueing:
    """Kueue with the Deployment of its chart. The Deployment has no pods, because Kueue runs as a process."""
    labels = {"app": "kueue"}
    containers = [{"name": "manager", "image": "none.example.com/kueue"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    path, _slash, name = DEPLOYMENT.rpartition("/")
    queueing.plane.expect("POST", path, {"metadata": {"name": name}, "spec": spec})
    return queueing


def _names(plane: ControlPlane, kind: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in plane.expect("GET", f"{KUEUE}/{kind}")["items"])


def _configuration(plane: ControlPlane) -> Object:
    return t.cast(Object, yaml.safe_load(plane.expect("GET", CONFIGURATION)["data"][CONFIG_KEY]))


def _mark(plane: ControlPlane, name: str = MARK) -> str:
    metadata = plane.expect("GET", DEPLOYMENT)["spec"]["template"]["metadata"]
    return str((metadata.get("annotations") or {}).get(name, ""))


def test_the_queues_of_the_example_are_applied_once_and_run_jobs(installed: Queueing, tmp_path: Path) -> None:
    """The guide's example is applied once, Kueue starts with its configuration, and a job of the example runs."""
    queueing, plane = installed, installed.plane
    folder = Folder(tmp_path)
    folder.report("report")
    variables = {
        **EXAMPLE,
        "dra_claims_kubeconfig": str(plane.kubeconfig),
        "dra_claims_create_namespaces": True,
        "queues_create_namespaces": True,
        "queues_configure": True,
        "queues_prune": True,
    }
    before = _configuration(plane)

    folder.run(**variables)  # the claims
    output = folder.run("--check", "--diff", playbook="queues", **variables)
    assert "would be applied: ClusterQueue red" in output and "deviceClassMappings" in output, output
    assert _names(plane, "clusterqueues") == [] and _configuration(plane) == before and not _mark(plane)

    output = folder.run(playbook="queues", **variables)
    assert "applied: ClusterQueue red" in output, output
    assert _names(plane, "clusterqueues") == ["blue", "red"] and _names(plane, "cohorts") and _mark(plane)
    configured = _configuration(plane)
    assert {name: configured[name] for name in before if name not in ("resources", "featureGates")} == {
        name: before[name] for name in before if name not in ("resources", "featureGates")
    }
    mappings = {
        device_class_mapping["name"]: device_class_mapping["deviceClassNames"]
        for device_class_mapping in configured["resources"]["deviceClassMappings"]
    }
    assert mappings == {"lanewise.dev/gpus": ["gpu"], "lanewise.dev/nics": ["rdma"]}

    queueing.restart()
    site = QueueSite(queueing, {"h100-01": machine("hgx-h100")})
    queueing.submit("red", queueing.job("train", "red", "near-pair-queue", priority="urgent"))
    plane.wait_for(lambda: queueing.running("red", "train"), "the job of the example", 120)
    plane.wait_for(lambda: site.charged("red", "gpus") == 1, "the job in the queue's status", 120)
    assert site.allocated("red") == {"gpu.nvidia.com": 1, "lanewise.dev": 1}
    queueing.remove("red", "train")

    mark, version = _mark(plane), _mark(plane, VERSION)
    output = folder.run(playbook="queues", **variables)
    assert "changed=0" in output and "nothing applied: the cluster is up to date" in output, output
    assert "Kueue's configuration: " not in output  # no warning about missing settings
    config_map = plane.expect("GET", CONFIGURATION)
    assert _mark(plane, VERSION) == version == config_map["metadata"]["resourceVersion"]
    plane.expect("PUT", CONFIGURATION, {**config_map, "data": {CONFIG_KEY: yaml.safe_dump(before)}})
    folder.run(playbook="queues", **variables)
    assert _configuration(plane) == configured
    assert _mark(plane) == mark and _mark(plane, VERSION) != version  # Kueue is restarted
    _check_that_a_loan_ends(queueing, folder, variables)
    _check_that_jobs_are_replayed(queueing, folder)
    if os.environ.get("LANEWISE_SLOW"):  # takes eight more runs of the playbook
        _check_recovery_from_faults(queueing, folder, variables)
    without_blue = {**variables, "queues_teams": EXAMPLE["queues_teams"][:1], "queues_loans": []}
    output = folder.run(playbook="queues", **without_blue)
    assert "removed: ClusterQueue blue" in output, output
    plane.wait_for(lambda: _names(plane, "clusterqueues") == ["red"], "queue blue to be removed")
    assert _mark(plane) == mark


def _check_that_a_loan_ends(queueing: Queueing, folder: Folder, variables: Object) -> None:
    """An overdue loan is drift until the next run takes it back. Then the lender's jobs preempt the borrower's."""
    plane = queueing.plane
    assert _loans(plane, "red") == _loans(plane, "blue") == ["red lends blue 1 gpus until 2036-12-01T00:00:00Z"]
    assert _nominal(plane, "red") == "4" and _nominal(plane, "blue") == "3"
    _add_sample(queueing, folder)
    blue_jobs, red_jobs = [f"blue-{number}" for number in range(4)], [f"red-{number}" for number in range(5)]
    for name in blue_jobs:  # the fourth uses quota of the pool
        queueing.submit("blue", queueing.job(name, "blue", "pair"))
    plane.wait_for(lambda: all(queueing.running("blue", blue_job) for blue_job in blue_jobs), "blue's jobs", 120)

    report = _add_sample(queueing, folder)
    assert "loan: red lends blue 1 gpus until 2036-12-01T00:00:00Z" in report["lines"]
    late = {**variables, "queues_loans": [{**EXAMPLE["queues_loans"][0], "until": "2026-01-01", "reason": "release"}]}
    output = folder.run(playbook="drift", rc=1, **late)
    reported = "overdue loan: red lends blue 1 gpus until 2026-01-01T00:00:00Z (release)"
    assert f"{reported}: run lanewise.dra.queues to reclaim the quota" in output, output
    assert "ClusterQueue red differs or is missing" in output and _nominal(plane, "blue") == "3"
    folder.run(playbook="queues", **late)
    assert _nominal(plane, "red") == "5" and _nominal(plane, "blue") == "2" and not _loans(plane, "red")
    output = folder.run(playbook="drift", **late)  # exit status 0: nothing else has drifted
    assert f"{reported}: the quota is reclaimed; remove the loan from queues_loans" in output, output
    assert "claims: drifted" not in output
    for name in red_jobs:
        queueing.submit("red", queueing.job(name, "red", "near-pair-queue"))
    plane.wait_for(lambda: all(queueing.running("red", red_job) for red_job in red_jobs), "red's jobs", 120)
    plane.wait_for(
        lambda: sum(bool(queueing.running("blue", blue_job)) for blue_job in blue_jobs) == 3, "a preemption", 120
    )
    queueing.remove("blue", *blue_jobs)
    queueing.remove("red", *red_jobs)
    hours = _add_sample(queueing, folder)["usage"]["hours"]["lanewise.dev/gpus"]
    # blue had four jobs on a quota of three, at least until red's jobs were submitted
    assert hours["blue"]["charged"] >= 4 * hours["blue"]["borrowed"] > 0
    assert hours["blue"]["borrowed"] >= hours["red"]["lent"] >= 0


def _add_sample(queueing: Queueing, folder: Folder) -> Object:
    """Add a sample of Kueue's metrics to the usage. Returns the usage and the playbook's output."""
    (folder.path / "token").write_text(queueing.token())
    output = folder.run(
        playbook="queue_usage",
        plan_kubeconfig=str(queueing.plane.kubeconfig),
        queue_usage_gap=86400,  # the machine may be slow
        queue_usage_metrics_url=f"https://127.0.0.1:{queueing.ports['kueue-metrics']}/metrics",
        queue_usage_metrics_token_file=str(folder.path / "token"),
        queue_usage_metrics_ca=str(queueing.plane.authority.certificate),
    )
    usage = json.loads((folder.path / "usage" / "usage.json").read_text())
    page = (folder.path / "usage" / "usage.html").read_text()
    assert "Who owes whom" in page or not usage["debts"]
    assert "Kueue&#39;s metrics" in page
    last = json.loads((folder.path / "usage" / "usage-samples.jsonl").read_text().splitlines()[-1])
    assert last["source"] == "metrics" and usage["gaps"] == []
    for queue in ("red", "blue"):
        reported = queueing.usage(queue)["lanewise.dev/gpus"]["total"]
        assert last["shares"]["lanewise.dev/gpus"][queue]["charged"] == float(reported), (queue, reported)
    return {"usage": usage, "lines": output}


def _check_that_jobs_are_replayed(queueing: Queueing, folder: Folder) -> None:
    """The jobs of a CSV file are replayed with their times and durations, on aligned pairs. A cluster is refused if one
    of its nodes is not marked as simulated."""
    jobs = [
        "submit_s,team,priority,gpus,seconds",
        *(f"{number},blue,,1,300" for number in range(3)),
        "9,red,urgent,1,60",
    ]
    (folder.path / "jobs.csv").write_text("\n".join(jobs))
    extra_vars: Object = {
        "queue_replay_kubeconfig": str(queueing.plane.kubeconfig),
        "queue_replay_name": "two teams",
        "queue_replay_csv": "jobs.csv",
        "queue_replay_gpus": 8,
        "queue_replay_hours": 0.5,
        "queue_replay_speed": 100,
        "queue_replay_forms": [{"gpus": 1, "template": "pair"}],
    }
    queueing.plane.add_node("machine")
    output = folder.run(playbook="queue_replay", rc=2, **extra_vars)
    assert "not all nodes have the label lanewise.dev/no-machine=true: machine" in output, output
    queueing.plane.expect("DELETE", "/api/v1/nodes/machine")
    folder.run(playbook="queue_replay", **extra_vars)
    (result,) = json.loads((folder.path / "replay" / "replay.json").read_text())["results"]
    assert result["jobs"] == result["started"] == 4 and result["unaligned"] == 0 and result["with_nic"] == 4, result
    assert result["gpu_hours"]["useful"] > 0.2 and result["preempted"] == 0, result
    assert "95th percentile" in (folder.path / "replay" / "replay.html").read_text()
    queueing.plane.wait_for(lambda: not queueing.pods("red") + queueing.pods("blue"), "the replayed jobs to end", 120)


def _check_recovery_from_faults(queueing: Queueing, folder: Folder, variables: Object) -> None:
    """After an unreachable server, a run that is killed while it writes, or two concurrent runs, the next run completes
    the work."""
    plane = queueing.plane
    folder.run(playbook="queues", **variables)
    unreachable = yaml.safe_load(plane.kubeconfig.read_text())
    unreachable["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (folder.path / "unreachable").write_text(json.dumps(unreachable))
    before = {entry: _nominal(plane, entry) for entry in ("red", "blue")}
    moved = {**variables, "queues_loans": [{**EXAMPLE["queues_loans"][0], "devices": {"gpus": 2}, "reason": "demo"}]}
    folder.run(playbook="queues", rc=2, **{**moved, "dra_claims_kubeconfig": str(folder.path / "unreachable")})
    assert {entry: _nominal(plane, entry) for entry in ("red", "blue")} == before

    running = folder.start(playbook="queues", **moved)
    try:
        plane.wait_for(lambda: _nominal(plane, "red") == "3" or running.poll() is not None, "the first queue", 300)
    finally:
        kill_tree(running.pid)
        running.communicate()
    lines = [line for entry in ("red", "blue") for line in _loans(plane, entry)]
    assert "red lends blue 2 gpus until 2036-12-01T00:00:00Z (demo)" in lines, lines  # recorded before the quota moves
    folder.run(playbook="queues", **moved)
    assert _nominal(plane, "red") == "3" and _nominal(plane, "blue") == "4"

    both = [folder.start(playbook="queues", **variables) for _run in range(2)]
    output = "".join(entry.communicate()[0] for entry in both)
    assert {entry.returncode for entry in both} <= {0, 2}, output
    folder.run(playbook="queues", **variables)
    assert {entry: _nominal(plane, entry) for entry in ("red", "blue")} == before
    assert "nothing applied: the cluster is up to date" in folder.run(playbook="queues", **variables)


def _loans(plane: ControlPlane, queue: str) -> list[str]:
    metadata = plane.expect("GET", f"{KUEUE}/clusterqueues/{queue}")["metadata"]
    return str((metadata.get("annotations") or {}).get(LOANS, "")).splitlines()


def _nominal(plane: ControlPlane, queue: str) -> str:
    (group,) = plane.expect("GET", f"{KUEUE}/clusterqueues/{queue}")["spec"]["resourceGroups"]
    return str(
        next(
            resource["nominalQuota"]
            for resource in group["flavors"][0]["resources"]
            if resource["name"].endswith("/gpus")
        )
    )
