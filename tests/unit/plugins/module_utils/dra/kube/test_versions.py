# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import schema, versions
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.kube.slices import resource_slice
from hypothesis import given
from hypothesis import strategies as st

CLAIM = {
    "apiVersion": schema.V1,
    "kind": "ResourceClaim",
    "metadata": {"name": "pair", "namespace": "training"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpu",
                        "count": 2,
                        "adminAccess": True,
                        "capacity": {"requests": {"memory": "10Gi"}},
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                {"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "rdma"}]},
            ],
            "constraints": [{"distinctAttribute": "lanewise.dev/rail"}],
        }
    },
}
SLICE = resource_slice(
    "node-1",
    {
        "name": "nic",
        "attributes": {"a.b/rails": {"ints": [0, 1]}, "model": {"string": "x"}},
        "capacity": {"bandwidth": {"value": "400G", "requestPolicy": {"default": "1G"}}},
        "allowMultipleAllocations": True,
        "taints": [{"key": "x", "effect": "NoSchedule"}],
    },
    {"name": "gpu"},
)


def template(claim):
    return {
        **claim,
        "kind": "ResourceClaimTemplate",
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": claim["spec"]},
    }


def test_claims_in_v1beta1():
    before = copy.deepcopy(CLAIM)
    flat = versions.convert(CLAIM, schema.V1BETA1)
    assert CLAIM == before
    assert flat["apiVersion"] == schema.V1BETA1
    assert flat["spec"]["devices"]["requests"][0] == {
        "name": "gpu",
        **CLAIM["spec"]["devices"]["requests"][0]["exactly"],
    }
    assert flat["spec"]["devices"]["requests"][1] == CLAIM["spec"]["devices"]["requests"][1]
    assert versions.convert(flat, schema.V1) == CLAIM


def test_slices_in_v1beta1():
    flat = versions.convert(SLICE, schema.V1BETA1)
    nic = {name: value for name, value in SLICE["spec"]["devices"][0].items() if name != "name"}
    assert flat["spec"]["devices"] == [{"name": "nic", "basic": nic}, {"name": "gpu", "basic": {}}]
    assert versions.convert(flat, schema.V1) == SLICE
    unset = {**flat, "spec": {**flat["spec"], "nodeName": "", "allNodes": False}}
    assert {"nodeName", "allNodes"}.isdisjoint(versions.convert(unset, schema.V1)["spec"])


@pytest.mark.parametrize("obj", [CLAIM, template(CLAIM), SLICE], ids=lambda obj: obj["kind"])
@pytest.mark.parametrize("version", [schema.V1, schema.V1BETA2, schema.V1BETA1])
def test_there_and_back(obj, version):
    assert versions.convert(versions.convert(obj, version), schema.V1) == obj


@pytest.mark.parametrize(
    "flat, nested",
    [
        ({"name": "a"}, {"name": "a"}),
        ({"name": "a", "deviceClassName": "", "count": 0, "adminAccess": None}, {"name": "a"}),
        ({"name": "a", "selectors": []}, {"name": "a", "exactly": {"selectors": []}}),
        ({"name": "a", "adminAccess": False}, {"name": "a", "exactly": {"adminAccess": False}}),
    ],
)
def test_what_makes_a_flat_request_exact(flat, nested):
    claim = {"apiVersion": schema.V1BETA1, "kind": "ResourceClaim", "spec": {"devices": {"requests": [flat]}}}
    assert versions.convert(claim, schema.V1)["spec"]["devices"]["requests"] == [nested]


@pytest.mark.parametrize(
    "spec", [None, [], {"devices": None}, {"devices": {"requests": {}}}, {"devices": {"requests": [5]}}]
)
def test_what_is_no_claim_passes_through(spec):
    claim = {"apiVersion": schema.V1BETA1, "kind": "ResourceClaim", "spec": spec}
    assert versions.convert(claim, schema.V1)["spec"] == spec


