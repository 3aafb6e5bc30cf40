# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The results of a stream of jobs: device-hours, waiting times and alignment. All times are those of the trace."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field

from ..kube.objects import Object
from .trace import Job

#: The number of steps of a curve; it has one point more.
CURVE_STEPS = 120


@dataclass
class Run:
    """How a job ran, in seconds of the trace.

    `spans` are the intervals in which the job ran. A preemption ended each interval but the last, so the work in it is
    lost. The last interval counts as useful, even if a preemption ended it and the job has not started again. Its end
    is None while the job runs. `held` is the number of GPUs that the job occupied. `aligned` is None for a job without
    a NIC.
    """

    submitted: float
    spans: list[tuple[float, float | None]] = field(default_factory=list)
    done: bool = False
    held: float = 0.0
    aligned: bool | None = None


#: The run of a job that was not submitted.
_NO_RUN = Run(0.0)


def score(jobs: t.Sequence[Job], runs: t.Mapping[int, Run], gpus: float, window: float) -> Object:
    """The result over the first `window` seconds of the trace. `gpus` is the number of GPUs of the cluster.

    The waiting time of a job that never started lasts until the end of the window; `unstarted` counts these jobs.
    """
    useful = lost = taken = 0.0
    for job in jobs:
        run = runs.get(job.number, _NO_RUN)
        for number, (start, end) in enumerate(run.spans, 1):
            hours = max(0.0, min(window, window if end is None else end) - start) / 3600
            if number == len(run.spans):
                useful += hours * job.gpus
            else:
                lost += hours * job.gpus
            taken += hours * run.held
    with_nic = [run for run in runs.values() if run.aligned is not None]
    return {
        "jobs": len(jobs),
        "started": sum(bool(run.spans) for run in runs.values()),
        "done": sum(run.done for run in runs.values()),
        "preempted": sum(max(0, len(run.spans) - 1) for run in runs.values()),
        "gpu_hours": {
            "there": round(gpus * window / 3600, 2),
            "taken": round(taken, 2),
            "useful": round(useful, 2),
            "lost": round(lost, 2),
        },
        "unaligned": sum(run.aligned is False for run in with_nic),
        "with_nic": len(with_nic),
        "waits": _waits(jobs, runs, window),
        "curve": _curve(jobs, runs, window),
    }


def _waits(jobs: t.Sequence[Job], runs: t.Mapping[int, Run], window: float) -> list[Object]:
    """By team and priority: the number of jobs, and percentiles of the seconds from arrival to last start."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.team, job.priority), []).append(job)
    entries = []
    for (team, priority), group in sorted(groups.items()):
        waits, unstarted = [], 0
        for job in group:
            run = runs.get(job.number, _NO_RUN)
            if run.spans:
                waits.append(max(0.0, run.spans[-1][0] - job.submit))
            else:
                unstarted += 1
                waits.append(max(0.0, window - job.submit))
        waits.sort()
        entries.append(
            {
                "team": team,
                "priority": priority,
                "jobs": len(group),
                "unstarted": unstarted,
                "p50_s": round(percentile(waits, 0.5), 1),
                "p95_s": round(percentile(waits, 0.95), 1),
            }
        )
    return entries


def percentile(ordered: t.Sequence[float], fraction: float) -> float:
    """The value that this fraction of the ordered values does not exceed; 0 if there are no values."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)] if ordered else 0.0


def _curve(jobs: t.Sequence[Job], runs: t.Mapping[int, Run], window: float) -> list[list[float]]:
    """Points over the window: the hour, the GPUs that running jobs use, and the GPUs that waiting jobs request."""
    points = []
    for step in range(CURVE_STEPS + 1):
        moment = window * step / CURVE_STEPS
        used = waiting = 0.0
        for job in jobs:
            run = runs.get(job.number, _NO_RUN)
            if job.submit > moment:
                continue
            last = run.spans[-1][1] if run.done and run.spans else None
            if any(start <= moment and (end is None or end > moment) for start, end in run.spans):
                used += job.gpus
            elif last is None or last > moment:
                waiting += job.gpus
        points.append([round(moment / 3600, 3), round(used, 2), round(waiting, 2)])
    return points
