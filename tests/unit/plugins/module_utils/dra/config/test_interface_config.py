# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validation of InterfaceConfigs."""

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import interface_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.field_checks import MAX_PROBLEMS
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters, validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import given, settings

FULL = {
    "name": "rdma0",
    "addresses": ["10.0.0.2/24", "fd00::2/64"],
    "mtu": 9000,
    "mac": "02:00:00:00:00:01",
    "gsoMaxSize": 65536,
    "groMaxSize": 65536,
    "gsoIPv4MaxSize": 65536,
    "groIPv4MaxSize": 65536,
    "routes": [
        {"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "source": "10.0.0.2", "metric": 10, "onlink": True},
        {"destination": "10.2.0.0/16", "scope": "link", "table": 100, "mtu": 4000},
        {"destination": "0.0.0.0/0", "multipath": [{"gateway": "10.0.0.1", "weight": 2}, {"gateway": "10.0.0.3"}]},
    ],
    "rules": [
        {"priority": 100, "source": "10.0.0.2/32", "table": 100},
        {"table": 100, "fwmark": 1, "fwmask": 255, "iif": "rdma0", "family": "ipv6"},
        {"table": 100, "destination": "::/0", "ipproto": "udp", "destinationPort": 4791, "oif": "rdma0"},
    ],
    "neighbors": [{"destination": "10.0.0.9", "mac": "02:00:00:00:00:09"}],
    "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 0, "net.ipv6.conf.IFNAME.accept_ra": "2"},
    "ethtool": {"features": {"tx-tcp-segmentation": True}, "privateFlags": {"link down": False}, "rings": {"rx": 512}},
    "dad": "none",
    "railAddresses": True,
    "vrf": {"name": "red", "table": 100},
    "vf": {
        "vlan": 0,
        "qos": 3,
        "minTxRate": 10,
        "maxTxRate": 20,
        "trust": True,
        "spoofchk": False,
        "linkState": "auto",
    },
}


def test_a_configuration_with_all_fields_is_valid() -> None:
    assert validate(FULL, "interface", complete=False) == []
    assert validate(parameters(FULL), "config") == []
    assert set(FULL) | {"dhcp", "child", "share"} == set(interface_config.FIELDS)
    share = {"share": {"burst": "100G", "hard": True, "guarantee": "2500M"}, "vf": {"vlan": 5, "qos": 1}}
    assert validate(share, "interface", complete=False) == []
    assert validate({"share": {}}, "interface", complete=False) == []


def _check_only_problem(interface: object, path: str, rule: str, reported: str = "") -> None:
    problems = validate(interface, "i", complete=False)
    assert [(problem.path, problem.rule) for problem in problems] == [(path, rule)], problems
    assert reported in str(problems[0])


@pytest.mark.parametrize(
    ("interface", "path", "rule", "reported"),
    [
        ("eth0", "i", "wrong-type", "mapping"),
        ({"adresses": []}, "i.adresses", "unknown-key", "did you mean 'addresses'?"),
        ({"hardwareAddr": "02:00:00:00:00:01"}, "i.hardwareAddr", "unknown-key", "mac"),
        ({"share": {"burst": "1.5G"}}, "i.share.burst", "bad-value", "whole number"),
        ({"share": {"burst": 10**9}}, "i.share.burst", "wrong-type", "such as 25G"),
        ({"share": {"hard": True}}, "i.share", "contradiction", "guarantee"),
        ({"share": {"hard": False, "guarantee": "1G"}}, "i.share", "contradiction", "guarantee"),
        ({"share": {}, "child": {"type": "macvlan"}}, "i", "contradiction", "child"),
        ({"share": {}, "vf": {"trust": True}}, "i", "contradiction", "may only set"),
        ({"name": "a/b"}, "i.name", "bad-value", "15 letters"),
        ({"name": "all"}, "i.name", "bad-value", "other than lo"),
        ({"name": "net1\n"}, "i.name", "bad-value", ""),
        ({"addresses": "10.0.0.1/24"}, "i.addresses", "wrong-type", "list"),
        ({"addresses": ["10.0.0.1"]}, "i.addresses[0]", "bad-value", "prefix"),
        ({"addresses": ["10.0.0.1/024"]}, "i.addresses[0]", "bad-value", ""),
        ({"addresses": ["10.0.0.1/255.255.255.0"]}, "i.addresses[0]", "bad-value", ""),
        ({"addresses": ["fe80::1%eth0/64"]}, "i.addresses[0]", "bad-value", ""),
        ({"addresses": ["::ffff:10.0.0.1/120"]}, "i.addresses[0]", "bad-value", ""),
        ({"addresses": ["10.0.0.1/24", "10.0.0.1/24"]}, "i.addresses[1]", "duplicate", "duplicate"),
        ({"mtu": "9000"}, "i.mtu", "wrong-type", "68 to 65535"),
        ({"mtu": True}, "i.mtu", "wrong-type", ""),
        ({"mtu": 9000.0}, "i.mtu", "wrong-type", ""),
        ({"mtu": 67}, "i.mtu", "bad-value", ""),
        ({"mtu": None}, "i.mtu", "wrong-type", ""),
        ({"mac": "01:00:00:00:00:00"}, "i.mac", "bad-value", "one interface"),
        ({"mac": "00:00:00:00:00:00"}, "i.mac", "bad-value", ""),
        ({"routes": [{"gateway": "10.0.0.1"}]}, "i.routes[0].destination", "missing", "network"),
        (
            {"routes": [{"destination": "10.0.0.1/8", "gateway": "10.0.0.1"}]},
            "i.routes[0].destination",
            "bad-value",
            "",
        ),
        ({"routes": [{"destination": "10.0.0.0/8"}]}, "i.routes[0]", "contradiction", "scope link"),
        (
            {"routes": [{"destination": "10.0.0.0/8", "gateway": "10.0.0.1", "scope": "link"}]},
            "i.routes[0]",
            "contradiction",
            "scope link",
        ),
        ({"routes": [{"destination": "::/0", "gateway": "10.0.0.1"}]}, "i.routes[0]", "contradiction", "family"),
        ({"rules": [{"table": 1}]}, "i.rules[0]", "contradiction", "family"),
        ({"rules": [{"table": 1, "family": "ipv4", "sourcePort": 1}]}, "i.rules[0]", "contradiction", "ipproto"),
        ({"rules": [{"table": 1, "family": "ipv4", "source": "::/0"}]}, "i.rules[0]", "contradiction", "family"),
        (
            {"sysctls": {"net.ipv4.conf.all.rp_filter": 0}},
            "i.sysctls['net.ipv4.conf.all.rp_filter']",
            "unknown-key",
            "",
        ),
        ({"sysctls": {"kernel.panic": 0}}, "i.sysctls['kernel.panic']", "unknown-key", "allowed"),
        ({"vrf": {"name": "red", "table": 254}}, "i.vrf", "contradiction", "kernel"),
        ({"vrf": {"name": "red"}, "name": "red"}, "i", "contradiction", "VRF"),
        ({"vf": {"qos": 1}}, "i.vf", "contradiction", "vlan"),
        ({"vf": {"minTxRate": 2, "maxTxRate": 1}}, "i.vf", "contradiction", "maxTxRate"),
        ({"child": {"type": "macvlan", "mode": "l2"}}, "i.child", "contradiction", "ipvlan"),
        ({"child": {"type": "ipvlan"}, "mac": "02:00:00:00:00:01"}, "i", "contradiction", "parent"),
        ({"child": {"type": "ipvlan"}, "vf": {"vlan": 1}}, "i", "contradiction", "cannot be combined"),
        ({"dhcp": ["ipv4"], "addresses": ["10.0.0.1/24"]}, "i", "contradiction", "dhcp"),
        ({"dhcp": ["ipv6"], "mtu": 1279}, "i", "contradiction", "1280"),
        ({"apiVersion": "v1"}, "i.apiVersion", "bad-value", "lanewise.dev/v1alpha1"),
    ],
)
def test_an_error_is_reported_once(interface: object, path: str, rule: str, reported: str) -> None:
    _check_only_problem(interface, path, rule, reported)


def test_a_complete_config_must_have_apiversion_and_kind() -> None:
    assert [problem.path for problem in validate({}, "c")] == ["c.apiVersion", "c.kind"]


def test_all_errors_are_reported() -> None:
    invalid = {"mtu": 1, "x": 2, "routes": [{"destination": 1}, {"gateway": "a"}]}
    assert sorted(problem.path for problem in validate(invalid, "i", complete=False)) == [
        "i.mtu",
        "i.routes[0].destination",
        "i.routes[1].destination",
        "i.routes[1].gateway",
        "i.x",
    ]


@pytest.mark.parametrize(
    "invalid",
    [
        {"addresses": [0] * 1_000_000},
        {"addresses": [{}] * 100_000},
        {str(number): 0 for number in range(100_000)},
        {"x" * 100_000 + str(number): 0 for number in range(20)},
        {"sysctls": {"y" * 1000 + str(number): 0 for number in range(50_000)}},
        {"routes": [{str(number): 0 for number in range(1000)}] * 64},
    ],
    ids=lambda invalid: next(iter(invalid))[:9],
)
def test_many_errors_give_a_short_message_in_little_time(invalid: dict[str, object]) -> None:
    start = time.process_time()
    problems = validate(invalid, "i", complete=False)
    assert time.process_time() - start < 2
    assert 1 < len(problems) <= MAX_PROBLEMS + 1
    assert sum(len(str(problem)) for problem in problems) < 10_000


def test_long_config_is_refused() -> None:
    long = {"neighbors": [{"destination": f"fd00::{i:x}:1", "mac": "02:00:00:00:00:01"} for i in range(64)]}
    long["routes"] = [
        {
            "destination": f"fd00:{i:x}:1:2:3::/80",
            "gateway": "fd00:aaaa:bbbb:cccc::1",
            "source": "fd00:aaaa:bbbb:cccc::2",
        }
        for i in range(64)
    ]
    assert limits.opaque_size(parameters(long)) > limits.OPAQUE_BYTES
    _check_only_problem(long, "i", "too-long")


@settings(max_examples=60, deadline=None)
@given(claims_strategies.interfaces())
def test_a_generated_interface_is_valid_in_an_inventory_and_as_a_complete_config(interface: dict[str, object]) -> None:
    assert validate(interface, "i", complete=False) == []
    assert validate(json.loads(json.dumps(parameters(interface))), "i") == []


@settings(max_examples=100, deadline=None)
@given(claims_strategies.configs(invalid_percent=30))
def test_no_config_breaks_the_check(config: object) -> None:
    for problem in validate(config, "c"):
        assert problem.path.startswith("c")
        assert problem.message


def test_the_policy_has_a_validation_for_each_field_and_rule() -> None:
    policy, binding = interface_policy.objects({"a": "b"})
    messages = [entry["message"] for entry in policy["spec"]["validations"]]
    for name in interface_config.CONFIG.fields:
        assert any(message.startswith(f"InterfaceConfig: {name} must be") for message in messages)
    for rule in interface_config.RULES:
        assert f"InterfaceConfig: {rule.description}" in messages
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
