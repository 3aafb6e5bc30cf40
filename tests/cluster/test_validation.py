# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The offline validator against real API servers, with generated objects of every kind and version.

Each object is generated as a valid object from the field tables. Then it gets up to three errors of the kinds that a
client can make, and is posted as a dry run. The validator must predict whether the server accepts the object, which
fields the server drops, and which fields the server reports. LANEWISE_VALIDATION_OBJECTS is the number of objects of
each kind and version, LANEWISE_VALIDATION_SEED the random seed.

This file has more than 500 lines because its generator has a rule for every kind of field and error.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import random
import re
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import features, schema, validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import comparison, quantity, versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane

OBJECTS = int(os.environ.get("LANEWISE_VALIDATION_OBJECTS", "100"))
SEED = int(os.environ.get("LANEWISE_VALIDATION_SEED", "20261121"))
NAMESPACE = "validation"


NAMES = ["gpu", "nic-0", "a", "0", "pair-1", "x" * 63]
BAD_NAMES = ["", "A", "-a", "a-", "a_b", "x" * 64, "é", "a b", "a.b", "a/b", "a..b", "a\n", "x" * 254]
SUBDOMAINS = ["gpu.nvidia.com", "lanewise.dev", "a", "x" * 63, "node-1.example.com"]
BAD_SUBDOMAINS = ["", "a..b", ".a", "-a.b", "a_b", "x" * 254, "UPPER.example", "a/b", "a.b/", "x" * 64, "a\n"]
POOLS = ["node-1", "a/b/c", "rack.1/node-2", "x" * 253]
ATTRIBUTES = ["model", "lanewise.dev/rail", "resource.kubernetes.io/pcieRoot", "_x9", "a/" + "b" * 32]
BAD_ATTRIBUTES = [
    "",
    "9a",
    "a-b",
    "/x",
    "x/",
    "a" * 33,
    "d" * 64 + "/x",
    "Upper.Domain/x",
    "a/b/c",
    "a b",
    "é/x",
    "-a/b",
]
AMOUNTS = [
    *[
        "1",
        "2",
        "3",
        "4",
        "6",
        "8",
        "16",
        "500m",
        "1500m",
        "1m",
        "2500u",
        "0",
        "-1",
        "17",
        "9223372036854775808",
        "1e30",
    ],
    *["1", "2", "4"],
]
LABELS = ["app", "example.com/app", "a.b_c-d", "A", "9"]
BAD_LABELS = ["", "/a", "a/", "-a", "a/b/c", "x" * 64, "A.com/x", "a b", "x" * 254 + "/a", "."]
QUANTITIES = ["1", "4", "8", "16", "100G", "80Gi", "1Ki", "500m", "1.5", "1e3", "0", 2, "2E2", "12k"]
BAD_QUANTITIES = [
    *["-1", "-500m", ".", "+", "-", "+5", "1.", ".5", "1E", "1e", "e3", "1Kii", "abc", "", "1 ", " 1", "1e-12", "1n"],
    *["0.0000000001", "9223372036854775807", "9223372036854775808", "1e30", "8Ei", "16Ei", "1_0", "0x10", "NaN", "٣"],
    *["1.5Ki", "0.1Ki", "1e+2", "1E-3", "--1", "+-1", "1.2.3", "00012", "1u", "1ki", "1K", "00", "-0", "1eE5"],
    *[1.5, -3, 1e20, 0.1, True, False, [], {}, None, 10**19],
]
VERSIONS = ["1.2.3", "0.0.0", "1.2.3-alpha.1+build.5", "10.20.30"]
BAD_VERSIONS = ["", "1", "1.2", "01.2.3", "v1.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3 ", "1.0.0-" + "a" * 60]
EXPRESSIONS = ["true", 'device.driver == "gpu.nvidia.com"', 'device.attributes["a.b"].exists(k, k == "x")']
BAD_EXPRESSIONS = ["", " ", "true" + " " * 10237, "true" + " " * 10236]
TIMES = ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678+01:00", "2024-02-29T23:59:59Z"]
BAD_TIMES = [
    *[
        "",
        "now",
        "2026-01-02",
        "2026-13-02T03:04:05Z",
        "2023-02-29T03:04:05Z",
        "2026-01-02T24:04:05Z",
        "2026-01-02 03:04:05Z",
    ],
    *[
        "2026-01-02T3:04:05Z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:60Z",
        "2026-01-02T03:04:05,5Z",
        "2026-01-02t03:04:05z",
        5,
    ],
]
INTEGERS = [0, 1, 2, 3, 32]
BAD_INTEGERS = [-1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1.0, 1.5, "1", True, 1e3, 33]
STRINGS = ["", "x", "text with blanks", "ü" * 20, "x" * 64, "x" * 65, "ü" * 32, "ü" * 33]
OTHERS: list[t.Any] = [
    None,
    "",
    "text",
    0,
    1,
    -1,
    1.5,
    True,
    False,
    [],
    {},
    [None],
    [{}],
    ["a"],
    {"a": "b"},
    {"a": None},
]
RAW: list[t.Any] = [{}, {"a": 1}, {"apiVersion": "example.com/v1", "kind": "X", "list": [1, None, "é"]}]
BAD_RAW: list[t.Any] = [None, [], "x", 5, True, {"a": "x" * 10232}, {"a": "x" * 10233}, {"ü": "ü" * 5115}, [{}]]

