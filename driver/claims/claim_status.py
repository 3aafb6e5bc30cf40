# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The status of a claim's devices, and the thread that writes it and retries until the API server accepts it."""

from __future__ import annotations

import datetime
import logging
import threading
import time
import typing as t
from dataclasses import dataclass, field

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

#: Seconds between a change and its request: attach follows prepare so soon that one request can report both.
SETTLE = 0.5
#: Seconds for which a status without a problem waits while other pods start or end, and seconds between two checks.
BUSY_SECONDS, BUSY_STEP = 5.0, 0.1
#: HTTP statuses of a server that is busy or starting, or while the token is being renewed.
_TEMPORARY = (401, 409, 429, 500, 502, 503, 504)
#: Maximum number of claims that are remembered as refused.
_REMEMBERED = 1000
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_MESSAGE_BYTES = 1024
#: Maximum addresses of a device in the API (NetworkDeviceDataMaxIPs in pkg/apis/resource/types.go).
MAX_ADDRESSES = 16
#: The API server compares the old allocation with the new one, opaque configurations byte by byte, but writes these
#: without blanks: a configuration that was stored with blanks then counts as changed, whatever the patch is.
_ALLOCATION = "status.allocation"
_BLANKS = (
    "its opaque configuration, or that of its DeviceClass, was stored with blanks between the JSON tokens, so the API "
    "server refuses every change of the claim's status; the pod still gets its devices"
)
_WITHOUT_BLANKS = "To get a status, write claims, templates and classes with 'kubectl apply --server-side'."
_LEFT_OUT = "The pod still has its devices; 'lanewise-driver status' on the node shows them."


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
    those of devices in the pod, by device or share, `shares` what is in force for shares, by their IDs."""
    found = []
    for device in record.devices:
        status = _device(record, device, failure, (problems or {}).get(device.key))
        if device.share:
            alone = DividedBandwidth.recorded([device.share])
            as_allocated = device.share.shown(alone, alone.guarantees([device.share])[0])
            status["data"] = {"share": (shares or {}).get(device.share_id, as_allocated)}
        found.append(status)
    return found


def _device(record: Record, device: DeviceRecord, failure: str, problem: HealthProblem | None) -> Object:
    since = record.since
    if failure:
        ready, reason, message = False, "Failed", failure.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
    elif device.admin:
        ready, reason, message = True, "AdminAccess", "the device stays where it is"
    elif record.phase == ATTACHED and problem:
        ready, reason, message, since = False, "Unhealthy", problem.message, problem.since
    elif record.phase == ATTACHED:
        ready, reason, message = True, "Attached", "the device is in the pod" + _left_out(device.network)
    else:
        ready, reason, message = False, "Prepared", "the device goes to the pod when its first container starts"
    types = [READY]
    if not device.admin:
        types += [NETWORK_READY] if device.interface else []
        types += [RDMA_READY] if device.known.rdma_devices else []
    conditions = [
        {
            "type": kind,
            "status": str(ready),
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or now(),
        }
        for kind in types
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
    """Network data within the limit of the API server, which refuses the whole status because of one more address."""
    addresses = _addresses(network)[:MAX_ADDRESSES]
    kept = {name: value for name, value in network.items() if name != "ips"}
    return {**kept, "ips": addresses} if addresses else kept


def _left_out(network: NetworkData | None) -> str:
    found = len(_addresses(network)) if network else 0
    return f"; {MAX_ADDRESSES} of its {found} addresses are listed" if found > MAX_ADDRESSES else ""


@dataclass
class _PendingStatus:
    claim: ClaimRef
    devices: list[Object] = field(default_factory=list)
    due: float = 0.0
    latest: float = 0.0
    done: t.Callable[[], None] | None = None
    pause: float = _FIRST_PAUSE


class Writer:
    """Writes the latest status of each claim, and retries while the API server does not answer.

    `busy` returns whether pods start or end. No pod waits for a status, and each costs time of the API server and of
    all clients that watch claims. What is not written when the process ends is computed from the records at the next
    start.
    """

    def __init__(
        self,
        cluster: Api,
        settle: float = SETTLE,
        reporter: events.Reporter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.busy: t.Callable[[], bool] = lambda: False
        self._cluster = cluster
        self._reporter = reporter
        self._metrics = metrics
        self._settle = settle
        self._waiting: dict[str, _PendingStatus] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread: threading.Thread | None = None
        #: Claims whose status the server always refuses: no more requests for these.
        self._refused: dict[str, None] = {}
        #: Errors of requests that are repeated, by claim.
        self._conditions = logs.Conditions(log)

    def put(
        self,
        claim: ClaimRef,
        devices: list[Object],
        done: t.Callable[[], None] | None = None,
        settle: float | None = None,
        urgent: bool = False,
    ) -> None:
        """Set our devices in the claim's status; an empty list removes them. Never blocks, never raises. `settle` is
        for how many seconds to wait for a later change; an `urgent` status does not wait while pods start or end.

        `done` is called in the writer's thread when the status is written, or can never be.
        """
        with self._changed:
            due = time.monotonic() + (self._settle if settle is None else settle)
            latest = due if urgent else due + BUSY_SECONDS
            self._waiting[claim.uid] = _PendingStatus(claim, devices, due, latest, done)
            self._changed.notify_all()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write what is waiting, within the timeout, and end."""
        with self._changed:
            for waiting in self._waiting.values():
                waiting.due = waiting.latest = 0.0
            self._changed.notify_all()
        self.wait(timeout)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Whether everything was written before the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                uid, left = self._next()
                while not uid and not self._stopping:
                    self._changed.wait(left)
                    uid, left = self._next()
                if self._stopping:
                    return
                waiting = self._waiting.pop(uid)
                self._busy = True
            again = self._write(waiting)
            if not again and waiting.done:
                try:
                    waiting.done()
                except Exception:
                    log.exception("unexpected error after a status was written: this is a bug in the driver")
            with self._changed:
                self._busy = False
                if again and uid not in self._waiting:
                    waiting.due = time.monotonic() + waiting.pause
                    waiting.pause = min(waiting.pause * 2, _LONGEST_PAUSE)
                    self._waiting[uid] = waiting
                self._changed.notify_all()

    def _next(self) -> tuple[str, float | None]:
        """The UID of the claim whose status is written next; otherwise the seconds until the next check."""
        now = time.monotonic()
        due = {uid: waiting for uid, waiting in self._waiting.items() if waiting.due <= now}
        if not due:
            return "", min((waiting.due - now for waiting in self._waiting.values()), default=None)
        if self.busy():
            due = {uid: waiting for uid, waiting in due.items() if waiting.latest <= now}
        return min(due, key=lambda uid: due[uid].due, default=""), BUSY_STEP

    def _write(self, waiting: _PendingStatus) -> bool:
        """Write a status. Returns whether to try again."""
        claim = waiting.claim
        if claim.uid in self._refused:
            if not waiting.devices:
                self._refused.pop(claim.uid, None)
            return False
        with logs.context(claim=claim.uid, claim_name=str(claim)):
            try:
                self._cluster.set_claim_devices(claim.namespace, claim.name, claim.uid, waiting.devices)
            except ApiError as error:
                return self._refused_by_server(waiting, error)
            except DriverError as error:
                self._log_retry(claim, error)
                return True
            except Exception:
                log.exception("could not write the claim's status: a bug in the driver")
                self._count_error()
                return False
        self._conditions.clear(claim.uid)
        return False

    def _refused_by_server(self, waiting: _PendingStatus, error: ApiError) -> bool:
        """Log and report an error of the server. Returns whether to try again."""
        claim = waiting.claim
        if error.status in _TEMPORARY:
            self._log_retry(claim, error)
            return True
        if error.status == 404:
            log.info("the claim's status is not written, as the claim is gone: %s", error.message)
            return False
        self._count_error()
        if error.status == 422 and _ALLOCATION in error.message and waiting.devices:
            self._refused[claim.uid] = None
            while len(self._refused) > _REMEMBERED:
                self._refused.pop(next(iter(self._refused)))
            what, fix = _BLANKS, _WITHOUT_BLANKS
        else:
            what, fix = f"the API server refuses the claim's status: {error.message}", _LEFT_OUT
        self._conditions.report(claim.uid, logging.ERROR, f"could not write the claim's status: {what}. {fix}")
        if self._reporter:
            self._reporter.send(events.claim(claim), events.STATUS, what, fix)
        # a status that is invalid stays so; a missing permission may be granted
        return error.status not in (400, 422)

    def _log_retry(self, claim: ClaimRef, error: DriverError) -> None:
        message = f"could not write the claim's status, trying again: {error.message}"
        self._conditions.report(claim.uid, logging.WARNING, message)

    def _count_error(self) -> None:
        if self._metrics:
            self._metrics.error("status")
