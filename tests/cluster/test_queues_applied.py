# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/queues.yml against a real API server with Kueue: applied, unchanged, pruned, and Kueue configured."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.tests.claims.test_claims_playbook import PROGRAM, Folder
from ansible_collections.lanewise.dra.tests.claims.test_queues_playbook import EXAMPLE
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import CONFIG_KEY, CONFIG_MAP, KUEUE, NAMESPACE, Queueing

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="needs ansible-core beside this Python")
pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

Object = dict[str, t.Any]
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kueue-controller-manager"
CONFIGURATION = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"
MARK = "lanewise.dev/queues-configuration"


@pytest.fixture
def installed(queueing: Queueing) -> Queueing:
    """With the Deployment that the chart makes, which has no pods: Kueue runs beside it."""
    labels = {"app": "kueue"}
    containers = [{"name": "manager", "image": "none.example.com/kueue"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    path, _slash, name = DEPLOYMENT.rpartition("/")
    queueing.plane.expect("POST", path, {"metadata": {"name": name}, "spec": spec})
    return queueing


def _names(plane: ControlPlane, kind: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in plane.expect("GET", f"{KUEUE}/{kind}")["items"])


def _configuration(plane: ControlPlane) -> Object:
    return t.cast(Object, yaml.safe_load(plane.expect("GET", CONFIGURATION)["data"][CONFIG_KEY]))


def _mark(plane: ControlPlane) -> str:
    metadata = plane.expect("GET", DEPLOYMENT)["spec"]["template"]["metadata"]
    return str((metadata.get("annotations") or {}).get(MARK, ""))


def test_the_example_on_a_cluster(installed: Queueing, tmp_path: Path) -> None:
    """What the guide shows is applied once, Kueue starts with its configuration, and a job of the example runs."""
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
    mappings = {one["name"]: one["deviceClassNames"] for one in configured["resources"]["deviceClassMappings"]}
    assert mappings == {"lanewise.dev/gpus": ["gpu"], "lanewise.dev/nics": ["rdma"]}

    queueing.restart()
    site = QueueSite(queueing, {"h100-01": machine("hgx-h100")})
    queueing.submit("red", queueing.job("train", "red", "near-pair-queue", priority="urgent"))
    plane.wait_for(lambda: queueing.running("red", "train"), "the job of the example", 120)
    plane.wait_for(lambda: site.used("red", "gpus") == 1, "the job in the queue's status", 120)
    assert site.allocated("red") == {"gpu.nvidia.com": 1, "lanewise.dev": 1}
    queueing.remove("red", "train")

    mark = _mark(plane)
    output = folder.run(playbook="queues", **variables)
    assert "changed=0" in output and "nothing applied: the cluster is up to date" in output, output
    assert "Kueue's configuration: " not in output  # no warning: it has what it needs
    only = {**variables, "queues_teams": EXAMPLE["queues_teams"][:1], "queues_loans": []}
    output = folder.run(playbook="queues", **only)
    assert "removed: ClusterQueue blue" in output, output
    plane.wait_for(lambda: _names(plane, "clusterqueues") == ["red"], "queue blue to go")
    assert _mark(plane) == mark
