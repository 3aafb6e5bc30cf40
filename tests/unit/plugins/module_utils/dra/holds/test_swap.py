# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause

"""Swaps: which claims belong to a tier, which pods a swap may evict, and the DeviceTaintRules of a swap."""

from __future__ import annotations

import typing as t
from datetime import datetime, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold, swap, tolerations
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold

DEVICE = ("gpu.example.com", "node-1", "gpu-0")
HOLD = Hold("gold", "team a", "release", datetime(2026, 12, 1, tzinfo=timezone.utc), (DEVICE,), hold.SWAP)


def with_tolerations(*entries: dict[str, t.Any]) -> dict[str, t.Any]:
    """The part of a request, or of a result of an allocation, that has the tolerations."""
    return {"tolerations": list(entries)}


def test_claims_of_a_tier_tolerate_its_hold_and_its_swap() -> None:
    of_tier = with_tolerations(*swap.tier_tolerations("gold"))
    assert swap.belongs_to_tier(of_tier, "gold") and swap.grace_of(of_tier, "gold") is None
    assert not swap.belongs_to_tier(of_tier, "silver")
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": of_tier}]}}
    assert not tolerations.not_tolerating(claim, "gold") and not tolerations.tolerating_others(claim, "gold")
    assert tolerations.not_tolerating(claim, "silver") == ["gpu"]


def test_claims_that_a_swap_may_evict_do_not_tolerate_the_hold() -> None:
    evictable = with_tolerations(swap.grace_toleration(30), swap.grace_toleration(10))
    assert swap.grace_of(evictable, "gold") == 10
    assert not swap.belongs_to_tier(evictable, "gold")
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": evictable}]}}
    assert tolerations.not_tolerating(claim, "gold") == ["gpu"]  # its pod must not get a held device
    assert swap.grace_of(with_tolerations(), "gold") is None
    # tolerating every taint is no consent to an eviction by a swap
    assert swap.grace_of(with_tolerations({"operator": "Exists"}), "gold") is None
    assert (
        swap.grace_of(with_tolerations({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}), "gold")
        is None
    )


def test_a_swap_for_another_tier_may_evict_pods_of_a_tier() -> None:
    evictable_silver = with_tolerations(*swap.tier_tolerations("silver"), swap.grace_toleration(30))
    assert swap.belongs_to_tier(evictable_silver, "silver") and not swap.belongs_to_tier(evictable_silver, "gold")
    assert swap.grace_of(evictable_silver, "gold") == 30


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


def test_rules_that_evict_pods_and_rules_that_count_them_are_counted_separately() -> None:
    counting, evicting = (swap.rule(HOLD, DEVICE, effect, "resource.k8s.io/v1") for effect in (swap.COUNT, swap.EVICT))
    of_hold = hold.rule(HOLD, DEVICE, "resource.k8s.io/v1")
    rules = [counting, of_hold, evicting, counting]
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
def test_the_number_of_pods_is_read_from_the_condition_of_the_controller(message: str, count: int | None) -> None:
    rule = swap.rule(HOLD, DEVICE, swap.COUNT, "resource.k8s.io/v1")
    assert swap.counted_pods(rule) is None
    rule["metadata"]["generation"] = 2
    condition = {"type": "EvictionInProgress", "reason": "NoEffect", "message": message, "observedGeneration": 2}
    rule["status"] = {"conditions": [condition]}
    assert swap.counted_pods(rule) == count
    condition["observedGeneration"] = 1  # the count of an older version of the rule
    assert swap.counted_pods(rule) is None
