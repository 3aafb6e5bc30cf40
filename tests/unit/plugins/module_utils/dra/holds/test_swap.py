# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause

from __future__ import annotations

import typing as t
from datetime import datetime, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold, swap, tolerations
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold

DEVICE = ("gpu.example.com", "node-1", "gpu-0")
HOLD = Hold("gold", "team a", "release", datetime(2026, 12, 1, tzinfo=timezone.utc), (DEVICE,), hold.SWAP)


def some(*entries: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"tolerations": list(entries)}


def test_a_tier_tolerates_its_hold_and_does_not_give_way() -> None:
    ours = some(*swap.tier_tolerations("gold"))
    assert swap.belongs_to_tier(ours, "gold") and swap.grace_of(ours, "gold") is None
    assert not swap.belongs_to_tier(ours, "silver")
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": ours}]}}
    assert not tolerations.not_tolerating(claim, "gold") and not tolerations.tolerating_others(claim, "gold")
    assert tolerations.not_tolerating(claim, "silver") == ["gpu"]


def test_giving_way_to_a_tier_is_not_tolerating_its_hold() -> None:
    theirs = some(swap.grace_toleration(30), swap.grace_toleration(10))
    assert swap.grace_of(theirs, "gold") == 10
    assert not swap.belongs_to_tier(theirs, "gold")
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": theirs}]}}
    assert tolerations.not_tolerating(claim, "gold") == ["gpu"]  # a pod that gives way must not get a held device
    assert swap.grace_of(some(), "gold") is None
    # tolerating everything does not mean consent
    assert swap.grace_of(some({"operator": "Exists"}), "gold") is None
    assert swap.grace_of(some({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}), "gold") is None


def test_a_middle_tier_gives_way_to_other_tiers_only() -> None:
    both = some(*swap.tier_tolerations("silver"), swap.grace_toleration(30))
    assert swap.belongs_to_tier(both, "silver") and not swap.belongs_to_tier(both, "gold")
    assert swap.grace_of(both, "gold") == 30


def test_rules_of_a_swap_are_not_holds() -> None:
    rule = swap.rule(HOLD, DEVICE, swap.COUNT, "resource.k8s.io/v1")
    assert swap.swap_of(rule) == "gold"
    assert not hold.holds([rule])
    assert swap.swap_of(hold.rule(HOLD, DEVICE, "resource.k8s.io/v1")) is None
    assert rule["metadata"]["annotations"] == {
        hold.OWNER: "team a",
        hold.REASON: "release",
        hold.EXPIRES: "2026-12-01T00:00:00Z",
    }


def test_only_rules_that_evict_pods_show_that_a_swap_has_begun() -> None:
    count, end = (swap.rule(HOLD, DEVICE, effect, "resource.k8s.io/v1") for effect in (swap.COUNT, swap.EVICT))
    of_hold = hold.rule(HOLD, DEVICE, "resource.k8s.io/v1")
    rules = [count, of_hold, end, count]
    assert swap.evicting_rules(rules) == {"gold": 1} and swap.counting_rules(rules) == {"gold": 2}


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if ...", 1),
        ("1 published device selected. 0 allocated devices selected. 0 pods would be evicted in 0 different ...", 0),
        ("12 pods would be evicted in 2 different namespaces if the effect was NoExecute. ", 12),
        ("", None),
    ],
)
def test_the_count_of_the_controller_is_read_from_its_condition(message: str, count: int | None) -> None:
    rule = swap.rule(HOLD, DEVICE, swap.COUNT, "resource.k8s.io/v1")
    assert swap.counted_pods(rule) is None
    rule["metadata"]["generation"] = 2
    condition = {"type": "EvictionInProgress", "reason": "NoEffect", "message": message, "observedGeneration": 2}
    rule["status"] = {"conditions": [condition]}
    assert swap.counted_pods(rule) == count
    condition["observedGeneration"] = 1  # the count of an older version of the rule
    assert swap.counted_pods(rule) is None
