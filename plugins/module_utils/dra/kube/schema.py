# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The fields of every DRA kind in every version of `resource.k8s.io`, as Kubernetes 1.34 to 1.37 serve them.

Source: k8s.io/api/resource/{v1,v1beta2,v1beta1,v1alpha3}/types.go of these releases. A field's type is written as in
the language of the API's own documentation:

- `string`, `bool`, `int64`, `quantity`, `time` (RFC 3339), `raw` (any JSON);
- the name of a structure;
- `[]TYPE` a list, `{}TYPE` a map with string keys;
- a leading `*` where leaving the field out differs from its zero value, so that `false` or `""` counts as set.
"""

from __future__ import annotations

import datetime
import re
import typing as t
from dataclasses import dataclass, field, replace
from functools import cache

from . import limits, quantity
from .objects import Object
from .problems import Problem

GROUP = "resource.k8s.io"
V1, V1BETA2, V1BETA1, V1ALPHA3 = (f"{GROUP}/{version}" for version in ("v1", "v1beta2", "v1beta1", "v1alpha3"))
OLDEST, NEWEST = 34, 37
NAMESPACED = frozenset({"ResourceClaim", "ResourceClaimTemplate"})
PLURALS = {
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceSlice": "resourceslices",
    "DeviceTaintRule": "devicetaintrules",
}
# First minor release that can serve a kind in a version (from 1.34 on, where this package begins).
SERVED: dict[tuple[str, str], int] = {
    **{(version, kind): 34 for version in (V1, V1BETA2, V1BETA1) for kind in PLURALS if kind != "DeviceTaintRule"},
    (V1ALPHA3, "DeviceTaintRule"): 34,
    (V1BETA2, "DeviceTaintRule"): 36,
    (V1, "DeviceTaintRule"): 37,
}

_ALL = frozenset({V1, V1BETA2, V1BETA1, V1ALPHA3})
_FLAT = frozenset({V1BETA1})
_NESTED = _ALL - _FLAT


@dataclass(frozen=True)
class Field:
    """One field: its type, the minor releases `since`..C(until) that know it, and the API versions that have it.

    `required_until` is the last minor release whose OpenAPI document requires the field, `enums` the values that
    these documents list from a minor release on. They inform users; the server's own verdict is in `validate.py`.
    """

    type: str
    required_until: int = 0
    enums: t.Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    since: int = OLDEST
    until: int = NEWEST
    versions: frozenset[str] = field(default=_ALL)

    def required(self, minor: int) -> bool:
        """Whether the OpenAPI document of Kubernetes 1.C(minor) requires the field."""
        return minor <= self.required_until

    def enum(self, minor: int) -> tuple[str, ...]:
        """The values that the OpenAPI document of Kubernetes 1.C(minor) lists; empty where it lists none."""
        return limits.at(self.enums, minor) if self.enums and minor >= min(self.enums) else ()


def _f(kind: str, **more: t.Any) -> Field:
    return Field(kind, **more)


def _req(kind: str, **more: t.Any) -> Field:
    return Field(kind, **{"required_until": NEWEST, **more})


EFFECTS = {34: ("NoExecute", "NoSchedule"), 35: ("NoExecute", "NoSchedule", "None")}
MODES = {35: ("All", "ExactCount")}
OPERATORS = {34: ("Equal", "Exists")}
SOURCES = {35: ("FromClaim", "FromClass")}
NODE_OPERATORS = {34: ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn")}
SKIPPABLE = ("*", "NodePrepareResources", "NodeUnprepareResources")

_META = {"apiVersion": _f("string"), "kind": _f("string"), "metadata": _f("ObjectMeta")}
_EXACT: dict[str, Field] = {
    "selectors": _f("[]DeviceSelector"),
    "allocationMode": _f("string", enums=MODES),
    "count": _f("int64"),
    "tolerations": _f("[]DeviceToleration"),
    "capacity": _f("*CapacityRequirements"),
    "derivedAttributes": _f("[]DeviceDerivedAttribute", since=37),
}
_DEVICE: dict[str, Field] = {
    "attributes": _f("{}DeviceAttribute"),
    "capacity": _f("{}DeviceCapacity"),
    "consumesCounters": _f("[]DeviceCounterConsumption"),
    "nodeName": _f("*string"),
    "nodeSelector": _f("*NodeSelector"),
    "allNodes": _f("*bool"),
    "taints": _f("[]DeviceTaint"),
    "bindsToNode": _f("*bool"),
    "bindingConditions": _f("[]string"),
    "bindingFailureConditions": _f("[]string"),
    "allowMultipleAllocations": _f("*bool"),
    "nodeAllocatableResourceMappings": _f("{}NodeAllocatableResourceMapping", since=36, until=36),
    "nodeAllocatableResources": _f("{}NodeAllocatableResource", since=37),
}


def _in(versions: frozenset[str], fields: t.Mapping[str, Field]) -> dict[str, Field]:
    return {name: replace(f, versions=f.versions & versions) for name, f in fields.items()}


STRUCTS: dict[str, dict[str, Field]] = {
    # Kinds.
    "DeviceClass": {**_META, "spec": _req("DeviceClassSpec", required_until=36)},
    "ResourceClaim": {
        **_META,
        "spec": _req("ResourceClaimSpec", required_until=36),
        "status": _f("ResourceClaimStatus"),
    },
    "ResourceClaimTemplate": {**_META, "spec": _req("ResourceClaimTemplateSpec", required_until=36)},
    "ResourceSlice": {**_META, "spec": _req("ResourceSliceSpec")},
    "DeviceTaintRule": {
        **_META,
        "spec": _req("DeviceTaintRuleSpec"),
        "status": _f("DeviceTaintRuleStatus", since=35),
    },
    # Classes.
    "DeviceClassSpec": {
        "selectors": _f("[]DeviceSelector"),
        "config": _f("[]DeviceClassConfiguration"),
        "extendedResourceName": _f("*string"),
    },
    "DeviceClassConfiguration": {"opaque": _f("*OpaqueDeviceConfiguration")},
    "OpaqueDeviceConfiguration": {"driver": _req("string"), "parameters": _req("raw")},
    "DeviceSelector": {"cel": _f("*CELDeviceSelector")},
    "CELDeviceSelector": {"expression": _req("string")},
    # Claims and their templates.
    "ResourceClaimTemplateSpec": {"metadata": _f("ObjectMeta"), "spec": _req("ResourceClaimSpec", required_until=36)},
    "ResourceClaimSpec": {"devices": _f("DeviceClaim")},
    "DeviceClaim": {
        "requests": _f("[]DeviceRequest"),
        "constraints": _f("[]DeviceConstraint"),
        "config": _f("[]DeviceClaimConfiguration"),
    },
    "DeviceRequest": {
        "name": _req("string"),
        "firstAvailable": _f("[]DeviceSubRequest"),
        "exactly": _f("*ExactDeviceRequest", versions=_NESTED),
        "deviceClassName": _f("string", versions=_FLAT),
        "adminAccess": _f("*bool", versions=_FLAT),
        **_in(_FLAT, _EXACT),
    },
    "ExactDeviceRequest": {
        "deviceClassName": _req("string"),
        "adminAccess": _f("*bool"),
        **_EXACT,
    },
    "DeviceSubRequest": {
        "name": _req("string"),
        "deviceClassName": _req("string"),
        **_EXACT,
    },
    "DeviceDerivedAttribute": {"name": _req("string"), "expression": _req("string")},
    "DeviceToleration": {
        "key": _f("string"),
        "operator": _f("string", enums=OPERATORS),
        "value": _f("string"),
        "effect": _f("string", enums=EFFECTS),
        "tolerationSeconds": _f("*int64"),
    },
    "CapacityRequirements": {"requests": _f("{}quantity")},
    "DeviceConstraint": {
        "requests": _f("[]string"),
        "matchAttribute": _f("*string"),
        "distinctAttribute": _f("*string"),
    },
    "DeviceClaimConfiguration": {"requests": _f("[]string"), "opaque": _f("*OpaqueDeviceConfiguration")},
    "ResourceClaimStatus": {
        "allocation": _f("*AllocationResult"),
        "reservedFor": _f("[]ResourceClaimConsumerReference"),
        "devices": _f("[]AllocatedDeviceStatus"),
    },
    "ResourceClaimConsumerReference": {
        "apiGroup": _f("string"),
        "resource": _req("string"),
        "name": _req("string"),
        "uid": _req("string"),
    },
    "AllocationResult": {
        "devices": _f("DeviceAllocationResult"),
        "nodeSelector": _f("*NodeSelector"),
        "allocationTimestamp": _f("*time"),
    },
    "DeviceAllocationResult": {
        "results": _f("[]DeviceRequestAllocationResult"),
        "config": _f("[]DeviceAllocationConfiguration"),
    },
    "DeviceRequestAllocationResult": {
        "request": _req("string"),
        "driver": _req("string"),
        "pool": _req("string"),
        "device": _req("string"),
        "adminAccess": _f("*bool"),
        "tolerations": _f("[]DeviceToleration"),
        "bindingConditions": _f("[]string"),
        "bindingFailureConditions": _f("[]string"),
        "shareID": _f("*string"),
        "consumedCapacity": _f("{}quantity"),
        "skipNodeOperations": _f("[]string", since=37),
    },
    "DeviceAllocationConfiguration": {
        "source": _req("string", enums=SOURCES),
        "requests": _f("[]string"),
        "opaque": _f("*OpaqueDeviceConfiguration"),
    },
    "AllocatedDeviceStatus": {
        "driver": _req("string"),
        "pool": _req("string"),
        "device": _req("string"),
        "shareID": _f("*string"),
        "conditions": _f("[]Condition"),
        "data": _f("*raw"),
        "networkData": _f("*NetworkDeviceData"),
    },
    "NetworkDeviceData": {
        "interfaceName": _f("string"),
        "ips": _f("[]string"),
        "hardwareAddress": _f("string"),
    },
    # Slices.
    "ResourceSliceSpec": {
        "driver": _req("string"),
        "pool": _req("ResourcePool"),
        "nodeName": _f("*string"),
        "nodeSelector": _f("*NodeSelector"),
        "allNodes": _f("*bool"),
        "devices": _f("[]Device"),
        "perDeviceNodeSelection": _f("*bool"),
        "sharedCounters": _f("[]CounterSet"),
        "partitionTypeAttribute": _f("*string", since=37),
        "skipNodeOperations": _f("[]string", since=37),
    },
    "ResourcePool": {"name": _req("string"), "generation": _req("int64"), "resourceSliceCount": _req("int64")},
    "CounterSet": {"name": _req("string"), "counters": _req("{}Counter")},
    "Counter": {"value": _req("quantity")},
    "Device": {"name": _req("string"), "basic": _f("*BasicDevice", versions=_FLAT), **_in(_NESTED, _DEVICE)},
    "BasicDevice": dict(_DEVICE),
    "DeviceAttribute": {
        "int": _f("*int64"),
        "bool": _f("*bool"),
        "string": _f("*string"),
        "version": _f("*string"),
        "ints": _f("[]int64", since=36),
        "bools": _f("[]bool", since=36),
        "strings": _f("[]string", since=36),
        "versions": _f("[]string", since=36),
    },
    "DeviceCapacity": {"value": _req("quantity"), "requestPolicy": _f("*CapacityRequestPolicy")},
    "CapacityRequestPolicy": {
        "default": _f("*quantity"),
        "validValues": _f("[]quantity"),
        "validRange": _f("*CapacityRequestPolicyRange"),
    },
    "CapacityRequestPolicyRange": {"min": _req("*quantity"), "max": _f("*quantity"), "step": _f("*quantity")},
    "DeviceCounterConsumption": {
        "counterSet": _req("string"),
        "counters": _req("{}Counter"),
        "compatibilityGroups": _f("[]string", since=37),
    },
    "DeviceTaint": {
        "key": _req("string"),
        "value": _f("string"),
        "effect": _req("string", enums=EFFECTS),
        "timeAdded": _f("*time"),
    },
    "NodeAllocatableResourceMapping": {
        "capacityKey": _f("*string"),
        "allocationMultiplier": _f("*quantity"),
    },
    "NodeAllocatableResource": {
        "mapping": _f("*NodeAllocatableMapping"),
        "overhead": _f("*NodeAllocatableOverhead"),
    },
    "NodeAllocatableMapping": {
        "capacityKey": _f("*string"),
        "capacityMultiplier": _f("*quantity"),
        "deviceMultiplier": _f("*quantity"),
    },
    "NodeAllocatableOverhead": {"perPod": _f("*quantity"), "perContainer": _f("*quantity")},
    # Taint rules.
    "DeviceTaintRuleSpec": {"deviceSelector": _f("*DeviceTaintSelector"), "taint": _req("DeviceTaint")},
    "DeviceTaintSelector": {
        "driver": _f("*string"),
        "pool": _f("*string"),
        "device": _f("*string"),
        "deviceClassName": _f("*string", until=34),
        "selectors": _f("[]DeviceSelector", until=34),
    },
    "DeviceTaintRuleStatus": {"conditions": _f("[]Condition")},
    # Shared with the rest of Kubernetes.
    "NodeSelector": {"nodeSelectorTerms": _req("[]NodeSelectorTerm")},
    "NodeSelectorTerm": {
        "matchExpressions": _f("[]NodeSelectorRequirement"),
        "matchFields": _f("[]NodeSelectorRequirement"),
    },
    "NodeSelectorRequirement": {
        "key": _req("string"),
        "operator": _req("string", enums=NODE_OPERATORS),
        "values": _f("[]string"),
    },
    "Condition": {
        "type": _req("string"),
        "status": _req("string"),
        "observedGeneration": _f("int64"),
        "lastTransitionTime": _req("time"),
        "reason": _req("string"),
        "message": _req("string"),
    },
    "ObjectMeta": {
        "name": _f("string"),
        "generateName": _f("string"),
        "namespace": _f("string"),
        "labels": _f("{}string"),
        "annotations": _f("{}string"),
        "finalizers": _f("[]string"),
        "ownerReferences": _f("[]OwnerReference"),
        "selfLink": _f("string"),
        "uid": _f("string"),
        "resourceVersion": _f("string"),
        "generation": _f("int64"),
        "creationTimestamp": _f("time"),
        "deletionTimestamp": _f("*time"),
        "deletionGracePeriodSeconds": _f("*int64"),
        "managedFields": _f("[]ManagedFieldsEntry"),
    },
    "OwnerReference": {
        "apiVersion": _req("string"),
        "kind": _req("string"),
        "name": _req("string"),
        "uid": _req("string"),
        "controller": _f("*bool"),
        "blockOwnerDeletion": _f("*bool"),
    },
    "ManagedFieldsEntry": {
        "manager": _f("string"),
        "operation": _f("string"),
        "apiVersion": _f("string"),
        "time": _f("*time"),
        "fieldsType": _f("string"),
        "fieldsV1": _f("*raw"),
        "subresource": _f("string"),
    },
}

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,]\d+)?(?:Z|[+-](\d\d):(\d\d))", re.ASCII)


@dataclass(frozen=True)
class _Type:
    """A parsed field type: `shape` is "[", "{" or "", `item` the type without it."""

    shape: str
    item: str


@cache
def fields(struct: str, version: str, minor: int) -> dict[str, Field]:
    """The fields that `struct` has in an API version (`resource.k8s.io/v1`) of Kubernetes 1.C(minor)."""
    return {name: f for name, f in STRUCTS[struct].items() if version in f.versions and f.since <= minor <= f.until}


@cache
def _types(struct: str, version: str, minor: int) -> dict[str, _Type]:
    kinds = {}
    for name, f in fields(struct, version, minor).items():
        kind = f.type.lstrip("*")
        shape = kind[0] if kind[0] in "[{" else ""
        kinds[name] = _Type(shape, kind[2:] if shape else kind)
    return kinds


def child(path: str, name: str) -> str:
    """The path of a field, as the server writes paths."""
    return f"{path}.{name}" if path else name


def is_time(text: str) -> bool:
    """Whether the API takes `text` for an RFC 3339 time."""
    match = _TIME.fullmatch(text)
    if not match:
        return False
    year, month, day, hour, minute, second, zone_hour, zone_minute = (int(part or 0) for part in match.groups())
    if hour > 23 or minute > 59 or second > 59 or zone_hour > 24 or zone_minute > 60:
        return False
    try:
        datetime.date(year or 4, month, day)  # year 0 was a leap year too
    except ValueError:
        return False
    return True


def _zero(item: str) -> object:
    return {"string": "", "bool": False, "int64": 0, "quantity": 0, "time": None, "raw": None}.get(item, {})


class Decoder:
    """Reads a JSON object into the fields of a kind, as the API server's strict decoder does.

    `types` gets what no server would read, `unknown` the fields, with their values, that a strict server refuses and
    a lenient one drops.
    """

    def __init__(self, version: str, minor: int) -> None:
        self._version, self._minor = version, minor
        self.types: list[Problem] = []
        self.unknown: list[tuple[Problem, object]] = []

    def struct(self, value: object, name: str, path: str) -> Object:
        """`value` without unset (null) and unknown fields; lists and maps hold no null either."""
        if not isinstance(value, dict):
            self._wrong(path, "an object", value)
            return {}
        known = _types(name, self._version, self._minor)
        read: Object = {}
        for key, item in value.items():
            kind = known.get(key) if isinstance(key, str) else None
            if kind is None:
                problem = Problem(
                    child(path, str(key)), f"is not a field of {name} in {self._version}", "unknown-field"
                )
                self.unknown.append((problem, item))
            elif item is not None:
                read[key] = self._value(item, kind, f"{path}.{key}" if path else key)
        return read

    def _value(self, value: object, kind: _Type, path: str) -> object:
        if kind.shape == "[":
            if not isinstance(value, list):
                self._wrong(path, "a list", value)
                return []
            if kind.item == "string" and all(isinstance(item, str) for item in value):
                return value
            return [self._item(item, kind.item, f"{path}[{index}]") for index, item in enumerate(value)]
        if kind.shape == "{":
            if not isinstance(value, dict):
                self._wrong(path, "an object", value)
                return {}
            for key in value:
                if not isinstance(key, str):
                    self._wrong(f"{path}[{key}]", "a string as key", key)
            return {key: self._item(item, kind.item, f"{path}[{key}]") for key, item in value.items()}
        return self._item(value, kind.item, path)

    def _item(self, value: object, kind: str, path: str) -> object:  # noqa: C901
        if value is None:
            return _zero(kind)
        if kind == "string":
            if not isinstance(value, str):
                self._wrong(path, "a string", value)
                return ""
        elif kind == "bool":
            if not isinstance(value, bool):
                self._wrong(path, "true or false", value)
                return False
        elif kind == "int64":
            if not isinstance(value, int) or isinstance(value, bool):
                self._wrong(path, "an integer", value)
                return 0
            if not limits.INT64_MIN <= value <= limits.INT64_MAX:
                self._wrong(path, "an integer of 64 bits", value)
                return 0
        elif kind == "quantity":
            try:
                quantity.parse(value)
            except quantity.QuantityError as error:
                self.types.append(Problem(path, f"must be a quantity: {error}", "quantity"))
                return "0"
        elif kind == "time":
            if not isinstance(value, str) or not is_time(value):
                self._wrong(path, "a time such as 2026-01-02T03:04:05Z", value)
                return None
        elif kind != "raw":
            return self.struct(value, kind, path)
        return value

    def _wrong(self, path: str, wanted: str, value: object) -> None:
        names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
        self.types.append(
            Problem(path, f"must be {wanted}, not {names.get(type(value), type(value).__name__)}", "type")
        )
