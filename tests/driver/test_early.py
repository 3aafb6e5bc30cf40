# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attaching before containers start: for which pods it happens and when. test_claims.py tests what is attached."""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from lanewise_driver.base.calls import AttachRequest
from lanewise_driver.base.errors import KernelError
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.hook import early


class FakeService:
    """A service with one waiting claim per pod. A pod's UID, its claim's UID and its container's ID are equal.
    `attach` is called for each attach, and returns False if there was nothing to attach."""

    def __init__(self, names: t.Iterable[str], attach: t.Callable[[str], bool | None]) -> None:
        self.names = list(names)
        self.attached: list[str] = []
        self._attach = attach

    def waiting(self, pod_uid: str = "") -> list[str]:
        return [name for name in self.names if pod_uid in ("", name)]

    def attach_early(self, request: AttachRequest) -> bool:
        assert request.uid == request.pod_uid == request.container
        attached = self._attach(request.uid) is not False
        self.attached.append(request.uid)
        return attached

    def create_sandboxes(self, folder: Path) -> None:
        """Create the sandboxes of the pods in order, as containerd does."""
        for name in self.names:
            (folder / name).mkdir()
            annotations = {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-uid": name}
            namespaces = [{"type": "network", "path": f"/run/netns/{name}"}]
            config = {"annotations": annotations, "linux": {"namespaces": namespaces}}
            (folder / name / "config.json").write_text(json.dumps(config))


def start_watcher(service: FakeService, folder: Path, metrics: Metrics | None = None) -> early.EarlyAttacher:
    """Start to watch the folder. Returns once the watch exists."""
    before = _count_watches()
    watcher = early.EarlyAttacher(service, metrics or Metrics(), folder)
    watcher.start()
    until(lambda: _count_watches() > before)
    return watcher


def _count_watches() -> int:
    """The number of inotify watches of this process."""
    count = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += path.read_text().count("inotify wd")
    return count


def test_attaches_that_wait_for_a_dhcp_server_do_not_delay_others(tmp_path: Path) -> None:
    """The slow attaches, as many as may compute at the same time, stand for attaches that wait for a DHCP server."""
    answered = threading.Event()
    slow = [f"slow-{number}" for number in range(early.MAX_COMPUTING)]
    service = FakeService([*slow, "quick"], lambda name: name == "quick" or answered.wait(60) or None)
    watcher = start_watcher(service, tmp_path)
    try:
        service.create_sandboxes(tmp_path)
        until(lambda: service.attached == ["quick"])
        answered.set()
        until(lambda: sorted(service.attached) == sorted(service.names))
    finally:
        answered.set()
        watcher.stop()


def test_the_number_of_attaches_that_compute_at_the_same_time_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "LONG_SECONDS", 60.0)
    lock, running, highest = threading.Lock(), 0, 0

    def attach(_name: str) -> None:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    service = FakeService([f"pod-{number}" for number in range(8)], attach)
    watcher = start_watcher(service, tmp_path)
    try:
        service.create_sandboxes(tmp_path)
        until(lambda: sorted(service.attached) == service.names)
    finally:
        watcher.stop()
    assert highest == early.MAX_COMPUTING


def test_an_early_attach_with_nothing_to_attach_is_not_counted(tmp_path: Path) -> None:
    """A hook may have attached the claim in the meantime, or the claim may be for another pod now."""
    metrics = Metrics()

    def attach(name: str) -> bool:
        if name == "failed":
            raise KernelError("move nic0", errno.EIO)
        return name == "attached"

    service = FakeService(["attached by its hook", "attached", "for another pod", "failed"], attach)
    watcher = start_watcher(service, tmp_path, metrics)

    def count(outcome: str) -> float | None:
        return metrics.registry.get_sample_value(
            "lanewise_operation_seconds_count", {"operation": "attach", "outcome": outcome}
        )

    try:
        service.create_sandboxes(tmp_path)
        until(lambda: sorted(service.attached) == ["attached", "attached by its hook", "for another pod"])
        until(lambda: "early-attach" not in [thread.name for thread in threading.enumerate()])
    finally:
        watcher.stop()
    assert (count("ok"), count("kernel")) == (1.0, 1.0)
