# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real traffic through shares of a NIC: each share gets its guaranteed rate, and other shares can use idle bandwidth
until its owner sends again."""

from __future__ import annotations

import contextlib
import os
import statistics
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, ip
from ansible_collections.lanewise.dra.tests.driver.shares_node import NIC, SharesNode, root_qdiscs
from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

pytestmark = pytest.mark.namespaces
#: The address to which all shares send.
ADDRESS = "10.9.0.1"
SLOW = bool(os.environ.get("LANEWISE_SLOW"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SharesNode:
    node_with_nic = SharesNode(tmp_path_factory.mktemp("node"))
    for name in (NIC, "far"):
        ip("link", "set", name, "mtu", "9000")  # so that headers are less than 1 % of the traffic
    ip("address", "add", f"{ADDRESS}/16", "dev", "far")
    return node_with_nic


@contextlib.contextmanager
def shares_of(node: SharesNode, *amounts: str, **more: t.Any) -> t.Iterator[Traffic]:
    """Pods with a share of each amount. Yields their senders, in the same order. `more` are fields of their claims."""
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


def test_shares_get_their_guarantees_and_the_idle_bandwidth(node: SharesNode) -> None:
    """Shares of 700 and 200 of 1,000 Mbit/s. With LANEWISE_SLOW, ten times: a share gets the whole NIC within a second
    after the other share stops, and both get their guarantees within a second after it starts again. On a busy machine,
    only the medians are checked."""
    window, rounds = (0.25, 10) if SLOW else (0.5, 1)
    with shares_of(node, "700M", "200M") as traffic:
        traffic.send(0, 1)
        both_rates, _delay = traffic.reach(lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200, seconds=2)
        assert sum(both_rates) <= 1.05 * 1000
        seconds: dict[str, list[float]] = {}
        for name, senders, enough in (
            ("large alone", (0,), lambda rates: rates[0] >= 0.95 * 1000),
            ("both", (0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
            ("small alone", (1,), lambda rates: rates[1] >= 0.95 * 1000),
            ("both again", (0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
        ) * rounds:
            traffic.send(*senders)
            rates, delay = traffic.reach(enough, window)
            seconds.setdefault(name, []).append(round(delay + window, 2))
            assert max(rates) <= 1.1 * 1000
        print(f"both {both_rates}; seconds until the rates were measured over {window} s: {seconds}")
        idle = os.getloadavg()[0] <= 1 + (os.cpu_count() or 1)
        worst = {name: max(times) if idle else statistics.median(times) for name, times in seconds.items()}
        if SLOW:
            assert max(worst.values()) <= 1, (idle, seconds)


def test_a_share_alone_on_the_nic_gets_its_burst_and_no_more(node: SharesNode) -> None:
    with shares_of(node, "200M", share={"burst": "400M"}) as traffic:
        traffic.send(0)
        rates, _delay = traffic.reach(lambda rates: rates[0] >= 0.95 * 400, seconds=1)
        assert rates[0] <= 1.05 * 400


def test_overcommitted_shares_get_the_same_fraction_of_their_bandwidth(node: SharesNode) -> None:
    """Shares of 800 and 400 of 1,000 Mbit/s, with a factor of 2: five sixths each."""
    node.settings = node.with_rule(factor=2)
    try:
        with shares_of(node, "800M", "400M") as traffic:
            traffic.send(0, 1)
            minimum = [0.95 * rate * 1000 / 1200 for rate in (800, 400)]
            traffic.reach(lambda rates: all(rate >= least for rate, least in zip(rates, minimum)), seconds=2)
    finally:
        node.settings = node.with_rule()


def test_fifty_shares_of_one_nic_get_their_guarantees(node: SharesNode) -> None:
    """While all shares send. Then a single share sends and gets the whole bandwidth."""
    with shares_of(node, *["20M"] * 50) as traffic:
        traffic.send(*range(50))
        traffic.reach(lambda rates: min(rates) >= 0.95 * 20, seconds=4)
        traffic.send(7)
        traffic.reach(lambda rates: rates[7] >= 0.95 * 1000)


def test_traffic_without_a_share_does_not_reduce_guarantees(node: SharesNode) -> None:
    """The node itself also sends through the NIC, from a macvlan that belongs to no claim."""
    without_share = Sandbox()
    ip("link", "add", "unshared", "link", NIC, "type", "macvlan", "mode", "private")
    ip("link", "set", "unshared", "netns", str(without_share.pid))
    ip("address", "add", "10.9.200.1/16", "dev", "unshared", netns=without_share.pid)
    ip("link", "set", "unshared", "up", netns=without_share.pid)
    try:
        with shares_of(node, "900M") as traffic, Traffic(ADDRESS, [without_share.path]) as other_traffic:
            traffic.send(0)
            other_traffic.send(0)
            traffic.reach(lambda rates: rates[0] >= 0.95 * 900, seconds=2)
            traffic.send()
            other_traffic.reach(lambda rates: rates[0] >= 0.95 * 1000)
    finally:
        without_share.end()
        ip("link", "set", NIC, "mtu", "9000")


def test_no_file_is_left_on_the_node(node: SharesNode) -> None:
    assert node.files() == [] and not list(Path(node.paths.netns_dir).iterdir())
