# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SSH session of a run is found. Changes of management interfaces are refused or can be undone.

tests/driver/test_uplinks.py tests which interfaces these are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import guard
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node
from ansible_collections.lanewise.dra.tests.driver.test_uplinks import make_or_skip


def test_the_ssh_session_is_found_below_sudo(tmp_path: Path) -> None:
    """As with become: the process has a clean environment, and one of its ancestors has that of the session."""
    program = (
        "from ansible_collections.lanewise.dra.plugins.module_utils.host.access.management import ssh_connection\n"
        "print(ssh_connection())"
    )
    inner = ["env", "-u", "SSH_CONNECTION", sys.executable, "-c", program]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *inner]  # a shell that is not replaced by the command
    environment = {**os.environ, "SSH_CONNECTION": "192.0.2.9 1 192.0.2.1 22"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "192.0.2.9 1 192.0.2.1 22"


@on_a_node
def test_a_change_of_the_management_interface_is_refused_or_can_be_undone() -> None:
    """There is no default route: the address of the node is on lo, and answers go by a group of nexthop objects."""
    make_or_skip("SSH to an address on lo, by a nexthop group")
    rule = Rule("rails", selector({"interface": "nic*", "type": "virtual"}), {"mtu": 1400}, count=4)
    system = System()
    plan = Mtu(system).plan(Node(system, [rule]))
    assert {one.device for one in plan.refusals} == {"nic0", "nic1"}
    why = "nic0: it is on the route to the SSH client 198.51.100.1"
    assert next(why in str(one) and "allow_management" in str(one) for one in plan.refusals if one.device == "nic0")
    node = Node(system, [rule], allow_management=True)
    changes = Mtu(system).plan(node).changes
    assert {one.device for one in changes} == {"nic0", "nic1", "nic2", "nic3"}
    assert guard.needed(node, changes)
    assert not guard.needed(node, [one for one in changes if one.device in ("nic2", "nic3")])
