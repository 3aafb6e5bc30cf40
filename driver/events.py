# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes Events about pods and claims: what went wrong, and what to do.

They are sent by a thread, so that nobody waits for the API server, and are lost where it does not answer: the log has
them all. The same words about the same object are not said again for a while, and not more in all than a cluster can
take, as kubelet and container runtimes ask again and again.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import typing as t

from .calls import ClaimRef
from .dra import schema
from .errors import DriverError
from .records import Object, Pod

log = logging.getLogger(__name__)

PREPARE = "DevicesNotPrepared"
ATTACH = "DevicesNotAttached"
DETACH = "DevicesNotTakenBack"
STATUS = "StatusRefused"

#: Seconds for which the same words are not said again about the same object.
SILENCE = 300.0
#: Events that may go out at once, and seconds for each one more.
BURST, INTERVAL = 30, 2.0
#: Events that wait to be sent; more are dropped.
_WAITING = 100
_REMEMBERED = 1000


class Api(t.Protocol):
    """What is needed of cluster.Cluster."""

    def event(self, regarding: Object, reason: str, note: str, warning: bool = False, action: str = "") -> None: ...


def claim(reference: ClaimRef) -> Object:
    """The claim as what an event is about."""
    metadata = {"namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
    return {"apiVersion": schema.V1, "kind": "ResourceClaim", "metadata": metadata}


def pod(reference: Pod) -> Object:
    """The pod as what an event is about."""
    metadata = {"namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class Reporter:
    """Sends events. C(tell) never blocks and never raises."""

    def __init__(self, cluster: Api) -> None:
        self._cluster = cluster
        self._waiting: collections.deque[tuple[Object, str, str]] = collections.deque()
        self._said: collections.OrderedDict[tuple[str, str, str], float] = collections.OrderedDict()
        self._budget, self._counted = float(BURST), time.monotonic()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Send what waits, as far as the time allows, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(timeout)

    def tell(self, regarding: Object, reason: str, what: str, fix: str) -> None:
        """Say what is wrong with an object, and what to do about it."""
        note = f"{what}. {fix}" if fix else what
        key = (str(regarding["metadata"]["uid"]), reason, note)
        now = time.monotonic()
        with self._changed:
            if now - self._said.get(key, -SILENCE) < SILENCE:
                return
            self._budget = min(float(BURST), self._budget + (now - self._counted) / INTERVAL)
            self._counted = now
            if self._budget < 1 or len(self._waiting) >= _WAITING:
                log.info("one event too many at a time: %s of %s is not told", reason, regarding["metadata"]["name"])
                return
            self._budget -= 1
            self._said[key] = now
            self._said.move_to_end(key)
            while len(self._said) > _REMEMBERED:
                self._said.popitem(last=False)
            self._waiting.append((regarding, reason, note))
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                regarding, reason, note = self._waiting.popleft()
            try:
                self._cluster.event(regarding, reason, note, warning=True, action=_ACTIONS[reason])
            except DriverError as error:
                log.warning("an event of %s is not told: %s", regarding["metadata"]["name"], error.message)
            except Exception:
                log.exception("an event cannot be told")


_ACTIONS = {PREPARE: "Prepare", ATTACH: "Attach", DETACH: "Detach", STATUS: "WriteStatus"}
