# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the status of a claim says of its devices, and the thread that writes it until the API server has it."""

from __future__ import annotations

import datetime
import logging
import threading
import time
import typing as t
from dataclasses import dataclass, field

from ..api import events
from ..api.client import ApiError
from ..base.calls import ClaimRef, NetworkData
from ..base.errors import DriverError
from ..base.metrics import Metrics
from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from .records import ATTACHED, DeviceRecord, Record

log = logging.getLogger(__name__)

READY = "Ready"
NETWORK_READY = "NetworkReady"
RDMA_READY = "RDMAReady"

#: Seconds between a change and its request: attach follows prepare so soon that one request tells of both.
SETTLE = 0.5
#: Seconds for which the word that all is well waits while other pods start or end, and between two looks at that.
BUSY_SECONDS, BUSY_STEP = 5.0, 0.1
#: Answers of a server that is busy or starts, or of one whose token is about to be renewed.
_PASSING = (401, 409, 429, 500, 502, 503, 504)
#: Claims that are known to be refused.
_REMEMBERED = 1000
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_MESSAGE_BYTES = 1024
#: Addresses that the API server takes for one device (NetworkDeviceDataMaxIPs in pkg/apis/resource/types.go).
MOST_ADDRESSES = 16
#: The API server compares allocations as they are stored, opaque configurations byte by byte, and writes these anew
#: without blanks: one that was stored with blanks then looks changed, whatever is patched.
_ALLOCATION = "status.allocation"
_BLANKS = (
    "its opaque configuration, or that of its DeviceClass, was stored with blanks between the JSON words, and the API "
    "server then refuses every change of the claim's status; the devices are given to the pod all the same"
)
_WITHOUT_BLANKS = "To have the status, write claims, templates and classes by 'kubectl apply --server-side'."
_LEFT_OUT = "The pod has its devices all the same; 'lanewise-driver status' on the node tells how they are."


class Api(t.Protocol):
    """What is needed of cluster.Cluster."""

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool: ...


