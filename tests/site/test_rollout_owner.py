# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotation that records which run has cordoned a Node, in the formats of this and other releases."""

from __future__ import annotations

import json

import pytest
from ansible_collections.lanewise.dra.plugins.filter.rollout_owner import rollout_owner
from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout_owner import (
    ENDED,
    NOBODY,
    OURS,
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


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"format": 0}', '{"format": "2"}', '{"format": 1}', "[" * 999, "x" * 2000]
)
def test_text_that_names_no_run_counts_as_ended(text: str) -> None:
    assert parse(text) is None and state(text, this_run()) == ENDED
    assert rollout_owner(text)["name"] == ""
