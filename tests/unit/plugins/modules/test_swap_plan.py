# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
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

V1 = "resource.k8s.io/v1"
RETURN = yaml.safe_load(swap_plan.RETURN)


def low_tier_pod(name: str, where: str, gpus: t.Sequence[int], grace: int | None = 30, **more: t.Any) -> list[Object]:
    """A pod with its claim, which a swap may evict after `grace` seconds, or must not evict if that is None."""
    created = pod(name, where, gpus, **more)
    if grace is not None:
        for result in created[1]["status"]["allocation"]["devices"]["results"]:
            result["tolerations"] = [swap.grace_toleration(grace)]
    return created


def gold_claim_spec(count: int) -> Object:
    """The spec of a claim of the tier `gold` for this many GPUs."""
    spec = claim_spec(count)
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = swap.tier_tolerations("gold")
    return spec


def device_names(where: str, *numbers: int) -> list[str]:
    """The names of GPUs of a node in the answer."""
    return [f"{DRIVER}/{where}/gpu-{number}" for number in numbers]


def budget(allowed: int) -> Object:
    """A PodDisruptionBudget of the pods with the label app=web."""
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
    """A function that runs the module on two nodes with four GPUs each and returns its answer."""
    require_engine()

    def call(objects: t.Sequence[Object], **arguments: t.Any) -> dict[str, t.Any]:
        by_kind: dict[str, list[Object]] = {}
        for item in [CLASS, *node("a", 4), *node("b", 4), *objects]:
            by_kind.setdefault(item["kind"], []).append(item)
        with patch_module_args({"objects": by_kind, "tier": "gold", **arguments}), pytest.raises(SystemExit) as stop:
            swap_plan.main()
        answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def job(count: int) -> dict[str, t.Any]:
    """A workload whose pods have a claim of the tier `gold` for this many GPUs."""
    return {"name": "job", "claims": [gold_claim_spec(count)]}


def test_free_devices_are_taken_first_and_then_those_of_the_fewest_pods(run: t.Any) -> None:
    objects = [*low_tier_pod("p", "a", [0, 1, 2, 3]), *low_tier_pod("q", "b", [0]), *low_tier_pod("r", "b", [1])]
    answer = run(objects, workload=job(4))
    assert set(answer) - {"invocation", "changed"} == set(RETURN)
    assert answer["found"] and answer["devices"] == device_names("a", 0, 1, 2, 3) == answer["evict"]
    assert answer["leaving"] == [{"pod": "team/p", "node": "a", "grace": 30, "devices": device_names("a", 0, 1, 2, 3)}]
    answer = run(objects, workload=job(2))
    assert answer["devices"] == device_names("b", 2, 3) and answer["leaving"] == [] and answer["refused"] == []
    assert answer["lines"] == ["gold: 2 device(s) for 1 pod(s) of job; 0 pod(s) to evict"]


def test_only_the_requested_devices_of_a_pod_are_taken(run: t.Any) -> None:
    answer = run(low_tier_pod("p", "a", [0, 1, 2]), devices=device_names("a", 1))
    assert answer["devices"] == device_names("a", 1) and answer["leaving"][0]["devices"] == device_names("a", 1)


def test_a_share_is_a_percentage_of_the_pods_that_fit_on_the_empty_fleet(run: t.Any) -> None:
    objects = [*low_tier_pod("p", "a", [0, 1, 2, 3]), *low_tier_pod("q", "b", [0, 1, 2, 3])]
    answer = run(objects, workload=job(1), share=49)
    assert len(answer["devices"]) == 3 and "3 pod(s) of job, 49 % of 8 on the empty fleet" in answer["lines"][0]
    answer = run(objects, workload=job(4), share=49)
    assert not answer["found"] and "49 % of 2 pod(s) of job on the empty fleet" in answer["lines"][0]


def test_pods_that_must_not_be_evicted_are_refused(run: t.Any) -> None:
    without_grace = [*low_tier_pod("p", "a", [0], None), *low_tier_pod("q", "b", [0], None)]
    assert not run(without_grace, workload=job(4))["found"]
    answer = run(without_grace, devices=device_names("a", 0))
    assert answer["refused"] == [
        "team/p: its claim team/p-d does not tolerate a swap with a grace period: only claims of a tier with grace do"
    ]
    kueue_pod = low_tier_pod("p", "a", [0], labels={"kueue.x-k8s.io/queue-name": "red"})
    answer = run(kueue_pod, devices=device_names("a", 0))
    assert answer["refused"][0].startswith("team/p: Kueue manages it (kueue.x-k8s.io/queue-name)")
    claim_without_pod = low_tier_pod("p", "a", [0])[1:]
    answer = run(claim_without_pod, devices=device_names("a", 0))
    (device,) = device_names("a", 0)
    assert answer["refused"] == [f"{device}: claim team/p-d has it, but no known pod on a node uses the claim"]