@pytest.mark.parametrize(
    "obj, version",
    [
        ({"apiVersion": "v1", "kind": "Pod"}, schema.V1),
        ({"kind": "ResourceClaim"}, schema.V1),
        (CLAIM, schema.V1ALPHA3),
        (CLAIM, "resource.k8s.io/v2"),
        ({"apiVersion": schema.V1, "kind": "DeviceTaintRule"}, schema.V1BETA1),
    ],
)
def test_no_such_conversion(obj, version):
    with pytest.raises(ValueError):
        versions.convert(obj, version)


def test_choose():
    every = ["v1alpha3", "v1beta1", "resource.k8s.io/v1beta2", "v1", "apps/v1"]
    assert versions.choose(every) == schema.V1
    assert versions.choose(["v1beta1", "v1beta2"]) == schema.V1BETA2
    assert versions.choose(every, "DeviceTaintRule", "1.36") == schema.V1BETA2
    assert versions.choose(every, "DeviceTaintRule", "1.35") == schema.V1ALPHA3
    with pytest.raises(LookupError):
        versions.choose(["v1alpha3"])
    with pytest.raises(LookupError):
        versions.choose(["apps/v1"])


@pytest.mark.parametrize("text, minor", [("1.34", 34), ("v1.37.1", 37), ("1.36+", 36), ("1.99", 37), ("1.35-rc.1", 35)])
def test_minor_of(text, minor):
    assert versions.minor_of(text) == minor


@pytest.mark.parametrize("text", ["1.33", "2.0", "", "latest", "1.x", "1.37foo"])
def test_no_release(text):
    with pytest.raises(ValueError):
        versions.minor_of(text)


def test_gates():
    assert not versions.enabled("DRAConsumableCapacity", 35)
    assert versions.enabled("DRAConsumableCapacity", 36)
    assert versions.enabled("DRAConsumableCapacity", 34, {"DRAConsumableCapacity": True})
    assert versions.enabled("DRAExtendedResource", 37, {"DRAExtendedResource": False}), "locked"
    assert not versions.enabled("DRADeviceTaintRules", 37, {"DRADeviceTaints": False}), "needs the other"
    assert not versions.enabled("DRAListTypeAttributes", 35, {"DRAListTypeAttributes": True}), "came with 1.36"


def test_every_gated_field_exists():
    for feature in versions.FEATURES.values():
        for gated in feature.fields:
            struct = gated.kind
            for name in gated.path.replace("[]", "").replace("{}", "").split("."):
                struct = schema.STRUCTS[struct][name].type.lstrip("*").removeprefix("[]").removeprefix("{}")


def problems(obj, kubernetes, gates=None):
    return {(problem.path, problem.rule) for problem in versions.unsupported(obj, kubernetes, gates)}


def test_nothing_is_missing_in_137():
    assert problems(CLAIM, "1.37") == set()


def test_claims_on_older_servers():
    request = "spec.devices.requests[0].exactly"
    distinct = "spec.devices.constraints[0].distinctAttribute"
    others = {(f"{request}.capacity", "dropped"), (f"{request}.tolerations", "inactive")}
    assert problems(CLAIM, "1.34") == {*others, (distinct, "inactive")}
    assert problems(CLAIM, "1.34", {"DRAResourceClaimDeviceStatus": False}) == {*others, (distinct, "fatal")}
    assert problems(CLAIM, "1.35") == {
        (f"{request}.capacity", "dropped"),
        ("spec.devices.constraints[0].distinctAttribute", "dropped"),
        (f"{request}.tolerations", "dropped"),
    }
    assert problems(CLAIM, "1.36") == set()
    flat = versions.convert(template(CLAIM), schema.V1BETA1)
    assert ("spec.spec.devices.requests[0].capacity", "dropped") in problems(flat, "1.34")
    gates = {"DRAConsumableCapacity": True, "DRADeviceTaints": True}
    assert problems(CLAIM, "1.34", gates) == {(distinct, "inactive")}


