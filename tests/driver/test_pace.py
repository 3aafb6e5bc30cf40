# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Work that is delayed while pods start."""

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

LONG = 60.0


def test_the_node_is_busy_until_all_overlapping_operations_have_ended() -> None:
    measured = Activity()
    assert not measured.busy()
    with measured.operation():
        with measured.operation():
            assert measured.busy()
        assert measured.busy()
    ended = time.monotonic()
    while measured.busy():
        assert time.monotonic() - ended < LONG
        time.sleep(0.01)
    assert time.monotonic() - ended >= activity.QUIET_SECONDS * 0.9


class Recorder(Publisher):
    """Records when it would probe and publish."""

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
        with self.published:
            return self.published.wait_for(lambda: len(self.times) >= count, LONG)


def test_a_probe_waits_a_limited_time_for_pods_that_start() -> None:
    busy = threading.Event()
    recorder = Recorder(busy.is_set)
    recorder.start()
    try:
        assert recorder.wait(1)
        busy.set()
        began = time.monotonic()
        seen = len(recorder.times)
        recorder.wake("a test")
        assert recorder.wait(seen + 1)
        assert recorder.times[seen] - began >= BUSY_SECONDS * 0.9  # while pods keep starting
        busy.clear()
        recorder.wake("a test")
        assert recorder.wait(seen + 2)
    finally:
        recorder.stop()


def test_a_returned_device_is_published_once_no_pod_starts() -> None:
    busy = threading.Event()
    recorder = Recorder(busy.is_set)
    recorder.start()
    try:
        assert recorder.wait(1)
        busy.set()
        seen = len(recorder.times)
        recorder.wake_when_idle("a test")
        time.sleep(BUSY_SECONDS * 1.5)
        assert len(recorder.times) == seen
        began = time.monotonic()
        recorder.wake("another reason, which hurries")
        assert recorder.wait(seen + 1)
        assert recorder.times[seen] - began < BUSY_SECONDS
        recorder.wake_when_idle("a test")
        time.sleep(BUSY_SECONDS)
        busy.clear()
        assert recorder.wait(seen + 2)
    finally:
        recorder.stop()


def test_a_claim_is_read_while_the_kernel_is_queried(tmp_path: Path) -> None:
    """The server answers once the query has begun, so a query after the answer would wait forever."""
    begun = threading.Event()
    answered: list[bool] = []

    class Slow(ApiServer):
        def answer(self, method: str, path: str, *rest: t.Any) -> tuple[int, t.Any]:
            if path.endswith("/resourceclaims/one"):
                answered.append(begun.wait(LONG))
            return super().answer(method, path, *rest)

    server = Slow(tmp_path)
    try:
        server.put(f"{RESOURCE}/v1/namespaces/default/resourceclaims/one", {"metadata": {"name": "one"}})
        cluster = Cluster(lambda: from_kubeconfig(server.kubeconfig), "lanewise.dev", "node-a")
        queries: list[str] = []

        def query() -> None:
            queries.append("")
            begun.set()

        for count in (1, 2):
            found = cluster.claim("default", "one", query)
            assert found is not None and found["metadata"]["name"] == "one"
            assert len(queries) == count
        assert cluster.claim("default", "one")
        assert len(queries) == 2 and answered == [True] * 3
    finally:
        server.close()


class Status:
    """Records the claims whose status was written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[t.Any]) -> bool:
        self.written.append(uid)
        return True


def test_a_ready_status_waits_for_pods_that_start() -> None:
    busy, status = threading.Event(), Status()
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
        assert writer.wait(LONG)
        assert status.written.count("1") == 1
        busy.set()
        began = time.monotonic()
        writer.put(ClaimRef("default", "one", "1"), [{}])
        assert writer.wait(LONG)  # pods that keep starting do not delay it forever
        assert claim_status.BUSY_SECONDS * 0.9 < time.monotonic() - began < claim_status.BUSY_SECONDS * 2
        writer.put(ClaimRef("default", "one", "1"), [{}])
        began = time.monotonic()
        writer.stop(LONG)
        assert status.written.count("1") == 3 and time.monotonic() - began < claim_status.BUSY_SECONDS / 2
    finally:
        writer.stop(0.0)


def test_threads_that_wait_for_a_lock_are_woken(tmp_path: Path) -> None:
    """They do not poll, because many waiting threads would take processor time from the working one."""
    one, other = Locks(tmp_path, LONG), Locks(tmp_path, LONG)  # as two parts of one process have them
    holders: list[int] = []

    def work(number: int, locks: Locks) -> None:
        with locks.hold("claim-1", "device-2"):
            count = len(holders)
            time.sleep(0.001)
            holders.append(number)
            assert len(holders) == count + 1

    threads = [threading.Thread(target=work, args=(number, (one, other)[number % 2])) for number in range(50)]
    with one.hold("device-2"):
        for thread in threads:
            thread.start()
        with pytest.raises(Busy), Locks(tmp_path, 0.0).hold("device-2"):
            pass
        before = time.thread_time(), time.process_time()
        time.sleep(1)
        assert time.process_time() - before[1] < 0.5  # 50 threads that poll every 5 ms would take all of it
        assert not holders
    for thread in threads:
        thread.join(LONG)
    assert sorted(holders) == list(range(50))
    assert not list(tmp_path.iterdir())


def test_the_interpreter_switches_threads_within_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        activity.tune_interpreter()
        assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)