def test_a_pod_that_waits_for_a_node_is_not_evicted_with_the_claim_that_it_shares(run: t.Any) -> None:
    running, claim = low_tier_pod("p", "a", [0])
    running["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": "p-d"}]
    waiting = copy.deepcopy(running)
    waiting["metadata"].update(name="w", uid="uid-w")
    waiting["status"] = {"phase": "Pending"}
    del waiting["spec"]["nodeName"]
    answer = run([running, waiting, claim], devices=device_names("a", 0))
    assert [leaving["pod"] for leaving in answer["leaving"]] == ["team/p"] and answer["refused"] == []
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "w", "uid": "uid-w"})  # it is being bound
    answer = run([running, waiting, claim], devices=device_names("a", 0))
    assert [leaving["pod"] for leaving in answer["leaving"]] == ["team/p", "team/w"]


def test_the_pod_with_a_claim_for_its_extended_resources_is_known(run: t.Any) -> None:
    created = low_tier_pod("p", "a", [0])
    del created[0]["spec"]["resourceClaims"]
    created[0]["status"] = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "p-d"}}
    answer = run(created, devices=device_names("a", 0))
    assert [leaving["pod"] for leaving in answer["leaving"]] == ["team/p"] and answer["refused"] == []
    del created[1]["status"]["allocation"]["devices"]["results"][0]["tolerations"]  # as the scheduler creates it
    answer = run(created, devices=device_names("a", 0))
    assert "team/p: its claim team/p-d does not tolerate a swap" in answer["refused"][0]


def test_violated_disruption_budgets_are_reported_and_prevent_a_swap_unless_ignored(run: t.Any) -> None:
    web = {"labels": {"app": "web"}}
    objects = [
        *low_tier_pod("p", "a", [0], **web),
        *low_tier_pod("q", "a", [1], **web),
        *low_tier_pod("r", "b", [0], None),
    ]
    assert run([*objects, budget(2)], devices=device_names("a", 0, 1))["budgets"] == []
    answer = run([*objects, budget(1)], devices=device_names("a", 0, 1))
    assert answer["budgets"] == [
        "PodDisruptionBudget team/b allows 1 disruption(s) now, but the swap would evict 2: team/p, team/q"
    ]
    assert not run([*objects, budget(0)], workload=job(4))["found"]
    answer = run([*objects, budget(0)], workload=job(4), ignore_budgets=True)
    assert answer["found"] and len(answer["leaving"]) == 2 and len(answer["budgets"]) == 1


def test_devices_that_are_not_published_are_not_found(run: t.Any) -> None:
    answer = run([], devices=device_names("a", 7))
    (missing,) = device_names("a", 7)
    assert not answer["found"] and f"publishes {missing}: the node may no longer exist" in answer["lines"][0]


def hold_of(devices: t.Iterable[str]) -> hold.Hold:
    """The hold of a swap of the tier `gold`."""
    return hold.Hold("gold", "owner", "reason", None, tuple(hold.parse_device(name) for name in devices), hold.SWAP)


def hold_rule(swap_hold: hold.Hold, device: hold.DeviceId) -> Object:
    return hold.rule(swap_hold, device, V1)


def evict_rule(swap_hold: hold.Hold, device: hold.DeviceId) -> Object:
    return swap.rule(swap_hold, device, swap.EVICT, V1)


def test_a_started_swap_keeps_its_devices(run: t.Any) -> None:
    """Node b is free, but the pods of node a are already being evicted."""
    swap_hold = hold_of(device_names("a", 0, 1, 2, 3))
    rules = [create(swap_hold, device) for device in swap_hold.devices for create in (hold_rule, evict_rule)]
    answer = run([*low_tier_pod("p", "a", [0, 1, 2, 3]), *rules], workload=job(4))
    assert answer["devices"] == device_names("a", 0, 1, 2, 3) == answer["evict"]
    assert [leaving["pod"] for leaving in answer["leaving"]] == ["team/p"]


def test_a_swap_whose_pods_were_only_counted_has_not_started(run: t.Any) -> None:
    """The pods that an interrupted run only counted are not being evicted, so their disruption budget still applies."""
    swap_hold = hold_of(device_names("a", 0, 1, 2, 3))
    rules = [swap.rule(swap_hold, device, swap.COUNT, V1) for device in swap_hold.devices]
    web = low_tier_pod("p", "a", [0, 1, 2, 3], labels={"app": "web"})
    answer = run([*web, budget(0), *low_tier_pod("r", "b", [0], None), *rules], workload=job(4))
    assert not answer["found"], answer["lines"]


def test_claims_without_the_tolerations_of_the_tier_and_invalid_arguments_are_refused(run: t.Any) -> None:
    without_toleration = {"name": "job", "claims": [claim_spec(1)]}
    assert "gpu does not tolerate the hold and the swap of gold" in run([], workload=without_toleration)["msg"]
    assert "give either devices or workload" in run([])["msg"]
    assert "share: 101 is not from 1 to 100" in run([], workload=job(1), share=101)["msg"]
