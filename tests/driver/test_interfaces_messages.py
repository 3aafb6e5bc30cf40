# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Netlink requests for hardware and kernel features that the machine of the tests may lack. They equal those of
iproute2, as strace decodes both. Whether the kernel applies them is not tested here."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair
from lanewise_driver.kernel import links, netlink, vf
from lanewise_driver.kernel.links import Link

#: A program that sends the driver's request for a setting.
DRIVER_REQUEST = """
import json, sys
from pathlib import Path
from lanewise_driver.interface import children, interfaces
from lanewise_driver.kernel import links, netlink, vf, vrf
from lanewise_driver.base.errors import KernelError
from lanewise_driver.kernel.netlink import Netlink
kind, argument = sys.argv[1], json.loads(sys.argv[2])
with Netlink() as connection:
    index = links.get(connection, name="one").index
    try:
        if kind == "vf":
            for _, message in vf.messages(3, {}, argument):
                body = netlink.nest(links.IFLA_VFINFO_LIST, netlink.nest(1, message))
                links.change(connection, index, body)
        elif kind == "vrf":
            vrf.join(connection, index, argument)
        else:
            netns = Path("/proc/self/ns/net")
            children.create(interfaces.Identity(None, None, "one"), {}, {"child": argument}, netns, "net1", [])
    except (OSError, KernelError):
        pass
"""


def trace(attribute: str, *command: str) -> list[str]:
    """The values of an attribute in the link requests that a command sends, as strace decodes them. The command may
    fail."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    output = subprocess.run(
        ["strace", "-s", "4096", "-e", "trace=sendmsg,sendto", *command], capture_output=True, text=True, check=False
    ).stderr
    if "PTRACE" in output:
        pytest.skip("needs to trace processes")
    found = []
    for line in output.replace("NLA_F_NESTED|", "").splitlines():
        if re.search(r"nlmsg_type=RTM_(NEW|SET)LINK", line) and attribute in line:
            text = line[line.index(attribute) :]
            found.append(re.split(r", iov_len=|, \d+, 0, NULL", text)[0].rstrip("]}"))
    return found


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"mac": "02:00:00:00:00:77"}, "mac 02:00:00:00:00:77"),
        ({"vlan": 5, "qos": 2}, "vlan 5 qos 2"),
        ({"vlan": 7}, "vlan 7"),
        ({"vlan": 5, "qos": 2, "vlanProtocol": "88a8"}, "vlan 5 qos 2 proto 802.1ad"),
        ({"trust": True}, "trust on"),
        ({"spoofchk": False, "trust": False}, "spoofchk off trust off"),
        ({"minTxRate": 100, "maxTxRate": 4000}, "max_tx_rate 4000 min_tx_rate 100"),
        ({"linkState": "auto"}, "state auto"),
        ({"linkState": "enable"}, "state enable"),
        ({"linkState": "disable"}, "state disable"),
    ],
)
def test_requests_for_vf_settings_equal_those_of_iproute2(settings: dict[str, t.Any], command: str) -> None:
    @on_a_node
    def test() -> None:
        pair("one")
        by_iproute2 = trace("nla_type=IFLA_VF_INFO}", "ip", "link", "set", "one", "vf", "3", *command.split())
        by_driver = trace("nla_type=IFLA_VF_INFO}", sys.executable, "-c", DRIVER_REQUEST, "vf", json.dumps(settings))
        assert by_driver and by_iproute2
        # the kernel refuses the first request for a veth, so the driver sends no second one
        (first,) = re.findall(r"nla_type=IFLA_VF_(?!INFO}).*", by_driver[0])
        assert re.sub(r"\W+$", "", first) in by_iproute2[0]

    test()


@pytest.mark.parametrize(
    ("kind", "argument", "command"),
    [
        ("vrf", {"name": "blue", "table": 1234}, "add blue type vrf table 1234"),
        ("child", {"type": "ipvlan"}, "add link one name net1 type ipvlan mode l2"),
        ("child", {"type": "ipvlan", "mode": "l3s"}, "add link one name net1 type ipvlan mode l3s"),
        ("child", {"type": "macvlan", "mode": "vepa"}, "add link one name net1 type macvlan mode vepa"),
    ],
)
def test_requests_for_vrfs_and_children_equal_those_of_iproute2(
    kind: str, argument: dict[str, t.Any], command: str
) -> None:
    @on_a_node
    def test() -> None:
        pair("one")
        by_driver = trace("nla_type=IFLA_LINKINFO}", sys.executable, "-c", DRIVER_REQUEST, kind, json.dumps(argument))
        subprocess.run(["ip", "link", "del", "net1"], check=False, capture_output=True)
        by_iproute2 = trace("nla_type=IFLA_LINKINFO}", "ip", "link", *command.split())
        # iproute2 omits the zero byte after the kind, and also sends the flags of ipvlan, which are 0
        assert _without_lengths(by_driver[0]) == _without_lengths(by_iproute2[0]).replace(
            r"\x06\x00\x02\x00\x00\x00\x00\x00", ""
        )

    test()


def _without_lengths(text: str) -> str:
    """The decoded attribute without lengths and terminating zero bytes."""
    return re.sub(r"nla_len=\d+", "", text).replace('\\0"', '"').replace('"...', '"')


def test_vf_settings_that_the_kernel_reports_are_parsed() -> None:
    def vf_info(index: int, *more: bytes) -> bytes:
        mac = netlink.attribute(1, struct.pack("=I", index) + bytes.fromhex("020000000077").ljust(32, b"\0"))
        return netlink.nest(1, mac, *more)

    vf_infos = [
        vf_info(0),
        vf_info(
            1,
            netlink.attribute(2, struct.pack("=III", 1, 5, 2)),
            netlink.nest(12, netlink.attribute(1, struct.pack("=III2s2x", 1, 5, 2, b"\x88\xa8"))),
            netlink.attribute(6, struct.pack("=III", 1, 10, 20)),
            netlink.attribute(4, struct.pack("=II", 1, 1)),
            netlink.attribute(9, struct.pack("=II", 1, 2**32 - 1)),
            netlink.attribute(5, struct.pack("=II", 1, 2)),
        ),
    ]
    link = Link(1, 0, {links.IFLA_ADDRESS: bytes(6), links.IFLA_VFINFO_LIST: b"".join(vf_infos)})
    assert vf.parse(link, 1) == {
        "mac": "02:00:00:00:00:77",
        "vlan": 5,
        "qos": 2,
        "vlanProtocol": "88a8",
        "minTxRate": 10,
        "maxTxRate": 20,
        "spoofchk": True,
        "linkState": "disable",
    }
    with pytest.raises(OSError):
        vf.parse(link, 2)
    assert list(vf.messages(1, vf.parse(link, 1), vf.parse(link, 1))) == []