DOMAINS = ["lanewise.dev", "gpu.nvidia.com", "dra.cpu", "Upper.Example.com"]
# Strings by field name: valid ones, and those that are invalid or at a limit.
TEXTS: dict[str, tuple[list[t.Any], list[t.Any]]] = {
    "name": (NAMES, BAD_NAMES),
    "device": (NAMES, BAD_NAMES),
    "counterSet": (NAMES, BAD_NAMES),
    "compatibilityGroups": (NAMES, BAD_NAMES),
    "deviceClassName": (SUBDOMAINS, BAD_SUBDOMAINS),
    "driver": (DOMAINS, BAD_SUBDOMAINS),
    "pool": (POOLS, BAD_SUBDOMAINS + ["a//b", "/a", "a/", "A"]),
    "nodeName": (SUBDOMAINS, BAD_SUBDOMAINS),
    "generateName": (
        ["gpu-", "a.b-", "x" * 60],
        ["-", "a--", "a.-", "A", "a/b", "a%", "x" * 300, "a.", "é", "x" * 57 + ".y-"],
    ),
    "namespace": ([NAMESPACE], ["", "A", "a.b", "x" * 64]),
    "extendedResourceName": (
        ["example.com/gpu", "a/b"],
        [
            "",
            "gpu",
            "kubernetes.io/x",
            "x.kubernetes.io/y",
            "requests.a/b",
            "a/b/c",
            "A/b",
            "x" * 250 + "/a",
            "a/" + "x" * 64,
        ],
    ),
    "matchAttribute": (ATTRIBUTES[1:3] + ATTRIBUTES[-1:], ATTRIBUTES + BAD_ATTRIBUTES),
    "distinctAttribute": (ATTRIBUTES[1:3] + ATTRIBUTES[-1:], ATTRIBUTES + BAD_ATTRIBUTES),
    "partitionTypeAttribute": (ATTRIBUTES[1:3], ATTRIBUTES + BAD_ATTRIBUTES),
    "capacityKey": (ATTRIBUTES, BAD_ATTRIBUTES),
    "operator": (["Exists", "Equal", "In", "NotIn"], ["", "exists", "DoesNotExist", "Gt", "Lt", "Foo"]),
    "effect": (["NoSchedule", "NoExecute"], ["None", "", "noSchedule", "PreferNoSchedule"]),
    "allocationMode": (["ExactCount", "All"], ["", "all", "Exactcount"]),
    "key": (LABELS, BAD_LABELS + ["metadata.name"]),
    "value": (["", "x", "a.b"], ["-", "a b", "x" * 63, "x" * 64, "é"]),
    "values": (["", "x", "a.b"], ["-", "a b", "x" * 63, "x" * 64, "é"]),
    "bindingConditions": (["example.com/ready", "ready"], BAD_LABELS),
    "bindingFailureConditions": (["example.com/failed", "failed"], BAD_LABELS + ["ready"]),
    "skipNodeOperations": (list(schema.SKIPPABLE), ["", "x"]),
    "expression": (EXPRESSIONS, BAD_EXPRESSIONS),
    "version": (VERSIONS, BAD_VERSIONS),
    "versions": (VERSIONS, BAD_VERSIONS),
    "apiVersion": (["v1", "apps/v1"], ["", "a/b/c", "a/", "/"]),
    "kind": (["Node", "Event"], [""]),
    "finalizers": (["example.com/keep", "orphan", "foregroundDeletion", "kubernetes"], ["", "keep", "a/b/c", "A/b"]),
    "requests": (["gpu", "nic-0", "a"], ["", "gpu/a", "a/b/c", "A", "gpu/", "/", "x" * 64]),
}
# Fields of metadata that the server sets. They are not validated.
SERVER_FIELDS = comparison.SERVER_METADATA


