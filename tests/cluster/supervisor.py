# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the processes of one control plane. Kills them and removes their folder when standard input is closed.

    python3 supervisor.py FOLDER

Standard input is a pipe, which is also closed when the owner is killed. A process cannot clean up after its own
SIGKILL, so the supervisor does. If the supervisor itself is killed, the kernel kills its children (Linux).

Commands and answers are JSON, one per line. The answer to `{"start": NAME, "command": [...], "log": PATH}` is `{"pid":
N}`. The answer to `{"stop": NAME}` and `{"poll": NAME}` is `{"status": N or null}`, the exit status.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import typing as t
from types import FrameType

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # loaded here, not in a forked child


def die_with_parent() -> None:
    if PRCTL:
        PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


def answer(command: dict[str, t.Any], children: dict[str, subprocess.Popen[bytes]]) -> dict[str, t.Any]:
    if "start" in command:
        with open(command["log"], "ab") as log:
            child = subprocess.Popen(
                command["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=sys.argv[1],
                preexec_fn=die_with_parent,  # safe: this process has one thread
            )
        children[command["start"]] = child
        return {"pid": child.pid}
    if "stop" in command:
        child = children.pop(command["stop"])
        child.kill()
        return {"status": child.wait()}
    return {"status": children[command["poll"]].poll()}


def main() -> None:
    os.setsid()  # the terminal's Ctrl-C is for the owner
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for line in sys.stdin:
            try:
                result = answer(json.loads(line), children)
            except OSError as error:
                result = {"error": str(error)}
            print(json.dumps(result), flush=True)
    finally:
        # the data is deleted, so no process needs a clean shutdown
        for child in children.values():
            child.kill()
        for child in children.values():
            child.wait()
        shutil.rmtree(sys.argv[1])


if __name__ == "__main__":
    main()
