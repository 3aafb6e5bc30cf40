# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure shares of a NIC by macvlan: whether pods get their guaranteed rates, and the CPU time of traffic classes."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import typing as t
from pathlib import Path

from tests.bench.driver import Figures, figure, interleaved

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.driver.shares_node import SharesNode
    from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

ADDRESS = "10.9.0.1"
_TRAFFIC = "TCP over a veth, MTU 9000, sender and receiver on this machine"


def shares_inside(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.tests.driver.claims_node import ip
    from ansible_collections.lanewise.dra.tests.driver.shares_node import NIC, SharesNode

    node = SharesNode(folder)
    for name in (NIC, "far"):
        ip("link", "set", name, "mtu", "9000")
    ip("address", "add", f"{ADDRESS}/16", "dev", "far")
    yield from _measure_guarantees(node)
    yield from _measure_attach(node)
    yield from _measure_cost(node)


@contextlib.contextmanager
def _pods(node: SharesNode, *amounts: str) -> t.Iterator[Traffic]:
    """A pod for each amount: with a share of that size, or with a plain macvlan child if the amount is empty."""
    from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox
    from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

    service, pods = node.service(), [Sandbox() for _amount in amounts]
    claims = []
    for number, (amount, pod) in enumerate(zip(amounts, pods)):
        claims.append(_claim(node, f"pod-{number}", amount, f"10.9.1.{1 + number}/16"))
        node.attach(service, claims[-1], pod)
    with Traffic(ADDRESS, [pod.path for pod in pods]) as traffic:
        yield traffic
    for claim, pod in zip(claims, pods):
        service.unprepare(claim)
        pod.end()


def _claim(node: SharesNode, name: str, amount: str, address: str) -> t.Any:
    from ansible_collections.lanewise.dra.tests.driver.shares_node import NIC

    if amount:
        return node.allocate(name, amount, addresses=[address])
    child = {"type": "macvlan", "mode": "private"}
    return node.allocate(name, "", f"net-{NIC}", addresses=[address], child=child)


def _rates_per_second(node: SharesNode, limited: bool) -> list[list[float]]:
    """The bit/s that arrive from each of two pods, which send as fast as they can, in each of five seconds."""
    with _pods(node, "700M", "200M") as traffic:
        if not limited:
            _raise_limits()
        traffic.send(0, 1)
        traffic.rates(1)
        return [traffic.rates(1) for _second in range(5)]


def _measure_guarantees(node: SharesNode) -> Figures:
    """How far two pods stay below their guaranteed rates. Without limits they show how much the machine can send."""
    limited, unlimited = [], []
    for _round in range(4):
        limited += _rates_per_second(node, limited=True)
        unlimited += _rates_per_second(node, limited=False)
    errors = [max(1 - first / 700e6, 1 - second / 200e6, 0.0) for first, second in limited]
    medians = [statistics.median(rates) / 1e6 for rates in zip(*limited)]
    exceeded = sum(error > 0.05 for error in errors)
    total, nice = statistics.median(map(sum, unlimited)) / 1e6, os.getpriority(os.PRIO_PROCESS, 0)
    yield figure(
        "share_guarantee_error",
        statistics.median(errors),
        "ratio",
        f"0.05 at most; {exceeded} of {len(errors)} seconds exceed it, the worst one has {max(errors):.3f}; medians "
        f"{medians[0]:.0f} and {medians[1]:.0f} Mbit/s; without limits both send {total:.0f} Mbit/s",
        "shares of 700 and 200 of 1,000 Mbit/s, both busy, what arrives below the guarantee; median of 20 seconds, in "
        f"turns with classes that do not limit; {_TRAFFIC}; nice {nice}",
    )


def _measure_attach(node: SharesNode) -> Figures:
    from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox
    from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries

    service, pod = node.service(), Sandbox()

    def attach_once(amount: str) -> float:
        claim = _claim(node, "pod", amount, "10.9.1.1/16")
        service.prepare(claim)
        start = time.perf_counter()
        attach_with_retries(service, node.request(claim, pod))
        seconds = time.perf_counter() - start
        service.unprepare(claim)
        return seconds

    seconds = interleaved(40, share=lambda: attach_once("100M"), child=lambda: attach_once(""))
    pod.end()
    share, child = (statistics.median(seconds[name]) * 1000 for name in ("share", "child"))
    yield figure(
        "share_attach_p50_ms",
        share,
        "ms",
        f"a macvlan child without classes, {child:.1f} ms (ratio {share / child:.2f})",
        "attach with qdisc, three classes and a filter, records on disk (fsync); 40 interleaved rounds, median",
    )


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children, including interrupts during their time."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in [str(pid), *children]]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def _raise_limits() -> None:
    """Raise the classes of shares to 100 Gbit/s, ten times the speed that a veth reports, so that none limits."""
    from ansible_collections.lanewise.dra.tests.driver.shares_node import NIC
    from lanewise_driver.kernel import htb, links
    from lanewise_driver.kernel.netlink import Netlink

    with Netlink() as connection:
        link = links.get(connection, name=NIC)
        assert link
        old = htb.read(connection, link.index)
        raised = {minor: htb.Class(share.mac, 50 * 10**9, 100 * 10**9) for minor, share in old.items()}
        htb.divide(connection, link.index, 100 * 10**9, raised)


def _measure_cost(node: SharesNode) -> Figures:
    """The same traffic at full speed, with a class that does not limit it and without a class."""
    rates: dict[str, list[float]] = {"500M": [], "": []}
    cpu_per_gbit: dict[str, list[float]] = {"500M": [], "": []}
    for _round in range(5):
        for amount in rates:
            with _pods(node, amount) as traffic:
                if amount:
                    _raise_limits()
                traffic.send(0)
                traffic.rates(0.5)
                before = _cpu_seconds(traffic.pid)
                (rate,) = traffic.rates(2)
                rates[amount].append(rate / 1e9)
                cpu_per_gbit[amount].append((_cpu_seconds(traffic.pid) - before) / (rate * 2 / 1e9))
    with_class, plain = (statistics.median(cpu_per_gbit[amount]) for amount in ("500M", ""))
    method = f"one pod sends as fast as it can; 5 interleaved rounds of 2 s, median; {_TRAFFIC}"
    yield figure(
        "share_cpu_ratio",
        with_class / plain,
        "ratio",
        f"a macvlan child without classes, {plain * 1000:.0f} ms of CPU per Gbit "
        f"(with a class {with_class * 1000:.0f} ms)",
        f"{method}; a class of 50 of 100 Gbit/s, which does not limit it",
    )
    with_class, plain = (statistics.median(rates[amount]) for amount in ("500M", ""))
    yield figure(
        "share_highest_gbps",
        with_class,
        "Gbit/s",
        f"a macvlan child without classes, {plain:.1f} Gbit/s (ratio {with_class / plain:.2f})",
        f"{method}; what one class of 50 of 100 Gbit/s carries here",
    )
