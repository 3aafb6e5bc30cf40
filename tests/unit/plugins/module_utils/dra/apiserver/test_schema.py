# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fields of resource.k8s.io in each version and release, and the decoder that checks their types."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import schema
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.decoder import Decoder
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.comparison import is_time

SCALARS = {"string", "bool", "int64", "quantity", "time", "raw"}


def test_every_field_has_a_known_type():
    for struct, fields in schema.STRUCTS.items():
        for name, field in fields.items():
            item = field.type.lstrip("*").removeprefix("[]").removeprefix("{}")
            assert item in SCALARS or item in schema.STRUCTS, f"{struct}.{name}"
            assert versions.OLDEST <= field.since <= field.until <= versions.NEWEST
            assert field.versions


def test_every_structure_is_used():
    waiting, seen = list(versions.PLURALS), set()
    while waiting:
        struct = waiting.pop()
        if struct not in seen:
            seen.add(struct)
            items = [field.type.lstrip("*").lstrip("[]{}") for field in schema.STRUCTS[struct].values()]
            waiting += [item for item in items if item in schema.STRUCTS]
    assert seen == set(schema.STRUCTS)


def test_requests_are_flat_only_in_v1beta1():
    flat, nested = (set(schema.fields("DeviceRequest", version, 37)) for version in (versions.V1BETA1, versions.V1))
    assert nested == {"name", "exactly", "firstAvailable"}
    assert flat == {"name", "firstAvailable", *schema.fields("ExactDeviceRequest", versions.V1, 37)}
    assert set(versions.EXACT_FIELDS) == set(schema.STRUCTS["ExactDeviceRequest"])


def test_fields_depend_on_version_and_release():
    by_minor = {minor: set(schema.fields("DeviceAttribute", versions.V1, minor)) for minor in (34, 35, 36, 37)}
    assert by_minor[34] == by_minor[35] == {"int", "bool", "string", "version"}
    assert by_minor[36] == by_minor[37] == by_minor[34] | {"ints", "bools", "strings", "versions"}
    assert "nodeAllocatableResourceMappings" not in schema.fields("Device", versions.V1, 37)
    assert "selectors" in schema.fields("DeviceTaintSelector", versions.V1ALPHA3, 34)
    assert "selectors" not in schema.fields("DeviceTaintSelector", versions.V1ALPHA3, 35)


@pytest.mark.parametrize(
    "text, valid",
    [
        ("2026-01-02T03:04:05Z", True),
        ("2026-01-02T03:04:05.678+01:00", True),
        ("2024-02-29T23:59:59-11:30", True),
        ("2026-01-02T3:04:05Z", True),
        ("2026-01-02T03:04:05,5Z", True),
        ("0000-02-29T00:00:00Z", True),
        ("2023-02-29T03:04:05Z", False),
        ("2026-13-02T03:04:05Z", False),
        ("2026-01-02T24:04:05Z", False),
        ("2026-01-02T03:04:60Z", False),
        ("2026-01-02T03:04:05", False),
        ("2026-01-02 03:04:05Z", False),
        ("2026-01-02t03:04:05z", False),
        ("2026-01-02", False),
        ("", False),
    ],
)
def test_only_times_that_the_server_accepts_are_times(text, valid):
    assert is_time(text) is valid


def decode(value, struct, version=versions.V1, minor=37):
    decoder = Decoder(version, minor)
    read = decoder.struct(value, struct, "spec")
    return read, [str(problem) for problem in decoder.types], [problem.path for problem, _unused in decoder.unknown]


def test_null_unsets_a_field_and_is_the_zero_value_in_lists_and_maps():
    value = {
        "name": None,
        "attributes": {"a": None},
        "bindingConditions": [None, "x"],
        "capacity": {"c": {"value": None}},
    }
    read, types, unknown = decode(value, "Device")
    assert read == {"attributes": {"a": {}}, "bindingConditions": ["", "x"], "capacity": {"c": {}}}
    assert (types, unknown) == ([], [])


@pytest.mark.parametrize(
    "value, path",
    [
        ({"name": 5}, "spec.name"),
        ({"allNodes": "true"}, "spec.allNodes"),
        ({"allNodes": 1}, "spec.allNodes"),
        ({"attributes": []}, "spec.attributes"),
        ({"attributes": {"a": {"int": 1.0}}}, "spec.attributes[a].int"),
        ({"attributes": {"a": {"int": True}}}, "spec.attributes[a].int"),
        ({"attributes": {"a": {"int": 2**63}}}, "spec.attributes[a].int"),
        ({"attributes": {"a": {"int": "1"}}}, "spec.attributes[a].int"),
        ({"taints": {}}, "spec.taints"),
        ({"taints": [[]]}, "spec.taints[0]"),
        ({"taints": [{"timeAdded": "now"}]}, "spec.taints[0].timeAdded"),
        ({"capacity": {"c": {"value": "1Kii"}}}, "spec.capacity[c].value"),
        ({"bindingConditions": ["a", 1]}, "spec.bindingConditions[1]"),
        ({"attributes": {5: {"int": 1}}}, "spec.attributes[5]"),
    ],
)
def test_wrong_types_are_reported_at_their_path(value, path):
    _unused, types, _unused = decode(value, "Device")
    assert [text.split(": ")[0] for text in types] == [path]


def test_unknown_fields_are_reported_at_their_path():
    read, types, unknown = decode({"name": "a", "Name": 1, "basic": {}, "taints": [{"keys": None}]}, "Device")
    assert read == {"name": "a", "taints": [{}]}
    assert (types, unknown) == ([], ["spec.Name", "spec.basic", "spec.taints[0].keys"])
    assert decode({"basic": {"allNodes": True}}, "Device", versions.V1BETA1)[2] == []
