# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The fields of all DRA kinds in all versions of `resource.k8s.io`, as Kubernetes 1.34 to 1.37 serve them.

Source: k8s.io/api/resource/{v1,v1beta2,v1beta1,v1alpha3}/types.go of these releases. The types of fields are written
as follows:

- `string`, `bool`, `int64`, `quantity`, `time` (RFC 3339), `raw` (any JSON);
- the name of a structure;
- `[]TYPE` a list, `{}TYPE` a map with string keys;
- a leading `*` if an absent field differs from its zero value, so that `false` or `""` counts as set.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace
from functools import cache

from ..kube import limits
from ..kube.versions import NEWEST, OLDEST, V1, V1ALPHA3, V1BETA1, V1BETA2

_ALL = frozenset({V1, V1BETA2, V1BETA1, V1ALPHA3})
#: The version whose requests contain the fields of `exactly` directly.
_FLAT = frozenset({V1BETA1})
_NESTED = _ALL - _FLAT


@dataclass(frozen=True)
class Field:
    """One field: its type, the minor releases (`since` to `until`) and the API `versions` that have it.

    `required_until` is the last minor release whose OpenAPI document requires the field, `enums` the values that these
    documents list from a minor release on. They are for documentation; `validate.py` decides what the server accepts.
    """

    type: str
    required_until: int = 0
    enums: t.Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    since: int = OLDEST
    until: int = NEWEST
    versions: frozenset[str] = field(default=_ALL)

    def required(self, minor: int) -> bool:
        """Whether the OpenAPI document of Kubernetes 1.`minor` requires the field."""
        return minor <= self.required_until

    def enum(self, minor: int) -> tuple[str, ...]:
        """The values that the OpenAPI document of Kubernetes 1.`minor` lists; empty if it lists none."""
        return limits.at(self.enums, minor) if self.enums and minor >= min(self.enums) else ()


def _f(kind: str, **options: t.Any) -> Field:
    """An optional field."""
    return Field(kind, **options)


def _req(kind: str, **options: t.Any) -> Field:
    """A required field."""
    return Field(kind, **{"required_until": NEWEST, **options})


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
    """The fields, limited to some API versions."""
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


@cache
def fields(struct: str, version: str, minor: int) -> dict[str, Field]:
    """The fields that `struct` has in an API version (`resource.k8s.io/v1`) of Kubernetes 1.`minor`."""
    return {name: f for name, f in STRUCTS[struct].items() if version in f.versions and f.since <= minor <= f.until}


def child(path: str, name: str) -> str:
    """The path of a field, as the server writes paths."""
    return f"{path}.{name}" if path else name
