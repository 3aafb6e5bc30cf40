# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shares that claims have of NICs, and the kernel's settings that keep them.

The records are the source of truth: what is in force follows from those of claims that are attached, and is made so
again after each attach and detach, after each publication, and after a start.
"""

from __future__ import annotations

import functools
import logging
import typing as t
from dataclasses import dataclass

from ..base import logs
from ..base.errors import Busy, DriverError
from ..dra.config import share_rates
from ..dra.config.share_rates import InForce, Totals
from ..kernel import htb
from ..shares import by_class, by_vf
from ..shares.share import Divided, ShareRecord
from ..topology.publish_shares import MACVLAN, HeldShares, share_name
from . import share_plan
from .ledger import Ledger
from .needs import Inventory
from .records import ATTACHED, ATTACHING, DeviceRecord, Record

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldShare:
    """One share that a claim has: its claim's record, and what is in force for it, None while it is not attached."""

    record: Record
    device: DeviceRecord
    share: ShareRecord
    force: InForce | None = None


@dataclass(frozen=True)
class SharedNic:
    """A NIC that claims have shares of: its name, what is divided, its shares, and their sums."""

    name: str
    divided: Divided
    shares: tuple[HeldShare, ...]
    totals: Totals


def is_macvlan(device: DeviceRecord) -> bool:
    """Whether a claim has a macvlan child as its share of this device."""
    return device.share is not None and device.share.mechanism == MACVLAN


class Shares:
    """The shares of all claims of the node. May be used from any thread."""

    def __init__(self, ledger: Ledger, inventory: Inventory) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._errors = logs.Conditions(log)

    # what claims have

    def held(self) -> dict[str, HeldShares]:
        """The shares for the next publication, by the names of the devices for shares."""
        found: dict[str, HeldShares] = {}
        for name, held in self._by_nic().items():
            vfs = frozenset(one.device.known.address or "" for one in held if one.share.mechanism != MACVLAN)
            less = functools.partial(share_rates.uncharged, shares=[one.share.asks for one in held])
            found[share_name(name)] = HeldShares(held[-1].device.known.device, vfs, less)
        return found

    def nics(self) -> list[SharedNic]:
        """The NICs that claims have shares of, with what is in force for those that are attached."""
        found = []
        for name, held in sorted(self._by_nic().items()):
            divided = self._divided(name, held)
            active = [one for one in held if self._active(one.record)]
            forces = divided.in_force([one.share for one in active])
            with_force = [HeldShare(one.record, one.device, one.share, force) for one, force in zip(active, forces)]
            waiting = [one for one in held if not self._active(one.record)]
            totals = divided.totals([one.share for one in held])
            found.append(SharedNic(name, divided, (*with_force, *waiting), totals))
        return found

    def _by_nic(self, without: str = "") -> dict[str, list[HeldShare]]:
        """All shares of the node by the names of their NICs, except those of one claim."""
        found: dict[str, list[HeldShare]] = {}
        for record in self._ledger.records():
            for device in record.held:
                if device.share and record.uid != without:
                    found.setdefault(device.share.of, []).append(HeldShare(record, device, device.share))
        return found

    def _active(self, record: Record) -> bool:
        return record.boot == self._ledger.boot and record.phase in (ATTACHING, ATTACHED)

    def _divided(self, name: str, held: t.Sequence[HeldShare]) -> Divided:
        offer = self._inventory.offer(share_name(name))
        return share_plan.divided(offer) if offer else Divided.recorded([one.share for one in held])

    # what is in force; callers hold the NIC's lock

    def apply(self, name: str, ending: DeviceRecord | None = None, uid: str = "") -> None:
        """Make what is in force for a NIC follow from the records. `ending` is a share of the claim `uid` that ends,
        and nothing of it stays. Raises DriverError."""
        held = [one for one in self._by_nic(without=uid if ending else "").get(name, []) if self._active(one.record)]
        shares = [one.share for one in held]
        known = shares or [ending.share for ending in (ending,) if ending and ending.share]
        if not known:
            return
        divided = self._divided(name, held) if held else Divided.recorded(known)
        forces = list(zip(held, divided.in_force(shares)))
        classes = [(one, force) for one, force in forces if one.share.mechanism == MACVLAN]
        parents = [one.device for one, _force in classes] + [one for one in (ending,) if one and is_macvlan(one)]
        if parents:
            wanted = {one.share.minor: htb.Class(one.share.mac, force.rate, force.ceiling) for one, force in classes}
            by_class.set_classes(parents[0].known.identity, divided.physical, wanted)
        rates = {str(one.device.known.address): force for one, force in forces if one.share.mechanism != MACVLAN}
        if rates:
            by_vf.set_rates(rates)

    # again

    def refresh(self) -> bool:
        """Make what is in force follow from records and settings, for all NICs. Returns False if that failed for one,
        which is logged: call again."""
        settled = True
        for name, held in self._by_nic().items():
            settled &= self._tried(name, functools.partial(self._refresh, name, held[0].device.lock))
        return settled

    def _refresh(self, name: str, lock: str) -> None:
        with self._ledger.locks.hold(f"device-{lock}"):
            self.apply(name)

    def recover(self) -> bool:
        """`refresh`, and remove classes of NICs that no attached claim has a share of."""
        settled = self.refresh()
        return self._tried("classes", self._sweep) and settled

    def _sweep(self) -> None:
        for link in by_class.divided():
            kept = {
                one.known.interface
                for record in self._ledger.records()
                if self._active(record)
                for one in record.held
                if is_macvlan(one)
            }
            if link.name not in kept and not kept & set(link.altnames):
                log.warning("removing the classes of %s, of which no claim has a share", link.name)
                by_class.restore(link)

    def _tried(self, key: str, function: t.Callable[[], None]) -> bool:
        try:
            function()
        except Busy:
            return False
        except DriverError as error:
            self._errors.report(key, logging.ERROR, f"the shares of {key} could not be set: {error.message}")
            return False
        self._errors.clear(key)
        return True
