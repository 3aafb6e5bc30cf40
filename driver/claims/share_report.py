# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report about shares of NICs for the node's administrator: promised, guaranteed and measured rates, and
those in force."""

from __future__ import annotations

import time
import typing as t

from ..base.errors import DriverError
from ..topology.publish_shares import factor_text, quantity
from . import share_state
from .records import Record
from .share_state import HeldShare, SharedNic

#: Seconds for which the traffic of shares is measured.
MEASURE_SECONDS = 0.5


class ShareReport(t.TypedDict):
    """A share; rates in bit/s. `inForce` is None unless a pod has the share or is about to get it, `used` also if the
    kernel does not count its bytes or its counters cannot be read."""

    claim: str
    request: str
    shareID: str
    hard: bool
    asked: int
    guaranteed: int
    inForce: int | None
    ceiling: int
    used: int | None


class NicReport(t.TypedDict):
    """A NIC of which claims have shares; rates in bit/s."""

    nic: str
    factor: str
    physical: int
    capacity: int
    promised: int
    guaranteed: int
    inForce: int
    debt: int
    shares: list[ShareReport]


def shares(records: t.Sequence[Record], boot: str, offers: share_state.Offers) -> list[NicReport]:
    """The NICs of which claims have shares. Takes MEASURE_SECONDS if there are any."""
    nics = [_reported(nic) for nic in share_state.nics(records, boot, offers)]
    before = [(time.monotonic(), _sent(nic)) for nic in nics]  # reading the counters of many NICs takes a while
    if nics:
        time.sleep(MEASURE_SECONDS)
    reports = []
    for nic, (start, sent_before) in zip(nics, before):
        seconds, sent = time.monotonic() - start, _sent(nic)
        # a counter that was reset meanwhile is lower
        known = [name for name in sent if name in sent_before and sent_before[name] <= sent[name]]
        reports.append(_nic(nic, {name: (sent[name] - sent_before[name]) * 8 / seconds for name in known}))
    return reports


def lines(reports: t.Sequence[NicReport]) -> t.Iterator[str]:
    """The reports as lines of text."""
    for nic in reports:
        debt = f", debt {quantity(nic['debt'])}" if nic["debt"] else ""
        yield (
            f"shares of {nic['nic']}: promised {quantity(nic['promised'])} of {quantity(nic['capacity'])} "
            f"({quantity(nic['physical'])} times {nic['factor']}), guaranteed {quantity(nic['guaranteed'])}, "
            f"in force {quantity(nic['inForce'])}{debt}"
        )
        for share in nic["shares"]:
            rate = f"in force {quantity(share['inForce'])}" if share["inForce"] is not None else "not attached"
            used = f", uses {_rounded(share['used'])}" if share["used"] is not None else ""
            kind = "hard" if share["hard"] else "soft"
            yield (
                f"  {share['claim']}  {share['request']}  {quantity(share['asked'])} {kind}: guaranteed "
                f"{quantity(share['guaranteed'])}, {rate}, ceiling {quantity(share['ceiling'])}{used}"
            )


def _reported(nic: SharedNic) -> SharedNic:
    try:
        return share_state.as_reported(nic)
    except DriverError:
        return nic


def _sent(nic: SharedNic) -> dict[str, int]:
    try:
        return share_state.sent(nic)
    except DriverError:
        return {}


def _nic(nic: SharedNic, used: t.Mapping[str, float]) -> NicReport:
    return {
        "nic": nic.name,
        "factor": factor_text(nic.divided.factor),
        "physical": nic.divided.physical,
        "capacity": nic.capacity,
        "promised": nic.totals.promised,
        "guaranteed": nic.guaranteed,
        "inForce": sum(share.current.rate for share in nic.shares if share.current),
        "debt": nic.totals.debt,
        "shares": [_share(nic, share, used) for share in nic.shares],
    }


def _share(nic: SharedNic, share: HeldShare, used: t.Mapping[str, float]) -> ShareReport:
    amounts = share_state.amounts(nic, share)
    rate = used.get(share.device.share_id)
    return {
        "claim": str(share.record.claim),
        "request": share.device.request,
        "shareID": share.device.share_id,
        "hard": share.share.hard,
        "asked": amounts["asked"],
        "guaranteed": amounts["guaranteed"],
        "inForce": amounts.get("in_force"),
        "ceiling": amounts["ceiling"],
        "used": None if rate is None else round(rate),
    }


def _rounded(rate: int | None) -> str:
    """A measured rate as text with three significant digits and a unit prefix."""
    number = float(f"{float(rate or 0):.3g}")  # rounded first: 999.7 is 1k
    for suffix in ("", "k", "M", "G"):
        if number < 1000 or suffix == "G":
            break
        number /= 1000
    return f"{number:g}{suffix}"
