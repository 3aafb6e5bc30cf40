# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The status of a claim's devices, and the thread that writes it to the API server and retries after errors."""

from __future__ import annotations

import datetime
import logging
import threading
import time
import typing as t
from dataclasses import dataclass, field
from http import HTTPStatus

from ..api import events
from ..api.client import ApiError
from ..base import logs
from ..base.calls import ClaimRef, NetworkData
from ..base.errors import DriverError
from ..base.metrics import Metrics
from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from ..shares.share import DividedBandwidth
from .records import ATTACHED, DeviceKey, DeviceRecord, Record

log = logging.getLogger(__name__)

READY = "Ready"
NETWORK_READY = "NetworkReady"
RDMA_READY = "RDMAReady"

#: Seconds between a change and its request: attach often follows prepare so soon that one request reports both.
SETTLE_SECONDS = 0.5
#: Maximum seconds for which a status without a problem waits while other pods start or end, and seconds between two
#: checks.
BUSY_SECONDS, BUSY_POLL_SECONDS = 5.0, 0.1
#: HTTP statuses while the server is busy or starting, the claim is changed by others, or the token is being renewed.
#: 404 means that the server does not serve claims now: for a missing claim, `set_claim_devices` does not raise.
_TEMPORARY_STATUSES = (401, 404, 409, 429, 500, 502, 503, 504)
#: Maximum number of claims that are remembered as rejected.
_MAX_REJECTED = 1000
#: Seconds between two attempts after errors.
_MIN_DELAY, _MAX_DELAY = 1.0, 60.0
#: Maximum bytes of a condition's message. The API allows 32768 (ValidateCondition in
#: k8s.io/apimachinery/pkg/apis/meta/v1/validation), but each condition of each device of the claim repeats a failure.
_MAX_MESSAGE_BYTES = 1024
#: Maximum addresses of a device in the API (NetworkDeviceDataMaxIPs in pkg/apis/resource/types.go).
MAX_ADDRESSES = 16
#: The field in the API server's message if a claim's opaque configuration contains whitespace between JSON tokens. The
#: server compares the old allocation with the new one, opaque configurations byte by byte. But it writes these without
#: whitespace, so a configuration that was stored with it always counts as changed, whatever the patch is.
_ALLOCATION_FIELD = "status.allocation"
_WHITESPACE = (
    "the opaque configuration of the claim, or of its DeviceClass, was stored with whitespace between the JSON tokens, "
    "so the API server rejects every change of the claim's status; this does not affect the pod's devices"
)
_FIX_WHITESPACE = "To get a status, write claims, templates and classes with 'kubectl apply --server-side'."
_FIX_REJECTED = "This does not affect the pod's devices; 'lanewise-driver status' on the node shows their state."


class Api(t.Protocol):
    """The part of `api.cluster.Cluster` that the writer uses."""

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool: ...


def now() -> str:
    """The current time in the API's format."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class HealthProblem:
    """What is wrong with a device in a pod, and since when, in the API's format."""

    message: str
    since: str


def devices(
    record: Record,
    failure: str = "",
    problems: t.Mapping[DeviceKey, HealthProblem] | None = None,
    shares: t.Mapping[str, Object] | None = None,
) -> list[Object]:
    """The v1 AllocatedDeviceStatus of each device of a claim. `failure` is why the claim is not ready, `problems` are
    those of devices in the pod, by device or share, `shares` is the data about shares in force, by share ID."""
    statuses = []
    for device in record.devices:
        status = _device(record, device, failure, (problems or {}).get(device.key))
        if device.share:
            alone = DividedBandwidth.recorded([device.share])
            as_allocated = device.share.status_data(alone, alone.guarantees([device.share])[0])
            status["data"] = {"share": (shares or {}).get(device.share_id, as_allocated)}
        statuses.append(status)
    return statuses


