# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Conversion of objects between the versions of resource.k8s.io, and releases of Kubernetes."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.dra_objects import CLAIM, SLICE, template


def test_requests_have_no_exactly_field_in_v1beta1():
    before = copy.deepcopy(CLAIM)
    flat = versions.convert(CLAIM, versions.V1BETA1)
    assert CLAIM == before
    assert flat["apiVersion"] == versions.V1BETA1
    assert flat["spec"]["devices"]["requests"][0] == {
        "name": "gpu",
        **CLAIM["spec"]["devices"]["requests"][0]["exactly"],
    }
    assert flat["spec"]["devices"]["requests"][1] == CLAIM["spec"]["devices"]["requests"][1]
    assert versions.convert(flat, versions.V1) == CLAIM


def test_devices_of_slices_have_a_basic_field_in_v1beta1():
    converted = versions.convert(SLICE, versions.V1BETA1)
    nic = {name: value for name, value in SLICE["spec"]["devices"][0].items() if name != "name"}
    assert converted["spec"]["devices"] == [{"name": "nic", "basic": nic}, {"name": "gpu", "basic": {}}]
    assert versions.convert(converted, versions.V1) == SLICE
    unset = {**converted, "spec": {**converted["spec"], "nodeName": "", "allNodes": False}}
    assert {"nodeName", "allNodes"}.isdisjoint(versions.convert(unset, versions.V1)["spec"])


@pytest.mark.parametrize("obj", [CLAIM, template(CLAIM), SLICE], ids=lambda obj: obj["kind"])
@pytest.mark.parametrize("version", [versions.V1, versions.V1BETA2, versions.V1BETA1])
def test_conversion_to_a_version_and_back_changes_nothing(obj, version):
    assert versions.convert(versions.convert(obj, version), versions.V1) == obj


@pytest.mark.parametrize(
    "flat, nested",
    [
        ({"name": "a"}, {"name": "a"}),
        ({"name": "a", "deviceClassName": "", "count": 0, "adminAccess": None}, {"name": "a"}),
        ({"name": "a", "selectors": []}, {"name": "a", "exactly": {"selectors": []}}),
        ({"name": "a", "adminAccess": False}, {"name": "a", "exactly": {"adminAccess": False}}),
    ],
)
def test_a_v1beta1_request_becomes_exact_if_a_field_is_set(flat, nested):
    claim = {"apiVersion": versions.V1BETA1, "kind": "ResourceClaim", "spec": {"devices": {"requests": [flat]}}}
    assert versions.convert(claim, versions.V1)["spec"]["devices"]["requests"] == [nested]


@pytest.mark.parametrize(
    "spec", [None, [], {"devices": None}, {"devices": {"requests": {}}}, {"devices": {"requests": [5]}}]
)
def test_a_spec_of_the_wrong_shape_is_converted_unchanged(spec):
    claim = {"apiVersion": versions.V1BETA1, "kind": "ResourceClaim", "spec": spec}
    assert versions.convert(claim, versions.V1)["spec"] == spec


@pytest.mark.parametrize(
    "obj, version",
    [
        ({"apiVersion": "v1", "kind": "Pod"}, versions.V1),
        ({"kind": "ResourceClaim"}, versions.V1),
        (CLAIM, versions.V1ALPHA3),
        (CLAIM, "resource.k8s.io/v2"),
        ({"apiVersion": versions.V1, "kind": "DeviceTaintRule"}, versions.V1BETA1),
    ],
)
def test_conversions_of_other_kinds_and_versions_are_refused(obj, version):
    with pytest.raises(ValueError):
        versions.convert(obj, version)


def test_choose_takes_the_newest_version_that_the_server_serves():
    served = ["v1alpha3", "v1beta1", "resource.k8s.io/v1beta2", "v1", "apps/v1"]
    assert versions.choose(served) == versions.V1
    assert versions.choose(["v1beta1", "v1beta2"]) == versions.V1BETA2
    assert versions.choose(served, "DeviceTaintRule", "1.36") == versions.V1BETA2
    assert versions.choose(served, "DeviceTaintRule", "1.35") == versions.V1ALPHA3
    with pytest.raises(LookupError):
        versions.choose(["v1alpha3"])
    with pytest.raises(LookupError):
        versions.choose(["apps/v1"])


@pytest.mark.parametrize("text, minor", [("1.34", 34), ("v1.37.1", 37), ("1.36+", 36), ("1.99", 37), ("1.35-rc.1", 35)])
def test_minor_of_reads_releases_and_treats_newer_ones_as_the_newest_known(text, minor):
    assert versions.minor_of(text) == minor


@pytest.mark.parametrize("text", ["1.33", "2.0", "", "latest", "1.x", "1.37foo"])
def test_invalid_releases_are_refused(text):
    with pytest.raises(ValueError):
        versions.minor_of(text)


def test_a_release_that_yaml_shortened_as_a_number_is_refused_with_a_hint():
    with pytest.raises(ValueError, match="if you mean 1.40, quote it"):
        versions.minor_of("1.4")
    with pytest.raises(ValueError, match=r"older than 1.34$"):
        versions.minor_of("1.30")
