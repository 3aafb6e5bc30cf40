# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two pods with two NICs each and the addresses of their rails: what is sent to a rail leaves by that rail's NIC, as
the counters of the interfaces show."""

from __future__ import annotations

import ipaddress
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
SENT = 20
#: Sends SENT datagrams to an address, from a given address or from any, and prints the error.
SEND = """
import socket, sys
to, source = sys.argv[1], sys.argv[2]
family = socket.AF_INET6 if ":" in to else socket.AF_INET
one = socket.socket(family, socket.SOCK_DGRAM)
if source:
    one.bind((source, 0))
try:
    for number in range({sent}):
        one.sendto(bytes(1000), (to, 9))
except OSError as error:
    print(error.strerror)
"""


def plan(reach: str = "rail") -> dict[str, tuple[RailRange, ...]]:
    """Two nodes on rails 0 and 1: rail 0 is one segment, on rail 1 each node has a subnet and a router."""
    one: dict[str, t.Any] = {
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
    return site_plan([NodeInput("a", one, 3), NodeInput("b", one, 9)]).ranges


class Pods:
    """Pods `a` and `b`, each with the interfaces rail0 and rail1, attached as the driver does it."""

    def __init__(self, reach: str = "rail", child: str = "", one_segment: bool = False) -> None:
        nodes.without_dad()
        self.pods = {name: nodes.Pod(name) for name in "ab"}
        self.addresses: dict[tuple[str, int, int], str] = {}
        for rail in RAILS if not one_segment else (0,):
            nodes.run(f"ip link add segment{rail} type bridge; ip link set segment{rail} up")
        for name, ranges in plan(reach).items():
            for rail in RAILS:
                self._attach(name, rail, [one for one in ranges if one.rail == rail], child, one_segment)

    def _attach(self, name: str, rail: int, own: list[RailRange], child: str, one_segment: bool) -> None:
        interface = f"{name}{rail}"
        mac = f"02:00:00:00:0{rail}:0{name}"
        nodes.run(f"ip link add {interface} address {mac} type veth peer name {interface}-far")
        segment = 0 if one_segment else rail
        nodes.run(f"ip link set {interface}-far master segment{segment} up; ip link set {interface} up")
        given = [rails.make_rail_address(one, str(next(one.addresses()))) for one in own]
        for one in given:
            address = one["address"].partition("/")[0]
            self.addresses[name, rail, 6 if ":" in address else 4] = address
        config: dict[str, t.Any] = {"name": f"rail{rail}", "railAddresses": given, "dad": "none"}
        if child:
            config["child"] = {"type": child}
        identity = Identity(None, None, interface)
        assert interfaces.check(identity, config) == []
        interfaces.attach(identity, interfaces.snapshot(identity), config, self.pods[name].pin)

    def run(self, name: str, command: str) -> str:
        return self.pods[name].run(command)

    def send(self, name: str, to: str, source: str = "") -> str:
        """The error of an attempt to send; empty if it succeeds."""
        script = SEND.format(sent=SENT)
        return self.run(name, f"python3 -c '{script}' {to} '{source}'").strip()

    def sent_packets(self, name: str) -> dict[int, int]:
        """The number of packets that the pod has sent on each of its rails."""
        shown = json.loads(self.run(name, "ip -s -j link"))
        counters = {one["ifname"]: one["stats64"]["tx"]["packets"] for one in shown}
        return {rail: counters[f"rail{rail}"] for rail in RAILS}

    def end(self) -> None:
        for pod in self.pods.values():
            pod.end()


def sent_by(pods: Pods, to_rail: int, version: int, bound: bool) -> dict[int, int]:
    """Send from pod a to the address of pod b on a rail; returns how many more packets left by each rail."""
    before = pods.sent_packets("a")
    source = pods.addresses["a", to_rail, version] if bound else ""
    assert pods.send("a", pods.addresses["b", to_rail, version], source) == ""
    return {rail: count - before[rail] for rail, count in pods.sent_packets("a").items()}


def learn_neighbors(pods: Pods) -> None:
    """Let pod b answer for the missing routers of rail 1, so that neighbor discovery is not counted."""
    far = json.loads(pods.run("b", "ip -j link show rail1"))[0]["address"]
    gateway = str(next(one.gateway for one in plan()["a"] if one.rail == 1 and one.gateway))
    pods.run("a", f"ip neighbour replace {gateway} lladdr {far} dev rail1 nud permanent")


@pytest.mark.parametrize("one_segment", [False, True])
@pytest.mark.parametrize("child", ["", "macvlan"])
def test_traffic_to_a_rail_leaves_by_that_rail(child: str, one_segment: bool) -> None:
    @nodes.on_a_node
    def test() -> None:
        pods = Pods(child=child, one_segment=one_segment)
        nodes.wait_for_ipv6()
        learn_neighbors(pods)
        for version in (4, 6):
            for rail in RAILS:
                for bound in (False, True):
                    # until the neighbor is known, datagrams wait
                    until(lambda way=(rail, version, bound): sent_by(pods, *way)[way[0]] >= SENT)
                    counts = sent_by(pods, rail, version, bound)
                    other = 1 - rail
                    # beside the datagrams there are messages of neighbor discovery and router solicitations
                    assert counts[rail] >= SENT, (version, rail, bound, counts)
                    assert counts[other] < SENT / 2, (version, rail, bound, counts)
        pods.end()

    test()


def record_of(pods: Pods, name: str) -> Record:
    """The record of the claim of a pod, as the driver stores it."""
    devices = []
    for rail in RAILS:
        own = [one for one in plan()[name] if one.rail == rail]
        given = [rails.make_rail_address(one, pods.addresses[name, rail, one.range.version]) for one in own]
        known = Device(f"nic{rail}", {"name": f"nic{rail}", "attributes": {"rail": {"int": rail}}})
        config = {"railAddresses": given}
        devices.append(DeviceRecord(f"nic{rail}", "node", "nic", known, config, interface=f"rail{rail}"))
    return Record(f"uid-{name}", "ns", f"claim-{name}", Pod("ns", name, f"uid-{name}"), "boot", devices, ATTACHED)


@pytest.mark.parametrize(
    ("broken", "rail", "words"),
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
def test_the_check_names_the_rail_whose_routes_are_broken(broken: str, rail: int, words: str) -> None:
    @nodes.on_a_node
    def test() -> None:
        pods = Pods()
        nodes.wait_for_ipv6()
        # a default route, like that of the cluster network of a pod
        pods.run("a", "ip route add default dev rail0 metric 5000")
        records = [record_of(pods, name) for name in "ab"]
        pins = {f"uid-{name}": pod.pin for name, pod in pods.pods.items()}
        assert rail_check.misrouted(records, pins.__getitem__) == []
        (own,) = (one for one in plan()["a"] if one.rail == rail and one.family == "ipv4")
        address = pods.addresses["a", rail, 4]
        pods.run("a", broken.format(table=own.table(ipaddress.ip_address(address)), address=address))
        found = rail_check.misrouted(records, pins.__getitem__)
        assert any(words in one for one in found), found
        assert all(one.startswith("claim ns/claim-a: ") and f"rail {rail}" in one for one in found), found
        pods.end()

    test()


def test_the_check_counts_the_addresses_in_use() -> None:
    ranges = plan()["a"]
    known = Device("nic", {"name": "nic"})
    addresses = [str(address) for address, _each in zip(ranges[0].addresses(), range(3))]
    given = [rails.make_rail_address(ranges[0], address) for address in addresses]
    record = Record("u", "ns", "c", None, "boot", [DeviceRecord("nic", "n", "r", known, {"railAddresses": given})])
    assert [used for _one, used in rail_check.in_use([record], ranges)] == [3, 0, 0, 0]


@nodes.on_a_node
def test_an_address_of_a_rail_reaches_only_this_rail() -> None:
    pods = Pods()
    nodes.wait_for_ipv6()
    for version in (4, 6):
        for rail in RAILS:
            own, across = pods.addresses["a", rail, version], pods.addresses["b", 1 - rail, version]
            before = pods.sent_packets("a")
            assert pods.send("a", across, own) == "No route to host", (version, rail)
            assert all(count - before[one] < SENT / 2 for one, count in pods.sent_packets("a").items())
    pods.end()


@nodes.on_a_node
def test_with_reach_all_an_address_reaches_other_rails_through_its_own() -> None:
    pods = Pods(reach="all")
    for name in "ab":
        assert "default via 10.101.0" in pods.run(name, "ip route show table all")
    own = pods.addresses["a", 1, 4]
    shown = pods.run("a", f"ip route get 10.100.0.99 from {own}")
    assert "dev rail1" in shown and "via 10.101.0.49" in shown
    assert "dev rail1" in pods.run("a", "ip route get 10.101.77.77"), "by the router of the rail"
    pods.end()


@nodes.on_a_node
def test_two_interfaces_of_one_rail_send_from_their_own_addresses() -> None:
    nodes.without_dad()
    (own,) = (one for one in plan()["a"] if one.rail == 0 and one.family == "ipv4")
    with nodes.Pod() as pod:
        chosen = [address for address, _each in zip(own.addresses(), range(2))]
        for number, address in enumerate(chosen):
            name = f"nic{number}"
            nodes.run(f"ip link add {name} type veth peer name {name}-far; ip link set {name}-far up")
            identity = Identity(None, None, name)
            config = {"railAddresses": [rails.make_rail_address(own, str(address))]}
            host = interfaces.snapshot(identity)
            interfaces.attach(identity, host, config, pod.pin)
            interfaces.attach(identity, host, config, pod.pin)  # as after a crash
        for number, address in enumerate(chosen):
            assert f"dev nic{number}" in pod.run(f"ip route get 10.100.9.9 from {address}")


@nodes.on_a_node
def test_fields_of_the_claim_override_those_of_the_rail() -> None:
    nodes.without_dad()
    nodes.pair("one")
    nodes.wait_for_ipv6()
    (own,) = (one for one in plan()["a"] if one.rail == 1 and one.family == "ipv4")
    given = [rails.make_rail_address(own, str(next(own.addresses())))]
    host = interfaces.snapshot(nodes.ONE)
    config: dict[str, t.Any] = {"railAddresses": given, "addresses": ["fd00:7::1/64"], "routes": [], "rules": []}
    config["sysctls"] = {"net.ipv4.conf.IFNAME.arp_ignore": 0}
    with nodes.Pod() as pod:
        attached = interfaces.attach(nodes.ONE, host, config, pod.pin)
        assert set(attached.network["ips"]) == {given[0]["address"], "fd00:7::1/64"}
        assert "10.101.0.0/16" not in pod.run("ip route show table all")
        assert str(given[0]["table"]) not in pod.run("ip rule")
        assert pod.run("cat /proc/sys/net/ipv4/conf/one/arp_ignore").strip() == "0"
        assert pod.run("cat /proc/sys/net/ipv4/conf/one/arp_announce").strip() == "2"
        assert interfaces.detach(nodes.ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(nodes.ONE) == host


def test_a_vrf_has_the_routes_of_the_rail_in_its_table() -> None:
    (own,) = (one for one in plan()["a"] if one.rail == 1 and one.family == "ipv4")
    config: dict[str, t.Any] = {
        "railAddresses": [rails.make_rail_address(own, str(next(own.addresses())))],
        "vrf": {"name": "red", "table": 77},
    }
    found = network_config({"addresses": [], "routes": [], "rules": [], "neighbors": []}, config)
    assert [(one["destination"], one["table"]) for one in found.routes] == [("10.101.0.0/16", 77)]
    assert found.rules == []