def test_slices_on_older_servers():
    first = "spec.devices[0]"
    assert problems(SLICE, "1.37") == {(f"{first}.attributes[a.b/rails].ints", "dropped")}
    assert problems(SLICE, "1.34") == {
        (f"{first}.attributes[a.b/rails].ints", "unknown-field"),
        (f"{first}.capacity[bandwidth].requestPolicy", "dropped"),
        (f"{first}.allowMultipleAllocations", "dropped"),
        (f"{first}.taints", "dropped"),
    }
    flat = versions.convert(SLICE, schema.V1BETA1)
    assert (f"{first}.basic.taints", "dropped") in problems(flat, "1.35")


def test_empty_fields_are_not_reported():
    device = {"name": "a", "allowMultipleAllocations": False, "taints": [], "bindsToNode": None, "nothing": {}}
    assert problems({**SLICE, "spec": {**SLICE["spec"], "devices": [device]}}, "1.34") == set()


def test_kinds_that_are_not_served():
    rule = {"apiVersion": schema.V1, "kind": "DeviceTaintRule", "spec": {"taint": {"key": "a", "effect": "NoExecute"}}}
    assert problems(rule, "1.36") == {("apiVersion", "unserved")}
    assert problems(rule, "1.37") == set()
    assert problems({**rule, "apiVersion": schema.V1BETA2}, "1.36") == {("kind", "inactive")}
    assert problems({"apiVersion": "v1", "kind": "Pod"}, "1.37") == {("apiVersion", "unserved")}


def test_a_misspelt_kind_gets_a_suggestion():
    (problem,) = versions.unsupported({"apiVersion": schema.V1, "kind": "ResourceClam"}, "1.37")
    assert problem.fix == "did you mean 'ResourceClaim'?"
    (problem,) = versions.unsupported({"apiVersion": schema.V1BETA1, "kind": "DeviceTaintRule"}, "1.37")
    assert problem.fix == ""


def test_a_release_that_yaml_took_for_a_number():
    with pytest.raises(ValueError, match="if you mean 1.40, quote it"):
        versions.minor_of("1.4")
    with pytest.raises(ValueError, match=r"older than 1.34$"):
        versions.minor_of("1.30")


def test_status_and_namespace():
    rule = {"apiVersion": schema.V1, "kind": "DeviceTaintRule", "metadata": {"namespace": "a"}}
    rule["status"] = {"conditions": [{"type": "x"}]}
    assert problems(rule, "1.37") == {("status.conditions", "dropped"), ("metadata.namespace", "dropped")}


def test_a_field_inside_a_dropped_one_is_not_reported_again():
    device = {"name": "a", "taints": [{"key": "a", "effect": "NoExecute", "surprise": 1}]}
    obj = {**SLICE, "spec": {**SLICE["spec"], "devices": [device]}}
    assert problems(obj, "1.34") == {("spec.devices[0].taints", "dropped")}
    assert problems(obj, "1.37") == {("spec.devices[0].taints[0].surprise", "unknown-field")}


def test_dropped():
    returned = copy.deepcopy(SLICE)
    returned["metadata"].update({"uid": "x", "resourceVersion": "7"})
    del returned["spec"]["devices"][0]["taints"]
    del returned["spec"]["devices"][0]["attributes"]["a.b/rails"]
    returned["spec"]["devices"][0]["capacity"]["bandwidth"]["value"] = "400000M"
    assert versions.dropped(SLICE, returned) == ["spec.devices[0].attributes[a.b/rails]", "spec.devices[0].taints"]
    assert versions.dropped(returned, returned) == []
    del returned["spec"]["devices"][1]
    assert "spec.devices[1]" in versions.dropped(SLICE, returned)


@pytest.mark.parametrize(
    "sent, returned, lost",
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
def test_what_counts_as_kept(sent, returned, lost):
    assert versions.dropped(sent, returned) == lost


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(json, json)
def test_dropped_takes_anything(sent, returned):
    assert versions.dropped(sent, sent) == []
    versions.dropped(sent, returned)


@given(json, st.sampled_from(sorted(schema.SERVED)), st.sampled_from(["1.34", "1.35", "1.36", "1.37"]))
def test_unsupported_takes_anything(spec, served, kubernetes):
    version, kind = served
    versions.unsupported({"apiVersion": version, "kind": kind, "spec": spec}, kubernetes)
