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

from .calls import ClaimRef
from .cluster import ApiError
from .dra.interface_config import DRIVER
from .errors import DriverError
from .records import ATTACHED, DeviceRecord, Object, Record

log = logging.getLogger(__name__)

READY = "Ready"
NETWORK_READY = "NetworkReady"
RDMA_READY = "RDMAReady"

#: Seconds between a change and its request: attach follows prepare so soon that one request tells of both.
SETTLE = 0.5
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_MESSAGE_BYTES = 1024


class Api(t.Protocol):
    """What is needed of cluster.Cluster."""

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool: ...


def now() -> str:
    """As the API writes times."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def devices(record: Record, failure: str = "") -> list[Object]:
    """The v1 AllocatedDeviceStatus of each device of a claim; C(failure) says why it is not ready."""
    return [_device(record, device, failure) for device in record.devices]


def _device(record: Record, device: DeviceRecord, failure: str) -> Object:
    if failure:
        ready, reason, message = False, "Failed", failure.encode()[:_MESSAGE_BYTES].decode(errors="ignore")
    elif device.admin:
        ready, reason, message = True, "AdminAccess", "the device stays where it is"
    elif record.phase == ATTACHED:
        ready, reason, message = True, "Attached", "the device is in the pod"
    else:
        ready, reason, message = False, "Prepared", "the device goes to the pod when its first container starts"
    types = [READY]
    if not device.admin:
        types += [NETWORK_READY] if device.interface else []
        types += [RDMA_READY] if device.known.get("rdma_devices") else []
    conditions = [
        {
            "type": kind,
            "status": str(ready),
            "reason": reason,
            "message": message,
            "lastTransitionTime": record.since or now(),
        }
        for kind in types
    ]
    status: Object = {"driver": DRIVER, "pool": device.pool, "device": device.device, "conditions": conditions}
    if device.share_id:
        status["shareID"] = device.share_id
    if device.network and record.phase == ATTACHED and not failure:
        status["networkData"] = device.network
    return status


@dataclass
class _Waiting:
    claim: ClaimRef
    devices: list[Object] = field(default_factory=list)
    due: float = 0.0
    pause: float = _FIRST_PAUSE


class Writer:
    """Writes the status of claims, the last word of each; while the API server does not answer it tries again.

    What it has not written when the process ends is said anew at the next start, from the records.
    """

    def __init__(self, cluster: Api, settle: float = SETTLE) -> None:
        self._cluster = cluster
        self._settle = settle
        self._waiting: dict[str, _Waiting] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, claim: ClaimRef, devices: list[Object]) -> None:
        """Let the claim's status say this of our devices; nothing clears it. Never blocks, never raises."""
        with self._changed:
            self._waiting[claim.uid] = _Waiting(claim, devices, time.monotonic() + self._settle)
            self._changed.notify_all()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write what waits, as far as the time allows, and end."""
        with self._changed:
            for waiting in self._waiting.values():
                waiting.due = 0.0
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
                while not self._stopping:
                    due = min((waiting.due for waiting in self._waiting.values()), default=None)
                    left = None if due is None else due - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                if self._stopping:
                    return
                uid = min(self._waiting, key=lambda key: self._waiting[key].due)
                waiting = self._waiting.pop(uid)
                self._busy = True
            again = self._write(waiting)
            with self._changed:
                self._busy = False
                if again and uid not in self._waiting:
                    waiting.due = time.monotonic() + waiting.pause
                    waiting.pause = min(waiting.pause * 2, _LONGEST_PAUSE)
                    self._waiting[uid] = waiting
                self._changed.notify_all()

    def _write(self, waiting: _Waiting) -> bool:
        """Whether it has to be tried again."""
        claim = waiting.claim
        try:
            self._cluster.set_claim_devices(claim.namespace, claim.name, claim.uid, waiting.devices)
        except ApiError as error:
            log.warning("the status of claim %s was not taken: %s", claim, error.message, extra={"claim": claim.uid})
            return error.status not in (400, 404, 422)  # the claim is no longer what the status is about
        except DriverError as error:
            log.warning(
                "the status of claim %s is not written yet: %s", claim, error.message, extra={"claim": claim.uid}
            )
            return True
        except Exception:
            log.exception("the status of claim %s cannot be written", claim, extra={"claim": claim.uid})
            return False
        return False
