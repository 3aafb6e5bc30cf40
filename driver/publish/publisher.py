# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keeps the node's ResourceSlices up to date.

Every relevant change wakes one thread: a change of an interface, a route, the settings or a record, or a change of the
slices by another client. The thread waits a moment, because changes come in groups. Then it probes the node, compares
the result with the slices, and writes only what differs.
"""

from __future__ import annotations

import importlib.metadata
import logging
import random
import threading
import time
import typing as t
from http import HTTPStatus

from ..api.client import NOT_SERVED, ApiError
from ..api.cluster import Cluster, node_addresses
from ..api.features import Features
from ..base import logs, trace
from ..base.errors import DriverError, Unreachable
from ..base.objects import Object
from ..base.settings import SettingsFile
from ..dra.kube import comparison
from ..kernel.monitor import Monitor
from ..topology.publish import Publication
from . import slices
from .inventory import Inventory

_LOG = logging.getLogger(__name__)

#: How long a change waits for further changes, and the minimum time between the starts of two probes.
SETTLE_SECONDS = 0.2
INTERVAL_SECONDS = 0.5
#: How long pods that start or end may delay a probe: an urgent one, and one that is not urgent. A probe after a device
#: returned to the node unchanged is not urgent, because the device stayed published.
BUSY_SECONDS, NOT_URGENT_SECONDS = 2.0, 10.0
#: The interval of checks whether pods still start or end.
_BUSY_CHECK_SECONDS = 0.1
#: The time after which the node is probed without an event: a new SSH session or a changed link speed causes no event.
RESYNC_SECONDS = 60.0
#: How long `stop` waits for a write that has begun.
STOP_SECONDS = 3.0
#: The interval of checks whether the settings file has changed.
_POLL_SECONDS = 1.0
#: The pause after a first failure, and the maximum pause after further failures.
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.2, 30.0
#: A watch that ends earlier than this without an event has failed, as in Kubernetes' own clients.
_MIN_WATCH_SECONDS = 1.0
#: The time after which the API server's features are determined again.
_FEATURES_SECONDS = 3600.0


class Publisher:
    """Publishes the devices of `inventory` through `cluster`. Start it once.

    The file of `settings` is watched for changes. Each time the slices match the node, `published` is called with the
    publication; it must return quickly, and may be called from another thread. `busy` returns whether pods start or
    end. A probe would slow them down, so the probe is delayed by at most BUSY_SECONDS, or NOT_URGENT_SECONDS if it is
    not urgent. `holds_interface` returns whether the interface of this name belongs to a device that a claim holds.
    """

    def __init__(
        self,
        cluster: Cluster,
        inventory: Inventory,
        settings: SettingsFile | None = None,
        published: t.Callable[[Publication], None] | None = None,
        busy: t.Callable[[], bool] = lambda: False,
        holds_interface: t.Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._busy, self._holds_interface = busy, holds_interface
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
        #: By slice name: the resourceVersion of our last write, and its spec.
        self._written: dict[str, tuple[str, Object]] = {}
        self._monitor: Monitor | None = None
        self._threads: list[threading.Thread] = []
        #: When the slices last matched the node (seconds since the epoch), why they could not be written since then,
        #: and how many attempts have failed.
        self.last_published: float | None = None
        self.problem = ""
        self.failures = 0

    def start(self) -> None:
        """Start to publish. Raises KernelError if the kernel's events cannot be received."""
        self._monitor = Monitor(self.wake, self._virtual, self._holds_interface)
        self._monitor.start()
        targets: list[tuple[str, t.Callable[[], None]]] = [("publisher", self._run), ("slices", self._watch)]
        if self._settings:
            targets.append(("settings", self._poll_settings))
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in targets]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; the slices stay. A thread that waits for the API server may end a little later."""
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
        """The Node object as it was read last; None if it was not read yet."""
        return self._node

    def wake(self, reason: str) -> None:
        """Probe again soon because of a change. Also call this when a record is created or removed."""
        self._wake(reason, urgent=True)

    def wake_when_idle(self, reason: str) -> None:
        """As `wake`, for a change that can wait until no pods start or end."""
        self._wake(reason, urgent=False)

    def _wake(self, reason: str, urgent: bool) -> None:
        with self._condition:
            self._urgent = self._urgent or urgent
            if not self._reason:
                self._reason = reason
                self._condition.notify_all()

    def reload_settings(self) -> None:
        """Read the settings file again, as on SIGHUP."""
        if not self._settings:
            return
        changed = self._settings.reload()
        if self._settings.problem:
            message = "%s is invalid, the previous settings stay in use: %s"
            _LOG.error(message, self._settings.path, self._settings.problem)
        elif changed:
            _LOG.info("read new settings from %s", self._settings.path)
            self.wake("the settings have changed")

    def _poll_settings(self) -> None:
        assert self._settings
        while not self._wait(_POLL_SECONDS):
            try:
                if self._settings.changed():
                    self.reload_settings()
            except Exception:  # noqa: BLE001  # the file is read again a second later
                _LOG.exception("could not read %s", self._settings.path)

    def _wait(self, seconds: float) -> bool:
        """Wait until the time has passed or the publisher is stopped. Returns whether it is stopped."""
        with self._condition:
            return self._condition.wait_for(lambda: self._stopping, seconds)

    def _run(self) -> None:
        delay = _MIN_DELAY_SECONDS
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
                # catch any error: the next attempt may succeed, and nothing is published if this thread ends
                self._fail(error)
                if self._wait(delay * random.uniform(0.8, 1.2)):
                    return
                delay = min(delay * 2, _MAX_DELAY_SECONDS)
                self.wake("another attempt")
                continue
            delay = _MIN_DELAY_SECONDS
            if self._wait(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began))):
                return

    def _wait_while_busy(self) -> bool:
        """Wait while pods start or end. Returns whether the publisher is stopped."""
        began = time.monotonic()
        while self._busy() and time.monotonic() - began < (BUSY_SECONDS if self._urgent else NOT_URGENT_SECONDS):
            if self._wait(_BUSY_CHECK_SECONDS):
                return True
        return self._stopping

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        text = error.message if isinstance(error, DriverError) else repr(error)
        if text != self.problem:
            unexpected = None if isinstance(error, DriverError) else error
            _LOG.error("could not publish the devices, trying again: %s", text, exc_info=unexpected)
        self.problem = text

    def publish(self, reason: str) -> slices.Plan:
        """Probe the node once, and write its slices. Returns the changes. Raises DriverError."""
        with logs.context(operation="publish"), trace.operation("publish"):
            return self._publish(reason)

    def _publish(self, reason: str) -> slices.Plan:
        node = self._node
        if node is None or not self._inventory.node_addresses:  # a cloud provider may add the addresses later
            node = self._node = self._cluster.node_object()
            self._inventory.node_addresses = node_addresses(node)
        self._inventory.api_addresses = self._cluster.api_addresses() or self._inventory.api_addresses
        if self._features is None or time.monotonic() - self._features_at > _FEATURES_SECONDS:
            self._features = self._cluster.features()
            self._features_at = time.monotonic()
        publication = self._inventory.refresh(self._features.counters, self._features.shares)
        with trace.step("compute the slices"):
            wanted = slices.slices(publication, self._cluster.node, self._cluster.driver, features=self._features)
        existing, _version = self._cluster.slices()
        plan = slices.plan(existing, slices.with_owner(wanted, node, self._version), self._settled)
        if plan:
            _LOG.info("publishing %d devices, generation %d: %s", len(publication.devices), plan.generation, reason)
        self._apply(plan)
        self.last_published = time.time()
        self.problem = ""
        if self._published:
            self._published(publication)
        return plan

    def _settled(self, existing: Object, desired: Object) -> bool:
        """Whether a slice is what the server stored when the driver sent exactly the `desired` content."""
        version, sent = self._written.get(existing["metadata"]["name"], ("", {}))
        return existing["metadata"]["resourceVersion"] == version and slices.same(sent, desired["spec"])

    def _apply(self, plan: slices.Plan) -> None:
        for obsolete in plan.delete:
            self._cluster.delete_slice(obsolete)
            self._written.pop(obsolete["metadata"]["name"], None)
        for changed in plan.update:
            self._record_write(changed, self._cluster.update_slice(changed))
        for created in plan.create:
            try:
                self._record_write(created, self._cluster.create_slice(created))
            except ApiError as error:
                if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and "ownerReferences" in error.message:
                    self._node = None  # read the Node again before the next attempt
                raise

    def _record_write(self, sent: Object, stored: Object) -> None:
        """Remember a write. If the server has dropped fields, determine the server's features again."""
        self._written[sent["metadata"]["name"]] = (stored["metadata"]["resourceVersion"], sent["spec"])
        lost = comparison.dropped(sent["spec"], stored["spec"])
        if lost:
            _LOG.warning("the API server does not keep %s", ", ".join(lost[:3]))
            self._features = None  # another server has reported them
            self.wake("the API server has other features")

    def _watch(self) -> None:
        """Wake the publisher when another client changes the driver's slices. After an error, list the slices again."""
        delay, since = _MIN_DELAY_SECONDS, ""
        while True:
            try:
                if not since:
                    _slices, since = self._cluster.slices()
                    self.wake("the watch of slices begins")
                began, received = time.monotonic(), False
                for kind, item in self._cluster.watch_slices(since):
                    if self._stopping:
                        return
                    received, since = True, item["metadata"]["resourceVersion"]
                    delay = _MIN_DELAY_SECONDS
                    if kind == "DELETED":
                        self._node = None  # slices are deleted with their Node, and a new Node of this name may exist
                    if kind != "BOOKMARK" and not self._is_own_write(kind, item):
                        self.wake(f"slice {item['metadata']['name']}: {kind.lower()}")
                if not received and time.monotonic() - began < _MIN_WATCH_SECONDS:
                    raise Unreachable("the watch of slices ended at once")
            except Exception as error:  # noqa: BLE001  # the watch starts again after a pause
                since = ""
                if not isinstance(error, DriverError):
                    _LOG.error("could not watch the node's slices, trying again: %r", error)
                if isinstance(error, ApiError) and error.reason == NOT_SERVED:
                    self._cluster.forget_version()
                if self._wait(delay * random.uniform(0.8, 1.2)):
                    return
                delay = min(delay * 2, _MAX_DELAY_SECONDS)

    def _is_own_write(self, kind: str, item: Object) -> bool:
        """Whether the driver itself made a change."""
        version, _sent = self._written.get(item["metadata"]["name"], ("", {}))
        return kind != "DELETED" and item["metadata"]["resourceVersion"] == version
