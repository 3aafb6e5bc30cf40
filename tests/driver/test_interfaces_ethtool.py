# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ethtool settings of an interface are checked, set in a pod, and restored when its claim ends."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
import typing as t
from unittest import mock

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import (
    ONE,
    Pod,
    node,
    on_a_node,
    pair,
    wait_for_ipv6,
    without_dad,
)
from lanewise_driver.base.errors import KernelError
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.kernel import ethtool
from lanewise_driver.kernel.ethtool import Ethtool, Feature, resolve


@on_a_node
def test_a_feature_whose_fixed_state_is_the_requested_one_is_accepted() -> None:
    """veth has no large receive offload: switching it off is accepted, and switching it on is refused."""
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
            assert not tool.feature_states("net1")["rx-lro"].active
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE) == host
    for feature in ("lro", "large-receive-offload", "rx-lro"):
        (problem,) = interfaces.check(ONE, {"ethtool": {"features": {feature: True}}})
        assert problem.path.startswith("ethtool.features") and feature in problem.path


@on_a_node
def test_ethtool_settings_that_a_child_will_not_have_are_refused() -> None:
    """A macvlan has the offloads of its parent."""
    host = node()
    child = {"name": "net1", "child": {"type": "macvlan"}}
    accepted = {"gso": True, "rx-hashing": False, "tx-tcp-segmentation": True, "tx-vlan-offload": False}
    with Pod() as pod:
        config = {**child, "ethtool": {"features": accepted}}
        assert interfaces.check(ONE, config) == []
        interfaces.attach(ONE, host, config, pod.pin)
        interfaces.detach(ONE, host, pod.pin, config)
        for features in ({"tso": False}, {"rx-ntuple-filter": True}, {"sg": False}):
            config = {**child, "ethtool": {"features": features}}
            (problem,) = interfaces.check(ONE, config)
            assert (
                problem.path.startswith("ethtool.features")
                and "a child of this interface cannot turn" in problem.message
            )
            with pytest.raises(KernelError, match="set features of net1"):
                interfaces.attach(ONE, host, config, pod.pin)
    rings = {**child, "ethtool": {"rings": {"rx": 512}, "privateFlags": {"x": True}}}
    with mock.patch.object(Ethtool, "rings", return_value=({"rx": 256}, {"rx": 4096})):
        messages = [problem.message for problem in interfaces.check(ONE, rings)]
    assert messages == [
        "a child of this interface has no private flags",
        "a child of this interface has no such ring whose size can be set",
    ]


@on_a_node
def test_refused_features_keep_their_state() -> None:
    """Without checksums or scatter-gather the kernel turns TSO off, but keeps the request, so that TSO would start
    with them."""
    node()
    with Ethtool() as tool:
        tool.set_features("one", {"tso": False, "gro": False})
        before = tool.feature_states("one")
        with pytest.raises(OSError, match="tx-tcp-segmentation of one is still off: its driver refuses"):
            tool.set_features("one", {"tx-checksum-ip-generic": False, "tx-tcp-segmentation": True, "gro": True})
        assert tool.feature_states("one") == before
        with pytest.raises(OSError, match="tx-tcp-segmentation of one is still off, .*: its driver refuses"):
            tool.set_features("one", {"sg": False, "tso": True})
        assert tool.feature_states("one") == before
        with pytest.raises(OSError, match=r"^\[Errno 95\] no-such: this interface has no such feature"):
            tool.set_features("one", {"gro": True, "no-such": True})
        assert tool.feature_states("one") == before
        tool.set_features("one", {"tso": True})
        assert tool.feature_states("one")["tx-tcp-segmentation"].active


