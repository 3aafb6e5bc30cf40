# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which interfaces carry a node's own traffic, with links, routes and connections of the kernel.

The driver and the role `fabric` must agree on these interfaces. Cases with kinds of links that this kernel does not
support are skipped; the lab runs them (tests/lab/test_uplinks.py).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.management import management_interfaces
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node
from ansible_collections.lanewise.dra.tests.driver.uplink_cases import (
    CASES,
    HAS_ADDRESS,
    ON_ROUTE,
    REMOTE_NETNS,
    Unsupported,
    create_network,
    ip,
    run,
    set_up,
)
from lanewise_driver.base.settings import read
from lanewise_driver.kernel import netns
from lanewise_driver.publish.inventory import Inventory


def set_up_or_skip(name: str) -> None:
    """Set up a case. Skips the test if this kernel does not support it."""
    try:
        set_up(name)
    except Unsupported as reason:
        pytest.skip(str(reason))


def driver_uplinks() -> dict[str, str]:
    """The reasons of the driver, by interface."""
    settings = read({})
    return dict(Inventory(lambda: settings, lambda: ()).uplink_reasons())


@pytest.mark.parametrize("name", CASES)
@on_a_node
def test_interfaces_that_carry_the_nodes_traffic_are_found(name: str) -> None:
    set_up_or_skip(name)
    expected = dict(CASES[name].carried)
    assert driver_uplinks() == expected
    assert management_interfaces(System()) == expected


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="sshd is not installed")
@on_a_node
def test_ssh_clients_that_are_not_logged_in_do_not_count() -> None:
    """A server on another port has two clients that are not logged in, one of which has sent a user name, and later a
    client that logs in with a key."""
    create_network()
    run("mkdir -p /run/sshd /run/keys; chmod 700 /run/keys")
    for name in ("host", "user"):
        run(f"ssh-keygen -q -t ed25519 -N '' -f /run/keys/{name}")
    run("cp /run/keys/user.pub /run/keys/authorized")
    config = "Port 2022\nHostKey /run/keys/host\nAuthorizedKeysFile /run/keys/authorized\nStrictModes no\nUsePAM no\n"
    config += "PasswordAuthentication yes\nPidFile none\nPermitRootLogin yes\n"
    run("cat > /run/keys/config", text=config)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/run/keys/config"])
    ssh = ["nsenter", f"--net={REMOTE_NETNS}", "ssh", "-p", "2022"]
    ssh += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    clients = []
    try:
        until(lambda: ":2022" in run("ss -Htln"))
        settings = read({})
        node = Inventory(lambda: settings, lambda: ())
        silent_client = netns.run(REMOTE_NETNS, socket.create_connection, ("192.0.0.1", 2022), 20)
        silent_client.settimeout(20)
        assert silent_client.recv(100).startswith(b"SSH-2.0")
        # a client that is asked for a password and never sends one
        run(
            "cat > /run/keys/ask; chmod 700 /run/keys/ask",
            text="#!/bin/sh\nwhile kill -0 $PPID 2>/dev/null; do sleep 0.2; done\n",
        )
        without_password = [*ssh, "-o", "PubkeyAuthentication=no", "root@192.0.1.1"]
        askpass = {"SSH_ASKPASS": "/run/keys/ask", "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "none"}
        clients.append(
            subprocess.Popen(
                without_password, stdin=subprocess.PIPE, env={**os.environ, **askpass}, start_new_session=True
            )
        )
        until(lambda: "root [net]" in sshd_titles())
        assert dict(node.uplink_reasons()) == {} == management_interfaces(System())
        with_key = [*ssh, "-i", "/run/keys/user", "root@192.0.2.1", "echo in; cat"]
        clients.append(subprocess.Popen(with_key, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert clients[-1].stdout and clients[-1].stdout.readline() == b"in\n"
        expected = {"nic2": f"{ON_ROUTE} 192.0.2.9"}
        assert dict(node.uplink_reasons()) == expected == management_interfaces(System())
        for client in clients:
            client.kill()
            client.wait()
        silent_client.close()
        until(lambda: management_interfaces(System()) == {})
        assert dict(node.uplink_reasons()) == expected, "the driver no longer counts a client that was logged in"
    finally:
        for process in (*clients, server):
            process.kill()
            process.wait()


def sshd_titles() -> str:
    """The process titles of the SSH server, which contain the users of its clients."""
    return run("ps -eo args | grep '^sshd'", check=False)


@on_a_node
def test_the_connection_of_ansible_counts_although_no_socket_shows_it() -> None:
    """For example, the connection comes through a proxy, or the SSH server is in another network namespace."""
    create_network()
    ip("route add 198.51.100.1 via 192.0.2.9", "route add 203.0.113.0/24 via 192.0.3.9")
    connection = "198.51.100.1 40000 192.0.1.1 22"
    expected = {"nic1": f"{HAS_ADDRESS} 198.51.100.1", "nic2": f"{ON_ROUTE} 198.51.100.1"}
    assert management_interfaces(System(), connection) == expected
    assert management_interfaces(System(), "not a connection") == {}
    assert management_interfaces(System(), "somewhere 1 nowhere 2") == {}
