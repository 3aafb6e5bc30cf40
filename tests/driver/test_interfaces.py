# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a pod gets of an InterfaceConfig, what is refused, and what is left after a failure; on veth and macvlan."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import struct
import sys
import threading
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.nodes import (
    Pod,
    on_a_node,
    pair,
    run,
    shown,
    wait_for_ipv6,
    without_dad,
)
from lanewise_driver.base.errors import KernelError, Refused
from lanewise_driver.interface import identity, interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import addresses, links, sysctls
from lanewise_driver.kernel.ethtool import Ethtool
from lanewise_driver.kernel.netlink import Netlink

ONE = Identity(None, None, "one")


def node(*commands: str) -> dict[str, t.Any]:
    """What is on the node after commands, each of which may need the addresses of the one before."""
    without_dad()
    pair("one")
    wait_for_ipv6()
    for command in commands:
        run(command)
        wait_for_ipv6()
    return interfaces.snapshot(ONE)


@on_a_node
def test_everything_of_a_configuration_is_in_the_pod() -> None:
    host = node("ip addr add 10.9.0.2/24 dev one")
    config = {
        "name": "net1",
        "addresses": ["10.1.0.2/24", "fd00::2/64"],
        "mtu": 4000,
        "mac": "02:00:00:00:00:77",
        "gsoMaxSize": 30000,
        "groMaxSize": 20000,
        "routes": [
            {"destination": "10.50.0.0/16", "gateway": "10.1.0.1", "source": "10.1.0.2", "metric": 7, "mtu": 1400},
            {"destination": "10.51.0.0/16", "gateway": "10.77.0.1", "onlink": True, "table": 4000},
            {"destination": "10.52.0.0/16", "scope": "link"},
            {
                "destination": "10.53.0.0/16",
                "multipath": [{"gateway": "10.1.0.8", "weight": 3}, {"gateway": "10.88.0.9", "onlink": True}],
            },
            {"destination": "fd01::/32", "gateway": "fd00::1", "source": "fd00::2"},
            {"destination": "fd02::/32", "multipath": [{"gateway": "fd00::8"}, {"gateway": "fd00::9", "weight": 2}]},
        ],
        "rules": [
            {
                "source": "10.1.0.2/32",
                "destination": "10.0.0.0/8",
                "table": 4000,
                "priority": 11,
                "fwmark": 5,
                "fwmask": 15,
                "iif": "lo",
                "oif": "net1",
                "tos": 16,
                "ipproto": "udp",
                "sourcePort": 99,
                "destinationPort": 4791,
            },
            {"family": "ipv6", "table": 4000, "priority": 12, "iif": "net1"},
        ],
        "neighbors": [{"destination": "10.1.0.9", "mac": "02:00:00:00:00:0a"}],
        "sysctls": {"net.ipv4.conf.IFNAME.arp_announce": 2, "net.ipv6.neigh.IFNAME.gc_stale_time": "33"},
        "ethtool": {"features": {"tso": False, "rx-gro": True}},
    }
    with Pod() as pod:
        assert interfaces.check(ONE, config) == []
        got = interfaces.attach(ONE, host, config, pod.pin)
        assert interfaces.settle(pod.pin, {"net1": got.network["ips"]}) == []
        assert got.network == {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:00:00:00:77",
            "ips": ["10.1.0.2/24", "fd00::2/64"],
        }
        (link,) = json.loads(pod.run("ip -d -j link show net1"))
        assert (link["mtu"], link["address"], link["gso_max_size"], link["gro_max_size"], link["operstate"]) == (
            4000,
            "02:00:00:00:00:77",
            30000,
            20000,
            "UP",
        )
        four = pod.run("ip -4 route show table all")
        for line in (
            "10.50.0.0/16 via 10.1.0.1 dev net1 proto static src 10.1.0.2 metric 7 mtu 1400",
            "10.51.0.0/16 via 10.77.0.1 dev net1 table 4000 proto static onlink",
            "10.52.0.0/16 dev net1 proto static scope link",
            "nexthop via 10.1.0.8 dev net1 weight 3",
            "nexthop via 10.88.0.9 dev net1 weight 1 onlink",
        ):
            assert line in four
        six = pod.run("ip -6 route")
        assert "fd01::/32 via fd00::1 dev net1 proto static src fd00::2" in six
        assert re.search(
            r"fd02::/32 proto static.*\n\tnexthop via fd00::8 .*\n\tnexthop via fd00::9 dev net1 weight 2", six
        )
        assert (
            "11:\tfrom 10.1.0.2 to 10.0.0.0/8 tos lowdelay fwmark 0x5/0xf iif lo oif net1 ipproto udp sport 99 "
            "dport 4791 lookup 4000 proto static" in pod.run("ip rule").replace("0x10", "lowdelay")
        )
        assert "12:\tfrom all iif net1 lookup 4000 proto static" in pod.run("ip -6 rule")
        assert "10.1.0.9 lladdr 02:00:00:00:00:0a PERMANENT" in pod.run("ip neigh show dev net1")
        assert (
            pod.run("cat /proc/sys/net/ipv4/conf/net1/arp_announce /proc/sys/net/ipv6/neigh/net1/gc_stale_time")
            == "2\n33\n"
        )
        with Ethtool(pod.pin) as tool:
            features = tool.features("net1")
        assert features["rx-gro"] and not features["tx-tcp-segmentation"] and not features["tx-tcp6-segmentation"]
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE) == host


