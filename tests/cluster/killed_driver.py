# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver as a program that kills itself (SIGKILL) at a chosen change.

    python killed_driver.py FILE ARGUMENTS-OF-LANEWISE-DRIVER ...

FILE holds an operation (prepare, attach, detach, unprepare, start) and a number N: the process ends before change N,
from 0, that the operation makes outside it; where there are N changes only, after the operation and before it is
answered. Without FILE nothing is killed. It is read at the start of each operation. What the main thread does is the
operation start, which ends with the driver.

A change is what others can see: files made, written, renamed, removed; mounts; requests to the kernel that are no
questions (netlink, ethtool). Two moments without a change between them look the same to the next driver. Python's
audit events tell of files and of ioctl; netlink goes through socket.send, mounts through the driver's libc. The detach
within an unprepare counts for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import threading
import typing as t
from dataclasses import dataclass
from pathlib import Path

from lanewise_driver import cli
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.kernel import netns

#: Events of functions that change files, whatever their arguments (docs.python.org/3/library/audit_events.html).
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
#: linux/ethtool.h: the commands that set something of what the driver uses.
_SIOCETHTOOL = 0x8946
_ETHTOOL_SETS = {0x3B: "features", 0x28: "private flags", 0x11: "rings", 0x3D: "channels"}
_NETLINK_HEADER = struct.Struct("=IHHII")
#: linux/rtnetlink.h: of each four kinds of requests one is a question.
_GET = 2

FILE = Path(sys.argv[1])


@dataclass
class Target:
    """The operation that is not to end, while it runs: the changes it has made, and how many it may. Of two that run at
    once, as a pod's devices are attached early while its hook asks already, it is the first."""

    name: str = ""
    changes: int = 0
    limit: int = 0
    thread: int = 0


TARGET = Target()
#: Operations that run in the target's thread, innermost last.
RUNNING: list[str] = []
#: Held to choose the target.
CHOICE = threading.Lock()


def change(what: str) -> None:
    """Called before a change: the end, where it is the one."""
    thread = threading.current_thread()
    ours = thread.ident == TARGET.thread or thread.name == "netns"  # which works for it in another namespace
    if not ours or RUNNING[-1:] != [TARGET.name]:
        return
    if TARGET.changes == TARGET.limit:
        os.write(2, f"killed before change {TARGET.changes} of {TARGET.name}: {what}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    TARGET.changes += 1


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


def called(library: ctypes.CDLL, name: str) -> None:
    """Take calls of a library's function as changes: no audit event reports them."""
    function = getattr(library, name)

    def call(*arguments: t.Any) -> t.Any:
        change(name)
        return function(*arguments)

    setattr(library, name, call)


def send(self: socket.socket, data: bytes, flags: int = 0) -> int:
    if self.family == socket.AF_NETLINK:
        kind = _NETLINK_HEADER.unpack_from(data)[1]
        if self.proto != socket.NETLINK_ROUTE or kind & 3 != _GET:
            change(f"netlink request {kind}")
    return _send(self, data, flags)


def begin(name: str) -> bool:
    """Whether this operation is the one that is not to end."""
    try:
        wanted, number = FILE.read_text().split()
    except FileNotFoundError:
        return False
    with CHOICE:
        if name != wanted or TARGET.name:
            return False
        TARGET.name, TARGET.changes, TARGET.limit, TARGET.thread = name, 0, int(number), threading.get_ident()
    return True


@contextlib.contextmanager
def operation(self: Metrics, name: str) -> t.Iterator[None]:
    wanted = begin(name)
    with _operation(self, name):
        if not TARGET.name or threading.get_ident() != TARGET.thread:
            yield
            return
        RUNNING.append(name)
        try:
            yield
            if wanted:
                changes = TARGET.changes
                if changes == TARGET.limit:
                    change("its answer")
                os.write(2, f"{name} made {changes} changes\n".encode())
        finally:
            RUNNING.pop()
            if wanted:
                TARGET.name = ""


_send = socket.socket.send
_operation = Metrics.operation
socket.socket.send = send
Metrics.operation = operation
for syscall in ("mount", "umount2"):
    called(netns._libc, syscall)
sys.addaudithook(audit)
if begin("start"):
    RUNNING.append("start")
status = cli.main(sys.argv[2:])
if TARGET.name == "start":
    os.write(2, f"start made {TARGET.changes} changes\n".encode())
sys.exit(status)
