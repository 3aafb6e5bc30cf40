# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes Events about pods, claims and the node: what went wrong, and what to do.

A thread sends them, so that no operation waits for the API server. If the server does not answer, the events are lost;
the problems that they report are in the log, too.

Kubelet and container runtimes retry often, so the same event is not repeated for REPEAT_SECONDS. The rate of all events
is limited. Each namespace has a lower limit, so that no single one can use up the common one. The memory for events is
bounded, whatever tenants write.
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
REPEAT_SECONDS = 300.0
#: Events that may be sent in a burst, and seconds after which one more may be sent: in total, and for one namespace.
BURST, REFILL_SECONDS = 30, 2.0
NAMESPACE_BURST, NAMESPACE_REFILL_SECONDS = 10, 10.0
#: Maximum bytes of an event's note, a limit of the API server.
NOTE_BYTES = 1024
#: Maximum events in the queue; further ones are dropped.
_MAX_QUEUED = 100
#: Maximum events and namespaces that are remembered for these limits.
_MAX_REMEMBERED = 1000


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


def node(node_object: Object) -> Object:
    """The Node as the object of an event."""
    metadata = {"name": node_object["metadata"]["name"], "uid": node_object["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def shortened(note: str, limit: int = NOTE_BYTES) -> str:
    """A note cut to `limit` bytes of UTF-8."""
    content = note.encode("utf-8", "replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 4].decode(errors="ignore") + " ..."


@dataclass
class _TokenBucket:
    """Permits `burst` events at once, and one more every `refill_seconds`. An event takes one of the `tokens`. Times
    are monotonic."""

    burst: int
    refill_seconds: float
    tokens: float
    refilled_at: float

    def has_token(self, now: float) -> bool:
        """Add the tokens since the last call. Returns whether an event may be sent now."""
        self.tokens = min(float(self.burst), self.tokens + (now - self.refilled_at) / self.refill_seconds)
        self.refilled_at = now
        return self.tokens >= 1


class Reporter:
    """Sends events. `send` does not wait for the API server, and never raises."""

    def __init__(self, cluster: Api) -> None:
        self._cluster = cluster
        self._queue: collections.deque[tuple[Object, str, str]] = collections.deque()
        #: When each event was queued last. The key is a digest, because the text may be long and come from a tenant.
        self._queued_at: collections.OrderedDict[bytes, float] = collections.OrderedDict()
        self._total = _TokenBucket(BURST, REFILL_SECONDS, BURST, time.monotonic())
        self._namespaces: collections.OrderedDict[str, _TokenBucket] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Send the queued events, for at most `timeout` seconds, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(timeout)

    def send(self, regarding: Object, reason: str, what: str, fix: str) -> None:
        """Queue an event about an object: `what` is wrong, and how to `fix` it. Drop the event if a limit is
        reached."""
        note = f"{shortened(what, NOTE_BYTES - len(fix.encode()) - 2)}. {fix}" if fix else shortened(what)
        metadata = regarding["metadata"]
        key = hashlib.sha256(repr((metadata["uid"], reason, note)).encode()).digest()
        now = time.monotonic()
        with self._changed:
            if now - self._queued_at.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return
            if len(self._queue) >= _MAX_QUEUED or not self._take_token(metadata.get("namespace") or "", now):
                log.info("the event %s about %s is not sent: too many events", reason, _described(regarding))
                return
            self._queued_at[key] = now
            self._queued_at.move_to_end(key)
            while len(self._queued_at) > _MAX_REMEMBERED:
                self._queued_at.popitem(last=False)
            self._queue.append((regarding, reason, note))
            self._changed.notify_all()

    def _take_token(self, namespace: str, now: float) -> bool:
        """Take a token of the namespace and one of the total, or none. The namespace of a Node is empty. Returns
        whether the event may be sent."""
        full = _TokenBucket(NAMESPACE_BURST, NAMESPACE_REFILL_SECONDS, NAMESPACE_BURST, now)
        bucket = self._namespaces.setdefault(namespace, full)
        self._namespaces.move_to_end(namespace)
        while len(self._namespaces) > _MAX_REMEMBERED:
            self._namespaces.popitem(last=False)
        if not (bucket.has_token(now) and self._total.has_token(now)):
            return False
        bucket.tokens -= 1
        self._total.tokens -= 1
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                regarding, reason, note = self._queue.popleft()
            try:
                self._cluster.event(regarding, reason, note, warning=True, action=_ACTIONS[reason])
            except DriverError as error:
                log.warning("could not send an event about %s: %s", _described(regarding), error.message)
            except Exception:
                log.exception("could not send an event about %s: a bug in the driver", _described(regarding))


def _described(regarding: Object) -> str:
    """The object of an event, for the log: NAMESPACE/NAME, or the name of a Node."""
    metadata = regarding["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


_ACTIONS = {
    PREPARE: "Prepare",
    ATTACH: "Attach",
    DETACH: "Detach",
    UNCLEAN: "Detach",
    STATUS: "WriteStatus",
    LINK_DOWN: "Publish",
    SHARE: "Publish",
}
