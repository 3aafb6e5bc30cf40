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


class Pods:
    """Claims that wait to be attached, each of a pod with the same name. `attach` is called for each attach, and may
    return False if there is nothing to attach."""

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

    def start(self, folder: Path) -> None:
        """Create the sandboxes, in order, as containerd does."""
        for name in self.names:
            (folder / name).mkdir()
            annotations = {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-uid": name}
            spaces = [{"type": "network", "path": f"/run/netns/{name}"}]
            config = {"annotations": annotations, "linux": {"namespaces": spaces}}
            (folder / name / "config.json").write_text(json.dumps(config))


def watching(pods: Pods, folder: Path, metrics: Metrics | None = None) -> early.EarlyAttacher:
    """A watcher that sees what is created in the folder from now on."""
    before = _watches()
    watcher = early.EarlyAttacher(pods, metrics or Metrics(), folder)
    watcher.start()
    until(lambda: _watches() > before)
    return watcher


def _watches() -> int:
    """The inotify watches of this process."""
    number = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            number += path.read_text().count("inotify wd")
    return number


def test_attaches_that_wait_for_a_server_do_not_delay_others(tmp_path: Path) -> None:
    """As many as may run at the same time ask a DHCP server that does not answer."""
    answer = threading.Event()
    slow = [f"slow-{number}" for number in range(early.MAX_COMPUTING)]
    pods = Pods([*slow, "quick"], lambda name: name == "quick" or answer.wait(60) or None)
    watcher = watching(pods, tmp_path)
    try:
        pods.start(tmp_path)
        until(lambda: pods.attached == ["quick"])
        answer.set()
        until(lambda: sorted(pods.attached) == sorted(pods.names))
    finally:
        answer.set()
        watcher.stop()


def test_only_some_attaches_compute_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "LONG_SECONDS", 60.0)
    lock, running, most = threading.Lock(), [0], [0]

    def attach(_name: str) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.05)
        with lock:
            running[0] -= 1

    pods = Pods([f"pod-{number}" for number in range(8)], attach)
    watcher = watching(pods, tmp_path)
    try:
        pods.start(tmp_path)
        until(lambda: sorted(pods.attached) == pods.names)
    finally:
        watcher.stop()
    assert most == [early.MAX_COMPUTING]


def test_only_what_was_attached_counts_as_an_attach(tmp_path: Path) -> None:
    """A hook may have attached the claim in the meantime, or the claim may be for another pod now."""
    metrics = Metrics()

    def attach(name: str) -> bool:
        if name == "failed":
            raise KernelError("move nic0", errno.EIO)
        return name == "attached"

    pods = Pods(["nothing", "attached", "another", "failed"], attach)
    watcher = watching(pods, tmp_path, metrics)

    def count(outcome: str) -> float | None:
        return metrics.registry.get_sample_value(
            "lanewise_operation_seconds_count", {"operation": "attach", "outcome": outcome}
        )

    try:
        pods.start(tmp_path)
        until(lambda: sorted(pods.attached) == ["another", "attached", "nothing"])
        until(lambda: "early-attach" not in [one.name for one in threading.enumerate()])
    finally:
        watcher.stop()
    assert (count("ok"), count("kernel")) == (1.0, 1.0)
