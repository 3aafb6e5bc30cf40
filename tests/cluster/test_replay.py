# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A replay that can no longer watch the cluster has no result and leaves no jobs."""

from __future__ import annotations

import threading

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import Job
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")

from ansible_collections.lanewise.dra.plugins.module_utils import cluster_replay

TEAM, RBAC = "watched", "/apis/rbac.authorization.k8s.io/v1"
JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
_GROUP = "rbac.authorization.k8s.io"


def allow(plane: ControlPlane, name: str, *rules: Object) -> str:
    """Give the user of the replay a role with these rules. Returns the path of the binding."""
    plane.expect("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": "replayer"}],
    }
    plane.expect("POST", f"{RBAC}/clusterrolebindings", binding)
    return f"{RBAC}/clusterrolebindings/{name}"


def rule(group: str, resources: list[str], *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


@pytest.fixture
def replayer(newest: ControlPlane) -> ControlPlane:
    """A control plane with a simulated node, and with a user who may do everything for a replay except watch claims."""
    newest.add_namespace(TEAM)
    newest.add_node("no-machine", {cluster_replay.NODE_LABEL: "true"})
    allow(
        newest,
        "replayer",
        rule("", ["nodes"], "list"),
        rule("", ["pods"], "list", "watch"),
        rule("resource.k8s.io", ["resourceslices"], "list"),
        rule("batch", ["jobs"], "create", "deletecollection"),
    )
    return newest


def test_a_watch_that_fails_ends_the_replay(replayer: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission to watch claims is removed after the first job. The replay ends long before its planned end."""
    import kubernetes.client
    import kubernetes.config

    plane = replayer
    binding = allow(plane, "watches-claims", rule("resource.k8s.io", ["resourceclaims"], "list", "watch"))
    plane.wait_for(
        lambda: plane.client("replayer").request("GET", "/apis/resource.k8s.io/v1/resourceclaims")[0] == 200,
        "the permissions",
    )
    monkeypatch.setattr(cluster_replay, "WATCH_SECONDS", 5)
    api = kubernetes.config.new_client_from_config(str(plane.write_kubeconfig("replayer")))
    replay = cluster_replay.Replay(api, {1.0: cluster_replay.SizeTemplate("none", 1)}, 1.0)
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            replay.run([Job(0, 0, TEAM, "", 1.0, 60.0), Job(1, 3600, TEAM, "", 1.0, 60.0)], 7200)
            ended.append(None)
        except Exception as error:  # noqa: BLE001  # checked below
            ended.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    plane.wait_for(lambda: plane.expect("GET", JOBS)["items"], "the first job", 120)
    assert not ended
    plane.expect("DELETE", binding)
    plane.wait_for(lambda: ended, "the replay to end", 120)
    (error,) = ended
    assert isinstance(error, kubernetes.client.ApiException) and error.status == 403, error
    plane.wait_for(lambda: not plane.expect("GET", JOBS)["items"], "the job to be deleted", 120)
