# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which interfaces carry a node's own traffic: real links, routes and connections.

The driver and the fabric role, which protects such interfaces, must agree. A case is skipped if this kernel lacks its
kind of link; the lab runs those (tests/lab/test_uplinks.py).
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
    FAR,
    HOLDS,
    LEADS,
    Unsupported,
    ip,
    make,
    run,
    world,
)
from lanewise_driver.base.settings import read
from lanewise_driver.kernel import netns
from lanewise_driver.publish.inventory import Inventory


def make_or_skip(name: str) -> None:
    try:
        make(name)
    except Unsupported as reason:
        pytest.skip(str(reason))


def driver() -> dict[str, str]:
    settings = read({})
    return dict(Inventory(lambda: settings, lambda: ()).uplink_reasons())


@pytest.mark.parametrize("name", CASES)
@on_a_node
def test_interfaces_that_carry_the_nodes_traffic_are_found(name: str) -> None:
    make_or_skip(name)
    expected = dict(CASES[name].carried)
    assert driver() == expected
    assert management_interfaces(System()) == expected


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="sshd is not installed")
@on_a_node
def test_clients_that_are_not_logged_in_do_not_count() -> None:
    """A real server on another port, with unauthenticated clients (one sends a user name), and one with a key."""
    world()
    run("mkdir -p /run/sshd /run/keys; chmod 700 /run/keys")
    for name in ("host", "user"):
        run(f"ssh-keygen -q -t ed25519 -N '' -f /run/keys/{name}")
    run("cp /run/keys/user.pub /run/keys/authorized")
    config = "Port 2022\nHostKey /run/keys/host\nAuthorizedKeysFile /run/keys/authorized\nStrictModes no\nUsePAM no\n"
    config += "PasswordAuthentication yes\nPidFile none\nPermitRootLogin yes\n"
    run("cat > /run/keys/config", text=config)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/run/keys/config"])
    ways = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-p", "2022"]
    clients = []
    try:
        until(lambda: not subprocess.run(["ss", "-Htln"], capture_output=True, check=True).stdout.find(b":2022") < 0)
        settings = read({})
        node = Inventory(lambda: settings, lambda: ())
        stranger = netns.run(FAR, socket.create_connection, ("192.0.0.1", 2022), 20)
        stranger.settimeout(20)
        assert stranger.recv(100).startswith(b"SSH-2.0")
        # a client that is asked for a password and never sends one
        run(
            "cat > /run/keys/ask; chmod 700 /run/keys/ask",
            text="#!/bin/sh\nwhile kill -0 $PPID 2>/dev/null; do sleep 0.2; done\n",
        )
        asking = ["nsenter", f"--net={FAR}", "ssh", *ways, "-o", "PubkeyAuthentication=no", "root@192.0.1.1"]
        shell = {"SSH_ASKPASS": "/run/keys/ask", "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "none"}
        clients.append(
            subprocess.Popen(asking, stdin=subprocess.PIPE, env={**os.environ, **shell}, start_new_session=True)
        )
        until(lambda: "root [net]" in titles())
        assert dict(node.uplink_reasons()) == {} == management_interfaces(System())
        with_key = ["nsenter", f"--net={FAR}", "ssh", *ways, "-i", "/run/keys/user", "root@192.0.2.1", "echo in; cat"]
        clients.append(subprocess.Popen(with_key, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert clients[-1].stdout and clients[-1].stdout.readline() == b"in\n"
        expected = {"nic2": f"{LEADS} 192.0.2.9"}
        assert dict(node.uplink_reasons()) == expected == management_interfaces(System())
        for client in clients:
            client.kill()
            client.wait()
        stranger.close()
        until(lambda: management_interfaces(System()) == {})
        assert dict(node.uplink_reasons()) == expected, "a client that was logged in still counts"
    finally:
        for process in (*clients, server):
            process.kill()
            process.wait()


def titles() -> str:
    return run("ps -eo args | grep '^sshd'", check=False)


@on_a_node
def test_the_connection_of_ansible_counts_although_no_socket_shows_it() -> None:
    """For example behind a proxy, or if the server of the session is in another network namespace."""
    world()
    ip("route add 198.51.100.1 via 192.0.2.9", "route add 203.0.113.0/24 via 192.0.3.9")
    connection = "198.51.100.1 40000 192.0.1.1 22"
    expected = {"nic1": f"{HOLDS} 198.51.100.1", "nic2": f"{LEADS} 198.51.100.1"}
    assert management_interfaces(System(), connection) == expected
    assert management_interfaces(System(), "not a connection") == {}
    assert management_interfaces(System(), "somewhere 1 nowhere 2") == {}
