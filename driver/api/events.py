# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes Events about pods, claims and the node: what went wrong, and what to do.

A thread sends them, so that no operation waits for the API server. If the server does not answer, they are lost, but
the log has them all. Kubelet and container runtimes retry often, so an event is not repeated for a while, and there is
a limit on all events, and a lower one for each namespace, so that no tenant can use up the limit. The memory for events
is bounded, whatever tenants write.
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
from ..base.objects import Object
from ..dra.kube import versions

log = logging.getLogger(__name__)

PREPARE = "DevicesNotPrepared"
ATTACH = "DevicesNotAttached"
DETACH = "DevicesNotTakenBack"
UNCLEAN = "DevicesUnclean"
STATUS = "StatusRefused"
LINK_DOWN = "DevicesWithoutLink"
SHARE = "ShareGuaranteeChanged"

#: Seconds for which the same event about the same object is not sent again.
SILENCE = 300.0
#: Events that may be sent in a burst, and seconds until one more may: in total, and for one namespace.
BURST, INTERVAL = 30, 2.0
NAMESPACE_BURST, NAMESPACE_INTERVAL = 10, 10.0
#: Maximum bytes of an event's note, a limit of the API server.
NOTE_BYTES = 1024
#: Maximum events that wait to be sent; more are dropped.
_WAITING = 100
_REMEMBERED = 1000


class Api(t.Protocol):
    """The part of `cluster.Cluster` that is used here."""

    def event(self, regarding: Object, reason: str, note: str, warning: bool = False, action: str = "") -> None: ...


def claim(reference: ClaimRef) -> Object:
    """The claim as the object of an event."""
    metadata = {"namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
    return {"apiVersion": versions.V1, "kind": "ResourceClaim", "metadata": metadata}


def pod(reference: Pod) -> Object:
    """The pod as the object of an event."""
    metadata = {"namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def node(item: Object) -> Object:
    """The Node as the object of an event."""
    metadata = {"name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def shortened(note: str, limit: int = NOTE_BYTES) -> str:
    """A note cut to `limit` bytes of UTF-8."""
    content = note.encode("utf-8", "replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 4].decode(errors="ignore") + " ..."


@dataclass
class _Budget:
    """How many events may be sent now: `burst` at once, and one more every `interval` seconds."""

    burst: int
    interval: float
    left: float
    counted: float

    def has_one(self, now: float) -> bool:
        """Whether an event may be sent now. Adds what has become available since the last call."""
        self.left = min(float(self.burst), self.left + (now - self.counted) / self.interval)
        self.counted = now
        return self.left >= 1


class Reporter:
    """Sends events. `send` never blocks and never raises."""

    def __init__(self, cluster: Api) -> None:
        self._cluster = cluster
        self._waiting: collections.deque[tuple[Object, str, str]] = collections.deque()
        #: When each event was sent last; by digest, because its text may come from a tenant.
        self._sent: collections.OrderedDict[bytes, float] = collections.OrderedDict()
        self._budget = _Budget(BURST, INTERVAL, BURST, time.monotonic())
        self._namespaces: collections.OrderedDict[str, _Budget] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Send the events that wait, for at most `timeout` seconds, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(timeout)

    def send(self, regarding: Object, reason: str, what: str, fix: str) -> None:
        """Queue an event about an object: what is wrong, and what to do about it."""
        note = f"{shortened(what, NOTE_BYTES - len(fix.encode()) - 2)}. {fix}" if fix else shortened(what)
        metadata = regarding["metadata"]
        key = hashlib.sha256(repr((metadata["uid"], reason, note)).encode()).digest()
        namespace = str(metadata.get("namespace"))
        now = time.monotonic()
        with self._changed:
            if now - self._sent.get(key, -SILENCE) < SILENCE:
                return
            if len(self._waiting) >= _WAITING or not self._take(namespace, now):
                log.info("the event %s of %s/%s is not sent: too many events", reason, namespace, metadata["name"])
                return
            self._sent[key] = now
            self._sent.move_to_end(key)
            while len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)
            self._waiting.append((regarding, reason, note))
            self._changed.notify_all()

    def _take(self, namespace: str, now: float) -> bool:
        """Whether one more event may be sent, for this namespace and in all. It counts only if both permit it."""
        fresh = _Budget(NAMESPACE_BURST, NAMESPACE_INTERVAL, NAMESPACE_BURST, now)
        budget = self._namespaces.setdefault(namespace, fresh)
        self._namespaces.move_to_end(namespace)
        while len(self._namespaces) > _REMEMBERED:
            self._namespaces.popitem(last=False)
        if not (budget.has_one(now) and self._budget.has_one(now)):
            return False
        budget.left -= 1
        self._budget.left -= 1
        return True

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
                log.warning("could not send an event of %s: %s", regarding["metadata"]["name"], error.message)
            except Exception:
                log.exception("could not send an event of %s: a bug in the driver", regarding["metadata"]["name"])


_ACTIONS = {
    PREPARE: "Prepare",
    ATTACH: "Attach",
    DETACH: "Detach",
    UNCLEAN: "Detach",
    STATUS: "WriteStatus",
    LINK_DOWN: "Publish",
    SHARE: "Publish",
}
