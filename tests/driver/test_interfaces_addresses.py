# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses and routes of interfaces in pods: when they can be used, and that they are restored completely."""

from __future__ import annotations

import sys
import time
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.base.errors import KernelError
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity

#: A program that binds a socket to an address.
_BIND = "import socket; s=socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('fd00::2',0)); print('bound')"


@nodes.on_a_node
def test_a_tentative_address_is_restored_completely() -> None:
    """After a boot, kubelet may start pods before the kernel has created the route of the link-local address. The
    driver must not treat this later route as one that the pod added."""
    nodes.node()
    nodes.run("echo 1 > /proc/sys/net/ipv6/conf/one/accept_dad")
    nodes.run("ip link set one down; ip link set one up; ip addr add fd00::77/64 dev one")
    shown = nodes.run("ip -o -6 addr show dev one")
    host = interfaces.snapshot(nodes.ONE)
    destinations = [route["destination"] for route in host["routes"] if route["table"] == 255 and route["type"] == 2]
    assert "fd00::77/128" not in destinations, shown
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1", "addresses": []}, pod.pin)
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    nodes.wait_for_ipv6()
    assert "fd00::77" in nodes.run("ip -6 route show table local dev one")
    assert "fe80::" in nodes.run("ip -6 route show table local dev one type local")
    nodes.run("ip addr del fd00::77/64 dev one")
    assert "fd00::77" not in nodes.run("ip -6 route show table local")


@nodes.on_a_node
def test_a_duplicate_address_is_reported() -> None:
    host = nodes.node()
    nodes.run("echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add fd00::2/64 dev one-far nodad")
    with nodes.Pod() as pod:
        config = {"name": "net1", "addresses": ["fd00::2/64"], "dad": "wait"}
        interfaces.attach(nodes.ONE, host, config, pod.pin)
        with pytest.raises(KernelError, match="another node has fd00::2/64"):
            interfaces.wait_for_dad(pod.pin, {"net1": config["addresses"]})
        assert interfaces.health_problem(nodes.ONE, host, config, pod.pin) == "another node has fd00::2/64 of net1"
        interfaces.detach(nodes.ONE, host, pod.pin, config)
        nodes.run("ip link set one-far down")
        notes = interfaces.attach(nodes.ONE, host, config, pod.pin).notes
        assert notes == ["net1 has no carrier yet"]
        (note,) = interfaces.wait_for_dad(pod.pin, {"net1": config["addresses"]}, timeout=0.1)
        assert "no carrier" in note
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []


@nodes.on_a_node
def test_addresses_can_be_used_before_they_are_proven_unique() -> None:
    """If another node has the address, the kernel disables it, and the driver reports that."""
    host = nodes.node()
    routes = [{"destination": "fd09::/32", "gateway": "fd00::9", "source": "fd00::2"}]
    config: dict[str, t.Any] = {"name": "net1", "addresses": ["fd00::2/64"], "routes": routes}
    with nodes.Pod() as pod:

        def attach(**more: t.Any) -> str:
            start = time.monotonic()
            network = interfaces.attach(nodes.ONE, host, {**config, **more}, pod.pin).network
            assert interfaces.wait_for_dad(pod.pin, {"net1": network["ips"]}) == []
            shown = pod.run("ip -o -6 addr show dev net1 to fd00::2")
            assert pod.run(f'{sys.executable} -c "{_BIND}"') == "bound\n"
            assert "src fd00::2 " in pod.run("ip -6 route get fd00::9")
            if time.monotonic() - start < 0.9:  # later, DAD may have ended
                assert ("tentative" in shown) == (more.get("dad") != "none")
            return shown

        for more in ({}, {"dad": "optimistic"}, {"dad": "none"}):
            shown = attach(**more)
            assert ("nodad" in shown) == (more.get("dad") == "none")
            assert interfaces.detach(nodes.ONE, host, pod.pin, {**config, **more}) == []
            assert interfaces.snapshot(nodes.ONE) == host
        # the kernel sends several probes, and another node gets the address before the last one
        attach(sysctls={"net.ipv6.conf.IFNAME.dad_transmits": 30})
        nodes.run("echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add fd00::2/64 dev one-far nodad")
        until(
            lambda: (
                interfaces.health_problem(nodes.ONE, host, config, pod.pin) == "another node has fd00::2/64 of net1"
            ),
            60,
        )
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
        # without optimistic DAD, the driver waits
        nodes.run("ip addr del fd00::2/64 dev one-far")
        not_optimistic = {"net.ipv6.conf.IFNAME.optimistic_dad": 0}
        network = interfaces.attach(nodes.ONE, host, {**config, "sysctls": not_optimistic}, pod.pin).network
        assert interfaces.wait_for_dad(pod.pin, {"net1": network["ips"]}) == []
        assert "tentative" not in pod.run("ip -o -6 addr show dev net1 to fd00::2")
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(nodes.ONE) == host


