# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attaches a claim's devices as soon as its pod has a network, while the runtime still creates the containers.

A pod's network namespace exists some hundred milliseconds before its first container starts. Containerd records it in
the folder of the pod's sandbox: the OCI configuration there has the pod's UID and the path of the namespace. The hook
(hook.py) still decides whether a container starts. If the devices are attached, it does not contact the driver;
otherwise, or if the early attach failed, it requests the attach as usual. So any failure here only costs time. Runtimes
other than containerd do not have this folder.

Only root can write there. Source: containerd core/runtime/v2/bundle.go (NewBundle), pkg/cri annotations.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import select
import struct
import threading
import time
import typing as t
from pathlib import Path

from ..base import logs
from ..base.calls import AttachRequest
from ..base.errors import DriverError
from ..base.metrics import ATTACH, Metrics
from ..base.objects import Object

log = logging.getLogger(__name__)

TASK_FOLDER = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
#: Maximum pods that are handled at the same time; the hooks of further pods request the attach.
WORKERS = 64
#: Maximum attaches that compute at the same time: more would only slow each other down, because they share the
#: interpreter and the kernel's lock of network configuration. An attach that takes longer than LONG_SECONDS waits for
#: something else, such as a DHCP server, and no longer counts.
MAX_COMPUTING, LONG_SECONDS = 2, 0.5
#: Seconds between two checks whether the folder exists; maximum seconds that containerd takes to write a sandbox's
#: configuration after it has created its folder, and seconds between two attempts to read it.
RETRY_SECONDS, WRITE_SECONDS, WRITE_STEP = 5.0, 0.5, 0.002
#: Maximum bytes of a configuration.
_CONFIGURATION_BYTES = 4 << 20

_IN_CREATE, _IN_MOVED_TO, _IN_DELETE_SELF, _IN_IGNORED, _IN_ONLYDIR = 0x100, 0x80, 0x400, 0x8000, 0x01000000
_EVENT = struct.Struct("=iIII")
_TYPE, _SANDBOX = "io.kubernetes.cri.container-type", "sandbox"

_libc = ctypes.CDLL(None, use_errno=True)


class Service(t.Protocol):
    """The part of `claims.service.Service` that is used here."""

    def waiting(self, pod_uid: str = "") -> list[str]: ...

    def attach_early(self, request: AttachRequest) -> bool: ...


class EarlyAttacher:
    """Watches `folder` in a thread. `stop` does not wait for running attaches: if the process ends before them, the
    next start recovers as after a kill."""

    def __init__(self, service: Service, metrics: Metrics, folder: Path = TASK_FOLDER) -> None:
        self._service = service
        self._metrics = metrics
        self._folder = folder
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._limit = _AttachLimit()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="early", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                watched = _watch(self._folder)
            except OSError:  # no containerd, or not yet
                self._stopping.wait(RETRY_SECONDS)
                continue
            try:
                self._follow(watched)
            except Exception:
                log.exception("unexpected error: for now, devices are attached when their hooks request it")
                self._stopping.wait(RETRY_SECONDS)
            finally:
                os.close(watched)

    def _follow(self, watched: int) -> None:
        """Handle the folder's events until it is removed, as by reinstalling containerd."""
        while not self._stopping.is_set():
            if not select.select([watched], [], [], 0.5)[0]:
                continue
            data, at = os.read(watched, 1 << 16), 0
            while at < len(data):
                _watch_number, mask, _cookie, length = _EVENT.unpack_from(data, at)
                name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].split(b"\0", 1)[0])
                at += _EVENT.size + length
                if mask & (_IN_DELETE_SELF | _IN_IGNORED):
                    return
                if name and self._service.waiting():
                    self._start(self._folder / name)

    def _start(self, bundle: Path) -> None:
        if not self._slots.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._handle, args=(bundle,), name="early-attach", daemon=True).start()
        except RuntimeError:  # no more threads
            self._slots.release()

    def _handle(self, bundle: Path) -> None:
        try:
            for request in self._requests(bundle):
                with logs.context(claim=request.uid, operation=ATTACH, pod_uid=request.pod_uid):
                    self._attach(request)
        except Exception:
            log.exception("unexpected error: the pod's devices are attached when its hook requests it")
        finally:
            self._slots.release()

    def _attach(self, request: AttachRequest) -> None:
        try:
            with self._limit.hold(), self._metrics.operation(ATTACH) as measurement:
                measurement.counts = self._service.attach_early(request)
        except DriverError as error:
            log.info("the early attach failed, the pod's hook tries again: %s", error.message)

    def _requests(self, bundle: Path) -> list[AttachRequest]:
        """What to attach to the sandbox with this folder; nothing if it is a container's folder, or if the pod has no
        claim here or uses the node's network."""
        found = _configuration(bundle / "config.json")
        annotations = {name: str(value) for name, value in (found.get("annotations") or {}).items()}
        if annotations.get(_TYPE) != _SANDBOX:
            return []
        spaces = found.get("linux", {}).get("namespaces") or []
        paths = [one.get("path") for one in spaces if one.get("type") == "network" and one.get("path")]
        if len(paths) != 1:
            return []
        pod = AttachRequest("", Path(paths[0]), 0, bundle.name, annotations).pod_uid
        return [
            AttachRequest(uid, Path(paths[0]), 0, bundle.name, annotations) for uid in self._service.waiting(pod) if pod
        ]


class _AttachLimit:
    """Limits the attaches that compute at the same time (AT_ONCE)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._started: dict[object, float] = {}

    @contextlib.contextmanager
    def hold(self) -> t.Iterator[None]:
        """Wait for a free place, and occupy it within the block."""
        token = object()
        with self._changed:
            while (left := self._wait_seconds()) > 0:
                self._changed.wait(left)
            self._started[token] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._started[token]
                self._changed.notify()

    def _wait_seconds(self) -> float:
        """How long to wait for a place if no attach ends; 0 if one is free now."""
        now = time.monotonic()
        left = [began + LONG_SECONDS - now for began in self._started.values() if began + LONG_SECONDS > now]
        return min(left) if len(left) >= MAX_COMPUTING else 0.0


def _configuration(path: Path) -> Object:
    """An OCI configuration, as soon as it is complete; empty if it is not within WRITE_SECONDS."""
    end = time.monotonic() + WRITE_SECONDS
    while True:
        try:
            with open(path, "rb") as file:
                found = json.loads(file.read(_CONFIGURATION_BYTES))
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, RecursionError):
            if time.monotonic() > end or not path.parent.exists():
                return {}
        time.sleep(WRITE_STEP)


def _watch(folder: Path) -> int:
    """An inotify descriptor for what is created in a folder. Raises OSError."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    wanted = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_ONLYDIR
    if _libc.inotify_add_watch(descriptor, os.fsencode(folder), wanted) < 0:
        code = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(code, "inotify_add_watch")
    return descriptor
