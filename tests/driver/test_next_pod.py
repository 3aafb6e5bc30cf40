# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims that several pods use, one after the other."""

from __future__ import annotations

import threading
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import WIRES, ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries
from lanewise_driver.base.errors import Refused, Unreachable
from lanewise_driver.claims import peers


def test_a_claim_is_attached_to_the_next_pod_without_a_prepare(
    node: ClaimsNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet prepares a claim only once if several pods use it, one after the other."""
    service = node.service()
    service.prepare(node.claims["two"])
    service.attach(node.request("two", sandbox.path))
    plane = node.plane
    node.start_pod("two", "next")
    second = Sandbox()
    with pytest.raises(Refused, match="status.reservedFor"):
        attach_with_retries(service, node.request("two", second.path, pod="next"))
    assert set(second.links()) == {"lo"}
    plane.expect("DELETE", f"{claims_node.PODS}/two?gracePeriodSeconds=0")
    plane.wait_for(lambda: len(node.claim("two")["status"]["reservedFor"]) == 1, "the claim to be for one pod")

    def unreachable(*_arguments: object) -> t.NoReturn:
        raise Unreachable("the API server does not answer")

    with monkeypatch.context() as outage:  # the hook fails, and container creation is tried again
        outage.setattr(peers, "peers", unreachable)
        with pytest.raises(Unreachable):
            attach_with_retries(service, node.request("two", second.path, pod="next"))
    threads: list[str] = []
    for name in ("claim", "pod"):
        monkeypatch.setattr(service.cluster, name, _recording_threads(threads, getattr(service.cluster, name)))
    attach_with_retries(service, node.request("two", second.path, pod="next"))
    # not the thread of attach, but another thread sends requests to the API server
    assert "next-pod" in threads and threading.current_thread().name not in threads
    assert set(second.links()) == {"lo", WIRES[1], "rail1"} and set(sandbox.links()) == {"lo"}
    with pytest.raises(Refused):
        attach_with_retries(service, node.request("two", sandbox.path))
    assert set(second.links()) == {"lo", WIRES[1], "rail1"}
    service.unprepare(node.claims["two"])
    second.end()
    node.pods["two"] = node.pods.pop("next")


def _recording_threads(threads: list[str], function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    """A function that calls `function` and adds the name of the calling thread to `threads`."""

    def recording(*args: t.Any) -> t.Any:
        threads.append(threading.current_thread().name)
        return function(*args)

    return recording