class ObjectGenerator:
    """Generates objects of an API version, with the fields of a release. The same seed generates the same objects."""

    def __init__(self, seed: str, version: str, minor: int) -> None:
        self.rng = random.Random(seed)
        self.version, self.minor = version, minor

    # values of the types in the tables; `bad` is the probability of an invalid value

    def scalar(self, kind: str, name: str, bad: float) -> t.Any:
        wrong = self.rng.random() < bad
        pick = self.rng.choice
        if kind == "string":
            good, faulty = TEXTS.get(name, (STRINGS, STRINGS))
            return pick(faulty if wrong else good)
        pools: dict[str, tuple[list[t.Any], list[t.Any]]] = {
            "quantity": (QUANTITIES, BAD_QUANTITIES),
            "int64": (INTEGERS, BAD_INTEGERS),
            "bool": ([True, True, False], ["true", 1, None]),
            "time": (TIMES, BAD_TIMES),
            "raw": (RAW, BAD_RAW),
        }
        return copy.deepcopy(pick(pools[kind][wrong]))

    def value(self, kind: str, name: str, bad: float, depth: int) -> t.Any:
        kind = kind.lstrip("*")
        if kind.startswith("[]"):
            return [self.value(kind[2:], name, bad, depth + 1) for _unused in range(self.rng.choice([0, 1, 1, 2, 3]))]
        if kind.startswith("{}"):
            return {
                self.map_key(name, bad): self.value(kind[2:], name, bad, depth + 1)
                for _unused in range(self.rng.choice([0, 1, 1, 2]))
            }
        return self.struct(kind, bad, depth) if kind in schema.STRUCTS else self.scalar(kind, name, bad)

    def map_key(self, name: str, bad: float) -> str:
        good, faulty = {
            "attributes": (ATTRIBUTES, BAD_ATTRIBUTES),
            "capacity": (ATTRIBUTES, BAD_ATTRIBUTES),
            "requests": (ATTRIBUTES, BAD_ATTRIBUTES),
            "counters": (NAMES, BAD_NAMES),
            "nodeAllocatableResources": (["cpu", "memory", "hugepages-2Mi"], ["a/b", "pods", ""]),
        }.get(name, (LABELS, BAD_LABELS))
        return str(self.rng.choice(faulty if self.rng.random() < bad else good))

    def struct(self, struct: str, bad: float, depth: int = 0) -> Object:
        fields = schema.fields(struct, self.version, self.minor)
        result = {}
        for name, field in fields.items():
            if struct == "ObjectMeta" and name in SERVER_FIELDS:
                continue
            if self.rng.random() < (0.95 if field.required(self.minor) else 0.5 / (1 + depth / 3)):
                result[name] = self.value(field.type, name, bad, depth + 1)
        return result

    # valid objects, in v1

    def selectors(self) -> list[Object]:
        return [{"cel": {"expression": self.rng.choice(EXPRESSIONS)}} for _unused in range(self.rng.choice([0, 1, 2]))]

    def new(self, chance: float) -> bool:
        """Whether to use a field that is new in 1.37."""
        return self.minor >= 37 and self.rng.random() < chance

    def some_of(self, fields: Object, chance: float = 0.4) -> Object:
        return {name: value for name, value in fields.items() if self.rng.random() < chance}

    def opaque(self) -> Object:
        return {"opaque": {"driver": self.rng.choice(DOMAINS), "parameters": copy.deepcopy(self.rng.choice(RAW))}}

    def toleration(self) -> Object:
        choices: list[Object] = [
            {"operator": "Exists"},
            {"key": "example.com/x", "operator": "Equal", "value": "y", "effect": "NoSchedule"},
            {"key": "x", "value": "y", "tolerationSeconds": 30},
            {},
        ]
        return self.rng.choice(choices).copy()

    def device_request(self) -> Object:
        pick = self.rng.choice
        result: Object = {"deviceClassName": pick(SUBDOMAINS), "selectors": self.selectors()}
        result.update(
            pick([{}, {"allocationMode": "All"}, {"count": pick([1, 2, 32])}, {"allocationMode": "ExactCount"}])
        )
        result.update(
            self.some_of(
                {
                    "tolerations": [self.toleration() for _unused in range(pick([0, 1, 2]))],
                    "capacity": {"requests": {pick(ATTRIBUTES): pick(QUANTITIES)}},
                },
                0.3,
            )
        )
        return result

    def claim_spec(self) -> Object:
        pick = self.rng.choice
        requests: list[Object] = []
        references: list[str] = []
        for name in self.rng.sample(NAMES, pick([1, 1, 2, 3])):
            if self.rng.random() < 0.3:
                subs = self.rng.sample(NAMES, pick([1, 2, 3]))
                alternatives = [{"name": sub, **self.device_request()} for sub in subs]
                requests.append({"name": name, "firstAvailable": alternatives})
                references += [name, *(f"{name}/{sub}" for sub in subs)]
            else:
                exactly = self.device_request()
                exactly.update(self.some_of({"adminAccess": pick([True, False])}, 0.2))
                requests.append({"name": name, "exactly": exactly})
                references.append(name)

        def refer() -> Object:
            return pick([{}, {"requests": self.rng.sample(references, pick([0, 1, len(references)]))}])

        constraints = []
        for _unused in range(pick([0, 0, 1, 2])):
            which = pick(["matchAttribute", "matchAttribute", "distinctAttribute"])
            constraints.append({**refer(), which: pick(ATTRIBUTES[1:3])})
            if self.new(0.3):
                derived = {"name": pick(ATTRIBUTES[1:3]), "expression": "device.driver"}
                request = pick(requests)
                request.get("exactly", request.get("firstAvailable", [{}])[0])["derivedAttributes"] = [derived]
        config = [{**refer(), **self.opaque()} for _unused in range(pick([0, 0, 1, 2]))]
        return {"devices": {"requests": requests, "constraints": constraints, "config": config}}

    def meta(self, kind: str) -> Object:
        pick: t.Callable[[t.Sequence[t.Any]], t.Any] = self.rng.choice
        result = pick([{"name": pick(SUBDOMAINS)}, {"name": pick(NAMES)}, {"generateName": "gpu-"}]).copy()
        result.update(
            self.some_of({"labels": {pick(LABELS): "x"}, "annotations": {"example.com/Note": "any text"}}, 0.2)
        )
        result.update(self.some_of({"finalizers": ["example.com/keep"]}, 0.1))
        if kind in versions.NAMESPACED:
            result.update(self.some_of({"namespace": NAMESPACE}))
        return result

    def node_selector(self) -> Object:
        rack = {"key": "example.com/rack", "operator": "In", "values": ["a", "b"]}
        field = {"key": "metadata.name", "operator": "In", "values": self.rng.sample(["node-1", "a", "A"], 1)}
        terms = {"matchExpressions": [rack], "matchFields": [field] * self.rng.choice([0, 1])}
        return {"nodeSelectorTerms": [self.some_of(terms, 0.8)]}

    def nodes(self, *more: str) -> Object:
        fields: Object = {
            "nodeName": "node-1",
            "allNodes": True,
            "nodeSelector": self.node_selector(),
            **dict.fromkeys(more, True),
        }
        name = self.rng.choice(sorted(fields))
        return {name: fields[name]}

    def attribute(self) -> Object:
        choices: list[Object] = [
            {"string": "x"},
            {"int": 4},
            {"bool": False},
            {"bool": True},
            {"version": "1.2.3"},
            {"string": "ü" * 32},
            {"int": 0},
            *([{"ints": [0, 1]}, {"strings": ["a", ""]}] if self.minor >= 36 and self.rng.random() < 0.1 else []),
        ]
        return self.rng.choice(choices).copy()

    def any_policy(self) -> Object:
        pick = self.rng.choice
        if pick([True, False]):
            values = self.rng.sample(AMOUNTS, pick([1, 2, 3]))
            ordered = pick([values, sorted(values, key=quantity.parse)])
            return {"default": pick([*values, *values, *AMOUNTS]), "validValues": ordered}
        bounds = dict(zip(("min", "max"), sorted(self.rng.sample(AMOUNTS, 2), key=quantity.parse)))
        return {"default": pick(AMOUNTS), "validRange": self.some_of({**bounds, "step": pick(AMOUNTS)}, 0.9)}

    def capacity(self, shared: bool) -> Object:
        result: Object = {"value": "16"}
        if shared and self.rng.random() < 0.4:
            result["requestPolicy"] = self.any_policy()
        elif shared and self.rng.random() < 0.7:
            policy: Object = self.rng.choice(
                [
                    {"default": "4", "validValues": ["2", "4", "8"]},
                    {"default": "4", "validRange": {"min": "2", "max": "16", "step": "2"}},
                    {"default": "2", "validRange": {"min": "1"}},
                    {"default": "500m", "validValues": ["500m", "1500m"]},
                    {"default": "1k"},
                    {},
                ]
            )
            result["requestPolicy"] = copy.deepcopy(policy)
        return result

    def device(self, name: str, per_device: bool, counter_set: str | None) -> Object:
        pick = self.rng.choice
        shared = self.rng.random() < 0.3
        result: Object = {"name": name, "attributes": {key: self.attribute() for key in self.rng.sample(ATTRIBUTES, 2)}}
        result["capacity"] = {key: self.capacity(shared) for key in self.rng.sample(ATTRIBUTES, pick([0, 1, 2]))}
        if shared:
            result["allowMultipleAllocations"] = True
        if per_device:
            result.update(self.nodes())
        if counter_set:
            result["consumesCounters"] = [{"counterSet": counter_set, "counters": {"memory": {"value": "4Gi"}}}]
            if self.new(0.3):
                result["consumesCounters"][0]["compatibilityGroups"] = pick([["a"], ["a", "b"], ["a", "a"], []])
        if self.new(0.1):
            key = pick(sorted(result["capacity"]) or [""])
            by_capacity = {"capacityKey": key, "capacityMultiplier": pick(["1", "-1"])}
            some_fields = self.some_of(by_capacity)
            mapping = pick([{"deviceMultiplier": "2"}, by_capacity, some_fields, {"deviceMultiplier": "0"}])
            overhead = pick([{"perPod": "1"}, {"perContainer": "500m", "perPod": "0"}, {}, {"perPod": "-1"}])
            resource = self.some_of({"mapping": mapping, "overhead": overhead}, 0.7)
            result["nodeAllocatableResources"] = {pick(["cpu", "memory", "hugepages-1Gi", "pods"]): resource}
        result.update(
            self.some_of(
                {
                    "taints": [{"key": "example.com/broken", "effect": pick(["NoSchedule", "NoExecute"])}],
                    "bindsToNode": pick([True, False]),
                },
                0.15,
            )
        )
        if self.rng.random() < 0.15:
            failed = pick([["failed"], ["example.com/failed"], ["example.com/ready"]])
            result.update({"bindingConditions": ["example.com/ready"], "bindingFailureConditions": failed})
        return result

    def slice_spec(self) -> Object:
        pick = self.rng.choice
        result: Object = {
            "driver": pick(DOMAINS),
            "pool": {"name": pick(POOLS), "generation": pick([0, 1, 7]), "resourceSliceCount": pick([1, 3])},
            **self.nodes("perDeviceNodeSelection"),
        }
        per_device = result.get("perDeviceNodeSelection", False)
        counters = [{"name": "board", "counters": {"memory": {"value": "80Gi"}}}]
        counting = self.rng.random() < 0.25
        if counting and self.minor >= 35 and self.rng.random() < 0.5:
            return {**result, "sharedCounters": counters}
        if counting and self.minor == 34:
            result["sharedCounters"] = counters
        names = self.rng.sample(NAMES, pick([0, 1, 2, 4]))
        result["devices"] = [self.device(name, per_device, "board" if counting else None) for name in names]
        if self.new(0.5 if counting else 0.05):
            result["partitionTypeAttribute"] = "lanewise.dev/rail"
            for device in result["devices"]:
                if self.rng.random() < 0.95:
                    device["attributes"][pick(["lanewise.dev/rail", "rail"])] = {"string": "1g.10gb"}
        if self.new(0.1):
            result["skipNodeOperations"] = self.rng.sample(schema.SKIPPABLE, pick([1, 2, 3]))
        return result

    def valid(self, kind: str) -> Object:
        pick = self.rng.choice
        result: Object = {"apiVersion": versions.V1, "kind": kind, "metadata": self.meta(kind)}
        if kind == "DeviceClass":
            config = [self.opaque() for _unused in range(pick([0, 1, 2]))]
            result["spec"] = {"selectors": self.selectors(), "config": config}
            result["spec"].update(self.some_of({"extendedResourceName": "example.com/gpu"}))
        elif kind == "ResourceClaim":
            result["spec"] = self.claim_spec()
        elif kind == "ResourceClaimTemplate":
            result["spec"] = {"spec": self.claim_spec(), **self.some_of({"metadata": {"labels": {"a": "b"}}})}
        elif kind == "ResourceSlice":
            result["spec"] = self.slice_spec()
        else:
            selector = self.some_of({"driver": "lanewise.dev", "pool": "node-1", "device": "gpu"})
            result["spec"] = {"taint": {"key": "example.com/x", "effect": pick(["NoSchedule", "NoExecute"])}}
            result["spec"].update(self.some_of({"deviceSelector": selector}, 0.7))
        if kind == "DeviceTaintRule":
            return {**result, "apiVersion": self.version}
        return versions.convert(result, self.version)

    # errors

    def items(self, value: t.Any, kind: str, name: str) -> t.Iterator[tuple[t.Any, t.Any, str, str]]:
        """Every item of every object, list and map: the container, the item's key in it, its type and field name."""
        kind = kind.lstrip("*")
        if isinstance(value, dict) and kind in schema.STRUCTS:
            fields = schema.fields(kind, self.version, self.minor)
            for key, item in value.items():
                if key in fields and not (key in ("apiVersion", "kind") and kind in versions.PLURALS):
                    yield value, key, fields[key].type, key
                    yield from self.items(item, fields[key].type, key)
        elif isinstance(value, (dict, list)) and kind[:2] in ("[]", "{}"):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield value, key, kind[2:], name
                yield from self.items(value[key], kind[2:], name)

    def structs(self, value: t.Any, kind: str) -> list[tuple[Object, str]]:
        found = [(value, kind)]
        for holder, key, item, _unused in self.items(value, kind, ""):
            struct = item.lstrip("*")
            if struct in schema.STRUCTS and isinstance(holder[key], dict):
                found.append((holder[key], struct))
        return found

    def add_error(self, obj: Object) -> None:
        rng = self.rng
        all_items = list(self.items(obj, obj["kind"], ""))
        if not all_items:
            return
        holder, key, kind, name = rng.choice(all_items)
        kind = kind.lstrip("*")
        action = rng.choice(
            ["delete", "replace", "bad", "bad", "bad", "add", "add", "unknown", "repeat", "many", "other"]
        )
        if action == "delete":
            del holder[key]
        elif action == "replace":
            holder[key] = self.value(kind, name, 0.3, 2)
        elif action == "bad":
            scalars = [
                item for item in all_items if item[2].lstrip("*") not in schema.STRUCTS and item[2][0] not in "[{"
            ]
            if scalars:
                holder, key, kind, name = rng.choice(scalars)
                holder[key] = self.scalar(kind.lstrip("*"), name, 1)
        elif action == "add":
            struct, struct_name = rng.choice(self.structs(obj, obj["kind"]))
            fields = schema.fields(struct_name, self.version, self.minor)
            missing = [field for field in fields if field not in struct and field not in SERVER_FIELDS]
            if missing:
                field = rng.choice(missing)
                struct[field] = self.value(fields[field].type, field, 0.15, 2)
        elif action == "unknown":
            struct, _unused = rng.choice(self.structs(obj, obj["kind"]))
            struct[rng.choice(["devices", "Spec", "unknown", "opaque", "name2", "count", "exactly"])] = rng.choice(
                OTHERS
            )
        elif action == "repeat":
            lists = [(h[k], n) for h, k, _unused, n in all_items if isinstance(h[k], list) and h[k]]
            if lists:
                items, _unused = rng.choice(lists)
                items.append(copy.deepcopy(rng.choice(items)))
        elif action == "many":
            self.enlarge(all_items)
        else:
            holder[key] = copy.deepcopy(rng.choice(OTHERS))

    def enlarge(self, all_items: list[tuple[t.Any, t.Any, str, str]]) -> None:
        """Enlarge a list or map to a limit or beyond it. The new items have different names."""
        full = [
            (h[k], n) for h, k, _unused, n in all_items if isinstance(h[k], (list, dict)) and h[k] and h[k] is not None
        ]
        full = [(items, n) for items, n in full if isinstance(items, list) or self.is_map(items, all_items)]
        if not full:
            return
        items, _unused = self.rng.choice(full)
        size = self.rng.choice([2, 3, 4, 5, 8, 9, 10, 11, 16, 17, 32, 33, 48, 64, 65, 128, 129])
        if isinstance(items, list):
            model = items[0]
            for index in range(len(items), size):
                item = copy.deepcopy(model)
                if isinstance(item, dict):
                    for name in ("name", "counterSet"):
                        if name in item:
                            item[name] = f"n{index}"
                elif isinstance(item, str):
                    item = f"n{index}" if self.rng.random() < 0.8 else item
                items.append(item)
        else:
            model = next(iter(items.values()))
            for index in range(len(items), size):
                items[f"n{index}"] = copy.deepcopy(model)

    def is_map(self, items: Object, all_items: list[tuple[t.Any, t.Any, str, str]]) -> bool:
        return any(h[k] is items and kind.lstrip("*").startswith("{}") for h, k, kind, _unused in all_items)

    def object(self, kind: str) -> Object:
        if self.rng.random() < 0.06:
            result = self.struct(kind, 0.1)
            result.update({"apiVersion": self.version, "kind": kind})
        else:
            result = self.valid(kind)
            for _unused in range(self.rng.choice([0, 1, 1, 1, 1, 2, 3])):
                self.add_error(result)
        return self.replace_unpredictable(result, kind)

    def replace_unpredictable(self, result: Object, kind: str) -> Object:
        """Replace values that the validator cannot judge: namespaces that do not exist, and random CEL expressions."""
        for struct, name in self.structs(result, kind):
            if name in ("CELDeviceSelector", "DeviceDerivedAttribute") and isinstance(struct.get("expression"), str):
                if struct["expression"] not in [*EXPRESSIONS, *BAD_EXPRESSIONS, "device.driver"]:
                    struct["expression"] = EXPRESSIONS[0]
        meta = result.get("metadata")
        if isinstance(meta, dict):
            for name in SERVER_FIELDS & meta.keys():
                del meta[name]
            owners = meta.get("ownerReferences")
            for index, owner in enumerate(owners if isinstance(owners, list) else []):
                if isinstance(owner, dict) and isinstance(owner.get("uid"), str) and owner["uid"]:
                    owner["uid"] += str(index)  # the server drops owners with duplicate UIDs
            if kind in versions.NAMESPACED and meta.get("namespace") not in (None, "", NAMESPACE, "A", "a.b", "x" * 64):
                meta["namespace"] = NAMESPACE
        return result


