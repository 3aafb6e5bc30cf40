# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attaches a claim's devices when a container of its pod is about to start, without waiting for the API server."""

from __future__ import annotations

import logging
import time
import typing as t

from ..base.calls import AttachRequest
from ..base.errors import Busy, DriverError, Refused
from ..kernel import netns
from .leases import Leases
from .ledger import Ledger
from .records import ATTACHED, PREPARED, Record
from .transfer import Transfer

log = logging.getLogger(__name__)


class Attachment:
    """Attaches claims.

    `assign` (`next_pod.NextPod.request`) is called with the UIDs of a claim and a pod, if the claim was prepared for
    another pod. It starts to assign the claim to that pod and raises Busy until that is done; then it returns, or
    raises the error of the assignment.
    """

    def __init__(
        self, ledger: Ledger, transfer: Transfer, leases: Leases, assign: t.Callable[[str, str], None]
    ) -> None:
        self._ledger = ledger
        self._transfer = transfer
        self._leases = leases
        self._assign = assign

    def attach(self, request: AttachRequest) -> None:
        """Attach a claim for a container's hook. The caller holds the claim's lock. Raises DriverError."""
        self._attach(self._ledger.load(request.uid), request, "")
        self._ledger.claim_files.set_early(request.uid, False)

    def attach_early(self, request: AttachRequest) -> bool:
        """Attach a claim before its pod's containers start, if it is prepared for that pod. The caller holds the
        claim's lock. Returns whether there was something to attach. Raises DriverError."""
        record = self._ledger.load(request.uid)
        if record is None or not record.held or record.phase != PREPARED or not record.is_for(request.pod_uid):
            return False
        self._ledger.claim_files.set_early(request.uid, True)  # before a hook can find the claim attached
        self._attach(record, request, ", before its containers start")
        return True

    def _attach(self, record: Record | None, request: AttachRequest, log_suffix: str) -> None:
        """Attach a claim. `log_suffix` is appended to the log message."""
        if record is None:
            raise Refused(f"claim {request.uid} is not prepared on this node")
        if not record.held:
            return
        if netns.is_host(request.netns):
            raise Refused("the container uses the node's network namespace, so devices cannot be moved into it")
        self._check_pod(record, request)
        if record.phase == ATTACHED and netns.same(self._ledger.paths.pin(record.uid), request.netns):
            return  # another container of the pod
        if record.phase != PREPARED:
            # the previous attach was interrupted, or the pod has a new sandbox
            self._leases.drop(record)
            with self._ledger.lock_devices(record):
                self._transfer.to_node(record)
        start = time.monotonic()
        self._move(record, request)
        devices = ", ".join(
            f"{device.device} as {device.interface}" if device.interface else device.device for device in record.held
        )
        elapsed_ms = (time.monotonic() - start) * 1000
        log.info("attached %s to pod %s in %.0f ms%s", devices, record.pod, elapsed_ms, log_suffix)

    def _check_pod(self, record: Record, request: AttachRequest) -> None:
        """Raises Refused if the claim is not for the container's pod, and Busy while the current pod is looked up."""
        if request.contradiction:
            raise Refused(
                f"the container's annotations {request.contradiction} differ: the pod must not set them itself"
            )
        if not request.pod_uid:
            raise Refused("the container runtime does not report which pod the container belongs to")
        if not record.is_for(request.pod_uid):
            self._assign(record.uid, request.pod_uid)
            # `assign` has returned: the claim was assigned to this pod, but by now it is assigned to another one
            raise Refused(f"claim {record.claim} is not for the pod {request.pod_uid}")

    def _move(self, record: Record, request: AttachRequest) -> None:
        """Move the devices into the container's namespace; if that fails, move them all back."""
        try:
            self._transfer.to_pod(record, request.netns)
        except BaseException as error:
            if isinstance(error, Busy) and record.phase == PREPARED:
                raise  # nothing was moved
            message = error.message if isinstance(error, DriverError) else "the driver failed"
            try:
                with self._ledger.lock_devices(record):
                    self._transfer.to_node(record)
            except DriverError as rollback_error:
                log.error("could not move the devices back after the failed attach: %s", rollback_error.message)
            self._ledger.put_status(record, message)
            raise
        self._ledger.put_status(record)
        try:
            self._leases.keep(record)
        except RuntimeError as error:  # no more threads; the devices are in the pod
            log.error("could not start to renew the claim's leases: %s", error)
