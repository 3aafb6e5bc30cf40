# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts of objects that are kept when they are read from a cluster."""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_objects import reduced
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.movable import GANGS, SAFE_TO_EVICT, movable
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import pod


@pytest.mark.parametrize(
    ("part", "key"),
    [*(("labels", key) for key in GANGS), *(("annotations", key) for key in (*GANGS, SAFE_TO_EVICT))],
)
def test_a_pod_that_must_not_be_moved_is_still_recognized_after_fields_were_left_out(part: str, key: str) -> None:
    objects = pod("p", "a", [0], **{part: {key: "false"}, "schedulingGates": [], "volumes": [{"name": "v"}]})
    read: list[dict[str, t.Any]] = [reduced(copy.deepcopy(found)) for found in objects]
    assert "volumes" not in read[0]["spec"]
    pods, reasons = movable(read)
    assert pods == [] and key in reasons["team/p"]


def test_environment_variables_of_containers_for_debugging_are_left_out() -> None:
    (with_debugger, _claim) = pod("p", "a", [0])
    with_debugger["spec"]["ephemeralContainers"] = [{"name": "debugger", "env": [{"name": "TOKEN", "value": "secret"}]}]
    assert reduced(with_debugger)["spec"]["ephemeralContainers"] == [{"name": "debugger"}]


def test_what_decides_whether_a_queue_admits_a_pod_is_kept() -> None:
    active = {"type": "Active", "status": "False", "message": "its flavor is missing"}
    queue = {"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {}, "status": {"conditions": [active]}}
    assert reduced(queue)["status"]["conditions"] == [active]
    tolerations = [{"key": "spot", "operator": "Exists"}]
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "spot"}, "spec": {"tolerations": tolerations}}
    assert reduced(flavor)["spec"]["tolerations"] == tolerations


def test_other_annotations_and_the_tolerations_of_pods_without_claims_are_left_out() -> None:
    (with_claim, _claim) = pod("p", "a", [0], annotations={"secret": "x"}, tolerations=[{"operator": "Exists"}])
    without_claim = copy.deepcopy(with_claim)
    del without_claim["spec"]["resourceClaims"]
    read = reduced(with_claim)
    assert "annotations" not in read["metadata"] and read["spec"]["tolerations"]
    assert "tolerations" not in reduced(without_claim)["spec"]