def now() -> str:
    """As the API writes times."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class HealthProblem:
    """What is wrong with a device that a pod has, and since when, as the API writes times."""

    message: str
    since: str


def devices(record: Record, failure: str = "", ailing: t.Mapping[str, HealthProblem] | None = None) -> list[Object]:
    """The v1 AllocatedDeviceStatus of each device of a claim; C(failure) says why it is not ready, C(ailing) what is
    wrong with devices that are in the pod."""
    return [_device(record, device, failure, (ailing or {}).get(device.device)) for device in record.devices]


def _device(record: Record, device: DeviceRecord, failure: str, ailment: HealthProblem | None) -> Object:
    since = record.since
    if failure:
        ready, reason, message = False, "Failed", failure.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
    elif device.admin:
        ready, reason, message = True, "AdminAccess", "the device stays where it is"
    elif record.phase == ATTACHED and ailment:
        ready, reason, message, since = False, "Unhealthy", ailment.message, ailment.since
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
    """Network data as the API server takes it: one address too many, and it refuses the status as a whole."""
    addresses = _addresses(network)[:MOST_ADDRESSES]
    kept = {name: value for name, value in network.items() if name != "ips"}
    return {**kept, "ips": addresses} if addresses else kept


def _left_out(network: NetworkData | None) -> str:
    found = len(_addresses(network)) if network else 0
    return f"; {MOST_ADDRESSES} of its {found} addresses are listed" if found > MOST_ADDRESSES else ""


@dataclass
class _Waiting:
    claim: ClaimRef
    devices: list[Object] = field(default_factory=list)
    due: float = 0.0
    latest: float = 0.0
    done: t.Callable[[], None] | None = None
    pause: float = _FIRST_PAUSE


class Writer:
    """Writes the status of claims, the last word of each; while the API server does not answer it tries again.

    C(busy) says whether pods start or end: no pod waits for a status, and each takes time of the API server and of all
    who watch claims.
    What it has not written when the process ends is said anew at the next start, from the records.
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
        self._waiting: dict[str, _Waiting] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread: threading.Thread | None = None
        #: Claims whose status the server never takes: no more requests for these.
        self._refused: dict[str, None] = {}

    def put(
        self,
        claim: ClaimRef,
        devices: list[Object],
        done: t.Callable[[], None] | None = None,
        settle: float | None = None,
        urgent: bool = False,
    ) -> None:
        """Let the claim's status say this of our devices; nothing clears it. Never blocks, never raises. C(settle) is
        how many seconds to wait for a later word; what is C(urgent) does not wait for pods that start or end.

        C(done) is called in the writer's thread when that is so, or can never be.
        """
        with self._changed:
            due = time.monotonic() + (self._settle if settle is None else settle)
            latest = due if urgent else due + BUSY_SECONDS
            self._waiting[claim.uid] = _Waiting(claim, devices, due, latest, done)
            self._changed.notify_all()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write what waits, as far as the time allows, and end."""
        with self._changed:
            for waiting in self._waiting.values():
                waiting.due = waiting.latest = 0.0
            self._changed.notify_all()
        self.wait(timeout)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Whether everything was written before the time was over."""
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
                    log.exception("what follows the status of claim %s failed", waiting.claim)
            with self._changed:
                self._busy = False
                if again and uid not in self._waiting:
                    waiting.due = time.monotonic() + waiting.pause
                    waiting.pause = min(waiting.pause * 2, _LONGEST_PAUSE)
                    self._waiting[uid] = waiting
                self._changed.notify_all()

    def _next(self) -> tuple[str, float | None]:
        """The claim whose status is to be written now; else nothing, and after how many seconds to look again."""
        now = time.monotonic()
        due = {uid: waiting for uid, waiting in self._waiting.items() if waiting.due <= now}
        if not due:
            return "", min((waiting.due - now for waiting in self._waiting.values()), default=None)
        if self.busy():
            due = {uid: waiting for uid, waiting in due.items() if waiting.latest <= now}
        return min(due, key=lambda uid: due[uid].due, default=""), BUSY_STEP

    def _write(self, waiting: _Waiting) -> bool:
        """Whether it has to be tried again."""
        claim = waiting.claim
        about = {"claim": claim.uid}
        if claim.uid in self._refused:
            if not waiting.devices:
                self._refused.pop(claim.uid, None)
            return False
        try:
            self._cluster.set_claim_devices(claim.namespace, claim.name, claim.uid, waiting.devices)
        except ApiError as error:
            return self._not_taken(waiting, error)
        except DriverError as error:
            log.warning("the status of claim %s is not written yet: %s", claim, error.message, extra=about)
            return True
        except Exception:
            log.exception("the status of claim %s cannot be written", claim, extra=about)
            self._count()
            return False
        return False

    def _not_taken(self, waiting: _Waiting, error: ApiError) -> bool:
        """Say that the server refuses a status; whether it has to be tried again."""
        claim = waiting.claim
        about = {"claim": claim.uid}
        if error.status in _PASSING:
            log.warning("the status of claim %s is not written yet: %s", claim, error.message, extra=about)
            return True
        if error.status == 404:
            log.warning("the status of claim %s is not written: %s", claim, error.message, extra=about)
            return False
        self._count()
        if error.status == 422 and _ALLOCATION in error.message and waiting.devices:
            self._refused[claim.uid] = None
            while len(self._refused) > _REMEMBERED:
                self._refused.pop(next(iter(self._refused)))
            what, fix = _BLANKS, _WITHOUT_BLANKS
        else:
            what, fix = f"the API server refuses the claim's status: {error.message}", _LEFT_OUT
        log.error("the status of claim %s cannot be written: %s. %s", claim, what, fix, extra=about)
        if self._reporter:
            self._reporter.tell(events.claim(claim), events.STATUS, what, fix)
        # what is wrong with the status itself does not change; a right that is missing may be given
        return error.status not in (400, 422)

    def _count(self) -> None:
        if self._metrics:
            self._metrics.error("status")
