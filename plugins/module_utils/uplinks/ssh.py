# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The SSH servers of this node: their ports, and which connections to them are authenticated.

Anyone who reaches a server can connect to it, so an unauthenticated connection must not decide which interfaces the
node keeps. OpenSSH shows the state in its process titles: `sshd: [accepted]` and `sshd: root [net]` before
authentication, `sshd: root@notty` after it (sshd.c, auth2.c, session.c; since 10.0, sshd-auth is a separate program).
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
_SERVERS = ("sshd", "sshd-session", "sshd-auth", "dropbear")
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")
_UNAUTHENTICATED = re.compile(r"\[(?:accepted|net|preauth|listener)\]")


@dataclass
class _Scan:
    """The result of a scan of all processes. `known` contains the sockets of SSH servers by inode, and whether the
    client is authenticated."""

    known: dict[int, bool] = field(default_factory=dict)
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
            self._ports = frozenset(listener.local_port for listener in listeners if listener.inode in scan.known)
            if scan.unexamined:
                unexamined.append(scan.unexamined)
                return {PORT, *self._ports}
            self._ports_at = began
        self._listening = inodes
        return {PORT, *self._ports}

    def sessions(self, connections: t.Sequence[Socket]) -> list[tuple[Socket, bool]]:
        """The connections without unauthenticated ones, each with whether it is certainly authenticated.

        Connections that no server has accepted yet are left out. A connection is uncertain if its server cannot be
        seen.
        """
        accepted = [connection for connection in connections if connection.inode]
        inodes = frozenset(connection.inode for connection in accepted)
        self._known &= inodes
        if inodes <= self._known:
            return [(connection, True) for connection in accepted]
        scan = self._scan_processes()
        self._known |= {inode for inode in inodes if scan.known.get(inode)}
        return [
            (connection, connection.inode in self._known)
            for connection in accepted
            if connection.inode in self._known or connection.inode not in scan.known
        ]

    def _scan_processes(self) -> _Scan:
        """Scan the processes of SSH servers. A process that ends during the scan counts as one without sockets."""
        scan = _Scan()
        processes = list(self._processes())
        # the process of an unauthenticated connection may run as another user, whose sockets may be hidden from this
        # process
        with_unauthenticated = {parent for _folder, parent, unauthenticated in processes if unauthenticated}
        for folder, _parent, unauthenticated in processes:
            try:
                for descriptor in os.listdir(f"{folder}/fd"):
                    match = _SOCKET_LINK.match(os.readlink(f"{folder}/fd/{descriptor}"))
                    if match:
                        inode = int(match.group(1))
                        authenticated = not unauthenticated and folder.rpartition("/")[2] not in with_unauthenticated
                        scan.known[inode] = scan.known.get(inode, True) and authenticated
            except PermissionError as error:
                if _owner(folder) == 0:
                    scan.unexamined = f"the sockets of SSH servers ({error.strerror})"
            except OSError:
                continue
        return scan

    def _processes(self) -> t.Iterator[tuple[str, str, bool]]:
        """The processes of SSH servers: the folder in /proc, the parent's PID, and whether the title shows that the
        client is not authenticated yet."""
        for entry in os.listdir(self._proc):
            folder = f"{self._proc}/{entry}"
            try:
                if not entry.isdigit() or (name := _text(f"{folder}/comm").strip()) not in _SERVERS:
                    continue
                # pid (comm) state ppid ...; the comm may contain any character
                parent = _text(f"{folder}/stat").rpartition(")")[2].split()[1]
                yield folder, parent, name == "sshd-auth" or bool(_UNAUTHENTICATED.search(_text(f"{folder}/cmdline")))
            except (OSError, IndexError):
                continue


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096)


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None