@on_a_node
def test_without_configuration_the_addresses_of_the_node_go_along() -> None:
    host = node(
        """ip addr add 10.1.0.2/24 dev one; ip addr add fd00::2/64 dev one; ip addr add 10.1.0.3/24 dev one scope link
        ip route add 10.50.0.0/16 via 10.1.0.1 metric 77
        ip route add default via 10.1.0.1 metric 900; ip route add default via 10.1.0.1 table 100
        ip rule add from 10.1.0.2 fwmark 7 lookup 100 priority 50; ip rule add iif one lookup 100 priority 51
        ip rule add from all lookup 100 priority 52; ip neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev one"""
    )
    with Pod() as pod:
        got = interfaces.attach(ONE, host, {}, pod.pin)
        assert got.network["interfaceName"] == "one"
        assert got.network["ips"] == ["10.1.0.2/24", "fd00::2/64"]
        assert "10.50.0.0/16 via 10.1.0.1 dev one proto static metric 77" in pod.run("ip route")
        assert "default" not in pod.run("ip route")  # the pod's own network has that
        assert "default via 10.1.0.1 dev one" in pod.run("ip route show table 100")
        rules = pod.run("ip rule")
        assert "50:\tfrom 10.1.0.2 fwmark 0x7 lookup 100" in rules  # with all that it selects by
        assert "51:" not in rules and "52:" not in rules
        assert "10.1.0.9" in pod.run("ip neigh show nud permanent")
        interfaces.detach(ONE, host, pod.pin, {})
        got = interfaces.attach(ONE, host, {"addresses": []}, pod.pin)
        assert got.network["ips"] == []
        interfaces.detach(ONE, host, pod.pin, {"addresses": []})
    assert interfaces.snapshot(ONE) == host


@on_a_node
def test_an_address_that_was_not_proven_unique_yet_is_whole_when_it_comes_back() -> None:
    """As after a boot, when the kubelet starts pods before the kernel has made the link-local address' own route. The
    route that the kernel makes later is no addition of the pod's."""
    node()
    run("echo 1 > /proc/sys/net/ipv6/conf/one/accept_dad")
    run("ip link set one down; ip link set one up; ip addr add fd00::77/64 dev one")
    told = run("ip -o -6 addr show dev one")
    host = interfaces.snapshot(ONE)
    made = [route["destination"] for route in host["routes"] if route["table"] == 255 and route["type"] == 2]
    assert "fd00::77/128" not in made, told
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1", "addresses": []}, pod.pin)
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    wait_for_ipv6()
    assert "fd00::77" in run("ip -6 route show table local dev one")
    assert "fe80::" in run("ip -6 route show table local dev one type local")
    run("ip addr del fd00::77/64 dev one")
    assert "fd00::77" not in run("ip -6 route show table local")


