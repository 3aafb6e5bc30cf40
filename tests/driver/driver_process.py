# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Starts the complete driver program in a tenth of the usual time, by forking it from a process that has loaded its
modules. The driver can kill itself at a given step (tests/cluster/killed_driver.py)."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "cluster" / "killed_driver.py"


class Launcher:
    """Starts drivers, one after the other, with ``arguments`` for lanewise-driver. ``folder`` gets their log."""

    def __init__(self, folder: Path, arguments: t.Sequence[str]) -> None:
        self.kill_file = folder / "kill"
        self.log_file = folder / "driver.log"
        self.pid = 0
        self._arguments = [str(self.kill_file), *arguments]
        #: Called when the driver has ended.
        self.at_end: t.Callable[[], None] = lambda: None
        self._ended = threading.Event()
        self._status = 0
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def start(self, kill: str = "") -> None:
        """Start a driver. ``kill`` is an operation and a number: the driver kills itself before that change of the
        operation."""
        assert not self.running()
        self.arm(kill)
        self._ended = threading.Event()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(self._arguments) + "\n")
        self._process.stdin.flush()
        self.pid = int(self._process.stdout.readline())
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        assert self._process.stdout
        self._status = int(self._process.stdout.readline())
        self._ended.set()
        self.at_end()

    def arm(self, kill: str) -> None:
        """Let the driver kill itself as described for ``start``, or not at all if ``kill`` is empty."""
        if kill:
            self.kill_file.write_text(kill)
        else:
            self.kill_file.unlink(missing_ok=True)

    def running(self) -> bool:
        return bool(self.pid) and not self._ended.is_set()

    def kill(self) -> None:
        """Kill the running driver and wait until it has ended."""
        ended = self._ended  # another thread may start the next driver meanwhile
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert ended.wait(30)

    def status(self, seconds: float = 30) -> int:
        """Wait until the driver has ended. Returns its exit status, or minus the signal that ended it."""
        assert self._ended.wait(seconds), "the driver has not ended"
        return self._status

    def log(self) -> str:
        return self.log_file.read_text()

    def stop(self) -> None:
        """End the driver by SIGTERM, as its service manager does."""
        os.kill(self.pid, signal.SIGTERM)
        assert self.status() == 0

    def close(self) -> None:
        if self.running():
            self.stop()
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def wait_for(condition: t.Callable[[], object], description: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {description}"
        time.sleep(0.005)


def main() -> None:
    from lanewise_driver import cli, daemon  # each driver inherits the loaded modules

    assert cli and daemon
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            sys.argv = [str(PROGRAM), *json.loads(line)]
            runpy.run_path(str(PROGRAM), run_name="__main__")
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
