# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One operation at a time over all instances of the driver, while an update lets two of them run side by side."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t
from pathlib import Path

from .errors import Busy, DriverError

#: Seconds to wait for operations of others. Kubelet gives a call 45.
PATIENCE = 25.0
_RETRY = 0.01


@contextlib.contextmanager
def serialized(path: Path | None, patience: float = PATIENCE) -> t.Iterator[None]:
    """Hold the lock C(path) within the block; C(None) holds nothing. Threads exclude each other too, and a killed
    process lets go. Raises Busy where it is not free in time, DriverError where the file cannot be had."""
    if path is None:
        yield
        return
    end = time.monotonic() + patience
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DriverError(f"the lock {path} cannot be had: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Busy(f"another instance of the driver is at work for more than {patience:g} s") from None
            time.sleep(_RETRY)
        yield
    finally:
        os.close(descriptor)


class Owned:
    """A lock for as long as the process lives, or until release: no two processes serve the same socket, where the end
    of the older one would take away the newer one's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Whether the lock is ours now. Raises OSError."""
        if self._descriptor is None:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go; the file stays, as removing it would let two hold it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
