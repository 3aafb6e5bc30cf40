# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which links are below a link, from rtnetlink's dumps, also for kinds that most developers' kernels lack."""

from __future__ import annotations

import struct
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks import netlink
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.links import Link, Stack, parse


def links(**described: dict[str, t.Any]) -> dict[int, Link]:
    """Links by index, from messages of the kernel's form: `master`, `link` and `ports` are names."""
    indexes = {name: index for index, name in enumerate(described, 1)}
    found = {}
    for name, one in described.items():
        body = struct.pack("=BxHiII", 0, 1, indexes[name], 0, 0) + netlink.text(3, name)
        body += netlink.u32(10, indexes[one["master"]]) if "master" in one else b""
        body += netlink.u32(5, indexes[one["link"]]) if "link" in one else b""
        body += netlink.u32(37, one["netns"]) if "netns" in one else b""
        if "kind" in one:
            ports = [netlink.u32(number, indexes[port]) for number, port in enumerate(one.get("ports", ()), 1)]
            body += netlink.nest(18, netlink.text(1, one["kind"]), netlink.nest(2, *ports))
        found[indexes[name]] = parse(body)
    return found


def below(known: t.Mapping[int, Link], name: str, sys: str = "/nowhere") -> set[str]:
    """The names of all links below a link, at any depth."""
    stack = Stack(known, sys)
    found: set[str] = set()
    pending = [stack.links[stack.index(name)]]
    while pending:
        for one in stack.below(pending.pop()):
            if one.name not in found:
                found.add(one.name)
                pending.append(one)
    return found - {name}


BOND: dict[str, dict[str, t.Any]] = {
    "lo": {},
    "bond0": {"kind": "bond"},
    "eth0": {"master": "bond0"},
    "eth1": {"master": "bond0"},
    "bond0.100": {"kind": "vlan", "link": "bond0"},
    "eth2": {},
}
#: Open vSwitch as OVN-Kubernetes has it: the ports of all bridges have the same master, and a bridge's own has none.
SWITCH: dict[str, dict[str, t.Any]] = {
    "ovs-system": {"kind": "openvswitch"},
    "br-int": {"kind": "openvswitch"},
    "br-ex": {"kind": "openvswitch"},
    "rail0": {},
}


@pytest.mark.parametrize(
    ("described", "name", "expected"),
    [
        (BOND, "bond0.100", {"bond0", "eth0", "eth1"}),
        (BOND, "eth0", set()),
        (BOND, "eth2", set()),
        ({"red": {"kind": "vrf"}, "eth0": {"master": "red"}}, "red", {"eth0"}),
        ({"red": {"kind": "vrf"}, "eth0": {"master": "red"}}, "eth0", set()),
        ({"eth0": {}, "vlan7": {"kind": "vlan", "link": "eth0", "netns": 1}}, "vlan7", set()),
        ({"a": {"kind": "veth", "link": "b"}, "b": {"kind": "veth", "link": "a"}}, "a", set()),
        (
            {"a": {"kind": "veth", "link": "b"}, "br": {"kind": "bridge"}, "eth0": {"master": "br"}}
            | {"b": {"kind": "veth", "link": "a", "master": "br"}},
            "a",
            {"b", "br", "eth0"},
        ),
        ({"a": {"kind": "vlan", "link": "b"}, "b": {"kind": "vlan", "link": "a"}}, "a", {"b"}),
        ({"eth0": {}, "eth1": {}, "ring": {"kind": "hsr", "ports": ["eth0", "eth1"]}}, "ring", {"eth0", "eth1"}),
        ({"ib0": {}, "ib0.8001": {"kind": "ipoib", "link": "ib0"}}, "ib0.8001", {"ib0"}),
        # hv_netvsc has its VF as a port
        ({"eth0": {}, "enP1": {"master": "eth0"}}, "eth0", {"enP1"}),
    ],
)
def test_a_link_has_the_lower_interfaces_of_its_kind(
    described: dict[str, dict[str, t.Any]], name: str, expected: set[str]
) -> None:
    assert below(links(**described), name) == expected


@pytest.mark.parametrize(
    ("others", "carrier", "expected"),
    [
        ({"eth0": {"master": "ovs-system"}}, "br-ex", {"eth0"}),
        (
            {
                "bond0": {"kind": "bond", "master": "ovs-system"},
                "eth0": {"master": "bond0"},
                "eth1": {"master": "bond0"},
            },
            "br-ex",
            {"bond0", "eth0", "eth1"},
        ),
        ({"eth0": {"master": "ovs-system"}, "vlan7": {"kind": "vlan", "link": "br-ex"}}, "vlan7", {"br-ex", "eth0"}),
        ({"eth0": {}, "vlan7": {"kind": "vlan", "link": "eth0", "master": "ovs-system"}}, "br-ex", {"vlan7", "eth0"}),
        ({"eth0": {}, "eth1": {"master": "ovs-system"}}, "eth0", set()),
    ],
    ids=["port", "bond", "VLAN on a bridge", "VLAN as a port", "not by the switch"],
)
def test_a_bridge_of_open_vswitch_has_the_ports_of_its_switch(
    others: dict[str, dict[str, t.Any]], carrier: str, expected: set[str]
) -> None:
    assert below(links(**SWITCH, **others), carrier) == expected


def test_vfs_and_subfunctions_depend_on_their_pf(tmp_path: Path) -> None:
    """The links of sysfs: physfn of a VF, and of a subfunction its auxiliary device below the function."""
    devices = tmp_path / "devices/pci0000:00"
    for function, name in (("0000:00:01.0", "pf0"), ("0000:00:01.1", "vf0"), ("0000:00:01.0/mlx5_core.sf.4", "sf0")):
        (devices / function / "net" / name).mkdir(parents=True)
        (tmp_path / "class/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/net" / name).symlink_to(devices / function / "net" / name)
        (devices / function / "net" / name / "device").symlink_to(devices / function)
    (devices / "0000:00:01.1/physfn").symlink_to("../0000:00:01.0")
    known = links(pf0={}, vf0={"master": "ovs-system"}, sf0={}, **SWITCH)
    assert below(known, "vf0", str(tmp_path)) == {"pf0"} == below(known, "sf0", str(tmp_path))
    assert below(known, "pf0", str(tmp_path)) == set()
    assert below(known, "br-ex", str(tmp_path)) == {"vf0", "pf0"}


@pytest.mark.parametrize(("kind", "expected"), [("", False), ("vlan", False), ("tun", True), ("new-one", True)])
def test_an_unknown_kind_is_a_tunnel(kind: str, expected: bool) -> None:
    """What its packets go through is then looked up. Where that fails, all interfaces count as carrying."""
    assert Link(1, "x", kind).is_tunnel is expected
