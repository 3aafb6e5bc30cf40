# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The operations on the claims of this node: prepare, attach to a pod, detach, remove.

Records on disk are the source of truth, and each is written before the actions that it describes. So the next call, or
the next process, knows which steps the last one may have done: it moves everything back to the node and starts over. No
code here assumes that an operation that was started has also ended.
"""

from __future__ import annotations

import contextlib
import logging
import typing as t

from ..api import events
from ..base import logs, trace
from ..base.calls import AttachRequest, ClaimRef, DeviceHealth, PreparedDevice
from ..base.errors import Busy, DriverError, Refused
from ..base.lock import PATIENCE
from ..base.metrics import ATTACH, PREPARE, UNPREPARE, Metrics
from ..base.paths import Paths
from ..publish.device import Device
from . import claim_status
from .attachment import Attachment
from .devices import Devices
from .leases import Leases
from .ledger import Ledger
from .next_pod import NextPod
from .preparation import Preparation
from .protocols import Cluster, Inventory
from .recovery import Recovery
from .shares import Shares
from .transfer import Transfer

log = logging.getLogger(__name__)


class Service:
    """Prepares, attaches and takes back the claims of this node (`calls.Service`).

    `mounts` is the mount namespace that pins are made in, if the driver has one of its own (`netns.pin`). Any number of
    threads and processes may call concurrently. After a start, `reconcile` must be called first.
    """

    def __init__(
        self,
        paths: Paths,
        cluster: Cluster,
        inventory: Inventory,
        status: claim_status.Writer,
        metrics: Metrics | None = None,
        *,
        mounts: str | None = None,
        boot: str | None = None,
        patience: float = PATIENCE,
        reporter: events.Reporter | None = None,
    ) -> None:
        self.paths = paths
        self.cluster = cluster
        self.inventory = inventory
        self.status = status
        self.ledger = ledger = Ledger(
            paths, cluster.node, inventory, status, reporter=reporter, mounts=mounts, boot=boot, patience=patience
        )
        self.store, self.pending_status = ledger.store, ledger.pending_status
        self.unclean, self.locks, self.activity = ledger.unclean, ledger.locks, ledger.activity
        self._devices = Devices(ledger, inventory, metrics)
        self._leases = Leases(ledger)
        self.shares = Shares(ledger, inventory)
        transfer = Transfer(ledger, inventory, self._leases, metrics, self.shares)
        self._preparation = Preparation(ledger, cluster, inventory, transfer, self._leases)
        self._next_pod = NextPod(self._preparation.assign)
        self._attachment = Attachment(ledger, transfer, self._leases, self._next_pod.ask)
        self._recovery = Recovery(ledger, cluster, self._preparation, transfer, self._leases, self.shares)

    def close(self) -> None:
        """End this object's threads. Nothing is taken back: pods keep running."""
        self._preparation.close()
        self._leases.close()

    # kubelet and the hook

    def prepare(self, claim: ClaimRef) -> list[PreparedDevice]:
        """Check a claim, write its record and its CDI spec. Nothing moves yet."""
        _check(claim)
        with _operation(PREPARE, claim=claim.uid, claim_name=str(claim)):
            try:
                with self.ledger.claim(claim.uid):
                    return self._preparation.prepare(claim)
            except DriverError as error:
                self.ledger.event(events.claim(claim), events.PREPARE, error)
                raise

    def unprepare(self, claim: ClaimRef) -> None:
        """Take back a claim's devices and remove its record. Does not contact the API server, because the claim may be
        deleted: its name is that of the record, or kubelet's if there is no record."""
        _check(claim)
        with _operation(UNPREPARE, claim=claim.uid, claim_name=str(claim)), self.ledger.claim(claim.uid):
            record = self.ledger.load(claim.uid)
            self._preparation.forget(claim.uid, record, pending_status=True)
            # without a record too: a prepare that failed has written its reason
            self.ledger.clear_status(record.claim if record else claim)
            if record:
                log.info("unprepared %s", ", ".join(device.device for device in record.devices))

    def attach(self, request: AttachRequest) -> None:
        """Move a claim's devices into the network namespace of a starting container. Does not contact the API
        server."""
        with _operation(ATTACH, claim=request.uid, container=request.container):
            try:
                self._next_pod.check(request.uid, request.pod_uid)
                with self.ledger.claim(request.uid):
                    self._attachment.attach(request)
            except Busy:
                raise  # the hook retries, and reports it when it gives up
            except DriverError as error:
                # not about the pod that annotations name: a tenant may have written them
                if pod := self.ledger.pod(request.uid):
                    self.ledger.event(events.pod(pod), events.ATTACH, error)
                raise

    def attach_early(self, request: AttachRequest) -> bool:
        """As `attach`, before the pod's containers start; their hook reports errors. Returns whether it attached."""
        with _operation(ATTACH, claim=request.uid), self.ledger.claim(request.uid):
            return self._attachment.attach_early(request)

    def waiting(self, pod_uid: str = "") -> list[str]:
        """The UIDs of the claims that this process has prepared and not attached, of one pod or of all."""
        return self.ledger.waiting(pod_uid)

    # devices

    def health(self) -> list[DeviceHealth]:
        """The health of all devices; for devices in pods, the result of the last `check_pods`."""
        return self._devices.health()

    def check_pods(self) -> bool:
        """Check the devices in pods, and report in claims' status what has changed. Returns whether anything has."""
        return self._devices.check_pods()

    def retry_unclean(self) -> bool:
        """Try again to restore the devices whose original state could not be restored. Returns whether one was."""
        return self._devices.retry_unclean()

    def held(self) -> list[Device]:
        """The devices that claims hold exclusively, as they were at allocation."""
        return self._devices.held()

    def holds_interface(self, interface: str) -> bool:
        """Whether a claim that this process has worked on has a device whose interface had this name on the node."""
        return self.ledger.holds_interface(interface)

    # after a start

    def reconcile(self) -> bool:
        """`recover` and `drop_lost_claims`. Returns False if something could not be done now: call again."""
        recovered = self.recover()
        return self.drop_lost_claims() and recovered

    def recover(self) -> bool:
        """Finish or undo what the last process began. Does not contact the API server. Returns as `reconcile`."""
        return self._recovery.recover()

    def drop_lost_claims(self) -> bool:
        """Take back the devices of claims that were deleted or lost them, and whose pods have ended. Returns as
        `reconcile`."""
        return self._recovery.drop_lost_claims()


def _check(claim: ClaimRef) -> None:
    if problem := claim.problem():
        raise Refused(problem)


@contextlib.contextmanager
def _operation(name: str, **about: str) -> t.Iterator[None]:
    """Add this operation to the log lines of the block, and trace it."""
    with logs.context(operation=name, **about), trace.operation(name):
        yield
