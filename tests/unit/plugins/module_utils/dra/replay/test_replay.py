# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Streams of jobs: read from a CSV, generated from a distribution, and the score of their runs."""

from __future__ import annotations

import statistics

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import Run, percentile, score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import (
    PROFILES,
    Job,
    Load,
    as_csv,
    draw_jobs,
    read_csv,
)

HEAD = "submit_s,team,priority,gpus,seconds"


def test_drawn_jobs_have_the_distribution_of_the_profile() -> None:
    for profile in PROFILES.values():
        jobs = draw_jobs(profile, Load(1000, 48, 0.8, {"red": 3, "blue": 1}, swing=0.0), 7)
        assert len(jobs) > 1000 and [one.number for one in jobs] == list(range(len(jobs)))
        assert jobs == draw_jobs(profile, Load(1000, 48, 0.8, {"red": 3, "blue": 1}, swing=0.0), 7)
        lengths = sorted(one.seconds for one in jobs)
        for which in (0.25, 0.5, 0.75):
            assert percentile(lengths, which) == pytest.approx(profile.length(which), rel=0.25)
        asked = sum(one.gpus * one.seconds for one in jobs) / 3600
        assert asked == pytest.approx(0.8 * 1000 * 48, rel=0.15)
        red = sum(one.team == "red" for one in jobs) / len(jobs)
        assert red == pytest.approx(0.75, abs=0.05)
        assert statistics.mean(one.gpus for one in jobs) == pytest.approx(profile.mean_size(), rel=0.15)


def test_teams_are_busy_in_turns() -> None:
    load = Load(500, 24, 0.8, {"red": 1, "blue": 1}, swing=1.0, period=24 * 3600.0)
    jobs = draw_jobs(PROFILES["pai"], load, 3)
    first = [one.team for one in jobs if one.submit < 12 * 3600]
    last = [one.team for one in jobs if one.submit >= 12 * 3600]
    assert first.count("blue") > 3 * first.count("red") and last.count("red") > 3 * last.count("blue")


def test_jobs_are_read_from_a_csv_in_order_of_time() -> None:
    jobs = read_csv([HEAD, "9,red,urgent,0.5,60", "3.5,blue,,8,7200"])
    assert jobs == [Job(0, 3.5, "blue", "", 8.0, 7200.0), Job(1, 9.0, "red", "urgent", 0.5, 60.0)]
    assert read_csv(as_csv(jobs).splitlines()) == jobs


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["a,b"], "the first line is not submit_s,team"),
        ([HEAD, "1,red,,1"], "line 2: must have 5 columns"),
        ([HEAD, "1,red,,1,1,1"], "line 2: must have 5 columns"),
        ([HEAD, "1,,,1,1"], "line 2: team is empty"),
        ([HEAD, "1,red,,1,5", "x,red,,1,1"], "line 3: submit_s: 'x' is not a number"),
        ([HEAD, "nan,red,,1,1"], "line 2: submit_s: nan is not between"),
        ([HEAD, "1,red,,0,1"], "line 2: gpus must be above 0"),
        ([HEAD, "1,red,,1,0"], "line 2: seconds must be above 0"),
        ([HEAD, "1,red,,1,1e300"], "line 2: seconds: 1e300 is not between"),
    ],
)
def test_a_wrong_csv_is_refused_with_the_line(lines: list[str], reported: str) -> None:
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
    waits = {(one["team"], one["priority"]): (one["p50_s"], one["unstarted"]) for one in found["waits"]}
    assert waits == {("red", ""): (600, 0), ("red", "urgent"): (3600, 0), ("blue", ""): (3600, 1)}
    assert found["curve"][0] == [0.0, 2.0, 0.5] and found["curve"][-1] == [2.0, 2.0, 1.0]
