# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node is reached by, as the real kernel has it."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.management import below, management_interfaces
from ansible_collections.lanewise.dra.plugins.module_utils.host.system import System
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node

pytest.importorskip("pyroute2", reason="needs pyroute2")


def ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


@on_a_node
def test_default_routes_ssh_and_what_they_stand_on() -> None:
    ip(
        *("link add up0 type veth peer name up1", "link add ssh0 type veth peer name ssh1"),
        *("link add rail0 type veth peer name rail1", "link add other0 type veth peer name other1"),
        *("link add br0 type bridge", "link set up0 master br0", "link add mac0 link ssh0 type macvlan"),
        *(f"link set {name} up" for name in ("up0", "up1", "ssh0", "ssh1", "rail0", "rail1", "other0", "br0", "mac0")),
        *("address add 192.0.2.1/24 dev br0", "address add 198.51.100.1/24 dev mac0"),
        *("address add 203.0.113.1/24 dev rail0", "route add default via 192.0.2.254"),
        "route add default via 203.0.113.254 table 100",
    )
    found = management_interfaces(System(), "198.51.100.9 40000 198.51.100.1 22")
    assert found == {
        "br0": "it carries the default route",
        "up0": "it is below br0: it carries the default route",
        "rail0": "it carries the default route",
        "mac0": "it carries this SSH connection",
        "ssh0": "it is below mac0: it carries this SSH connection",
    }
    assert set(management_interfaces(System())) == {"br0", "up0", "rail0"}


def test_the_session_is_known_below_sudo(tmp_path: Path) -> None:
    """As with become: the process has a clean environment, one above it has the session's."""
    program = (
        "from ansible_collections.lanewise.dra.plugins.module_utils.host.management import ssh_connection\n"
        "print(ssh_connection())"
    )
    inner = ["env", "-u", "SSH_CONNECTION", sys.executable, "-c", program]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *inner]  # a shell that stays
    environment = {**os.environ, "SSH_CONNECTION": "192.0.2.9 1 192.0.2.1 22"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "192.0.2.9 1 192.0.2.1 22"


def interfaces(**described: dict[str, t.Any]) -> dict[int, t.Any]:
    """Messages of interfaces as pyroute2 reads them from the kernel, by index: C(master) and C(link) are names."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    indexes = {name: index for index, name in enumerate(described, 1)}
    found = {}
    for name, one in described.items():
        attributes: list[t.Any] = [("IFLA_IFNAME", name)]
        attributes += [(f"IFLA_{key.upper()}", indexes[one[key]]) for key in ("master", "link") if key in one]
        if "kind" in one:
            attributes.append(("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", one["kind"])]}))
        sent = ifinfmsg()
        sent["index"] = indexes[name]
        sent["attrs"] = attributes
        sent.encode()
        found[indexes[name]] = ifinfmsg(sent.data)
        found[indexes[name]].decode()
    return found


#: Open vSwitch as OVN-Kubernetes has it: the ports of all bridges have the same master, and a bridge's own has none.
SWITCH: dict[str, dict[str, t.Any]] = {
    "ovs-system": {"kind": "openvswitch"},
    "br-int": {"kind": "openvswitch"},
    "br-ex": {"kind": "openvswitch"},
    "rail0": {},
}
REASON = "it carries the default route"


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
        (
            {"eth0": {"master": "ovs-system"}, "vlan7": {"kind": "vlan", "link": "br-ex"}},
            "vlan7",
            {"br-ex", "eth0"},
        ),
        (
            {"eth0": {}, "vlan7": {"kind": "vlan", "link": "eth0", "master": "ovs-system"}},
            "br-ex",
            {"vlan7", "eth0"},
        ),
        ({"eth0": {}, "eth1": {"master": "ovs-system"}}, "eth0", set()),
    ],
    ids=["port", "bond", "VLAN on a bridge", "VLAN as a port", "not by the switch"],
)
def test_what_a_bridge_of_open_vswitch_stands_on(
    others: dict[str, dict[str, t.Any]], carrier: str, expected: set[str]
) -> None:
    links = interfaces(**SWITCH, **others)
    (index,) = (index for index, link in links.items() if link.get_attr("IFLA_IFNAME") == carrier)
    found = below(links, {index: REASON}, lambda name: ())
    assert found == {carrier: REASON, **dict.fromkeys(expected, f"it is below {carrier}: {REASON}")}


def test_a_vf_that_is_a_port_of_open_vswitch_stands_on_its_pf() -> None:
    links = interfaces(**SWITCH, pf0={}, vf0={"master": "ovs-system"})
    found = below(links, {3: REASON}, lambda name: ["pf0"] if name == "vf0" else [])
    assert set(found) == {"br-ex", "vf0", "pf0"}
