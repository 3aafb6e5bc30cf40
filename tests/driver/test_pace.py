# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Work that the driver delays while pods start, and waiting that uses little processor time."""

from __future__ import annotations

import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.api_server import RESOURCE, ApiServer
from lanewise_driver.api.access import Access, from_kubeconfig
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.base import activity
from lanewise_driver.base.activity import Activity
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy
from lanewise_driver.base.lock import Locks
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims import claim_status
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.publisher import BUSY_SECONDS, Publisher

TIMEOUT = 60.0


def test_the_node_is_busy_until_all_overlapping_operations_have_ended() -> None:
    node_activity = Activity()
    assert not node_activity.busy()
    with node_activity.operation():
        with node_activity.operation():
            assert node_activity.busy()
        assert node_activity.busy()
    ended = time.monotonic()
    while node_activity.busy():
        assert time.monotonic() - ended < TIMEOUT
        time.sleep(0.01)
    assert time.monotonic() - ended >= activity.QUIET_SECONDS * 0.9


class Recorder(Publisher):
    """Records the times at which it would probe and publish."""

    def __init__(self, busy: t.Callable[[], bool]) -> None:
        cluster = Cluster(lambda: Access("https://127.0.0.1:1"), "lanewise.dev", "node-a", retry_seconds=0.0)
        super().__init__(cluster, Inventory(Settings, lambda: ()), busy=busy)
        self.times: list[float] = []
        self.published = threading.Condition()

    def publish(self, reason: str) -> t.Any:
        with self.published:
            self.times.append(time.monotonic())
            self.published.notify_all()

    def wait(self, count: int) -> bool:
        """Wait until it has published `count` times. Returns False on timeout."""
        with self.published:
            return self.published.wait_for(lambda: len(self.times) >= count, TIMEOUT)


def test_a_probe_waits_a_limited_time_for_pods_that_start() -> None:
    busy = threading.Event()
    recorder = Recorder(busy.is_set)
    recorder.start()
    try:
        assert recorder.wait(1)
        busy.set()
        began = time.monotonic()
        earlier = len(recorder.times)
        recorder.wake("a test")
        assert recorder.wait(earlier + 1)
        assert recorder.times[earlier] - began >= BUSY_SECONDS * 0.9  # the node is still busy
        busy.clear()
        recorder.wake("a test")
        assert recorder.wait(earlier + 2)
    finally:
        recorder.stop()


def test_a_returned_device_is_published_when_no_pod_starts_any_more() -> None:
    busy = threading.Event()
    recorder = Recorder(busy.is_set)
    recorder.start()
    try:
        assert recorder.wait(1)
        busy.set()
        earlier = len(recorder.times)
        recorder.wake_when_idle("a test")
        time.sleep(BUSY_SECONDS * 1.5)
        assert len(recorder.times) == earlier
        began = time.monotonic()
        recorder.wake("an urgent reason")
        assert recorder.wait(earlier + 1)
        assert recorder.times[earlier] - began < BUSY_SECONDS
        recorder.wake_when_idle("a test")
        time.sleep(BUSY_SECONDS)
        busy.clear()
        assert recorder.wait(earlier + 2)
    finally:
        recorder.stop()


def test_a_claim_is_read_while_the_kernel_is_queried(tmp_path: Path) -> None:
    """The server answers once the query has begun, so a query after the answer would wait forever."""
    begun = threading.Event()
    answered: list[bool] = []

    class SlowServer(ApiServer):
        def answer(self, method: str, path: str, *rest: t.Any) -> tuple[int, t.Any]:
            if path.endswith("/resourceclaims/one"):
                answered.append(begun.wait(TIMEOUT))
            return super().answer(method, path, *rest)

    server = SlowServer(tmp_path)
    try:
        server.put(f"{RESOURCE}/v1/namespaces/default/resourceclaims/one", {"metadata": {"name": "one"}})
        cluster = Cluster(lambda: from_kubeconfig(server.kubeconfig), "lanewise.dev", "node-a")
        queries = 0

        def query() -> None:
            nonlocal queries
            queries += 1
            begun.set()

        for count in (1, 2):
            found = cluster.claim("default", "one", query)
            assert found is not None and found["metadata"]["name"] == "one"
            assert queries == count
        assert cluster.claim("default", "one")
        assert queries == 2 and answered == [True] * 3
    finally:
        server.close()


class StatusRecorder:
    """Records the claims whose status was written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[t.Any]) -> bool:
        self.written.append(uid)
        return True


def test_only_urgent_statuses_are_written_at_once_while_pods_start() -> None:
    busy, status = threading.Event(), StatusRecorder()
    writer = Writer(status, settle=0.0)
    writer.busy = busy.is_set
    busy.set()
    writer.start()
    try:
        writer.put(ClaimRef("default", "one", "1"), [{}])
        writer.put(ClaimRef("default", "two", "2"), [{}], urgent=True)
        assert not writer.wait(0.5)
        assert "2" in status.written
        busy.clear()
        assert writer.wait(TIMEOUT)
        assert status.written.count("1") == 1
        busy.set()
        began = time.monotonic()
        writer.put(ClaimRef("default", "one", "1"), [{}])
        assert writer.wait(TIMEOUT)  # pods that keep starting do not delay it forever
        assert claim_status.BUSY_SECONDS * 0.9 < time.monotonic() - began < claim_status.BUSY_SECONDS * 2
        writer.put(ClaimRef("default", "one", "1"), [{}])
        began = time.monotonic()
        writer.stop(TIMEOUT)
        assert status.written.count("1") == 3 and time.monotonic() - began < claim_status.BUSY_SECONDS / 2
    finally:
        writer.stop(0.0)


def test_threads_that_wait_for_a_lock_are_woken(tmp_path: Path) -> None:
    """They do not poll, because many polling threads would use much processor time."""
    first, second = Locks(tmp_path, TIMEOUT), Locks(tmp_path, TIMEOUT)  # as two parts of one process have them
    holders: list[int] = []

    def hold(number: int, locks: Locks) -> None:
        with locks.hold("claim-1", "device-2"):
            count = len(holders)
            time.sleep(0.001)
            holders.append(number)
            assert len(holders) == count + 1

    threads = [threading.Thread(target=hold, args=(number, (first, second)[number % 2])) for number in range(50)]
    with first.hold("device-2"):
        for thread in threads:
            thread.start()
        with pytest.raises(Busy), Locks(tmp_path, 0.0).hold("device-2"):
            pass
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.5  # 50 threads that poll every 5 ms would take all of it
        assert not holders
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(holders) == list(range(50))
    assert not list(tmp_path.iterdir())


def test_the_interpreter_switches_threads_within_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        activity.tune_interpreter()
        assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)
