# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A pod that may change links cannot make the driver lose its interface, or mistake another one for it."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity

ONE = Identity(None, None, "one")
FABRIC = "ip netns add fabric 2>/dev/null; ip link set one-far netns fabric; ip -n fabric link set one-far up"

#: What a pod with rights on its own network does, and whether the driver can still take its interface back.
TRICKS = {
    "takes our mark off": ("ip link property del dev one altname lanewise-one", True),
    "puts our mark on a new veth": (
        "ip link property del dev one altname lanewise-one; ip link add fake type veth; "
        "ip link property add dev fake altname lanewise-one",
        True,
    ),
    "names a new veth as our mark": (
        "ip link property del dev one altname lanewise-one; ip link add lanewise-one type veth; "
        "ip link set lanewise-one up",
        True,
    ),
    "puts our mark on a veth with the same peer number": (
        "N=$(cat /sys/class/net/one/iflink 2>/dev/null || ip -o link show one | sed 's/.*@if\\([0-9]*\\):.*/\\1/'); "
        "ip link property del dev one altname lanewise-one; ip link add fake type veth peer name other index $N; "
        "ip link property add dev fake altname lanewise-one; ip link set one name two",
        True,
    ),
    "puts our mark on the cluster's interface": (
        "ip link property del dev one altname lanewise-one; ip link property add dev eth0 altname lanewise-one",
        True,
    ),
    "deletes it and makes a veth like it": (
        "N=$(ip -o link show one | sed 's/.*@if\\([0-9]*\\):.*/\\1/'); I=$(ip -o link show one | cut -d: -f1); "
        "ip link del one; ip link add one index $I type veth peer name other index $N; "
        "ip link property add dev one altname lanewise-one",
        False,
    ),
}


@pytest.mark.parametrize("peer", ["on the node", "elsewhere"])
@pytest.mark.parametrize("trick", TRICKS)
@nodes.on_a_node
def test_no_trick_of_a_pod_makes_the_driver_lose_or_mistake_its_interface(trick: str, peer: str) -> None:
    command, kept = TRICKS[trick]
    nodes.without_dad()
    nodes.pair("one")
    if peer == "elsewhere":
        nodes.run("mkdir -p /run/netns")
        nodes.run(FABRIC)
    nodes.run("ip addr add 10.1.0.2/24 dev one")
    nodes.wait_for_ipv6()
    before = nodes.shown("one")
    host = interfaces.snapshot(ONE)
    with nodes.Pod() as pod:
        nodes.run(f"ip link add eth0 type veth peer name cni0; ip link set cni0 up; ip link set eth0 netns {pod.pin}")
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(command)
        others = {line.split(":")[1].split("@")[0].strip() for line in pod.run("ip -o link").splitlines()}
        notes = interfaces.detach(ONE, host, pod.pin, {})
        if kept:
            nodes.wait_for_ipv6()
            assert notes == [] and nodes.shown("one") == before
            left = {line.split(":")[1].split("@")[0].strip() for line in pod.run("ip -o link").splitlines()}
            assert len(left) == len(others) - 1 and "eth0" in left
        elif peer == "elsewhere":
            # the interface is gone for good, and the one that the pod made stays in the pod
            assert "is gone" in notes[0]
            assert "one" in pod.run("ip -o link") and nodes.run("ip link show one", check=False) == ""


@nodes.on_a_node
def test_an_interface_is_found_by_a_record_without_a_mark() -> None:
    """Older drivers wrote such records. Only the altname counts."""
    nodes.without_dad()
    nodes.pair("one")
    nodes.wait_for_ipv6()
    before = nodes.shown("one")
    host = interfaces.snapshot(ONE)
    for later in ("mark", "attributes", "files", "programs", "driver"):
        del host[later]
    del host["ethtool"]["flowRules"], host["ethtool"]["spreading"]
    with nodes.Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        assert interfaces.locate(ONE, pod.pin, host).name == "net1"
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
    nodes.wait_for_ipv6()
    assert nodes.shown("one") == before


@nodes.on_a_node
def test_an_interface_is_found_after_its_peer_moved_to_another_namespace() -> None:
    nodes.pair("one")
    host = interfaces.snapshot(ONE)
    with nodes.Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        nodes.run(
            "mkdir -p /run/netns; ip netns add fabric; "
            "for n in a b c d e f; do ip -n fabric link add $n type veth; done"
        )
        nodes.run("ip link set one-far netns fabric; ip -n fabric link set one-far up")
        assert interfaces.locate(ONE, pod.pin, host).name == "net1"
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
        assert interfaces.locate(ONE, None).side == "host"


@nodes.on_a_node
def test_a_health_problem_names_its_cause() -> None:
    nodes.pair("one")
    host = interfaces.snapshot(ONE)
    pod = nodes.Pod()
    interfaces.attach(ONE, host, {"name": "net1", "addresses": []}, pod.pin)
    assert interfaces.health_problem(ONE, host, {"name": "net1"}, pod.pin) == ""
    nodes.run("ip link set one-far down")
    assert interfaces.health_problem(ONE, host, {"name": "net1"}, pod.pin) == "the link of net1 is down"
    pod.run("ip link set net1 down; ip link set net1 name other")
    assert interfaces.health_problem(ONE, host, {"name": "net1"}, pod.pin) == "other was set down in the pod"
    pod.run("ip link del other")
    assert interfaces.health_problem(ONE, host, {"name": "net1"}, pod.pin) == "its interface is gone"
    nodes.pair("two")
    assert interfaces.health_problem(Identity(None, None, "two"), host, {}, pod.pin).startswith(
        "its interface is on the node"
    )
    two = Identity(None, None, "two")
    host = interfaces.snapshot(two)
    child = {"name": "mac0", "child": {"type": "macvlan"}}
    interfaces.attach(two, host, child, pod.pin)
    assert interfaces.health_problem(two, host, child, pod.pin) == ""
    nodes.run("ip link set two-far down")
    until(lambda: interfaces.health_problem(two, host, child, pod.pin))  # the kernel reports it a moment later
    assert interfaces.health_problem(two, host, child, pod.pin) == "the link of mac0 is down"
    pod.run("ip link del mac0")
    assert interfaces.health_problem(two, host, child, pod.pin) == "its interface is gone"
    pod.end()
    assert "namespace is gone" in interfaces.health_problem(two, host, child, pod.pin)
