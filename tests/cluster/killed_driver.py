# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver as a program that kills itself (SIGKILL) at a chosen change.

    python killed_driver.py FILE ARGUMENTS-OF-LANEWISE-DRIVER ...

FILE contains an operation (prepare, attach, detach, unprepare, start) and a number N. The process kills itself before
the operation makes change number N, counted from 0. If the operation makes only N changes, the process kills itself
after the last one, before it sends the answer. FILE is read at the start of each operation; without FILE, nothing is
killed. The operation `start` is everything that the main thread does, and ends with the driver.

A change is an effect outside the process (driver_changes.py). A detach within an unprepare is a separate operation.
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
from lanewise_driver.base.metrics import Measurement, Metrics

sys.path.append(str(Path(__file__).resolve().parents[1] / "driver"))
import driver_changes

FILE = Path(sys.argv[1])


@dataclass
class Target:
    """The operation to be killed, while it runs: the number of its changes so far, and the limit. If two operations
    with this name run at once, such as an early attach and the attach of a pod's hook, the first is the target."""

    name: str = ""
    changes: int = 0
    limit: int = 0
    thread: int = 0


TARGET = Target()
#: The operations that run in the target's thread, innermost last.
RUNNING: list[str] = []
#: Held while the target is chosen.
CHOICE = threading.Lock()


def change(what: str) -> None:
    """Called before each change. Kills the process if this is the chosen change of the target."""
    thread = threading.current_thread()
    # the thread `netns` works for the target in another namespace
    of_target = thread.ident == TARGET.thread or thread.name == "netns"
    if not of_target or RUNNING[-1:] != [TARGET.name]:
        return
    if TARGET.changes == TARGET.limit:
        os.write(2, f"killed before change {TARGET.changes} of {TARGET.name}: {what}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    TARGET.changes += 1


def begin(name: str) -> bool:
    """Make this operation the target if FILE names it and there is no target yet. Returns whether it is the target."""
    try:
        chosen, number = FILE.read_text().split()
    except FileNotFoundError:
        return False
    with CHOICE:
        if name != chosen or TARGET.name:
            return False
        TARGET.name, TARGET.changes, TARGET.limit, TARGET.thread = name, 0, int(number), threading.get_ident()
    return True


@contextlib.contextmanager
def operation(self: Metrics, name: str) -> t.Iterator[Measurement]:
    is_target = begin(name)
    with _operation(self, name) as measured:
        if not TARGET.name or threading.get_ident() != TARGET.thread:
            yield measured
            return
        RUNNING.append(name)
        try:
            yield measured
            if is_target:
                changes = TARGET.changes
                if changes == TARGET.limit:
                    change("its answer")
                os.write(2, f"{name} made {changes} changes\n".encode())
        finally:
            RUNNING.pop()
            if is_target:
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
