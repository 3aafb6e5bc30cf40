# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Netlink requests for settings of VFs. tests/lab/test_driver_tenants.py tests the settings with the VFs of a card."""

from __future__ import annotations

import errno
import typing as t

import pytest
from lanewise_driver.kernel import netlink, vf
from lanewise_driver.kernel.netlink import Netlink

#: IFLA_VFINFO_LIST, IFLA_VF_INFO, IFLA_VF_MAC, and the size of the header of a link message.
_VFINFO_LIST, _INFO, _MAC, _HEADER_BYTES = 22, 1, 1, 16
CURRENT = {
    "mac": "02:00:00:00:00:01",
    "vlan": 0,
    "qos": 0,
    "spoofchk": True,
    "trust": False,
    "minTxRate": 0,
    "maxTxRate": 0,
}
WANTED = {"mac": "02:00:00:00:00:02", "vlan": 9, "spoofchk": False, "trust": True, "maxTxRate": 100, "rssQuery": True}


class FakeNetlink:
    """Accepts every setting of a VF except those with the attribute numbers in `refused`. `requested` has the numbers
    of all requests."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.requested: list[int] = []

    def request(self, _kind: int, body: bytes) -> list[tuple[int, bytes]]:
        info = netlink.attributes(netlink.attributes(body, _HEADER_BYTES)[_VFINFO_LIST])[_INFO]
        (number,) = netlink.attributes(info)
        self.requested.append(number)
        if number in self.refused:
            raise OSError(errno.EPERM, "no")
        return []


def test_every_setting_is_requested_and_refused_settings_are_reported() -> None:
    accepting = FakeNetlink()
    vf.write_to(t.cast(Netlink, accepting), 7, 3, CURRENT, WANTED)
    assert len(set(accepting.requested)) == len(accepting.requested) == 6
    for number in accepting.requested:
        connection = FakeNetlink(number)
        with pytest.raises(OSError, match=r"^\[Errno 1\] vf\.[a-zA-Z]+: Operation not permitted$"):
            vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, WANTED)
        assert connection.requested == accepting.requested
    connection = FakeNetlink(*accepting.requested)
    with pytest.raises(OSError) as refused:
        vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, WANTED)
    assert str(refused.value).count("vf.") == 6


def test_values_that_are_already_set_are_not_requested() -> None:
    connection = FakeNetlink(_MAC)
    vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, CURRENT)
    assert connection.requested == []
