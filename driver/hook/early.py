# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attaches a claim's devices as soon as its pod has a network, while the runtime goes on to make the containers.

A pod's network namespace is there some hundred milliseconds before its first container starts. Containerd notes it in
the folder that it makes for the pod's sandbox: the OCI configuration in it has the pod's UID and the namespace. The
hook stays what lets a container start (hook.py): it finds the devices attached, and asks nobody; where nothing was done
early, or it failed, it asks as ever. So whatever goes wrong here costs time alone. Other runtimes than containerd have
no such folder.

Root alone writes there. Source: containerd core/runtime/v2/bundle.go (NewBundle), pkg/cri annotations.
"""

from __future__ import annotations

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

log = logging.getLogger(__name__)

FOLDER = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
#: Pods that are looked at; of more pods the hooks ask. Of their attaches so many run at once: with more of them each
#: only takes longer, as they share the interpreter and the kernel's lock of network configuration.
WORKERS, AT_ONCE = 64, 2
#: Seconds between two looks whether the folder is there, and until which its configuration follows a sandbox's folder.
RETRY_SECONDS, WRITE_SECONDS, WRITE_STEP = 5.0, 0.5, 0.002
_LARGEST = 4 << 20

_IN_CREATE, _IN_MOVED_TO, _IN_DELETE_SELF, _IN_IGNORED, _IN_ONLYDIR = 0x100, 0x80, 0x400, 0x8000, 0x01000000
_EVENT = struct.Struct("=iIII")
_TYPE, _SANDBOX = "io.kubernetes.cri.container-type", "sandbox"

_libc = ctypes.CDLL(None, use_errno=True)


class Service(t.Protocol):
    """What is needed of claims.Service."""

    def waiting(self, pod_uid: str = "") -> list[str]: ...

    def attach_early(self, request: AttachRequest) -> None: ...


class Early:
    """Watches C(folder) in a thread. C(stop) lets running attaches be: the process that ends with them is as one that
    was killed."""

    def __init__(self, service: Service, metrics: Metrics, folder: Path = FOLDER) -> None:
        self._service = service
        self._metrics = metrics
        self._folder = folder
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._turns = threading.Semaphore(AT_ONCE)
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
                log.exception("pods are not looked for until their hooks ask")
                self._stopping.wait(RETRY_SECONDS)
            finally:
                os.close(watched)

    def _follow(self, watched: int) -> None:
        """Until the folder goes away, as when containerd is installed anew."""
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
                    self._begin(self._folder / name)

    def _begin(self, bundle: Path) -> None:
        if not self._slots.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._look, args=(bundle,), name="early-attach", daemon=True).start()
        except RuntimeError:  # no more threads
            self._slots.release()

    def _look(self, bundle: Path) -> None:
        try:
            for request in self._requests(bundle):
                with logs.about(claim=request.uid, operation=ATTACH, pod_uid=request.pod_uid):
                    self._attach(request)
        except Exception:
            log.exception("a pod's devices are not attached until its hook asks")
        finally:
            self._slots.release()

    def _attach(self, request: AttachRequest) -> None:
        try:
            with self._turns, self._metrics.operation(ATTACH):
                self._service.attach_early(request)
            log.info("attached before its containers start")
        except DriverError as error:
            log.info("not attached before its hook asks, which tells the pod's owner: %s", error.message)

    def _requests(self, bundle: Path) -> list[AttachRequest]:
        """What to attach to the sandbox whose folder this is; nothing where it is that of a container, of another pod,
        or of one in the node's network."""
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


def _configuration(path: Path) -> dict[str, t.Any]:
    """An OCI configuration, as soon as it is whole; empty where it does not come."""
    end = time.monotonic() + WRITE_SECONDS
    while True:
        try:
            with open(path, "rb") as file:
                found = json.loads(file.read(_LARGEST))
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, RecursionError):
            if time.monotonic() > end or not path.parent.exists():
                return {}
        time.sleep(WRITE_STEP)


def _watch(folder: Path) -> int:
    """A descriptor that tells of what is made in a folder. Raises OSError."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    wanted = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_ONLYDIR
    if _libc.inotify_add_watch(descriptor, os.fsencode(folder), wanted) < 0:
        code = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(code, "inotify_add_watch")
    return descriptor
