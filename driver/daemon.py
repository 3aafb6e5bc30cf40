# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The running driver: its parts, and the order in which they start and stop."""

from __future__ import annotations

import collections
import functools
import logging
import os
import signal
import socket
import threading
import time
import typing as t
from pathlib import Path

from .api import access as credentials
from .api import cluster, events
from .api.token import TokenRenewer
from .base import activity, logs, metrics
from .base.paths import Paths
from .base.settings import Settings, SettingsFile
from .claims import claim_status, share_metrics
from .claims.service import Service
from .dra.config.interface_config import DRIVER
from .hook.early import EarlyAttacher
from .hook.install import install_hook
from .hook.server import HookServer
from .kubelet.plugin import Plugin
from .publish.inventory import Device, Inventory
from .publish.publisher import Publisher
from .publish.withheld import WithheldLog, listed
from .topology.publish import Publication, without_link
from .topology.publish_shares import HeldShares
from .web import Web

log = logging.getLogger(__name__)

#: Seconds between two attempts to finish interrupted operations, and between two checks for deleted claims.
SETTLE_INTERVAL = 5.0
RECONCILE_INTERVAL = 600.0
#: Seconds between two health checks of devices in pods.
HEALTH_INTERVAL = 5.0


def access(settings: Settings) -> credentials.Access:
    """The access to the API server: the kubeconfig of the settings, or the service account of the driver's pod."""
    if settings.kubeconfig:
        token = Path(settings.token_file) if settings.token_file else None
        return credentials.from_kubeconfig(Path(settings.kubeconfig), token)
    return credentials.in_cluster()


