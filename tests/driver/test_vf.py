# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests for settings of virtual functions. What a real card does with them: tests/lab/test_driver_tenants.py."""

from __future__ import annotations

import errno
import typing as t

import pytest
from lanewise_driver.kernel import netlink, vf
from lanewise_driver.kernel.netlink import Netlink

_VFINFO_LIST, _INFO, _MAC, _IFINFO = 22, 1, 1, 16
NOW = {
    "mac": "02:00:00:00:00:01",
    "vlan": 0,
    "qos": 0,
    "spoofchk": True,
    "trust": False,
    "minTxRate": 0,
    "maxTxRate": 0,
}
WANTED = {"mac": "02:00:00:00:00:02", "vlan": 9, "spoofchk": False, "trust": True, "maxTxRate": 100, "rssQuery": True}


class Card:
    """Accepts every setting except those with the numbers that it refuses."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.asked: list[int] = []

    def request(self, _kind: int, body: bytes) -> list[tuple[int, bytes]]:
        info = netlink.attributes(netlink.attributes(body, _IFINFO)[_VFINFO_LIST])[_INFO]
        [number] = netlink.attributes(info)
        self.asked.append(number)
        if number in self.refused:
            raise OSError(errno.EPERM, "no")
        return []


def test_every_setting_is_requested_although_some_are_refused() -> None:
    whole = Card()
    vf.write_to(t.cast(Netlink, whole), 7, 3, NOW, WANTED)
    assert len(whole.asked) == 6 == len(set(whole.asked))
    for number in whole.asked:
        card = Card(number)
        with pytest.raises(OSError, match=r"^\[Errno 1\] vf\.[a-zA-Z]+: Operation not permitted$"):
            vf.write_to(t.cast(Netlink, card), 7, 3, NOW, WANTED)
        assert card.asked == whole.asked
    card = Card(*whole.asked)
    with pytest.raises(OSError) as refused:
        vf.write_to(t.cast(Netlink, card), 7, 3, NOW, WANTED)
    assert str(refused.value).count("vf.") == 6


def test_values_that_are_already_set_are_not_requested() -> None:
    card = Card(_MAC)
    vf.write_to(t.cast(Netlink, card), 7, 3, NOW, NOW)
    assert card.asked == []
