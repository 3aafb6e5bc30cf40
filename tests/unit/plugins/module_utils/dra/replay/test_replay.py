# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Traces of jobs, read from a CSV or drawn from a distribution, and the score of their runs."""

from __future__ import annotations

import statistics

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import Run, percentile, score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import (
    PROFILES,
    Job,
    Load,
    draw_jobs,
    read_csv,
)

HEADER = "submit_s,team,priority,gpus,seconds"


def test_drawn_jobs_have_the_distribution_of_the_profile() -> None:
    for profile in PROFILES.values():
        jobs = draw_jobs(profile, Load(1000, 48, 0.8, {"red": 3, "blue": 1}, swing=0.0), 7)
        assert len(jobs) > 1000 and [job.number for job in jobs] == list(range(len(jobs)))
        assert jobs == draw_jobs(profile, Load(1000, 48, 0.8, {"red": 3, "blue": 1}, swing=0.0), 7)
        lengths = sorted(job.seconds for job in jobs)
        for quantile in (0.25, 0.5, 0.75):
            assert percentile(lengths, quantile) == pytest.approx(profile.length(quantile), rel=0.25)
        gpu_hours = sum(job.gpus * job.seconds for job in jobs) / 3600
        assert gpu_hours == pytest.approx(0.8 * 1000 * 48, rel=0.15)
        red_fraction = sum(job.team == "red" for job in jobs) / len(jobs)
        assert red_fraction == pytest.approx(0.75, abs=0.05)
        assert statistics.mean(job.gpus for job in jobs) == pytest.approx(profile.mean_size(), rel=0.15)


def test_with_full_swing_teams_submit_most_jobs_at_different_times() -> None:
    load = Load(500, 24, 0.8, {"red": 1, "blue": 1}, swing=1.0, period=24 * 3600.0)
    jobs = draw_jobs(PROFILES["pai"], load, 3)
    first_half = [job.team for job in jobs if job.submit < 12 * 3600]
    second_half = [job.team for job in jobs if job.submit >= 12 * 3600]
    assert first_half.count("blue") > 3 * first_half.count("red")
    assert second_half.count("red") > 3 * second_half.count("blue")


def test_jobs_of_a_csv_are_sorted_by_submission_time() -> None:
    jobs = read_csv([HEADER, "9,red,urgent,0.5,60", "3.5,blue,,8,7200"])
    assert jobs == [Job(0, 3.5, "blue", "", 8.0, 7200.0), Job(1, 9.0, "red", "urgent", 0.5, 60.0)]


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["a,b"], "the first line is not submit_s,team"),
        ([HEADER, "1,red,,1"], "line 2: must have 5 columns"),
        ([HEADER, "1,red,,1,1,1"], "line 2: must have 5 columns"),
        ([HEADER, "1,,,1,1"], "line 2: team is empty"),
        ([HEADER, "1,red,,1,5", "x,red,,1,1"], "line 3: submit_s: 'x' is not a number"),
        ([HEADER, "nan,red,,1,1"], "line 2: submit_s: nan is not between"),
        ([HEADER, "1,red,,0,1"], "line 2: gpus must be above 0"),
        ([HEADER, "1,red,,1,0"], "line 2: seconds must be above 0"),
        ([HEADER, "1,red,,1,1e300"], "line 2: seconds: 1e300 is not between"),
        ([HEADER, "1,red,,1,1", f"1,{'x' * 200_000},,1,1"], "after line 2: field larger than field limit"),
    ],
)
def test_an_invalid_csv_is_refused_with_the_number_of_the_line(lines: list[str], reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        read_csv(lines)


def test_the_score_counts_hours_waits_and_preemptions() -> None:
    """One job ends, one is preempted and runs again, one never starts. The window ends after two hours."""
    jobs = [Job(0, 0, "red", "", 0.5, 3600), Job(1, 0, "red", "urgent", 2, 7200), Job(2, 3600, "blue", "", 1, 60)]
    runs = {
        0: Run(0, [(600, 4200)], done=True, held=1),
        1: Run(0, [(0, 1800), (3600, None)], held=2, aligned=False),
        2: Run(3600),
    }
    found = score(jobs, runs, 4, 7200)
    assert found["gpu_hours"] == {"there": 8.0, "taken": 4.0, "useful": 2.5, "lost": 1.0}
    assert (found["started"], found["done"], found["preempted"], found["unaligned"]) == (2, 1, 1, 1)
    waits = {(entry["team"], entry["priority"]): (entry["p50_s"], entry["unstarted"]) for entry in found["waits"]}
    assert waits == {("red", ""): (600, 0), ("red", "urgent"): (3600, 0), ("blue", ""): (3600, 1)}
    assert found["curve"][0] == [0.0, 2.0, 0.5] and found["curve"][-1] == [2.0, 2.0, 1.0]
