# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that claims hold and their health, and those whose original state could not be restored."""

from __future__ import annotations

import logging
import typing as t

from ..base import logs
from ..base.calls import DeviceHealth
from ..base.errors import Busy, DriverError
from ..base.metrics import Metrics
from ..publish.device import Device
from ..topology.publish_shares import base_name
from . import health
from .claim_status import HealthProblem
from .ledger import Ledger
from .protocols import Inventory
from .records import ATTACHED, PREPARED, DeviceKey, Record, device_text
from .unclean import UncleanDevice

log = logging.getLogger(__name__)


class Devices:
    """The devices of all claims. May be used from any thread."""

    def __init__(self, ledger: Ledger, inventory: Inventory, metrics: Metrics | None) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._metrics = metrics
        #: Logs the errors of `retry_unclean` when they change.
        self._errors = logs.Conditions(log)

    def held(self) -> list[Device]:
        """The devices that claims hold exclusively, as they were when they were allocated. Records of an earlier boot
        are left out: their devices are on the node, and may have changed."""
        records = [record for record in self._ledger.records() if record.boot == self._ledger.boot]
        return [device.known for record in records for device in record.held if device.share is None]

    def health(self) -> list[DeviceHealth]:
        """The health of all devices; for devices in pods, the result of the last `check_pods`."""
        records = self._ledger.store.all()[0]
        return health.devices(self._ledger.node, self._inventory.publication, records, self._ledger.problems)

    def check_pods(self) -> bool:
        """Check the devices in pods, and report changes in the claims' status. Returns whether there were any."""
        changed = False
        for record in self._ledger.store.all()[0]:
            if record.phase != ATTACHED:
                continue
            with logs.context(claim=record.uid):
                try:
                    changed |= self._check(record)
                except Busy:
                    pass  # an operation on the claim is running
                except Exception:
                    log.exception("the devices in the pod could not be checked")  # continue with other pods
                    if self._metrics:
                        self._metrics.error("health")
        return changed

    def _check(self, record: Record) -> bool:
        """Check a claim's devices. Returns whether their health has changed. Raises Busy."""
        if self._changed_health(record) is None:
            return False
        with self._ledger.lock_claim_if_free(record.uid):
            current = self._ledger.load(record.uid)
            problems = self._changed_health(current) if current and current.phase == ATTACHED else None
            if current is None or problems is None:
                return False
            previous = self._ledger.problems.get(current.uid, {})
            self._ledger.problems[current.uid] = problems
            self._ledger.put_status(current)
            _log_changes(current, previous, problems)
            return True

    def _changed_health(self, record: Record) -> dict[DeviceKey, HealthProblem] | None:
        """The problems of a claim's devices in its pod; None if they have not changed."""
        previous = self._ledger.problems.get(record.uid, {})
        problems = health.in_pod(record, self._ledger.paths.pin(record.uid), previous)
        return problems if problems != previous else None

    def retry_unclean(self) -> bool:
        """Try again to restore the devices that are not in their original state. Returns whether any was restored."""
        restored = False
        for name, entry in self._ledger.unclean.all().items():
            try:
                with self._ledger.lock_device_if_free(entry.lock):
                    if self._may_affect_pod(entry):
                        continue
                    siblings = self._ledger.siblings(entry.known) if entry.known and entry.config else None
                    if self._ledger.unclean.retry(entry, siblings):
                        restored = True
                        self._errors.clear(name)
            except Busy:
                pass  # an operation has the device
            except DriverError as error:
                message = f"{name} is still withheld from pods: {error.message}"
                self._errors.report(name, logging.ERROR, message)
        return restored

    def _may_affect_pod(self, entry: UncleanDevice) -> bool:
        """Whether restoring a device could affect a pod that has the device, a share of it or one of its VFs. If only
        a child of a device must be removed (`entry.config`), pods may have other children of the device. The caller
        holds the device's lock."""
        moved = [record for record in self._ledger.store.all()[0] if record.phase != PREPARED]
        affected = [
            device for record in moved for device in record.held if base_name(entry.device) in device.withheld_with
        ]
        return any(not entry.config or "child" not in device.config for device in affected)


def _log_changes(
    record: Record, previous: t.Mapping[DeviceKey, HealthProblem], current: t.Mapping[DeviceKey, HealthProblem]
) -> None:
    for key, problem in current.items():
        if previous.get(key) != problem:
            text = problem.message
            log.warning("%s in pod %s is unhealthy: %s", device_text(key), record.pod, text, extra={"device": key[0]})
    for key in previous.keys() - current.keys():
        log.info("%s in pod %s is healthy again", device_text(key), record.pod, extra={"device": key[0]})
