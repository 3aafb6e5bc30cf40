# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Services of systemd that a change restarts, and that must run afterwards even if it fails."""

from __future__ import annotations

from .system import HostError, System

RUNS, RUNS_NOT = "runs", "does not run"


def state(system: System, unit: str) -> str:
    """`runs` or `does not run`, which includes a unit that systemd keeps restarting. Raises HostError."""
    argv = ["systemctl", "show", unit, "--property=ActiveState", "--value"]
    shown = system.query(argv, f"ask whether {unit} runs").strip()
    return RUNS if shown in ("active", "reloading") else RUNS_NOT


def start(system: System, unit: str) -> None:
    """Start a unit that ran before, even if systemd has given up on it. Raises HostError."""
    step = f"start {unit} again"
    try:
        system.command(["systemctl", "reset-failed", unit], step)
    except HostError:
        pass  # a unit that has not failed, which an older systemd may not have loaded
    system.command(["systemctl", "start", unit], step, f"see 'journalctl -u {unit}'")
