# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parses the output of `lanewise-driver doctor`."""

from __future__ import annotations

import typing as t


def rail_check(lines: t.Sequence[str]) -> tuple[str, list[str]]:
    """The result of the check of rails (`ok` or `wrong`), and the indented lines below it, without indentation."""
    start = next(number for number, line in enumerate(lines) if "pods send to each rail through its interface" in line)
    details = []
    for line in lines[start + 1 :]:
        if not line.startswith(" "):
            break
        details.append(line.strip())
    return lines[start].split()[0], details
