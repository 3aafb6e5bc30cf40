# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node is reached by, as the real kernel has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.management import management_interfaces
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
