# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.rail_routes import RailRoutes
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run, wait_for_ipv6, without_dad
from ansible_collections.lanewise.dra.tests.host.node import apply, node, refusals

SETTINGS = {
    "rail0": {"rail_routes": {"table": 100, "priority": 900, "gateway": "10.0.0.254"}},
    "rail1": {"rail_routes": {"table": 101, "gateway": ["10.0.0.253", "fd00:1::fe"]}},
}


def create_rails() -> None:
    """Create two rails in the same IPv4 network."""
    without_dad()
    for number in (0, 1):
        pair(f"rail{number}")
        run(f"ip addr add 10.0.0.{number + 1}/24 dev rail{number}")
        run(f"ip addr add fd00:{number}::1/64 dev rail{number}")
    wait_for_ipv6()


def tables() -> str:
    """The routes and rules of the tables of both rails."""
    shown = "".join(
        run(f"ip -{family} route show table {table}; ip -{family} rule show table {table}", check=False)
        for family in (4, 6)
        for table in (100, 101)
    )
    return "\n".join(line.strip() for line in shown.splitlines())


@on_a_node
def test_packets_from_a_rail_address_leave_through_its_rail():
    create_rails()
    # without rail routes, both addresses use the same one of two equal routes
    assert "dev rail1" not in run("ip route get 10.0.0.77 from 10.0.0.2")
    apply(RailRoutes, SETTINGS)
    assert "dev rail0 table 100" in run("ip route get 10.0.0.77 from 10.0.0.1")
    assert "dev rail1 table 101" in run("ip route get 10.0.0.77 from 10.0.0.2")
    assert "via 10.0.0.254 dev rail0" in run("ip route get 192.0.2.1 from 10.0.0.1")
    assert "via 10.0.0.253 dev rail1" in run("ip route get 192.0.2.1 from 10.0.0.2")
    assert "via fd00:1::fe dev rail1" in run("ip -6 route get 2001:db8::1 from fd00:1::1")
    assert "900:\tfrom 10.0.0.1 lookup 100" in run("ip rule")


@on_a_node
def test_a_second_run_adapts_the_routes_to_a_changed_address():
    create_rails()
    apply(RailRoutes, SETTINGS)
    run("ip addr add 10.7.0.5/16 dev rail0; ip addr del 10.0.0.1/24 dev rail0")
    settings = {"rail0": {"rail_routes": {"table": 100, "gateway": "10.7.255.254"}}}
    apply(RailRoutes, settings)
    assert "from 10.0.0.1" not in run("ip rule")
    assert "dev rail0 table 100" in run("ip route get 10.7.3.3 from 10.7.0.5")


@on_a_node
def test_the_exact_previous_routes_and_rules_are_restored():
    create_rails()
    run("ip route add 10.0.0.0/24 dev rail0 src 10.0.0.1 table 100 proto static")
    before = tables()
    changes: list[Change] = apply(RailRoutes, SETTINGS).changes
    assert tables() != before
    system = System()
    target = node(system, {})  # as when a change was not confirmed: only the changes are stored, not the settings
    for change in reversed(changes):
        RailRoutes(system).apply(target, change.reversed())
    system.close()
    assert tables() == before


@on_a_node
def test_rail_routes_that_cannot_work_are_refused():
    create_rails()
    run("ip route add 192.0.2.0/24 dev rail1 table 77; ip rule add fwmark 7 lookup 78")
    run("ip link add bare type veth peer name bare-far; ip addr flush bare; ip link set bare up")

    def refusal(name: str = "rail0", **requested) -> str:
        return refusals(RailRoutes, {name: {"rail_routes": requested}})[0]

    assert "reserved by the kernel" in refusal(table=254)
    assert "used for something else: 192.0.2.0/24" in refusal(table=77)
    assert "used for something else: from 0.0.0.0/0" in refusal(table=78)
    assert "not in a network of rail0" in refusal(table=100, gateway="10.9.0.1")
    assert "has no IP address" in refusal("bare", table=100)
    for value, reason in (
        ({"table": 2**32}, "not in the range"),
        ({"table": 1, "gateway": "x"}, "write an IP address"),
    ):
        with pytest.raises(HostError, match=reason):
            apply(RailRoutes, {"rail0": {"rail_routes": value}})
    both = {name: {"rail_routes": {"table": 100}} for name in ("rail0", "rail1")}
    assert "already used by rail0" in refusals(RailRoutes, both)[0]
    run("ip link set rail0 down")
    assert "is down" in refusal(table=100)
