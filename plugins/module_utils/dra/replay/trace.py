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

#: The columns of a CSV. Times are in seconds.
COLUMNS = ("submit_s", "team", "priority", "gpus", "seconds")
#: The maximum number of jobs in a stream, and the maximum of each number in a CSV, such as a time in seconds.
MAX_JOBS, MAX_SECONDS = 100_000, 400 * 86_400
#: The maximum number of GPUs of a job.
MAX_GPUS = 1024
_DAY = 86_400.0


@dataclass(frozen=True)
class Job:
    """A job: its position in the stream, arrival in seconds, team, priority, number of GPUs and run time in seconds.

    A number of GPUs below 1 is a part of a GPU.
    """

    number: int
    submit: float
    team: str
    priority: str
    gpus: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The distributions of a trace. `sizes` are numbers of GPUs with their weights.

    `lengths` are quantiles of the run time: a fraction of jobs, and the seconds that these do not exceed. Between
    quantiles, the logarithm of the run time is interpolated.
    """

    source: str
    sizes: tuple[tuple[float, float], ...]
    lengths: tuple[tuple[float, float], ...]

    def length(self, fraction: float) -> float:
        """The run time in seconds that this fraction of all jobs does not exceed."""
        below = self.lengths[0]
        for above in self.lengths[1:]:
            if fraction <= above[0]:
                weight = (fraction - below[0]) / (above[0] - below[0])
                return math.exp(math.log(below[1]) + weight * (math.log(above[1]) - math.log(below[1])))
            below = above
        return below[1]

    def mean_size(self) -> float:
        """The mean number of GPUs of a job."""
        return sum(gpus * weight for gpus, weight in self.sizes) / sum(weight for _gpus, weight in self.sizes)

    def mean_length(self, longest: float) -> float:
        """The mean run time in seconds, if run times are limited to `longest` seconds."""
        steps = 2000
        return sum(min(longest, self.length((step + 0.5) / steps)) for step in range(steps)) / steps


_PAI = "Alibaba PAI, cluster-trace-gpu-v2023, openb_pod_list_default.csv, the 107 scheduled GPU tasks of 5664 to 5832"
_PAI_LENGTHS = (
    *((0.0, 23.0), (0.1, 179.0), (0.25, 417.0), (0.5, 1027.0), (0.75, 3739.0)),
    *((0.9, 12833.0), (0.95, 15699.0), (1.0, 114715.0)),
)
#: `pai`: as in the trace. `training`: the same lengths, but only whole GPUs, and more jobs with several GPUs, as on
#: sites that train large models. The sizes of `training` are assumed.
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

    Jobs arrive for `hours` hours. `load` is the average total demand as a fraction of all GPUs, `shares` has each
    team's share of this demand. `swing` (0 to 1) is the amplitude with which a team's arrival rate varies over `period`
    seconds; the peaks of the teams are evenly spaced. `urgent` is the fraction of jobs that have `priority`. `longest`
    is the maximum run time in seconds.
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
    """Random jobs of a profile with this load, in the order of their arrival. The same seed gives the same jobs.

    Raises ValueError for a load of too many jobs.
    """
    generator = random.Random(seed)
    gpu_seconds_of_job = profile.mean_size() * profile.mean_length(load.longest)
    total = sum(load.shares.values())
    jobs: list[tuple[float, str, str, float, float]] = []
    sizes = [gpus for gpus, _weight in profile.sizes]
    weights = [weight for _gpus, weight in profile.sizes]
    for number, (team, share) in enumerate(sorted(load.shares.items())):
        rate = load.load * load.gpus * share / total / gpu_seconds_of_job
        moment = 0.0
        while rate:  # a tiny share can be rounded to 0
            moment += generator.expovariate(rate * (1 + load.swing))
            if moment >= load.hours * 3600:
                break
            phase = moment / load.period + number / len(load.shares)
            if generator.random() * (1 + load.swing) > 1 + load.swing * math.sin(2 * math.pi * phase):
                continue
            priority = load.priority if generator.random() < load.urgent else ""
            (gpus,) = generator.choices(sizes, weights)
            if len(jobs) >= MAX_JOBS:
                raise ValueError(f"this load has more than {MAX_JOBS} jobs: reduce gpus, hours or load")
            jobs.append((moment, team, priority, gpus, min(load.longest, profile.length(generator.random()))))
    return [Job(number, *fields) for number, fields in enumerate(sorted(jobs))]


def read_csv(lines: t.Iterable[str]) -> list[Job]:
    """The jobs of a CSV whose first line is COLUMNS. Raises ValueError; the message has the line number."""
    reader = csv.DictReader(lines)
    try:
        return _read_jobs(reader)
    except csv.Error as error:
        raise ValueError(f"after line {reader.line_num}: {error}") from None


def _read_jobs(reader: csv.DictReader[str]) -> list[Job]:
    """The jobs of a CSV in the order of their arrival. Raises ValueError and csv.Error."""
    if list(reader.fieldnames or ()) != list(COLUMNS):
        raise ValueError(f"the first line is not {','.join(COLUMNS)}")
    jobs: list[tuple[float, str, str, float, float]] = []
    for row in reader:
        location = f"line {reader.line_num}"
        if len(jobs) >= MAX_JOBS:
            raise ValueError(f"{location}: there are more than {MAX_JOBS} jobs")
        if any(row.get(name) is None for name in COLUMNS) or None in row:
            raise ValueError(f"{location}: must have {len(COLUMNS)} columns")
        if not row["team"]:
            raise ValueError(f"{location}: team is empty")
        numbers = [_number(row[name], f"{location}: {name}") for name in ("submit_s", "gpus", "seconds")]
        if not 0 < numbers[1] <= MAX_GPUS:
            raise ValueError(f"{location}: gpus must be above 0 and at most {MAX_GPUS}")
        if not numbers[2] > 0:
            raise ValueError(f"{location}: seconds must be above 0")
        jobs.append((numbers[0], row["team"], row["priority"], numbers[1], numbers[2]))
    return [Job(number, *fields) for number, fields in enumerate(sorted(jobs))]


def _number(text: str, location: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{location}: {text[:40]!r} is not a number") from None
    if not 0 <= number <= MAX_SECONDS:
        raise ValueError(f"{location}: {text[:40]} is not between 0 and {MAX_SECONDS}")
    return number
