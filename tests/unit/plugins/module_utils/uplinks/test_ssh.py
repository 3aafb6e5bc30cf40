# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connections of SSH servers, in a folder with the files of /proc. tests/driver/test_uplinks.py runs the real sshd."""

from __future__ import annotations

import ipaddress
import os

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks import ssh
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.sockets import Socket

INODE = 77


def connection():
    local, remote = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("192.0.2.9")
    return Socket(local=local, local_port=22, remote=remote, remote_port=40000, inode=INODE)


def add_process(proc, pid, parent, name, title, inode=None):
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1\n")
    (folder / "cmdline").write_text(title)
    if inode:
        os.symlink(f"socket:[{inode}]", folder / "fd/4")


@pytest.mark.parametrize(
    ("name", "title", "sessions"),
    [
        ("sshd-session", "sshd-session: root@notty", [True]),
        ("sshd-session", "sshd-session: [accepted]", []),
        ("sshd-session", "sshd-session: root [net]", []),
        ("sshd", "sshd: root@pts/0", [True]),
        # it has this title before and after the client is authenticated
        ("dropbear", "/usr/sbin/dropbear -F", [False]),
        # not a server: the real one cannot be seen
        ("nginx", "nginx: worker", [False]),
    ],
)
def test_connections_are_certain_once_the_server_shows_the_user(tmp_path, name, title, sessions):
    add_process(tmp_path, 10, 1, name, title, INODE)
    found = ssh.Servers(str(tmp_path)).sessions([connection()])
    assert [certain for _connection, certain in found] == sessions


def test_a_descriptor_that_is_closed_during_the_scan_hides_no_other_one(tmp_path, monkeypatch):
    add_process(tmp_path, 10, 1, "sshd", "sshd: root@notty", INODE)
    listed = os.listdir

    def listdir(path):
        return ["3", *listed(path), "5"] if str(path).endswith("fd") else listed(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = ssh.Servers(str(tmp_path)).sessions([connection()])
    assert [certain for _connection, certain in found] == [True]


@pytest.mark.parametrize(("child", "sessions"), [("sshd: root [net]", []), ("sshd: root@notty", [True])])
def test_a_child_that_starts_while_processes_are_listed_is_seen(tmp_path, monkeypatch, child, sessions):
    """The server's process has lost the title `[accepted]` when it is read, and the child that authenticates the
    client was not there yet when the processes were listed."""
    add_process(tmp_path, 10, 1, "sshd", "sshd: root [priv]", INODE)
    original = ssh.Servers._processes

    def processes(servers):
        found = list(original(servers))
        if not (tmp_path / "11").exists():
            add_process(tmp_path, 11, 10, "sshd", child)
        return iter(found)

    monkeypatch.setattr(ssh.Servers, "_processes", processes)
    found = ssh.Servers(str(tmp_path)).sessions([connection()])
    assert [certain for _connection, certain in found] == sessions


def test_a_server_that_ends_during_the_scan_is_not_certain(tmp_path, monkeypatch):
    """Its child, which alone showed that the client was not authenticated, may have ended just before it."""
    add_process(tmp_path, 10, 1, "sshd", "sshd: root [priv]", INODE)
    answers = [list(ssh.Servers(str(tmp_path))._processes()), []]
    monkeypatch.setattr(ssh.Servers, "_processes", lambda _servers: iter(answers.pop(0)))
    found = ssh.Servers(str(tmp_path)).sessions([connection()])
    assert [certain for _connection, certain in found] == [False]
