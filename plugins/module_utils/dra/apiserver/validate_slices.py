# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The rules for ResourceSlices and the devices in them."""

from __future__ import annotations

from ..kube import limits
from ..kube.objects import Object
from . import schema
from .validate_capacity import CapacityRules
from .validate_taints import TaintRules

_SELECTOR_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}


class SliceRules(TaintRules, CapacityRules):
    """Rules for pools, nodes and devices."""

    def resource_slice(self, spec: Object, path: str) -> None:
        """Check the spec of a ResourceSlice."""
        self._name(spec.get("driver", ""), limits.driver_name, f"{path}.driver")
        pool = spec.get("pool", {})
        self._name(pool.get("name", ""), limits.pool_name, f"{path}.pool.name")
        if pool.get("resourceSliceCount", 0) <= 0:
            self._add(f"{path}.pool.resourceSliceCount", "must be more than zero", "value")
        if pool.get("generation", 0) < 0:
            self._add(f"{path}.pool.generation", "must not be less than zero", "value")
        self._nodes(spec, path, ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"), one_term=True)
        devices, counters = spec.get("devices", []), spec.get("sharedCounters", [])
        if self._minor >= 35 and "devices" in spec and "sharedCounters" in spec:
            self._add(path, "must have only one of devices and sharedCounters", "exactly-one")
        limit, what = limits.DEVICES, "devices"
        if any(self._has_advanced_fields(device) for device in devices):
            limit, what = limits.at(limits.DEVICES_ADVANCED, self._minor), "devices, some with taints or counters"
        if self._within(devices, limit, f"{path}.devices", what):
            self._unique((device.get("name", "") for device in devices), f"{path}.devices", "name")
            per_device = spec.get("perDeviceNodeSelection", False)
            for index, device in enumerate(devices):
                self._device(device, f"{path}.devices[{index}]", per_device)
        if self._within(counters, limits.at(limits.COUNTER_SETS, self._minor), f"{path}.sharedCounters"):
            self._unique((counter_set.get("name", "") for counter_set in counters), f"{path}.sharedCounters", "name")
            for index, counter_set in enumerate(counters):
                set_path = f"{path}.sharedCounters[{index}]"
                self._name(counter_set.get("name", ""), limits.dns_label, f"{set_path}.name")
                limit_each = limits.at(limits.COUNTERS_PER_SET, self._minor)
                self._counters(counter_set.get("counters", {}), limit_each, f"{set_path}.counters")
        if self._minor == 34:
            self._counters_134(devices, counters, path)
        self._partition_type(spec, devices, path)
        self._skip_node_operations(spec.get("skipNodeOperations", []), f"{path}.skipNodeOperations")

    def _has_advanced_fields(self, device: Object) -> bool:
        """Whether a device lowers the maximum number of devices in its slice."""
        if device.get("taints") or device.get("consumesCounters"):
            return True
        return self._minor >= 36 and any(
            name in attribute
            for attribute in device.get("attributes", {}).values()
            for name in ("ints", "bools", "strings", "versions")
        )

    def _nodes(self, holder: Object, path: str, fields: tuple[str, ...], one_term: bool) -> None:
        """Check that exactly one of the fields that select nodes is set."""
        set_fields = 0
        for field in fields:
            value = holder.get(field)
            if value is None:
                continue
            field_path = f"{path}.{field}"
            if field == "nodeSelector":
                set_fields += 1
                self._node_selector(value, field_path, one_term)
            elif value:
                set_fields += 1
                if field == "nodeName":
                    self._name(value, limits.dns_subdomain, field_path)
            else:
                self._add(field_path, "must be unset or have a value", "value")
        if set_fields != 1:
            self._add(path, f"must have exactly one of {', '.join(fields)}", "exactly-one")

    def _node_selector(self, selector: Object, path: str, one_term: bool) -> None:
        terms, path = selector.get("nodeSelectorTerms", []), f"{path}.nodeSelectorTerms"
        if not terms:
            self._add(path, "is required", "required")
        elif one_term and len(terms) != 1:
            self._add(path, "must have exactly one term", "exactly-one")
        for index, term in enumerate(terms):
            for number, requirement in enumerate(term.get("matchExpressions", [])):
                self._match_label(requirement, f"{path}[{index}].matchExpressions[{number}]")
            for number, requirement in enumerate(term.get("matchFields", [])):
                self._match_field(requirement, f"{path}[{index}].matchFields[{number}]")

    def _match_label(self, requirement: Object, path: str) -> None:
        operator, values = requirement.get("operator", ""), requirement.get("values", [])
        if operator not in _SELECTOR_OPERATORS:
            self._one_of(operator, _SELECTOR_OPERATORS, f"{path}.operator")
        elif operator in ("In", "NotIn") and not values:
            self._add(f"{path}.values", f"is required if operator is {operator}", "required")
        elif operator in ("Exists", "DoesNotExist") and values:
            self._add(f"{path}.values", f"must be empty if operator is {operator}", "forbidden")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            self._add(f"{path}.values", f"must be one value if operator is {operator}", "required")
        self._name(requirement.get("key", ""), limits.label_key, f"{path}.key")
        for index, value in enumerate(values):
            wrong = limits.label_value(value)
            if wrong:
                self._add(f"{path}.values[{index}]", wrong, "label")

    def _match_field(self, requirement: Object, path: str) -> None:
        operator, values = requirement.get("operator", ""), requirement.get("values", [])
        if operator not in ("In", "NotIn"):
            self._one_of(operator, ("In", "NotIn"), f"{path}.operator")
        elif len(values) != 1:
            self._add(f"{path}.values", "must be one value", "required")
        if requirement.get("key", "") != "metadata.name":
            self._add(f"{path}.key", "must be metadata.name", "value")
            return
        for index, value in enumerate(values):
            self._name(value, limits.dns_subdomain, f"{path}.values[{index}]")

    def _device(self, device: Object, path: str, per_device: bool) -> None:
        self._name(device.get("name", ""), limits.dns_label, f"{path}.name")
        attributes, capacities = device.get("attributes", {}), device.get("capacity", {})
        if len(attributes) + len(capacities) > limits.ATTRIBUTES_AND_CAPACITIES:
            count, limit = len(attributes) + len(capacities), limits.ATTRIBUTES_AND_CAPACITIES
            self._add(path, f"has {count} attributes and capacities; at most {limit} are allowed", "too-many")
        values = sum(value_count(attribute) for attribute in attributes.values()) if self._minor >= 36 else 0
        if values > limits.ATTRIBUTE_VALUES:
            limit = limits.ATTRIBUTE_VALUES
            self._add(path, f"has {values} attribute values; at most {limit} are allowed", "too-many")
        for name, attribute in attributes.items():
            self._qualified(name, f"{path}.attributes")
            self._attribute(attribute, f"{path}.attributes[{name}]")
        for name, capacity in capacities.items():
            self._qualified(name, f"{path}.capacity")
            self._capacity(capacity, f"{path}.capacity[{name}]", device.get("allowMultipleAllocations", False))
        taints = device.get("taints", [])
        if self._within(taints, limits.at(limits.TAINTS, self._minor), f"{path}.taints"):
            for index, taint in enumerate(taints):
                self._taint(taint, f"{path}.taints[{index}]")
        self._consumed_counters(device.get("consumesCounters", []), f"{path}.consumesCounters")
        node_fields = ("nodeName", "nodeSelector", "allNodes")
        if per_device:
            self._nodes(device, path, node_fields, one_term=False)
        elif any(field in device for field in node_fields):
            self._add(path, f"{', '.join(node_fields)} need perDeviceNodeSelection in the slice", "forbidden")
        self._binding_conditions(device, path)
        self._node_resources(device, path)

    def _qualified(self, name: str, path: str) -> None:
        wrong = limits.qualified_name(name)
        if wrong:
            self._add(self._key_path(path, name), f"{name!r} {wrong}", "name")

    def _attribute(self, attribute: Object, path: str) -> None:
        if len(attribute) != 1:
            self._add(path, "must have exactly one value", "exactly-one")
        for name, value in attribute.items():
            value_path = f"{path}.{name}"
            if isinstance(value, list) and not value:
                self._add(value_path, "must not be empty", "value")
            for index, text in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(text, str):
                    continue
                text_path = f"{value_path}[{index}]" if isinstance(value, list) else value_path
                if name.startswith("version") and limits.semver(text):
                    self._add(text_path, f"{text!r} {limits.semver(text)}", "version")
                if limits.size(text) > limits.ATTRIBUTE_VALUE_BYTES:
                    self._add(text_path, f"is longer than {limits.ATTRIBUTE_VALUE_BYTES} bytes", "too-long")

    def _binding_conditions(self, device: Object, path: str) -> None:
        binding, failure = device.get("bindingConditions", []), device.get("bindingFailureConditions", [])
        for name, conditions, limit in (
            ("bindingConditions", binding, limits.BINDING_CONDITIONS),
            ("bindingFailureConditions", failure, limits.BINDING_FAILURE_CONDITIONS),
        ):
            conditions_path = f"{path}.{name}"
            if self._within(conditions, limit, conditions_path):
                for index, condition in enumerate(conditions):
                    self._name(condition, limits.label_key, f"{conditions_path}[{index}]")
            self._unique(conditions, conditions_path)
        for index, condition in enumerate(failure):
            if condition in binding:
                self._add(f"{path}.bindingFailureConditions[{index}]", "is a binding condition as well", "duplicate")
        if bool(binding) != bool(failure):
            missing = "bindingFailureConditions" if binding else "bindingConditions"
            self._add(f"{path}.{missing}", "is required: the two fields must be set together", "required")

    def _partition_type(self, spec: Object, devices: list[Object], path: str) -> None:
        name = spec.get("partitionTypeAttribute")
        if name is None:
            return
        field_path = f"{path}.partitionTypeAttribute"
        if not any(device.get("consumesCounters") for device in devices):
            self._add(field_path, "needs devices that consume counters", "forbidden")
        if not self._name(name, self._fully_qualified, field_path):
            return
        domain = f"{spec.get('driver', '')}/"
        unqualified = name[len(domain) :] if name.startswith(domain) else ""
        for index, device in enumerate(devices):
            attributes = device.get("attributes", {})
            attribute = attributes.get(name, attributes.get(unqualified) if unqualified else None)
            if device.get("consumesCounters") and "string" not in (attribute or {}):
                self._add(f"{path}.devices[{index}].attributes[{name}]", "is required, as a string", "required")

    def _skip_node_operations(self, operations: list[str], path: str) -> None:
        self._unique(operations, path)
        for index, operation in enumerate(operations):
            self._one_of(operation, schema.SKIPPABLE, f"{path}[{index}]")
        if "NodePrepareResources" in operations and not {"NodeUnprepareResources", "*"} & set(operations):
            self._add(path, "NodePrepareResources needs NodeUnprepareResources as well", "value")


def value_count(attribute: Object) -> int:
    """The number of values of an attribute: the length of its lists, or one if it has none."""
    return sum(len(value) for value in attribute.values() if isinstance(value, list)) or 1
