# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The description of a machine with eight PFs of sixteen VFs each, from which tests/machines builds its files."""

from __future__ import annotations

import typing as t

EIGHT_BY_SIXTEEN: dict[str, t.Any] = {
    "name": "eight-by-sixteen",
    "summary": "eight PFs with sixteen VFs each",
    "system": {"vendor": "V", "product": "P", "kernel": "6.8.0"},
    "cpu": {"model": "C", "sockets": 1, "cores": 8, "threads": 1, "memory_gib": 64},
    "roots": {
        f"0000:{0x10 * (number + 1):02x}": {
            "numa": 0,
            "01.0 spr-root-port": {"00.0 cx7-eth": {"vfs": 16, "state": "nolink" if number == 3 else "up"}},
        }
        for number in range(8)
    },
}
