# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that claims hold and their health, and those whose original state could not be restored."""

from __future__ import annotations

import contextlib
import logging
import typing as t

from ..base import logs
from ..base.calls import DeviceHealth
from ..base.errors import Busy, KernelError
from ..base.metrics import Metrics
from ..publish.device import Device
from . import health
from .claim_status import HealthProblem
from .ledger import Ledger
from .protocols import Inventory
from .records import ATTACHED, PREPARED, DeviceKey, Record

log = logging.getLogger(__name__)


class Devices:
    """The devices of all claims. May be used from any thread."""

    def __init__(self, ledger: Ledger, inventory: Inventory, metrics: Metrics | None) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._metrics = metrics
        #: Errors of attempts that are repeated.
        self._errors = logs.Conditions(log)

    def held(self) -> list[Device]:
        """The devices that claims hold exclusively, as they were at allocation. Those of an earlier boot are on the
        node again, and may be different now."""
        records = [record for record in self._ledger.records() if record.boot == self._ledger.boot]
        return [device.known for record in records for device in record.held if device.share is None]

    def health(self) -> list[DeviceHealth]:
        """The health of all devices; for devices in pods, the result of the last `check_pods`."""
        records = self._ledger.store.all()[0]
        return health.devices(self._ledger.node, self._inventory.publication, records, self._ledger.problems)

    def check_pods(self) -> bool:
        """Check the devices in pods, and report in claims' status what has changed. Returns whether anything has."""
        changed = False
        for record in self._ledger.store.all()[0]:
            if record.phase != ATTACHED:
                continue
            with logs.context(claim=record.uid):
                try:
                    changed |= self._check(record)
                except Busy:
                    pass  # it may be about to be detached
                except Exception:
                    log.exception("the devices in the pod could not be checked")  # continue with other pods
                    if self._metrics:
                        self._metrics.error("health")
        return changed

    def _check(self, record: Record) -> bool:
        """Whether the health of a claim's devices has changed."""
        if self._changed_health(record) is None:
            return False
        with self._ledger.claim_if_free(record.uid):
            again = self._ledger.load(record.uid)
            changed = self._changed_health(again) if again and again.phase == ATTACHED else None
            if again is None or changed is None:
                return False
            known = self._ledger.problems.get(again.uid, {})
            self._ledger.problems[again.uid] = changed
            self._ledger.put_status(again)
            _log_changes(again, known, changed)
            return True

    def _changed_health(self, record: Record) -> dict[DeviceKey, HealthProblem] | None:
        """The problems of a claim's devices in its pod; None if they have not changed."""
        known = self._ledger.problems.get(record.uid, {})
        found = health.in_pod(record, self._ledger.paths.pin(record.uid), known)
        return found if found != known else None

    def retry_unclean(self) -> bool:
        """Try again to restore the devices whose original state could not be restored. Returns whether one was."""
        changed = False
        for name, entry in self._ledger.unclean.all().items():
            with contextlib.suppress(Busy):
                try:
                    with self._ledger.device_if_free(entry.lock):
                        if self._may_be_in_pod(name) and not entry.config:
                            continue  # an entry with `config` is for a parent: claims may have other children of it
                        siblings = self._ledger.siblings(entry.known) if entry.known and entry.config else None
                        changed |= self._ledger.unclean.retry(entry, siblings)
                except KernelError as error:
                    message = f"the original state of {name} could still not be restored: {error.message}"
                    self._errors.report(name, logging.ERROR, message)
        return changed

    def _may_be_in_pod(self, name: str) -> bool:
        """Whether a device may be in a pod. The caller holds the device's lock."""
        given = [record for record in self._ledger.store.all()[0] if record.phase != PREPARED]
        return any(device.own_name == name for record in given for device in record.held)


def _log_changes(
    record: Record, known: t.Mapping[DeviceKey, HealthProblem], changed: t.Mapping[DeviceKey, HealthProblem]
) -> None:
    for key, problem in changed.items():
        if known.get(key) != problem:
            text = problem.message
            log.warning("%s in pod %s is unhealthy: %s", _device_text(key), record.pod, text, extra={"device": key[0]})
    for key in known.keys() - changed.keys():
        log.info("%s in pod %s is healthy again", _device_text(key), record.pod, extra={"device": key[0]})


def _device_text(key: DeviceKey) -> str:
    device, share = key
    return f"share {share} of {device}" if share else device
