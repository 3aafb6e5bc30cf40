# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Assigns claims that outlive their pod to the next pod, because kubelet does not prepare them again.

Only the API server knows a claim's current pod, and the server may be slow or down. So attach does not wait for it: a
thread sends the request, and when the hook retries, the result is available.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
import typing as t
from dataclasses import dataclass

from ..base.errors import Busy, DriverError

log = logging.getLogger(__name__)

#: Maximum concurrent look-ups, and maximum stored results.
MAX_THREADS, MAX_RESULTS = 4, 64
#: Seconds for which a result is valid: a hook retries within a second.
RESULT_SECONDS = 10.0

Key = tuple[str, str]


@dataclass
class _Result:
    finished_at: float  # monotonic
    error: DriverError | None


class NextPod:
    """`assign` is called with the UIDs of a claim and a pod. It assigns the claim's record to that pod, or raises
    DriverError."""

    def __init__(self, assign: t.Callable[[str, str], None]) -> None:
        self._assign = assign
        self._lock = threading.Lock()
        self._running: set[Key] = set()
        self._results: dict[Key, _Result] = {}

    def request(self, uid: str, pod_uid: str) -> None:
        """Start `assign` in a thread and raise Busy until it has ended. Then return or raise its error. Never waits."""
        key = (uid, pod_uid)
        with self._lock:
            result = self._results.pop(key, None)
            if result and time.monotonic() - result.finished_at < RESULT_SECONDS:
                if result.error:
                    raise result.error
                return
            if key not in self._running and len(self._running) < MAX_THREADS:
                context = contextvars.copy_context()  # the fields of log lines
                thread = threading.Thread(target=context.run, args=(self._run, key), name="next-pod", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads now; the next request tries again
                    thread.start()
                    self._running.add(key)
        raise _busy(uid)

    def check(self, uid: str, pod_uid: str) -> None:
        """Raise Busy while `assign` runs, because that holds the claim's lock until the API server has answered."""
        with self._lock:
            if (uid, pod_uid) in self._running:
                raise _busy(uid)

    def _run(self, key: Key) -> None:
        error: DriverError | None = None
        try:
            self._assign(*key)
        except DriverError as caught:
            error = caught
        except Exception as caught:
            log.exception("claim %s could not be assigned to its next pod", key[0])
            error = DriverError(f"the driver failed: {type(caught).__name__}: {caught}")
        with self._lock:
            self._running.discard(key)
            while len(self._results) >= MAX_RESULTS:
                self._results.pop(next(iter(self._results)))
            self._results[key] = _Result(time.monotonic(), error)


def _busy(uid: str) -> Busy:
    return Busy(f"claim {uid} was prepared for another pod; requesting its current pod from the API server")
