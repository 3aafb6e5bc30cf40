# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recovery, at the start and regularly afterwards: finishes or undoes operations that were interrupted or have failed,
and unprepares claims that kubelet has forgotten."""

from __future__ import annotations

import functools
import logging
import typing as t

from ..base import logs
from ..base.errors import DriverError, Unreachable
from ..kernel import netns
from .leases import Leases
from .ledger import Ledger
from .plan import why_devices_lost
from .preparation import Preparation
from .protocols import Cluster
from .records import ATTACHED, ATTACHING, DETACHING, Record
from .shares import Shares
from .transfer import Transfer

log = logging.getLogger(__name__)


class Recovery:
    """Recovers the claims of this node. May run concurrently with any other operation."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        preparation: Preparation,
        transfer: Transfer,
        leases: Leases,
        shares: Shares,
    ) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._preparation = preparation
        self._transfer = transfer
        self._leases = leases
        self._shares = shares
        #: Errors of operations that are repeated.
        self._errors = logs.Conditions(log)

    def recover(self) -> bool:
        """Finish or undo operations that were interrupted or have failed, and remove files without a record. Does not
        contact the API server.

        Returns False if something could not be done now, which is logged; then call this again. The result does not
        include the rates of shares: `Shares.settled` says whether they are set.
        """
        ledger, settled = self._ledger, True
        for name, sweep in (
            ("records", ledger.store.sweep),
            ("records of unprepared claims", ledger.pending_status.sweep),
            ("locks", ledger.locks.sweep),
            ("addresses", ledger.sweep_addresses),
        ):
            settled &= self._succeeds(f"sweep the {name}", sweep)
        settled &= self._for_each("recover", ledger.store.uids, self._recover)
        settled &= self._shares.recover()
        settled &= self._for_each("remove files", self._without_record, self._remove_files)
        settled &= self._for_each("clear the status", ledger.pending_status.uids, self._clear_status)
        return settled

    def _without_record(self) -> list[str]:
        """The UIDs of claims that have files but no record."""
        return sorted(self._ledger.claim_files.claims() - set(self._ledger.store.uids()))

    def drop_lost_claims(self) -> bool:
        """Unprepare claims that were deleted, or whose allocation no longer contains their devices, and whose pods have
        ended.

        Kubelet unprepares such claims, unless it has forgotten them. Returns as `recover`. Stops at the first request
        that the API server does not answer.
        """
        try:
            settled = self._for_each("reconcile", self._ledger.store.uids, self._drop_if_lost)
        except Unreachable as error:
            message = f"could not determine which claims were deleted: {error.message}"
            self._errors.report(Unreachable, logging.WARNING, message)
            return False
        self._errors.clear(Unreachable)
        return settled

    def _for_each(
        self, action: str, claims: t.Callable[[], t.Sequence[str]], function: t.Callable[[str], None]
    ) -> bool:
        """Call a function with the UID of each claim. Returns and raises as `_succeeds`, for all claims and for listing
        them."""
        uids: list[str] = []
        settled = self._succeeds(f"{action}: list the claims", lambda: uids.extend(claims()))
        for uid in uids:
            with logs.context(claim=uid, operation=action):
                settled &= self._succeeds(f"{action}: {uid}", functools.partial(function, uid))
        return settled

    def _succeeds(self, key: str, function: t.Callable[[], None]) -> bool:
        """Call a function. Returns whether it succeeded; logs its errors, repeated ones with the same key only at level
        debug. Raises only Unreachable."""
        try:
            function()
        except Unreachable:
            raise
        except DriverError as error:
            self._errors.report(key, logging.ERROR, f"{error.message}; trying again")
            return False
        except OSError as error:
            message = f"could not read or write the driver's files: {error}; trying again"
            self._errors.report(key, logging.ERROR, message)
            return False
        except Exception:
            log.exception("unexpected error: this is a bug in the driver")
            return False
        self._errors.clear(key)
        return True

    def _recover(self, uid: str) -> None:
        with self._ledger.lock_claim(uid):
            record = self._ledger.load(uid)
            if record is None:
                return
            if record.phase in (ATTACHING, DETACHING):
                message = (
                    f"the claim is {record.phase}, and no operation on it runs: moving its devices back to the node"
                )
                self._errors.report(f"move back: {uid}", logging.INFO, message)
                with self._ledger.lock_devices(record):
                    self._transfer.to_node(record)
                self._errors.clear(f"move back: {uid}")
            self._ledger.claim_files.write(record)
            if record.phase == ATTACHED:
                self._ledger.claim_files.set_attached(uid, True)
            self._ledger.put_status(record)
            self._leases.keep(record)

    def _remove_files(self, uid: str) -> None:
        with self._ledger.lock_claim(uid):
            if self._ledger.store.load(uid) is None:  # otherwise another instance has just prepared it
                log.warning("removing the files of a claim without a record")
                self._ledger.claim_files.remove(uid)

    def _clear_status(self, uid: str) -> None:
        """Clear the status of a claim that was unprepared by a process that was killed before its status was
        cleared."""
        with self._ledger.lock_claim(uid):
            record = self._ledger.pending_status.load(uid)
            if record and self._ledger.store.load(uid) is None:
                self._ledger.clear_status(record.claim)
            elif record:
                self._ledger.pending_status.remove(uid)

    def _drop_if_lost(self, uid: str) -> None:
        with self._ledger.lock_claim(uid):
            record = self._ledger.load(uid)
            if record is None:
                return
            lost = why_devices_lost(self._cluster.claim(record.namespace, record.name), record)
            if lost and not self._in_use(record):
                log.warning("unpreparing the claim: %s, and no process runs in its pod's network namespace", lost)
                self._preparation.forget(uid, record)

    def _in_use(self, record: Record) -> bool:
        """Whether a process runs in the network namespace of the claim's pod."""
        pin = self._ledger.paths.pin(record.uid)
        return record.phase == ATTACHED and netns.alive(pin) and bool(netns.processes(pin))
