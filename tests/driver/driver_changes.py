# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Calls a function before each change that a driver makes outside its process.

A change is what other processes can see: files that are created, written, renamed or removed; mounts; requests to the
kernel other than queries (netlink, ethtool). Two moments without a change between them look the same to the next
driver. Audit events of Python report files and ioctl; netlink goes through socket.send, mounts through the libc object
of the driver.

Programs and nodes of the lab import this module on its own, so it imports only the driver.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import typing as t

from lanewise_driver.kernel import netns

#: Audit events of functions that change files whatever their arguments (the event `open` also reports reads;
#: docs.python.org/3/library/audit_events.html).
_FILES = (
    "socket.bind",
    "os.chmod",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: linux/sockios.h and linux/ethtool.h: the commands by which the driver changes something.
_SIOCETHTOOL = 0x8946
_ETHTOOL_SETS = {0x3B: "features", 0x28: "private flags", 0x11: "rings", 0x3D: "channels"}
_NETLINK_HEADER = struct.Struct("=IHHII")
#: linux/netlink.h: the flags of a query for a list.
_DUMP = 0x300
#: linux/rtnetlink.h: requests come in groups of four (NEW, DEL, GET, SET), of which GET is a query.
_GET = 2

#: Called with a description of the change.
Change = t.Callable[[str], None]


def watch(change: Change) -> None:
    """Call `change` before each change of this process, in the thread that makes it. This cannot be undone."""

    def audit(event: str, arguments: tuple[t.Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if flags & _WRITING or (mode and set(mode) & set("wax+")):
                change(f"write {path}")
        elif event in _FILES:
            change(f"{event} {arguments[-1] if event == 'socket.bind' else arguments[0]}")
        elif event == "fcntl.ioctl" and arguments[1] == _SIOCETHTOOL:
            name, pointer = struct.unpack_from("=16sQ", arguments[2])
            command = ctypes.c_uint32.from_address(pointer).value
            if command in _ETHTOOL_SETS:
                change(f"ethtool {_ETHTOOL_SETS[command]} of {name.rstrip(bytes(1)).decode()}")

    _watch_netlink(change)
    for name in ("mount", "umount2"):
        _watch_function(netns._libc, name, change)
    sys.addaudithook(audit)


def _watch_netlink(change: Change) -> None:
    plain = socket.socket.send

    def send(self: socket.socket, data: bytes, flags: int = 0) -> int:
        if self.family == socket.AF_NETLINK:
            _size, kind, message_flags, _sequence, _port = _NETLINK_HEADER.unpack_from(data)
            routing = self.proto == socket.NETLINK_ROUTE
            if (kind & 3 != _GET) if routing else (message_flags & _DUMP != _DUMP):
                change(f"netlink request {kind} of protocol {self.proto}")
        return plain(self, data, flags)

    socket.socket.send = send  # type: ignore[assignment, method-assign]


def _watch_function(library: ctypes.CDLL, name: str, change: Change) -> None:
    """Report calls of a library function as changes, because no audit event reports them."""
    function = getattr(library, name)

    def call(*arguments: t.Any) -> t.Any:
        change(name)
        return function(*arguments)

    setattr(library, name, call)
