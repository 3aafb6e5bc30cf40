# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotation that records which run has cordoned a Node, in the formats of this and other releases."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.filter.rollout_owner import rollout_owner
from ansible_collections.lanewise.dra.plugins.plugin_utils import rollout_owner as owners
from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout_owner import (
    ENDED,
    NOBODY,
    OURS,
    RUNS,
    UNKNOWN,
    Owner,
    parse,
    state,
    this_run,
)

OTHER = Owner("eva", "elsewhere", 7, "123", "pid:[1]")


def test_annotations_of_earlier_releases_are_read() -> None:
    run = this_run()
    assert state("true", run) == ENDED  # the format of 1.0.0
    assert state(None, run) == NOBODY and rollout_owner("")["state"] == NOBODY
    unnumbered = {name: value for name, value in json.loads(run.text).items() if name != "format"}
    assert len(unnumbered) == 5 and state(json.dumps(unnumbered), run) == OURS


def test_an_annotation_has_a_format_number_and_may_have_more_fields() -> None:
    written = json.loads(OTHER.text)
    assert written["format"] == 1
    assert parse(json.dumps({**written, "ends": "later"})) == OTHER
    assert state(OTHER.text, this_run()) == UNKNOWN


def test_a_run_of_a_newer_release_is_not_taken_for_one_that_ended() -> None:
    annotation = json.dumps({"format": 2, "run": {"id": 7}})
    assert parse(annotation) is None and state(annotation, this_run()) == UNKNOWN
    answer = rollout_owner(annotation)
    assert (answer["state"], answer["name"]) == (UNKNOWN, "of a newer release of lanewise.dra")
    # an annotation that allows older readers is read
    assert parse(json.dumps({**json.loads(OTHER.text), "format": 2, "readable_by": 1})) == OTHER


def test_a_process_is_recognised_by_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    run = this_run()
    other = subprocess.Popen(["sleep", "60"])
    try:
        started = owners._started(other.pid) or ""
        owner = replace(run, process=other.pid, started=started)
        assert state(owner.text, run) == RUNS
        assert state(replace(owner, started="earlier").text, run) == ENDED
        monkeypatch.setattr(owners, "_started", lambda process: None)  # hidden from this user
        assert state(owner.text, run) == UNKNOWN
    finally:
        other.kill()
        other.wait()
    assert state(owner.text, run) == ENDED


def test_a_run_on_another_machine_is_unknown() -> None:
    """Machines may have the same name, and their first PID namespaces have the same number."""
    run = this_run()
    machine, _space, namespace = run.space.partition(" ")
    assert len(machine) == 32 and namespace.startswith("pid:[")
    for path in (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")):  # confidential: machine-id(5)
        assert not path.exists() or (path.read_text().strip() or "none") not in run.text
    assert state(replace(run, process=2**30, space=f"other {namespace}").text, run) == UNKNOWN
    assert state(replace(run, process=2**30).text, run) == ENDED


def test_a_process_without_a_known_start_is_not_taken_for_one_that_ended() -> None:
    run = this_run()
    assert state(replace(run, process=os.getppid(), started="").text, run) == UNKNOWN
    assert state(replace(run, process=2**30, started="").text, run) == ENDED


def test_a_process_that_nobody_waited_for_has_ended() -> None:
    run = this_run()
    other = subprocess.Popen(["sleep", "60"])
    owner = replace(run, process=other.pid, started=owners._started(other.pid) or "")
    assert state(owner.text, run) == RUNS
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert state(owner.text, run) == ENDED
    other.wait()


def test_an_annotation_that_is_too_long_is_unknown() -> None:
    assert state("x" * 2000, this_run()) == UNKNOWN


def test_the_start_of_a_process_does_not_depend_on_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, it is the text of ps."""
    starts = set()
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        starts.add(owners._start_by_ps(os.getpid()))
    assert len(starts) == 1 and starts != {None}


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"format": 0}', '{"format": "2"}', '{"format": 1}', "[" * 999])
def test_text_that_names_no_run_counts_as_ended(text: str) -> None:
    assert parse(text) is None and state(text, this_run()) == ENDED
    assert rollout_owner(text)["name"] == ""
