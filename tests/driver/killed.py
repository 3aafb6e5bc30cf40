# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a function in a child process that is killed by SIGKILL before a given change outside the process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import types
import typing as t

#: Functions that change something outside the process, or may do so. Calls through ctypes (mounts) are not reported,
#: but the calls before and after them are.
_FUNCTIONS = frozenset(
    "fchmod flock fsync ftruncate get_errno ioctl mkdir open pwrite remove rename replace rmdir send sendall sendmsg "
    "sendto unlink utime write".split()
)
#: The modules of these functions.
_MODULES = ("posix", "fcntl", "_ctypes", "_io", "_socket", "socket")


def _may_change(function: t.Any) -> bool:
    if getattr(function, "__name__", "") not in _FUNCTIONS:
        return False
    holder = getattr(function, "__self__", None)
    if isinstance(holder, types.ModuleType):
        return holder.__name__ in _MODULES and (holder.__name__, function.__name__) != ("_io", "open")
    return any(base.__module__ in _MODULES for base in type(holder).__mro__)


#: Makes the process call the given function, with a description, before each of its changes.
Watch = t.Callable[[t.Callable[[str], None]], None]


def watch_calls(change: t.Callable[[str], None]) -> None:
    """Call `change` before each call of a function that changes something or may do so; many of these calls only read.
    Every call in the process then takes several times as long, while `driver_changes.watch` costs almost nothing."""

    def watch(_frame: types.FrameType, event: str, function: t.Any) -> None:
        if event == "c_call" and _may_change(function):
            change(function.__name__)

    threading.setprofile(watch)
    sys.setprofile(watch)


def killed_at(step: int, act: t.Callable[[], object], watch: Watch = watch_calls) -> bool:
    """Run `act` in a child process that is killed before its change number `step` (from 0), whichever thread makes it.

    Returns whether the child was killed; False means that `act` made fewer changes. Raises AssertionError if `act`
    raised an exception.
    """
    child = os.fork()
    if child == 0:
        calls = 0

        def change(_description: str) -> None:
            nonlocal calls
            calls += 1
            if calls > step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            watch(change)
            act()
            sys.setprofile(None)
        except BaseException:  # noqa: BLE001  # a forked process never returns to pytest
            sys.setprofile(None)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _pid, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, f"failed before it could be killed at step {step}"
    return False


def killed_at_each_step(act: t.Callable[[], object], stride: int = 1) -> t.Iterator[int]:
    """Run `act` repeatedly, each time killed `stride` steps later, and yield the step after each run. The last run is
    not killed. The caller restores the initial state before it asks for the next step."""
    step = 0
    while True:
        killed = killed_at(step, act)
        yield step
        if not killed:
            return
        step += stride
