# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds the claims that are affected by a changed factor of a NIC. Each change is reported once, even if the driver
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

_MAX_FILE_BYTES = 1 << 20


def change_text(nic: SharedNic, share: HeldShare, old_factor: Fraction) -> str:
    """A sentence about what a changed factor of a NIC changes for a share; empty if its guarantee stays the same."""
    index = nic.shares.index(share)
    old_guarantee = replace(nic.divided, factor=old_factor).guarantees([held.share for held in nic.shares])[index]
    if share.guaranteed == old_guarantee:
        return ""
    factor = factor_text(nic.divided.factor)
    return (
        f"{nic.name} is now promised {factor} times its bandwidth instead of {factor_text(old_factor)} times: "
        f"the share of request {share.device.request} is guaranteed {quantity(share.guaranteed)}bit/s instead of "
        f"{quantity(old_guarantee)}bit/s"
    )


def debt_text(nic: SharedNic) -> str:
    """A sentence about the bandwidth that is promised beyond a NIC's capacity; empty if there is none."""
    if not nic.totals.debt:
        return ""
    factor, claims = factor_text(nic.divided.factor), ", ".join(_claims(nic.shares))
    return (
        f"shares of {nic.name} are promised {quantity(nic.totals.debt)}bit/s more than {factor} times its bandwidth: "
        f"{claims}; these shares stay, and no new share is allocated until some of them end"
    )


def _claims(shares: t.Iterable[HeldShare]) -> list[str]:
    return sorted({str(share.record.claim) for share in shares})


class ReportedFactors:
    """The factors that were last reported, by share ID, in a file. Like the shares, the file does not survive a
    reboot."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def changed(self, nics: t.Sequence[SharedNic]) -> list[tuple[SharedNic, HeldShare, Fraction]]:
        """The shares whose NIC has another factor than at the last call, or at the share's allocation if that was
        later, each with the old factor. Never raises: if the file cannot be read or written, a change may not be
        reported."""
        reported, shares = self._read(), [(nic, share) for nic in nics for share in nic.shares]
        current = {share.device.share_id: factor_text(nic.divided.factor) for nic, share in shares}
        if current != reported:
            self._write(current)
        old_factors = [Fraction(reported.get(share.device.share_id, share.share.factor)) for _nic, share in shares]
        return [
            (nic, share, old_factor)
            for (nic, share), old_factor in zip(shares, old_factors)
            if old_factor != nic.divided.factor
        ]

    def _read(self) -> dict[str, str]:
        try:
            factors = json.loads(self._path.read_bytes()[:_MAX_FILE_BYTES])
            return {str(name): factor_text(Fraction(str(factor))) for name, factor in factors.items()}
        except (OSError, ValueError, AttributeError, ZeroDivisionError):
            return {}

    def _write(self, factors: t.Mapping[str, str]) -> None:
        try:
            if factors:
                files.replace(self._path, json.dumps(factors).encode(), 0o644, files.PowerCut.MAY_EMPTY)
            else:
                files.remove(self._path)
        except OSError as error:
            log.warning("could not write %s, so the next start may not report a changed factor: %s", self._path, error)
