# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of Kueue's configuration that queues need: merged into a configuration, and compared with one."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.reader import Reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.configuration import (
    conflicts,
    differences,
    fragment,
    merged,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.language import parse

OLD = "config.kueue.x-k8s.io/v1beta1"
QUEUES: Object = {
    "queues_resources": [{"name": "gpus", "classes": ["gpu"]}, {"name": "nics", "classes": ["rdma"]}],
    "queues_teams": [{"name": "red", "namespaces": ["red"], "guaranteed": {"gpus": 6}, "weight": 2}],
}
REQUIRED = fragment(parse(QUEUES, Reader(), "lab"))


def test_differences_from_the_running_configuration_are_reported() -> None:
    assert differences(REQUIRED, merged({}, REQUIRED)) == []
    assert differences(REQUIRED, {}) == [
        "resources.deviceClassMappings[lanewise.dev/gpus] is missing",
        "resources.deviceClassMappings[lanewise.dev/nics] is missing",
        *(
            f"resources.excludeResourcePrefixes lacks {name}: pods that request it are not admitted"
            for name in ("cpu", "memory", "ephemeral-storage")
        ),
        "fairSharing is missing: the weights of teams have no effect",
    ]
    other = {"name": "example.com/gpus", "deviceClassNames": ["gpu"]}
    running = merged(
        {"resources": {"deviceClassMappings": [other]}, "featureGates": {"KueueDRAIntegration": False}}, {}
    )
    lines = differences(
        REQUIRED, merged(running, {"resources": {"deviceClassMappings": REQUIRED["resources"]["deviceClassMappings"]}})
    )
    problem = "has class gpu, which queues_resources maps too: Kueue does not start with both mappings"
    assert f"resources.deviceClassMappings[example.com/gpus] {problem}" in lines
    assert any(line.startswith("featureGates.KueueDRAIntegration is not true") for line in lines)


def _mapping(name: str, counter: str = "", *classes: str) -> Object:
    mapping: Object = {"name": name, "deviceClassNames": list(classes or ("gpu-partition",))}
    if counter:
        selector = {"cel": {"expression": "true"}}
        mapping["sources"] = [{"counter": {"name": counter, "driver": "gpu.nvidia.com", "deviceSelector": selector}}]
    return mapping


def _mapped(*mappings: Object, **fields: t.Any) -> Object:
    """A Configuration with device class mappings and other fields of `resources`."""
    return {"resources": {"deviceClassMappings": list(mappings), **fields}}


def test_mappings_with_different_counters_can_share_a_class() -> None:
    ours = _mapped(_mapping("lanewise.dev/memory", "memory"), _mapping("lanewise.dev/gpus", "", "gpu"))
    assert conflicts(ours, _mapped(_mapping("example.com/engines", "copy-engines"))) == []
    for counter in ("memory", ""):
        assert conflicts(ours, _mapped(_mapping("example.com/gpus", counter))) == [
            "resources.deviceClassMappings[example.com/gpus] has class gpu-partition, which queues_resources maps too: "
            "Kueue does not start with both mappings"
        ]
    assert conflicts(ours, _mapped(_mapping("example.com/gpus", "copy-engines", "gpu-partition", "gpu")))
    assert conflicts(_mapped(_mapping("lanewise.dev/memory")), _mapped(_mapping("example.com/gpus", "memory")))
    assert conflicts(ours, _mapped(_mapping("lanewise.dev/memory"))) == []  # replaced by ours


def test_more_mappings_than_kueue_accepts_are_a_conflict() -> None:
    ours = _mapped(_mapping("lanewise.dev/gpus", "", "gpu"), _mapping("lanewise.dev/nics", "", "rdma"))
    others = [_mapping(f"example.com/{number}", "", f"class-{number}") for number in range(15)]
    replaced = _mapping("lanewise.dev/nics", "", "old")
    assert conflicts(ours, _mapped(*others[:14], replaced)) == []
    assert conflicts(ours, _mapped(*others, replaced)) == [
        "resources.deviceClassMappings has 15 other mappings, and the queues need 2: Kueue accepts at most 16"
    ]


def test_the_version_of_the_running_configuration_is_respected() -> None:
    old: Object = {"apiVersion": "config.kueue.x-k8s.io/v1beta1"}
    assert conflicts(REQUIRED, old) == []
    (line,) = conflicts(_mapped(_mapping("lanewise.dev/memory", "memory")), old)
    assert line.startswith("apiVersion config.kueue.x-k8s.io/v1beta1 has no sources of device class mappings")
    (line,) = conflicts(REQUIRED, {"apiVersion": "config.kueue.x-k8s.io/v1alpha1"})
    assert line.startswith("apiVersion config.kueue.x-k8s.io/v1alpha1 is unknown to Kueue 0.19")
    whole = merged({**old, "fairSharing": {"enable": False}}, REQUIRED)
    assert whole["fairSharing"]["enable"] is True and differences(REQUIRED, whole) == []


