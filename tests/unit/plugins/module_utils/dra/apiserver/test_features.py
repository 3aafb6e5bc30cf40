# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which feature gates are on by default, and which fields and kinds older servers drop, ignore or refuse."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import features, schema
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.dra_objects import (
    CLAIM,
    JSON,
    SLICE,
    template,
)
from hypothesis import given
from hypothesis import strategies as st


def test_gates_depend_on_release_setting_and_other_gates():
    assert not features.enabled("DRAConsumableCapacity", 35)
    assert features.enabled("DRAConsumableCapacity", 36)
    assert features.enabled("DRAConsumableCapacity", 34, {"DRAConsumableCapacity": True})
    assert features.enabled("DRAExtendedResource", 37, {"DRAExtendedResource": False}), "locked"
    assert not features.enabled("DRADeviceTaintRules", 37, {"DRADeviceTaints": False}), "needs DRADeviceTaints"
    assert not features.enabled("DRAListTypeAttributes", 35, {"DRAListTypeAttributes": True}), "added in 1.36"


def test_every_gated_field_exists():
    for feature in features.FEATURES.values():
        for gated in feature.fields:
            struct = gated.kind
            for name in gated.path.replace("[]", "").replace("{}", "").split("."):
                assert name in schema.STRUCTS[struct], f"{struct}.{name}"
                struct = schema.STRUCTS[struct][name].type.lstrip("*").removeprefix("[]").removeprefix("{}")


def problems(obj, kubernetes, gates=None):
    return {(problem.path, problem.rule) for problem in features.unsupported(obj, kubernetes, gates)}


def test_1_37_supports_all_fields_of_a_claim():
    assert problems(CLAIM, "1.37") == set()


def test_older_servers_drop_or_ignore_fields_of_claims():
    request = "spec.devices.requests[0].exactly"
    distinct = "spec.devices.constraints[0].distinctAttribute"
    of_request = {(f"{request}.capacity", "dropped"), (f"{request}.tolerations", "inactive")}
    assert problems(CLAIM, "1.34") == {*of_request, (distinct, "inactive")}
    assert problems(CLAIM, "1.34", {"DRAResourceClaimDeviceStatus": False}) == {*of_request, (distinct, "fatal")}
    assert problems(CLAIM, "1.35") == {
        (f"{request}.capacity", "dropped"),
        (distinct, "dropped"),
        (f"{request}.tolerations", "dropped"),
    }
    assert problems(CLAIM, "1.36") == set()
    flat = versions.convert(template(CLAIM), versions.V1BETA1)
    assert ("spec.spec.devices.requests[0].capacity", "dropped") in problems(flat, "1.34")
    gates = {"DRAConsumableCapacity": True, "DRADeviceTaints": True}
    assert problems(CLAIM, "1.34", gates) == {(distinct, "inactive")}


def test_older_servers_drop_or_refuse_fields_of_slices():
    first = "spec.devices[0]"
    assert problems(SLICE, "1.37") == {(f"{first}.attributes[a.b/rails].ints", "dropped")}
    assert problems(SLICE, "1.34") == {
        (f"{first}.attributes[a.b/rails].ints", "unknown-field"),
        (f"{first}.capacity[bandwidth].requestPolicy", "dropped"),
        (f"{first}.allowMultipleAllocations", "dropped"),
        (f"{first}.taints", "dropped"),
    }
    flat = versions.convert(SLICE, versions.V1BETA1)
    assert (f"{first}.basic.taints", "dropped") in problems(flat, "1.35")


def test_empty_fields_are_not_reported():
    device = {"name": "a", "allowMultipleAllocations": False, "taints": [], "bindsToNode": None, "nothing": {}}
    assert problems({**SLICE, "spec": {**SLICE["spec"], "devices": [device]}}, "1.34") == set()


def test_kinds_that_are_not_served_are_reported():
    rule = {
        "apiVersion": versions.V1,
        "kind": "DeviceTaintRule",
        "spec": {"taint": {"key": "a", "effect": "NoExecute"}},
    }
    assert problems(rule, "1.36") == {("apiVersion", "unserved")}
    assert problems(rule, "1.37") == set()
    assert problems({**rule, "apiVersion": versions.V1BETA2}, "1.36") == {("kind", "inactive")}
    assert problems({"apiVersion": "v1", "kind": "Pod"}, "1.37") == {("apiVersion", "unserved")}


def test_a_misspelt_kind_gets_a_suggestion():
    (problem,) = features.unsupported({"apiVersion": versions.V1, "kind": "ResourceClam"}, "1.37")
    assert problem.fix == "did you mean 'ResourceClaim'?"
    (problem,) = features.unsupported({"apiVersion": versions.V1BETA1, "kind": "DeviceTaintRule"}, "1.37")
    assert problem.fix == ""


def test_the_status_and_namespace_of_a_rule_are_dropped():
    rule = {"apiVersion": versions.V1, "kind": "DeviceTaintRule", "metadata": {"namespace": "a"}}
    rule["status"] = {"conditions": [{"type": "x"}]}
    assert problems(rule, "1.37") == {("status.conditions", "dropped"), ("metadata.namespace", "dropped")}


def test_a_field_inside_a_dropped_field_is_not_reported():
    device = {"name": "a", "taints": [{"key": "a", "effect": "NoExecute", "surprise": 1}]}
    obj = {**SLICE, "spec": {**SLICE["spec"], "devices": [device]}}
    assert problems(obj, "1.34") == {("spec.devices[0].taints", "dropped")}
    assert problems(obj, "1.37") == {("spec.devices[0].taints[0].surprise", "unknown-field")}


@given(JSON, st.sampled_from(sorted(versions.SERVED)), st.sampled_from(["1.34", "1.35", "1.36", "1.37"]))
def test_any_object_can_be_checked_for_unsupported_fields(spec, served, kubernetes):
    version, kind = served
    obj = {"apiVersion": version, "kind": kind, "spec": spec}
    assert all(problem.rule for problem in features.unsupported(obj, kubernetes))
