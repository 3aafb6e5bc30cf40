# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What several benchmarks share: the type of their results, and the CPU time of the scheduler."""

from __future__ import annotations

import typing as t
from pathlib import Path

#: Figures: name, value, unit, against, method.
Figures = t.Iterator[dict[str, t.Any]]


def scheduler_cpu_seconds(plane: t.Any) -> float:
    """The CPU time of the kube-scheduler of a control plane so far."""
    tasks = Path(f"/proc/{plane.pids['kube-scheduler']}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
