# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two pods with two NICs each and the addresses of their rails. Traffic to a rail leaves through the NIC of that rail,
as the interface counters show, and the check of rails reports broken routes."""

from __future__ import annotations

import ipaddress
import itertools
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import NodeInput, site_plan
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.base.calls import Pod
from lanewise_driver.claims import rail_check
from lanewise_driver.claims.records import ATTACHED, DeviceRecord, Record
from lanewise_driver.dra.config.rail_range import RailRange
from lanewise_driver.interface import interfaces, rails
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.interface.network_config import network_config
from lanewise_driver.publish.device import Device

RAILS = (0, 1)
DATAGRAMS = 20
#: Sends datagrams to an address, from the given source address if any, and prints the error if the kernel refuses.
SENDER = """
import socket, sys
destination, source = sys.argv[1], sys.argv[2]
family = socket.AF_INET6 if ":" in destination else socket.AF_INET
sender = socket.socket(family, socket.SOCK_DGRAM)
if source:
    sender.bind((source, 0))
try:
    for number in range({count}):
        sender.sendto(bytes(1000), (destination, 9))
except OSError as error:
    print(error.strerror)
"""


def ranges_by_node(reach: str = "rail") -> dict[str, tuple[RailRange, ...]]:
    """The address ranges of nodes a and b. Rail 0 is a single segment; on rail 1 each node has its own subnet."""
    plan: dict[str, t.Any] = {
        "per_node": 16,
        "reach": "rail",
        "rails": [
            {
                "rail": 0,
                "pool": "10.100.0.0/16",
                **({"gateway": "10.100.0.1", "reach": "all"} if reach == "all" else {}),
            },
            {"rail": 0, "pool": "fd00:100::/64"},
            {"rail": 1, "pool": "10.101.0.0/16", "prefix": 28, "gateway": "first", "reach": reach},
            {"rail": 1, "pool": "fd00:101::/64"},
        ],
    }
    return site_plan([NodeInput("a", plan, 3), NodeInput("b", plan, 9)]).ranges


def ipv4_range(rail: int) -> RailRange:
    """The IPv4 range of node a on a rail."""
    ranges = [entry for entry in ranges_by_node()["a"] if entry.rail == rail and entry.family == "ipv4"]
    (rail_range,) = ranges
    return rail_range


class Pods:
    """Pods a and b, each with the interfaces rail0 and rail1, which are attached as the driver attaches them.

    The key of `addresses` is the pod, the rail and the IP version. With `one_segment`, both rails are one segment.
    """

    def __init__(self, reach: str = "rail", child: str = "", one_segment: bool = False) -> None:
        nodes.without_dad()
        self.pods = {name: nodes.Pod(name) for name in "ab"}
        self.addresses: dict[tuple[str, int, int], str] = {}
        for rail in RAILS if not one_segment else (0,):
            nodes.run(f"ip link add segment{rail} type bridge; ip link set segment{rail} up")
        for name, ranges in ranges_by_node(reach).items():
            for rail in RAILS:
                self._attach(
                    name, rail, [rail_range for rail_range in ranges if rail_range.rail == rail], child, one_segment
                )

    def _attach(self, name: str, rail: int, ranges: list[RailRange], child: str, one_segment: bool) -> None:
        interface = f"{name}{rail}"
        mac = f"02:00:00:00:0{rail}:0{name}"
        nodes.run(f"ip link add {interface} address {mac} type veth peer name {interface}-far")
        segment = 0 if one_segment else rail
        nodes.run(f"ip link set {interface}-far master segment{segment} up; ip link set {interface} up")
        rail_addresses = [
            rails.make_rail_address(rail_range, str(next(rail_range.addresses()))) for rail_range in ranges
        ]
        for rail_address in rail_addresses:
            address = rail_address["address"].partition("/")[0]
            self.addresses[name, rail, 6 if ":" in address else 4] = address
        config: dict[str, t.Any] = {"name": f"rail{rail}", "railAddresses": rail_addresses, "dad": "none"}
        if child:
            config["child"] = {"type": child}
        identity = Identity(None, None, interface)
        assert interfaces.check(identity, config) == []
        interfaces.attach(identity, interfaces.snapshot(identity), config, self.pods[name].pin)

    def run(self, name: str, command: str) -> str:
        return self.pods[name].run(command)

    def send(self, name: str, destination: str, source: str = "") -> str:
        """Send datagrams from a pod. Returns the error; empty if the kernel accepts them."""
        script = SENDER.format(count=DATAGRAMS)
        return self.run(name, f"python3 -c '{script}' {destination} '{source}'").strip()

    def sent_packets(self, name: str) -> dict[int, int]:
        """The number of packets that the pod has sent on each of its rails."""
        links = json.loads(self.run(name, "ip -s -j link"))
        counters = {link["ifname"]: link["stats64"]["tx"]["packets"] for link in links}
        return {rail: counters[f"rail{rail}"] for rail in RAILS}

    def end(self) -> None:
        for pod in self.pods.values():
            pod.end()


def send_and_count(pods: Pods, to_rail: int, version: int, bound: bool) -> dict[int, int]:
    """Send from pod a to the address of pod b on a rail. Returns how many packets pod a has sent on each rail.

    With `bound`, the sender binds its socket to the address of pod a on this rail.
    """
    before = pods.sent_packets("a")
    source = pods.addresses["a", to_rail, version] if bound else ""
    assert pods.send("a", pods.addresses["b", to_rail, version], source) == ""
    return {rail: count - before[rail] for rail, count in pods.sent_packets("a").items()}


def add_neighbor_entry(pods: Pods) -> None:
    """Let pod a use the MAC address of pod b for the router of rail 1, which does not exist here. So pod a can send to
    the router, and its counters include no neighbor discovery."""
    mac = json.loads(pods.run("b", "ip -j link show rail1"))[0]["address"]
    gateway = ipv4_range(1).gateway
    pods.run("a", f"ip neighbour replace {gateway} lladdr {mac} dev rail1 nud permanent")


@pytest.mark.parametrize("one_segment", [False, True], ids=["two segments", "one segment"])
@pytest.mark.parametrize("child", ["", "macvlan"], ids=["NIC", "macvlan"])
def test_traffic_to_a_rail_leaves_through_the_nic_of_that_rail(child: str, one_segment: bool) -> None:
    @nodes.on_a_node
    def test() -> None:
        pods = Pods(child=child, one_segment=one_segment)
        nodes.wait_for_ipv6()
        add_neighbor_entry(pods)
        for version in (4, 6):
            for rail in RAILS:
                for bound in (False, True):
                    # the kernel queues the first datagrams until it has the MAC address of the neighbor
                    until(lambda case=(rail, version, bound): send_and_count(pods, *case)[case[0]] >= DATAGRAMS)
                    counts = send_and_count(pods, rail, version, bound)
                    other = 1 - rail
                    # the counters include neighbor discovery and router solicitations
                    assert counts[rail] >= DATAGRAMS, (version, rail, bound, counts)
                    assert counts[other] < DATAGRAMS / 2, (version, rail, bound, counts)
        pods.end()

    test()


def record_of(pods: Pods, name: str) -> Record:
    """The record of a pod's claim, as the driver stores it."""
    devices = []
    for rail in RAILS:
        ranges = [rail_range for rail_range in ranges_by_node()[name] if rail_range.rail == rail]
        rail_addresses = [
            rails.make_rail_address(rail_range, pods.addresses[name, rail, rail_range.range.version])
            for rail_range in ranges
        ]
        known = Device(f"nic{rail}", {"name": f"nic{rail}", "attributes": {"rail": {"int": rail}}})
        config = {"railAddresses": rail_addresses}
        devices.append(DeviceRecord(f"nic{rail}", "node", "nic", known, config, interface=f"rail{rail}"))
    return Record(f"uid-{name}", "ns", f"claim-{name}", Pod("ns", name, f"uid-{name}"), "boot", devices, ATTACHED)


