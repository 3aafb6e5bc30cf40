# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which of the sent fields a server dropped or changed."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import comparison
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.dra_objects import JSON, SLICE
from hypothesis import given


def test_fields_missing_from_a_returned_slice_are_reported_as_dropped():
    returned = copy.deepcopy(SLICE)
    returned["metadata"].update({"uid": "x", "resourceVersion": "7"})
    del returned["spec"]["devices"][0]["taints"]
    del returned["spec"]["devices"][0]["attributes"]["a.b/rails"]
    returned["spec"]["devices"][0]["capacity"]["bandwidth"]["value"] = "400000M"
    assert comparison.dropped(SLICE, returned) == ["spec.devices[0].attributes[a.b/rails]", "spec.devices[0].taints"]
    assert comparison.dropped(returned, returned) == []
    del returned["spec"]["devices"][1]
    assert "spec.devices[1]" in comparison.dropped(SLICE, returned)


@pytest.mark.parametrize(
    "sent, returned, dropped",
    [
        ({"a": None, "b": "", "c": 0, "d": False, "e": [], "f": {"g": {}}}, {}, []),
        ({"a": [{}]}, {}, ["a"]),
        ({"value": "1000m"}, {"value": "1"}, []),
        ({"value": 1}, {"value": "1"}, []),
        ({"value": "1"}, {"value": "2"}, ["value"]),
        ({"flag": True}, {"flag": False}, ["flag"]),
        ({"t": "2026-01-02T03:04:05.5Z"}, {"t": "2026-01-02T03:04:05Z"}, []),
        ({"metadata": {"resourceVersion": "5", "labels": {"a.b/c": "x"}}}, {"metadata": {}}, ["metadata.labels"]),
        ({"metadata": {"labels": {"a.b/c": "x"}}}, {"metadata": {"labels": {"d": "e"}}}, ["metadata.labels[a.b/c]"]),
        ({"a": {"b": 1}}, {"a": 5}, ["a"]),
    ],
)
def test_only_missing_or_changed_values_are_reported_as_dropped(sent, returned, dropped):
    assert comparison.dropped(sent, returned) == dropped


@given(JSON, JSON)
def test_dropped_accepts_any_two_values(sent, returned):
    assert comparison.dropped(sent, sent) == []
    comparison.dropped(sent, returned)
