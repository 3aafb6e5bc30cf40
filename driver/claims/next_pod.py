# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims that outlive their pod go to the next one, and kubelet does not prepare them again.

Whose they are now only the API server knows, which may be slow or away. So attach does not ask it: a thread does, and
the hook, which asks again by itself, finds the answer.
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

#: Look-ups at once, and answers that wait to be fetched.
THREADS, ANSWERS = 4, 64
#: Seconds after which an answer is no longer one: a hook asks again within a second.
KEPT = 10.0

Key = tuple[str, str]


@dataclass
class _Answer:
    at: float
    error: DriverError | None


class NextPod:
    """`look` is called with a claim's UID and a pod's, and makes the record be for that pod, or raises DriverError."""

    def __init__(self, look: t.Callable[[str, str], None]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._running: set[Key] = set()
        self._answers: dict[Key, _Answer] = {}

    def ask(self, uid: str, pod_uid: str) -> None:
        """Returns where `look` has just succeeded. Raises what it raised, and Busy until then: never waits."""
        key = (uid, pod_uid)
        with self._lock:
            answer = self._answers.pop(key, None)
            if answer and time.monotonic() - answer.at < KEPT:
                if answer.error:
                    raise answer.error
                return
            if key not in self._running and len(self._running) < THREADS:
                context = contextvars.copy_context()  # what log lines are about
                threading.Thread(target=context.run, args=(self._run, key), name="next-pod", daemon=True).start()
                self._running.add(key)
        raise _unknown(uid)

    def check(self, uid: str, pod_uid: str) -> None:
        """Raises Busy while this is looked up: the claim's lock is then held for as long as the API server takes."""
        with self._lock:
            if (uid, pod_uid) in self._running:
                raise _unknown(uid)

    def _run(self, key: Key) -> None:
        error: DriverError | None = None
        try:
            self._look(*key)
        except DriverError as met:
            error = met
        except Exception as met:
            log.exception("claim %s cannot be handed to its next pod", key[0])
            error = DriverError(f"the driver failed: {type(met).__name__}: {met}")
        with self._lock:
            self._running.discard(key)
            while len(self._answers) >= ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = _Answer(time.monotonic(), error)


def _unknown(uid: str) -> Busy:
    return Busy(f"claim {uid} was prepared for another pod; the API server is asked whose it is now")
