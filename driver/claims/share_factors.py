# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds the claims that a changed factor of a NIC affects. Each change is reported once, even if the driver
restarts."""

from __future__ import annotations

import json
import logging
import typing as t
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from ..base import files
from ..topology.publish_shares import factor_text, quantity
from .share_state import HeldShare, SharedNic

log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20


def change(nic: SharedNic, one: HeldShare, before: Fraction) -> str:
    """A sentence about what changed for a share of a NIC whose factor was `before`; empty if nothing."""
    now, place = nic.divided.factor, nic.shares.index(one)
    earlier = replace(nic.divided, factor=before).guarantees([other.share for other in nic.shares])[place]
    if one.guaranteed == earlier:
        return ""
    return (
        f"{nic.name} is promised {factor_text(now)} times its bandwidth from now on, before {factor_text(before)}: "
        f"the share of request {one.device.request} is guaranteed {quantity(one.guaranteed)}bit/s, "
        f"before {quantity(earlier)}bit/s"
    )


def debt(nic: SharedNic) -> str:
    """A sentence about the bandwidth that is promised beyond a NIC's capacity; empty if there is none."""
    if not nic.totals.debt:
        return ""
    times, names = factor_text(nic.divided.factor), ", ".join(_names(nic.shares))
    return (
        f"shares of {nic.name} are promised {quantity(nic.totals.debt)}bit/s more than {times} times its bandwidth: "
        f"{names}; they stay, and no new share is allocated until others end"
    )


def _names(shares: t.Iterable[HeldShare]) -> list[str]:
    return sorted({str(one.record.claim) for one in shares})


class ReportedFactors:
    """The factors in force at the last report, by share ID, in a file that does not survive a reboot, like the
    shares."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def changed(self, nics: t.Sequence[SharedNic]) -> list[tuple[SharedNic, HeldShare, Fraction]]:
        """The shares whose NICs have another factor than at the last call, or at their allocation if that was later,
        each with the earlier factor. Never raises: a file that cannot be read or written only costs a report."""
        known, shares = self._read(), [(nic, one) for nic in nics for one in nic.shares]
        now = {one.device.share_id: factor_text(nic.divided.factor) for nic, one in shares}
        if now != known:
            self._write(now)
        before = [Fraction(known.get(one.device.share_id, one.share.factor)) for _nic, one in shares]
        return [(nic, one, earlier) for (nic, one), earlier in zip(shares, before) if earlier != nic.divided.factor]

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes()[:_MOST_BYTES])
            return {str(name): factor_text(Fraction(str(factor))) for name, factor in found.items()}
        except (OSError, ValueError, AttributeError, ZeroDivisionError):
            return {}

    def _write(self, now: t.Mapping[str, str]) -> None:
        try:
            if now:
                files.replace(self._path, json.dumps(now).encode(), 0o644, files.PowerCut.MAY_EMPTY)
            else:
                files.remove(self._path)
        except OSError as error:
            log.warning("could not write %s, so the next start may not report a changed factor: %s", self._path, error)
