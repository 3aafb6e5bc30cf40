# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What makes way for pods that start: one process does all, and its threads share one interpreter."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import typing as t

#: Seconds that a thread which computes keeps the interpreter from one that has just come back from a system call. An
#: attach makes a hundred of these; with Python's own 5 ms, beside a probe of the node it takes half a second.
SWITCH_SECONDS = 0.0005
#: Seconds after an operation in which the next one is expected: between prepare and attach lies the pod's sandbox.
QUIET_SECONDS = 0.5


class Pace:
    """Knows whether claims are worked on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._ended = float("-inf")

    @contextlib.contextmanager
    def working(self) -> t.Iterator[None]:
        """Around each operation on a claim."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._ended = time.monotonic()

    def busy(self) -> bool:
        """Whether an operation runs, or one has just ended."""
        return self._running > 0 or time.monotonic() - self._ended < QUIET_SECONDS


def tune() -> None:
    """Set up the interpreter, once all is loaded. What is there by then stays: the garbage collector need not go
    through it again and again, which takes tens of milliseconds."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