@pytest.mark.parametrize(
    ("wanted", "resolved", "unchangeable"),
    [
        ({"tx": True}, {"tx-checksum-ip-generic": True}, {}),
        ({"tx": False}, {}, {"tx": "this interface cannot turn off tx-checksum-sctp"}),
        ({"tx-checksum-ip-generic": False}, {"tx-checksum-ip-generic": False}, {}),
        ({"rxhash": True}, {}, {}),
        ({"rxhash": False}, {}, {"rxhash": "this interface cannot turn off rx-hashing"}),
        ({"rx-lro": False, "lro": False}, {}, {}),
        ({"lro": True}, {}, {"lro": "this interface cannot turn it on"}),
        ({"vlan-challenged": False}, {}, {"vlan-challenged": "this interface cannot turn off vlan-challenged"}),
        ({"nope": False}, {}, {"nope": "this interface has no such feature"}),
    ],
)
def test_features_in_a_fixed_state_are_reported_unless_it_is_the_wanted_one(
    wanted: dict[str, bool], resolved: dict[str, bool], unchangeable: dict[str, str]
) -> None:
    states = {
        "tx-checksum-ip-generic": Feature(3, available=True, requested=True, active=True, never_changed=False),
        "tx-checksum-sctp": Feature(4, available=False, requested=True, active=True, never_changed=False),
        "rx-hashing": Feature(5, available=False, requested=False, active=True, never_changed=False),
        "rx-lro": Feature(6, available=False, requested=False, active=False, never_changed=False),
        "vlan-challenged": Feature(7, available=True, requested=True, active=True, never_changed=True),
    }
    assert resolve(wanted, states) == (resolved, unchangeable)


def test_a_refused_private_flag_does_not_keep_the_others_from_being_set() -> None:
    """The driver of the device refuses the second flag (requests of linux/ethtool.h)."""
    flags = [f"flag-{number}" for number in range(12)]
    value = 0

    def call(_tool: Ethtool, _name: str, request: bytes) -> bytes:
        nonlocal value
        command, wanted = struct.unpack_from("=II", request)
        if command == 0x37:  # ETHTOOL_GSSET_INFO
            return request[:8] + struct.pack("=QI", 4, len(flags))
        if command == 0x1B:  # ETHTOOL_GSTRINGS
            return request[:12] + b"".join(flag.encode().ljust(32, b"\0") for flag in flags)
        if command == 0x28:  # ETHTOOL_SPFLAGS
            if refused & (wanted ^ value):
                raise OSError(errno.EINVAL, "Invalid argument")
            value = wanted
        return struct.pack("=II", command, value)

    with mock.patch.object(Ethtool, "_call", call), Ethtool() as tool:
        refused = 0b10
        wanted = {"flag-0": True, "flag-1": True, "none": True, "flag-2": True}
        with pytest.raises(OSError, match="private flag flag-1: Invalid argument; unknown private flag none$"):
            tool.set_private_flags("one", wanted)
        assert value == 0b101 and tool.private_flags("one")["flag-2"]
        refused = ~0
        with pytest.raises(OSError, match="private flag flag-8: Invalid argument; and 3 more$"):
            tool.set_private_flags("one", {flag: not tool.private_flags("one")[flag] for flag in flags[1:]})


class FlowTable:
    """The flow rules of a device, as net/ethtool/ioctl.c and a driver with RSS contexts handle them. Replaces the
    module fcntl: all other requests reach the kernel."""

    flow_rss = 0x20000000
    contexts = (1, 2)

    def __init__(self, rules: dict[int, tuple[bytes, int]]) -> None:
        self.rules = rules

    def ioctl(self, descriptor: t.Any, request: int, argument: bytes) -> object:
        (pointer,) = struct.unpack_from("=Q", argument, 16)
        command = ctypes.c_uint32.from_address(pointer).value
        if not 0x2E <= command <= 0x32:
            return fcntl.ioctl(descriptor, request, argument)
        (location,) = struct.unpack("=I", ctypes.string_at(pointer + 176, 4))
        (context,) = struct.unpack("=I", ctypes.string_at(pointer + 184, 4))
        if command == 0x2E:  # ETHTOOL_GRXCLSRLCNT
            ctypes.memmove(pointer + 184, struct.pack("=I", len(self.rules)), 4)
        elif command == 0x30:  # ETHTOOL_GRXCLSRLALL
            if context < len(self.rules):
                raise OSError(errno.EMSGSIZE, "rule_cnt is too small")
            locations = struct.pack(f"={len(self.rules)}I", *self.rules)
            ctypes.memmove(pointer + 184, struct.pack("=I", len(self.rules)) + locations, 4 + len(locations))
        elif command == 0x32:  # ETHTOOL_SRXCLSRLINS
            self._insert(location, ctypes.string_at(pointer + 16, 168), context)
        elif location not in self.rules:
            raise OSError(errno.ENOENT, "there is no such rule")
        elif command == 0x31:  # ETHTOOL_SRXCLSRLDEL
            del self.rules[location]
        else:
            rule, context = self.rules[location]
            ctypes.memmove(pointer + 16, rule + struct.pack("=I", context), 172)
        return argument

    def _insert(self, location: int, rule: bytes, context: int) -> None:
        spreads = struct.unpack_from("=I", rule)[0] & self.flow_rss
        if spreads and context not in self.contexts:
            raise OSError(errno.EINVAL, "there is no such RSS context")
        self.rules[location] = (rule, context if spreads else 0)


