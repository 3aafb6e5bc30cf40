# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.tolerations import with_toleration
from ansible_collections.lanewise.dra.plugins.modules import reservation_plan
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    Object,
    claim_spec,
    node,
    pod,
)

RETURN = yaml.safe_load(reservation_plan.RETURN)
#: Two nodes with four GPUs each. The pods p and q may be moved.
FLEET = [CLASS, *node("a", 4), *node("b", 4), *pod("p", "a", [0]), *pod("q", "b", [0]), *pod("bare", "b", [1], kind="")]
#: A job of one pod with four GPUs, which tolerates the hold `big`.
JOB = {"name": "job", "claims": [with_toleration(claim_spec(4), "big")]}


def by_kind(objects: t.Iterable[Object]) -> dict[str, list[Object]]:
    grouped: dict[str, list[Object]] = {}
    for item in objects:
        grouped.setdefault(item["kind"], []).append(item)
    return grouped


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> t.Callable[..., dict[str, t.Any]]:
    """A function that runs the module for a job with four GPUs and returns its answer."""
    require_engine()

    def call(**arguments: t.Any) -> dict[str, t.Any]:
        given = {"objects": by_kind(FLEET), "workload": JOB, "hold": "big", "max_moves": 5}
        with patch_module_args({**given, **arguments}), pytest.raises(SystemExit) as stop:
            reservation_plan.main()
        answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def test_the_fewest_moves_and_the_freed_devices_are_planned(run: t.Any) -> None:
    answer = run(require_toleration=True)
    assert set(answer) - {"invocation", "changed"} == set(RETURN) and not answer["changed"]
    assert answer["fits"] and answer["optimal"] and answer["at_least"] == 1 and answer["lacking"] == []
    assert answer["moves"] == [{"pod": "team/p", "uid": "uid-p", "node": "a", "to": "b"}]
    assert answer["devices"] == [f"gpu.example.com/a/gpu-{number}" for number in range(4)]
    assert answer["kept"] == {"team/bare": "it has no controller that would replace it"}
    assert answer["lines"][:2] == [
        "job: fits after 1 move(s) (no plan has fewer); 4 device(s) will be held",
        "  move team/p from a, b has room for it",
    ]


def test_protected_pods_are_not_moved(run: t.Any) -> None:
    for arguments in ({"never": ["team/p"]}, {"protect": {"namespaces": ["team"]}}, {"protect": {"priority": 0}}):
        answer = run(**arguments)
        assert not answer["fits"] and answer["at_least"] is None and answer["moves"] == []
        assert "team/p" in answer["kept"] and "does not fit" in answer["lines"][0]
    assert not run(max_moves=0)["fits"]


def test_no_pod_is_moved_for_a_job_that_a_quota_refuses(run: t.Any) -> None:
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"namespace": "default", "name": "q"},
        "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "1"}},
        "status": {"used": {"count/resourceclaims.resource.k8s.io": "1"}},
    }
    objects = {**by_kind(FLEET), "ResourceQuota": [quota]}
    answer = run(objects=objects)
    reason = "quota default/q leaves count/resourceclaims.resource.k8s.io for 0 more, and 1 are to come"
    assert not answer["fits"] and answer["moves"] == [] and answer["at_least"] == 1 and answer["reason"] == reason
    small_job = {"name": "job", "claims": [with_toleration(claim_spec(2), "big")]}
    answer = run(objects=objects, workload=small_job)
    assert answer["fits"] and answer["notes"] == [f"workload job: {reason}"]


def test_parts_of_a_job_that_are_not_modelled_are_noted(run: t.Any) -> None:
    pod = {"affinity": {"podAntiAffinity": {"x": []}}, "schedulerName": "volcano"}
    answer = run(workload={**JOB, "pod": pod})
    assert [note.partition(": ")[2] for note in answer["notes"]] == [
        "its pod anti-affinity is not modelled, so fewer pods may fit",
        "it is placed by scheduler volcano, whose rules are unknown",
    ]


def test_claims_that_do_not_tolerate_the_hold_are_reported(run: t.Any) -> None:
    without_toleration = {"name": "job", "claims": [claim_spec(4)]}
    assert run(workload=without_toleration)["lacking"] == ["gpu"]
    assert "gpu does not tolerate hold big" in run(workload=without_toleration, require_toleration=True)["msg"]
    other_hold = {"name": "job", "claims": [with_toleration(claim_spec(4), "other")]}
    assert "gpu tolerates other holds than big" in run(workload=other_hold)["msg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count: 0 is not from 1 to 1024"),
        ({"max_moves": -1}, "max_moves: -1 is not from 0 to 1024"),
        ({"workload": {"name": "x"}}, "workload x has no claims"),
        (
            {"workload": {**JOB, "pod": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}}},
            "must be a quantity",
        ),
        ({"objects": {"Pod": "x"}}, "objects.Pod is not a list of objects"),
        ({"kubernetes_version": "1.20"}, "1.20"),
    ],
)
def test_invalid_arguments_of_a_plan_are_refused(run: t.Any, arguments: dict[str, t.Any], message: str) -> None:
    answer = run(**arguments)
    assert answer["failed"] and message in answer["msg"]
