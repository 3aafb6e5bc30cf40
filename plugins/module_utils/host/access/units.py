# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""systemd services that a change restarts, and that must run afterwards even if the change fails."""

from __future__ import annotations

from .system import HostError, System

RUNNING, NOT_RUNNING = "runs", "does not run"


def state(system: System, unit: str) -> str:
    """`runs` or `does not run`. A unit that systemd keeps restarting does not run. Raises HostError."""
    argv = ["systemctl", "show", unit, "--property=ActiveState", "--value"]
    active_state = system.query(argv, f"check whether {unit} runs").strip()
    return RUNNING if active_state in ("active", "reloading") else NOT_RUNNING


def start(system: System, unit: str) -> None:
    """Start a unit that ran before, even if systemd has stopped restarting it. Raises HostError."""
    step = f"start {unit} again"
    try:
        system.command(["systemctl", "reset-failed", unit], step)
    except HostError:
        pass  # older systemd fails here if the unit is not loaded
    system.command(["systemctl", "start", unit], step, f"see 'journalctl -u {unit}'")