def flow_rule(location: int, flow_type: int, queue: int = 0) -> bytes:
    """A struct ethtool_rx_flow_spec."""
    return struct.pack("=I148xQI4x", flow_type, queue, location)


@pytest.mark.parametrize("change", ["none", "delete", "context", "more"])
def test_flow_rules_are_restored_with_their_rss_contexts(change: str) -> None:
    @on_a_node
    def test() -> None:
        without_dad()
        pair("one")
        wait_for_ipv6()
        spreading = flow_rule(7, 1 | FlowTable.flow_rss)
        rules = {3: (flow_rule(3, 1, queue=4), 0), 7: (spreading, 2)}
        table = FlowTable(dict(rules))
        with mock.patch.object(ethtool, "fcntl", table), Pod() as pod:
            host = interfaces.snapshot(ONE)
            interfaces.attach(ONE, host, {}, pod.pin)
            if change == "delete":
                table.rules.clear()
            elif change == "context":
                table.rules[7] = (spreading, 1)
            elif change == "more":
                table.rules[8] = (flow_rule(8, 1 | FlowTable.flow_rss), 1)
            assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
            assert table.rules == rules
            assert interfaces.snapshot(ONE) == host

    test()


@on_a_node
def test_a_flow_rule_without_its_rss_context_does_not_keep_others_from_being_restored() -> None:
    """A pod deleted an RSS context and all rules. The driver cannot create the context again."""
    without_dad()
    pair("one")
    wait_for_ipv6()
    spreading = flow_rule(3, 1 | FlowTable.flow_rss)
    rules = {3: (spreading, 2), 7: (flow_rule(7, 1, queue=4), 0)}
    table = FlowTable(dict(rules))
    with mock.patch.object(ethtool, "fcntl", table), Pod() as pod:
        host = interfaces.snapshot(ONE)
        interfaces.attach(ONE, host, {}, pod.pin)
        table.rules.clear()
        table.contexts = (1,)
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        assert table.rules == {7: rules[7]}
        refused = "add rule 3, whose RSS context 2 may no longer exist: there is no such RSS context"
        assert outcome.notes == [f"ethtool flowRules: {refused}"]
        texts = [reason.text for reason in outcome.reasons]
        assert texts == [
            "one: ethtool: flowRuleContexts is None, was {'3': 2}",
            f"one: ethtool: flowRules: 3 is None, was {spreading.hex()}",
        ]


@on_a_node
def test_a_note_names_the_restored_features_that_do_not_become_active() -> None:
    """Without scatter-gather the kernel turns TSO off, but keeps the request."""
    without_dad()
    pair("one")
    wait_for_ipv6()
    with ethtool.Ethtool() as tool:
        tool.set_features("one", {"sg": False})
        assert tool.features("one")["tx-tcp-segmentation"]
        host = interfaces.snapshot(ONE)
        with Pod() as pod:
            interfaces.attach(ONE, host, {"ethtool": {"features": {"gro": False}}}, pod.pin)
            assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        with Pod() as pod:
            interfaces.attach(ONE, host, {"ethtool": {"features": {"tx-tcp-segmentation": False}}}, pod.pin)
            outcome = take_back.take_back(ONE, host, pod.pin, {})
        assert interfaces.snapshot(ONE) == host and not outcome.reasons
        (note,) = outcome.notes
        assert note.startswith("ethtool features: tx-tcp-segmentation is off, not as requested: ")


@on_a_node
def test_a_flow_rule_of_an_old_record_keeps_its_rss_context() -> None:
    """Records of old releases do not contain the context."""
    without_dad()
    pair("one")
    wait_for_ipv6()
    rules = {7: (flow_rule(7, 1 | FlowTable.flow_rss), 2)}
    table = FlowTable(dict(rules))
    with mock.patch.object(ethtool, "fcntl", table), Pod() as pod:
        host = interfaces.snapshot(ONE)
        del host["ethtool"]["flowRuleContexts"]
        interfaces.attach(ONE, host, {}, pod.pin)
        table.rules[8] = (flow_rule(8, 1), 0)
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        assert table.rules == rules
