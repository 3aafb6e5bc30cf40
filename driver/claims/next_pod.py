# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Assigning claims that outlive their pod to the next pod, because kubelet does not prepare them again.

Only the API server knows a claim's current pod, and it may be slow or down. So attach does not wait for it: a thread
sends the request, and the hook, which retries, finds the result.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import typing as t
from dataclasses import dataclass

from ..base.errors import Busy, DriverError

log = logging.getLogger(__name__)

#: Maximum concurrent look-ups, and maximum stored answers.
THREADS, ANSWERS = 4, 64
#: Seconds for which a result is valid: a hook retries within a second.
ANSWER_SECONDS = 10.0

Key = tuple[str, str]


@dataclass
class _Answer:
    at: float
    error: DriverError | None


class NextPod:
    """`assign` is called with the UIDs of a claim and a pod. It assigns the record to that pod or raises
    DriverError."""

    def __init__(self, assign: t.Callable[[str, str], None]) -> None:
        self._assign = assign
        self._lock = threading.Lock()
        self._running: set[Key] = set()
        self._answers: dict[Key, _Answer] = {}

    def ask(self, uid: str, pod_uid: str) -> None:
        """Returns if `assign` has succeeded. Raises its error, and Busy while it runs. Never blocks."""
        key = (uid, pod_uid)
        with self._lock:
            answer = self._answers.pop(key, None)
            if answer and time.monotonic() - answer.at < ANSWER_SECONDS:
                if answer.error:
                    raise answer.error
                return
            if key not in self._running and len(self._running) < THREADS:
                context = contextvars.copy_context()  # the fields of log lines
                threading.Thread(target=context.run, args=(self._run, key), name="next-pod", daemon=True).start()
                self._running.add(key)
        raise _unknown(uid)

    def check(self, uid: str, pod_uid: str) -> None:
        """Raises Busy during the look-up: it holds the claim's lock until the API server has answered."""
        with self._lock:
            if (uid, pod_uid) in self._running:
                raise _unknown(uid)

    def _run(self, key: Key) -> None:
        error: DriverError | None = None
        try:
            self._assign(*key)
        except DriverError as met:
            error = met
        except Exception as met:
            log.exception("claim %s could not be assigned to its next pod", key[0])
            error = DriverError(f"the driver failed: {type(met).__name__}: {met}")
        with self._lock:
            self._running.discard(key)
            while len(self._answers) >= ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = _Answer(time.monotonic(), error)


def _unknown(uid: str) -> Busy:
    return Busy(f"claim {uid} was prepared for another pod; requesting its current pod from the API server")