def _device(record: Record, device: DeviceRecord, failure: str, problem: HealthProblem | None) -> Object:
    since = record.since
    if failure:
        ready, reason, message = False, "Failed", failure
    elif device.admin:
        ready, reason, message = True, "AdminAccess", "the device is not moved"
    elif record.phase == ATTACHED and problem:
        ready, reason, message, since = False, "Unhealthy", problem.message, problem.since
    elif record.phase == ATTACHED:
        ready, reason, message = True, "Attached", "the device is in the pod" + _truncation(device.network)
    else:
        ready, reason, message = False, "Prepared", "the device is moved to the pod when the first container starts"
    types = [READY]
    if not device.admin:
        types += [NETWORK_READY] if device.interface else []
        types += [RDMA_READY] if device.known.rdma_devices else []
    conditions = [
        {
            "type": condition_type,
            "status": str(ready),
            "reason": reason,
            "message": message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore"),
            "lastTransitionTime": since or now(),
        }
        for condition_type in types
    ]
    status: Object = {"driver": DRIVER, "pool": device.pool, "device": device.device, "conditions": conditions}
    if device.share_id:
        status["shareID"] = device.share_id
    if device.network and record.phase == ATTACHED and not failure:
        status["networkData"] = _within_limits(device.network)
    return status


def _addresses(network: NetworkData) -> list[str]:
    return list(dict.fromkeys(network["ips"]))


def _within_limits(network: NetworkData) -> Object:
    """Network data within the limit of the API server, which rejects the whole status if there are more addresses."""
    addresses = _addresses(network)[:MAX_ADDRESSES]
    other_fields = {name: value for name, value in network.items() if name != "ips"}
    return {**other_fields, "ips": addresses} if addresses else other_fields


def _truncation(network: NetworkData | None) -> str:
    """The part of a condition's message about addresses that are not listed."""
    count = len(_addresses(network)) if network else 0
    return f"; {MAX_ADDRESSES} of its {count} addresses are listed" if count > MAX_ADDRESSES else ""


@dataclass
class _PendingStatus:
    """A status to write: from the monotonic time `due` on, and from `deadline` on even while pods start or end. `delay`
    is the number of seconds before the next attempt after an error."""

    claim: ClaimRef
    devices: list[Object] = field(default_factory=list)
    due: float = 0.0
    deadline: float = 0.0
    done: t.Callable[[], None] | None = None
    delay: float = _MIN_DELAY