class Daemon:
    """One driver. `root` is the root of the file system to probe. `instance` is the UID of the driver's pod if two
    instances may run at once. `node` overrides the Node's name in the settings.

    Raises `Problems` and OSError for settings that cannot be read.
    """

    def __init__(self, paths: Paths, root: str = "/", instance: str | None = None, node: str | None = None) -> None:
        self.paths = paths
        self.settings = SettingsFile(paths.settings)
        settings = self.settings.current
        logs.setup(settings.log_level)
        self.metrics = metrics.Metrics()
        self.cluster = cluster.Cluster(lambda: access(self.settings.current), DRIVER, node or settings.node)
        self.reporter = events.Reporter(self.cluster)
        self.status = claim_status.Writer(self.cluster, reporter=self.reporter, metrics=self.metrics)
        self.inventory = Inventory(lambda: self.settings.current, self._held, root, self._unclean, self._held_shares)
        self.service = Service(paths, self.cluster, self.inventory, self.status, self.metrics, reporter=self.reporter)
        busy, holds_interface = self.service.activity.busy, self.service.holds_interface
        self.metrics.registry.register(share_metrics.ShareMetrics(self.service.shares))
        self.publisher = Publisher(
            self.cluster, self.inventory, self.settings, self._on_published, busy, holds_interface
        )
        self.service.ledger.on_released = self.publisher.wake_when_idle
        self.service.ledger.on_withheld = self.publisher.wake
        self.status.busy = busy
        self.plugin = Plugin(paths, self.service, self.metrics, instance)
        self.hooks = HookServer(paths, self.service, self.metrics, instance)
        self.early = EarlyAttacher(self.service, self.metrics)
        self.web: Web | None = None
        if settings.metrics_address:
            host, port = settings.metrics_address
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self.web = Web(address, self.metrics, self.not_ready_reasons)
        self.token_renewer: TokenRenewer | None = None
        if settings.token_file and settings.renew_token:
            self.token_renewer = TokenRenewer(self.cluster, Path(settings.token_file))
        self._stopping = threading.Event()
        #: Whether the last `recover` or `reconcile` did everything. Only the main thread sets it.
        self._settled = False
        self._withheld = WithheldLog()
        #: Devices whose links were down at the last check.
        self._down: set[str] = set()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. On SIGHUP, read the settings again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_signal: self._stopping.set())
        signal.signal(signal.SIGHUP, lambda *_signal: self._reload())
        try:
            self._start()
            phases = collections.Counter(record.phase for record in self.service.ledger.records())
            claims = ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items())) or "none"
            log.info("started on node %s; claims: %s", self.cluster.node, claims)
            next_reconcile = time.monotonic()
            while not self._stopping.wait(SETTLE_INTERVAL):
                if not self._settled or time.monotonic() >= next_reconcile:
                    self._settled = self.service.reconcile()
                    next_reconcile = time.monotonic() + RECONCILE_INTERVAL
                elif not self.service.shares.settled:
                    self.service.shares.refresh()
            _notify_manager("STOPPING=1")
            log.info("stopping")
        finally:
            self._stop()

    def _start(self) -> None:
        self.paths.make()
        install_hook(self.paths)
        if self.web:
            self.web.start()
        self.status.start()
        self.reporter.start()
        self._settled = self.service.recover()  # before requests for claims arrive
        if self.token_renewer:
            self.token_renewer.start()
        self.publisher.start()
        self.hooks.start()
        self.early.start()
        self.plugin.start()
        threading.Thread(target=self._check_health, name="health", daemon=True).start()
        activity.tune_interpreter()
        _notify_manager("READY=1")

    def _stop(self) -> None:
        """Stop all parts. Devices stay where they are and slices stay published: pods keep running, and the next start
        takes over."""
        self.plugin.stop()
        self.early.stop()
        self.hooks.stop()
        self.publisher.stop()
        if self.token_renewer:
            self.token_renewer.stop()
        self.service.close()
        self.status.stop()
        self.reporter.stop()
        if self.web:
            self.web.stop()

    def _check_health(self) -> None:
        while not self._stopping.wait(HEALTH_INTERVAL):
            try:
                if self.service.check_pods():
                    self.plugin.health_changed()
                if self.service.retry_unclean():
                    self.publisher.wake("a device's original state has been restored")
            except Exception:
                log.exception("the health of devices in pods could not be checked; trying again")
                self.metrics.error("health")

    def _held(self) -> list[Device]:
        return self.service.held()

    def _held_shares(self) -> dict[str, HeldShares]:
        return self.service.shares.held()

    def _unclean(self) -> dict[str, str]:
        return {name: entry.word for name, entry in self.service.unclean.by_nic().items()}

    def _reload(self) -> None:
        # not in the signal handler: the interrupted code may hold a lock
        threading.Thread(target=self._read_settings, name="reload", daemon=True).start()

    def _read_settings(self) -> None:
        self.publisher.reload_settings()
        logs.setup(self.settings.current.log_level)

    def _on_published(self, publication: Publication) -> None:
        allocated = len(self.service.held())
        self.service.shares.refresh()  # a link speed or a setting may have changed
        self.metrics.published()
        self.metrics.devices(metrics.PUBLISHED, len(publication.devices))
        self.metrics.devices(metrics.WITHHELD, len(publication.withheld))
        self.metrics.devices(metrics.ALLOCATED, allocated)
        self.metrics.registered(not self.plugin.registration_problem)
        self.plugin.health_changed()
        self._withheld.report(publication.withheld)
        self._report_links(publication)

    def _report_links(self, publication: Publication) -> None:
        """Report on the Node which devices new pods do not get because the links are down. The scheduler's message for
        a pending pod only says that it cannot allocate all claims."""
        down = without_link(publication)
        new, up, self._down = down - self._down, self._down - down, down
        if up:
            log.info("links are up again: %s", listed(sorted(up)))
        if new:
            log.info("new pods do not get these devices while their links are down: %s", listed(sorted(new)))
        if new and self.publisher.node:
            names = ", ".join(sorted(new))
            message = f"new pods do not get these devices of the node while their links are down: {names}"
            fix = "Check cables and switch ports; until a link is up, pods that need one of them stay pending."
            self.reporter.send(events.node(self.publisher.node), events.LINK_DOWN, message, fix)

    def not_ready_reasons(self) -> list[str]:
        """Why the driver is not ready; empty if it is."""
        reasons = []
        if self.plugin.registration_problem:
            reasons.append(f"kubelet does not use the driver: {self.plugin.registration_problem}")
        if self.publisher.problem:
            reasons.append(f"the devices are not published: {self.publisher.problem}")
        elif self.publisher.last_published is None:
            reasons.append("the devices are not published yet")
        if self.settings.problem:
            reasons.append(
                f"{self.settings.path} is invalid, the previous settings stay in use: {self.settings.problem}"
            )
        if self.token_renewer and self.token_renewer.problem:
            reasons.append(f"the token is not renewed: {self.token_renewer.problem}")
        if not self._settled:
            reasons.append("operations from before the start are not finished yet; see the driver's log")
        reasons.extend(f"{problem}; trying again" for problem in self.service.shares.problems)
        return reasons


@functools.lru_cache(None)
def _manager_socket() -> socket.socket | None:
    """A socket that is connected to the service manager, if the driver runs under one (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    connection.connect("\0" + path[1:] if path.startswith("@") else path)
    return connection


def _notify_manager(state: str) -> None:
    try:
        manager: t.Any = _manager_socket()
        if manager:
            manager.send(state.encode())
    except OSError as error:
        log.warning("could not notify the service manager of %s: %s", state, error)