@on_a_node
def test_a_rule_that_was_deleted_meanwhile_stays_deleted() -> None:
    """Rules are the node's, whether the interface is there or not; those that nobody deleted work again."""
    host = node(
        """ip addr add 10.1.0.2/24 dev one; ip route add default via 10.1.0.1 dev one table 100
        ip rule add from 10.1.0.2 lookup 100 priority 50; ip rule add from all iif one lookup 100 priority 51"""
    )
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        run("ip rule del priority 50")
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    now = interfaces.snapshot(ONE)
    assert [rule["priority"] for rule in host["rules"]] == [50, 51] and [r["priority"] for r in now["rules"]] == [51]
    assert {**now, "rules": host["rules"]} == host
    assert "detached" not in run("ip rule")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"name": "taken"}, "File exists"),
        ({"mtu": 65535, "gsoMaxSize": 600000}, "Numerical result out of range|Invalid argument"),
        (
            {"addresses": ["10.1.0.2/24"], "routes": [{"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}]},
            "10.9.0.0/16",
        ),
        ({"addresses": [], "routes": [{"destination": "fd01::/32", "gateway": "fd00::1"}]}, "fd01::/32"),
        ({"ethtool": {"features": {"no-such": True}}}, "no-such"),
        ({"ethtool": {"privateFlags": {"no-such": True}}}, "no-such"),
        ({"ethtool": {"rings": {"rx": 512}}}, "rings"),
        ({"sysctls": {"net.ipv4.conf.IFNAME.nothing": 1}}, "nothing"),
        ({"mtu": 1000, "sysctls": {"net.ipv6.conf.IFNAME.accept_ra": 1}}, "accept_ra"),
        ({"vrf": {"name": "taken", "table": 100}}, "VRF taken"),
        ({"vf": {"vlan": 5}}, "not a virtual function"),
    ],
)
def test_what_fails_leaves_everything_on_the_node(config: dict[str, t.Any], says: str) -> None:
    @on_a_node
    def test() -> None:
        host = node("ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1 metric 77")
        before = shown("one")
        with Pod() as pod:
            pod.run("ip link add taken type veth peer name taken2; sysctl -qw net.ipv6.conf.default.accept_dad=0")
            with pytest.raises((KernelError, Refused), match=says):
                interfaces.attach(ONE, host, config, pod.pin)
            assert interfaces.where(ONE, pod.pin).side == "host"
            assert "one" not in pod.run("ip link")
        assert interfaces.snapshot(ONE) == host
        assert shown("one") == before

    test()


@on_a_node
def test_check_names_the_field() -> None:
    host = node()
    config = {
        "mtu": 70000,
        "gsoMaxSize": 524281,
        "ethtool": {"features": {"tso": False, "nope": True}, "privateFlags": {"x": True}, "rings": {"rx": 512}},
        "sysctls": {"net.ipv4.conf.IFNAME.no_such": 1, "net.ipv4.conf.IFNAME.rp_filter": 1},
        "vf": {"vlan": 3},
    }
    said = {problem.path for problem in interfaces.check(ONE, config, "config")}
    assert said == {
        "config.mtu",
        "config.gsoMaxSize",
        "config.ethtool.features.nope",
        "config.ethtool.privateFlags.x",
        "config.ethtool.rings.rx",
        "config.sysctls['net.ipv4.conf.IFNAME.no_such']",
        "config.vf",
    }
    assert [problem.path for problem in interfaces.check(ONE, {"mtu": 9000, "child": {"type": "macvlan"}})] == ["mtu"]
    assert interfaces.snapshot(ONE) == host
    with pytest.raises(KernelError, match="not on the node"):
        interfaces.check(Identity(None, None, "nothing"), {})


@on_a_node
def test_what_the_kernel_will_refuse_is_known_before() -> None:
    """Without touching the interface or the node: an attach that fails is final for a pod that is not restarted."""
    host = node("ip addr add 10.1.0.2/24 dev one")
    far = {"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}
    near = {"destination": "10.8.0.0/16", "gateway": "10.1.0.1"}
    six = {"destination": "fd01::/32", "gateway": "fd00::1"}
    for config, paths in (
        ({"addresses": ["10.1.0.7/24"], "routes": [near, far]}, ["routes[1]"]),
        ({"addresses": ["10.1.0.7/24"], "routes": [near, {**far, "onlink": True}]}, []),
        ({"addresses": [], "routes": [near]}, ["routes[0]"]),
        ({"addresses": [], "routes": [six]}, ["routes[0]"]),
        ({"addresses": ["fd00::2/64"], "routes": [{**six, "source": "fd00::2"}]}, []),
        ({"routes": [near]}, []),  # by the address that goes along
        ({"routes": [far, near]}, ["routes[0]"]),
        # a route to the gateway makes it reachable, in whatever order
        ({"routes": [far, {"destination": "10.66.0.0/16", "scope": "link"}]}, []),
        ({"routes": [{**near, "multipath": [{"gateway": "10.1.0.8"}, {"gateway": "10.67.0.9"}]}]}, ["routes[0]"]),
        ({"routes": [{**near, "source": "10.77.0.7"}]}, []),  # another interface of the pod may have it
        ({"dhcp": ["ipv4"], "routes": [far]}, []),  # who knows what is leased
        ({"name": "net1", "child": {"type": "macvlan"}, "addresses": [], "routes": [near]}, ["routes[0]"]),
        ({"sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}, "rules": [{"source": "10.1.0.7/32", "table": 9}]}, []),
        ({"neighbors": [{"destination": "10.1.0.9", "mac": "02:00:00:00:00:09"}]}, []),
    ):
        for route in config.get("routes", ()):
            if "multipath" in route:
                route.pop("gateway")
        for _twice in range(2):
            found = interfaces.check(ONE, config, "config")
            assert [problem.path for problem in found] == [f"config.{path}" for path in paths], (config, found)
            assert all("the kernel refuses it: " in problem.message for problem in found)
    assert interfaces.snapshot(ONE) == host


@on_a_node
def test_a_feature_that_is_fixed_in_the_wanted_state_is_accepted() -> None:
    """veth has no large receive offload: what asks for just that has it, and what asks for more is refused."""
    host = node()
    config = {
        "name": "net1",
        "ethtool": {"features": {"large-receive-offload": False, "rx-ntuple-filter": False, "tso": False}},
    }
    assert interfaces.check(ONE, config) == []
    with Pod() as pod:
        interfaces.attach(ONE, host, config, pod.pin)
        with Ethtool(pod.pin) as tool:
            assert not tool.features("net1")["tx-tcp-segmentation"]
            assert tool.fixed_features("net1")["rx-lro"] is False
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE) == host
    for feature in ("lro", "large-receive-offload", "rx-lro"):
        (problem,) = interfaces.check(ONE, {"ethtool": {"features": {feature: True}}})
        assert problem.path.startswith("ethtool.features") and feature in problem.path


@on_a_node
def test_a_virtual_interface_that_died_with_its_namespace_is_told() -> None:
    host = node()
    pod = Pod()
    interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
    pod.end()
    until(lambda: not run("ip link show one-far", check=False))  # its peer goes with it
    assert interfaces.where(ONE, pod.pin) == interfaces.Place("missing")
    (note,) = interfaces.detach(ONE, host, pod.pin, {"name": "net1"})
    assert "gone" in note
    pair("one", "two")  # another one of this name is left alone
    wait_for_ipv6()
    other = interfaces.snapshot(ONE)
    assert interfaces.detach(ONE, host, None, {"name": "net1"}) == []
    assert interfaces.snapshot(ONE) == other
    (note,) = interfaces.detach(Identity("0000:ff:1f.7", None, "one"), host, None, {})
    assert "no PCI function" in note  # to wait for it would keep its pod forever


@on_a_node
def test_a_function_without_an_interface_is_waited_for() -> None:
    host = node()
    functions = sorted(one for one in os.listdir(identity.PCI) if not os.path.exists(f"{identity.PCI}/{one}/net"))
    if not functions:
        pytest.skip("this machine has no PCI function without an interface")
    with pytest.raises(KernelError, match="in no network namespace that"):
        interfaces.detach(Identity(functions[0], None, "one"), host, None, {})


@on_a_node
def test_its_name_on_the_node_may_be_taken_meanwhile() -> None:
    host = node("ip addr add 10.1.0.2/24 dev one")
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        pair("one", "two")
        notes = interfaces.detach(ONE, host, pod.pin, {"name": "net1"})
        assert notes and "the name one is taken by another interface" in notes[0]
        place = interfaces.where(Identity(None, None, notes[0].split()[-1]), pod.pin)
        assert place.side == "host"
        assert "10.1.0.2/24" in run(f"ip addr show dev {place.name}")


@on_a_node
def test_a_duplicate_address_is_found() -> None:
    host = node()
    run("echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add fd00::2/64 dev one-far nodad")
    with Pod() as pod:
        config = {"name": "net1", "addresses": ["fd00::2/64"], "dad": "wait"}
        interfaces.attach(ONE, host, config, pod.pin)
        with pytest.raises(KernelError, match="another node has fd00::2/64"):
            interfaces.settle(pod.pin, {"net1": config["addresses"]})
        assert interfaces.health_problem(ONE, host, config, pod.pin) == "another node has fd00::2/64 of net1"
        interfaces.detach(ONE, host, pod.pin, config)
        run("ip link set one-far down")
        notes = interfaces.attach(ONE, host, config, pod.pin).notes
        assert notes == ["net1 has no carrier yet"]
        (note,) = interfaces.settle(pod.pin, {"net1": config["addresses"]}, timeout=0.1)
        assert "no carrier" in note
        assert interfaces.detach(ONE, host, pod.pin, config) == []


#: What a program does that serves at the address.
_USE = "import socket; s=socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('fd00::2',0)); print('used')"


@on_a_node
def test_addresses_can_be_used_before_they_are_proven_unique() -> None:
    """And one that another node turns out to have is told, as the kernel takes it out of use."""
    host = node()
    routes = [{"destination": "fd09::/32", "gateway": "fd00::9", "source": "fd00::2"}]
    config: dict[str, t.Any] = {"name": "net1", "addresses": ["fd00::2/64"], "routes": routes}
    with Pod() as pod:

        def attach(**more: t.Any) -> str:
            start = time.monotonic()
            network = interfaces.attach(ONE, host, {**config, **more}, pod.pin).network
            assert interfaces.settle(pod.pin, {"net1": network["ips"]}) == []
            told = pod.run("ip -o -6 addr show dev net1 to fd00::2")
            assert pod.run(f'{sys.executable} -c "{_USE}"') == "used\n"
            assert "src fd00::2 " in pod.run("ip -6 route get fd00::9")
            if time.monotonic() - start < 0.9:  # else it may be proven meanwhile
                assert ("tentative" in told) == (more.get("dad") != "none")
            return told

        for more in ({}, {"dad": "optimistic"}, {"dad": "none"}):
            told = attach(**more)
            assert ("nodad" in told) == (more.get("dad") == "none")
            assert interfaces.detach(ONE, host, pod.pin, {**config, **more}) == []
            assert interfaces.snapshot(ONE) == host
        # the kernel asks more than once, and another node is there when it asks again
        attach(sysctls={"net.ipv6.conf.IFNAME.dad_transmits": 30})
        run("echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add fd00::2/64 dev one-far nodad")
        until(
            lambda: interfaces.health_problem(ONE, host, config, pod.pin) == "another node has fd00::2/64 of net1", 60
        )
        assert interfaces.detach(ONE, host, pod.pin, config) == []
        # a claim that switches the kernel's help off waits
        run("ip addr del fd00::2/64 dev one-far")
        switched = {"net.ipv6.conf.IFNAME.optimistic_dad": 0}
        network = interfaces.attach(ONE, host, {**config, "sysctls": switched}, pod.pin).network
        assert interfaces.settle(pod.pin, {"net1": network["ips"]}) == []
        assert "tentative" not in pod.run("ip -o -6 addr show dev net1 to fd00::2")
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE) == host


@on_a_node
def test_only_addresses_that_were_asked_for_are_waited_for() -> None:
    """Each IPv6 address takes a second or more to be proven unique, the link-local one that nobody asked for too."""
    pair("one")
    run("ip addr add 10.1.0.2/24 dev one")
    wait_for_ipv6()
    host = interfaces.snapshot(ONE)
    with Pod() as pod:
        for config, takes in (
            ({"name": "net1"}, False),
            ({"name": "net1", "addresses": ["10.2.0.2/24"]}, False),
            ({"name": "net1", "addresses": ["10.2.0.2/24", "fd00:0:0::2/64"], "dad": "wait"}, True),
            ({"name": "net1", "addresses": ["fe80::77/64"], "dad": "wait"}, True),
        ):
            start = time.monotonic()
            network = interfaces.attach(ONE, host, config, pod.pin).network
            assert interfaces.settle(pod.pin, {"net1": network["ips"]}) == []
            took = time.monotonic() - start
            assert takes or took < 1, took  # duplicate detection takes a second at least
            for address in network["ips"]:
                assert "tentative" not in pod.run(f"ip -o addr show to {address.partition('/')[0]}")
            assert len(network["ips"]) == len(config.get("addresses", ["the node's"]))
            assert interfaces.detach(ONE, host, pod.pin, config) == []


@on_a_node
def test_a_child_leaves_its_parent_on_the_node() -> None:
    host = node("ip link set one down; ip addr add 10.1.0.2/24 dev one")
    config = {
        "name": "net1",
        "child": {"type": "macvlan", "mode": "private"},
        "mac": "02:00:00:00:00:66",
        "addresses": ["10.1.0.7/24"],
        "mtu": 1400,
    }
    with Pod() as pod, Pod("second") as second:
        got = interfaces.attach(ONE, host, config, pod.pin)
        assert got.network == {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:00:00:00:66",
            "ips": ["10.1.0.7/24"],
        }
        (link,) = json.loads(pod.run("ip -d -j link show net1"))
        assert link["linkinfo"] == {"info_kind": "macvlan", "info_data": {"mode": "private", **_macvlan(link)}}
        assert interfaces.where(ONE, pod.pin).side == "host"
        assert interfaces.attach(ONE, host, config, pod.pin).network == got.network  # again
        other = {**config, "mac": "02:00:00:00:00:67"}
        interfaces.attach(ONE, host, other, second.pin)
        assert interfaces.detach(ONE, host, pod.pin, config) == []
        assert "net1" not in pod.run("ip link")
        assert interfaces.where(ONE, None).side == "host"
        assert interfaces.detach(ONE, host, second.pin, other) == []
        assert interfaces.detach(ONE, host, second.pin, other) == []
        pod.run("ip link add net1 type veth peer name net2")
        with pytest.raises(KernelError, match="File exists"):
            interfaces.attach(ONE, host, config, pod.pin)
        assert "net1" in pod.run("ip link")
    assert interfaces.snapshot(ONE) == host


def _macvlan(link: dict[str, t.Any]) -> dict[str, t.Any]:
    return {key: value for key, value in link["linkinfo"]["info_data"].items() if key != "mode"}


@on_a_node
def test_never_into_the_nodes_own_namespace() -> None:
    host = node()
    with pytest.raises(Refused):
        interfaces.attach(ONE, host, {}, interfaces.Path(f"/proc/{os.getpid()}/ns/net"))
    pod = Pod()
    pod.end()
    with pytest.raises(KernelError, match="gone"):
        interfaces.attach(ONE, host, {}, pod.pin)


@on_a_node
def test_addresses_with_an_end_keep_it() -> None:
    host = node(
        "ip addr add 10.1.0.2/24 dev one valid_lft 600 preferred_lft 300; ip addr add 10.2.0.2/24 dev one "
        "valid_lft 1 preferred_lft 1"
    )
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        time.sleep(2.1)
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    (now,) = interfaces.snapshot(ONE)["addresses"][:1]
    assert abs(now["validUntil"] - host["addresses"][0]["validUntil"]) <= 1
    assert abs(now["preferredUntil"] - host["addresses"][0]["preferredUntil"]) <= 1
    assert "10.2.0.2" not in run("ip addr show dev one")


@on_a_node
def test_snapshot_takes_what_iproute2_tells() -> None:
    node("ip addr add 10.1.0.2/24 dev one")
    with Netlink() as connection:
        ours = {link.name: link for link in links.listed(connection)}
    theirs = {link["ifname"]: link for link in json.loads(run("ip -d -j link"))}
    assert set(ours) == set(theirs)
    for name, link in theirs.items():
        assert (ours[name].mtu, ours[name].index) == (link["mtu"], link["ifindex"])
        assert ours[name].up == ("UP" in link["flags"])
        assert ours[name].kind == link.get("linkinfo", {}).get("info_kind", "")


def test_an_interface_is_found_by_its_pci_address() -> None:
    """Those of the machine that the tests run on; they are only looked at."""
    seen = 0
    for name in os.listdir("/sys/class/net"):
        device = os.path.realpath(f"/sys/class/net/{name}/device")
        match = re.search(r"/([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:/virtio[0-9]+)?$", device)
        if match is None:
            continue
        for hint in (name, "lo", "nothing"):
            place = interfaces.where(Identity(match.group(1), None, hint), None)
            assert (place.side, place.name) == ("host", name)
        state = interfaces.snapshot(Identity(match.group(1), None, "nothing"))
        with open(f"/sys/class/net/{name}/address") as file:
            assert (state["name"], state["mac"]) == (name, file.read().strip())
        seen += 1
    assert interfaces.where(Identity("0000:ff:1f.7", None, "lo"), None).side == "missing"
    if not seen:
        pytest.skip("this machine has no network interface on PCI")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_route_by_two_interfaces_is_whole_when_both_are_back(order: tuple[str, str]) -> None:
    @on_a_node
    def test() -> None:
        without_dad()
        for place, name in enumerate(order):
            pair(name)
            run(f"ip addr add 10.{place + 1}.0.2/24 dev {name}; ip addr add fd00:{place + 1}::2/64 dev {name}")
        hops = "nexthop via 10.1.0.1 weight 3 nexthop via 10.2.0.1 weight 5"
        run(f"ip route add 10.50.0.0/16 metric 7 {hops}; ip route add 10.51.0.0/16 {hops}; ip route add default {hops}")
        run("ip -6 route add fd50::/32 nexthop via fd00:1::1 nexthop via fd00:2::1 weight 4")
        wait_for_ipv6()
        before = [shown(name) for name in order]
        devices = [Identity(None, None, name) for name in order]
        hosts = [interfaces.snapshot(device) for device in devices]
        with Pod() as pod:
            for device, host in zip(devices, hosts):
                interfaces.attach(device, host, {}, pod.pin)
            notes = [interfaces.detach(device, host, pod.pin, {}) for device, host in zip(devices, hosts)]
        assert any("restored without next hops whose interfaces are missing" in note for note in notes[0])
        assert notes[1] == []
        assert [interfaces.snapshot(device) for device in devices] == hosts
        assert [shown(name) for name in order] == before

    test()


@on_a_node
def test_interfaces_come_and_go_side_by_side() -> None:
    without_dad()
    names = [f"nic{place}" for place in range(6)]
    for place, name in enumerate(names):
        pair(name)
        run(f"ip addr add 10.{place}.0.2/24 dev {name}; ip route add 10.{50 + place}.0.0/16 via 10.{place}.0.1")
        run(f"ip rule add from 10.{place}.0.2 iif {name} table {100 + place}")
    wait_for_ipv6()
    before = [shown(name) for name in names]

    def work(name: str) -> None:
        device = Identity(None, None, name)
        host = interfaces.snapshot(device)
        with Pod(name) as pod:
            for _unused in range(3):
                interfaces.attach(device, host, {"name": "net1"}, pod.pin)
                assert interfaces.detach(device, host, pod.pin, {"name": "net1"}) == []
        assert interfaces.snapshot(device) == host

    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(work, names)) == [None] * len(names)
    assert [shown(name) for name in names] == before


@on_a_node
def test_a_link_that_comes_up_late_gets_all_back() -> None:
    """As hardware does: it has no carrier for seconds after it was set up."""
    host = node(
        "ip addr add 10.1.0.2/24 dev one; ip addr add fd00::2/64 dev one; ip route add 10.50.0.0/16 via 10.1.0.1",
        "ip -6 route add fd01::/32 via fd00::1 metric 9; ip -6 route add fd02::/32 via fd00::1 src fd00::2 table 100",
    )
    before = shown("one")
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        run("ip link set one-far down")
        notes = interfaces.detach(ONE, host, pod.pin, {"name": "net1"})
        assert notes == [], notes
    run("ip link set one-far up")
    until(lambda: interfaces.snapshot(ONE) == host)  # the kernel sees the link a moment later
    wait_for_ipv6()
    assert interfaces.snapshot(ONE) == host
    assert shown("one") == before


@on_a_node
def test_names_may_be_any_bytes() -> None:
    without_dad()
    for place, raw in enumerate((b"o.n\xff", b"$(id) ;=".replace(b" ", b""), b"..a", b"-x")):
        name, far = os.fsdecode(raw), f"far{place}"
        run(f"ip link add name {far} type veth; ip link set {far} up")
        with Netlink() as connection:
            (link,) = [one for one in links.listed(connection) if one.name.startswith("veth")]
            links.change(connection, link.index, links.netlink.text(links.IFLA_IFNAME, name))
            links.set_up(connection, link.index, True)
            addresses.add(connection, link.index, {"address": f"10.1.{place}.2/24"})
        wait_for_ipv6()
        device = Identity(None, None, name)
        host = json.loads(json.dumps(interfaces.snapshot(device)))  # as in a record
        assert host["name"] == name and host["ethtool"]["features"]
        assert f"net.ipv4.conf.{sysctls.IFNAME}.rp_filter" in host["sysctls"]
        with Pod() as pod:
            interfaces.attach(device, host, {"name": "net1", "mtu": 1400}, pod.pin)
            assert interfaces.detach(device, host, pod.pin, {"name": "net1"}) == []
        assert interfaces.snapshot(device) == host


@on_a_node
def test_udev_may_rename_what_comes_back() -> None:
    """udev gives an interface that appears the name of its rules, at any moment of its restoring."""
    host = node(
        """ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1
        sysctl -qw net.ipv4.conf.one.rp_filter=2"""
    )
    renamed = 0

    def rename(after: float) -> None:
        nonlocal renamed
        with Netlink() as connection:
            while not ended.is_set():
                link = links.get(connection, name="one")
                if link is not None:
                    time.sleep(after)
                    with contextlib.suppress(OSError):
                        links.change(connection, link.index, links.netlink.text(links.IFLA_IFNAME, "enp9s0"))
                        renamed += 1
                    return

    for turn in range(8):
        with Pod() as pod:
            interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
            ended = threading.Event()
            udev = threading.Thread(target=rename, args=(turn * 0.003,))
            udev.start()
            notes = interfaces.detach(ONE, host, pod.pin, {"name": "net1"})
            ended.set()
            udev.join()
        if run("ip link show dev enp9s0", check=False):  # after the last look: nothing can be done about it then
            run("ip link set enp9s0 name one")
        else:
            assert notes == [] and interfaces.snapshot(ONE) == host
    assert renamed >= 4


@on_a_node
def test_all_its_names_may_be_taken_meanwhile() -> None:
    """By names and other names of another interface; with those gone, the next detach makes it whole."""
    host = node("ip addr add 10.1.0.2/24 dev one; ip link property add dev one altname enp9s0")
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        pair("two", "net1")  # so that it cannot even come under the name that it has there
        run("ip link property add dev two altname one altname enp9s0")
        notes = interfaces.detach(ONE, host, pod.pin, {"name": "net1"})
        assert any("the name one is taken by another interface" in note for note in notes)
        assert any(note.startswith("altname enp9s0") for note in notes)
        run("ip link property del dev two altname one altname enp9s0")
        back = interfaces.where(Identity(None, None, re.findall("this one is ([a-z0-9]+)", notes[0])[0]), None)
        assert back.side == "host" and "10.1.0.2/24" in run(f"ip addr show dev {back.name}")


@on_a_node
def test_a_node_without_ipv6() -> None:
    """Its kernel has no sysctls of IPv6; what asks for IPv6 is refused, and nothing else."""
    run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1; mount -t tmpfs -o ro tmpfs /proc/sys/net/ipv6")
    run("ip link add one type veth peer name one-far; ip link set one-far up; ip link set one up")
    run("ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1")
    wait_for_ipv6()
    host = interfaces.snapshot(ONE)
    assert not any(".ipv6." in key for key in host["sysctls"])
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    assert interfaces.snapshot(ONE) == host
    config = {"addresses": ["fd00::2/64"], "dhcp": ["ipv4"], "sysctls": {"net.ipv6.conf.IFNAME.accept_ra": 0}}
    assert {problem.path for problem in interfaces.check(ONE, config)} == {
        "addresses",
        "sysctls['net.ipv6.conf.IFNAME.accept_ra']",
    }


@on_a_node
def test_an_xdp_program_that_a_pod_left_is_taken_away() -> None:
    host = node()
    program = xdp_program()
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        with Netlink(pod.pin) as connection:
            link = links.get(connection, name="net1")
            assert link is not None
            to_this = links.netlink.attribute(1, struct.pack("=i", program))  # IFLA_XDP_FD
            links.change(connection, link.index, links.netlink.nest(links.IFLA_XDP, to_this))
        assert "xdp" in pod.run("ip link show net1")
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    assert "xdp" not in run("ip link show one") and interfaces.snapshot(ONE) == host
    with Netlink() as connection:  # the node's own one stays
        link = links.get(connection, name="one")
        assert link is not None
        links.change(connection, link.index, links.netlink.nest(links.IFLA_XDP, to_this))
    host = interfaces.snapshot(ONE)
    assert list(host["xdp"]) == ["driver"]
    with Pod() as pod:
        interfaces.attach(ONE, host, {"name": "net1"}, pod.pin)
        assert interfaces.detach(ONE, host, pod.pin, {"name": "net1"}) == []
    assert interfaces.snapshot(ONE) == host


def xdp_program() -> int:
    """A file descriptor of a program that passes everything: r0 = XDP_PASS; exit."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0), 16)
    license = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQ", 6, 2, ctypes.addressof(code), ctypes.addressof(license))  # BPF_PROG_TYPE_XDP
    numbers = {"x86_64": 321, "aarch64": 280}
    if os.uname().machine not in numbers:
        pytest.skip("the number of bpf(2) is not known here")
    found = ctypes.CDLL(None, use_errno=True).syscall(
        numbers[os.uname().machine], 5, ctypes.create_string_buffer(attributes, 128), 48
    )
    if found < 0:
        pytest.skip(f"needs bpf(2): {os.strerror(ctypes.get_errno())}")
    return int(found)


@on_a_node
def test_nothing_is_left_open() -> None:
    host = node("ip addr add 10.1.0.2/24 dev one")
    config = {"name": "net1", "addresses": ["10.2.0.2/24"], "ethtool": {"features": {"gro": True}}}
    refused = {"name": "net1", "routes": [{"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}]}
    with Pod() as pod:
        for turn in range(12):
            interfaces.attach(ONE, host, config, pod.pin)
            interfaces.detach(ONE, host, pod.pin, config)
            with pytest.raises(KernelError):
                interfaces.attach(ONE, host, refused, pod.pin)
            interfaces.check(ONE, config)
            if not turn:
                before = sorted(os.listdir("/proc/self/fd"))
        assert sorted(os.listdir("/proc/self/fd")) == before and threading.active_count() == 1
