# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The operations on the claims of this node: prepare, attach to a pod, detach, remove.

Records on disk are the source of truth, and each record is written before the actions that it describes. So the next
call, or the next process, knows which steps the last one may have taken. It moves all devices back to the node and
starts over. No code here assumes that an operation has been completed because it was started.
"""

from __future__ import annotations

import contextlib
import logging
import typing as t

from ..api import events
from ..base import logs, trace
from ..base.calls import AttachRequest, ClaimRef, DeviceHealth, PreparedDevice
from ..base.errors import Busy, DriverError, Refused
from ..base.lock import LOCK_TIMEOUT_SECONDS
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
    """Prepares, attaches and unprepares the claims of this node (`calls.Service`).

    `mounts` is the mount namespace for pins, if the driver has its own mount namespace (`netns.pin`). `lock_timeout` is
    the number of seconds to wait for a lock. Any number of threads and processes may call concurrently. After a start,
    `recover` or `reconcile` must be called first.
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
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        reporter: events.Reporter | None = None,
    ) -> None:
        self.paths = paths
        self.cluster = cluster
        self.inventory = inventory
        self.status = status
        self.ledger = ledger = Ledger(
            paths,
            cluster.node,
            inventory,
            status,
            reporter=reporter,
            mounts=mounts,
            boot=boot,
            lock_timeout=lock_timeout,
        )
        self.store, self.pending_status = ledger.store, ledger.pending_status
        self.unclean, self.locks, self.activity = ledger.unclean, ledger.locks, ledger.activity
        self._devices = Devices(ledger, inventory, metrics)
        self._leases = Leases(ledger)
        self.shares = Shares(ledger, inventory)
        transfer = Transfer(ledger, inventory, self._leases, metrics, self.shares)
        self._preparation = Preparation(ledger, cluster, inventory, transfer, self._leases)
        self._next_pod = NextPod(self._preparation.assign)
        self._attachment = Attachment(ledger, transfer, self._leases, self._next_pod.request)
        self._recovery = Recovery(ledger, cluster, self._preparation, transfer, self._leases, self.shares)

    def close(self) -> None:
        """End this object's threads. Devices stay in their pods, which keep running."""
        self._preparation.close()
        self._leases.close()

    # kubelet and the hook

    def prepare(self, claim: ClaimRef) -> list[PreparedDevice]:
        """Check a claim, and write its record and CDI spec. The devices stay on the node."""
        _check(claim)
        with _operation(PREPARE, claim=claim.uid, claim_name=str(claim)):
            try:
                with self.ledger.lock_claim(claim.uid):
                    return self._preparation.prepare(claim)
            except DriverError as error:
                self.ledger.event(events.claim(claim), events.PREPARE, error)
                raise

    def unprepare(self, claim: ClaimRef) -> None:
        """Return a claim's devices to the node and remove its record. Does not wait for the API server, because the
        claim may have been deleted. The claim's name is that in the record, or kubelet's if there is no record."""
        _check(claim)
        with _operation(UNPREPARE, claim=claim.uid, claim_name=str(claim)), self.ledger.lock_claim(claim.uid):
            record = self.ledger.load(claim.uid)
            self._preparation.forget(claim.uid, record, keep_for_status=True)
            # also without a record: a failed prepare has written its reason to the status
            self.ledger.clear_status(record.claim if record else claim)
            if record:
                log.info("unprepared %s", ", ".join(device.device for device in record.devices))

    def attach(self, request: AttachRequest) -> None:
        """Move a claim's devices into the network namespace of a starting container. Does not contact the API
        server."""
        with _operation(ATTACH, claim=request.uid, container=request.container):
            try:
                self._next_pod.check(request.uid, request.pod_uid)
                with self.ledger.lock_claim(request.uid):
                    self._attachment.attach(request)
            except Busy:
                raise  # the hook retries, and reports the reason when it gives up
            except DriverError as error:
                # about the pod in the record, not the one in annotations, which a tenant may have written
                if pod := self.ledger.pod(request.uid):
                    self.ledger.event(events.pod(pod), events.ATTACH, error)
                raise

    def attach_early(self, request: AttachRequest) -> bool:
        """As `attach`, before the pod's containers start; errors are reported when their hooks attach. Returns whether
        the claim was attached now."""
        with _operation(ATTACH, claim=request.uid), self.ledger.lock_claim(request.uid):
            return self._attachment.attach_early(request)

    def waiting(self, pod_uid: str = "") -> list[str]:
        """The UIDs of the claims that this process has prepared but not attached, of one pod or of all."""
        return self.ledger.waiting(pod_uid)

    # devices

    def health(self) -> list[DeviceHealth]:
        """The health of all devices; for devices in pods, the result of the last `check_pods`."""
        return self._devices.health()

    def check_pods(self) -> bool:
        """Check the devices in pods, and report changes in the claims' status. Returns whether there were any."""
        return self._devices.check_pods()

    def retry_unclean(self) -> bool:
        """Try again to restore the devices that are not in their original state. Returns whether any was restored."""
        return self._devices.retry_unclean()

    def held(self) -> list[Device]:
        """The devices that claims hold exclusively, as they were when they were allocated."""
        return self._devices.held()

    def holds_interface(self, interface: str) -> bool:
        """As `Ledger.holds_interface`."""
        return self.ledger.holds_interface(interface)

    # after a start

    def reconcile(self) -> bool:
        """`recover` and `drop_lost_claims`. Returns False if something could not be done now; then call this again."""
        recovered = self.recover()
        return self.drop_lost_claims() and recovered

    def recover(self) -> bool:
        """As `Recovery.recover`. Does not contact the API server."""
        return self._recovery.recover()

    def drop_lost_claims(self) -> bool:
        """As `Recovery.drop_lost_claims`."""
        return self._recovery.drop_lost_claims()


def _check(claim: ClaimRef) -> None:
    """Raises Refused if kubelet's reference to a claim is invalid."""
    if problem := claim.problem():
        raise Refused(problem)


@contextlib.contextmanager
def _operation(name: str, **fields: str) -> t.Iterator[None]:
    """Add the operation's name and fields to the log lines of the block, and trace it."""
    with logs.context(operation=name, **fields), trace.operation(name):
        yield
