# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver finds the interface of a pod again, whatever a pod that may change links has done.

While a virtual interface is in a pod, it has an altname of the driver: `lanewise-one` for the interface `one`."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.host_state import HostState
from lanewise_driver.interface.interfaces import Identity

ONE = Identity(None, None, "one")
#: Moves the other end of the interface to the namespace `fabric`.
FABRIC = "mkdir -p /run/netns; ip netns add fabric; ip link set one-far netns fabric; ip -n fabric link set one-far up"

#: What a pod that may configure its network does.
TRICKS = {
    "removes the altname": "ip link property del dev one altname lanewise-one",
    "gives the altname to a new veth": (
        "ip link property del dev one altname lanewise-one; ip link add fake type veth; "
        "ip link property add dev fake altname lanewise-one"
    ),
    "gives the altname to a new veth as its name": (
        "ip link property del dev one altname lanewise-one; ip link add lanewise-one type veth; "
        "ip link set lanewise-one up"
    ),
    "gives the altname to a veth with the same peer index": (
        "N=$(cat /sys/class/net/one/iflink 2>/dev/null || ip -o link show one | sed 's/.*@if\\([0-9]*\\):.*/\\1/'); "
        "ip link property del dev one altname lanewise-one; ip link add fake type veth peer name other index $N; "
        "ip link property add dev fake altname lanewise-one; ip link set one name two"
    ),
    "gives the altname to the cluster's interface": (
        "ip link property del dev one altname lanewise-one; ip link property add dev eth0 altname lanewise-one"
    ),
}
#: Deletes the interface, and creates a veth with the same name, indexes and altname.
REPLACE = (
    "N=$(ip -o link show one | sed 's/.*@if\\([0-9]*\\):.*/\\1/'); I=$(ip -o link show one | cut -d: -f1); "
    "ip link del one; ip link add one index $I type veth peer name other index $N; "
    "ip link property add dev one altname lanewise-one"
)


def attach_one(pod: nodes.Pod) -> HostState:
    """Attach the interface `one` to a pod that also has an interface of the cluster."""
    host = interfaces.snapshot(ONE)
    nodes.run(f"ip link add eth0 type veth peer name cni0; ip link set cni0 up; ip link set eth0 netns {pod.pin}")
    interfaces.attach(ONE, host, {}, pod.pin)
    return host


def names_in(pod: nodes.Pod) -> set[str]:
    """The names of the interfaces in a pod."""
    return {line.split(":")[1].split("@")[0].strip() for line in pod.run("ip -o link").splitlines()}


@pytest.mark.parametrize("peer", ["on the node", "in another namespace"])
@pytest.mark.parametrize("trick", TRICKS)
@nodes.on_a_node
def test_detach_restores_the_right_interface_whatever_a_pod_does_with_its_names(trick: str, peer: str) -> None:
    nodes.without_dad()
    nodes.pair("one")
    if peer == "in another namespace":
        nodes.run(FABRIC)
    nodes.run("ip addr add 10.1.0.2/24 dev one")
    nodes.wait_for_ipv6()
    before = nodes.shown("one")
    with nodes.Pod() as pod:
        host = attach_one(pod)
        pod.run(TRICKS[trick])
        in_pod = names_in(pod)
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
        nodes.wait_for_ipv6()
        assert nodes.shown("one") == before
        left = names_in(pod)
        assert len(left) == len(in_pod) - 1 and "eth0" in left


@nodes.on_a_node
def test_a_veth_that_a_pod_created_like_its_deleted_interface_stays_in_the_pod() -> None:
    nodes.without_dad()
    nodes.pair("one")
    nodes.run(FABRIC)
    nodes.wait_for_ipv6()
    with nodes.Pod() as pod:
        host = attach_one(pod)
        pod.run(REPLACE)
        notes = interfaces.detach(ONE, host, pod.pin, {})
        assert "is gone" in notes[0]
        assert "one" in names_in(pod) and nodes.run("ip link show one", check=False) == ""


@nodes.on_a_node
def test_an_interface_is_found_with_a_record_of_an_older_driver() -> None:
    """Such a record lacks some keys. The altname identifies the interface."""
    nodes.without_dad()
    nodes.pair("one")
    nodes.wait_for_ipv6()
    before = nodes.shown("one")
    host = interfaces.snapshot(ONE)
    for key in ("mark", "attributes", "files", "programs", "driver"):
        del host[key]
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
    missing = "its interface is no longer in the pod's network namespace"
    assert interfaces.health_problem(ONE, host, {"name": "net1"}, pod.pin) == missing
    nodes.pair("two")
    two = Identity(None, None, "two")
    assert interfaces.health_problem(two, host, {}, pod.pin).startswith("its interface is on the node")
    host = interfaces.snapshot(two)
    child = {"name": "mac0", "child": {"type": "macvlan"}}
    interfaces.attach(two, host, child, pod.pin)
    assert interfaces.health_problem(two, host, child, pod.pin) == ""
    nodes.run("ip link set two-far down")
    until(lambda: interfaces.health_problem(two, host, child, pod.pin))  # the kernel reports it a moment later
    assert interfaces.health_problem(two, host, child, pod.pin) == "the link of mac0 is down"
    pod.run("ip link del mac0")
    assert interfaces.health_problem(two, host, child, pod.pin) == missing
    pod.end()
    assert "namespace is gone" in interfaces.health_problem(two, host, child, pod.pin)
