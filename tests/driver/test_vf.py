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

#: IFLA_VFINFO_LIST and IFLA_VF_INFO, and the size of the header of a link message.
_VFINFO_LIST, _INFO, _HEADER_BYTES = 22, 1, 16
#: The setting of each attribute (enum of IFLA_VF_* in linux/if_link.h), in the order of the requests: trust comes
#: before the address, because an untrusted function must not change its address.
SETTINGS = {
    9: "trust",
    1: "mac",
    2: "vlan",
    6: "maxTxRate",
    4: "spoofchk",
    7: "rssQuery",
    10: "nodeGuid",
    11: "portGuid",
    5: "linkState",
}
CURRENT = {
    "mac": "02:00:00:00:00:01",
    "vlan": 0,
    "qos": 0,
    "spoofchk": True,
    "trust": False,
    "minTxRate": 0,
    "maxTxRate": 0,
    "rssQuery": False,
    "nodeGuid": 1,
    "portGuid": 1,
    "linkState": "auto",
}
WANTED = {
    "mac": "02:00:00:00:00:02",
    "vlan": 9,
    "spoofchk": False,
    "trust": True,
    "maxTxRate": 100,
    "rssQuery": True,
    "nodeGuid": 2,
    "portGuid": 3,
    "linkState": "enable",
}


class FakeNetlink:
    """Accepts every setting of a VF except those with the attribute numbers in `refused`. `requested` has the attribute
    number of each request, in order."""

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


def test_every_setting_is_requested_in_order() -> None:
    connection = FakeNetlink()
    vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, WANTED)
    assert connection.requested == list(SETTINGS)


@pytest.mark.parametrize("refused", [*((number,) for number in SETTINGS), tuple(SETTINGS)], ids=str)
def test_refused_settings_are_reported_and_the_others_requested(refused: tuple[int, ...]) -> None:
    connection = FakeNetlink(*refused)
    with pytest.raises(OSError) as error:
        vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, WANTED)
    assert error.value.errno == errno.EPERM
    assert error.value.strerror == ", ".join(f"vf.{SETTINGS[number]}: Operation not permitted" for number in refused)
    assert connection.requested == list(SETTINGS)


def test_values_that_are_already_set_are_not_requested() -> None:
    connection = FakeNetlink(*SETTINGS)
    vf.write_to(t.cast(Netlink, connection), 7, 3, CURRENT, CURRENT)
    assert connection.requested == []
