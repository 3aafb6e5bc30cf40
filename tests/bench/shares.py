# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure shares of a NIC by macvlan: how well guarantees hold, and how much CPU time classes cost."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import typing as t
from pathlib import Path

from tests.bench.driver import Figures, figure, interleaved

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.driver.shares_world import SharesWorld
    from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

ADDRESS = "10.9.0.1"
_TRAFFIC = "TCP over a veth, MTU 9000, sender and receiver on this machine"


def shares_inside(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.tests.driver.claims_world import ip
    from ansible_collections.lanewise.dra.tests.driver.shares_world import NIC, SharesWorld

    world = SharesWorld(folder)
    for name in (NIC, "far"):
        ip("link", "set", name, "mtu", "9000")
    ip("address", "add", f"{ADDRESS}/16", "dev", "far")
    yield from _guarantees(world)
    yield from _attach(world)
    yield from _cost(world)


@contextlib.contextmanager
def _pods(world: SharesWorld, *amounts: str) -> t.Iterator[Traffic]:
    """A pod for each amount: with a share of that size, or with a plain macvlan child if the amount is empty."""
    from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox
    from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

    service, pods = world.service(), [Sandbox() for _each in amounts]
    claims = []
    for number, (amount, pod) in enumerate(zip(amounts, pods)):
        claims.append(_claim(world, f"pod-{number}", amount, f"10.9.1.{1 + number}/16"))
        world.attach(service, claims[-1], pod)
    with Traffic(ADDRESS, [pod.path for pod in pods]) as traffic:
        yield traffic
    for claim, pod in zip(claims, pods):
        service.unprepare(claim)
        pod.end()


def _claim(world: SharesWorld, name: str, amount: str, address: str) -> t.Any:
    from ansible_collections.lanewise.dra.tests.driver.shares_world import NIC

    if amount:
        return world.allocate(name, amount, addresses=[address])
    child = {"type": "macvlan", "mode": "private"}
    return world.allocate(name, "", f"net-{NIC}", addresses=[address], child=child)


def _rates_per_second(world: SharesWorld, limited: bool) -> list[list[float]]:
    """What arrives from each of two pods that send as fast as they can, in bit/s, for each of five seconds."""
    with _pods(world, "700M", "200M") as traffic:
        if not limited:
            _widen()
        traffic.send(0, 1)
        traffic.rates(1)
        return [traffic.rates(1) for _round in range(5)]


def _guarantees(world: SharesWorld) -> Figures:
    """How well guarantees hold. Without limits the same pods show how much the machine can send."""
    found, unlimited = [], []
    for _round in range(4):
        found += _rates_per_second(world, limited=True)
        unlimited += _rates_per_second(world, limited=False)
    errors = [max(1 - one[0] / 700e6, 1 - one[1] / 200e6, 0.0) for one in found]
    got = [statistics.median(one[number] for one in found) / 1e6 for number in range(2)]
    bad = sum(error > 0.05 for error in errors)
    most, nice = statistics.median(map(sum, unlimited)) / 1e6, os.getpriority(os.PRIO_PROCESS, 0)
    yield figure(
        "share_guarantee_error",
        statistics.median(errors),
        "ratio",
        f"0.05 at most; {bad} of {len(errors)} seconds exceed it, the worst one has {max(errors):.3f}; medians "
        f"{got[0]:.0f} and {got[1]:.0f} Mbit/s; without limits both send {most:.0f} Mbit/s",
        "shares of 700 and 200 of 1,000 Mbit/s, both busy, what arrives below the guarantee; median of 20 seconds, in "
        f"turns with classes that do not limit; {_TRAFFIC}; nice {nice}",
    )


def _attach(world: SharesWorld) -> Figures:
    from ansible_collections.lanewise.dra.tests.driver.answers import attach
    from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox

    service, pod = world.service(), Sandbox()

    def once(amount: str) -> float:
        claim = _claim(world, "pod", amount, "10.9.1.1/16")
        service.prepare(claim)
        start = time.perf_counter()
        attach(service, world.request(claim, pod))
        taken = time.perf_counter() - start
        service.unprepare(claim)
        return taken

    taken = interleaved(40, share=lambda: once("100M"), child=lambda: once(""))
    pod.end()
    share, child = (statistics.median(taken[name]) * 1000 for name in ("share", "child"))
    yield figure(
        "share_attach_p50_ms",
        share,
        "ms",
        f"a macvlan child without classes, {child:.1f} ms (ratio {share / child:.2f})",
        "attach with qdisc, three classes and a filter, records on disk (fsync); 40 interleaved rounds, median",
    )


def _processor_seconds(pid: int) -> float:
    """CPU seconds of the sender and the receiver, including interrupts during their time."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    words = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in [str(pid), *children]]
    return sum(int(one[11]) + int(one[12]) for one in words) / os.sysconf("SC_CLK_TCK")


def _widen() -> None:
    """Give the classes of shares 100 Gbit/s, ten times what a veth reports as its speed."""
    from ansible_collections.lanewise.dra.tests.driver.shares_world import NIC
    from lanewise_driver.kernel import htb, links
    from lanewise_driver.kernel.netlink import Netlink

    with Netlink() as connection:
        link = links.get(connection, name=NIC)
        assert link
        found = htb.read(connection, link.index)
        wide = {minor: htb.Class(one.mac, 50 * 10**9, 100 * 10**9) for minor, one in found.items()}
        htb.divide(connection, link.index, 100 * 10**9, wide)


def _cost(world: SharesWorld) -> Figures:
    """The same traffic at full speed, with a class that does not limit it and without a class."""
    rates: dict[str, list[float]] = {"500M": [], "": []}
    used: dict[str, list[float]] = {"500M": [], "": []}
    for _round in range(5):
        for amount in rates:
            with _pods(world, amount) as traffic:
                if amount:
                    _widen()
                traffic.send(0)
                traffic.rates(0.5)
                before = _processor_seconds(traffic.pid)
                (rate,) = traffic.rates(2)
                rates[amount].append(rate / 1e9)
                used[amount].append((_processor_seconds(traffic.pid) - before) / (rate * 2 / 1e9))
    cost, plain = (statistics.median(used[name]) for name in ("500M", ""))
    method = f"one pod sends as fast as it can; 5 interleaved rounds of 2 s, median; {_TRAFFIC}"
    yield figure(
        "share_cpu_ratio",
        cost / plain,
        "ratio",
        f"a macvlan child without classes, {plain * 1000:.0f} ms of CPU per Gbit (with a class {cost * 1000:.0f} ms)",
        f"{method}; a class of 50 of 100 Gbit/s, which does not limit it",
    )
    most, free = (statistics.median(rates[name]) for name in ("500M", ""))
    yield figure(
        "share_highest_gbps",
        most,
        "Gbit/s",
        f"a macvlan child without classes, {free:.1f} Gbit/s (ratio {most / free:.2f})",
        f"{method}; what one class of 50 of 100 Gbit/s carries here",
    )
