# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a pod gets from an InterfaceConfig, what is refused, and that the node is restored, with veth and macvlan."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import threading
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.base.errors import KernelError, Refused
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import links
from lanewise_driver.kernel.ethtool import Ethtool
from lanewise_driver.kernel.netlink import Netlink


def _check_pod(pod: nodes.Pod) -> None:
    """Check link, routes, rules, neighbors and sysctls of the configuration in the test below."""
    (link,) = json.loads(pod.run("ip -d -j link show net1"))
    assert (link["mtu"], link["address"], link["gso_max_size"], link["gro_max_size"], link["operstate"]) == (
        4000,
        "02:00:00:00:00:77",
        30000,
        20000,
        "UP",
    )
    ipv4_routes = pod.run("ip -4 route show table all")
    for line in (
        "10.50.0.0/16 via 10.1.0.1 dev net1 proto static src 10.1.0.2 metric 7 mtu 1400",
        "10.51.0.0/16 via 10.77.0.1 dev net1 table 4000 proto static onlink",
        "10.52.0.0/16 dev net1 proto static scope link",
        "nexthop via 10.1.0.8 dev net1 weight 3",
        "nexthop via 10.88.0.9 dev net1 weight 1 onlink",
    ):
        assert line in ipv4_routes
    ipv6_routes = pod.run("ip -6 route")
    assert "fd01::/32 via fd00::1 dev net1 proto static src fd00::2" in ipv6_routes
    assert re.search(
        r"fd02::/32 proto static.*\n\tnexthop via fd00::8 .*\n\tnexthop via fd00::9 dev net1 weight 2", ipv6_routes
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


@nodes.on_a_node
def test_a_pod_gets_all_settings_of_its_configuration() -> None:
    host = nodes.node("ip addr add 10.9.0.2/24 dev one")
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
    with nodes.Pod() as pod:
        assert interfaces.check(nodes.ONE, config) == []
        attached = interfaces.attach(nodes.ONE, host, config, pod.pin)
        assert interfaces.wait_for_dad(pod.pin, {"net1": attached.network["ips"]}) == []
        assert attached.network == {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:00:00:00:77",
            "ips": ["10.1.0.2/24", "fd00::2/64"],
        }
        _check_pod(pod)
        with Ethtool(pod.pin) as ethtool:
            features = ethtool.features("net1")
        assert features["rx-gro"] and not features["tx-tcp-segmentation"] and not features["tx-tcp6-segmentation"]
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(nodes.ONE) == host


@nodes.on_a_node
def test_without_configuration_a_pod_gets_the_addresses_of_the_node() -> None:
    host = nodes.node(
        """ip addr add 10.1.0.2/24 dev one; ip addr add fd00::2/64 dev one; ip addr add 10.1.0.3/24 dev one scope link
        ip route add 10.50.0.0/16 via 10.1.0.1 metric 77
        ip route add default via 10.1.0.1 metric 900; ip route add default via 10.1.0.1 table 100
        ip rule add from 10.1.0.2 fwmark 7 lookup 100 priority 50; ip rule add iif one lookup 100 priority 51
        ip rule add from all lookup 100 priority 52; ip neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev one
        ip rule add not from 10.1.0.2 lookup 100 priority 53
        ip -6 neigh add fd00::9 lladdr 02:00:00:00:00:09 dev one router; ip -6 neigh add proxy fd00::8 dev one"""
    )
    with nodes.Pod() as pod:
        attached = interfaces.attach(nodes.ONE, host, {}, pod.pin)
        assert attached.network["interfaceName"] == "one"
        assert attached.network["ips"] == ["10.1.0.2/24", "fd00::2/64"]
        assert "10.50.0.0/16 via 10.1.0.1 dev one proto static metric 77" in pod.run("ip route")
        assert "default" not in pod.run("ip route")  # the pod's default route is that of its cluster network
        assert "default via 10.1.0.1 dev one" in pod.run("ip route show table 100")
        rules = pod.run("ip rule")
        assert "50:\tfrom 10.1.0.2 fwmark 0x7 lookup 100" in rules  # with all of its selectors
        assert not {"51:", "52:", "53:"} & {line.split()[0] for line in rules.splitlines()}
        neighbors = pod.run("ip neigh show nud permanent")
        assert "10.1.0.9" in neighbors and "fd00::9 dev one lladdr 02:00:00:00:00:09 router" in neighbors
        assert "fd00::8" not in pod.run("ip -6 neigh show proxy")
        interfaces.detach(nodes.ONE, host, pod.pin, {})
        attached = interfaces.attach(nodes.ONE, host, {"addresses": []}, pod.pin)
        assert attached.network["ips"] == []
        interfaces.detach(nodes.ONE, host, pod.pin, {"addresses": []})
    assert interfaces.snapshot(nodes.ONE) == host


@nodes.on_a_node
def test_a_rule_that_is_deleted_while_a_pod_has_the_interface_is_not_restored() -> None:
    """Rules of the interface stay on the node during that time. The kernel applies them again afterwards."""
    host = nodes.node(
        """ip addr add 10.1.0.2/24 dev one; ip route add default via 10.1.0.1 dev one table 100
        ip rule add from 10.1.0.2 lookup 100 priority 50; ip rule add from all iif one lookup 100 priority 51"""
    )
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        nodes.run("ip rule del priority 50")
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    now = interfaces.snapshot(nodes.ONE)
    assert [rule["priority"] for rule in host["rules"]] == [50, 51]
    assert [rule["priority"] for rule in now["rules"]] == [51]
    assert {**now, "rules": host["rules"]} == host
    assert "detached" not in nodes.run("ip rule")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "taken"}, "File exists"),
        ({"mtu": 65535, "gsoMaxSize": 600000}, "Numerical result out of range|Invalid argument"),
        (
            {"addresses": ["10.1.0.2/24"], "routes": [{"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}]},
            "10.9.0.0/16",
        ),
        ({"addresses": [], "routes": [{"destination": "fd01::/32", "gateway": "fd00::1"}]}, "fd01::/32"),
        ({"ethtool": {"features": {"no-such": True}}}, "no-such"),
        # the kernel turns TSO off without scatter-gather
        ({"ethtool": {"features": {"sg": False, "tso": True}}}, "tx-tcp-segmentation of one is still off"),
        ({"ethtool": {"privateFlags": {"no-such": True}}}, "no-such"),
        ({"ethtool": {"rings": {"rx": 512}}}, "rings"),
        ({"sysctls": {"net.ipv4.conf.IFNAME.nothing": 1}}, "nothing"),
        ({"mtu": 1000, "sysctls": {"net.ipv6.conf.IFNAME.accept_ra": 1}}, "accept_ra"),
        ({"vrf": {"name": "taken", "table": 100}}, "VRF taken"),
        ({"vf": {"vlan": 5}}, "not a virtual function"),
    ],
)
def test_a_failed_attach_changes_nothing_on_the_node(config: dict[str, t.Any], message: str) -> None:
    @nodes.on_a_node
    def test() -> None:
        host = nodes.node("ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1 metric 77")
        before = nodes.shown("one")
        with nodes.Pod() as pod:
            pod.run("ip link add taken type veth peer name taken2; sysctl -qw net.ipv6.conf.default.accept_dad=0")
            with pytest.raises((KernelError, Refused), match=message):
                interfaces.attach(nodes.ONE, host, config, pod.pin)
            assert interfaces.locate(nodes.ONE, pod.pin).side == "host"
            assert "one" not in pod.run("ip link")
        assert interfaces.snapshot(nodes.ONE) == host
        assert nodes.shown("one") == before

    test()


@nodes.on_a_node
def test_check_reports_the_path_of_each_wrong_field() -> None:
    host = nodes.node()
    config = {
        "mtu": 70000,
        "gsoMaxSize": 524281,
        "ethtool": {"features": {"tso": False, "nope": True}, "privateFlags": {"x": True}, "rings": {"rx": 512}},
        "sysctls": {"net.ipv4.conf.IFNAME.no_such": 1, "net.ipv4.conf.IFNAME.rp_filter": 1},
        "vf": {"vlan": 3},
    }
    reported = {problem.path for problem in interfaces.check(nodes.ONE, config, "config")}
    assert reported == {
        "config.mtu",
        "config.gsoMaxSize",
        "config.ethtool.features.nope",
        "config.ethtool.privateFlags.x",
        "config.ethtool.rings.rx",
        "config.sysctls['net.ipv4.conf.IFNAME.no_such']",
        "config.vf",
    }
    assert [problem.path for problem in interfaces.check(nodes.ONE, {"mtu": 9000, "child": {"type": "macvlan"}})] == [
        "mtu"
    ]
    assert interfaces.snapshot(nodes.ONE) == host
    with pytest.raises(KernelError, match="not on the node"):
        interfaces.check(Identity(None, None, "nothing"), {})


@nodes.on_a_node
def test_values_that_the_kernel_refuses_are_found_before_attach() -> None:
    """The check changes nothing on the node. It matters because a failed attach is final for a pod that is not
    restarted."""
    host = nodes.node("ip addr add 10.1.0.2/24 dev one")
    unreachable = {"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}
    reachable = {"destination": "10.8.0.0/16", "gateway": "10.1.0.1"}
    ipv6_route = {"destination": "fd01::/32", "gateway": "fd00::1"}
    configs: list[tuple[dict[str, t.Any], list[str]]] = [
        ({"addresses": ["10.1.0.7/24"], "routes": [reachable, unreachable]}, ["routes[1]"]),
        ({"addresses": ["10.1.0.7/24"], "routes": [reachable, {**unreachable, "onlink": True}]}, []),
        ({"addresses": [], "routes": [reachable]}, ["routes[0]"]),
        ({"addresses": [], "routes": [ipv6_route]}, ["routes[0]"]),
        ({"addresses": ["fd00::2/64"], "routes": [{**ipv6_route, "source": "fd00::2"}]}, []),
        ({"routes": [reachable]}, []),  # the node's address, which moves into the pod, makes it reachable
        ({"routes": [unreachable, reachable]}, ["routes[0]"]),
        # a route to the gateway makes it reachable, in any order
        ({"routes": [unreachable, {"destination": "10.66.0.0/16", "scope": "link"}]}, []),
        ({"routes": [{**reachable, "multipath": [{"gateway": "10.1.0.8"}, {"gateway": "10.67.0.9"}]}]}, ["routes[0]"]),
        ({"routes": [{**reachable, "source": "10.77.0.7"}]}, []),  # another interface of the pod may have it
        ({"dhcp": ["ipv4"], "routes": [unreachable]}, []),  # the lease is not known yet
        ({"name": "net1", "child": {"type": "macvlan"}, "addresses": [], "routes": [reachable]}, ["routes[0]"]),
        ({"sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}, "rules": [{"source": "10.1.0.7/32", "table": 9}]}, []),
        ({"neighbors": [{"destination": "10.1.0.9", "mac": "02:00:00:00:00:09"}]}, []),
    ]
    for config, paths in configs:
        for route in config.get("routes", ()):
            if "multipath" in route:
                route.pop("gateway")
        for _attempt in range(2):
            found = interfaces.check(nodes.ONE, config, "config")
            assert [problem.path for problem in found] == [f"config.{path}" for path in paths], (config, found)
            assert all("the kernel refuses it: " in problem.message for problem in found)
    assert interfaces.snapshot(nodes.ONE) == host


@nodes.on_a_node
def test_a_child_leaves_its_parent_on_the_node() -> None:
    host = nodes.node("ip link set one down; ip addr add 10.1.0.2/24 dev one")
    config = {
        "name": "net1",
        "child": {"type": "macvlan", "mode": "private"},
        "mac": "02:00:00:00:00:66",
        "addresses": ["10.1.0.7/24"],
        "mtu": 1400,
    }
    with nodes.Pod() as pod, nodes.Pod("second") as second:
        attached = interfaces.attach(nodes.ONE, host, config, pod.pin)
        assert attached.network == {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:00:00:00:66",
            "ips": ["10.1.0.7/24"],
        }
        (link,) = json.loads(pod.run("ip -d -j link show net1"))
        assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["mode"]) == ("macvlan", "private")
        assert interfaces.locate(nodes.ONE, pod.pin).side == "host"
        assert interfaces.attach(nodes.ONE, host, config, pod.pin).network == attached.network  # attach can be repeated
        other = {**config, "mac": "02:00:00:00:00:67"}
        interfaces.attach(nodes.ONE, host, other, second.pin)
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
        assert "net1" not in pod.run("ip link")
        assert interfaces.locate(nodes.ONE, None).side == "host"
        assert interfaces.detach(nodes.ONE, host, second.pin, other) == []
        assert interfaces.detach(nodes.ONE, host, second.pin, other) == []
        pod.run("ip link add net1 type veth peer name net2")
        with pytest.raises(KernelError, match="File exists"):
            interfaces.attach(nodes.ONE, host, config, pod.pin)
        assert "net1" in pod.run("ip link")
    host.pop("child")  # attach has added this key
    assert interfaces.snapshot(nodes.ONE) == host


@nodes.on_a_node
def test_attach_into_the_nodes_own_namespace_or_a_removed_one_is_refused() -> None:
    host = nodes.node()
    with pytest.raises(Refused):
        interfaces.attach(nodes.ONE, host, {}, Path(f"/proc/{os.getpid()}/ns/net"))
    pod = nodes.Pod()
    pod.end()
    with pytest.raises(KernelError, match="gone"):
        interfaces.attach(nodes.ONE, host, {}, pod.pin)


@nodes.on_a_node
def test_listed_links_are_those_that_iproute2_shows() -> None:
    nodes.node("ip addr add 10.1.0.2/24 dev one")
    with Netlink() as connection:
        listed = {link.name: link for link in links.listed(connection)}
    shown = {link["ifname"]: link for link in json.loads(nodes.run("ip -d -j link"))}
    assert set(listed) == set(shown)
    for name, link in shown.items():
        assert (listed[name].mtu, listed[name].index) == (link["mtu"], link["ifindex"])
        assert listed[name].up == ("UP" in link["flags"])
        assert listed[name].kind == link.get("linkinfo", {}).get("info_kind", "")


@nodes.on_a_node
def test_interfaces_can_be_attached_and_detached_in_parallel() -> None:
    nodes.without_dad()
    names = [f"nic{number}" for number in range(6)]
    for number, name in enumerate(names):
        nodes.pair(name)
        nodes.run(
            f"ip addr add 10.{number}.0.2/24 dev {name}; ip route add 10.{50 + number}.0.0/16 via 10.{number}.0.1"
        )
        nodes.run(f"ip rule add from 10.{number}.0.2 iif {name} table {100 + number}")
    nodes.wait_for_ipv6()
    before = [nodes.shown(name) for name in names]

    def attach_and_detach(name: str) -> None:
        device = Identity(None, None, name)
        host = interfaces.snapshot(device)
        with nodes.Pod(name) as pod:
            for _unused in range(3):
                interfaces.attach(device, host, {"name": "net1"}, pod.pin)
                assert interfaces.detach(device, host, pod.pin, {"name": "net1"}) == []
        assert interfaces.snapshot(device) == host

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(attach_and_detach, names))  # raises the first exception
    assert [nodes.shown(name) for name in names] == before


@nodes.on_a_node
def test_an_xdp_program_of_a_pod_is_removed_and_one_of_the_node_is_kept() -> None:
    host = nodes.node()
    program = load_xdp_program()
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        with Netlink(pod.pin) as connection:
            link = links.get(connection, name="net1")
            assert link is not None
            program_attribute = links.netlink.attribute(1, struct.pack("=i", program))  # IFLA_XDP_FD
            links.change(connection, link.index, links.netlink.nest(links.IFLA_XDP, program_attribute))
        assert "xdp" in pod.run("ip link show net1")
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    assert "xdp" not in nodes.run("ip link show one") and interfaces.snapshot(nodes.ONE) == host
    with Netlink() as connection:  # a program of the node
        link = links.get(connection, name="one")
        assert link is not None
        links.change(connection, link.index, links.netlink.nest(links.IFLA_XDP, program_attribute))
    host = interfaces.snapshot(nodes.ONE)
    assert list(host["xdp"]) == ["driver"]
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        assert interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"}) == []
    assert interfaces.snapshot(nodes.ONE) == host


def load_xdp_program() -> int:
    """The file descriptor of a program that passes every packet: r0 = XDP_PASS; exit."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0), 16)
    license_name = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQ", 6, 2, ctypes.addressof(code), ctypes.addressof(license_name))  # BPF_PROG_TYPE_XDP
    numbers = {"x86_64": 321, "aarch64": 280}
    if os.uname().machine not in numbers:
        pytest.skip("the system call number of bpf(2) is unknown for this architecture")
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(
        numbers[os.uname().machine], 5, ctypes.create_string_buffer(attributes, 128), 48
    )
    if descriptor < 0:
        pytest.skip(f"needs bpf(2): {os.strerror(ctypes.get_errno())}")
    return int(descriptor)


@nodes.on_a_node
def test_threads_and_descriptors_do_not_accumulate() -> None:
    """A thread closes the namespace of kernel/stacked.py after some seconds without use."""

    def is_single_threaded() -> bool:
        return threading.active_count() == 1

    host = nodes.node("ip addr add 10.1.0.2/24 dev one")
    config = {"name": "net1", "addresses": ["10.2.0.2/24"], "ethtool": {"features": {"gro": True}}}
    refused = {"name": "net1", "routes": [{"destination": "10.9.0.0/16", "gateway": "10.66.0.1"}]}
    with nodes.Pod() as pod:
        for round_number in range(12):
            interfaces.attach(nodes.ONE, host, config, pod.pin)
            interfaces.detach(nodes.ONE, host, pod.pin, config)
            with pytest.raises(KernelError):
                interfaces.attach(nodes.ONE, host, refused, pod.pin)
            interfaces.check(nodes.ONE, config)
            if round_number == 0:
                until(is_single_threaded, 60)
                before = sorted(os.listdir("/proc/self/fd"))
        until(is_single_threaded, 60)
        assert sorted(os.listdir("/proc/self/fd")) == before
