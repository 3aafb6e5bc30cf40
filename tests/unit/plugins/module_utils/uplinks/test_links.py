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
    """Links by index, parsed from messages in the kernel's format. `master`, `link` and `ports` are names of links."""
    indexes = {name: index for index, name in enumerate(described, 1)}
    found = {}
    for name, attributes in described.items():
        body = struct.pack("=BxHiII", 0, 1, indexes[name], 0, 0) + netlink.text(3, name)
        body += netlink.u32(10, indexes[attributes["master"]]) if "master" in attributes else b""
        body += netlink.u32(5, indexes[attributes["link"]]) if "link" in attributes else b""
        body += netlink.u32(37, attributes["netns"]) if "netns" in attributes else b""
        if "kind" in attributes:
            ports = [netlink.u32(number, indexes[port]) for number, port in enumerate(attributes.get("ports", ()), 1)]
            body += netlink.nest(18, netlink.text(1, attributes["kind"]), netlink.nest(2, *ports))
        found[indexes[name]] = parse(body)
    return found


def lower_links(known: t.Mapping[int, Link], name: str, sys: str = "/nowhere") -> set[str]:
    """The names of all links below a link, at any depth."""
    stack = Stack(known, sys)
    found: set[str] = set()
    pending = [stack.links[stack.index(name)]]
    while pending:
        for link in stack.below(pending.pop()):
            if link.name not in found:
                found.add(link.name)
                pending.append(link)
    return found - {name}


BOND: dict[str, dict[str, t.Any]] = {
    "lo": {},
    "bond0": {"kind": "bond"},
    "eth0": {"master": "bond0"},
    "eth1": {"master": "bond0"},
    "bond0.100": {"kind": "vlan", "link": "bond0"},
    "eth2": {},
}
#: Open vSwitch as with OVN-Kubernetes: the ports of all bridges have the master ovs-system, and the bridges have none.
OPEN_VSWITCH: dict[str, dict[str, t.Any]] = {
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
def test_the_lower_links_of_each_kind_of_link_are_found(
    described: dict[str, dict[str, t.Any]], name: str, expected: set[str]
) -> None:
    assert lower_links(links(**described), name) == expected


@pytest.mark.parametrize(
    ("others", "interface", "expected"),
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
    ids=["port", "bond", "VLAN on a bridge", "VLAN as a port", "interface beside the switch"],
)
def test_the_lower_links_of_an_open_vswitch_bridge_are_all_ports_of_the_switch(
    others: dict[str, dict[str, t.Any]], interface: str, expected: set[str]
) -> None:
    assert lower_links(links(**OPEN_VSWITCH, **others), interface) == expected


def test_vfs_and_subfunctions_depend_on_their_pf(tmp_path: Path) -> None:
    """In sysfs, a VF has the link physfn, and a subfunction is an auxiliary device in the folder of its PF."""
    devices = tmp_path / "devices/pci0000:00"
    for function, name in (("0000:00:01.0", "pf0"), ("0000:00:01.1", "vf0"), ("0000:00:01.0/mlx5_core.sf.4", "sf0")):
        (devices / function / "net" / name).mkdir(parents=True)
        (tmp_path / "class/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/net" / name).symlink_to(devices / function / "net" / name)
        (devices / function / "net" / name / "device").symlink_to(devices / function)
    (devices / "0000:00:01.1/physfn").symlink_to("../0000:00:01.0")
    known = links(pf0={}, vf0={"master": "ovs-system"}, sf0={}, **OPEN_VSWITCH)
    assert lower_links(known, "vf0", str(tmp_path)) == {"pf0"} == lower_links(known, "sf0", str(tmp_path))
    assert lower_links(known, "pf0", str(tmp_path)) == set()
    assert lower_links(known, "br-ex", str(tmp_path)) == {"vf0", "pf0"}


@pytest.mark.parametrize(("kind", "expected"), [("", False), ("vlan", False), ("tun", True), ("new-one", True)])
def test_links_of_unknown_kinds_count_as_tunnels(kind: str, expected: bool) -> None:
    """The packets of a tunnel may use any interface, unless the kernel reports its endpoints."""
    assert Link(1, "x", kind).is_tunnel is expected