def post(plane: t.Any, obj: Object, kind: str, strict: bool) -> tuple[int, t.Any]:
    group = f"/apis/{obj['apiVersion']}"
    scope = f"/namespaces/{NAMESPACE}" if kind in versions.NAMESPACED else ""
    validation = "Strict" if strict else "Ignore"
    path = f"{group}{scope}/{versions.PLURALS[kind]}?dryRun=All&fieldValidation={validation}"
    body = json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        return t.cast("tuple[int, t.Any]", plane.request("POST", path, body))
    except http.client.RemoteDisconnected:
        if b"step" not in body:
            raise
        return 500, {"message": "the server divided by a step of zero, as those before 1.37 do"}


def short(path: str) -> str:
    """A path with long keys shortened, as the server shortens them."""
    return re.sub(r"\[[^\]]{40,}\]", "[...]", path)


def disagreement(
    plane: t.Any, obj: Object, kind: str, kubernetes: str, strict: bool, gates: dict[str, bool] | None = None
) -> str:
    """The difference between the decisions of server and validator about an object; empty if they agree."""
    problems = validate.validate(obj, kubernetes, gates)
    if not strict:
        problems = [problem for problem in problems if problem.rule != "unknown-field"]
    status, answer = post(plane, obj, kind, strict)
    if status == 403 and "nodeAllocatableResources" in json.dumps(obj):
        return ""  # an admission plugin checks the nodes, which is not part of validation
    if status not in (201, 400, 422, 500):
        return f"unexpected status {status} of the server: {answer}"
    accepted = status == 201
    if accepted != (not problems):
        message = answer if not accepted and not isinstance(answer, dict) else answer.get("message", "accepted")
        return f"{status} {str(message)[:600]}; ours: {[str(problem) for problem in problems]}"
    if accepted:
        rules = {"dropped", "unknown-field"}
        reported = {problem.path for problem in features.unsupported(obj, kubernetes, gates) if problem.rule in rules}
        dropped = set(comparison.dropped(obj, answer))
        if reported != dropped:
            return f"the server dropped {sorted(dropped)}, ours: {sorted(reported)}"
    elif status == 422:
        causes = [cause.get("field", "") for cause in answer["details"].get("causes", [])]
        fields = {short(features.path_in_version(field, kind, obj["apiVersion"])) for field in causes}
        if not fields & {short(problem.path) for problem in problems}:
            return f"the server refused {sorted(fields)}, ours: {sorted(problem.path for problem in problems)}"
    return ""