class Writer:
    """Writes the latest status of each claim, and retries while the API server does not answer.

    `busy` returns whether pods start or end. No pod waits for a status, and each request costs time of the API server
    and of all clients that watch claims. A status that is not written when the process ends is computed from the
    records at the next start.
    """

    def __init__(
        self,
        cluster: Api,
        settle: float = SETTLE_SECONDS,
        reporter: events.Reporter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.busy: t.Callable[[], bool] = lambda: False
        self._cluster = cluster
        self._reporter = reporter
        self._metrics = metrics
        self._settle = settle
        self._pending: dict[str, _PendingStatus] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._writing = False
        self._thread: threading.Thread | None = None
        #: The UIDs of claims whose status the server always rejects: no more requests are sent for these.
        self._rejected: dict[str, None] = {}
        #: The errors of requests that are tried again, by claim: each is logged once.
        self._logged_errors = logs.Conditions(log)

    def put(
        self,
        claim: ClaimRef,
        devices: list[Object],
        done: t.Callable[[], None] | None = None,
        settle: float | None = None,
        urgent: bool = False,
    ) -> None:
        """Set this driver's devices in the claim's status; an empty list removes them. Does not wait for the API
        server, and never raises. `settle` is the number of seconds to wait for a later change. An `urgent` status does
        not wait while pods start or end.

        `done` is called in the writer's thread when the status is written, or when the writer gives up: the claim no
        longer exists, or the API server rejects the status. It is never called if a later `put` for the same claim
        replaces this status before that, or if the writer is stopped.
        """
        with self._changed:
            due = time.monotonic() + (self._settle if settle is None else settle)
            deadline = due if urgent else due + BUSY_SECONDS
            self._pending[claim.uid] = _PendingStatus(claim, devices, due, deadline, done)
            self._changed.notify_all()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write pending statuses for at most `timeout` seconds, then end the thread."""
        with self._changed:
            for pending in self._pending.values():
                pending.due = pending.deadline = 0.0
            self._changed.notify_all()
        self.wait(timeout)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until everything is written, at most `timeout` seconds. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._writing, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                uid, seconds = self._next()
                while not uid and not self._stopping:
                    self._changed.wait(seconds)
                    uid, seconds = self._next()
                if self._stopping:
                    return
                pending = self._pending.pop(uid)
                self._writing = True
            retry = self._write(pending)
            if not retry and pending.done:
                try:
                    pending.done()
                except DriverError as error:
                    log.error("%s", error.message)
                except Exception:
                    log.exception("unexpected error after the last attempt to write a status: a bug in the driver")
            with self._changed:
                self._writing = False
                if retry and uid not in self._pending:
                    pending.due = time.monotonic() + pending.delay
                    pending.delay = min(pending.delay * 2, _MAX_DELAY)
                    self._pending[uid] = pending
                self._changed.notify_all()

    def _next(self) -> tuple[str, float | None]:
        """The UID of the claim whose status is due, or an empty string; and the seconds until the next check (None:
        until a change)."""
        monotonic = time.monotonic()
        due = {uid: pending for uid, pending in self._pending.items() if pending.due <= monotonic}
        if not due:
            return "", min((pending.due - monotonic for pending in self._pending.values()), default=None)
        if self.busy():
            due = {uid: pending for uid, pending in due.items() if pending.deadline <= monotonic}
        return min(due, key=lambda uid: due[uid].due, default=""), BUSY_POLL_SECONDS

    def _write(self, pending: _PendingStatus) -> bool:
        """Write a status. Returns whether to try again."""
        claim = pending.claim
        if claim.uid in self._rejected:
            if not pending.devices:
                self._rejected.pop(claim.uid, None)
            return False
        with logs.context(claim=claim.uid, claim_name=str(claim)):
            try:
                self._cluster.set_claim_devices(claim.namespace, claim.name, claim.uid, pending.devices)
            except ApiError as error:
                return self._handle_api_error(pending, error)
            except DriverError as error:
                self._log_retry(claim, error)
                return True
            except Exception:
                log.exception("could not write the claim's status: a bug in the driver")
                self._count_error()
                return False
        self._logged_errors.clear(claim.uid)
        return False

    def _handle_api_error(self, pending: _PendingStatus, error: ApiError) -> bool:
        """Log and report an error of the server. Returns whether to try again."""
        claim = pending.claim
        if error.status in _TEMPORARY_STATUSES:
            self._log_retry(claim, error)
            return True
        self._count_error()
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and _ALLOCATION_FIELD in error.message and pending.devices:
            self._rejected[claim.uid] = None
            while len(self._rejected) > _MAX_REJECTED:
                self._rejected.pop(next(iter(self._rejected)))
            what, fix = _WHITESPACE, _FIX_WHITESPACE
        else:
            what, fix = f"the API server rejects the claim's status: {error.message}", _FIX_REJECTED
        self._logged_errors.report(claim.uid, logging.ERROR, f"could not write the claim's status: {what}. {fix}")
        if self._reporter:
            self._reporter.send(events.claim(claim), events.STATUS, what, fix)
        # an invalid status stays invalid; a missing permission may be granted later
        return error.status not in (400, 422)

    def _log_retry(self, claim: ClaimRef, error: DriverError) -> None:
        message = f"could not write the claim's status, trying again: {error.message}"
        self._logged_errors.report(claim.uid, logging.WARNING, message)

    def _count_error(self) -> None:
        if self._metrics:
            self._metrics.error("status")
