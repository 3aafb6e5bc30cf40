# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each validation rule once. tests/cluster/test_validation.py checks that the rules are those of the server.

This file has more than 500 lines because it lists all rules.
"""

from __future__ import annotations

import copy
import datetime
import re
import time

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import features, schema
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.dra_objects import resource_slice
from hypothesis import given
from hypothesis import strategies as st

MINORS = ["1.34", "1.35", "1.36", "1.37"]
ALL_GATES_ON = {gate: True for gate in features.FEATURES}
REMOVED = object()

CLASS = {
    "apiVersion": versions.V1,
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {
        "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}],
        "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"a": 1}}}],
        "extendedResourceName": "example.com/gpu",
    },
}
CLAIM = {
    "apiVersion": versions.V1,
    "kind": "ResourceClaim",
    "metadata": {"name": "pair", "namespace": "training"},
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu"}},
                {
                    "name": "nic",
                    "firstAvailable": [
                        {"name": "fast", "deviceClassName": "rdma", "count": 2},
                        {"name": "any", "deviceClassName": "nic", "allocationMode": "All"},
                    ],
                },
            ],
            "constraints": [{"requests": ["gpu", "nic/fast"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}],
            "config": [{"requests": ["nic"], "opaque": {"driver": "lanewise.dev", "parameters": {}}}],
        }
    },
}
TEMPLATE = {
    **CLAIM,
    "kind": "ResourceClaimTemplate",
    "spec": {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM["spec"]},
}
SLICE = resource_slice(
    "node-1-nics",
    {
        "name": "nic",
        "attributes": {"model": {"string": "x"}, "lanewise.dev/fw": {"version": "1.2.3"}},
        "capacity": {"bandwidth": {"value": "16", "requestPolicy": {"default": "4", "validValues": ["2", "4"]}}},
        "allowMultipleAllocations": True,
    },
    {"name": "gpu", "attributes": {"numa": {"int": 0}}},
)
RULE = {
    "apiVersion": versions.V1,
    "kind": "DeviceTaintRule",
    "metadata": {"name": "broken"},
    "spec": {
        "deviceSelector": {"driver": "lanewise.dev", "pool": "node-1", "device": "nic"},
        "taint": {"key": "example.com/broken", "value": "yes", "effect": "NoExecute"},
    },
}
CONSUMED_COUNTERS = copy.deepcopy(SLICE)
CONSUMED_COUNTERS["spec"]["devices"] = [
    {"name": "part", "consumesCounters": [{"counterSet": "board", "counters": {"memory": {"value": "4Gi"}}}]}
]
SHARED_COUNTERS = {**SLICE, "spec": {name: value for name, value in SLICE["spec"].items() if name != "devices"}}
SHARED_COUNTERS["spec"]["sharedCounters"] = [{"name": "board", "counters": {"memory": {"value": "80Gi"}}}]
BOTH_COUNTERS = {**CONSUMED_COUNTERS, "spec": {**CONSUMED_COUNTERS["spec"], **SHARED_COUNTERS["spec"]}}
PER_DEVICE = copy.deepcopy(SLICE)
del PER_DEVICE["spec"]["nodeName"]
PER_DEVICE["spec"]["perDeviceNodeSelection"] = True
for device in PER_DEVICE["spec"]["devices"]:
    device["nodeName"] = "node-1"


def change(obj, *edits):
    """A copy of `obj` with (path, value) pairs written into it; GONE removes the field."""
    obj = copy.deepcopy(obj)
    for path, value in edits:
        steps = [int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
        holder = obj
        for step in steps[:-1]:
            holder = holder[step] if isinstance(step, int) else holder.setdefault(step, {})
        if value is REMOVED:
            del holder[steps[-1]]
        else:
            holder[steps[-1]] = value
    return obj


def problems(obj, kubernetes="1.37", gates=None):
    return {(problem.path, problem.rule) for problem in validate(obj, kubernetes, gates)}


@pytest.mark.parametrize("obj", [CLASS, CLAIM, TEMPLATE, SLICE, RULE], ids=lambda obj: obj["kind"])
def test_valid_objects_have_no_problems(obj):
    for kubernetes in MINORS:
        for version, kind in versions.SERVED:
            if kind == obj["kind"] and versions.SERVED[version, kind] <= versions.minor_of(kubernetes):
                for gates in ({}, ALL_GATES_ON):
                    assert validate(versions.convert(obj, version), kubernetes, gates) == [], (kubernetes, version)


REQUEST = "spec.devices.requests[0].exactly"
RULES = [
    # object, changed path, new value, path of the problem, rule
    (CLASS, "spec.selectors", [{"cel": {"expression": "true"}}] * 33, "spec.selectors", "too-many"),
    (CLASS, "spec.selectors[0].cel", REMOVED, "spec.selectors[0].cel", "required"),
    (CLASS, "spec.selectors[0].cel.expression", "", "spec.selectors[0].cel.expression", "required"),
    (CLASS, "spec.selectors[0].cel.expression", "t" * 10241, "spec.selectors[0].cel.expression", "too-long"),
    (CLASS, "spec.config", [{"opaque": {"driver": "a", "parameters": {}}}] * 33, "spec.config", "too-many"),
    (CLASS, "spec.config[0].opaque", REMOVED, "spec.config[0].opaque", "required"),
    (CLASS, "spec.config[0].opaque.driver", "", "spec.config[0].opaque.driver", "required"),
    (CLASS, "spec.config[0].opaque.driver", "a_b", "spec.config[0].opaque.driver", "name"),
    (CLASS, "spec.config[0].opaque.parameters", None, "spec.config[0].opaque.parameters", "required"),
    (CLASS, "spec.config[0].opaque.parameters", [], "spec.config[0].opaque.parameters", "type"),
    (CLASS, "spec.config[0].opaque.parameters", {"a": "x" * 10233}, "spec.config[0].opaque.parameters", "too-long"),
    (CLASS, "metadata.name", REMOVED, "metadata.name", "required"),
    (CLASS, "metadata.name", "A", "metadata.name", "name"),
    (CLASS, "metadata.labels", {"a/b/c": "x"}, "metadata.labels", "label"),
    (CLASS, "metadata.labels", {"a": "-"}, "metadata.labels", "label"),
    (CLASS, "metadata.annotations", {"a b": "x"}, "metadata.annotations", "label"),
    (CLASS, "metadata.annotations", {"a": "x" * 262144}, "metadata.annotations", "too-long"),
    (CLASS, "metadata.finalizers", ["a b/c"], "metadata.finalizers", "name"),
    (CLASS, "metadata.finalizers", ["keep"], "metadata.finalizers[0]", "name"),
    (CLASS, "metadata.finalizers", ["orphan", "foregroundDeletion"], "metadata.finalizers", "exactly-one"),
    (CLASS, "spec.surprise", 1, "spec.surprise", "unknown-field"),
    (CLASS, "spec.selectors", {}, "spec.selectors", "type"),
    (CLAIM, "metadata.generateName", "A", "metadata.generateName", "name"),
    (CLAIM, "metadata.namespace", "a.b", "metadata.namespace", "name"),
    (CLAIM, "spec.devices.requests[0].name", "", "spec.devices.requests[0].name", "required"),
    (CLAIM, "spec.devices.requests[0].name", "G", "spec.devices.requests[0].name", "name"),
    (CLAIM, "spec.devices.requests[0].exactly", REMOVED, "spec.devices.requests[0]", "exactly-one"),
    (CLAIM, "spec.devices.requests[1].exactly", {"deviceClassName": "a"}, "spec.devices.requests[1]", "exactly-one"),
    (CLAIM, f"{REQUEST}.deviceClassName", "", f"{REQUEST}.deviceClassName", "required"),
    (CLAIM, f"{REQUEST}.deviceClassName", "a_b", f"{REQUEST}.deviceClassName", "name"),
    (CLAIM, f"{REQUEST}.allocationMode", "Some", f"{REQUEST}.allocationMode", "value"),
    (CLAIM, f"{REQUEST}.count", -1, f"{REQUEST}.count", "value"),
    (CLAIM, f"{REQUEST}.count", "1", f"{REQUEST}.count", "type"),
    (CLAIM, f"{REQUEST}.selectors", [{}], f"{REQUEST}.selectors[0].cel", "required"),
    (CLAIM, f"{REQUEST}.tolerations", [{"key": "a b"}], f"{REQUEST}.tolerations[0].key", "name"),
    (CLAIM, f"{REQUEST}.tolerations", [{"operator": "In"}], f"{REQUEST}.tolerations[0].operator", "value"),
    (
        CLAIM,
        f"{REQUEST}.tolerations",
        [{"operator": "Exists", "value": "a"}],
        f"{REQUEST}.tolerations[0].value",
        "forbidden",
    ),
    (CLAIM, f"{REQUEST}.tolerations", [{"value": "-"}], f"{REQUEST}.tolerations[0].value", "label"),
    (CLAIM, f"{REQUEST}.tolerations", [{"effect": "Never"}], f"{REQUEST}.tolerations[0].effect", "value"),
    (CLAIM, f"{REQUEST}.capacity", {"requests": {"a": "x"}}, f"{REQUEST}.capacity.requests[a]", "quantity"),
    (
        CLAIM,
        "spec.devices.requests[1].firstAvailable[1].count",
        1,
        "spec.devices.requests[1].firstAvailable[1].count",
        "forbidden",
    ),
    (
        CLAIM,
        "spec.devices.requests[1].firstAvailable[1].name",
        "a/b",
        "spec.devices.requests[1].firstAvailable[1].name",
        "name",
    ),
    (
        CLAIM,
        "spec.devices.requests[1].firstAvailable[1].adminAccess",
        True,
        "spec.devices.requests[1].firstAvailable[1].adminAccess",
        "unknown-field",
    ),
    (CLAIM, "spec.devices.constraints[0].matchAttribute", REMOVED, "spec.devices.constraints[0]", "required"),
    (CLAIM, "spec.devices.constraints[0].matchAttribute", "rail", "spec.devices.constraints[0].matchAttribute", "name"),
    (
        CLAIM,
        "spec.devices.constraints[0].requests[0]",
        "cpu",
        "spec.devices.constraints[0].requests[0]",
        "unknown-reference",
    ),
    (
        CLAIM,
        "spec.devices.constraints[0].requests[1]",
        "nic/slow",
        "spec.devices.constraints[0].requests[1]",
        "unknown-reference",
    ),
    (CLAIM, "spec.devices.constraints[0].requests[1]", "gpu", "spec.devices.constraints[0].requests[1]", "duplicate"),
    (CLAIM, "spec.devices.constraints", [{"matchAttribute": "a/b"}] * 33, "spec.devices.constraints", "too-many"),
    (CLAIM, "spec.devices.config[0].requests[0]", "a/b/c", "spec.devices.config[0].requests[0]", "unknown-reference"),
    (
        CLAIM,
        "spec.devices.config[0].requests",
        [f"r{n}" for n in range(33)],
        "spec.devices.config[0].requests",
        "too-many",
    ),
    (TEMPLATE, "spec.metadata.name", "a", "spec.metadata.name", "forbidden"),
    (TEMPLATE, "spec.metadata.finalizers", [], "spec.metadata.finalizers", "forbidden"),
    (TEMPLATE, "spec.metadata.labels", {"a": "-"}, "spec.metadata.labels", "label"),
    (TEMPLATE, "spec.spec.devices.requests[0].name", "G", "spec.spec.devices.requests[0].name", "name"),
    (SLICE, "spec.driver", "", "spec.driver", "required"),
    (SLICE, "spec.pool.name", "a//b", "spec.pool.name", "name"),
    (SLICE, "spec.pool.resourceSliceCount", 0, "spec.pool.resourceSliceCount", "value"),
    (SLICE, "spec.pool.generation", -1, "spec.pool.generation", "value"),
    (SLICE, "spec.nodeName", REMOVED, "spec", "exactly-one"),
    (SLICE, "spec.allNodes", True, "spec", "exactly-one"),
    (SLICE, "spec.allNodes", False, "spec.allNodes", "value"),
    (SLICE, "spec.nodeName", "", "spec.nodeName", "value"),
    (SLICE, "spec.nodeName", "A", "spec.nodeName", "name"),
    (SLICE, "spec.nodeSelector", {"nodeSelectorTerms": [{}]}, "spec", "exactly-one"),
    (SLICE, "spec.devices", [{"name": f"d{n}"} for n in range(129)], "spec.devices", "too-many"),
    (SLICE, "spec.devices[0].name", "A", "spec.devices[0].name", "name"),
    (SLICE, "spec.devices[0].attributes", {f"a{n}": {"int": n} for n in range(40)}, "spec.devices[0]", "too-many"),
    (SLICE, "spec.devices[0].attributes.model", {}, "spec.devices[0].attributes[model]", "exactly-one"),
    (
        SLICE,
        "spec.devices[0].attributes.model",
        {"int": 1, "bool": True},
        "spec.devices[0].attributes[model]",
        "exactly-one",
    ),
    (
        SLICE,
        "spec.devices[0].attributes.model",
        {"string": "x" * 65},
        "spec.devices[0].attributes[model].string",
        "too-long",
    ),
    (
        SLICE,
        "spec.devices[0].attributes.model",
        {"version": "1"},
        "spec.devices[0].attributes[model].version",
        "version",
    ),
    (SLICE, "spec.devices[1].nodeName", "a", "spec.devices[1]", "forbidden"),
    (PER_DEVICE, "spec.devices[1].nodeName", REMOVED, "spec.devices[1]", "exactly-one"),
    (PER_DEVICE, "spec.devices[1].nodeName", "", "spec.devices[1].nodeName", "value"),
    (PER_DEVICE, "spec.devices[1].allNodes", True, "spec.devices[1]", "exactly-one"),
    (SLICE, "spec.devices[1].bindingConditions", ["a"], "spec.devices[1].bindingFailureConditions", "required"),
    (SLICE, "spec.devices[1].bindingFailureConditions", ["a"], "spec.devices[1].bindingConditions", "required"),
    (SLICE, "spec.devices[1].bindingConditions", list("abcde"), "spec.devices[1].bindingConditions", "too-many"),
    (SLICE, "spec.devices[1].taints", [{"key": "a"}], "spec.devices[1].taints[0].effect", "required"),
    (SLICE, "spec.devices[1].taints", [{"effect": "NoExecute"}], "spec.devices[1].taints[0].key", "required"),
    (SLICE, "spec.devices[1].taints", [{"key": "a", "effect": "NoExecute"}] * 17, "spec.devices[1].taints", "too-many"),
    (RULE, "spec.taint.key", "a b", "spec.taint.key", "name"),
    (RULE, "spec.taint.value", "-", "spec.taint.value", "label"),
    (RULE, "spec.taint.effect", "PreferNoSchedule", "spec.taint.effect", "value"),
    (RULE, "spec.taint", REMOVED, "spec.taint.key", "required"),
    (RULE, "spec.deviceSelector.driver", "", "spec.deviceSelector.driver", "required"),
    (RULE, "spec.deviceSelector.pool", "a//b", "spec.deviceSelector.pool", "name"),
    (RULE, "spec.deviceSelector.device", "a.b", "spec.deviceSelector.device", "name"),
    (CLASS, "spec.extendedResourceName", "gpu", "spec.extendedResourceName", "name"),
]


@pytest.mark.parametrize("obj, path, value, reported_path, rule", RULES)
def test_each_broken_rule_is_reported_at_its_path(obj, path, value, reported_path, rule):
    wrong = change(obj, (path, value))
    for kubernetes in MINORS:
        if versions.SERVED[obj["apiVersion"], obj["kind"]] <= versions.minor_of(kubernetes):
            assert (reported_path, rule) in problems(wrong, kubernetes, ALL_GATES_ON), kubernetes


@pytest.mark.parametrize(
    "path, count",
    [("spec.devices.requests", 32), ("spec.devices.constraints", 32), ("spec.devices.config", 32)],
)
def test_lists_may_reach_their_limit_but_not_exceed_it(path, count):
    entries = {
        "requests": [{"name": f"r{n}", "exactly": {"deviceClassName": "a"}} for n in range(count + 1)],
        "constraints": [{"matchAttribute": "a/b"}] * (count + 1),
        "config": [{"opaque": {"driver": "a", "parameters": {}}}] * (count + 1),
    }[path.rsplit(".", 1)[1]]
    empty = ("spec.devices", {})
    assert problems(change(CLAIM, empty, (path, entries[:count]))) == set()
    assert problems(change(CLAIM, empty, (path, entries))) == {(path, "too-many")}


def test_alternatives_are_at_most_eight_with_different_names():
    subs = [{"name": f"s{n}", "deviceClassName": "a"} for n in range(9)]
    path = "spec.devices.requests[1].firstAvailable"
    no_constraints = ("spec.devices.constraints", [])
    assert problems(change(CLAIM, no_constraints, (path, subs[:8]))) == set()
    assert problems(change(CLAIM, no_constraints, (path, subs))) == {(path, "too-many")}
    assert problems(change(CLAIM, no_constraints, (path, [subs[0], subs[0]]))) == {(f"{path}[1]", "duplicate")}


@pytest.mark.parametrize("text, valid", [("x" * 64, True), ("x" * 65, False), ("ü" * 32, True), ("ü" * 33, False)])
def test_attribute_text_is_counted_in_bytes(text, valid):
    assert (not validate(change(SLICE, ("spec.devices[0].attributes.model.string", text)))) is valid


def test_opaque_parameters_may_have_10_kib():
    assert problems(change(CLASS, ("spec.config[0].opaque.parameters", {"a": "x" * 10232}))) == set()


def test_opaque_parameters_are_json():
    """YAML reads a date as an object of its own."""
    path = "spec.config[0].opaque.parameters"
    assert problems(change(CLASS, (path, {"a": datetime.date(2026, 1, 1)}))) == {(path, "type")}


POLICY = "spec.devices[0].capacity.bandwidth.requestPolicy"
REPORTED_POLICY = "spec.devices[0].capacity[bandwidth].requestPolicy"


@pytest.mark.parametrize(
    "policy, faults",
    [
        ({}, []),
        ({"default": "3"}, []),
        ({"default": "4", "validValues": ["2", "4", "16"]}, []),
        ({"default": "4000m", "validValues": ["2", "4"]}, []),
        ({"validValues": ["2"]}, [("default", "required")]),
        ({"default": "3", "validValues": ["2", "4"]}, [("validValues", "value")]),
        ({"default": "4", "validValues": ["4", "2"]}, [("validValues[1]", "order")]),
        ({"default": "4", "validValues": ["4", "17"]}, [("validValues[1]", "value")]),
        ({"default": "2", "validValues": ["2", "2"]}, [("validValues[1]", "duplicate")]),
        ({"default": "1", "validValues": ["500m", "1"]}, [("validValues[1]", "duplicate")]),
        ({"default": "1", "validValues": [str(n) for n in range(11)]}, [("validValues", "too-many")]),
        ({"default": "2", "validValues": ["2"], "validRange": {"min": "1"}}, [("", "exactly-one")]),
        ({"validRange": {"min": "1"}}, [("default", "required")]),
        ({"default": "4", "validRange": {}}, [("validRange.min", "required")]),
        ({"default": "4", "validRange": {"min": "2", "max": "16", "step": "2"}}, []),
        ({"default": "1", "validRange": {"min": "2"}}, [("validRange.default", "value")]),
        ({"default": "9", "validRange": {"min": "2", "max": "8"}}, [("validRange.default", "value")]),
        ({"default": "4", "validRange": {"min": "2", "max": "17"}}, [("validRange.max", "value")]),
        ({"default": "4", "validRange": {"min": "4", "max": "4", "step": "13"}}, [("validRange.step", "value")]),
        ({"default": "4", "validRange": {"min": "2", "step": "0"}}, [("validRange.step", "value")]),
        ({"default": "4", "validRange": {"min": "2", "step": "-2"}}, [("validRange.step", "value")]),
        ({"default": "5", "validRange": {"min": "2", "step": "2"}}, [("validRange.step", "value")]),
        ({"default": "4", "validRange": {"min": "2", "max": "5", "step": "2"}}, [("validRange.step", "value")]),
        ({"default": "4", "validRange": {"min": "-2", "step": "2"}}, [("validRange.min", "value")]),
    ],
)
def test_request_policies_are_validated(policy, faults):
    expected = {(f"{REPORTED_POLICY}.{path}".rstrip("."), rule) for path, rule in faults}
    assert problems(change(SLICE, (POLICY, policy))) == expected
    assert problems(change(SLICE, (POLICY, policy), ("spec.devices[0].allowMultipleAllocations", False))) == {
        (REPORTED_POLICY, "forbidden")
    }


def test_fractional_policies_are_valid_if_their_gate_is_on():
    gates = {"DRAFractionalCapacityRange": True}
    values = change(SLICE, (POLICY, {"default": "1", "validValues": ["500m", "1"]}))
    assert problems(values, gates=gates) == set()
    steps = {"default": "1500m", "validRange": {"min": "500m", "max": "2500m", "step": "500m"}}
    assert problems(change(SLICE, (POLICY, steps)), gates=gates) == set()
    assert problems(change(SLICE, (POLICY, {**steps, "default": "1600m"})), gates=gates) == {
        (f"{REPORTED_POLICY}.validRange.step", "value")
    }
    assert problems(change(SLICE, (POLICY, {**steps, "default": "1500001u"})), gates=gates) == {
        (f"{REPORTED_POLICY}.validRange.default", "value")
    }


def test_a_step_of_zero_is_refused_by_every_release():
    policy = {"default": "4", "validRange": {"min": "2", "step": "0"}}
    for kubernetes in MINORS:
        assert (f"{REPORTED_POLICY}.validRange.step", "value") in problems(
            change(SLICE, (POLICY, policy)), kubernetes, ALL_GATES_ON
        )


def test_node_selectors_are_validated():
    without_node = change(SLICE, ("spec.nodeName", REMOVED))

    def terms(**term):
        return problems(change(without_node, ("spec.nodeSelector", {"nodeSelectorTerms": [term]})))

    path = "spec.nodeSelector.nodeSelectorTerms"
    assert terms(matchExpressions=[{"key": "a", "operator": "Exists"}]) == set()
    assert terms(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]) == set()
    requirement_path = f"{path}[0].matchExpressions[0]"
    for requirement, fault in [
        ({"key": "a", "operator": "In"}, (f"{requirement_path}.values", "required")),
        ({"key": "a", "operator": "Exists", "values": ["x"]}, (f"{requirement_path}.values", "forbidden")),
        ({"key": "a", "operator": "Gt", "values": ["1", "2"]}, (f"{requirement_path}.values", "required")),
        ({"key": "a", "operator": "Is"}, (f"{requirement_path}.operator", "value")),
        ({"key": "a b", "operator": "Exists"}, (f"{requirement_path}.key", "name")),
        ({"key": "a", "operator": "In", "values": ["-"]}, (f"{requirement_path}.values[0]", "label")),
    ]:
        assert terms(matchExpressions=[requirement]) == {fault}
    requirement_path = f"{path}[0].matchFields[0]"
    for requirement, fault in [
        ({"key": "metadata.name", "operator": "In", "values": ["a", "b"]}, (f"{requirement_path}.values", "required")),
        ({"key": "metadata.name", "operator": "Exists"}, (f"{requirement_path}.operator", "value")),
        ({"key": "spec.x", "operator": "In", "values": ["a"]}, (f"{requirement_path}.key", "value")),
        ({"key": "metadata.name", "operator": "In", "values": ["A"]}, (f"{requirement_path}.values[0]", "name")),
    ]:
        assert terms(matchFields=[requirement]) == {fault}
    assert problems(change(without_node, ("spec.nodeSelector", {}))) == {(path, "required")}
    two_terms = {"nodeSelectorTerms": [{}, {}]}
    assert problems(change(without_node, ("spec.nodeSelector", two_terms))) == {(path, "exactly-one")}
    per_device = change(PER_DEVICE, ("spec.devices[0].nodeName", REMOVED), ("spec.devices[0].nodeSelector", two_terms))
    assert problems(per_device) == set(), "a device may have several terms"


def test_a_slice_with_taints_or_lists_has_at_most_64_devices():
    def devices(count, **more):
        return change(SLICE, ("spec.devices", [{"name": f"d{n}", **(more if not n else {})} for n in range(count)]))

    taints = [{"key": "a", "effect": "NoSchedule"}]
    assert problems(devices(128)) == set()
    assert problems(devices(64, taints=taints)) == set()
    assert problems(devices(65, taints=taints)) == {("spec.devices", "too-many")}
    assert problems(devices(128, taints=taints), "1.34", ALL_GATES_ON) == set()
    lists = {"a": {"ints": [1]}}
    assert problems(devices(65, attributes=lists), gates=ALL_GATES_ON) == {("spec.devices", "too-many")}


def test_counters_are_validated():
    assert problems(CONSUMED_COUNTERS) == problems(SHARED_COUNTERS) == set()
    assert problems(BOTH_COUNTERS) == {("spec", "exactly-one")}
    assert problems(BOTH_COUNTERS, "1.34", ALL_GATES_ON) == set()
    consumed = "spec.devices[0].consumesCounters"
    unknown_set = {(f"{consumed}[0].counterSet", "unknown-reference")}
    assert problems(CONSUMED_COUNTERS, "1.34", ALL_GATES_ON) == unknown_set
    without_memory = change(BOTH_COUNTERS, (f"{consumed}[0].counters", {"cores": {"value": "1"}}))
    assert problems(without_memory, "1.34", ALL_GATES_ON) == {(f"{consumed}[0].counters", "unknown-reference")}
    consumption = CONSUMED_COUNTERS["spec"]["devices"][0]["consumesCounters"][0]
    assert problems(change(CONSUMED_COUNTERS, (consumed, [consumption, consumption]))) == {
        (f"{consumed}[1]", "duplicate")
    }
    three = [{**consumption, "counterSet": name} for name in "abc"]
    assert problems(change(CONSUMED_COUNTERS, (consumed, three))) == {(consumed, "too-many")}
    many = {f"c{n}": {"value": "1"} for n in range(33)}
    assert problems(change(CONSUMED_COUNTERS, (f"{consumed}[0].counters", many))) == {
        (f"{consumed}[0].counters", "too-many")
    }
    assert problems(change(CONSUMED_COUNTERS, (f"{consumed}[0].counters", {}))) == {
        (f"{consumed}[0].counters", "required")
    }
    assert problems(change(CONSUMED_COUNTERS, (f"{consumed}[0].counterSet", "A"))) == {
        (f"{consumed}[0].counterSet", "name")
    }
    shared = "spec.sharedCounters"
    assert problems(change(SHARED_COUNTERS, (f"{shared}[0].name", "A"))) == {(f"{shared}[0].name", "name")}
    assert problems(change(SHARED_COUNTERS, (f"{shared}[0].counters", {"A": {"value": "1"}}))) == {
        (f"{shared}[0].counters", "name")
    }
    assert problems(change(SHARED_COUNTERS, (f"{shared}[0].counters", many))) == {(f"{shared}[0].counters", "too-many")}
    sets = [{"name": f"s{n}", "counters": {"a": {"value": "1"}}} for n in range(9)]
    assert problems(change(SHARED_COUNTERS, (shared, sets))) == {(shared, "too-many")}
    assert problems(change(SHARED_COUNTERS, (shared, [sets[0], sets[0]]))) == {(f"{shared}[1]", "duplicate")}


def test_counter_limits_of_1_34():
    many = {f"c{n}": {"value": "1"} for n in range(33)}
    wrong = problems(change(BOTH_COUNTERS, ("spec.sharedCounters[0].counters", many)), "1.34", ALL_GATES_ON)
    assert ("spec.sharedCounters", "too-many") in wrong
    consumed = ("spec.devices[0].consumesCounters[0].counters", many)
    assert ("spec.devices[0]", "too-many") in problems(change(BOTH_COUNTERS, consumed), "1.34", ALL_GATES_ON)
    counters = {f"c{n}": {"value": "1"} for n in range(32)}
    device = {"consumesCounters": [{"counterSet": "board", "counters": counters}]}
    edits = (
        ("spec.sharedCounters[0].counters", counters),
        ("spec.devices", [{"name": f"d{n}", **device} for n in range(33)]),
    )
    assert problems(change(BOTH_COUNTERS, *edits), "1.34", ALL_GATES_ON) == {("spec.devices", "too-many")}


def test_effect_none_is_valid_from_1_35_on():
    rule = change(RULE, ("spec.taint.effect", "None"), ("apiVersion", versions.V1ALPHA3))
    assert problems(rule, "1.34") == {("spec.taint.effect", "value")}
    assert problems(rule, "1.35") == set()


def test_duplicates_are_reported_at_the_same_path_as_by_the_server():
    twice = change(
        CLAIM, ("spec.devices.requests[1].name", "gpu"), ("spec.devices.constraints", []), ("spec.devices.config", [])
    )
    assert problems(twice, "1.34") == {("spec.devices.requests[1].name", "duplicate")}
    assert problems(twice, "1.37") == {("spec.devices.requests[1]", "duplicate")}


def test_paths_follow_the_version_of_the_api():
    wrong = change(CLAIM, (f"{REQUEST}.deviceClassName", "a_b"))
    flat = versions.convert(wrong, versions.V1BETA1)
    assert problems(flat) == {("spec.devices.requests[0].deviceClassName", "name")}
    device = versions.convert(change(SLICE, ("spec.devices[0].attributes.model", {})), versions.V1BETA1)
    assert problems(device) == {("spec.devices[0].basic.attributes[model]", "exactly-one")}


def test_fields_whose_gate_is_off_are_not_validated():
    wrong = change(CLASS, ("spec.extendedResourceName", "gpu"))
    assert problems(wrong, "1.34") == set()
    assert problems(wrong, "1.34", {"DRAExtendedResource": True}) == {("spec.extendedResourceName", "name")}
    assert problems(wrong, "1.37", {"DRAExtendedResource": False}) == {("spec.extendedResourceName", "name")}
    device = {"name": "a", "taints": [{"key": ""}], "attributes": {"a": {"ints": [1]}}}
    assert problems(change(SLICE, ("spec.devices", [device])), "1.37", {"DRADeviceTaints": False}) == {
        ("spec.devices[0].attributes[a]", "exactly-one")
    }


def test_distinct_attributes_are_validated():
    path = "spec.devices.constraints"
    assert problems(change(CLAIM, (path, [{"distinctAttribute": "a/b"}]))) == set()
    bad = [{"matchAttribute": "a/b", "distinctAttribute": "b"}]
    assert problems(change(CLAIM, (path, bad))) == {(f"{path}[0].distinctAttribute", "name")}
    assert problems(change(CLAIM, (path, bad)), "1.36") == set()
    off = {"DRAConsumableCapacity": False}
    assert problems(change(CLAIM, (path, [{"distinctAttribute": "a/b"}])), gates=off) == {
        (f"{path}[0].matchAttribute", "required")
    }
    assert problems(change(CLAIM, (path, [{"distinctAttribute": "a/b"}])), "1.34") == set()


def test_list_attributes_are_validated():
    path = "spec.devices[0].attributes.model"
    reported_path = "spec.devices[0].attributes[model]"
    gates = {"DRAListTypeAttributes": True}
    assert problems(change(SLICE, (path, {"strings": ["a", "b"]})), gates=gates) == set()
    assert problems(change(SLICE, (path, {"strings": []})), gates=gates) == {(f"{reported_path}.strings", "value")}
    assert problems(change(SLICE, (path, {"strings": ["x" * 65]})), gates=gates) == {
        (f"{reported_path}.strings[0]", "too-long")
    }
    assert problems(change(SLICE, (path, {"versions": ["1"]})), gates=gates) == {
        (f"{reported_path}.versions[0]", "version")
    }
    assert problems(change(SLICE, (path, {"ints": list(range(48))})), gates=gates) == {("spec.devices[0]", "too-many")}
    assert problems(change(SLICE, (path, {"ints": [1]})), "1.35", gates) >= {(f"{reported_path}.ints", "unknown-field")}


def test_derived_attributes_are_validated():
    gates = {"DRADerivedAttributes": True}
    path = f"{REQUEST}.derivedAttributes"
    good = {"name": "resource.kubernetes.io/pcieRoot", "expression": "device.driver"}
    assert problems(change(CLAIM, (path, [good])), gates=gates) == set()
    for attribute, fault in [
        ({**good, "name": "a/b"}, (f"{path}[0].name", "unknown-reference")),
        ({**good, "name": "a"}, (f"{path}[0].name", "name")),
        ({"name": good["name"]}, (f"{path}[0].expression", "required")),
        ({**good, "expression": "x" * 10241}, (f"{path}[0].expression", "too-long")),
    ]:
        assert problems(change(CLAIM, (path, [attribute])), gates=gates) == {fault}
    assert problems(change(CLAIM, (path, [good, good])), gates=gates) == {(f"{path}[1]", "duplicate")}
    elsewhere = change(CLAIM, (path, [good]), ("spec.devices.constraints[0].requests", ["nic"]))
    assert problems(elsewhere, gates=gates) == {(f"{path}[0].name", "unknown-reference")}


def test_fields_of_slices_with_alpha_gates_are_validated():
    def faults(obj, *edits):
        return problems(change(obj, *edits), gates=ALL_GATES_ON)

    groups = "spec.devices[0].consumesCounters[0].compatibilityGroups"
    assert faults(CONSUMED_COUNTERS, (groups, ["a", "b"])) == set()
    assert faults(CONSUMED_COUNTERS, (groups, ["a", "b", "c"])) == {(groups, "too-many")}
    assert faults(CONSUMED_COUNTERS, (groups, ["a", "a"])) == {(f"{groups}[1]", "duplicate")}
    assert faults(CONSUMED_COUNTERS, (groups, ["A"])) == {(f"{groups}[0]", "name")}
    skip = "spec.skipNodeOperations"
    assert faults(SLICE, (skip, ["*"])) == faults(SLICE, (skip, ["NodeUnprepareResources"])) == set()
    assert faults(SLICE, (skip, ["NodePrepareResources"])) == {(skip, "value")}
    assert faults(SLICE, (skip, ["x"])) == {(f"{skip}[0]", "value")}
    assert faults(SLICE, (skip, ["*", "*"])) == {(f"{skip}[1]", "duplicate")}
    partition = "spec.partitionTypeAttribute"
    assert faults(SLICE, (partition, "a.b/c")) == {(partition, "forbidden")}
    assert faults(CONSUMED_COUNTERS, (partition, "c")) == {(partition, "name")}
    required_kind = ("spec.devices[0].attributes[lanewise.dev/kind]", "required")
    assert faults(CONSUMED_COUNTERS, (partition, "lanewise.dev/kind")) == {required_kind}
    attributes = "spec.devices[0].attributes"
    assert faults(CONSUMED_COUNTERS, (partition, "lanewise.dev/kind"), (attributes, {"kind": {"string": "a"}})) == set()
    assert faults(CONSUMED_COUNTERS, (partition, "lanewise.dev/kind"), (attributes, {"kind": {"int": 1}})) == {
        required_kind
    }


def test_node_resources_are_validated():
    path, reported_path = "spec.devices[0].nodeAllocatableResources", "spec.devices[0].nodeAllocatableResources[cpu]"

    def faults(entry, name="cpu"):
        return problems(change(SLICE, (path, {name: entry})), gates=ALL_GATES_ON)

    assert faults({"mapping": {"deviceMultiplier": "2"}}) == set()
    assert faults({"mapping": {"capacityKey": "bandwidth", "capacityMultiplier": "2"}}) == set()
    assert faults({"overhead": {"perPod": "1"}}, "hugepages-2Mi") == set()
    assert faults({"overhead": {"perPod": "1"}}, "pods") == {(reported_path.replace("cpu", "pods"), "name")}
    assert faults({}) == {(reported_path, "exactly-one")}
    assert faults({"mapping": {}}) == {(f"{reported_path}.mapping", "exactly-one")}
    assert faults({"mapping": {"deviceMultiplier": "0"}}) == {(f"{reported_path}.mapping.deviceMultiplier", "value")}
    assert faults({"mapping": {"capacityKey": "bandwidth"}}) == {
        (f"{reported_path}.mapping.capacityMultiplier", "required")
    }
    unknown = {"capacityKey": "x", "capacityMultiplier": "1"}
    assert faults({"mapping": unknown}) == {(f"{reported_path}.mapping.capacityKey", "unknown-reference")}
    assert faults({"overhead": {}}) == {(f"{reported_path}.overhead", "exactly-one")}
    assert faults({"overhead": {"perContainer": "-1"}}) == {(f"{reported_path}.overhead.perContainer", "value")}


def test_node_resources_of_1_36_are_validated():
    path, reported_path = (
        "spec.devices[0].nodeAllocatableResourceMappings",
        "spec.devices[0].nodeAllocatableResourceMappings[cpu]",
    )

    def faults(entry, name="cpu"):
        return problems(change(SLICE, (path, {name: entry})), "1.36", ALL_GATES_ON)

    assert faults({"allocationMultiplier": "2"}) == faults({"capacityKey": "bandwidth"}) == set()
    assert faults({}) == {(reported_path, "exactly-one")}
    assert faults({"allocationMultiplier": "0"}) == {(f"{reported_path}.allocationMultiplier", "value")}
    assert faults({"capacityKey": "x"}) == {(f"{reported_path}.capacityKey", "unknown-reference")}
    assert faults({"allocationMultiplier": "2"}, "example.com/x") == {
        (reported_path.replace("cpu", "example.com/x"), "name")
    }
    assert problems(change(SLICE, (path, {"cpu": {}})), "1.37", ALL_GATES_ON) == {(path, "unknown-field")}


def test_binding_conditions_are_validated():
    device = "spec.devices[1]"
    both = (f"{device}.bindingConditions", ["a", "b"]), (f"{device}.bindingFailureConditions", ["c"])
    assert problems(change(SLICE, *both)) == set()
    overlap = change(SLICE, both[0], (both[1][0], ["a"]))
    assert problems(overlap) == {(f"{device}.bindingFailureConditions[0]", "duplicate")}
    twice = change(SLICE, (both[0][0], ["a", "a"]), both[1])
    assert problems(twice) == {(f"{device}.bindingConditions[1]", "duplicate")}


def test_generated_names_are_validated():
    def faults(prefix, kind=None, kubernetes="1.37"):
        return {
            path
            for path, _unused in problems(change(kind or CLAIM, ("metadata", {"generateName": prefix})), kubernetes)
        }

    assert faults("gpu-") == faults("gpu.a-") == faults("x" * 100) == set()
    assert faults("-") == {"metadata.generateName", "metadata.name"}
    assert faults("x" * 254) == {"metadata.generateName"}
    assert faults("x" * 254, CLASS) == set(), "the server truncates the prefix and validates the result"
    assert faults("x" * 254, CLASS, "1.34") == {"metadata.generateName"}
    assert faults("a/b", CLASS) == {"metadata.generateName", "metadata.name"}


def test_owners_are_validated():
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "1", "controller": True}
    path = "metadata.ownerReferences"
    assert problems(change(SLICE, (path, [owner]))) == set()
    assert problems(change(SLICE, (path, [owner, owner]))) == {(path, "exactly-one")}
    for name in ("apiVersion", "kind", "name", "uid"):
        assert problems(change(SLICE, (path, [{**owner, name: ""}]))) == {(f"{path}[0].{name}", "required")}
    assert problems(change(SLICE, (path, [{**owner, "apiVersion": "a/b/c"}]))) == {(f"{path}[0].apiVersion", "value")}
    assert problems(change(SLICE, (path, [{**owner, "kind": "Event"}]))) == {(f"{path}[0]", "forbidden")}


def test_selectors_are_checked_by_the_engine():
    class Engine:
        def check(self, expression):
            return [f"no {expression}"] if "wrong" in expression else []

    wrong = change(
        CLAIM, (f"{REQUEST}.selectors", [{"cel": {"expression": "wrong"}}, {"cel": {"expression": "right"}}])
    )
    assert [str(problem) for problem in validate(wrong, cel=Engine())] == [
        f"{REQUEST}.selectors[0].cel.expression: no wrong"
    ]


@pytest.mark.parametrize("kind", ["Pod", "DeviceTaintRule", "", None, 5, [], {}])
def test_kinds_that_are_not_served_are_reported(kind):
    assert problems({"apiVersion": versions.V1, "kind": kind}, "1.36") == {("apiVersion", "unserved")}


@pytest.mark.parametrize("kubernetes", ["1.33", "", "latest"])
def test_invalid_releases_are_refused(kubernetes):
    with pytest.raises(ValueError):
        validate(CLAIM, kubernetes)


def test_after_a_wrong_type_no_other_problem_is_reported():
    wrong = change(CLAIM, ("spec.devices.requests[0].name", 5), ("spec.devices.requests[1].name", "A"))
    assert problems(wrong) == {("spec.devices.requests[0].name", "type")}


def test_validation_does_not_change_the_object():
    for obj in (versions.convert(SLICE, versions.V1BETA1), CLAIM, TEMPLATE):
        before = copy.deepcopy(obj)
        validate(obj, "1.34")
        assert obj == before


def test_a_thousand_templates_take_less_than_a_second():
    start = time.process_time()
    for _unused in range(1000):
        assert not validate(TEMPLATE)
    assert time.process_time() - start < 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted({n for s in schema.STRUCTS.values() for n in s})), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(JSON, JSON, st.sampled_from(sorted(versions.SERVED)), st.sampled_from(MINORS), st.booleans())
def test_any_object_can_be_validated(metadata, spec, served, kubernetes, all_gates):
    version, kind = served
    obj = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    for problem in validate(obj, kubernetes, ALL_GATES_ON if all_gates else None):
        assert problem.path and problem.message and problem.rule


@given(st.integers(0, 40), st.integers(0, 12), st.integers(-2, 3))
def test_numbers_of_requests_alternatives_and_devices_are_bounded(request_count, subs, count):
    alternatives = [{"name": f"s{n}", "deviceClassName": "a"} for n in range(subs)]
    requests = [{"name": f"r{n}", "firstAvailable": alternatives} for n in range(request_count)]
    for request in requests[::2]:
        del request["firstAvailable"]
        request["exactly"] = {"deviceClassName": "a", "count": count}
    valid = request_count <= 32 and (request_count < 1 or count >= 0) and (request_count < 2 or 1 <= subs <= 8)
    assert (not validate(change(CLAIM, ("spec.devices", {"requests": requests})))) is valid
