# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The rules for DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

from ..kube import limits
from ..kube.objects import Object
from . import schema
from .validate_metadata import MetadataRules

_MODES = ("All", "ExactCount")
_OPERATORS = ("Equal", "Exists")


class ClaimRules(MetadataRules):
    """Rules for requests, constraints and configurations."""

    def device_class(self, spec: Object, path: str) -> None:
        """Check the spec of a DeviceClass."""
        self._selectors(spec.get("selectors", []), f"{path}.selectors")
        configs = spec.get("config", [])
        if self._within(configs, limits.CONFIGS, f"{path}.config"):
            for index, config in enumerate(configs):
                self._config(config, f"{path}.config[{index}]")
        name = spec.get("extendedResourceName")
        if name is not None:
            wrong = limits.extended_resource_name(name)
            if wrong:
                self._add(f"{path}.extendedResourceName", f"{name!r} {wrong}", "name")

    def template(self, spec: Object, path: str) -> None:
        """Check the spec of a ResourceClaimTemplate."""
        meta = spec.get("metadata", {})
        self._labels(meta, f"{path}.metadata")
        fields = schema.STRUCTS["ObjectMeta"]
        for name, value in meta.items():
            if name in ("labels", "annotations"):
                continue
            if value or fields[name].type[0] in "*[{":
                self._add(f"{path}.metadata.{name}", "cannot be set in a template", "forbidden")
        self.claim(spec.get("spec", {}), f"{path}.spec")

    def claim(self, spec: Object, path: str) -> None:
        """Check the spec of a ResourceClaim."""
        devices, path = spec.get("devices", {}), f"{path}.devices"
        requests = devices.get("requests", [])
        names: dict[str, set[str]] = {}
        for request in requests:
            names[request.get("name", "")] = {sub.get("name", "") for sub in request.get("firstAvailable", [])}
        constraints, configs = devices.get("constraints", []), devices.get("config", [])
        constrained = constrained_attributes(constraints)
        if self._within(requests, limits.REQUESTS, f"{path}.requests"):
            self._unique((request.get("name", "") for request in requests), f"{path}.requests", "name")
            for index, request in enumerate(requests):
                self._request(request, f"{path}.requests[{index}]", constrained)
        if self._within(constraints, limits.CONSTRAINTS, f"{path}.constraints"):
            for index, constraint in enumerate(constraints):
                self._constraint(constraint, f"{path}.constraints[{index}]", names)
        if self._within(configs, limits.CONFIGS, f"{path}.config"):
            for index, config in enumerate(configs):
                self._references(config.get("requests", []), f"{path}.config[{index}].requests", names)
                self._config(config, f"{path}.config[{index}]")

    def _request(self, request: Object, path: str, constrained: dict[str, set[str]]) -> None:
        name = request.get("name", "")
        self._name(name, limits.dns_label, f"{path}.name")
        exactly, alternatives = request.get("exactly"), request.get("firstAvailable", [])
        if (exactly is not None) == bool(alternatives):
            self._add(path, "must have exactly one of exactly and firstAvailable", "exactly-one")
            if self._minor >= 35:
                return
        if exactly is not None:
            self._device_request(exactly, f"{path}.exactly", name, constrained)
        if not self._within(alternatives, limits.FIRST_AVAILABLE, f"{path}.firstAvailable"):
            return
        self._unique((sub.get("name", "") for sub in alternatives), f"{path}.firstAvailable", "name")
        for index, sub in enumerate(alternatives):
            alternative_path = f"{path}.firstAvailable[{index}]"
            self._name(sub.get("name", ""), limits.dns_label, f"{alternative_path}.name")
            self._device_request(sub, alternative_path, f"{name}/{sub.get('name', '')}", constrained)

    def _device_request(self, request: Object, path: str, name: str, constrained: dict[str, set[str]]) -> None:
        self._name(request.get("deviceClassName", ""), limits.dns_subdomain, f"{path}.deviceClassName")
        self._selectors(request.get("selectors", []), f"{path}.selectors")
        mode = request.get("allocationMode") or "ExactCount"
        count = request.get("count", 0)
        if mode not in _MODES:
            self._one_of(mode, _MODES, f"{path}.allocationMode")
        elif mode == "All" and count:
            self._add(f"{path}.count", "must not be set if allocationMode is All", "forbidden")
        elif mode == "ExactCount" and count < 0:
            self._add(f"{path}.count", "must be more than zero", "value")
        for index, toleration in enumerate(request.get("tolerations", [])):
            self._toleration(toleration, f"{path}.tolerations[{index}]")
        if "derivedAttributes" in request:
            self._derived_attributes(request["derivedAttributes"], f"{path}.derivedAttributes", name, constrained)

    def _derived_attributes(
        self, attributes: list[Object], path: str, name: str, constrained: dict[str, set[str]]
    ) -> None:
        if not self._within(attributes, limits.DERIVED_ATTRIBUTES, path):
            return
        self._unique((attribute.get("name", "") for attribute in attributes), path)
        constrained_here = (
            constrained.get("", set()) | constrained.get(name, set()) | constrained.get(name.split("/")[0], set())
        )
        for index, attribute in enumerate(attributes):
            attribute_path = f"{path}[{index}]"
            derived, expression = attribute.get("name", ""), attribute.get("expression", "")
            if self._name(derived, self._fully_qualified, f"{attribute_path}.name") and derived not in constrained_here:
                self._add(
                    f"{attribute_path}.name", f"no constraint on this request uses {derived}", "unknown-reference"
                )
            if not expression.strip():
                self._add(f"{attribute_path}.expression", "is required", "required")
            elif limits.size(expression) > limits.CEL_BYTES:
                self._add(f"{attribute_path}.expression", f"is longer than {limits.CEL_BYTES} bytes", "too-long")

    def _toleration(self, toleration: Object, path: str) -> None:
        if toleration.get("key"):
            self._name(toleration["key"], limits.label_key, f"{path}.key")
        operator, value = toleration.get("operator") or "Equal", toleration.get("value", "")
        if operator not in _OPERATORS:
            self._one_of(operator, _OPERATORS, f"{path}.operator")
        elif operator == "Exists":
            if value:
                self._add(f"{path}.value", "must be empty if operator is Exists", "forbidden")
        elif limits.label_value(value):
            self._add(f"{path}.value", limits.label_value(value), "label")
        if toleration.get("effect"):
            self._one_of(toleration["effect"], limits.at(schema.EFFECTS, self._minor), f"{path}.effect")

    def _references(self, requests: list[str], path: str, names: dict[str, set[str]]) -> None:
        """Check references to requests; `names` are the alternatives by request."""
        if not self._within(requests, limits.REQUESTS, path):
            return
        self._unique(requests, path)
        for index, reference in enumerate(requests):
            request, slash, sub = reference.partition("/")
            if request not in names or (slash and sub not in names[request]):
                self._add(f"{path}[{index}]", f"{reference!r} is not a request of this claim", "unknown-reference")

    def _constraint(self, constraint: Object, path: str, names: dict[str, set[str]]) -> None:
        self._references(constraint.get("requests", []), f"{path}.requests", names)
        match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
        if match is None and distinct is None:
            consumable = self._enabled("DRAConsumableCapacity")
            allowed = "one of matchAttribute and distinctAttribute" if consumable else "matchAttribute"
            self._add(path if consumable else f"{path}.matchAttribute", f"{allowed} is required", "required")
        if match is not None:
            self._name(match, self._fully_qualified, f"{path}.matchAttribute")
        if distinct is not None and (match is None or self._minor >= 37):
            self._name(distinct, self._fully_qualified, f"{path}.distinctAttribute")

    def _config(self, config: Object, path: str) -> None:
        opaque = config.get("opaque")
        if opaque is None:
            self._add(f"{path}.opaque", "is required", "required")
            return
        self._name(opaque.get("driver", ""), limits.driver_name, f"{path}.opaque.driver")
        parameters, parameters_path = opaque.get("parameters"), f"{path}.opaque.parameters"
        if parameters is None:
            self._add(parameters_path, "is required", "required")
        elif not isinstance(parameters, dict):
            self._add(parameters_path, "must be an object", "type")
        elif json_error := limits.json_error(parameters):
            self._add(parameters_path, json_error, "type")
        elif limits.opaque_size(parameters) > limits.OPAQUE_BYTES:
            self._add(parameters_path, f"is longer than {limits.OPAQUE_BYTES} bytes of JSON", "too-long")


def constrained_attributes(constraints: list[Object]) -> dict[str, set[str]]:
    """The attributes that constraints use, by request name; "" means all requests."""
    attributes: dict[str, set[str]] = {}
    for constraint in constraints:
        attribute = constraint.get("matchAttribute", constraint.get("distinctAttribute"))
        if attribute is not None:
            for request in constraint.get("requests") or [""]:
                attributes.setdefault(request, set()).add(attribute)
    return attributes
