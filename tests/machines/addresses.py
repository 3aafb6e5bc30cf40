# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MAC addresses and GUIDs of PCI functions."""

from __future__ import annotations

from .description import Function
from .files import Files


class Addresses(Files):
    """Derives made-up MAC addresses and GUIDs from PCI addresses."""

    def mac_of(self, function: Function, index: int = 0) -> str:
        """The MAC address of a function's interface. That of a VF is locally administered."""
        tail = self.made_up_number("mac", function.address, index) & 0xFFFFFF
        oui = function.spec.get("oui", "02:00:00")
        if function.pf:
            oui = f"{int(oui[:2], 16) & 0xFE | 2:02x}{oui[2:]}"
        return ":".join([oui, *(f"{tail >> s & 0xFF:02x}" for s in (16, 8, 0))])

    def guid_of(self, function: Function) -> int:
        """The GUID that mlx5 makes of the card's MAC address, with 0300h in the middle."""
        mac = int(self.mac_of(function).replace(":", ""), 16)
        return mac >> 24 << 40 | 0x0300 << 24 | mac & 0xFFFFFF
