# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill a process and everything that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from ansible_collections.lanewise.dra.tests.common.waiting import until

#: States in /proc/PID/stat (proc_pid_stat(5)): stopped, stopped by a tracer, zombie, dead.
_STOPPED_OR_ENDED = "TtZX"


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants with SIGKILL.

    A process group would not contain all of them: ansible-playbook starts each worker in a session of its own, and a
    worker outlives it. Each process is stopped before its children are listed, so that it cannot start others.
    """
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in _STOPPED_OR_ENDED)
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                kill_tree(int(child))
        os.kill(pid, signal.SIGKILL)
