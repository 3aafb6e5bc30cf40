# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Computes from the records which shares claims have of each NIC: the promised, guaranteed and current rates."""

from __future__ import annotations

import functools
import typing as t
from dataclasses import dataclass, replace

from ..dra.config import share_rates
from ..dra.config.share_rates import EffectiveRate, Totals
from ..publish.offer import Offer
from ..shares import by_class, by_vf
from ..shares.share import DividedBandwidth, ShareRecord
from ..topology.publish_shares import MACVLAN, HeldShares, share_name
from . import share_plan
from .records import ATTACHED, ATTACHING, DeviceRecord, Record


@dataclass(frozen=True)
class HeldShare:
    """One share that a claim has: the claim's record, the share's device and guarantee in bit/s, and the current
    rates (None while the share is not attached)."""

    record: Record
    device: DeviceRecord
    share: ShareRecord
    guaranteed: int = 0
    current: EffectiveRate | None = None


@dataclass(frozen=True)
class SharedNic:
    """A NIC of which claims have shares: its name, the divided bandwidth, the shares, and their totals."""

    name: str
    divided: DividedBandwidth
    shares: tuple[HeldShare, ...]
    totals: Totals

    @property
    def capacity(self) -> int:
        """The bit/s that may be promised to the shares."""
        return int(self.divided.physical * self.divided.factor)

    @property
    def guaranteed(self) -> int:
        """The guarantees of all shares together, in bit/s."""
        return sum(share.guaranteed for share in self.shares)


class Offers(t.Protocol):
    """The part of an inventory that is used here."""

    def offer(self, name: str) -> Offer | None: ...


def is_macvlan(device: DeviceRecord) -> bool:
    """Whether the claim's share of this device is a macvlan interface."""
    return device.share is not None and device.share.mechanism == MACVLAN


def is_active(record: Record, boot: str) -> bool:
    """Whether the shares of a claim are in force: its devices are in the pod, or are about to be."""
    return record.boot == boot and record.phase in (ATTACHING, ATTACHED)


def by_nic(records: t.Iterable[Record], without: str = "") -> dict[str, list[HeldShare]]:
    """All shares of the node by the names of their NICs, except those of the claim with the UID `without`."""
    shares: dict[str, list[HeldShare]] = {}
    for record in records:
        for device in record.held:
            if device.share and record.uid != without:
                shares.setdefault(device.share.of, []).append(HeldShare(record, device, device.share))
    return shares


def held(records: t.Iterable[Record]) -> dict[str, HeldShares]:
    """The shares for the next publication, by the names of the devices for shares."""
    held_shares: dict[str, HeldShares] = {}
    for name, shares in by_nic(records).items():
        vfs = frozenset(share.device.known.address or "" for share in shares if share.share.mechanism != MACVLAN)
        capacity_deficit = functools.partial(
            share_rates.capacity_deficit, shares=[share.share.requested for share in shares]
        )
        held_shares[share_name(name)] = HeldShares(shares[-1].device.known.device, vfs, capacity_deficit)
    return held_shares


def divided(name: str, shares: t.Sequence[ShareRecord], offers: Offers) -> DividedBandwidth:
    """The divided bandwidth of a NIC according to the settings; if these do not divide the NIC now, as it was when its
    shares were allocated."""
    offer = offers.offer(share_name(name))
    return share_plan.divided(offer) if offer else DividedBandwidth.recorded(shares)


def nic_of(name: str, shares: t.Sequence[HeldShare], boot: str, offers: Offers) -> SharedNic:
    """A NIC with its shares, of which there must be at least one."""
    all_shares = [share.share for share in shares]
    bandwidth = divided(name, all_shares, offers)
    guaranteed = [replace(share, guaranteed=rate) for share, rate in zip(shares, bandwidth.guarantees(all_shares))]
    active = [share for share in guaranteed if is_active(share.record, boot)]
    current_rates = bandwidth.current_rates([share.share for share in active])
    with_rates = [replace(share, current=rate) for share, rate in zip(active, current_rates)]
    inactive = [share for share in guaranteed if not is_active(share.record, boot)]
    return SharedNic(name, bandwidth, (*with_rates, *inactive), bandwidth.totals(all_shares))


def nics(records: t.Iterable[Record], boot: str, offers: Offers) -> list[SharedNic]:
    """The NICs with shares, and the rates in force of the attached shares."""
    return [nic_of(name, shares, boot, offers) for name, shares in sorted(by_nic(records).items())]


def as_reported(nic: SharedNic) -> SharedNic:
    """The NIC with the rates of its VFs that the kernel reports. They differ from the computed ones for a card without
    minimum rates, which does not lend idle capacity. Raises KernelError."""
    addresses = {share.device.share_id: str(share.device.known.address) for share in nic.shares if _by_vf(share)}
    enforced = by_vf.current_rates(addresses.values())
    current_rates = {share_id: enforced.get(address) for share_id, address in addresses.items()}
    return replace(
        nic,
        shares=tuple(
            replace(share, current=current_rates.get(share.device.share_id) or share.current) for share in nic.shares
        ),
    )


def _by_vf(share: HeldShare) -> bool:
    """Whether a pod has this share now, as a VF."""
    return share.current is not None and share.share.mechanism != MACVLAN


def amounts(nic: SharedNic, share: HeldShare) -> dict[str, int]:
    """The current amounts of a share in bit/s, by name; without `in_force` while no pod has the share."""
    rates = {"asked": share.share.asked, "guaranteed": share.guaranteed}
    if share.current:
        rates["in_force"] = share.current.rate
    ceiling = share.share.requested.burst or nic.divided.ceiling
    return {**rates, "ceiling": share.current.ceiling if share.current else min(ceiling, nic.divided.ceiling)}


def sent(nic: SharedNic) -> dict[str, int]:
    """The bytes that the shares of a NIC have sent, by their share IDs, as far as the kernel counts them. Raises
    KernelError."""
    active = [share for share in nic.shares if share.current is not None]
    children = [share for share in active if share.share.mechanism == MACVLAN]
    counted = by_class.sent(children[0].device.known.identity) if children else {}
    sent_bytes = {
        share.device.share_id: counted[share.share.minor] for share in children if share.share.minor in counted
    }
    for share in filter(_by_vf, active):
        bytes_sent = by_vf.sent(str(share.device.known.address))
        if bytes_sent is not None:
            sent_bytes[share.device.share_id] = bytes_sent
    return sent_bytes