@nodes.on_a_node
def test_attach_waits_only_for_requested_addresses() -> None:
    """DAD takes at least a second for each IPv6 address, also for the link-local one that was not requested."""
    nodes.pair("one")
    nodes.run("ip addr add 10.1.0.2/24 dev one")
    nodes.wait_for_ipv6()
    host = interfaces.snapshot(nodes.ONE)
    with nodes.Pod() as pod:
        for config, waits in (
            ({"name": "net1"}, False),
            ({"name": "net1", "addresses": ["10.2.0.2/24"]}, False),
            ({"name": "net1", "addresses": ["10.2.0.2/24", "fd00:0:0::2/64"], "dad": "wait"}, True),
            ({"name": "net1", "addresses": ["fe80::77/64"], "dad": "wait"}, True),
        ):
            start = time.monotonic()
            network = interfaces.attach(nodes.ONE, host, config, pod.pin).network
            assert interfaces.wait_for_dad(pod.pin, {"net1": network["ips"]}) == []
            took = time.monotonic() - start
            assert waits or took < 1, took
            for address in network["ips"]:
                assert "tentative" not in pod.run(f"ip -o addr show to {address.partition('/')[0]}")
            assert len(network["ips"]) == len(config.get("addresses", ["the address of the node"]))
            assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []


@nodes.on_a_node
def test_addresses_are_restored_with_their_remaining_lifetimes() -> None:
    host = nodes.node(
        "ip addr add 10.1.0.2/24 dev one valid_lft 600 preferred_lft 300; ip addr add 10.2.0.2/24 dev one "
        "valid_lft 1 preferred_lft 1"
    )
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        time.sleep(2.1)
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    (now,) = interfaces.snapshot(nodes.ONE)["addresses"][:1]
    # the kernel counts whole seconds: each read and each write can lose up to one
    assert abs(now["validUntil"] - host["addresses"][0]["validUntil"]) <= 3
    assert abs(now["preferredUntil"] - host["addresses"][0]["preferredUntil"]) <= 3
    assert "10.2.0.2" not in nodes.run("ip addr show dev one")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_multipath_route_is_restored_when_both_interfaces_are_back(order: tuple[str, str]) -> None:
    @nodes.on_a_node
    def test() -> None:
        nodes.without_dad()
        for number, name in enumerate(order, 1):
            nodes.pair(name)
            nodes.run(f"ip addr add 10.{number}.0.2/24 dev {name}; ip addr add fd00:{number}::2/64 dev {name}")
        hops = "nexthop via 10.1.0.1 weight 3 nexthop via 10.2.0.1 weight 5"
        nodes.run(
            f"ip route add 10.50.0.0/16 metric 7 {hops}; ip route add 10.51.0.0/16 {hops}; ip route add default {hops}"
        )
        nodes.run("ip -6 route add fd50::/32 nexthop via fd00:1::1 nexthop via fd00:2::1 weight 4")
        nodes.wait_for_ipv6()
        before = [nodes.shown(name) for name in order]
        devices = [Identity(None, None, name) for name in order]
        hosts = [interfaces.snapshot(device) for device in devices]
        with nodes.Pod() as pod:
            for device, host in zip(devices, hosts):
                interfaces.attach(device, host, {}, pod.pin)
            notes = [interfaces.detach(device, host, pod.pin, {}) for device, host in zip(devices, hosts)]
        assert any("restored without next hops whose interfaces are missing" in note for note in notes[0])
        assert notes[1] == []
        assert [interfaces.snapshot(device) for device in devices] == hosts
        assert [nodes.shown(name) for name in order] == before

    test()


@nodes.on_a_node
def test_an_interface_whose_carrier_comes_late_is_restored_completely() -> None:
    """Hardware has no carrier for some seconds after it was set up."""
    host = nodes.node(
        "ip addr add 10.1.0.2/24 dev one; ip addr add fd00::2/64 dev one; ip route add 10.50.0.0/16 via 10.1.0.1",
        "ip -6 route add fd01::/32 via fd00::1 metric 9; ip -6 route add fd02::/32 via fd00::1 src fd00::2 table 100",
    )
    before = nodes.shown("one")
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        nodes.run("ip link set one-far down")
        notes = interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"})
        assert notes == [], notes
    nodes.run("ip link set one-far up")
    until(lambda: interfaces.snapshot(nodes.ONE) == host)  # the kernel reports the carrier a moment later
    nodes.wait_for_ipv6()
    assert interfaces.snapshot(nodes.ONE) == host
    assert nodes.shown("one") == before


@nodes.on_a_node
def test_a_node_without_ipv6_refuses_only_ipv6_settings() -> None:
    """The kernel of such a node has no IPv6 sysctls."""
    nodes.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1; mount -t tmpfs -o ro tmpfs /proc/sys/net/ipv6")
    nodes.run("ip link add one type veth peer name one-far; ip link set one-far up; ip link set one up")
    nodes.run("ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1")
    nodes.wait_for_ipv6()
    host = interfaces.snapshot(nodes.ONE)
    assert not any(".ipv6." in key for key in host["sysctls"])
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    assert interfaces.snapshot(nodes.ONE) == host
    config = {"addresses": ["fd00::2/64"], "dhcp": ["ipv4"], "sysctls": {"net.ipv6.conf.IFNAME.accept_ra": 0}}
    assert {problem.path for problem in interfaces.check(nodes.ONE, config)} == {
        "addresses",
        "sysctls['net.ipv6.conf.IFNAME.accept_ra']",
    }
