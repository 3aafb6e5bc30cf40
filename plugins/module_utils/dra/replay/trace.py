# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Jobs of teams over time: read from a CSV, or generated from the distributions of a published trace."""

from __future__ import annotations

import csv
import math
import random
import typing as t
from dataclasses import dataclass

COLUMNS = ("submit_s", "team", "priority", "gpus", "seconds")
#: The maximum number of jobs in a stream, and the maximum of a time in seconds.
MAX_JOBS, MAX_SECONDS = 100_000, 400 * 86_400
_DAY = 86_400.0


@dataclass(frozen=True)
class Job:
    """A job: its arrival in seconds, team, priority, GPUs (a fraction for a part of one) and run time in seconds."""

    number: int
    submit: float
    team: str
    priority: str
    gpus: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The distributions of a trace. `sizes` are numbers of GPUs with their weights; `lengths` are quantiles of the run
    time: a fraction of jobs, and the seconds that they do not exceed. Between them the logarithm is interpolated."""

    source: str
    sizes: tuple[tuple[float, float], ...]
    lengths: tuple[tuple[float, float], ...]

    def length(self, part: float) -> float:
        """The seconds that this fraction of all jobs does not exceed."""
        below = self.lengths[0]
        for above in self.lengths[1:]:
            if part <= above[0]:
                where = (part - below[0]) / (above[0] - below[0])
                return math.exp(math.log(below[1]) + where * (math.log(above[1]) - math.log(below[1])))
            below = above
        return below[1]

    def mean_size(self) -> float:
        return sum(gpus * weight for gpus, weight in self.sizes) / sum(weight for _gpus, weight in self.sizes)

    def mean_length(self, longest: float) -> float:
        steps = 2000
        return sum(min(longest, self.length((step + 0.5) / steps)) for step in range(steps)) / steps


_PAI = "Alibaba PAI, cluster-trace-gpu-v2023, openb_pod_list_default.csv, the 107 scheduled GPU tasks of 5664 to 5832"
_PAI_LENGTHS = (
    *((0.0, 23.0), (0.1, 179.0), (0.25, 417.0), (0.5, 1027.0), (0.75, 3739.0)),
    *((0.9, 12833.0), (0.95, 15699.0), (1.0, 114715.0)),
)
#: `pai`: as in the trace. `training`: the same lengths for whole GPUs only, and more jobs of several GPUs, as on
#: sites that train large models; these sizes are assumed.
PROFILES = {
    "pai": Profile(
        _PAI,
        ((0.23, 1), (0.32, 5), (0.35, 1), (0.46, 3), (0.47, 9), (0.65, 9), (0.81, 15), (1, 63), (8, 1)),
        _PAI_LENGTHS,
    ),
    "training": Profile(f"{_PAI}; sizes are assumed", ((1, 60), (2, 15), (4, 15), (8, 10)), _PAI_LENGTHS),
}


@dataclass(frozen=True)
class Load:
    """The demand of the teams.

    `load` is their average total demand as a fraction of all GPUs, `shares` each team's share of it. `swing` (0 to 1)
    is the amplitude by which a team's arrival rate varies in `period` seconds; the teams' peaks are evenly spaced.
    `urgent` is the fraction of jobs that have `priority`.
    """

    gpus: float
    hours: float
    load: float
    shares: t.Mapping[str, float]
    swing: float = 0.9
    period: float = _DAY
    urgent: float = 0.15
    priority: str = "urgent"
    longest: float = 4 * 3600.0


def draw_jobs(profile: Profile, load: Load, seed: int) -> list[Job]:
    """Jobs of a profile for this many hours, in the order of their arrival. The same seed gives the same jobs."""
    chance = random.Random(seed)
    each = profile.mean_size() * profile.mean_length(load.longest)
    total = sum(load.shares.values())
    found: list[tuple[float, str, str, float, float]] = []
    sizes = [gpus for gpus, _weight in profile.sizes]
    weights = [weight for _gpus, weight in profile.sizes]
    for number, (team, share) in enumerate(sorted(load.shares.items())):
        rate = load.load * load.gpus * share / total / each
        moment = 0.0
        while True:
            moment += chance.expovariate(rate * (1 + load.swing))
            if moment >= load.hours * 3600:
                break
            turn = moment / load.period + number / len(load.shares)
            if chance.random() * (1 + load.swing) > 1 + load.swing * math.sin(2 * math.pi * turn):
                continue
            priority = load.priority if chance.random() < load.urgent else ""
            (gpus,) = chance.choices(sizes, weights)
            found.append((moment, team, priority, gpus, min(load.longest, profile.length(chance.random()))))
    return [Job(number, *one) for number, one in enumerate(sorted(found))]


def read_csv(lines: t.Iterable[str]) -> list[Job]:
    """The jobs of a CSV whose first line is COLUMNS. Raises ValueError with the line number and the error."""
    reader = csv.DictReader(lines)
    if list(reader.fieldnames or ()) != list(COLUMNS):
        raise ValueError(f"the first line is not {','.join(COLUMNS)}")
    found: list[tuple[float, str, str, float, float]] = []
    for row in reader:
        where = f"line {reader.line_num}"
        if len(found) >= MAX_JOBS:
            raise ValueError(f"{where}: there are more than {MAX_JOBS} jobs")
        if any(row.get(name) is None for name in COLUMNS) or None in row:
            raise ValueError(f"{where}: must have {len(COLUMNS)} columns")
        if not row["team"]:
            raise ValueError(f"{where}: team is empty")
        numbers = [_number(row[name], f"{where}: {name}") for name in ("submit_s", "gpus", "seconds")]
        if not 0 < numbers[1] <= 1024:
            raise ValueError(f"{where}: gpus must be above 0 and at most 1024")
        if not numbers[2] > 0:
            raise ValueError(f"{where}: seconds must be above 0")
        found.append((numbers[0], row["team"], row["priority"], numbers[1], numbers[2]))
    return [Job(number, *one) for number, one in enumerate(sorted(found))]


def _number(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise ValueError(f"{where}: {text[:40]!r} is not a number") from None
    if not 0 <= found <= MAX_SECONDS:
        raise ValueError(f"{where}: {text[:40]} is not between 0 and {MAX_SECONDS}")
    return found


def as_csv(jobs: t.Iterable[Job]) -> str:
    """Jobs as `read_csv` reads them."""
    lines = [",".join(COLUMNS)]
    lines += [f"{one.submit:.3f},{one.team},{one.priority},{one.gpus:g},{one.seconds:.3f}" for one in jobs]
    return "\n".join(lines) + "\n"
