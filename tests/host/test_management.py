# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SSH connection of a run is found. Changes of management interfaces are refused, or need a confirmation.

tests/driver/test_uplinks.py tests which interfaces are management interfaces.
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
from ansible_collections.lanewise.dra.tests.driver.test_uplinks import set_up_or_skip


def test_the_ssh_connection_is_found_below_sudo(tmp_path: Path) -> None:
    """As with become, the process lacks SSH_CONNECTION, and one of its ancestors has it."""
    program = (
        "from ansible_collections.lanewise.dra.plugins.module_utils.host.access.management import ssh_connection\n"
        "print(ssh_connection())"
    )
    without_variable = ["env", "-u", "SSH_CONNECTION", sys.executable, "-c", program]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *without_variable]  # so that the shell stays
    environment = {**os.environ, "SSH_CONNECTION": "192.0.2.9 1 192.0.2.1 22"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "192.0.2.9 1 192.0.2.1 22"


@on_a_node
def test_a_change_of_the_management_interface_is_refused_or_can_be_undone() -> None:
    """There is no default route: the address of the node is on lo, and replies use a group of nexthop objects."""
    set_up_or_skip("SSH to an address on lo, by a nexthop group")
    rule = Rule("rails", selector({"interface": "nic*", "type": "virtual"}), {"mtu": 1400}, count=4)
    system = System()
    plan = Mtu(system).plan(Node(system, [rule]))
    refusals = {refusal.device: str(refusal) for refusal in plan.refusals}
    assert refusals.keys() == {"nic0", "nic1"}
    assert "nic0: it is on the route to the SSH client 198.51.100.1" in refusals["nic0"]
    assert "allow_management" in refusals["nic0"]
    node = Node(system, [rule], allow_management=True)
    changes = Mtu(system).plan(node).changes
    assert {change.device for change in changes} == {"nic0", "nic1", "nic2", "nic3"}
    assert guard.needed(node, changes)
    assert not guard.needed(node, [change for change in changes if change.device in ("nic2", "nic3")])
