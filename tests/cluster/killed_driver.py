# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver as a program that kills itself (SIGKILL) at a chosen change.

    python killed_driver.py FILE ARGUMENTS-OF-LANEWISE-DRIVER ...

FILE holds an operation (prepare, attach, detach, unprepare, start) and a number N: the process ends before change N,
from 0, that the operation makes outside it; where there are N changes only, after the operation and before it is
answered. Without FILE nothing is killed. It is read at the start of each operation. What the main thread does is the
operation start, which ends with the driver.

A change is what others can see (driver_changes.py). The detach within an unprepare counts for itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import typing as t
from dataclasses import dataclass
from pathlib import Path

from lanewise_driver import cli
from lanewise_driver.base.metrics import Measured, Metrics

sys.path.append(str(Path(__file__).resolve().parents[1] / "driver"))
import driver_changes

FILE = Path(sys.argv[1])


@dataclass
class Target:
    """The operation to be killed, while it runs: the changes that it has made, and how many it may make. If two of this
    name run at once, as when a pod's devices are attached early and its hook asks already, it is the first."""

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
    """Called before each change. Kills the process before the chosen change of the target."""
    thread = threading.current_thread()
    ours = thread.ident == TARGET.thread or thread.name == "netns"  # which works for it in another namespace
    if not ours or RUNNING[-1:] != [TARGET.name]:
        return
    if TARGET.changes == TARGET.limit:
        os.write(2, f"killed before change {TARGET.changes} of {TARGET.name}: {what}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    TARGET.changes += 1


def begin(name: str) -> bool:
    """Make this operation the target if FILE names it and no other is. Returns whether it is the target."""
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
def operation(self: Metrics, name: str) -> t.Iterator[Measured]:
    wanted = begin(name)
    with _operation(self, name) as measured:
        if not TARGET.name or threading.get_ident() != TARGET.thread:
            yield measured
            return
        RUNNING.append(name)
        try:
            yield measured
            if wanted:
                changes = TARGET.changes
                if changes == TARGET.limit:
                    change("its answer")
                os.write(2, f"{name} made {changes} changes\n".encode())
        finally:
            RUNNING.pop()
            if wanted:
                TARGET.name = ""


_operation = Metrics.operation
Metrics.operation = operation
driver_changes.watch(change)
if begin("start"):
    RUNNING.append("start")
status = cli.main(sys.argv[2:])
if TARGET.name == "start":
    os.write(2, f"start made {TARGET.changes} changes\n".encode())
sys.exit(status)
