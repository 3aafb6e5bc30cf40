# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detach restores any state that an interface had before attach, whatever happened in between.

Interfaces are veth pairs in real network namespaces. States are compared by the snapshot of the driver and by the
output of iproute2 and /proc.
"""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.lanewise.dra.tests.driver.nodes import (
    Pod,
    on_a_node,
    pair,
    run,
    shown,
    wait_for_ipv6,
    without_dad,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lanewise_driver.base.errors import KernelError
from lanewise_driver.interface import host_state, interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import ethtool, routes
from lanewise_driver.kernel.netlink import Netlink

EXAMPLES = int(os.environ.get("LANEWISE_EXAMPLES", "8"))
ONE = Identity(None, None, "one")

_octet = st.integers(0, 3)
_ipv4 = st.builds(lambda a, b: f"10.{a}.0.{b + 2}", _octet, st.integers(0, 6))
_ipv6 = st.builds(lambda a, b: f"fd00:{a}::{b + 2}", _octet, st.integers(0, 6))
_table = st.sampled_from([254, 100, 101, 4000])
_metric = st.sampled_from(["", " metric 5", " metric 77", " metric 4096"])


def _words(*choices: str) -> st.SearchStrategy[str]:
    """Some of these words, in this order."""
    return st.lists(st.booleans(), min_size=len(choices), max_size=len(choices)).map(
        lambda chosen: "".join(f" {word}" for word, is_chosen in zip(choices, chosen) if is_chosen)
    )


_address = st.one_of(
    st.builds(
        lambda ip, prefix, words, metric: f"addr add {ip}/{prefix} dev one{words}{metric}",
        _ipv4,
        st.sampled_from([24, 16, 32]),
        st.sampled_from(["", " brd +", " label one:7", " noprefixroute", " scope link", " brd 10.9.9.9"]),
        _metric,
    ),
    st.builds(lambda ip, other: f"addr add {ip} peer {other} dev one", _ipv4, _ipv4),
    st.builds(
        lambda ip, prefix, words, metric: f"addr add {ip}/{prefix} dev one nodad{words}{metric}",
        _ipv6,
        st.sampled_from([64, 48, 128]),
        _words("noprefixroute", "home"),
        _metric,
    ),
)
_route = st.one_of(
    st.builds(
        lambda net, via, onlink, metric, table, more: (
            f"route append 10.{net}.0.0/16 via {via} dev one{onlink}{metric} table {table}{more}"
        ),
        st.integers(50, 55),
        _ipv4,
        st.sampled_from([" onlink", ""]),
        _metric,
        _table,
        st.sampled_from(
            ["", " mtu 1400", " mtu lock 1300 advmss 1200", " proto 186", " tos 0x10", " rto_min 50ms", " realm 5"]
        ),
    ),
    st.builds(
        lambda net, src, table: f"route append 10.{net}.0.0/16 dev one scope link src {src} table {table}",
        st.integers(60, 63),
        _ipv4,
        _table,
    ),
    st.builds(
        lambda net, via, weight, metric, onlink: (
            f"route append 10.{net}.0.0/16{metric} nexthop via {via} dev one weight {weight}{onlink} "
            f"nexthop via 10.200.0.{weight} dev other weight 3"
        ),
        st.integers(70, 73),
        _ipv4,
        st.integers(1, 200),
        _metric,
        st.sampled_from(["", " onlink"]),
    ),
    st.builds(lambda net, src: f"route append 10.{net}.0.0/16 via 10.200.0.9 src {src}", st.integers(80, 83), _ipv4),
    st.builds(
        lambda net, via, metric, table, more: (
            f"-6 route append fd0{net}::/32 via {via} dev one{metric} table {table}{more}"
        ),
        st.integers(1, 5),
        _ipv6,
        _metric,
        _table,
        st.sampled_from(["", " mtu 1400", " pref high", " onlink", " proto 186 advmss 1200"]),
    ),
    st.builds(
        lambda net, via, metric: (
            f"-6 route append fd1{net}::/32{metric} nexthop via {via} dev one weight 2 nexthop via fd00:c8::9 dev other"
        ),
        st.integers(1, 5),
        _ipv6,
        _metric,
    ),
    st.builds(lambda net, src: f"-6 route append fd2{net}::/32 dev one src {src}", st.integers(1, 5), _ipv6),
    st.builds(lambda net: f"route append default via 10.{net}.0.9 dev one onlink table 100", _octet),
)
_selector = st.builds(
    lambda negation, source, to, more: f"{negation}{source}{to}{more}",
    st.sampled_from(["", "not "]),
    st.one_of(st.just("from all"), _ipv4.map(lambda ip: f"from {ip}"), st.just("from 10.1.0.0/16")),
    st.one_of(st.just(""), _ipv4.map(lambda ip: f" to {ip}"), st.just(" to 10.2.0.0/16")),
    st.lists(
        st.sampled_from(
            [
                " iif one",
                " oif one",
                " fwmark 0x5",
                " fwmark 0x5/0xff",
                " tos 0x10",
                " ipproto tcp sport 80 dport 90-99",
                " ipproto udp dport 4791",
                " uidrange 5-10",
                " suppress_prefixlength 0",
                " suppress_ifgroup 3",
                " realms 7",
            ]
        ),
        max_size=3,
        unique=True,
    ).map("".join),
)
_rule = st.builds(
    lambda version, selector, priority, action: f"-{version} rule add {selector} priority {priority} {action}",
    st.sampled_from([4, 4, 6]),
    _selector,
    st.integers(1000, 1006),
    st.sampled_from(["table 100", "table 101", "table 4000", "blackhole", "prohibit", "goto 32766"]),
)
_neighbor = st.one_of(
    _ipv4.map(lambda ip: f"neigh replace {ip} lladdr 02:00:00:00:00:09 dev one nud permanent"),
    _ipv6.map(lambda ip: f"neigh replace {ip} lladdr 02:00:00:00:00:08 dev one nud permanent router"),
    _ipv4.map(lambda ip: f"neigh add proxy {ip} dev one"),
    _ipv6.map(lambda ip: f"neigh add proxy {ip} dev one"),
)
_sysctls = st.dictionaries(
    st.sampled_from(
        [
            "ipv4/conf/one/rp_filter",
            "ipv4/conf/one/arp_ignore",
            "ipv4/conf/one/promote_secondaries",
            "ipv4/conf/one/forwarding",
            "ipv6/conf/one/accept_ra",
            "ipv6/conf/one/keep_addr_on_down",
            "ipv6/conf/one/addr_gen_mode",
            "ipv6/conf/one/use_tempaddr",
            "ipv6/conf/one/disable_ipv6",
            "ipv4/neigh/one/mcast_solicit",
            "ipv6/neigh/one/gc_stale_time",
        ]
    ),
    st.integers(0, 1),
    max_size=5,
)
_link = st.lists(
    st.one_of(
        st.sampled_from([1000, 1280, 1400, 9000]).map(lambda mtu: f"link set one mtu {mtu}"),
        st.integers(1, 255).map(lambda last: f"link set one address 02:00:00:00:01:{last:02x}"),
        st.integers(0, 5000).map(lambda size: f"link set one txqueuelen {size}"),
        st.sampled_from(["uplink to leaf 3", "a"]).map(lambda alias: f"link set one alias '{alias}'"),
        st.sampled_from(["promisc on", "allmulticast on", "arp off", "multicast off", "group 3"]).map(
            lambda words: f"link set one {words}"
        ),
        st.sampled_from(["gso_max_size 4000", "gro_max_size 5000", "gso_max_segs 33"]).map(
            lambda words: f"link set one {words}"
        ),
        st.sampled_from(["enp1s0f0np0", "a-longer-name-than-fifteen-characters", "net1"]).map(
            lambda name: f"link property add dev one altname {name}"
        ),
    ),
    max_size=4,
)
_features = st.dictionaries(st.sampled_from(["gro", "tso", "tx", "rxvlan", "tx-gso-list"]), st.booleans(), max_size=2)


class State(t.NamedTuple):
    """Commands that create a state of the interface `one`."""

    link: list[str]
    features: dict[str, bool]
    sysctls: dict[str, int]
    up: bool
    network: list[str]
    qdiscs: list[str]


_qdisc = st.lists(
    st.sampled_from(
        [
            "root handle 1: tbf rate 1gbit burst 32k latency 50ms",
            "root handle 8001: pfifo limit 77",
            "root bfifo limit 100000",
            "clsact",
            "ingress",
        ]
    ),
    max_size=2,
)
STATES = st.builds(
    State,
    _link,
    _features,
    _sysctls,
    st.sampled_from([True, True, True, False]),
    st.builds(
        lambda *parts: [command for part in parts for command in part],
        st.lists(_address, max_size=6),
        st.lists(_route, max_size=6),
        st.lists(_rule, max_size=4),
        st.lists(_neighbor, max_size=3),
    ),
    _qdisc,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["net1", "one", "enp1s0f0np0", "rdma0"]),
        "mtu": st.sampled_from([1280, 1500, 4200]),
        "mac": st.just("02:00:00:00:00:77"),
        "addresses": st.sampled_from([[], ["10.99.0.2/24"], ["10.99.0.2/24", "10.99.0.3/24"]]),
        "sysctls": st.just({"net.ipv4.conf.IFNAME.arp_ignore": 2, "net.ipv4.conf.IFNAME.rp_filter": 0}),
        "routes": st.just([{"destination": "10.199.0.0/16", "scope": "link", "metric": 9}]),
        "rules": st.just([{"source": "10.99.0.2/32", "table": 77, "priority": 9, "fwmark": 3, "fwmask": 7}]),
        "neighbors": st.just([{"destination": "10.99.0.9", "mac": "02:00:00:00:00:0a"}]),
        "ethtool": st.sampled_from([{"features": {"gro": True}}, {"features": {"tx-checksum-ip-generic": False}}]),
        "gsoMaxSize": st.just(30000),
    },
)
#: `ip` commands that change the interface in the pod.
IN_POD = st.lists(
    st.sampled_from(
        [
            "link set {name} mtu 2000",
            "link set {name} address 02:00:00:00:00:66",
            "link set {name} down",
            "addr flush dev {name}",
            "addr add 10.66.0.1/24 dev {name}",
            "link property add dev {name} altname another",
            "link set {name} txqueuelen 3",
            "link set {name} alias mine",
            "link set {name} promisc on",
            "link add link {name} name child0 type macvlan",
        ]
    ),
    max_size=4,
)
#: Deletes the policy rules of the states.
_DELETE_RULES = (
    "for f in 4 6; do for p in 0 1 2 3 4 5 6; do while ip -$f rule del priority 100$p; do :; done; done; done"
)
#: A shell command that runs on the node while the pod has the interface.
ON_NODE = st.sampled_from(["true", "true", _DELETE_RULES])
#: How the interface leaves the pod: by detach, or because the kernel moves it to the node, under its name in the pod or
#: under a new one.
RETURNS = st.sampled_from(["by detach", "by detach", "same name", "devN", "devN up"])


def prepare(state: State) -> None:
    """Create the interface `one` in a state. Commands that the kernel refuses have no effect."""
    without_dad()
    pair("other")
    run("ip addr add 10.200.0.1/24 dev other; ip addr add fd00:c8::1/64 dev other nodad")
    pair("one", up=False)
    run_ip_commands(state.link)
    with ethtool.Ethtool() as connection:
        features, _unused = ethtool.resolve(state.features, connection.feature_states("one"))
        connection.request_features("one", features)  # some do not become active, because others are off
    for key, value in state.sysctls.items():
        run(f"echo {value} > /proc/sys/net/{key}", check=False)
    if state.up:
        run("ip link set one up")
    run_ip_commands(state.network)
    for qdisc in state.qdiscs:
        run(f"tc qdisc add dev one {qdisc}", check=False)
    wait_for_ipv6()


def run_ip_commands(commands: list[str]) -> None:
    """Run `ip` commands. Failing ones are skipped."""
    run("ip -batch - -force >/dev/null 2>&1", check=False, text="\n".join(commands) + "\n")


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(STATES, CONFIGS, IN_POD, ON_NODE, RETURNS)
@on_a_node
def test_any_state_of_an_interface_is_restored(
    state: State, config: dict[str, t.Any], in_pod: list[str], on_node: str, returns: str
) -> None:
    prepare(state)
    host = interfaces.snapshot(ONE)
    before = shown("one")
    with Pod() as pod:
        try:
            attached = interfaces.attach(ONE, host, config, pod.pin)
        except KernelError:
            pass  # the configuration does not fit the state: the interface is still on the node, unchanged
        else:
            name = attached.network["interfaceName"]
            assert interfaces.locate(ONE, pod.pin).side == "pod"
            for command in in_pod:
                pod.run(f"ip {command.format(name=name)}", check=False)
            run(on_node, check=False)
            if on_node == _DELETE_RULES:  # rules that an administrator deletes stay deleted
                before["rules"] = run("ip -d -4 rule; ip -d -6 rule")
                host["rules"] = [rule for rule in host["rules"] if rule in node_rules()]
            if returns != "by detach":
                return_like_hardware(pod, name, returns)
        notes = interfaces.detach(ONE, host, pod.pin, config)
        assert notes == [], "\n".join(notes)
    assert interfaces.snapshot(ONE) == host
    assert shown("one") == before


def node_rules() -> list[dict[str, t.Any]]:
    """The node's policy rules, as a host state has them."""
    with Netlink() as connection:
        return routes.rules(connection)


