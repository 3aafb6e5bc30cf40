# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `lanewise-driver doctor` reports, from the lines of its output."""

from __future__ import annotations

import typing as t


def rail_check(lines: t.Sequence[str]) -> tuple[str, list[str]]:
    """The result of the check of rails (`ok` or `wrong`), and the indented lines below it, stripped."""
    place = next(number for number, line in enumerate(lines) if "pods send to each rail through its interface" in line)
    below = []
    for line in lines[place + 1 :]:
        if not line.startswith(" "):
            break
        below.append(line.strip())
    return lines[place].split()[0], below
