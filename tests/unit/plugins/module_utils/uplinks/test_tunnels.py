# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a tunnel's packets go, from dumps of kinds that this machine may not have."""

from __future__ import annotations

import ipaddress
import socket
import struct
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks import netlink
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.links import Link
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.routes import Query
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.tunnels import Underlay, peers, underlay

FAR, OWN = ipaddress.ip_address("192.0.2.9"), ipaddress.ip_address("192.0.2.1")
SIX = ipaddress.ip_address("2001:db8::9")
NONE = bytes(4)


class Silent(netlink.Connection):
    """A kernel with no switch table."""

    def __init__(self) -> None:
        pass

    def dump(self, *_unused: t.Any, **_unused_too: t.Any) -> list[tuple[int, bytes]]:
        return []


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("gre", {6: OWN.packed, 7: FAR.packed}, Underlay((), (Query(FAR, OWN),))),
        ("gre", {1: b"\5\0\0\0", 6: NONE, 7: FAR.packed}, Underlay((5,))),
        ("gretap", {6: NONE, 7: NONE, 18: b""}, Underlay(complete=False)),
        ("ip6gre", {7: SIX.packed}, Underlay((), (Query(SIX),))),
        ("ipip", {2: NONE, 3: FAR.packed}, Underlay((), (Query(FAR),))),
        ("ipip", {2: NONE, 3: NONE}, Underlay(complete=False)),  # tunl0 of Calico: routes name the far ends
        ("sit", {3: FAR.packed, 19: b""}, Underlay((), (Query(FAR),), complete=False)),
        ("ip6tnl", {3: SIX.packed}, Underlay((), (Query(SIX),))),
        ("vti", {4: OWN.packed, 5: FAR.packed}, Underlay((), (Query(FAR, OWN),))),
        ("xfrm", {1: b"\3\0\0\0"}, Underlay((3,))),
        ("xfrm", {}, Underlay(complete=False)),
        ("geneve", {2: FAR.packed}, Underlay((), (Query(FAR),))),
        ("geneve", {6: b""}, Underlay(complete=False)),  # genev_sys_6081 of Open vSwitch
        ("vxlan", {2: FAR.packed, 25: b"\0"}, Underlay((), (Query(FAR),))),
        ("vxlan", {25: b"\1"}, Underlay(complete=False)),
        ("vxlan", {3: b"\7\0\0\0", 2: ipaddress.ip_address("239.1.1.1").packed}, Underlay((7,))),
        ("tun", {}, Underlay(complete=False)),
        ("ppp", {}, Underlay(complete=False)),
        ("new-one", {2: FAR.packed}, Underlay(complete=False)),
    ],
)
def test_each_kind_of_tunnel_has_its_far_end(kind: str, data: dict[int, bytes], expected: Underlay) -> None:
    assert underlay(Silent(), Link(9, "t0", kind, data=data)) == expected


def test_the_peers_of_wireguard_are_its_far_ends() -> None:
    """The kernel splits the peers over two messages. Packets have the mark of the interface."""
    four = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 51820) + FAR.packed + bytes(8)
    six = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 51820, 0) + SIX.packed + struct.pack("=I", 4)
    head = struct.pack("=BBH", 0, 1, 0)
    keyed = netlink.attribute(1, bytes(32))
    first = head + netlink.u32(7, 51820) + netlink.nest(8, netlink.nest(0, keyed, netlink.attribute(4, four)))
    second = head + netlink.nest(8, netlink.nest(0, keyed, netlink.attribute(4, six)), netlink.nest(0, keyed))
    found = peers([first, second])
    assert found == Underlay((), (Query(FAR, mark=51820), Query(SIX, bound_link=4, mark=51820)))
    assert peers([head]) == Underlay()
