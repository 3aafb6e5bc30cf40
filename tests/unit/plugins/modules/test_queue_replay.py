# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.modules import queue_replay

PARAMS = {
    "csv": None,
    "profile": "pai",
    "shares": {"red": 1, "blue": "0.5", "green": 0},
    "load": 0.9,
    "swing": 0.5,
    "seed": 1,
    "gpus": 8,
    "hours": 4,
    "speed": 240,
    "forms": [{"gpus": 1.0, "template": "pair", "held": None}],
}


def test_jobs_are_drawn_for_teams_with_a_part_of_the_load():
    jobs, _source = queue_replay.jobs_of(PARAMS)
    assert {job.team for job in jobs} == {"red", "blue"}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({}, "shares: name the teams"),
        ({"red": 0}, "shares: name the teams"),
        ({"red": None}, "shares.red: must be a finite number, 0 or more, not 'None'"),
        ({"red": [1]}, r"shares.red: must be a finite number, 0 or more, not '\[1\]'"),
        ({"red": "much"}, "shares.red: must be a finite number, 0 or more, not 'much'"),
        ({"red": 1, "blue": -1}, "shares.blue: must be a finite number, 0 or more, not '-1'"),
        ({"red": "nan"}, "shares.red: must be a finite number, 0 or more, not 'nan'"),
    ],
)
def test_a_part_of_the_load_that_is_not_a_number_is_refused(shares, message):
    with pytest.raises(ValueError, match=message):
        queue_replay.jobs_of({**PARAMS, "shares": shares})


@pytest.mark.parametrize(("name", "value"), [("held", -24.0), ("held", float("nan")), ("gpus", 0.0), ("gpus", 1e9)])
def test_a_number_of_gpus_that_no_job_can_have_is_refused(name, value):
    forms = [PARAMS["forms"][0], {**PARAMS["forms"][0], name: value}]
    with pytest.raises(ValueError, match=rf"^forms\[1\]\.{name}: .* must be above 0 and at most 1024$"):
        queue_replay.jobs_of({**PARAMS, "forms": forms})


def test_a_load_of_too_many_jobs_is_refused():
    with pytest.raises(ValueError, match="more than 100000 jobs: reduce gpus, hours or load"):
        queue_replay.jobs_of({**PARAMS, "gpus": 1e6, "hours": 720})


def test_a_team_with_a_tiny_part_of_the_load_has_no_jobs():
    jobs, _source = queue_replay.jobs_of({**PARAMS, "shares": {"red": 1, "blue": 1e-323}})
    assert {job.team for job in jobs} == {"red"}
