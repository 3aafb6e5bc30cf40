# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which TCP ports SSH servers of this node have."""

from __future__ import annotations

import os
import re

from . import sockets

SSH = 22
_SERVERS = ("sshd", "sshd-session", "dropbear")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class ServerPorts:
    """The ports on which SSH servers listen, with 22 in any case.

    To tell whose a listening socket is takes a look at every process. It is taken only when a socket listens that did
    not at the last look: a node has few, and they seldom change. In a pod without the node's processes only port 22 is
    known. Not for use by several threads at once.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: frozenset[int] = frozenset()
        self._ports: frozenset[int] = frozenset()

    def now(self) -> set[int]:
        """Raises OSError where the sockets cannot be listed."""
        found = sockets.listening(self._proc)
        inodes = frozenset(one.inode for one in found)
        if not inodes <= self._known:
            held = self._held()
            self._ports = frozenset(one.own_port for one in found if one.inode in held)
        self._known = inodes
        return {SSH, *self._ports}

    def _held(self) -> set[int]:
        """Inodes of the sockets that SSH servers have open. A process that has ended meanwhile has none."""
        found: set[int] = set()
        for entry in os.listdir(self._proc):
            if not entry.isdigit():
                continue
            try:
                with open(f"{self._proc}/{entry}/comm", encoding="utf-8", errors="replace") as file:
                    if file.read().strip() not in _SERVERS:
                        continue
                for descriptor in os.listdir(f"{self._proc}/{entry}/fd"):
                    match = _SOCKET.match(os.readlink(f"{self._proc}/{entry}/fd/{descriptor}"))
                    if match:
                        found.add(int(match.group(1)))
            except OSError:
                continue
        return found
