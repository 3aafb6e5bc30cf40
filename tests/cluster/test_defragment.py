# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook defragment on a real scheduler: it moves pods so that a job can be bound, or stops without a hold."""

from __future__ import annotations

import json
import typing as t
from datetime import datetime, timezone
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import ANSIBLE_PLAYBOOK, DRIVER, RESOURCE, Fleet, Playbooks
from ansible_collections.lanewise.dra.tests.common.process_tree import kill_tree

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("ansible", reason="needs ansible-core")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

from ansible.module_utils.testing import patch_module_args  # noqa: E402
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import DEFRAGMENT, Hold, holds, rule  # noqa: E402
from ansible_collections.lanewise.dra.plugins.modules import pod_eviction  # noqa: E402

NAMESPACE = "moves"
DEVICE = (DRIVER, "def-0", "gpu-0")
JOB = {
    "defragment_name": "big",
    "defragment_owner": "team a",
    "defragment_reason": "training",
    "defragment_workload": {"name": "job", "namespace": NAMESPACE, "templates": ["big"]},
}


@pytest.fixture(scope="module")
def cluster(newest: ControlPlane) -> Fleet:
    fleet = Fleet(newest, NAMESPACE, {"def-0": 4, "def-1": 4})
    fleet.template("one", 1)
    fleet.template("big", 4, hold="big")
    return fleet


@pytest.fixture
def fleet(cluster: Fleet) -> t.Iterator[Fleet]:
    yield cluster
    cluster.clear()
    for entry in cluster.rules():
        cluster.plane.expect("DELETE", f"{RESOURCE}/devicetaintrules/{entry['metadata']['name']}")


@pytest.fixture
def playbooks(newest: ControlPlane, tmp_path: Path) -> Playbooks:
    return Playbooks(newest, tmp_path)


def test_a_job_fits_after_the_moves_of_a_run_that_is_killed_and_run_again(fleet: Fleet, playbooks: Playbooks) -> None:
    """The two pods of the first node can be moved. One pod of the second node cannot, because it has no controller."""
    fleet.replica_set("a", "one", "def-0")
    fleet.replica_set("b", "one", "def-0")
    fleet.replica_set("c", "one", "def-1")
    fleet.pod("bare", "one", "def-1")
    fleet.bound(4)
    before = fleet.uids()
    reported = playbooks.run("defragment", "--check", **JOB)
    assert "job: fits after 2 move(s) (no plan has fewer); 4 device(s) will be held" in reported
    assert fleet.uids() == before and not fleet.rules()
    running = playbooks.start("defragment", **JOB)
    try:
        fleet.plane.wait_for(lambda: set(before) - set(fleet.uids()), "the first eviction", 300)
    finally:
        kill_tree(running.pid)
        running.communicate()
    (held,) = holds(fleet.rules())
    assert held.owner == "team a" and held.purpose == "defragment" and held.expires and len(held.devices) == 4
    fleet.bound(4)
    reported = playbooks.run("defragment", **JOB)
    assert "room for job: devices held until" in reported
    bound = fleet.bound(4)
    assert set(bound.values()) == {"def-1"}, bound  # the node that the pods were moved to
    fleet.pod("thief", "one")
    assert "cannot allocate all claims" in fleet.rejection("thief")
    assert "changed=0" in playbooks.run("defragment", **JOB)
    fleet.pod("job", "big")
    assert fleet.bound(5)["job"] == "def-0"
    assert len(fleet.devices("job")) == 4
    # exactly the two pods of the plan were evicted
    assert len(set(before) - set(fleet.uids())) == 2