GATES = {
    "1.37 default gates": {},
    "1.34 default gates": {},
    # DRAPartitionableDevicesType requires DRAResourcePoolStatus, which has no field in these kinds
    "1.37 all gates": dict.fromkeys(
        ["DRAResourcePoolStatus", *(f.gate for f in features.FEATURES.values() if not features.enabled(f.gate, 37))],
        True,
    ),
    "1.34 all gates": {
        feature.gate: True
        for feature in features.FEATURES.values()
        if min(feature.default) == 34 and not features.enabled(feature.gate, 34)
    },
    "1.37 no gates": {
        feature.gate: False
        for feature in features.FEATURES.values()
        if feature.locked > 37 and features.enabled(feature.gate, 37)
    },
}


class Server(t.NamedTuple):
    plane: ControlPlane
    kubernetes: str
    gates: dict[str, bool]

    @property
    def minor(self) -> int:
        return versions.minor_of(self.kubernetes)


@pytest.fixture(scope="module", params=GATES)
def server(request: pytest.FixtureRequest, planes: t.Callable[[str], ControlPlane]) -> t.Iterator[Server]:
    kubernetes, gates = request.param.split()[0], GATES[request.param]
    plane = planes(kubernetes)  # skips the test if programs are missing
    if gates:
        plane = ControlPlane(kubernetes, gates=gates, scheduler=False, controller_manager=False)
    try:
        labels = {"resource.kubernetes.io/admin-access": "true"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        status, answer = plane.request("POST", "/api/v1/namespaces", namespace)
        assert status == 201, answer
        yield Server(plane, kubernetes, gates)
    finally:
        if gates:
            plane.close()


@pytest.mark.parametrize("version, kind", sorted(versions.SERVED))
def test_validator_and_server_agree_about_generated_objects(server: Server, version: str, kind: str) -> None:
    plane, kubernetes, gates = server
    if versions.SERVED[version, kind] > server.minor:
        pytest.skip(f"{kubernetes} does not serve {kind} in {version}")
    generator = ObjectGenerator(f"{SEED} {version} {kind} {kubernetes} {sorted(gates)}", version, server.minor)
    accepted = 0
    for number in range(OBJECTS):
        obj = generator.object(kind)
        wrong = disagreement(plane, obj, kind, kubernetes, bool(number % 4), gates)
        assert not wrong, f"object {number}: {wrong}\n{json.dumps(obj)}"
        accepted += not validate.validate(obj, kubernetes, gates)
    assert OBJECTS < 100 or OBJECTS / 8 < accepted < OBJECTS * 7 / 8, "too few accepted or too few refused objects"


def openapi_type(prop: Object) -> str:
    """The type of a property of an OpenAPI document, in the notation of the field tables."""
    reference = prop.get("$ref") or prop.get("allOf", [{}])[0].get("$ref")
    if reference:
        name = reference.rsplit(".", 1)[1]
        return {"Quantity": "quantity", "Time": "time", "RawExtension": "raw", "FieldsV1": "raw"}.get(name, name)
    if prop["type"] == "array":
        return "[]" + openapi_type(prop["items"])
    if prop["type"] == "object":
        return "{}" + openapi_type(prop["additionalProperties"]) if "additionalProperties" in prop else "raw"
    if prop.get("format") == "date-time":
        return "time"
    return {"integer": "int64", "boolean": "bool"}.get(prop["type"], prop["type"])


@pytest.mark.parametrize("version, kind", sorted(versions.SERVED))
def test_field_tables_equal_the_openapi_document(server: Server, version: str, kind: str) -> None:
    minor = server.minor
    if versions.SERVED[version, kind] > minor:
        pytest.skip(f"{server.kubernetes} does not serve {kind} in {version}")
    status, document = server.plane.request("GET", f"/openapi/v3/apis/{version}")
    assert status == 200
    served = {name.rsplit(".", 1)[1]: definition for name, definition in document["components"]["schemas"].items()}
    waiting, seen = [kind], set()
    while waiting:
        struct = waiting.pop()
        if struct in seen:
            continue
        seen.add(struct)
        table_fields = {
            name: (field.type.lstrip("*"), field.required(minor), field.enum(minor))
            for name, field in schema.fields(struct, version, minor).items()
        }
        required = served[struct].get("required", [])
        document_fields = {
            name: (openapi_type(prop), name in required, tuple(prop.get("enum", ())))
            for name, prop in served[struct].get("properties", {}).items()
        }
        assert table_fields == document_fields, struct
        types = [kind.strip("[]{}") for kind, _unused, _unused in table_fields.values()]
        waiting += [name for name in types if name in schema.STRUCTS]
    assert len(seen) > 5


# Quantities that the server returns unchanged, although they are not canonical.
UNCHANGED_QUANTITIES = {"+5", "1.", "1E-3", "00012"}


@pytest.mark.parametrize("version", [versions.V1])
def test_quantities_are_parsed_as_the_server_parses_them(server: Server, version: str) -> None:
    texts = [text for text in [*QUANTITIES, *BAD_QUANTITIES] if text is not None]
    texts += ["1000Ki", "1024Ki", "1025Mi", "100e3", "1500000m", "1000000n", "1e-10", "3e21", "0.1u", "1.0005Ki", "5E"]
    for text in texts:
        device = {"name": "a", "capacity": {"x": {"value": text}}}
        pool = {"name": "a", "generation": 0, "resourceSliceCount": 1}
        spec = {"driver": "a", "pool": pool, "allNodes": True, "devices": [device]}
        obj = {"apiVersion": version, "kind": "ResourceSlice", "metadata": {"name": "a"}, "spec": spec}
        status, answer = post(server.plane, obj, "ResourceSlice", strict=True)
        try:
            value = quantity.parse(text)
        except quantity.QuantityError:
            assert status == 400, text
        else:
            assert status == 201, (text, answer)
            returned = answer["spec"]["devices"][0]["capacity"]["x"]["value"]
            assert quantity.parse(returned) == value, text
            if text not in UNCHANGED_QUANTITIES:
                assert quantity.canonical(value, quantity.suffix_form(text)) == returned, text
