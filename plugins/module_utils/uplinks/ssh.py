# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The SSH servers of this node: their ports, and which connections to them are authenticated.

Anyone who reaches a server can connect to it, so an unauthenticated connection must not decide which interfaces the
node keeps. OpenSSH shows the state in its process titles: `sshd: [accepted]` and `sshd: root [net]` before
authentication, `sshd: root@notty` after it (sshd.c, auth2.c, session.c; since 10.0 sshd-auth is a program of its own).
"""

from __future__ import annotations

import os
import re
import time
import typing as t
from dataclasses import dataclass, field

from .sockets import Socket, listening

PORT = 22
#: Maximum age in seconds of the list of server ports. A new listening socket makes it invalid, too, but a server that
#: systemd starts for the first connection uses an older socket.
PORTS_FOR = 10.0
_SERVERS = ("sshd", "sshd-session", "sshd-auth", "dropbear")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_STRANGER = re.compile(r"\[(?:accepted|net|preauth|listener)\]")


@dataclass
class _Seen:
    """The results of a scan of all processes: by socket inode, whether its holders have authenticated the client."""

    known: dict[int, bool] = field(default_factory=dict)
    servers: bool = False
    unread: str = ""


class Servers:
    """The SSH servers and their sessions. Not thread-safe.

    Finding a socket's owner needs a scan of all processes, which is made only for new sockets, and for the servers'
    ports every PORTS_FOR seconds. In a pod that cannot see the node's processes no server is found; then port 22 is
    assumed.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._listening: frozenset[int] = frozenset()
        self._ports: frozenset[int] = frozenset()
        self._ports_at = time.monotonic()
        self._known: frozenset[int] = frozenset()

    def ports(self, unread: list[str]) -> set[int]:
        """The ports of SSH servers, always including 22; what cannot be read is added to `unread`.

        Raises OSError if the sockets cannot be listed.
        """
        found = listening(self._proc)
        inodes = frozenset(one.inode for one in found)
        began = time.monotonic()
        if not inodes <= self._listening or began - self._ports_at >= PORTS_FOR:
            seen = self._look()
            self._ports = frozenset(one.own_port for one in found if one.inode in seen.known)
            if seen.unread:
                unread.append(seen.unread)
                return {PORT, *self._ports}
            self._ports_at = began
        self._listening = inodes
        return {PORT, *self._ports}

    def sessions(self, found: t.Sequence[Socket]) -> list[tuple[Socket, bool]]:
        """The connections of `found` without unauthenticated ones, each with whether it is certainly authenticated.

        Connections that no server has accepted yet are left out. One whose server cannot be seen is uncertain.
        """
        found = [one for one in found if one.inode]
        inodes = frozenset(one.inode for one in found)
        self._known &= inodes
        if inodes <= self._known:
            return [(one, True) for one in found]
        seen = self._look()
        self._known |= {inode for inode in inodes if seen.known.get(inode)}
        return [
            (one, one.inode in self._known or not seen.servers)
            for one in found
            if one.inode in self._known or one.inode not in seen.known
        ]

    def _look(self) -> _Seen:
        """Scan the processes of SSH servers. A process that ends during the scan has no sockets."""
        seen = _Seen()
        processes = list(self._processes())
        seen.servers = bool(processes)
        # an unauthenticated connection's process may run as another user, whose sockets may be hidden from this one
        unsure = {parent for _folder, parent, stranger in processes if stranger}
        for folder, _parent, stranger in processes:
            try:
                for descriptor in os.listdir(f"{folder}/fd"):
                    match = _SOCKET.match(os.readlink(f"{folder}/fd/{descriptor}"))
                    if match:
                        inode = int(match.group(1))
                        logged_in = not stranger and folder.rpartition("/")[2] not in unsure
                        seen.known[inode] = seen.known.get(inode, True) and logged_in
            except PermissionError as error:
                if _owner(folder) == 0:
                    seen.unread = f"the sockets of SSH servers ({error.strerror})"
            except OSError:
                continue
        return seen

    def _processes(self) -> t.Iterator[tuple[str, str, bool]]:
        """The SSH server processes: the folder, the parent's PID, and whether the title shows no authentication yet."""
        for entry in os.listdir(self._proc):
            folder = f"{self._proc}/{entry}"
            try:
                if not entry.isdigit() or (name := _text(f"{folder}/comm").strip()) not in _SERVERS:
                    continue
                # pid (comm) state ppid ...; the comm may have anything in it
                parent = _text(f"{folder}/stat").rpartition(")")[2].split()[1]
                yield folder, parent, name == "sshd-auth" or bool(_STRANGER.search(_text(f"{folder}/cmdline")))
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
