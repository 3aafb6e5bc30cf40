# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The claims whose release an eviction waits for. tests/cluster/test_defragment.py evicts pods of a real cluster."""

from __future__ import annotations

import typing as t
from types import SimpleNamespace

from ansible_collections.lanewise.dra.plugins.modules import pod_eviction
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import Object, pod


class EvictedPods:
    """Stands for `pod_eviction.Pods`: the pod ends as soon as it is evicted, and all its claims are free."""

    def __init__(self, item: Object) -> None:
        self.pod: Object | None = item
        self.checked: list[str] = []

    def read(self) -> Object | None:
        return self.pod

    def siblings(self, _controller: str) -> list[Object]:
        return []

    def evict(self, _check: bool) -> str:
        self.pod = None
        return ""

    def reserved(self, claims: t.Iterable[str]) -> list[str]:
        self.checked += claims
        return []


def test_an_eviction_waits_for_every_claim_of_the_pod() -> None:
    item = pod("a", "n1", [0])[0]
    item["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimName": "shared-nic"})
    item["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "a-extended"}
    pods = EvictedPods(item)
    module = SimpleNamespace(params={"budget_timeout": 0, "timeout": 0, "settle_timeout": 0}, check_mode=False)
    result = pod_eviction.evict_pod(t.cast(t.Any, module), t.cast(t.Any, pods))
    assert result == {"changed": True, "blocked": "", "replaced": True}
    assert pods.checked == ["a-d", "shared-nic", "a-extended"]
