# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real traffic through shares of a NIC: guarantees hold, and idle bandwidth is lent and taken back."""

from __future__ import annotations

import contextlib
import os
import statistics
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox, ip
from ansible_collections.lanewise.dra.tests.driver.shares_world import NIC, SharesWorld, root_qdiscs
from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

pytestmark = pytest.mark.namespaces
ADDRESS = "10.9.0.1"
SHARES = 50
STRICT = bool(os.environ.get("LANEWISE_SLOW"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SharesWorld:
    made = SharesWorld(tmp_path_factory.mktemp("node"))
    for name in (NIC, "far"):
        ip("link", "set", name, "mtu", "9000")  # so that headers are below 1 % of what is sent
    ip("address", "add", f"{ADDRESS}/16", "dev", "far")
    return made


@contextlib.contextmanager
def shares_of(node: SharesWorld, *amounts: str, **more: t.Any) -> t.Iterator[Traffic]:
    """A pod with a share of each amount, each ready to send."""
    service, pods = node.service(), [Sandbox() for _each in amounts]
    claims = []
    try:
        for number, (amount, pod) in enumerate(zip(amounts, pods)):
            address = f"10.9.{1 + number // 200}.{1 + number % 200}/16"
            claim = node.allocate(f"claim-{number}", amount, addresses=[address], **more)
            claims.append(claim)
            node.attach(service, claim, pod)
        with Traffic(ADDRESS, [pod.path for pod in pods]) as traffic:
            yield traffic
    finally:
        for claim in claims:
            service.unprepare(claim)
        for pod in pods:
            pod.end()
    assert "htb" not in root_qdiscs()[0]


def test_guarantees_hold_and_idle_bandwidth_is_lent(node: SharesWorld) -> None:
    """Shares of 700 and 200 of 1,000 Mbit/s. With LANEWISE_SLOW, ten times: each reaches its ceiling within a second of
    the end of the other, and gives it back within a second. On a busy machine, only the median must."""
    window, rounds = (0.25, 10) if STRICT else (0.5, 1)
    with shares_of(node, "700M", "200M") as traffic:
        traffic.send(0, 1)
        both, _after = traffic.reach(lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200, seconds=2)
        assert sum(both) <= 1.05 * 1000
        took: dict[str, list[float]] = {}
        for name, senders, enough in (
            ("big alone", (0,), lambda rates: rates[0] >= 0.95 * 1000),
            ("both", (0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
            ("small alone", (1,), lambda rates: rates[1] >= 0.95 * 1000),
            ("both again", (0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
        ) * rounds:
            traffic.send(*senders)
            found, begun = traffic.reach(enough, window)
            took.setdefault(name, []).append(round(begun + window, 2))
            assert max(found) <= 1.1 * 1000
        print(f"both {both}; seconds until rates had been reached for {window} s: {took}")
        quiet = os.getloadavg()[0] <= 1 + (os.cpu_count() or 1)
        worst = {name: max(times) if quiet else statistics.median(times) for name, times in took.items()}
        if STRICT:
            assert max(worst.values()) <= 1, (quiet, took)


def test_a_burst_is_the_highest_rate_of_a_share(node: SharesWorld) -> None:
    with shares_of(node, "200M", share={"burst": "400M"}) as traffic:
        traffic.send(0)
        rates, _after = traffic.reach(lambda rates: rates[0] >= 0.95 * 400, seconds=1)
        assert rates[0] <= 1.05 * 400


def test_thin_shares_get_less_by_the_same_ratio(node: SharesWorld) -> None:
    """800 and 400 of 1,000 with a factor of 2: five sixths of both."""
    node.settings = node.with_rule(factor=2)
    try:
        with shares_of(node, "800M", "400M") as traffic:
            traffic.send(0, 1)
            least = [0.95 * rate * 1000 / 1200 for rate in (800, 400)]
            traffic.reach(lambda rates: all(rate >= one for rate, one in zip(rates, least)), seconds=2)
    finally:
        node.settings = node.with_rule()


def test_fifty_shares_of_one_nic_get_their_guarantees(node: SharesWorld) -> None:
    """While all send, each gets its guarantee. Then one sends alone and gets all bandwidth."""
    with shares_of(node, *["20M"] * SHARES) as traffic:
        traffic.send(*range(SHARES))
        traffic.reach(lambda rates: min(rates) >= 0.95 * 20, seconds=4)
        traffic.send(7)
        traffic.reach(lambda rates: rates[7] >= 0.95 * 1000)


def test_traffic_without_a_share_leaves_guarantees_alone(node: SharesWorld) -> None:
    """The node itself also sends through the NIC, from a macvlan that belongs to no claim."""
    stranger = Sandbox()
    ip("link", "add", "stranger", "link", NIC, "type", "macvlan", "mode", "private")
    ip("link", "set", "stranger", "netns", str(stranger.pid))
    ip("address", "add", "10.9.200.1/16", "dev", "stranger", netns=stranger.pid)
    ip("link", "set", "stranger", "up", netns=stranger.pid)
    try:
        with shares_of(node, "900M") as traffic, Traffic(ADDRESS, [stranger.path]) as other:
            traffic.send(0)
            other.send(0)
            traffic.reach(lambda rates: rates[0] >= 0.95 * 900, seconds=2)
            traffic.send()
            other.reach(lambda rates: rates[0] >= 0.95 * 1000)
    finally:
        stranger.end()
        ip("link", "set", NIC, "mtu", "9000")


def test_no_file_is_left_on_the_node(node: SharesWorld) -> None:
    assert node.files() == [] and not list(Path(node.paths.netns_dir).iterdir())
