# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attach and detach are killed at many steps. The next call always completes or undoes the operation."""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver import nodes
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at_each_step
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel.ethtool import Ethtool

ONE = Identity(None, None, "one")
#: The number of steps between two kills; with 1, every step is tried. Detach has several hundred steps, attach half as
#: many, so attach gets a smaller number. test_killed_driver.py kills the whole driver.
STRIDE = int(os.environ.get("LANEWISE_STRIDE", "40"))
ATTACH_STRIDE = min(STRIDE, 4)
CONFIG = {
    "name": "net1",
    "mtu": 4000,
    "mac": "02:00:00:00:00:77",
    "addresses": ["10.1.0.2/24", "fd00::2/64"],
    "routes": [{"destination": "10.50.0.0/16", "gateway": "10.1.0.1", "table": 100, "metric": 5}],
    "rules": [{"source": "10.1.0.2/32", "table": 100, "priority": 500}],
    "neighbors": [{"destination": "10.1.0.9", "mac": "02:00:00:00:00:0a"}],
    "sysctls": {"net.ipv4.conf.IFNAME.arp_ignore": 1, "net.ipv6.conf.IFNAME.accept_dad": 0},
    "ethtool": {"features": {"gro": True}},
}


def prepare_node() -> dict[str, t.Any]:
    """Create the interface `one` with many settings. Returns its state."""
    nodes.without_dad()
    nodes.pair("one")
    nodes.run("ip link set one alias up mtu 9000; ip link property add dev one altname enp1s0")
    with Ethtool() as tool:
        tool.set_features("one", {"tx-checksum-ip-generic": False})
    nodes.run("ip addr add 10.1.0.3/24 dev one; ip addr add fd00::3/64 dev one")
    nodes.run("ip route add 10.60.0.0/16 via 10.1.0.1 metric 9; ip rule add from 10.1.0.3 table 101 priority 700")
    nodes.run("echo 2 > /proc/sys/net/ipv4/conf/one/rp_filter")
    nodes.wait_for_ipv6()
    return interfaces.snapshot(ONE)


def settings_in(pod: nodes.Pod) -> str:
    """What iproute2 shows of the interface in the pod."""
    interfaces.wait_for_dad(pod.pin, {"net1": CONFIG["addresses"]})
    return pod.run(
        "ip -o link show net1 | sed 's/^[0-9]*//'; "
        "ip -o addr show net1 | sed 's/^[0-9]*//; s/ optimistic tentative//'; "
        "ip route show table 100; ip rule"
    )


@pytest.mark.parametrize("next_call", ["detach", "attach"])
def test_an_attach_killed_at_any_step_can_be_undone_or_repeated(next_call: str) -> None:
    @nodes.on_a_node
    def test() -> None:
        host = prepare_node()
        before = nodes.shown("one")
        with nodes.Pod("not-killed") as pod:
            interfaces.attach(ONE, host, CONFIG, pod.pin)
            wanted = settings_in(pod)
            assert interfaces.detach(ONE, host, pod.pin, CONFIG) == []
        runs = 0
        pods: list[nodes.Pod] = []

        def attach() -> None:
            interfaces.attach(ONE, host, CONFIG, pods[-1].pin)

        pods.append(nodes.Pod("0"))
        for step in killed_at_each_step(attach, ATTACH_STRIDE):
            pod = pods[-1]
            if next_call == "attach":
                interfaces.attach(ONE, host, CONFIG, pod.pin)
                assert settings_in(pod) == wanted, step
            assert interfaces.detach(ONE, host, pod.pin, CONFIG) == [], step
            assert interfaces.snapshot(ONE) == host, step
            assert nodes.shown("one") == before, step
            pod.end()
            pods.append(nodes.Pod(str(step + 1)))
            runs += 1
        assert runs > 10

    test()


@nodes.on_a_node
def test_a_detach_killed_at_any_step_is_finished_by_the_next_detach() -> None:
    host = prepare_node()
    before = nodes.shown("one")
    pods: list[nodes.Pod] = []

    def attach_to_a_new_pod() -> None:
        pods.append(nodes.Pod(str(len(pods))))
        interfaces.attach(ONE, host, CONFIG, pods[-1].pin)

    attach_to_a_new_pod()
    runs = 0
    for step in killed_at_each_step(lambda: interfaces.detach(ONE, host, pods[-1].pin, CONFIG), STRIDE):
        assert interfaces.detach(ONE, host, pods[-1].pin, CONFIG) == [], step
        assert interfaces.snapshot(ONE) == host, step
        assert nodes.shown("one") == before, step
        pods[-1].end()
        attach_to_a_new_pod()
        runs += 1
    assert runs > 10
