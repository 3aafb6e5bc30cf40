# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The underlay of each kind of tunnel, from attributes in the kernel's format: no tunnel is created."""

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

REMOTE, LOCAL = ipaddress.ip_address("192.0.2.9"), ipaddress.ip_address("192.0.2.1")
REMOTE_IPV6 = ipaddress.ip_address("2001:db8::9")
NO_ADDRESS = bytes(4)


class EmptyConnection(netlink.Connection):
    """A connection to a kernel with no forwarding table: all dumps are empty."""

    def __init__(self) -> None:
        pass

    def dump(self, *_unused: t.Any, **_unused_too: t.Any) -> list[tuple[int, bytes]]:
        return []


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("gre", {6: LOCAL.packed, 7: REMOTE.packed}, Underlay((), (Query(REMOTE, LOCAL),))),
        ("gre", {1: b"\5\0\0\0", 6: NO_ADDRESS, 7: REMOTE.packed}, Underlay((5,))),
        ("gretap", {6: NO_ADDRESS, 7: NO_ADDRESS, 18: b""}, Underlay(complete=False)),
        ("ip6gre", {7: REMOTE_IPV6.packed}, Underlay((), (Query(REMOTE_IPV6),))),
        ("ipip", {2: NO_ADDRESS, 3: REMOTE.packed}, Underlay((), (Query(REMOTE),))),
        # tunl0 of Calico: routes have the remote addresses
        ("ipip", {2: NO_ADDRESS, 3: NO_ADDRESS}, Underlay(complete=False)),
        ("sit", {3: REMOTE.packed, 19: b""}, Underlay((), (Query(REMOTE),), complete=False)),
        ("ip6tnl", {3: REMOTE_IPV6.packed}, Underlay((), (Query(REMOTE_IPV6),))),
        ("vti", {4: LOCAL.packed, 5: REMOTE.packed}, Underlay((), (Query(REMOTE, LOCAL),))),
        ("xfrm", {1: b"\3\0\0\0"}, Underlay((3,))),
        ("xfrm", {}, Underlay(complete=False)),
        ("geneve", {2: REMOTE.packed}, Underlay((), (Query(REMOTE),))),
        ("geneve", {6: b""}, Underlay(complete=False)),  # genev_sys_6081 of Open vSwitch
        ("vxlan", {2: REMOTE.packed, 25: b"\0"}, Underlay((), (Query(REMOTE),))),
        ("vxlan", {25: b"\1"}, Underlay(complete=False)),
        ("vxlan", {3: b"\7\0\0\0", 2: ipaddress.ip_address("239.1.1.1").packed}, Underlay((7,))),
        ("tun", {}, Underlay(complete=False)),
        ("ppp", {}, Underlay(complete=False)),
        ("new-one", {2: REMOTE.packed}, Underlay(complete=False)),
    ],
)
def test_the_underlay_of_each_kind_of_tunnel_is_found(kind: str, data: dict[int, bytes], expected: Underlay) -> None:
    assert underlay(EmptyConnection(), Link(9, "t0", kind, data=data)) == expected


def test_the_underlay_of_wireguard_has_the_endpoints_of_its_peers() -> None:
    """The kernel splits the peers over two messages. Packets have the firewall mark of the interface."""
    ipv4_address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 51820) + REMOTE.packed + bytes(8)
    ipv6_address = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 51820, 0) + REMOTE_IPV6.packed
    ipv4_endpoint = netlink.attribute(4, ipv4_address)
    ipv6_endpoint = netlink.attribute(4, ipv6_address + struct.pack("=I", 4))
    head = struct.pack("=BBH", 0, 1, 0)
    public_key = netlink.attribute(1, bytes(32))
    first = head + netlink.u32(7, 51820) + netlink.nest(8, netlink.nest(0, public_key, ipv4_endpoint))
    second = head + netlink.nest(8, netlink.nest(0, public_key, ipv6_endpoint), netlink.nest(0, public_key))
    found = peers([first, second])
    assert found == Underlay((), (Query(REMOTE, mark=51820), Query(REMOTE_IPV6, bound_link=4, mark=51820)))
    assert peers([head]) == Underlay()
