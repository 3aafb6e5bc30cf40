# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Locks between threads and between processes: during an update two instances of the driver run at once.

They are file locks, so the kernel releases them when the holding process dies. Other processes poll for a lock; threads
of one process wake each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
import typing as t
from pathlib import Path

from . import trace
from .errors import Busy, DriverError

#: Seconds to wait for a lock. Kubelet's timeout for a call is 45 s.
LOCK_TIMEOUT_SECONDS = 25.0
_POLL_SECONDS = 0.005


def _attempt(path: Path) -> int | None:
    """An open descriptor that holds the lock; None if another process holds it. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:  # otherwise its last holder has removed the file
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _acquire(path: Path, deadline: float, busy: str) -> int:
    """Repeat `_attempt` until `deadline` (monotonic). Raises Busy with the message `busy`, and DriverError if the file
    cannot be opened or locked."""
    while True:
        try:
            descriptor = _attempt(path)
        except OSError as error:
            raise DriverError(f"could not take the lock {path}: {error.strerror}") from error
        if descriptor is not None:
            return descriptor
        if time.monotonic() > deadline:
            raise Busy(busy)
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def serialized(path: Path | None, timeout: float = LOCK_TIMEOUT_SECONDS) -> t.Iterator[None]:
    """Hold the lock `path` within the block; do nothing if it is None. Raises Busy if the lock is not free after
    `timeout` seconds, and DriverError if the file cannot be opened or locked."""
    if path is None:
        yield
        return
    busy = f"another instance of the driver has been working for more than {timeout:g} s"
    descriptor = _acquire(path, time.monotonic() + timeout, busy)
    try:
        yield
    finally:
        os.close(descriptor)


class InstanceLock:
    """A lock that is held until `release` or the end of the process, so that no two processes serve the same socket.
    Otherwise the older process would remove the newer one's socket when it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; False if another process holds it. Raises OSError."""
        if self._descriptor is None:
            self._descriptor = _attempt(self.path)
        return self._descriptor is not None

    def release(self) -> None:
        """Release the lock. The file stays: if it were removed, two processes could hold the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Queue:
    """The queue of this process's threads for one lock file, so that a release wakes the next thread. `users` is the
    number of threads that hold the lock or wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


_queues: dict[Path, _Queue] = {}
_queues_lock = threading.Lock()


@contextlib.contextmanager
def _thread_lock(path: Path, deadline: float, busy: str) -> t.Iterator[None]:
    """Exclude other threads of this process from the lock `path` within the block. Raises Busy with the message `busy`
    after `deadline` (monotonic)."""
    with _queues_lock:
        queue = _queues.setdefault(path, _Queue())
        queue.users += 1
    try:
        if not queue.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Busy(busy)
        try:
            yield
        finally:
            queue.lock.release()
    finally:
        with _queues_lock:
            queue.users -= 1
            if not queue.users:
                del _queues[path]


class Locks:
    """Locks by name. A lock's file exists only while the lock is held. `timeout` is the number of seconds to wait."""

    def __init__(self, folder: Path, timeout: float = LOCK_TIMEOUT_SECONDS) -> None:
        self.folder = folder
        self.timeout = timeout

    @contextlib.contextmanager
    def hold(self, *names: str) -> t.Iterator[None]:
        """Hold all of these locks within the block, acquired in the order of their names. Raises Busy if one is not
        free in time, and DriverError if its file cannot be opened or locked."""
        deadline = time.monotonic() + self.timeout
        with contextlib.ExitStack() as stack:
            for name in sorted(set(names)):
                with trace.step(f"take the lock {name}"):
                    stack.enter_context(self._hold_one(name, deadline))
            yield

    @contextlib.contextmanager
    def _hold_one(self, name: str, deadline: float) -> t.Iterator[None]:
        try:
            if not os.path.isdir(self.folder):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DriverError(f"could not create the lock folder {self.folder}: {error.strerror}") from error
        path = self.folder / re.sub(r"[^A-Za-z0-9._-]", "_", name)
        busy = f"another operation has held {name} for more than {self.timeout:.0f} s"
        with _thread_lock(path, deadline, busy):
            descriptor = _acquire(path, deadline, busy)
            try:
                yield
            finally:
                _remove(path, descriptor)

    def sweep(self) -> None:
        """Remove the files that killed holders left behind. Raises OSError."""
        for path in self.folder.glob("*"):
            descriptor = _attempt(path)
            if descriptor is not None:
                _remove(path, descriptor)


def _remove(path: Path, descriptor: int) -> None:
    try:
        path.unlink(missing_ok=True)  # before the release: waiters then notice that the file was replaced
    finally:
        os.close(descriptor)
