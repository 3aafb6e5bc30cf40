# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The rules for capacities, counters and node resources of devices."""

from __future__ import annotations

import typing as t
from fractions import Fraction

from ..kube import limits, quantity
from ..kube.objects import Object
from .validate_base import Rules


class CapacityRules(Rules):
    """Rules for amounts: capacities, counters and node resources."""

    def _key_path(self, path: str, key: str) -> str:
        """The path of an error in a map's key: 1.34 reports it at the key, later releases at the map."""
        return f"{path}[{key}]" if self._minor == 34 else path

    def _capacity(self, capacity: Object, path: str, shared: bool) -> None:
        policy, path = capacity.get("requestPolicy"), f"{path}.requestPolicy"
        if policy is None:
            return
        if not shared:
            self._add(path, "needs allowMultipleAllocations on the device", "forbidden")
            return
        value = quantity.parse(capacity.get("value", "0"))
        values, valid_range = policy.get("validValues", []), policy.get("validRange")
        if values and valid_range is not None:
            self._add(path, "must not have both validValues and validRange", "exactly-one")
        elif values or valid_range is not None:
            if "default" not in policy:
                self._add(f"{path}.default", "is required with validValues or validRange", "required")
            elif values:
                self._valid_values(quantity.parse(policy["default"]), value, values, f"{path}.validValues")
            else:
                self._valid_range(quantity.parse(policy["default"]), value, valid_range, f"{path}.validRange")

    def _valid_values(self, default: Fraction, capacity: Fraction, texts: list[quantity.Quantity], path: str) -> None:
        values = [quantity.parse(text) for text in texts]
        for index, (value, next_value) in enumerate(zip(values, values[1:])):
            if value > next_value:
                self._add(f"{path}[{index + 1}]", "values must be in ascending order", "order")
        if self._within(values, limits.VALID_VALUES, path):
            for index, value in enumerate(values):
                if value > capacity:
                    self._add(f"{path}[{index}]", f"{texts[index]} is more than the capacity", "value")
            # Without fractional ranges, 500m and 1 are equal for the server.
            exact = self._enabled("DRAFractionalCapacityRange")
            self._unique((value if exact else quantity.integer(value) for value in values), path)
        if default not in values:
            self._add(path, "the default must be one of the values", "value")

    def _valid_range(self, default: Fraction, capacity: Fraction, valid_range: Object, path: str) -> None:
        if "min" not in valid_range:
            self._add(f"{path}.min", "is required", "required")
            return
        minimum = quantity.parse(valid_range["min"])
        maximum, step = (quantity.parse(valid_range[name]) if name in valid_range else None for name in ("max", "step"))
        default_path = f"{path}.default" if self._minor >= 37 else ""
        if minimum > capacity:
            self._add(f"{path}.min", "is more than the capacity", "value")
        if default < minimum:
            self._add(default_path or f"{path}.min", "the default is less than min", "value")
        if maximum is not None:
            if minimum > maximum:
                self._add(f"{path}.max", "is less than min", "value")
            if maximum > capacity:
                self._add(f"{path}.max", "is more than the capacity", "value")
            if default > maximum:
                self._add(default_path or f"{path}.max", "the default is more than max", "value")
        bounds = {"default": default, "min": minimum, "max": maximum, "step": step}
        self._range_steps({name: bound for name, bound in bounds.items() if bound is not None}, capacity, path)

    def _range_steps(self, bounds: t.Mapping[str, Fraction], capacity: Fraction, path: str) -> None:
        """Check that default and maximum of a range are a whole number of steps from its minimum."""
        minimum, step = bounds["min"], bounds.get("step")
        to_integer: t.Callable[[Fraction], int] = quantity.integer
        fractional = self._enabled("DRAFractionalCapacityRange") and any(
            bound.denominator > 1 for bound in bounds.values()
        )
        if fractional:
            to_integer = quantity.milli
            invalid = [name for name, bound in bounds.items() if Fraction(quantity.milli(bound), 1000) != bound]
            if self._add_each(path, invalid, "must be a whole number of thousandths in 64 bits"):
                return
        if step is None:
            return
        if self._minor >= 37 and step <= 0:
            self._add(f"{path}.step", "must be more than zero", "value")
            return
        if minimum + step > capacity:
            self._add(f"{path}.step", "one step from min is more than the capacity", "value")
        if self._minor >= 37 and not fractional:
            invalid = [name for name, bound in bounds.items() if not 0 <= bound <= limits.INT64_MAX]
            if self._add_each(path, invalid, "must be from 0 to 2^63-1"):
                return
        stride = to_integer(step)
        if stride == 0:
            # Older servers divide by the step and return an internal error, which also refuses the object.
            self._add(f"{path}.step", "must be more than zero", "value")
            return
        for bound in (bounds[name] for name in ("default", "max") if name in bounds):
            if (to_integer(bound) - to_integer(minimum)) % stride:
                self._add(f"{path}.step", "default and max must be a whole number of steps from min", "value")

    def _add_each(self, path: str, names: t.Sequence[str], message: str) -> bool:
        """Add a problem for each of the fields. Returns whether there are any."""
        for name in names:
            self._add(f"{path}.{name}", message, "value")
        return bool(names)

    def _counters(self, counters: Object, limit: int | None, path: str) -> None:
        if not counters:
            self._add(path, "is required", "required")
        elif self._within(counters, limit, path, "counters"):
            for name in counters:
                self._name(name, limits.dns_label, self._key_path(path, name))

    def _consumed_counters(self, consumptions: list[Object], path: str) -> None:
        if not self._within(consumptions, limits.at(limits.CONSUMED_SETS, self._minor), path, "counter sets"):
            return
        self._unique((consumption.get("counterSet", "") for consumption in consumptions), path, "counterSet")
        for index, consumption in enumerate(consumptions):
            consumption_path = f"{path}[{index}]"
            name, groups = consumption.get("counterSet", ""), consumption.get("compatibilityGroups", [])
            self._name(name, limits.dns_label if self._minor >= 35 else accept_any, f"{consumption_path}.counterSet")
            limit = limits.at(limits.COUNTERS_PER_CONSUMPTION, self._minor)
            self._counters(consumption.get("counters", {}), limit, f"{consumption_path}.counters")
            if self._within(groups, limits.COMPATIBILITY_GROUPS, f"{consumption_path}.compatibilityGroups"):
                self._unique(groups, f"{consumption_path}.compatibilityGroups")
                for number, group in enumerate(groups):
                    self._name(group, limits.dns_label, f"{consumption_path}.compatibilityGroups[{number}]")

    def _counters_134(self, devices: list[Object], counter_sets: list[Object], path: str) -> None:
        """The rules of 1.34, where a slice contains devices and counter sets, and the total of counters is limited."""
        known = {counter_set.get("name", ""): counter_set.get("counters", {}) for counter_set in counter_sets}
        if sum(map(len, known.values())) > limits.SHARED_COUNTERS_134:
            self._add(f"{path}.sharedCounters", f"has more than {limits.SHARED_COUNTERS_134} counters", "too-many")
        total = 0
        for index, device in enumerate(devices):
            device_path, consumed = f"{path}.devices[{index}]", 0
            for number, consumption in enumerate(device.get("consumesCounters", [])):
                name, counters = consumption.get("counterSet", ""), consumption.get("counters", {})
                consumed += len(counters)
                consumption_path = f"{device_path}.consumesCounters[{number}]"
                if name not in known:
                    self._add(
                        f"{consumption_path}.counterSet",
                        f"{name!r} is not a shared counter set of this slice",
                        "unknown-reference",
                    )
                for counter in counters:
                    if name in known and counter not in known[name]:
                        self._add(
                            f"{consumption_path}.counters",
                            f"{counter!r} is not a counter of {name}",
                            "unknown-reference",
                        )
            if consumed > limits.COUNTERS_PER_DEVICE_134:
                self._add(device_path, f"consumes more than {limits.COUNTERS_PER_DEVICE_134} counters", "too-many")
            total += consumed
        if total > limits.DEVICE_COUNTERS_PER_SLICE_134:
            limit = limits.DEVICE_COUNTERS_PER_SLICE_134
            self._add(f"{path}.devices", f"consume more than {limit} counters in total", "too-many")

    def _node_resources(self, device: Object, path: str) -> None:
        capacities = device.get("capacity", {})
        for name, mapping in device.get("nodeAllocatableResourceMappings", {}).items():
            entry_path = f"{path}.nodeAllocatableResourceMappings[{name}]"
            if "/" in name and "kubernetes.io/" not in name:
                self._add(entry_path, "must be a resource of the node", "name")
            if not mapping:
                self._add(entry_path, "must have allocationMultiplier or capacityKey", "exactly-one")
            self._positive(mapping, "allocationMultiplier", entry_path)
            self._capacity_key(mapping, capacities, entry_path)
        for name, entry in device.get("nodeAllocatableResources", {}).items():
            entry_path = f"{path}.nodeAllocatableResources[{name}]"
            if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
                self._add(entry_path, "must be a resource of the node: cpu, memory or hugepages", "name")
            self._node_resource(entry, capacities, entry_path)

    def _node_resource(self, entry: Object, capacities: Object, path: str) -> None:
        mapping, overhead = entry.get("mapping"), entry.get("overhead")
        if mapping is None and overhead is None:
            self._add(path, "must have mapping or overhead", "exactly-one")
        if mapping is not None:
            if ("capacityKey" in mapping) == ("deviceMultiplier" in mapping):
                self._add(f"{path}.mapping", "must have one of capacityKey and deviceMultiplier", "exactly-one")
            for key, required_key in (("capacityKey", "capacityMultiplier"), ("capacityMultiplier", "capacityKey")):
                if key in mapping and required_key not in mapping:
                    self._add(f"{path}.mapping.{required_key}", f"is required with {key}", "required")
            self._capacity_key(mapping, capacities, f"{path}.mapping")
            self._positive(mapping, "deviceMultiplier", f"{path}.mapping")
            if "capacityKey" in mapping:
                self._positive(mapping, "capacityMultiplier", f"{path}.mapping")
        if overhead is not None:
            if not overhead:
                self._add(f"{path}.overhead", "must have perPod or perContainer", "exactly-one")
            for part, amount in overhead.items():
                if quantity.parse(amount) < 0:
                    self._add(f"{path}.overhead.{part}", "must not be negative", "value")

    def _capacity_key(self, mapping: Object, capacities: Object, path: str) -> None:
        if "capacityKey" in mapping and mapping["capacityKey"] not in (set(capacities) - {""}):
            self._add(f"{path}.capacityKey", "must be a capacity of the device", "unknown-reference")

    def _positive(self, mapping: Object, name: str, path: str) -> None:
        if name in mapping and quantity.parse(mapping[name]) <= 0:
            self._add(f"{path}.{name}", "must be more than zero", "value")


def accept_any(_name: str) -> str:
    """A name check that accepts any name."""
    return ""
