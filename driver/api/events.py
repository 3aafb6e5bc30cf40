# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes Events about pods, claims and the node: what went wrong, and what to do.

They are sent by a thread, so that nobody waits for the API server, and are lost where it does not answer: the log has
them all. The same words about the same object are not said again for a while, and not more in all than a cluster can
take, as kubelet and container runtimes ask again and again. No namespace can use up what is there for all. What is kept
is bounded in number and length, whatever tenants write.
"""

from __future__ import annotations

import collections
import hashlib
import logging
import threading
import time
import typing as t
from dataclasses import dataclass

from ..base.calls import ClaimRef, Pod
from ..base.errors import DriverError
from ..dra.kube import schema

log = logging.getLogger(__name__)

Object = dict[str, t.Any]

PREPARE = "DevicesNotPrepared"
ATTACH = "DevicesNotAttached"
DETACH = "DevicesNotTakenBack"
UNCLEAN = "DevicesUnclean"
STATUS = "StatusRefused"
LINK_DOWN = "DevicesWithoutLink"

#: Seconds for which the same words are not said again about the same object.
SILENCE = 300.0
#: Events that may go out at once, and seconds for each one more: in all, and for one namespace.
BURST, INTERVAL = 30, 2.0
NAMESPACE_BURST, NAMESPACE_INTERVAL = 10, 10.0
#: Bytes of an event's note, a limit of the API server.
NOTE_BYTES = 1024
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


def node(item: Object) -> Object:
    """The Node as what an event is about."""
    metadata = {"name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def shortened(note: str, limit: int = NOTE_BYTES) -> str:
    """A note in as many bytes as the API server takes."""
    content = note.encode("utf-8", "replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 4].decode(errors="ignore") + " ..."


@dataclass
class _Budget:
    """How many events may go out now: C(burst) at once, and one more each C(interval) seconds."""

    burst: int
    interval: float
    left: float
    counted: float

    def take(self, now: float) -> bool:
        self.left = min(float(self.burst), self.left + (now - self.counted) / self.interval)
        self.counted = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class Reporter:
    """Sends events. C(tell) never blocks and never raises."""

    def __init__(self, cluster: Api) -> None:
        self._cluster = cluster
        self._waiting: collections.deque[tuple[Object, str, str]] = collections.deque()
        #: When the same was said last; by digest, as the words may be a tenant's.
        self._said: collections.OrderedDict[bytes, float] = collections.OrderedDict()
        self._budget = _Budget(BURST, INTERVAL, BURST, time.monotonic())
        self._namespaces: collections.OrderedDict[str, _Budget] = collections.OrderedDict()
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
        note = f"{shortened(what, NOTE_BYTES - len(fix.encode()) - 2)}. {fix}" if fix else shortened(what)
        metadata = regarding["metadata"]
        key = hashlib.sha256(repr((metadata["uid"], reason, note)).encode()).digest()
        namespace = str(metadata.get("namespace"))
        now = time.monotonic()
        with self._changed:
            if now - self._said.get(key, -SILENCE) < SILENCE:
                return
            if len(self._waiting) >= _WAITING or not self._take(namespace, now):
                log.info("too many events at a time: %s of %s/%s is not sent", reason, namespace, metadata["name"])
                return
            self._said[key] = now
            self._said.move_to_end(key)
            while len(self._said) > _REMEMBERED:
                self._said.popitem(last=False)
            self._waiting.append((regarding, reason, note))
            self._changed.notify_all()

    def _take(self, namespace: str, now: float) -> bool:
        """Whether one more event may go out, of this namespace and in all."""
        fresh = _Budget(NAMESPACE_BURST, NAMESPACE_INTERVAL, NAMESPACE_BURST, now)
        budget = self._namespaces.setdefault(namespace, fresh)
        self._namespaces.move_to_end(namespace)
        while len(self._namespaces) > _REMEMBERED:
            self._namespaces.popitem(last=False)
        return budget.take(now) and self._budget.take(now)

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


_ACTIONS = {
    PREPARE: "Prepare",
    ATTACH: "Attach",
    DETACH: "Detach",
    UNCLEAN: "Detach",
    STATUS: "WriteStatus",
    LINK_DOWN: "Publish",
}
