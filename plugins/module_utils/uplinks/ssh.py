# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The SSH servers of this node: their ports, and which connections to them are authenticated.

Anyone who reaches a server can connect to it, so an unauthenticated connection must not decide which interfaces the
node keeps. OpenSSH shows the state in its process titles: `sshd: [accepted]` and `sshd: root [net]` before
authentication, `sshd: root@notty` after it (sshd.c, auth2.c, session.c; since 10.0, sshd-auth is a separate program).
Dropbear does not show it.
"""

from __future__ import annotations

import os
import re
import time
import typing as t
from dataclasses import dataclass, field

from .sockets import Socket, listening

PORT = 22
#: Maximum age of the list of server ports. A new listening socket also invalidates the list, but a server that systemd
#: starts for the first connection uses an older socket.
PORTS_MAX_AGE_SECONDS = 10.0
_WITHOUT_STATE = "dropbear"
_SERVERS = ("sshd", "sshd-session", "sshd-auth", _WITHOUT_STATE)
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")
_UNAUTHENTICATED = re.compile(r"\[(?:accepted|net|preauth|listener)\]")


class _Process(t.NamedTuple):
    """A process of an SSH server. `unauthenticated` says whether it shows that its client is not authenticated yet."""

    folder: str  # in /proc
    parent: str  # the parent's folder
    name: str
    unauthenticated: bool


@dataclass
class _Scan:
    """The sockets of SSH servers by inode: all, those of unauthenticated clients, and those of clients of which this is
    not known."""

    sockets: set[int] = field(default_factory=set)
    unauthenticated: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    unexamined: str = ""


class Servers:
    """The SSH servers and their sessions. Not thread-safe.

    Finding a socket's owner requires a scan of all processes. Scans are made only for new sockets, and for the servers'
    ports every PORTS_MAX_AGE_SECONDS. In a pod that cannot see the node's processes, no server is found; then port 22
    is assumed.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._listening: frozenset[int] = frozenset()
        self._ports: frozenset[int] = frozenset()
        self._ports_at = time.monotonic()
        self._known: frozenset[int] = frozenset()

    def ports(self, unexamined: list[str]) -> set[int]:
        """The ports of SSH servers, always including 22. What cannot be read is added to `unexamined`.

        Raises OSError if the sockets cannot be listed.
        """
        listeners = listening(self._proc)
        inodes = frozenset(listener.inode for listener in listeners)
        began = time.monotonic()
        if not inodes <= self._listening or began - self._ports_at >= PORTS_MAX_AGE_SECONDS:
            scan = self._scan_processes()
            self._ports = frozenset(listener.local_port for listener in listeners if listener.inode in scan.sockets)
            if scan.unexamined:
                unexamined.append(scan.unexamined)
                return {PORT, *self._ports}
            self._ports_at = began
        self._listening = inodes
        return {PORT, *self._ports}

    def sessions(self, connections: t.Sequence[Socket]) -> list[tuple[Socket, bool]]:
        """The connections without unauthenticated ones, each with whether it is certainly authenticated.

        Connections that no server has accepted yet are left out. A connection is uncertain if its server cannot be
        seen, or does not show whether the client is authenticated.
        """
        accepted = [connection for connection in connections if connection.inode]
        inodes = frozenset(connection.inode for connection in accepted)
        self._known &= inodes
        if inodes <= self._known:
            return [(connection, True) for connection in accepted]
        scan = self._scan_processes()
        self._known |= (inodes & scan.sockets) - scan.unauthenticated - scan.uncertain
        return [
            (connection, connection.inode in self._known)
            for connection in accepted
            if connection.inode in self._known or connection.inode not in scan.unauthenticated
        ]

    def _scan_processes(self) -> _Scan:
        """Scan the processes of SSH servers. A process that ends during the scan counts as one without sockets."""
        scan = _Scan()
        processes = list(self._processes())
        # While a client authenticates, only a child of its server's process may show it. A child that is started after
        # the processes were listed, but before its parent's title was read, is in a second list.
        later = list(self._processes())
        unauthenticated = {process.folder for process in processes + later if process.unauthenticated}
        # the child may run as another user, whose sockets may be hidden from this process
        unauthenticated |= {process.parent for process in processes + later if process.unauthenticated}
        running = {process.folder for process in later}
        for process in processes:
            if process.folder not in running:
                continue
            try:
                inodes = set(_sockets(process.folder))
            except PermissionError as error:
                if _owner(process.folder) == 0:
                    scan.unexamined = f"the sockets of SSH servers ({error.strerror})"
                continue
            except OSError:
                continue
            scan.sockets |= inodes
            if process.folder in unauthenticated:
                scan.unauthenticated |= inodes
            elif process.name == _WITHOUT_STATE:
                scan.uncertain |= inodes
        return scan

    def _processes(self) -> t.Iterator[_Process]:
        """The processes of SSH servers."""
        for entry in os.listdir(self._proc):
            folder = f"{self._proc}/{entry}"
            try:
                if not entry.isdigit() or (name := _text(f"{folder}/comm").strip()) not in _SERVERS:
                    continue
                # pid (comm) state ppid ...; the comm may contain any character
                parent = _text(f"{folder}/stat").rpartition(")")[2].split()[1]
                unauthenticated = name == "sshd-auth" or bool(_UNAUTHENTICATED.search(_text(f"{folder}/cmdline")))
                yield _Process(folder, f"{self._proc}/{parent}", name, unauthenticated)
            except (OSError, IndexError):
                continue


def _sockets(folder: str) -> t.Iterator[int]:
    """The inodes of a process's sockets. Raises OSError."""
    for descriptor in os.listdir(f"{folder}/fd"):
        try:
            match = _SOCKET_LINK.match(os.readlink(f"{folder}/fd/{descriptor}"))
        except FileNotFoundError:  # closed since it was listed
            continue
        if match:
            yield int(match.group(1))


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096)


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None
