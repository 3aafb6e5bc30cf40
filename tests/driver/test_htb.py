# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The HTB classes that divide an interface, on a real kernel."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from lanewise_driver.kernel import htb, links, qdiscs
from lanewise_driver.kernel.htb import Class
from lanewise_driver.kernel.netlink import Netlink

pytestmark = pytest.mark.namespaces
GIGA = 10**9
MAC_A, MAC_B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"


def make_interface(connection: Netlink) -> int:
    """Create the interface `one`. Returns its index."""
    run("ip link add one type veth peer name far")
    run("ip link set far up")
    run("ip link set one up")
    link = links.get(connection, name="one")
    assert link
    return link.index


def root_qdiscs() -> list[str]:
    shown = run("tc qdisc show dev one").splitlines()
    return [" ".join(line.split()[:4]) for line in shown]


@on_a_node
def test_classes_are_added_changed_and_removed() -> None:
    with Netlink() as connection:
        index = make_interface(connection)
        before = root_qdiscs()
        first = {3: Class(MAC_A, 700 * 10**6, GIGA), 4: Class(MAC_B, 200 * 10**6, GIGA)}
        htb.divide(connection, index, GIGA, first)
        assert htb.exists(connection, index) and htb.interfaces(connection) == [index]
        assert htb.read(connection, index) == first
        shown = run("tc class show dev one")
        assert "class htb 6c77:3 parent 6c77:1" in shown and "rate 700Mbit ceil 1Gbit" in shown
        htb.divide(connection, index, GIGA, first)
        second = {4: Class(MAC_B, 100 * 10**6, 500 * 10**6), 5: Class(MAC_A, 800 * 10**6, GIGA)}
        htb.divide(connection, index, GIGA, second)
        assert htb.read(connection, index) == second
        htb.divide(connection, index, GIGA, {4: Class(MAC_A, 100 * 10**6, 500 * 10**6)})
        assert htb.read(connection, index) == {4: Class(MAC_A, 100 * 10**6, 500 * 10**6)}
        assert set(htb.sent(connection, index)) == {4}
        htb.divide(connection, index, GIGA, {})
        assert root_qdiscs() == before and htb.interfaces(connection) == []
        htb.divide(connection, index, GIGA, {})


@on_a_node
def test_rates_beyond_32_bits_are_read_back() -> None:
    with Netlink() as connection:
        index = make_interface(connection)
        wanted = {htb.LAST_MINOR: Class(MAC_A, 100 * GIGA, 800 * GIGA), htb.FIRST_MINOR: Class(MAC_B, 10**6, 10**6)}
        htb.divide(connection, index, 800 * GIGA, wanted)
        assert htb.read(connection, index) == wanted


@on_a_node
def test_a_default_qdisc_is_restored() -> None:
    """A tap has a queueing discipline by default, a veth has none."""
    with Netlink() as connection:
        run("ip tuntap add dev one mode tap multi_queue")
        run("ip link set one up")
        link = links.get(connection, name="one")
        assert link
        before = qdiscs.listed(connection, link.index), root_qdiscs()
        htb.divide(connection, link.index, GIGA, {3: Class(MAC_A, GIGA, GIGA)})
        htb.remove(connection, link.index)
        assert (qdiscs.listed(connection, link.index), root_qdiscs()) == before and "noqueue" not in before[1][0]


@on_a_node
def test_a_qdisc_of_the_administrator_is_not_replaced() -> None:
    with Netlink() as connection:
        index = make_interface(connection)
        run("tc qdisc add dev one root handle 1: htb default 1")
        before = root_qdiscs()
        with pytest.raises(htb.ForeignQdisc, match="htb 1:"):
            htb.divide(connection, index, GIGA, {3: Class(MAC_A, GIGA, GIGA)})
        htb.divide(connection, index, GIGA, {})
        assert root_qdiscs() == before


class RequestFailed(Exception):
    """Raised instead of sending a request."""


def _failing_request(connection: Netlink, successes: int) -> t.Callable[..., t.Any]:
    """A replacement for the connection's `request`, which fails after `successes` calls."""
    remaining = successes

    def request(kind: int, body: bytes, flags: int = 0) -> t.Any:
        nonlocal remaining
        if not remaining:
            raise RequestFailed
        remaining -= 1
        return Netlink.request(connection, kind, body, flags)

    return request


@on_a_node
def test_a_failure_at_any_request_is_repaired_by_the_next_call() -> None:
    """Classes are added, changed and removed. Whichever request fails, the next call reaches the wanted state."""
    first = {3: Class(MAC_A, 700 * 10**6, GIGA), 4: Class(MAC_B, 200 * 10**6, GIGA)}
    second = {4: Class(MAC_A, 100 * 10**6, GIGA)}
    with Netlink() as connection:
        index = make_interface(connection)
        before = root_qdiscs()
        for successes in range(1000):
            failures = 0
            for state in (first, second, {}):
                connection.request = _failing_request(connection, successes)  # type: ignore[method-assign]
                try:
                    htb.divide(connection, index, GIGA, state)
                except RequestFailed:
                    failures += 1
                del connection.request
                htb.divide(connection, index, GIGA, state)
                assert htb.read(connection, index) == state
            if not failures:
                break
        assert root_qdiscs() == before and 5 < successes < 100
