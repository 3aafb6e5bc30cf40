# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logging which devices are not published, and why."""

from __future__ import annotations

import logging
import typing as t

log = logging.getLogger(__name__)

#: Maximum number of names in a log line.
_MAX_NAMES = 20


class WithheldLog:
    """Logs which devices are not published, and why, whenever that changes."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def report(self, withheld: t.Mapping[str, str]) -> None:
        """Log the changes since the last call. `withheld` contains the current reasons, by PCI address or interface."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in withheld.items():
            if self._known.get(name) != reason:
                by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            log.info("not published: %s: %s", listed(names), reason)
        if freed := sorted(self._known.keys() - withheld.keys()):
            log.info("no longer withheld: %s", listed(freed))
        self._known = dict(withheld)


def listed(names: t.Sequence[str]) -> str:
    """The first names of a list, and the number of the others, as a text."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
