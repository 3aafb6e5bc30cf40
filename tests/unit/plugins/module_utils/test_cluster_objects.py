# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which parts of objects are kept when they are read."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_objects import reduced
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.movable import GANGS, SAFE_TO_EVICT, movable
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import pod


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("mark", [*GANGS, SAFE_TO_EVICT])
def test_a_pod_that_must_not_be_moved_is_still_recognized_after_it_was_read(mark: str, part: str) -> None:
    objects = pod("p", "a", [0], **{part: {mark: "false"}, "schedulingGates": [], "volumes": [{"name": "v"}]})
    read: list[dict[str, t.Any]] = [reduced(json.loads(json.dumps(one))) for one in objects]
    assert "volumes" not in read[0]["spec"]
    found, kept = movable(read)
    assert (mark, part) == (SAFE_TO_EVICT, "labels") or (found == [] and mark in kept["team/p"])


def test_most_annotations_and_placements_of_pods_without_claims_are_left_out() -> None:
    (one, _claim) = pod("p", "a", [0], annotations={"secret": "x"}, tolerations=[{"operator": "Exists"}])
    assert reduced(json.loads(json.dumps(one)))["metadata"].get("annotations") is None
    assert reduced(json.loads(json.dumps(one)))["spec"]["tolerations"]
    del one["spec"]["resourceClaims"]
    assert "tolerations" not in reduced(one)["spec"]
