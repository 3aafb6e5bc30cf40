# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The claims whose release an eviction waits for. tests/cluster/test_defragment.py evicts pods of a real cluster."""

from __future__ import annotations

import typing as t
from types import SimpleNamespace

import pytest
from ansible_collections.lanewise.dra.plugins.modules import pod_eviction
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import Object, pod

kubernetes = pytest.importorskip("kubernetes")
urllib3 = pytest.importorskip("urllib3")


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


def _module(**params: int) -> t.Any:
    limits = {"budget_timeout": 0, "timeout": 0, "settle_timeout": 0, **params}
    return SimpleNamespace(params=limits, check_mode=False)


@pytest.mark.parametrize("outage", [503, 429, None])
def test_an_api_server_that_is_down_for_a_while_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, outage: int | None
) -> None:
    monkeypatch.setattr(pod_eviction, "RETRY_INTERVAL_SECONDS", 0.01)
    pods = EvictedPods(pod("a", "n1", [0])[0])
    failures = [outage] * 3
    read = pods.read

    def failing_read() -> Object | None:
        if pods.pod is None and failures:
            failures.pop()
            if outage:
                raise kubernetes.client.ApiException(outage)
            raise urllib3.exceptions.ProtocolError("closed")
        return read()

    monkeypatch.setattr(pods, "read", failing_read)
    result = pod_eviction.evict_pod(_module(timeout=60), t.cast(t.Any, pods))
    assert result["changed"] and not failures


def test_a_pod_that_waited_before_does_not_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    item = pod("a", "n1", [0])[0]
    item["metadata"]["ownerReferences"] = [{"uid": "set", "controller": True}]
    pods = EvictedPods(item)
    waiting = {"spec": {}}
    monkeypatch.setattr(pods, "siblings", lambda _controller: [{"spec": {"nodeName": "n2"}}, waiting])
    assert pod_eviction.evict_pod(_module(), t.cast(t.Any, pods))["replaced"] is True


def test_another_pod_of_the_same_name_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaced the pod between the read and the eviction."""
    pods = EvictedPods(pod("a", "n1", [0])[0])

    def conflict(_check: bool) -> str:
        pods.pod = None
        raise kubernetes.client.ApiException(409)

    monkeypatch.setattr(pods, "evict", conflict)
    assert pod_eviction.evict_pod(_module(), t.cast(t.Any, pods)) == {"changed": False, "blocked": "", "replaced": True}
