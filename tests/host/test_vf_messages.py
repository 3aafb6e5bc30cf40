# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests about VFs, as strace reads them, are those of iproute2. No interface here has VFs, so all are refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair

SEND = """
import sys
from ansible_collections.lanewise.dra.plugins.module_utils.host import links, netlink, vf
from ansible_collections.lanewise.dra.plugins.module_utils.host.system import HostError, System
setting, value = sys.argv[1:]
value = {"on": True, "off": False}.get(value, value)
message = netlink.nest(links.IFLA_VFINFO_LIST, netlink.nest(1, vf.encoded(3, setting, value)))
try:
    links.change(System(), "rail0", message, "ask")
except HostError as error:
    sys.exit(0 if error.code in (22, 95) else str(error))
"""


def told(*command: str) -> str:
    """The request about VFs that a command sends."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    said = subprocess.run(
        ["strace", "-s", "4096", "-e", "trace=sendmsg,sendto", *command], capture_output=True, text=True, check=False
    ).stderr
    if "PTRACE" in said:
        pytest.skip("needs to trace processes")
    for line in said.replace("NLA_F_NESTED|", "").splitlines():
        if "IFLA_VFINFO_LIST" in line and "nlmsg_type=RTM_NEWLINK" in line:
            return re.split(r", iov_len=|, \d+, 0, NULL", line[line.index("IFLA_VFINFO_LIST") :])[0].rstrip("]}")
    raise AssertionError(said)


@pytest.mark.parametrize(
    ("setting", "value", "command"),
    [
        ("mac", "02:00:00:00:00:77", "mac 02:00:00:00:00:77"),
        ("vlan", "5 qos 2", "vlan 5 qos 2"),
        ("vlan", "0", "vlan 0"),
        ("vlan", "5 qos 2 802.1ad", "vlan 5 qos 2 proto 802.1ad"),
        ("trust", "on", "trust on"),
        ("spoof_check", "off", "spoofchk off"),
        ("rate", "100 to 4000 Mbit/s", "max_tx_rate 4000 min_tx_rate 100"),
        *(("link_state", state, f"state {state}") for state in ("auto", "enable", "disable")),
        ("node_guid", "11:22:33:44:55:66:77:88", "node_guid 11:22:33:44:55:66:77:88"),
        ("port_guid", "11:22:33:44:55:66:77:99", "port_guid 11:22:33:44:55:66:77:99"),
    ],
)
@on_a_node
def test_requests_are_those_of_iproute2(setting: str, value: str, command: str):
    pair("rail0")
    ours = told(sys.executable, "-c", SEND, setting, value)
    assert ours == told("ip", "link", "set", "rail0", "vf", "3", *command.split())