@pytest.mark.parametrize(
    ("command", "rail", "message"),
    [
        ("ip route flush table {table}", 1, "can send to other networks, through rail0"),
        ("ip rule del from {address}", 1, "can send to other networks, through rail0"),
        ("ip route replace 10.101.0.0/16 dev rail0 table {table}", 1, "leaves through rail0, not through rail1"),
        (
            "ip route del 10.101.0.0/16",
            1,
            "what the pod sends to 10.101.0.0/16 of rail 1 leaves through rail0, not through rail1",
        ),
        ("ip address del {address}/28 dev rail1", 1, "rail1 of rail 1 does not have 10.101.0."),
        ("ip link set rail1 name gone", 1, "rail1 of rail 1 is not in the pod"),
        ("ip route add 10.100.128.0/17 dev rail1", 0, "leaves through rail1, not through rail0"),
        ("ip route flush table {table}", 0, "can send to other networks, through rail0"),
    ],
)
def test_the_check_names_the_rail_whose_routes_are_broken(command: str, rail: int, message: str) -> None:
    @nodes.on_a_node
    def test() -> None:
        pods = Pods()
        nodes.wait_for_ipv6()
        # a default route, like that of the cluster network of a pod
        pods.run("a", "ip route add default dev rail0 metric 5000")
        records = [record_of(pods, name) for name in "ab"]
        pins = {f"uid-{name}": pod.pin for name, pod in pods.pods.items()}
        assert rail_check.misrouted(records, pins.__getitem__) == []
        rail_range = ipv4_range(rail)
        address = pods.addresses["a", rail, 4]
        pods.run("a", command.format(table=rail_range.table(ipaddress.ip_address(address)), address=address))
        problems = rail_check.misrouted(records, pins.__getitem__)
        assert any(message in line for line in problems), problems
        assert all(line.startswith("claim ns/claim-a: ") and f"rail {rail}" in line for line in problems), problems
        pods.end()

    test()


