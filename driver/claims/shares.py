# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shares of NICs that claims have, and the kernel's settings that enforce them.

The records are the source of truth: the rates in force are computed from the records of attached claims. They are set
again at each attach and detach, after each publication, and after a start.
"""

from __future__ import annotations

import functools
import logging
import threading
import typing as t

from ..api import events
from ..base import logs
from ..base.errors import Busy, DriverError
from ..base.objects import Object
from ..dra.config.share_rates import EffectiveRate
from ..kernel import htb
from ..shares import by_class, by_vf
from ..shares.share import DividedBandwidth
from ..topology.publish_shares import MACVLAN, HeldShares
from . import share_factors, share_state
from .ledger import Ledger
from .protocols import Inventory
from .records import ATTACHED, DeviceRecord, Record
from .share_state import HeldShare, SharedNic, is_macvlan

log = logging.getLogger(__name__)


class Shares:
    """The shares of all claims of the node. May be used from any thread."""

    def __init__(self, ledger: Ledger, inventory: Inventory) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._factors = share_factors.ReportedFactors(ledger.paths.share_factors)
        self._errors = logs.Conditions(log)
        self._refreshing = threading.Lock()
        #: Whether the last `refresh` has set the rates of all shares, and its errors other than Busy.
        self.settled = True
        self.problems: tuple[str, ...] = ()
        #: The data about shares for the claims' status, by claim UID and share ID.
        self._shown: dict[str, dict[str, Object]] = {}
        ledger.shown_shares = lambda uid: dict(self._shown.get(uid, {}))

    # what claims have

    def held(self) -> dict[str, HeldShares]:
        """The shares for the next publication, by the names of the devices for shares."""
        return share_state.held(self._ledger.records())

    def nics(self) -> list[SharedNic]:
        """The NICs with shares, and the rates in force of the attached shares."""
        return share_state.nics(self._ledger.records(), self._ledger.boot, self._inventory)

    def _by_nic(self, without: str = "") -> dict[str, list[HeldShare]]:
        return share_state.by_nic(self._ledger.records(), without)

    # the rates in force; callers hold the NIC's lock

    def apply(self, name: str, ending: DeviceRecord | None = None, uid: str = "") -> None:
        """Set the rates of a NIC's shares from the records. `ending` is a share of the claim `uid` that ends; its
        traffic class is removed. Raises DriverError."""
        all_shares = self._by_nic(without=uid if ending else "").get(name, [])
        active = [share for share in all_shares if share_state.is_active(share.record, self._ledger.boot)]
        shares = [share.share for share in active]
        known = shares or ([ending.share] if ending and ending.share else [])
        if not known:
            return
        divided = share_state.divided(name, shares, self._inventory) if active else DividedBandwidth.recorded(known)
        current_rates = list(zip(active, divided.current_rates(shares)))
        classes = [(share, rate) for share, rate in current_rates if share.share.mechanism == MACVLAN]
        parents = [share.device for share, _rate in classes] + ([ending] if ending and is_macvlan(ending) else [])
        if parents:
            wanted = {share.share.minor: htb.Class(share.share.mac, rate.rate, rate.ceiling) for share, rate in classes}
            by_class.set_classes(parents[0].known.identity, divided.physical, wanted)
        rates = {
            str(share.device.known.address): rate for share, rate in current_rates if share.share.mechanism != MACVLAN
        }
        if ending:
            self._shown.pop(uid, None)
        enforced = by_vf.set_rates(rates)
        current_rates = [(share, enforced.get(str(share.device.known.address), rate)) for share, rate in current_rates]
        promised = [share.share for share in all_shares]
        guaranteed = {share.device.share_id: rate for share, rate in zip(all_shares, divided.guarantees(promised))}
        self._show(divided, current_rates, guaranteed, divided.totals(promised).debt)

    @staticmethod
    def release(device: DeviceRecord) -> None:
        """Remove the rates of a share that ends, before its interface is restored and compared: the interface of the
        physical function may report rates that were set through devlink. Raises KernelError."""
        if device.share and not is_macvlan(device):
            by_vf.clear(str(device.known.address))

    def _show(
        self,
        divided: DividedBandwidth,
        current_rates: t.Sequence[tuple[HeldShare, EffectiveRate]],
        guaranteed: t.Mapping[str, int],
        debt: int,
    ) -> None:
        """Report changed rates in the status of the claims. `guaranteed` are the guarantees by share ID, `debt` is the
        bandwidth that is promised beyond the NIC's capacity; all in bit/s."""
        changed = {}
        for share, rate in current_rates:
            name, of_claim = share.device.share_id, self._shown.setdefault(share.record.uid, {})
            shown = share.share.status_data(divided, guaranteed[name], rate, debt)
            if of_claim.get(name) != shown:
                of_claim[name] = shown
                changed[share.record.uid] = share.record
        for record in changed.values():
            if record.phase == ATTACHED:  # otherwise attach reports the rates
                self._ledger.put_status(record)

    # after publications and starts

    def refresh(self) -> bool:
        """Set the rates of all NICs' shares from records and settings. Returns False if that failed for a NIC, which is
        logged; then call this again. Sets `settled` and `problems`."""
        with self._refreshing:
            problems: list[str] = []
            shares: dict[str, list[HeldShare]] = {}
            settled, problem = self._try("records", "shares could not be set", lambda: shares.update(self._by_nic()))
            problems += [problem] if problem else []
            for name, held in shares.items():
                succeeded, problem = self._try(
                    name,
                    f"the shares of {name} could not be set",
                    functools.partial(self._refresh, name, held[0].device.lock),
                )
                settled &= succeeded
                problems += [problem] if problem else []
            self.settled, self.problems = settled, tuple(problems)
        reported, _problem = self._try("factors", "changed factors could not be reported", self._report_factors)
        return settled and reported

    def _report_factors(self) -> None:
        """Report changed factors to the claims that they affect, and log the debt that a lowered factor leaves."""
        nics = self.nics()
        for nic, share, old_factor in self._factors.changed(nics):
            if text := share_factors.change_text(nic, share, old_factor):
                log.info("%s", text, extra={"claim": share.record.uid, "claim_name": str(share.record.claim)})
                self._ledger.event(events.claim(share.record.claim), events.SHARE, ShareChanged(text))
        for nic in nics:
            if debt := share_factors.debt_text(nic):
                self._errors.report(f"debt of {nic.name}", logging.WARNING, debt)
            else:
                self._errors.clear(f"debt of {nic.name}")

    def _refresh(self, name: str, lock: str) -> None:
        with self._ledger.locks.hold(f"device-{lock}"):
            self.apply(name)

    def recover(self) -> bool:
        """Call `refresh`, and remove the traffic classes of NICs of which no attached claim has a share. Returns False
        if that removal failed, which is logged; then call this again. `settled` says whether the rates are set."""
        self.refresh()
        succeeded, _problem = self._try("classes", "classes without a claim could not be removed", self._sweep)
        return succeeded

    def _sweep(self) -> None:
        for link in by_class.divided():
            if any(self._is_active(record) for record, _device in self._children(link.index)):
                continue
            with self._ledger.lock_new_records():  # so that no claim gets a share of the NIC meanwhile
                locks = {device.lock for _record, device in self._children(link.index)}
                with self._ledger.locks.hold(*(f"device-{lock}" for lock in locks)):
                    if not any(self._is_active(record) for record, _device in self._children(link.index)):
                        log.warning("removing the classes of %s, of which no claim has a share", link.name)
                        by_class.restore(link)

    def _is_active(self, record: Record) -> bool:
        return share_state.is_active(record, self._ledger.boot)

    def _children(self, index: int) -> list[tuple[Record, DeviceRecord]]:
        """The macvlan shares of the NIC whose interface has this index now, and those of NICs that are not found: a
        renamed virtual interface could be the NIC of each of them. Raises KernelError."""
        records = self._ledger.records()
        children = [(record, device) for record in records for device in record.held if is_macvlan(device)]
        indexes = by_class.indexes({device.known.identity for _record, device in children})
        return [(record, device) for record, device in children if indexes.get(device.known.identity, index) == index]

    def _try(self, key: str, failure: str, function: t.Callable[[], None]) -> tuple[bool, str]:
        """Call a function. Returns whether it succeeded, and its error unless that is Busy. The error begins with
        `failure` and is logged."""
        try:
            function()
        except Busy:
            return False, ""
        except DriverError as error:
            problem = f"{failure}: {error.message}"
            self._errors.report(key, logging.ERROR, problem)
            return False, problem
        self._errors.clear(key)
        return True, ""


class ShareChanged(DriverError):
    """A changed setting of the node changes what a claim is guaranteed."""

    fix = "Hard shares, and shares of NICs with another factor, are not affected."
