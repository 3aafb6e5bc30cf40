# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attach and detach restore any state of an interface, whatever happened in between.

Interfaces are veth pairs in real network namespaces; the states are compared by the snapshot of the driver and
by the output of iproute2 and /proc.
"""

from __future__ import annotations

import contextlib
import os
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
_four = st.builds(lambda a, b: f"10.{a}.0.{b + 2}", _octet, st.integers(0, 6))
_six = st.builds(lambda a, b: f"fd00:{a}::{b + 2}", _octet, st.integers(0, 6))
_table = st.sampled_from([254, 100, 101, 4000])
_metric = st.sampled_from(["", " metric 5", " metric 77", " metric 4096"])


def _words(*choices: str) -> st.SearchStrategy[str]:
    """Some of these words, in this order."""
    return st.lists(st.booleans(), min_size=len(choices), max_size=len(choices)).map(
        lambda bits: "".join(f" {word}" for word, bit in zip(choices, bits) if bit)
    )


_address = st.one_of(
    st.builds(
        lambda ip, prefix, words, metric: f"addr add {ip}/{prefix} dev one{words}{metric}",
        _four,
        st.sampled_from([24, 16, 32]),
        st.sampled_from(["", " brd +", " label one:7", " noprefixroute", " scope link", " brd 10.9.9.9"]),
        _metric,
    ),
    st.builds(lambda ip, other: f"addr add {ip} peer {other} dev one", _four, _four),
    st.builds(
        lambda ip, prefix, words, metric: f"addr add {ip}/{prefix} dev one nodad{words}{metric}",
        _six,
        st.sampled_from([64, 48, 128]),
        _words("noprefixroute", "home"),
        _metric,
    ),
)
_route = st.one_of(
    st.builds(
        lambda net, via, rest, metric, table, more: (
            f"route append 10.{net}.0.0/16 via {via} dev one{rest}{metric} table {table}{more}"
        ),
        st.integers(50, 55),
        _four,
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
        _four,
        _table,
    ),
    st.builds(
        lambda net, a, b, w, metric, on: (
            f"route append 10.{net}.0.0/16{metric} nexthop via {a} dev one weight {w}{on} "
            f"nexthop via 10.200.0.{w} dev other weight 3"
        ),
        st.integers(70, 73),
        _four,
        _four,
        st.integers(1, 200),
        _metric,
        st.sampled_from(["", " onlink"]),
    ),
    st.builds(lambda net, src: f"route append 10.{net}.0.0/16 via 10.200.0.9 src {src}", st.integers(80, 83), _four),
    st.builds(
        lambda net, via, metric, table, more: (
            f"-6 route append fd0{net}::/32 via {via} dev one{metric} table {table}{more}"
        ),
        st.integers(1, 5),
        _six,
        _metric,
        _table,
        st.sampled_from(["", " mtu 1400", " pref high", " onlink", " proto 186 advmss 1200"]),
    ),
    st.builds(
        lambda net, via, metric: (
            f"-6 route append fd1{net}::/32{metric} nexthop via {via} dev one weight 2 nexthop via fd00:c8::9 dev other"
        ),
        st.integers(1, 5),
        _six,
        _metric,
    ),
    st.builds(lambda net, src: f"-6 route append fd2{net}::/32 dev one src {src}", st.integers(1, 5), _six),
    st.builds(lambda net: f"route append default via 10.{net}.0.9 dev one onlink table 100", _octet),
)
_selector = st.builds(
    lambda negated, source, to, rest: f"{negated}{source}{to}{rest}",
    st.sampled_from(["", "not "]),
    st.one_of(st.just("from all"), _four.map(lambda ip: f"from {ip}"), st.just("from 10.1.0.0/16")),
    st.one_of(st.just(""), _four.map(lambda ip: f" to {ip}"), st.just(" to 10.2.0.0/16")),
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
    _four.map(lambda ip: f"neigh replace {ip} lladdr 02:00:00:00:00:09 dev one nud permanent"),
    _six.map(lambda ip: f"neigh replace {ip} lladdr 02:00:00:00:00:08 dev one nud permanent router"),
    _four.map(lambda ip: f"neigh add proxy {ip} dev one"),
    _six.map(lambda ip: f"neigh add proxy {ip} dev one"),
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
        st.sampled_from(["enp1s0f0np0", "one-by-another-and-longer-name", "net1"]).map(
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
#: What a pod or others may do to the interface in the pod, or on the node in the meantime.
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
_NO_RULES = "for f in 4 6; do for p in 0 1 2 3 4 5 6; do while ip -$f rule del priority 100$p; do :; done; done; done"
ON_NODE = st.sampled_from(["true", "true", _NO_RULES])
RETURNS = st.sampled_from(["pod", "pod", "same name", "devN", "devN up"])


def prepare(state: State) -> None:
    """Create the interface `one` in a state. Commands that the kernel refuses in combination have no effect."""
    without_dad()
    pair("other")
    run("ip addr add 10.200.0.1/24 dev other; ip addr add fd00:c8::1/64 dev other nodad")
    pair("one", up=False)
    batch(state.link)
    with ethtool.Ethtool() as tool:
        found, _unused = ethtool.resolve(state.features, tool.features("one"), {})
        with contextlib.suppress(OSError):
            tool.set_features("one", found)
    for key, value in state.sysctls.items():
        run(f"echo {value} > /proc/sys/net/{key}", check=False)
    if state.up:
        run("ip link set one up")
    batch(state.network)
    for qdisc in state.qdiscs:
        run(f"tc qdisc add dev one {qdisc}", check=False)
    wait_for_ipv6()


def batch(commands: list[str]) -> None:
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
            pass  # the configuration does not fit the state, and the interface is on the node, unchanged
        else:
            name = attached.network["interfaceName"]
            assert interfaces.locate(ONE, pod.pin).side == "pod"
            for command in in_pod:
                pod.run(f"ip {command.format(name=name)}", check=False)
            run(on_node, check=False)
            if on_node == _NO_RULES:  # rules that an administrator deletes stay deleted
                before["rules"] = run("ip -d -4 rule; ip -d -6 rule")
                host["rules"] = [rule for rule in host["rules"] if rule in node_rules()]
            if returns != "pod":
                come_back_like_hardware(pod, name, returns)
        notes = interfaces.detach(ONE, host, pod.pin, config)
        assert notes == [], "\n".join(notes)
    assert interfaces.snapshot(ONE) == host
    assert shown("one") == before


def node_rules() -> list[dict[str, t.Any]]:
    """The node's policy rules, as a host state has them."""
    with Netlink() as connection:
        return routes.rules(connection)


