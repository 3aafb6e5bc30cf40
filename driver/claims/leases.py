# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The DHCP leases of devices in pods: renewed while the pod runs, and recorded when they change."""

from __future__ import annotations

import logging
import threading
import typing as t

from ..base import logs
from ..base.errors import Busy, DriverError
from ..dhcp.lease import Lease
from .ledger import Ledger
from .records import ATTACHED, DeviceRecord, Record

if t.TYPE_CHECKING:
    from ..dhcp.lease_renewer import LeaseRenewer

log = logging.getLogger(__name__)


class Leases:
    """Starts and stops the renewal of leases."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._renewer: LeaseRenewer | None = None
        #: Errors of leases that could not be recorded, by key.
        self._errors = logs.Conditions(log)
        self._creating = threading.Lock()

    def close(self) -> None:
        """End the renewal of all leases, without releasing them."""
        if self._renewer:
            self._renewer.close()

    def keep(self, record: Record) -> None:
        """Start to renew the leases of an attached claim."""
        if record.phase != ATTACHED:
            return
        for device in record.held:
            for lease in device.leases:
                key = _key(record, device, lease)
                self._started_renewer().start(key, self._ledger.paths.pin(record.uid), lease, device.config)

    def drop(self, record: Record) -> None:
        """End the renewal of a claim's leases, release them and remove them from the record. Waits for a running
        renewal, which may wait for its server, so the caller should not hold the devices' locks."""
        for device in record.held:
            for lease in device.leases:
                renewer = self._started_renewer()
                if not renewer.stop(_key(record, device, lease)):  # for example after a failed attach
                    renewer.release(self._ledger.paths.pin(record.uid), lease)
            device.leases = []

    def _started_renewer(self) -> LeaseRenewer:
        from ..dhcp.lease_renewer import LeaseRenewer  # imported late: few claims need it

        with self._creating:
            if self._renewer is None:
                self._renewer = LeaseRenewer(self._on_renewed)
            return self._renewer

    def _on_renewed(self, key: str, lease: Lease) -> None:
        """Record a renewed lease, and its address if that has changed. Called in a thread of the renewer, which tries
        again after Busy. Does not wait for the claim's lock, because its holder may wait for this thread."""
        uid, name, share, family = key.split(" ")
        try:
            with self._ledger.lock_claim_if_free(uid):
                record = self._ledger.load(uid)
                if record is None or record.phase != ATTACHED:
                    return
                for device in record.held:
                    if device.key == (name, share):
                        replace(device, family, lease)
                self._ledger.save(record, ATTACHED)
                self._ledger.claim_files.write_metadata(record)
                self._ledger.put_status(record)
            self._errors.clear(key)
        except Busy:
            raise
        except DriverError as error:  # for example a full disk
            message = f"could not record the renewed {family} lease of {name}, trying again: {error.message}"
            self._errors.report(key, logging.ERROR, message)
            raise Busy(error.message) from error


def _key(record: Record, device: DeviceRecord, lease: Lease) -> str:
    return f"{record.uid} {device.device} {device.share_id} {lease['family']}"


def replace(device: DeviceRecord, family: str, lease: Lease) -> None:
    """Replace a device's lease of an address family, and its address in the network data. A lost lease has none."""
    before = {old["address"] for old in device.leases if old["family"] == family}
    after = [] if lease.get("lost") else [lease["address"]]
    device.leases = [*(old for old in device.leases if old["family"] != family), lease]
    if device.network:
        ips = device.network["ips"]
        if set(after) <= set(ips) and not (before - set(after)) & set(ips):
            return  # the same address keeps its place
        device.network["ips"] = [*(ip for ip in ips if ip not in before and ip not in after), *after]