@pytest.mark.parametrize("disabled", [{"enable": False}, {"preemptionStrategies": ["LessThanInitialShare"]}])
def test_disabled_fair_sharing_is_a_difference(disabled: Object) -> None:
    running = merged({"apiVersion": "config.kueue.x-k8s.io/v1beta1"}, REQUIRED)
    assert differences(REQUIRED, {**running, "fairSharing": disabled}) == [
        "fairSharing.enable is not true: the weights of teams have no effect"
    ]


def test_a_field_of_v1beta1_in_a_configuration_of_v1beta2_is_a_conflict() -> None:
    assert conflicts(REQUIRED, {"fairSharing": {"enable": False}}) == [
        "fairSharing.enable does not exist in config.kueue.x-k8s.io/v1beta2: remove it"
    ]


def test_no_prefixes_are_added_if_undeclared_resources_are_ignored() -> None:
    running: Object = {"resources": {"quotaCheckStrategy": "IgnoreUndeclared"}}
    whole = merged(running, REQUIRED)
    assert "excludeResourcePrefixes" not in whole["resources"] and whole["resources"]["deviceClassMappings"]
    assert differences(REQUIRED, whole) == [] and conflicts(REQUIRED, running) == []
    running["resources"]["excludeResourcePrefixes"] = ["cpu"]
    (line,) = conflicts(REQUIRED, running)
    assert line.startswith("resources.excludeResourcePrefixes is set together with quotaCheckStrategy")
    running["featureGates"] = {"QuotaCheckStrategy": False}  # Kueue does not use the strategy
    assert conflicts(REQUIRED, running) == []
    assert merged(running, REQUIRED)["resources"]["excludeResourcePrefixes"] == ["cpu", "memory", "ephemeral-storage"]


def test_other_parts_of_the_base_configuration_are_kept() -> None:
    base = {
        "webhook": {"port": 9443},
        "featureGates": {"Other": True},
        "resources": {"deviceClassMappings": [{"name": "old", "deviceClassNames": ["old"]}], "transformations": [1]},
    }
    whole = merged(base, REQUIRED)
    assert whole["webhook"] == {"port": 9443} and whole["featureGates"] == {"Other": True, "KueueDRAIntegration": True}
    assert [mapping["name"] for mapping in whole["resources"]["deviceClassMappings"]][0] == "old"
    assert whole["resources"]["transformations"] == [1] and merged(whole, REQUIRED) == whole


@pytest.mark.parametrize("version", [{}, {"apiVersion": OLD}])
def test_the_preemption_strategies_of_the_base_configuration_are_kept(version: Object) -> None:
    strategies = ["LessThanInitialShare"]
    whole = merged({**version, "fairSharing": {"preemptionStrategies": strategies}}, REQUIRED)
    assert whole["fairSharing"]["preemptionStrategies"] == strategies
    assert differences(REQUIRED, whole) == [] and merged(whole, REQUIRED) == whole
    for fair_sharing in ({}, {"preemptionStrategies": []}, None):  # Kueue needs some
        whole = merged({**version, "fairSharing": fair_sharing}, REQUIRED)
        assert whole["fairSharing"]["preemptionStrategies"] == REQUIRED["fairSharing"]["preemptionStrategies"]


def test_preemption_strategies_that_kueue_does_not_accept_are_a_conflict() -> None:
    base = {"fairSharing": {"preemptionStrategies": ["LessThanInitialShare", "LessThanOrEqualToFinalShare"]}}
    (line,) = conflicts(REQUIRED, base)
    assert line.startswith("fairSharing.preemptionStrategies is LessThanInitialShare, LessThanOrEqualToFinalShare:")
    assert conflicts({"resources": {}}, base) == []  # not a part that the queues need


@pytest.mark.parametrize(
    "malformed, path",
    [
        ({"resources": []}, "resources is not a mapping"),
        ({"featureGates": "x"}, "featureGates is not a mapping"),
        ({"fairSharing": True}, "fairSharing is not a mapping"),
        ({"resources": {"deviceClassMappings": [1, None]}}, "resources.deviceClassMappings is not a list of mappings"),
        ({"resources": {"deviceClassMappings": {}}}, "resources.deviceClassMappings is not a list of mappings"),
        (
            {"resources": {"deviceClassMappings": [{"name": "a", "deviceClassNames": 5}]}},
            "resources.deviceClassMappings[a].deviceClassNames is not a list of strings",
        ),
        (
            {"resources": {"excludeResourcePrefixes": "cpu"}},
            "resources.excludeResourcePrefixes is not a list of strings",
        ),
        ({"fairSharing": {"preemptionStrategies": [1]}}, "fairSharing.preemptionStrategies is not a list of strings"),
    ],
)
def test_a_malformed_configuration_is_a_conflict(malformed: Object, path: str) -> None:
    lines = [f"{path}: Kueue does not start with it"]
    assert conflicts(REQUIRED, malformed) == lines and differences(REQUIRED, malformed) == lines
