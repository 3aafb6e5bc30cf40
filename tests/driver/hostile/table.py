# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the table of docs/security.md, and compare it with the results of a run."""

from __future__ import annotations

from pathlib import Path

#: The heads of the columns: the attempts, then the kinds of NICs and networks. The lab runs those of VFs.
ATTEMPT = "a hostile pod"
BRIDGE, PRIVATE, WITH_ACLS, WITH_USER_NAMESPACES = "macvlan", "mode `private`", "and ACLs", "and user namespaces"
VF, OPEN_VF = "VF", "VF, no `spoofchk`, `trust`"
COLUMNS = (BRIDGE, PRIVATE, WITH_ACLS, WITH_USER_NAMESPACES, VF, OPEN_VF)
NOT_RUN = "not run"


def read(page: Path) -> dict[str, dict[str, str]]:
    """The cells by attempt and column."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head = next(index for index, row in enumerate(rows) if row[0] == ATTEMPT)
    found: dict[str, dict[str, str]] = {}
    for row in rows[head + 2 :]:
        if len(row) != len(rows[head]) or row[0] == rows[head][0]:
            break
        found[row[0]] = dict(zip(rows[head][1:], row[1:]))
    return found


def differences(page: Path, column: str, outcomes: dict[str, str]) -> list[str]:
    """The differences between a page and a run, one line for each attempt."""
    stated = {attempt: cells[column] for attempt, cells in read(page).items()}
    return [
        f"{attempt}: the result is {outcomes.get(attempt)}, the page says {stated.get(attempt)}"
        for attempt in {**outcomes, **stated}
        if outcomes.get(attempt) != stated.get(attempt)
    ]
