# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Address pools that overlap networks of the node are reported by the preflight module."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.modules.dra_driver_preflight import check_addresses
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.uplinks import netlink, used


def overlaps(*pools: str) -> list[str]:
    """The overlaps of these address pools with addresses and routes of the node."""
    with netlink.Connection() as kernel:
        return used.overlaps(kernel, pools)


@nodes.on_a_node
def test_pools_that_overlap_addresses_and_routes_of_the_node_are_reported() -> None:
    nodes.run("ip link add cni0 type bridge; ip address add 10.244.3.1/24 dev cni0; ip link set cni0 up")
    nodes.run("ip link add other type bridge; ip link set other up; ip route add 10.245.0.0/16 dev other table 77")
    nodes.run("ip address add fd00:244::1/64 dev cni0")
    assert overlaps("10.100.0.0/16", "fd00:100::/64") == []
    contained_address = "the pool 10.244.0.0/16 contains 10.244.3.1, an address of cni0"
    assert overlaps("10.244.0.0/16") == [
        contained_address,
        "the pool 10.244.0.0/16 overlaps 10.244.3.0/24, to which a route leads through cni0",
    ]
    assert overlaps("10.244.3.128/25") == [
        "the pool 10.244.3.128/25 overlaps 10.244.3.0/24, to which a route leads through cni0"
    ]
    assert overlaps("10.245.9.0/24") == [
        "the pool 10.245.9.0/24 overlaps 10.245.0.0/16, to which a route leads through other"
    ]
    assert any("fd00:244::1, an address of cni0" in text for text in overlaps("fd00:244::/60"))
    problems: list[str] = []
    check_addresses(["10.244.0.0/16"], problems)
    assert (
        problems[0] == f"dra_driver_rail_addresses: {contained_address}. Use a pool that nothing else on the node uses."
    )
    check_addresses(["nonsense"], problems := [])
    assert "could not be compared" in problems[0]
    check_addresses([], problems := [])
    assert problems == []


@nodes.on_a_node
def test_default_routes_and_routes_of_bonds_are_not_reported() -> None:
    nodes.run("ip link add cni0 type bridge; ip link set cni0 up; ip route add default dev cni0")
    assert overlaps("10.100.0.0/16") == []
    output = nodes.run("ip link add rail0 type bond 2>/dev/null && ip link set rail0 up && echo yes", check=False)
    if "yes" in output:  # this kernel supports bonds
        nodes.run("ip route add 10.100.0.0/16 dev rail0")
        assert overlaps("10.100.0.0/16") == []  # the bond may be the interface of the rail