@pytest.mark.parametrize(
    ("address", "pool", "other"),
    [
        ("10.100.0.7/16", "10.100.0.0/16", "10.100.255.254"),
        ("10.100.255.254/16 10.100.255.253/16", "10.100.0.0/16", "10.100.255.252"),
        ("10.100.0.1/30 10.100.0.2/30", "10.100.0.0/30", "None"),
        ("10.100.0.2/30", "10.100.0.0/30", "10.100.0.1"),
        ("10.100.0.0/31", "10.100.0.0/31", "10.100.0.1"),
        ("10.100.0.1/31", "10.100.0.0/31", "10.100.0.0"),
        ("fd00::/127", "fd00::/127", "fd00::1"),
        ("10.100.0.0/32", "10.100.0.0/32", "None"),
    ],
)
def test_the_check_sends_to_an_address_of_the_pool_that_the_pod_does_not_have(
    address: str, pool: str, other: str
) -> None:
    rail_addresses: list[rails.RailAddress] = [
        {"address": text, "pool": pool, "table": 0, "reach": "rail"} for text in address.split()
    ]
    known = Device("nic", {"name": "nic"})
    devices = [DeviceRecord("nic", "node", "nic", known, {"railAddresses": [entry]}) for entry in rail_addresses]
    record = Record("uid", "ns", "claim", None, "boot", devices)
    assert str(rail_check._other_address(rail_addresses[0], [record])) == other


def test_the_name_that_a_pod_gave_an_interface_cannot_control_the_terminal() -> None:
    assert rail_check._interface_names([1, 2, 3], {1: "rail0", 2: "\x1b[2K", 3: "\udcff"}) == (
        "'\\x1b[2K' and rail0 and '\\udcff'"
    )


def test_the_check_counts_the_addresses_in_use_by_range() -> None:
    ranges = ranges_by_node()["a"]
    known = Device("nic", {"name": "nic"})
    addresses = itertools.islice(ranges[0].addresses(), 3)
    config = {"railAddresses": [rails.make_rail_address(ranges[0], str(address)) for address in addresses]}
    record = Record("uid", "ns", "claim", None, "boot", [DeviceRecord("nic", "node", "nic", known, config)])
    assert [used for _range, used in rail_check.in_use([record], ranges)] == [3, 0, 0, 0]