def return_like_hardware(pod: Pod, name: str, returns: str) -> None:
    """Do what the kernel does with the interface of a PCI function when its namespace ends. A veth would be deleted."""
    if "devN" in returns:
        pod.run(f"ip link set {name} down; ip link set {name} name dev77")
        name = "dev77"
    pod.run(f"ip link set {name} netns {os.getpid()}")
    if returns.endswith("up"):
        run(f"ip link set {name} up")
    pod.end()


@on_a_node
def test_an_address_that_is_preferred_for_a_limited_time_is_no_difference() -> None:
    """The address never expires, so it is restored and compared. Its preferred lifetime ends while a pod has the
    interface."""
    without_dad()
    pair("one")
    run("ip addr add fd00::5/64 dev one nodad preferred_lft 1; ip addr add fd00::6/64 dev one nodad preferred_lft 500")
    wait_for_ipv6()
    host = interfaces.snapshot(ONE)
    for entry in host["addresses"]:
        if entry.get("preferredUntil"):
            entry["preferredUntil"] += 1
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        time.sleep(1.2)
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
    assert "deprecated" in run("ip addr show to fd00::5") and "preferred_lft 4" in run("ip addr show to fd00::6")


def test_a_permanent_mac_that_follows_the_one_set_by_the_pf_is_no_difference() -> None:
    """After its next reset, the kernel driver of a VF reports the MAC address that the PF set as the permanent one."""
    before = {"name": "one", "mac": "02:00:00:00:00:01", "permanentMac": "02:00:00:00:00:01"}
    now = {**before, "permanentMac": "02:00:00:00:00:02"}
    vf = {"vf": {"mac": "02:00:00:00:00:01"}}
    assert host_state.differences({**before, **vf}, {**now, **vf}) == []
    assert host_state.differences(before, now) == [
        ("permanentMac", "permanentMac is 02:00:00:00:00:02, was 02:00:00:00:00:01")
    ]
    changed = {**now, "vf": {"mac": "02:00:00:00:00:02"}}
    assert host_state.differences({**before, **vf}, changed) == [
        ("vf", "vf: mac is 02:00:00:00:00:02, was 02:00:00:00:00:01")
    ]