def come_back_like_hardware(pod: Pod, name: str, how: str) -> None:
    """What the kernel does with a PCI function's interface when its namespace ends; a veth would end with it."""
    if "devN" in how:
        pod.run(f"ip link set {name} down; ip link set {name} name dev77")
        name = "dev77"
    pod.run(f"ip link set {name} netns {os.getpid()}")
    if how.endswith("up"):
        run(f"ip link set {name} up")
    pod.end()


def test_a_permanent_address_that_a_pf_set_is_not_a_difference() -> None:
    """From its next reset on, the driver of a VF reports the address that the PF set as permanent."""
    before = {"name": "one", "mac": "02:00:00:00:00:01", "permanentMac": "02:00:00:00:00:01"}
    now = {**before, "permanentMac": "02:00:00:00:00:02"}
    settings = {"vf": {"mac": "02:00:00:00:00:01"}}
    assert host_state.differences({**before, **settings}, {**now, **settings}) == []
    assert host_state.differences(before, now) == [
        ("permanentMac", "permanentMac is 02:00:00:00:00:02, was 02:00:00:00:00:01")
    ]
    lost = {**now, "vf": {"mac": "02:00:00:00:00:02"}}
    assert host_state.differences({**before, **settings}, lost) == [
        ("vf", "vf: mac is 02:00:00:00:00:02, was 02:00:00:00:00:01")
    ]
