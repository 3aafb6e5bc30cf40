# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tracks whether operations on claims are running. Background work waits for them, because all threads of the driver
share one interpreter."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import typing as t

#: Python's switch interval: seconds for which a computing thread may delay a thread that returns from a system call. An
#: attach makes a hundred system calls; with the default of 5 ms it takes half a second while the node is probed.
SWITCH_SECONDS = 0.0005
#: Seconds after an operation within which the next one is expected: between prepare and attach, the runtime creates the
#: pod's sandbox.
QUIET_SECONDS = 0.5


class Activity:
    """Tracks whether operations on claims are running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._ended = float("-inf")

    @contextlib.contextmanager
    def operation(self) -> t.Iterator[None]:
        """Mark the block as an operation on a claim."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._ended = time.monotonic()

    def busy(self) -> bool:
        """Whether an operation is running, or has ended within the last QUIET_SECONDS."""
        return self._running > 0 or time.monotonic() - self._ended < QUIET_SECONDS


def tune_interpreter() -> None:
    """Tune the interpreter after all modules are loaded. Their objects live as long as the process, so the garbage
    collector does not need to scan them: each scan would take tens of milliseconds."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
