# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attaches a claim's devices as soon as its pod has a network, while the runtime still creates the containers.

A pod's network namespace exists a few hundred milliseconds before its first container starts. Containerd records the
namespace in the folder of the pod's sandbox: the OCI configuration there contains the pod's UID and the namespace's
path. Only root can write to this folder. Other runtimes do not have it.

The hook (program.py) still decides whether a container starts. If the devices are attached, the hook does not contact
the driver; otherwise it requests the attach as usual. So a failure of an early attach only costs time.

Source: containerd core/runtime/v2/bundle.go (NewBundle), pkg/cri annotations.
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
#: Maximum sandboxes and containers that are handled at the same time; the hooks of further pods request the attach.
WORKERS = 64
#: Maximum attaches that compute at the same time: more of them would only slow each other down, because they share the
#: interpreter and the kernel's lock for network configuration (RTNL). An attach that takes longer than LONG_SECONDS is
#: assumed to wait for something else, such as a DHCP server, and is no longer counted.
MAX_COMPUTING, LONG_SECONDS = 2, 0.5
#: Seconds between two checks whether TASK_FOLDER exists.
RETRY_SECONDS = 5.0
#: Seconds to wait for a sandbox's configuration after its folder is created, and between two attempts to read it.
WRITE_SECONDS, WRITE_POLL_SECONDS = 0.5, 0.002
#: Maximum bytes of a configuration.
_MAX_CONFIGURATION_BYTES = 4 << 20

_IN_CREATE, _IN_MOVED_TO, _IN_DELETE_SELF, _IN_IGNORED, _IN_ONLYDIR = 0x100, 0x80, 0x400, 0x8000, 0x01000000
_EVENT = struct.Struct("=iIII")
#: The annotation with a container's type, and its value for a sandbox.
_TYPE_ANNOTATION, _SANDBOX = "io.kubernetes.cri.container-type", "sandbox"

_libc = ctypes.CDLL(None, use_errno=True)


class Service(t.Protocol):
    """The part of `claims.service.Service` that is used here."""

    def waiting(self, pod_uid: str = "") -> list[str]: ...

    def attach_early(self, request: AttachRequest) -> bool: ...


class EarlyAttacher:
    """Watches `folder` for new sandboxes in a thread, and attaches the devices of their pods.

    `stop` does not wait for running attaches. If the process ends before they do, the next start recovers, as after a
    kill.
    """

    def __init__(self, service: Service, metrics: Metrics, folder: Path = TASK_FOLDER) -> None:
        self._service = service
        self._metrics = metrics
        self._folder = folder
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._attach_limit = _AttachLimit()
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
                inotify = _watch(self._folder)
            except OSError:  # containerd is not installed, or has not started yet
                self._stopping.wait(RETRY_SECONDS)
                continue
            try:
                self._follow(inotify)
            except Exception:
                log.exception("unexpected error: for now, devices are attached when their hooks request it")
                self._stopping.wait(RETRY_SECONDS)
            finally:
                os.close(inotify)

    def _follow(self, inotify: int) -> None:
        """Handle the folder's events until the folder is removed, for example when containerd is reinstalled."""
        while not self._stopping.is_set():
            if not select.select([inotify], [], [], 0.5)[0]:
                continue
            data, offset = os.read(inotify, 1 << 16), 0
            while offset < len(data):
                _watch_number, mask, _cookie, length = _EVENT.unpack_from(data, offset)
                name = os.fsdecode(data[offset + _EVENT.size : offset + _EVENT.size + length].split(b"\0", 1)[0])
                offset += _EVENT.size + length
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
            with self._attach_limit.hold(), self._metrics.operation(ATTACH) as measurement:
                measurement.recorded = self._service.attach_early(request)
        except DriverError as error:
            log.info("the early attach failed, the pod's hook tries again: %s", error.message)

    def _requests(self, bundle: Path) -> list[AttachRequest]:
        """What to attach to the sandbox in this folder. Empty if the folder is a container's, or if the pod has no
        claim of this driver or uses the node's network."""
        configuration = _read_configuration(bundle / "config.json")
        annotations = {name: str(value) for name, value in (configuration.get("annotations") or {}).items()}
        if annotations.get(_TYPE_ANNOTATION) != _SANDBOX:
            return []
        namespaces = configuration.get("linux", {}).get("namespaces") or []
        paths = [
            namespace.get("path")
            for namespace in namespaces
            if namespace.get("type") == "network" and namespace.get("path")
        ]
        if len(paths) != 1:
            return []
        pod = AttachRequest("", Path(paths[0]), 0, bundle.name, annotations).pod_uid
        return [
            AttachRequest(uid, Path(paths[0]), 0, bundle.name, annotations) for uid in self._service.waiting(pod) if pod
        ]


class _AttachLimit:
    """Limits the attaches that compute at the same time (MAX_COMPUTING)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._started: dict[object, float] = {}

    @contextlib.contextmanager
    def hold(self) -> t.Iterator[None]:
        """Wait for a free slot, and occupy it within the block."""
        token = object()
        with self._changed:
            while (seconds := self._wait_seconds()) > 0:
                self._changed.wait(seconds)
            self._started[token] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._started[token]
                self._changed.notify()

    def _wait_seconds(self) -> float:
        """Seconds until a slot is free if no attach ends before; 0 if one is free now."""
        now = time.monotonic()
        remaining = [began + LONG_SECONDS - now for began in self._started.values() if began + LONG_SECONDS > now]
        return min(remaining) if len(remaining) >= MAX_COMPUTING else 0.0


def _read_configuration(path: Path) -> Object:
    """An OCI configuration, as soon as its file is complete; empty if it is not complete within WRITE_SECONDS."""
    deadline = time.monotonic() + WRITE_SECONDS
    while True:
        try:
            with open(path, "rb") as file:
                content = json.loads(file.read(_MAX_CONFIGURATION_BYTES))
            return content if isinstance(content, dict) else {}
        except (OSError, ValueError, RecursionError):
            if time.monotonic() > deadline or not path.parent.exists():
                return {}
        time.sleep(WRITE_POLL_SECONDS)


def _watch(folder: Path) -> int:
    """Returns an inotify descriptor for entries that are created in the folder. Raises OSError."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    mask = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_ONLYDIR
    if _libc.inotify_add_watch(descriptor, os.fsencode(folder), mask) < 0:
        code = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(code, "inotify_add_watch")
    return descriptor