def test_a_disruption_budget_blocks_the_moves(
    fleet: Fleet, playbooks: Playbooks, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.replica_set("a", "one", "def-0")
    fleet.pod("bare", "one", "def-1")
    fleet.bound(2)
    fleet.mark_running("a")
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    budget = {"metadata": {"name": "a"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    fleet.plane.expect("POST", budgets, budget)

    def healthy_pods() -> t.Any:
        return fleet.plane.expect("GET", f"{budgets}/a").get("status", {}).get("currentHealthy")

    try:
        fleet.plane.wait_for(healthy_pods, "the budget's count", 180)
        before = fleet.uids()
        reported = playbooks.run("defragment", rc=2, **JOB)
        assert "does not fit" in reported and "No pod was moved" in reported and "nothing was held" in reported
        assert fleet.uids() == before and not fleet.rules()
        # with --check, the hold of an interrupted run stays
        held = Hold("big", "team a", "big job", datetime.now(timezone.utc), (DEVICE,), DEFRAGMENT)
        fleet.plane.expect("POST", f"{RESOURCE}/devicetaintrules", rule(held, DEVICE, RESOURCE[6:]))
        reported = playbooks.run("defragment", "--check", rc=2, **JOB)
        assert "hold big of an earlier run stays" in reported and "is released" not in reported and fleet.rules()
        reported = playbooks.run("defragment", rc=2, **JOB)
        assert "hold big is released" in reported and not fleet.rules()
        # the API server also refuses the eviction itself
        uid, name = next((uid, name) for uid, name in before.items() if name.startswith("a-"))
        arguments = {"kubeconfig": str(fleet.plane.kubeconfig), "pod": f"{NAMESPACE}/{name}", "uid": uid}
        with patch_module_args({**arguments, "budget_timeout": 1}), pytest.raises(SystemExit):
            pod_eviction.main()
        answer = json.loads(capsys.readouterr().out)
        assert not answer["changed"] and "disruption budget" in answer["blocked"] and fleet.uids() == before
        # and that of a pod with two budgets, also as a dry run
        fleet.plane.expect("POST", budgets, {**budget, "metadata": {"name": "second"}})
        for check in (True, False):
            options = {**arguments, "budget_timeout": 0, "_ansible_check_mode": check}
            with patch_module_args(options), pytest.raises(SystemExit):
                pod_eviction.main()
            answer = json.loads(capsys.readouterr().out)
            assert "more than one PodDisruptionBudget" in answer.get("blocked", "") and not answer["changed"], answer
        assert fleet.uids() == before
    finally:
        fleet.plane.expect("DELETE", f"{budgets}/a")
        fleet.plane.request("DELETE", f"{budgets}/second")


def test_a_failed_run_releases_the_hold(fleet: Fleet, playbooks: Playbooks) -> None:
    """The plan does not model the moved pod's anti-affinity, because of which the pod cannot run on the other node."""
    fleet.pod("bare", "one", "def-1")
    fleet.bound(1)
    fleet.plane.expect("PATCH", f"{fleet.pods_at}/bare", {"metadata": {"labels": {"app": "bare"}}})
    apart = [{"labelSelector": {"matchLabels": {"app": "bare"}}, "topologyKey": "kubernetes.io/hostname"}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    fleet.replica_set("apart", "one", "def-0", affinity=affinity)
    before = fleet.uids()
    reported = playbooks.run("defragment", rc=2, **JOB, defragment_settle_timeout=3)
    assert "was evicted, but not all pods of its controller have a node again" in reported
    assert not fleet.rules()
    again = fleet.bound(2)
    assert set(again.values()) == {"def-0", "def-1"} and set(fleet.uids()) != set(before)


def test_a_workload_that_is_missing_or_does_not_tolerate_the_hold_is_refused(
    fleet: Fleet, playbooks: Playbooks
) -> None:
    assert "Set defragment_workload" in playbooks.run("defragment", rc=2, defragment_name="big")
    workload = {"name": "job", "namespace": NAMESPACE, "templates": ["one"]}
    reported = playbooks.run("defragment", rc=2, **{**JOB, "defragment_workload": workload})
    assert "gpu does not tolerate hold big, so the job could not use the held devices" in reported
