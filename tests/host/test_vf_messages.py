# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Netlink requests that change VFs equal those of iproute2, as strace decodes them. The kernel refuses them, because
the interface has no VFs.

Encoded settings also decode to the same values, because the kernel's messages use the same structures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.vf import Rate, Vf, Vlan, decoded, encoded
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair
from ansible_collections.lanewise.dra.tests.host.emulated_netlink import round_trip
from hypothesis import given, settings
from hypothesis import strategies as st

#: Sends a request to change a setting of VF 3. EINVAL and EOPNOTSUPP are expected.
SEND = """
import sys
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import vf
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
setting, value = sys.argv[1:]
system = System()
try:
    value = {"on": True, "off": False}.get(value, value)
    vf.send(system, "rail0", 3, setting, vf.Vf(system).from_stored(setting, value), "send the request")
except HostError as error:
    sys.exit(0 if error.code in (22, 95) else str(error))
"""

rates = st.integers(0, 2**32 - 2)
address = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
guid = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex(":"))
vlan = st.builds(Vlan, st.integers(0, 4095), st.integers(0, 7), st.sampled_from(["802.1Q", "802.1ad"]))
states = st.fixed_dictionaries(
    {
        "mac": address,
        "vlan": vlan,
        "trust": st.booleans(),
        "spoof_check": st.booleans(),
        "link_state": st.sampled_from(["auto", "enable", "disable"]),
        "rate": st.builds(Rate, rates, rates),
        "node_guid": guid,
        "port_guid": guid,
    }
)


@pytest.fixture(scope="module")
def messages() -> t.Any:
    pytest.importorskip("pyroute2")
    from ansible_collections.lanewise.dra.plugins.module_utils.host.access import messages

    return messages


@settings(deadline=None, max_examples=50)
@given(wanted=st.dictionaries(st.integers(0, 255), states, max_size=5))
def test_encoded_vf_settings_decode_to_the_same(messages, wanted):
    vfs = [
        ("vf", {"attrs": [encoded(number, setting, value) for setting, value in state.items()]})
        for number, state in wanted.items()
    ]
    assert decoded(link_message(messages, vfs)) == wanted
    # the MAC address of an InfiniBand VF is not read
    without_addresses = {number: {**state, "mac": None} for number, state in wanted.items()}
    read = decoded(link_message(messages, vfs, hardware_type=32))  # ARPHRD_INFINIBAND
    assert {number: {"mac": None, **state} for number, state in read.items()} == without_addresses


@given(value=st.one_of(vlan, states.map(lambda state: state["rate"])))
def test_a_stored_value_is_read_back_unchanged(value):
    setting = "vlan" if isinstance(value, Vlan) else "rate"
    assert Vf(System()).from_stored(setting, str(value)) == value


def link_message(messages: t.Any, vfs: list[t.Any], hardware_type: int = 1) -> t.Any:
    """A link message with these VFs, encoded and decoded."""
    return round_trip(messages.Link, [("IFLA_VFINFO_LIST", {"attrs": vfs})], ifi_type=hardware_type)


def traced_request(*command: str) -> str:
    """The attribute IFLA_VFINFO_LIST of the request that a command sends, as strace prints it."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    trace = subprocess.run(
        ["strace", "-s", "4096", "-e", "trace=sendmsg,sendto", *command], capture_output=True, text=True, check=False
    ).stderr
    if "PTRACE" in trace:
        pytest.skip("needs to trace processes")
    for line in trace.replace("NLA_F_NESTED|", "").splitlines():
        if "IFLA_VFINFO_LIST" in line and "nlmsg_type=RTM_NEWLINK" in line:
            attribute = line[line.index("IFLA_VFINFO_LIST") :]
            return re.split(r", iov_len=|, \d+, 0, (?:NULL|\{sa_family)", attribute)[0].rstrip("]}")
    raise AssertionError(trace)


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
def test_requests_equal_those_of_iproute2(setting: str, value: str, command: str):
    pair("rail0")
    ours = traced_request(sys.executable, "-c", SEND, setting, value)
    assert ours == traced_request("ip", "link", "set", "rail0", "vf", "3", *command.split())
