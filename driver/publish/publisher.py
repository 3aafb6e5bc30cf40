# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keeps the node's ResourceSlices as the node is.

Whatever happens (an interface changes, a route, the settings, a record, or somebody else's hand on our slices) wakes
the one thread that probes, plans and writes. It waits a moment for what comes along with the first event, and writes
only what differs.
"""

from __future__ import annotations

import importlib.metadata
import logging
import random
import threading
import time
import typing as t

from ..api.cluster import NOT_SERVED, ApiError, Cluster, Object, node_addresses
from ..api.features import Features
from ..base.errors import DriverError
from ..base.settings import SettingsFile
from ..dra.kube import versions
from ..kernel.monitor import Monitor
from ..topology.publish import Publication
from . import slices
from .inventory import Inventory

_LOG = logging.getLogger(__name__)

#: Seconds that an event waits for others, and that lie between two looks at the node.
SETTLE_SECONDS = 0.2
INTERVAL_SECONDS = 0.5
#: How long a look at the node waits while pods start or end, and between two looks whether they still do. What went
#: back to the node as it was can wait longer: it was published all the time.
BUSY_SECONDS, LEISURE_SECONDS = 2.0, 10.0
BUSY_STEP = 0.1
#: Some things make no event, such as a new SSH session or the speed of a link.
RESYNC_SECONDS = 60.0
#: How long a stop waits for what is being written.
STOP_SECONDS = 3.0
_POLL_SECONDS = 1.0  # for the settings file
_FIRST_DELAY, _MOST_DELAY = 0.2, 30.0
_FEATURES_SECONDS = 3600.0  # after which the server is asked again what it keeps


class Publisher:
    """Publishes C(inventory) by C(cluster).

    C(settings) is watched for changes of its file. C(published) is called after each time that the slices were found
    or made right, with the publication; it must be quick and may be called from another thread. C(busy) says whether
    pods start or end: a probe would take the processor from them, and waits for BUSY_SECONDS at most, or for
    LEISURE_SECONDS where the reason is none to hurry. C(holds) says
    whether an interface of this name is, or was on the node, that of a device that a claim has. Start it once.
    """

    def __init__(
        self,
        cluster: Cluster,
        inventory: Inventory,
        settings: SettingsFile | None = None,
        published: t.Callable[[Publication], None] | None = None,
        busy: t.Callable[[], bool] = lambda: False,
        holds: t.Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._busy, self._holds = busy, holds
        self._cluster = cluster
        self._inventory = inventory
        self._settings = settings
        self._published = published
        self._version = importlib.metadata.version("lanewise-driver")
        self._condition = threading.Condition()
        self._reason = "start"
        self._urgent = True
        self._stopping = False
        self._node: Object | None = None
        self._features: Features | None = None
        self._features_at = 0.0
        self._own: dict[str, tuple[str, Object]] = {}  # by name: the last version that we wrote, and what we sent
        self._monitor: Monitor | None = None
        self._threads: list[threading.Thread] = []
        #: When the slices were last known to be right (seconds since the epoch), and what is wrong where they are not.
        self.last_published: float | None = None
        self.mistake = ""
        self.failures = 0

    def start(self) -> None:
        """Begin to publish. Raises KernelError where the kernel's news cannot be had."""
        self._monitor = Monitor(self.wake, self._virtual, self._holds)
        self._monitor.start()
        targets: list[tuple[str, t.Callable[[], None]]] = [("publisher", self._run), ("slices", self._watch)]
        if self._settings:
            targets.append(("settings", self._poll_settings))
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in targets]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; the slices stay. One that waits for the API server may end a little later."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._monitor:
            self._monitor.stop()
        end = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            if thread.name != "slices":
                thread.join(max(0.0, end - time.monotonic()))

    def _virtual(self) -> t.Sequence[str]:
        return self._settings.current.virtual_interfaces if self._settings else ()

    @property
    def node(self) -> Object | None:
        """The Node, as it was when it was last read."""
        return self._node

    def wake(self, reason: str) -> None:
        """Something has changed: look again soon. To be called when a record is made or dropped, too."""
        self._wake(reason, urgent=True)

    def wake_at_leisure(self, reason: str) -> None:
        """As M(wake), for what may wait until no pods start or end."""
        self._wake(reason, urgent=False)

    def _wake(self, reason: str, urgent: bool) -> None:
        with self._condition:
            self._urgent = self._urgent or urgent
            if not self._reason:
                self._reason = reason
                self._condition.notify_all()

    def reload_settings(self) -> None:
        """Read the settings file again, as for SIGHUP."""
        if not self._settings:
            return
        changed = self._settings.reload()
        if self._settings.mistake:
            _LOG.error("%s is wrong, the old settings stay: %s", self._settings.path, self._settings.mistake)
        elif changed:
            _LOG.info("new settings")
            self.wake("the settings have changed")

    def _poll_settings(self) -> None:
        assert self._settings
        while not self._wait(_POLL_SECONDS):
            try:
                if self._settings.changed():
                    self.reload_settings()
            except Exception:  # noqa: BLE001  # a settings file that is being written is read again
                _LOG.exception("cannot look at %s", self._settings.path)

    def _wait(self, seconds: float) -> bool:
        """Wait, unless the publisher is to end; whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._stopping, seconds)

    def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or self._reason, RESYNC_SECONDS)
            if self._wait(SETTLE_SECONDS) or self._wait_while_busy():
                return
            with self._condition:
                reason, self._reason, self._urgent = self._reason or "resync", "", False
            began = time.monotonic()
            try:
                self.publish(reason)
            except Exception as error:  # noqa: BLE001
                # whatever it is, the next attempt may do better, and a driver that ends helps nobody
                self._fail(error)
                if self._wait(delay * random.uniform(0.8, 1.2)):
                    return
                delay = min(delay * 2, _MOST_DELAY)
                self.wake("another attempt")
                continue
            delay = _FIRST_DELAY
            if self._wait(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began))):
                return

    def _wait_while_busy(self) -> bool:
        """Whether the publisher is to end."""
        began = time.monotonic()
        while self._busy() and time.monotonic() - began < (BUSY_SECONDS if self._urgent else LEISURE_SECONDS):
            if self._wait(BUSY_STEP):
                return True
        return self._stopping

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        text = error.message if isinstance(error, DriverError) else repr(error)
        if text != self.mistake:
            _LOG.error("cannot publish: %s", text, exc_info=None if isinstance(error, DriverError) else error)
        self.mistake = text

    def publish(self, reason: str) -> slices.Plan:
        """Probe, and make the slices right once. Says what was done. Raises DriverError."""
        node = self._node
        if node is None:
            node = self._node = self._cluster.node_object()
            self._inventory.node_addresses = node_addresses(node)
        self._inventory.api_addresses = self._cluster.api_addresses() or self._inventory.api_addresses
        if self._features is None or time.monotonic() - self._features_at > _FEATURES_SECONDS:
            self._features = self._cluster.features()
            self._features_at = time.monotonic()
        publication = self._inventory.refresh(self._features.counters)
        wanted = slices.slices(publication, self._cluster.node, self._cluster.driver, features=self._features)
        existing, _version = self._cluster.slices()
        plan = slices.plan(existing, slices.published_by(wanted, node, self._version), self._settled)
        if plan:
            _LOG.info("publish %d devices, generation %d: %s", len(publication.devices), plan.generation, reason)
        self._apply(plan)
        self.last_published = time.time()
        self.mistake = ""
        if self._published:
            self._published(publication)
        return plan

    def _settled(self, existing: Object, desired: Object) -> bool:
        """Whether a slice is what the server made of just this content when we sent it."""
        version, sent = self._own.get(existing["metadata"]["name"], ("", {}))
        return existing["metadata"]["resourceVersion"] == version and slices.same(sent, desired["spec"])

    def _apply(self, plan: slices.Plan) -> None:
        for one in plan.delete:
            self._cluster.delete_slice(one)
            self._own.pop(one["metadata"]["name"], None)
        for one in plan.update:
            self._stored(one, self._cluster.update_slice(one))
        for one in plan.create:
            try:
                self._stored(one, self._cluster.create_slice(one))
            except ApiError as error:
                if error.status == 422 and "ownerReferences" in error.message:
                    self._node = None
                raise

    def _stored(self, sent: Object, stored: Object) -> None:
        self._own[sent["metadata"]["name"]] = (stored["metadata"]["resourceVersion"], sent["spec"])
        lost = versions.dropped(sent["spec"], stored["spec"])
        if lost:
            _LOG.warning("the API server does not keep %s", ", ".join(lost[:3]))
            self._features = None  # it is not the server that was asked
            self.wake("the API server has other features")

    def _watch(self) -> None:
        """Wake the publisher when somebody else touches our slices. Lists anew wherever the watch cannot go on."""
        delay, since = _FIRST_DELAY, ""
        while True:
            try:
                if not since:
                    _slices, since = self._cluster.slices()
                    self.wake("the watch of slices begins")
                for kind, item in self._cluster.watch_slices(since):
                    if self._stopping:
                        return
                    since = item["metadata"]["resourceVersion"]
                    delay = _FIRST_DELAY
                    if kind == "DELETED":
                        self._node = None  # its slices go with a Node that is made anew
                    if kind != "BOOKMARK" and not self._is_ours(kind, item):
                        self.wake(f"slice {item['metadata']['name']}: {kind.lower()}")
            except Exception as error:  # noqa: BLE001  # a watch that ended is begun again
                since = ""
                if not isinstance(error, DriverError):
                    _LOG.error("cannot watch slices: %r", error)
                if isinstance(error, ApiError) and error.reason == NOT_SERVED:
                    self._cluster.forget_version()
                if self._wait(delay * random.uniform(0.8, 1.2)):
                    return
                delay = min(delay * 2, _MOST_DELAY)

    def _is_ours(self, kind: str, item: Object) -> bool:
        """Whether a change is the echo of our own write."""
        version, _sent = self._own.get(item["metadata"]["name"], ("", {}))
        return kind != "DELETED" and item["metadata"]["resourceVersion"] == version
