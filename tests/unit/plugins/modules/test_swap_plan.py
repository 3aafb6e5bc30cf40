# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold, swap
from ansible_collections.lanewise.dra.plugins.modules import swap_plan
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    DRIVER,
    Object,
    claim_spec,
    node,
    pod,
)

RETURN = yaml.safe_load(swap_plan.RETURN)


def low(name: str, where: str, gpus: t.Sequence[int], grace: int | None = 30, **more: t.Any) -> list[Object]:
    """A pod that gives way, or without a grace one that does not."""
    made = pod(name, where, gpus, **more)
    for one in made[1]["status"]["allocation"]["devices"]["results"] if grace is not None else ():
        one["tolerations"] = [swap.grace_toleration(t.cast("int", grace))]
    return made


def gold(count: int) -> Object:
    spec = claim_spec(count)
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = swap.tier_tolerations("gold")
    return spec


def names(where: str, *numbers: int) -> list[str]:
    return [f"{DRIVER}/{where}/gpu-{number}" for number in numbers]


def budget(allowed: int) -> Object:
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    status = {"disruptionsAllowed": allowed}
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "team"},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> t.Callable[..., dict[str, t.Any]]:
    require_engine()

    def call(objects: t.Sequence[Object], **arguments: t.Any) -> dict[str, t.Any]:
        by_kind: dict[str, list[Object]] = {}
        for one in [CLASS, *node("a", 4), *node("b", 4), *objects]:
            by_kind.setdefault(one["kind"], []).append(one)
        with patch_module_args({"objects": by_kind, "tier": "gold", **arguments}), pytest.raises(SystemExit) as stop:
            swap_plan.main()
        answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def job(count: int) -> dict[str, t.Any]:
    return {"name": "job", "claims": [gold(count)]}


def test_free_devices_are_taken_first_and_then_those_of_the_fewest_pods(run: t.Any) -> None:
    objects = [*low("p", "a", [0, 1, 2, 3]), *low("q", "b", [0]), *low("r", "b", [1])]
    answer = run(objects, workload=job(4))
    assert set(answer) - {"invocation", "changed"} == set(RETURN)
    assert answer["found"] and answer["devices"] == names("a", 0, 1, 2, 3) == answer["evict"]
    assert answer["leaving"] == [{"pod": "team/p", "node": "a", "grace": 30, "devices": names("a", 0, 1, 2, 3)}]
    answer = run(objects, workload=job(2))
    assert answer["devices"] == names("b", 2, 3) and answer["leaving"] == [] and answer["refused"] == []
    assert answer["lines"] == ["gold: 2 device(s) for 1 pod(s) of job; 0 pod(s) to evict"]


def test_a_pod_loses_all_devices_and_only_the_requested_ones_are_taken(run: t.Any) -> None:
    answer = run(low("p", "a", [0, 1, 2]), devices=names("a", 1))
    assert answer["devices"] == names("a", 1) and answer["leaving"][0]["devices"] == names("a", 1)


def test_a_share_is_a_percentage_of_the_empty_fleet(run: t.Any) -> None:
    objects = [*low("p", "a", [0, 1, 2, 3]), *low("q", "b", [0, 1, 2, 3])]
    answer = run(objects, workload=job(1), share=49)
    assert len(answer["devices"]) == 3 and "3 pod(s) of job, 49 % of 8 on the empty fleet" in answer["lines"][0]
    answer = run(objects, workload=job(4), share=49)
    assert not answer["found"] and "49 % of 2 pod(s) of job on the empty fleet" in answer["lines"][0]


def test_pods_that_do_not_give_way_are_refused(run: t.Any) -> None:
    stays = [*low("p", "a", [0], None), *low("q", "b", [0], None)]
    assert not run(stays, workload=job(4))["found"]
    answer = run(stays, devices=names("a", 0))
    assert answer["refused"] == [
        "team/p: its claim team/p-d does not give way: its template has no tier with a grace period"
    ]
    queued = low("p", "a", [0], labels={"kueue.x-k8s.io/queue-name": "red"})
    answer = run(queued, devices=names("a", 0))
    assert answer["refused"][0].startswith("team/p: Kueue manages it (kueue.x-k8s.io/queue-name)")
    orphan = low("p", "a", [0])[1:]
    answer = run(orphan, devices=names("a", 0))
    assert answer["refused"] == [f"{names('a', 0)[0]}: claim team/p-d has it, but no pod that uses the claim is known"]


def test_budgets_are_summed(run: t.Any) -> None:
    web = {"labels": {"app": "web"}}
    objects = [*low("p", "a", [0], **web), *low("q", "a", [1], **web), *low("r", "b", [0], None)]
    assert run([*objects, budget(2)], devices=names("a", 0, 1))["budgets"] == []
    answer = run([*objects, budget(1)], devices=names("a", 0, 1))
    assert answer["budgets"] == [
        "PodDisruptionBudget team/b allows 1 disruption(s) now, but the swap would evict 2: team/p, team/q"
    ]
    assert not run([*objects, budget(0)], workload=job(4))["found"]
    answer = run([*objects, budget(0)], workload=job(4), ignore_budgets=True)
    assert answer["found"] and len(answer["leaving"]) == 2 and len(answer["budgets"]) == 1


def test_devices_that_are_not_published_are_not_found(run: t.Any) -> None:
    answer = run([], devices=names("a", 7))
    assert not answer["found"] and f"publishes {names('a', 7)[0]}: the node may no longer exist" in answer["lines"][0]


def test_a_begun_swap_keeps_its_devices(run: t.Any) -> None:
    """Another node has become free meanwhile, with the pods of the first one still ending."""
    held = hold.Hold("gold", "o", "r", None, tuple(hold.parse_device(one) for one in names("a", 0, 1, 2, 3)), hold.SWAP)
    rules = [made(held, one) for one in held.devices for made in (_hold, _end)]
    answer = run([*low("p", "a", [0, 1, 2, 3]), *rules], workload=job(4))
    assert answer["devices"] == names("a", 0, 1, 2, 3) == answer["evict"]
    assert [one["pod"] for one in answer["leaving"]] == ["team/p"]


def test_a_swap_whose_pods_were_only_counted_has_not_begun(run: t.Any) -> None:
    """Pods that an interrupted run only counted are not ending: those of their budget are not chosen."""
    held = hold.Hold("gold", "o", "r", None, tuple(hold.parse_device(one) for one in names("a", 0, 1, 2, 3)), hold.SWAP)
    rules = [swap.rule(held, one, swap.COUNT, "resource.k8s.io/v1") for one in held.devices]
    web = low("p", "a", [0, 1, 2, 3], labels={"app": "web"})
    answer = run([*web, budget(0), *low("r", "b", [0], None), *rules], workload=job(4))
    assert not answer["found"], answer["lines"]


def _hold(held: hold.Hold, one: hold.DeviceId) -> Object:
    return hold.rule(held, one, "resource.k8s.io/v1")


def _end(held: hold.Hold, one: hold.DeviceId) -> Object:
    return swap.rule(held, one, swap.EVICT, "resource.k8s.io/v1")


def test_claims_that_could_not_use_the_devices_are_refused(run: t.Any) -> None:
    plain = {"name": "job", "claims": [claim_spec(1)]}
    assert "gpu does not tolerate the hold and the swap of gold" in run([], workload=plain)["msg"]
    assert "give either devices or workload" in run([])["msg"]
    assert "share: 101 is not from 1 to 100" in run([], workload=job(1), share=101)["msg"]
