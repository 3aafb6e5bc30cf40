# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Error messages have the kernel's text, a run that needs no netlink does not load pyroute2, and the process that has
a device file open is found."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access import usage
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run

#: Plans an MTU. Prints the number of changes, and whether pyroute2 was loaded.
PLAN = """
import sys
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.tests.host.node import node
system = System()
plan = Mtu(system).plan(node(system, {"rail0": {"mtu": int(sys.argv[1])}}))
print(len(plan.changes), "pyroute2" in sys.modules)
"""


@on_a_node
def test_messages_have_the_error_text_of_the_kernel():
    pair("rail0")
    run("ip addr add 10.0.0.1/24 dev rail0")
    system = System()
    kernel = system.socket("IPRoute")
    with pytest.raises(HostError) as raised:
        system.request_change("add it", lambda: kernel.route("add", dst="192.0.2.0/24", gateway="10.9.0.1"), "look")
    assert raised.value.code == errno.ENETUNREACH
    assert "[ENETUNREACH]: Nexthop has invalid gateway (look)" in str(raised.value)
    with pytest.raises(HostError) as raised:
        system.request_change("add it", lambda: kernel.rule("remove", table=100, priority=7))
    assert raised.value.code == errno.ENOENT and "[ENOENT] (" in str(raised.value)  # the kernel adds no text
    system.close()


@on_a_node
def test_pyroute2_is_loaded_only_if_a_plan_needs_netlink():
    pair("rail0")

    def plan_mtu(mtu: int) -> str:
        return subprocess.run([sys.executable, "-c", PLAN, str(mtu)], capture_output=True, text=True, check=True).stdout

    assert plan_mtu(1500).split() == ["0", "False"]
    assert plan_mtu(9000).split() == ["1", "True"]


@on_a_node
def test_an_unknown_netlink_family_is_reported_by_its_name():
    system = System()
    with pytest.raises(HostError) as raised:
        system.socket("no-such-family")
    assert raised.value.code == errno.ENOENT and "open a netlink socket (no-such-family)" in str(raised.value)
    system.close()


def test_a_process_that_closes_another_file_meanwhile_is_found_by_its_open_file(tmp_path: Path):
    """This process lists its own files. It closes the folder that it lists before it reaches the file."""
    path = tmp_path / "device"
    path.touch()
    with path.open() as file:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500)
    try:
        assert usage._opened_by(System(), {str(path)}) == str(os.getpid())
    finally:
        os.close(high)
    assert usage._opened_by(System(), {str(path)}) == ""