@nodes.on_a_node
def test_an_address_of_a_rail_cannot_reach_the_other_rail() -> None:
    pods = Pods()
    nodes.wait_for_ipv6()
    for version in (4, 6):
        for rail in RAILS:
            local, remote = pods.addresses["a", rail, version], pods.addresses["b", 1 - rail, version]
            before = pods.sent_packets("a")
            assert pods.send("a", remote, local) == "No route to host", (version, rail)
            assert all(count - before[number] < DATAGRAMS / 2 for number, count in pods.sent_packets("a").items())
    pods.end()


@nodes.on_a_node
def test_with_reach_all_an_address_reaches_other_rails_through_the_router_of_its_rail() -> None:
    pods = Pods(reach="all")
    for name in "ab":
        assert "default via 10.101.0" in pods.run(name, "ip route show table all")
    address = pods.addresses["a", 1, 4]
    route = pods.run("a", f"ip route get 10.100.0.99 from {address}")
    assert "dev rail1" in route and "via 10.101.0.49" in route
    assert "dev rail1" in pods.run("a", "ip route get 10.101.77.77")
    pods.end()


@nodes.on_a_node
def test_two_interfaces_of_one_rail_send_from_their_own_addresses() -> None:
    nodes.without_dad()
    rail_range = ipv4_range(0)
    with nodes.Pod() as pod:
        addresses = list(itertools.islice(rail_range.addresses(), 2))
        for number, address in enumerate(addresses):
            name = f"nic{number}"
            nodes.run(f"ip link add {name} type veth peer name {name}-far; ip link set {name}-far up")
            identity = Identity(None, None, name)
            config = {"railAddresses": [rails.make_rail_address(rail_range, str(address))]}
            host = interfaces.snapshot(identity)
            interfaces.attach(identity, host, config, pod.pin)
            interfaces.attach(identity, host, config, pod.pin)  # as after a crash of the driver
        for number, address in enumerate(addresses):
            assert f"dev nic{number}" in pod.run(f"ip route get 10.100.9.9 from {address}")


@nodes.on_a_node
def test_fields_of_the_claim_override_those_of_the_rail() -> None:
    nodes.without_dad()
    nodes.pair("one")
    nodes.wait_for_ipv6()
    rail_range = ipv4_range(1)
    rail_address = rails.make_rail_address(rail_range, str(next(rail_range.addresses())))
    host = interfaces.snapshot(nodes.ONE)
    config: dict[str, t.Any] = {
        "railAddresses": [rail_address],
        "addresses": ["fd00:7::1/64"],
        "routes": [],
        "rules": [],
        "sysctls": {"net.ipv4.conf.IFNAME.arp_ignore": 0},
    }
    with nodes.Pod() as pod:
        attached = interfaces.attach(nodes.ONE, host, config, pod.pin)
        assert set(attached.network["ips"]) == {rail_address["address"], "fd00:7::1/64"}
        assert "10.101.0.0/16" not in pod.run("ip route show table all")
        assert str(rail_address["table"]) not in pod.run("ip rule")
        assert pod.run("cat /proc/sys/net/ipv4/conf/one/arp_ignore").strip() == "0"
        assert pod.run("cat /proc/sys/net/ipv4/conf/one/arp_announce").strip() == "2"
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(nodes.ONE) == host


def test_the_routes_of_a_rail_are_in_the_table_of_the_vrf() -> None:
    rail_range = ipv4_range(1)
    config: dict[str, t.Any] = {
        "railAddresses": [rails.make_rail_address(rail_range, str(next(rail_range.addresses())))],
        "vrf": {"name": "red", "table": 77},
    }
    network = network_config({"addresses": [], "routes": [], "rules": [], "neighbors": []}, config)
    assert [(route["destination"], route["table"]) for route in network.routes] == [("10.101.0.0/16", 77)]
    assert network.rules == []
