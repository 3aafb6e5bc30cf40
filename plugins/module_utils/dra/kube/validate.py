# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The verdict of the Kubernetes API server on a DRA object, without a server.

Sources: pkg/apis/resource/validation/validation.go, pkg/apis/resource/v1/{defaults,zz_generated.validations}.go and
k8s.io/apimachinery/pkg/api/validation/objectmeta.go of Kubernetes 1.34 to 1.37. Like the server we read the object
strictly, drop what a feature gate hides, and only then apply the rules, in the terms of C(resource.k8s.io/v1).

What needs the cluster is left to it: that a namespace exists, and that one with C(adminAccess) carries the label
C(resource.kubernetes.io/admin-access).
"""

from __future__ import annotations

import typing as t
from dataclasses import replace
from fractions import Fraction

from . import limits, quantity, schema, versions
from .problems import Problem

Object = dict[str, t.Any]
Check = t.Callable[[str], str]

_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_GENERATED_PREFIX, _GENERATED_SUFFIX = 58, "bbbbb"  # the server cuts the prefix and adds five letters or digits
_MODES = ("All", "ExactCount")
_OPERATORS = ("Equal", "Exists")
_SELECTOR_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}


class CelEngine(t.Protocol):
    """What M(validate) needs of C(cel.Engine)."""

    def check(self, expression: str) -> list[str]:
        """What is wrong with a CEL selector: syntax, types, cost."""


def validate(
    obj: t.Mapping[str, t.Any],
    kubernetes: str = f"1.{schema.NEWEST}",
    gates: versions.Gates = None,
    cel: CelEngine | None = None,
) -> list[Problem]:
    """Every reason for which a server of release C(kubernetes) would refuse to create C(obj); none means it accepts.

    C(obj) is a DRA object in any version that the release serves, C(gates) the feature gates that the site changed. The
    reading is strict (C(fieldValidation=Strict)): unknown fields are refused. Fields behind a gate that is off are not
    judged, since the server drops them first; C(versions.unsupported) tells about these. Paths are those of the
    server's own errors; where it speaks of v1beta1 objects in the v1 form, we do not. CEL is judged by C(cel); without
    it, by its length alone.
    Raises ValueError where C(kubernetes) is no release from 1.34 on.
    """
    minor = versions.minor_of(kubernetes)
    kind, version = obj.get("kind"), obj.get("apiVersion")
    since = schema.SERVED.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if since is None or minor < since:
        return [Problem("apiVersion", f"Kubernetes 1.{minor} has no {kind} in {version}", "unserved")]
    decoder = schema.Decoder(str(version), minor)
    read = decoder.struct(obj, str(kind), "")
    found = [problem for problem, _unused in decoder.unknown]
    if decoder.types:
        return [*decoder.types, *found]
    v1 = versions.convert(read, schema.V1) if version == schema.V1BETA1 else read
    versions.drop_disabled(v1, minor, gates)
    rules = _Rules(minor, gates, cel, found)
    rules.object_meta(v1)
    {
        "DeviceClass": rules.device_class,
        "ResourceClaim": rules.claim,
        "ResourceClaimTemplate": rules.template,
        "ResourceSlice": rules.resource_slice,
        "DeviceTaintRule": rules.taint_rule,
    }[str(kind)](v1.get("spec", {}), "spec")
    if version == schema.V1BETA1:
        return [replace(problem, path=versions.own_path(problem.path, str(kind), version)) for problem in found]
    return found


class _Rules:
    """The rules of one release; every method judges a decoded part of an object and adds to C(found)."""

    def __init__(self, minor: int, gates: versions.Gates, cel: CelEngine | None, found: list[Problem]) -> None:
        self._minor = minor
        self._gates = gates
        self._cel = cel
        self._found = found

    # What all rules are made of.

    def _add(self, path: str, message: str, rule: str) -> None:
        self._found.append(Problem(path, message, rule))

    def _on(self, gate: str) -> bool:
        return versions.enabled(gate, self._minor, self._gates)

    def _name(self, name: str, check: Check, path: str, rule: str = "name") -> bool:
        if not name:
            self._add(path, "is required", "required")
            return False
        wrong = check(name)
        if wrong:
            self._add(path, f"{name!r} {wrong}" if len(name) < 80 else wrong, rule)
        return not wrong

    def _within(self, items: t.Sized, limit: int | None, path: str, what: str = "entries") -> bool:
        if limit is not None and len(items) > limit:
            self._add(path, f"has {len(items)} {what}, of which there may be {limit}", "too-many")
            return False
        return True

    def _unique(self, keys: t.Iterable[t.Hashable], path: str, field: str = "") -> None:
        """C(field) is what the keys are read from; only 1.34 has it in the path."""
        seen = set()
        for index, key in enumerate(keys):
            if key in seen:
                where = f"{path}[{index}]"
                where = f"{where}.{field}" if field and self._minor == 34 else where
                self._add(where, f"{key!r} is there twice", "duplicate")
            seen.add(key)

    def _one_of(self, value: str, allowed: t.Collection[str], path: str) -> None:
        if not value:
            self._add(path, "is required", "required")
        elif value not in allowed:
            self._add(path, f"{value!r} is none of {', '.join(sorted(allowed))}", "value")

    # Metadata.

    def object_meta(self, obj: Object) -> None:
        meta, kind = obj.get("metadata", {}), obj["kind"]
        name, prefix = meta.get("name", ""), meta.get("generateName", "")
        by_result = kind == "DeviceClass" and self._minor >= 35
        if prefix and by_result:
            if "/" in prefix or "%" in prefix:
                self._add("metadata.generateName", "must not contain '/' or '%'", "name")
        elif prefix:
            masked = prefix[:-2] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
            self._name(masked, limits.dns_subdomain, "metadata.generateName")
        if name:
            self._name(name, limits.dns_subdomain, "metadata.name")
        elif not prefix:
            self._add("metadata.name", "name or generateName is required", "required")
        else:
            self._name(prefix[:_GENERATED_PREFIX] + _GENERATED_SUFFIX, limits.dns_subdomain, "metadata.name")
        if kind in schema.NAMESPACED and meta.get("namespace"):
            self._name(meta["namespace"], limits.dns_label, "metadata.namespace")
        self._labels(meta, "metadata")
        finalizers = meta.get("finalizers", [])
        for index, finalizer in enumerate(finalizers):
            self._name(finalizer, limits.label_key, "metadata.finalizers")
            if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
                self._add(f"metadata.finalizers[{index}]", f"{finalizer!r} must have a domain", "name")
        if {"orphan", "foregroundDeletion"} <= set(finalizers):
            self._add("metadata.finalizers", "orphan and foregroundDeletion exclude each other", "exactly-one")
        self._owners(meta.get("ownerReferences", []))

    def _labels(self, meta: Object, path: str) -> None:
        for key, value in meta.get("labels", {}).items():
            wrong = limits.label_key(key) or limits.label_value(value)
            if wrong:
                self._add(f"{path}.labels", f"{key}={value}: {wrong}", "label")
        annotations = meta.get("annotations", {})
        for key in annotations:
            wrong = limits.label_key(key.lower())
            if wrong:
                self._add(f"{path}.annotations", f"{key}: {wrong}", "label")
        total = sum(limits.size(key) + limits.size(value) for key, value in annotations.items())
        if total > limits.ANNOTATIONS_BYTES:
            self._add(f"{path}.annotations", f"has {total} bytes, of {limits.ANNOTATIONS_BYTES} allowed", "too-long")

    def _owners(self, owners: list[Object]) -> None:
        for index, owner in enumerate(owners):
            path = "metadata.ownerReferences" + (f"[{index}]" if self._minor >= 35 else "")
            for name in ("apiVersion", "kind", "name", "uid"):
                if not owner.get(name):
                    self._add(f"{path}.{name}", "is required", "required")
            version = owner.get("apiVersion", "")
            if version and (version.count("/") > 1 or version.endswith("/")):
                self._add(f"{path}.apiVersion", "must be GROUP/VERSION or VERSION", "value")
            if (version, owner.get("kind")) == ("v1", "Event"):
                self._add(path, "an Event cannot own anything", "forbidden")
        if sum(bool(owner.get("controller")) for owner in owners) > 1:
            self._add("metadata.ownerReferences", "only one owner can be the controller", "exactly-one")

    # Classes, claims and templates.

    def device_class(self, spec: Object, path: str) -> None:
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
        devices, path = spec.get("devices", {}), f"{path}.devices"
        requests = devices.get("requests", [])
        names: dict[str, set[str]] = {}
        for request in requests:
            names[request.get("name", "")] = {sub.get("name", "") for sub in request.get("firstAvailable", [])}
        constraints, configs = devices.get("constraints", []), devices.get("config", [])
        used = _constrained(constraints)
        if self._within(requests, limits.REQUESTS, f"{path}.requests"):
            self._unique((request.get("name", "") for request in requests), f"{path}.requests", "name")
            for index, request in enumerate(requests):
                self._request(request, f"{path}.requests[{index}]", used)
        if self._within(constraints, limits.CONSTRAINTS, f"{path}.constraints"):
            for index, constraint in enumerate(constraints):
                self._constraint(constraint, f"{path}.constraints[{index}]", names)
        if self._within(configs, limits.CONFIGS, f"{path}.config"):
            for index, config in enumerate(configs):
                self._references(config.get("requests", []), f"{path}.config[{index}].requests", names)
                self._config(config, f"{path}.config[{index}]")

    def _request(self, request: Object, path: str, used: dict[str, set[str]]) -> None:
        name = request.get("name", "")
        self._name(name, limits.dns_label, f"{path}.name")
        exactly, alternatives = request.get("exactly"), request.get("firstAvailable", [])
        if (exactly is not None) == bool(alternatives):
            self._add(path, "must have exactly one of exactly and firstAvailable", "exactly-one")
            if self._minor >= 35:
                return
        if exactly is not None:
            self._device_request(exactly, f"{path}.exactly", name, used)
        if not self._within(alternatives, limits.FIRST_AVAILABLE, f"{path}.firstAvailable"):
            return
        self._unique((sub.get("name", "") for sub in alternatives), f"{path}.firstAvailable", "name")
        for index, sub in enumerate(alternatives):
            where = f"{path}.firstAvailable[{index}]"
            self._name(sub.get("name", ""), limits.dns_label, f"{where}.name")
            self._device_request(sub, where, f"{name}/{sub.get('name', '')}", used)

    def _device_request(self, request: Object, path: str, name: str, used: dict[str, set[str]]) -> None:
        self._name(request.get("deviceClassName", ""), limits.dns_subdomain, f"{path}.deviceClassName")
        self._selectors(request.get("selectors", []), f"{path}.selectors")
        mode = request.get("allocationMode") or "ExactCount"
        count = request.get("count", 0)
        if mode not in _MODES:
            self._one_of(mode, _MODES, f"{path}.allocationMode")
        elif mode == "All" and count:
            self._add(f"{path}.count", "must not be set where allocationMode is All", "forbidden")
        elif mode == "ExactCount" and count < 0:
            self._add(f"{path}.count", "must be more than zero", "value")
        for index, toleration in enumerate(request.get("tolerations", [])):
            self._toleration(toleration, f"{path}.tolerations[{index}]")
        if "derivedAttributes" in request:
            self._derived(request["derivedAttributes"], f"{path}.derivedAttributes", name, used)

    def _derived(self, attributes: list[Object], path: str, name: str, used: dict[str, set[str]]) -> None:
        if not self._within(attributes, limits.DERIVED_ATTRIBUTES, path):
            return
        self._unique((attribute.get("name", "") for attribute in attributes), path)
        constrained = used.get("", set()) | used.get(name, set()) | used.get(name.split("/")[0], set())
        for index, attribute in enumerate(attributes):
            where = f"{path}[{index}]"
            derived, expression = attribute.get("name", ""), attribute.get("expression", "")
            if self._name(derived, self._fully_qualified, f"{where}.name") and derived not in constrained:
                self._add(f"{where}.name", f"no constraint on this request uses {derived}", "unknown-reference")
            if not expression.strip():
                self._add(f"{where}.expression", "is required", "required")
            elif limits.size(expression) > limits.CEL_BYTES:
                self._add(f"{where}.expression", f"is longer than {limits.CEL_BYTES} bytes", "too-long")

    def _fully_qualified(self, name: str) -> str:
        return limits.fully_qualified_name(name, self._minor)

    def _selectors(self, selectors: list[Object], path: str) -> None:
        if not self._within(selectors, limits.SELECTORS, path):
            return
        for index, selector in enumerate(selectors):
            cel = selector.get("cel")
            if cel is None:
                self._add(f"{path}[{index}].cel", "is required", "required")
                continue
            expression, where = cel.get("expression", ""), f"{path}[{index}].cel.expression"
            if limits.size(expression) > limits.CEL_BYTES:
                self._add(where, f"is longer than {limits.CEL_BYTES} bytes", "too-long")
            elif not expression.strip():
                self._add(where, "is required", "required")
            elif self._cel is not None:
                for wrong in self._cel.check(expression):
                    self._add(where, wrong, "cel")

    def _toleration(self, toleration: Object, path: str) -> None:
        if toleration.get("key"):
            self._name(toleration["key"], limits.label_key, f"{path}.key")
        operator, value = toleration.get("operator") or "Equal", toleration.get("value", "")
        if operator not in _OPERATORS:
            self._one_of(operator, _OPERATORS, f"{path}.operator")
        elif operator == "Exists":
            if value:
                self._add(f"{path}.value", "must be empty where operator is Exists", "forbidden")
        elif limits.label_value(value):
            self._add(f"{path}.value", limits.label_value(value), "label")
        if toleration.get("effect"):
            self._one_of(toleration["effect"], limits.at(schema.EFFECTS, self._minor), f"{path}.effect")

    def _references(self, requests: list[str], path: str, names: dict[str, set[str]]) -> None:
        if not self._within(requests, limits.REQUESTS, path):
            return
        self._unique(requests, path)
        for index, reference in enumerate(requests):
            request, slash, sub = reference.partition("/")
            if request not in names or (slash and sub not in names[request]):
                self._add(f"{path}[{index}]", f"{reference!r} is no request of this claim", "unknown-reference")

    def _constraint(self, constraint: Object, path: str, names: dict[str, set[str]]) -> None:
        self._references(constraint.get("requests", []), f"{path}.requests", names)
        match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
        if match is None and distinct is None:
            consumable = self._on("DRAConsumableCapacity")
            wanted = "one of matchAttribute and distinctAttribute" if consumable else "matchAttribute"
            self._add(path if consumable else f"{path}.matchAttribute", f"{wanted} is required", "required")
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
        parameters, where = opaque.get("parameters"), f"{path}.opaque.parameters"
        if parameters is None:
            self._add(where, "is required", "required")
        elif not isinstance(parameters, dict):
            self._add(where, "must be an object", "type")
        elif limits.opaque_size(parameters) > limits.OPAQUE_BYTES:
            self._add(where, f"is longer than {limits.OPAQUE_BYTES} bytes of JSON", "too-long")

    # Taint rules.

    def taint_rule(self, spec: Object, path: str) -> None:
        selector, where = spec.get("deviceSelector", {}), f"{path}.deviceSelector"
        checks: dict[str, Check] = {
            "driver": limits.driver_name,
            "pool": limits.pool_name,
            "device": limits.dns_label,
            "deviceClassName": limits.dns_subdomain,
        }
        for name, check in checks.items():
            if name in selector:
                self._name(selector[name], check, f"{where}.{name}")
        self._selectors(selector.get("selectors", []), f"{where}.selectors")
        self._taint(spec.get("taint", {}), f"{path}.taint")

    def _taint(self, taint: Object, path: str) -> None:
        self._name(taint.get("key", ""), limits.label_key, f"{path}.key")
        wrong = limits.label_value(taint.get("value", ""))
        if wrong:
            self._add(f"{path}.value", wrong, "label")
        self._one_of(taint.get("effect", ""), limits.at(schema.EFFECTS, self._minor), f"{path}.effect")

    # Slices.

    def resource_slice(self, spec: Object, path: str) -> None:
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
        if any(self._advanced(device) for device in devices):
            limit, what = limits.at(limits.DEVICES_ADVANCED, self._minor), "devices, some with taints or counters"
        if self._within(devices, limit, f"{path}.devices", what):
            self._unique((device.get("name", "") for device in devices), f"{path}.devices", "name")
            per_device = spec.get("perDeviceNodeSelection", False)
            for index, device in enumerate(devices):
                self._device(device, f"{path}.devices[{index}]", per_device)
        if self._within(counters, limits.at(limits.COUNTER_SETS, self._minor), f"{path}.sharedCounters"):
            self._unique((counter_set.get("name", "") for counter_set in counters), f"{path}.sharedCounters", "name")
            for index, counter_set in enumerate(counters):
                where = f"{path}.sharedCounters[{index}]"
                self._name(counter_set.get("name", ""), limits.dns_label, f"{where}.name")
                limit_each = limits.at(limits.COUNTERS_PER_SET, self._minor)
                self._counters(counter_set.get("counters", {}), limit_each, f"{where}.counters")
        if self._minor == 34:
            self._counters_134(devices, counters, path)
        self._partition_type(spec, devices, path)
        self._skipped(spec.get("skipNodeOperations", []), f"{path}.skipNodeOperations")

    def _advanced(self, device: Object) -> bool:
        if device.get("taints") or device.get("consumesCounters"):
            return True
        return self._minor >= 36 and any(
            name in attribute
            for attribute in device.get("attributes", {}).values()
            for name in ("ints", "bools", "strings", "versions")
        )

    def _nodes(self, holder: Object, path: str, ways: tuple[str, ...], one_term: bool) -> None:
        given = 0
        for way in ways:
            value = holder.get(way)
            if value is None:
                continue
            where = f"{path}.{way}"
            if way == "nodeSelector":
                given += 1
                self._node_selector(value, where, one_term)
            elif value:
                given += 1
                if way == "nodeName":
                    self._name(value, limits.dns_subdomain, where)
            else:
                self._add(where, "must be left out or say something", "value")
        if given != 1:
            self._add(path, f"must have exactly one of {', '.join(ways)}", "exactly-one")

    def _node_selector(self, selector: Object, path: str, one_term: bool) -> None:
        terms, path = selector.get("nodeSelectorTerms", []), f"{path}.nodeSelectorTerms"
        if not terms:
            self._add(path, "is required", "required")
        elif one_term and len(terms) != 1:
            self._add(path, "must have exactly one term", "exactly-one")
        for index, term in enumerate(terms):
            for number, wanted in enumerate(term.get("matchExpressions", [])):
                self._match_label(wanted, f"{path}[{index}].matchExpressions[{number}]")
            for number, wanted in enumerate(term.get("matchFields", [])):
                self._match_field(wanted, f"{path}[{index}].matchFields[{number}]")

    def _match_label(self, wanted: Object, path: str) -> None:
        operator, values = wanted.get("operator", ""), wanted.get("values", [])
        if operator not in _SELECTOR_OPERATORS:
            self._one_of(operator, _SELECTOR_OPERATORS, f"{path}.operator")
        elif operator in ("In", "NotIn") and not values:
            self._add(f"{path}.values", f"is required where operator is {operator}", "required")
        elif operator in ("Exists", "DoesNotExist") and values:
            self._add(f"{path}.values", f"must be empty where operator is {operator}", "forbidden")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            self._add(f"{path}.values", f"must be one value where operator is {operator}", "required")
        self._name(wanted.get("key", ""), limits.label_key, f"{path}.key")
        for index, value in enumerate(values):
            wrong = limits.label_value(value)
            if wrong:
                self._add(f"{path}.values[{index}]", wrong, "label")

    def _match_field(self, wanted: Object, path: str) -> None:
        operator, values = wanted.get("operator", ""), wanted.get("values", [])
        if operator not in ("In", "NotIn"):
            self._one_of(operator, ("In", "NotIn"), f"{path}.operator")
        elif len(values) != 1:
            self._add(f"{path}.values", "must be one value", "required")
        if wanted.get("key", "") != "metadata.name":
            self._add(f"{path}.key", "must be metadata.name", "value")
            return
        for index, value in enumerate(values):
            self._name(value, limits.dns_subdomain, f"{path}.values[{index}]")

    def _device(self, device: Object, path: str, per_device: bool) -> None:
        self._name(device.get("name", ""), limits.dns_label, f"{path}.name")
        attributes, capacities = device.get("attributes", {}), device.get("capacity", {})
        if len(attributes) + len(capacities) > limits.ATTRIBUTES_AND_CAPACITIES:
            count = len(attributes) + len(capacities)
            self._add(path, f"has {count} attributes and capacities, of {limits.ATTRIBUTES_AND_CAPACITIES}", "too-many")
        values = sum(_values(attribute) for attribute in attributes.values()) if self._minor >= 36 else 0
        if values > limits.ATTRIBUTE_VALUES:
            self._add(path, f"has {values} attribute values, of {limits.ATTRIBUTE_VALUES} allowed", "too-many")
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
        self._consumed(device.get("consumesCounters", []), f"{path}.consumesCounters")
        ways = ("nodeName", "nodeSelector", "allNodes")
        if per_device:
            self._nodes(device, path, ways, one_term=False)
        elif any(way in device for way in ways):
            self._add(path, f"{', '.join(ways)} need perDeviceNodeSelection in the slice", "forbidden")
        self._binding(device, path)
        self._node_resources(device, path)

    def _qualified(self, name: str, path: str) -> None:
        wrong = limits.qualified_name(name)
        if wrong:
            self._add(self._key_path(path, name), f"{name!r} {wrong}", "name")

    def _key_path(self, path: str, key: str) -> str:
        """Where the server finds fault with the key of a map: 1.34 at the key, later releases at the map."""
        return f"{path}[{key}]" if self._minor == 34 else path

    def _attribute(self, attribute: Object, path: str) -> None:
        if len(attribute) != 1:
            self._add(path, "must have exactly one value", "exactly-one")
        for name, value in attribute.items():
            where = f"{path}.{name}"
            if isinstance(value, list) and not value:
                self._add(where, "must not be empty", "value")
            for index, text in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(text, str):
                    continue
                place = f"{where}[{index}]" if isinstance(value, list) else where
                if name.startswith("version") and limits.semver(text):
                    self._add(place, f"{text!r} {limits.semver(text)}", "version")
                if limits.size(text) > limits.ATTRIBUTE_VALUE_BYTES:
                    self._add(place, f"is longer than {limits.ATTRIBUTE_VALUE_BYTES} bytes", "too-long")

    def _capacity(self, capacity: Object, path: str, shared: bool) -> None:
        policy, path = capacity.get("requestPolicy"), f"{path}.requestPolicy"
        if policy is None:
            return
        if not shared:
            self._add(path, "needs allowMultipleAllocations on the device", "forbidden")
            return
        value = quantity.parse(capacity.get("value", "0"))
        values, span = policy.get("validValues", []), policy.get("validRange")
        if values and span is not None:
            self._add(path, "must not have both validValues and validRange", "exactly-one")
        elif values or span is not None:
            if "default" not in policy:
                self._add(f"{path}.default", "is required with validValues or validRange", "required")
            elif values:
                self._valid_values(quantity.parse(policy["default"]), value, values, f"{path}.validValues")
            else:
                self._valid_range(quantity.parse(policy["default"]), value, span, f"{path}.validRange")

    def _valid_values(self, default: Fraction, capacity: Fraction, texts: list[t.Any], path: str) -> None:
        values = [quantity.parse(text) for text in texts]
        for index, (value, following) in enumerate(zip(values, values[1:])):
            if value > following:
                self._add(f"{path}[{index + 1}]", "values must ascend", "order")
        if self._within(values, limits.VALID_VALUES, path):
            for index, value in enumerate(values):
                if value > capacity:
                    self._add(f"{path}[{index}]", f"{texts[index]} is more than the capacity", "value")
            # Without fractional ranges the server takes 500m and 1 for the same value.
            exact = self._on("DRAFractionalCapacityRange")
            self._unique((value if exact else quantity.integer(value) for value in values), path)
        if default not in values:
            self._add(path, "the default must be one of the values", "value")

    def _valid_range(self, default: Fraction, capacity: Fraction, span: Object, path: str) -> None:  # noqa: C901
        if "min" not in span:
            self._add(f"{path}.min", "is required", "required")
            return
        least = quantity.parse(span["min"])
        most, step = (quantity.parse(span[name]) if name in span else None for name in ("max", "step"))
        default_path = f"{path}.default" if self._minor >= 37 else ""
        if least > capacity:
            self._add(f"{path}.min", "is more than the capacity", "value")
        if default < least:
            self._add(default_path or f"{path}.min", "the default is less than min", "value")
        if most is not None:
            if least > most:
                self._add(f"{path}.max", "is less than min", "value")
            if most > capacity:
                self._add(f"{path}.max", "is more than the capacity", "value")
            if default > most:
                self._add(default_path or f"{path}.max", "the default is more than max", "value")
        named = {"default": default, "min": least, "max": most, "step": step}
        bounds = {name: bound for name, bound in named.items() if bound is not None}
        whole: t.Callable[[Fraction], int] = quantity.integer
        fractional = self._on("DRAFractionalCapacityRange") and any(b.denominator > 1 for b in bounds.values())
        if fractional:
            whole = quantity.milli
            unsafe = [name for name, bound in bounds.items() if Fraction(quantity.milli(bound), 1000) != bound]
            for name in unsafe:
                self._add(f"{path}.{name}", "must be a whole number of thousandths in 64 bits", "value")
            if unsafe:
                return
        if step is None:
            return
        if self._minor >= 37 and step <= 0:
            self._add(f"{path}.step", "must be more than zero", "value")
            return
        if least + step > capacity:
            self._add(f"{path}.step", "one step from min is more than the capacity", "value")
        if self._minor >= 37 and not fractional:
            unsafe = [name for name, bound in bounds.items() if not 0 <= bound <= limits.INT64_MAX]
            for name in unsafe:
                self._add(f"{path}.{name}", "must be from 0 to 2^63-1", "value")
            if unsafe:
                return
        stride = whole(step)
        if stride == 0:
            # Older servers divide by it and answer with an internal error, which refuses the object all the same.
            self._add(f"{path}.step", "must be more than zero", "value")
            return
        for bound in (default, most):
            if bound is not None and (whole(bound) - whole(least)) % stride:
                self._add(f"{path}.step", "default and max must be whole steps from min", "value")

    def _counters(self, counters: Object, limit: int | None, path: str) -> None:
        if not counters:
            self._add(path, "is required", "required")
        elif self._within(counters, limit, path, "counters"):
            for name in counters:
                self._name(name, limits.dns_label, self._key_path(path, name))

    def _consumed(self, consumptions: list[Object], path: str) -> None:
        if not self._within(consumptions, limits.at(limits.CONSUMED_SETS, self._minor), path, "counter sets"):
            return
        self._unique((consumption.get("counterSet", "") for consumption in consumptions), path, "counterSet")
        for index, consumption in enumerate(consumptions):
            where = f"{path}[{index}]"
            name, groups = consumption.get("counterSet", ""), consumption.get("compatibilityGroups", [])
            self._name(name, limits.dns_label if self._minor >= 35 else _anything, f"{where}.counterSet")
            limit = limits.at(limits.COUNTERS_PER_CONSUMPTION, self._minor)
            self._counters(consumption.get("counters", {}), limit, f"{where}.counters")
            if self._within(groups, limits.COMPATIBILITY_GROUPS, f"{where}.compatibilityGroups"):
                self._unique(groups, f"{where}.compatibilityGroups")
                for number, group in enumerate(groups):
                    self._name(group, limits.dns_label, f"{where}.compatibilityGroups[{number}]")

    def _counters_134(self, devices: list[Object], counter_sets: list[Object], path: str) -> None:
        """1.34 had devices and the counters they consume in one slice, with limits over all of them."""
        known = {counter_set.get("name", ""): counter_set.get("counters", {}) for counter_set in counter_sets}
        if sum(map(len, known.values())) > limits.SHARED_COUNTERS_134:
            self._add(f"{path}.sharedCounters", f"has more than {limits.SHARED_COUNTERS_134} counters", "too-many")
        total = 0
        for index, device in enumerate(devices):
            where, own = f"{path}.devices[{index}]", 0
            for number, consumption in enumerate(device.get("consumesCounters", [])):
                name, counters = consumption.get("counterSet", ""), consumption.get("counters", {})
                own += len(counters)
                place = f"{where}.consumesCounters[{number}]"
                if name not in known:
                    self._add(f"{place}.counterSet", f"{name!r} is no shared counter set here", "unknown-reference")
                for counter in counters:
                    if name in known and counter not in known[name]:
                        self._add(f"{place}.counters", f"{counter!r} is no counter of {name}", "unknown-reference")
            if own > limits.COUNTERS_PER_DEVICE_134:
                self._add(where, f"consumes more than {limits.COUNTERS_PER_DEVICE_134} counters", "too-many")
            total += own
        if total > limits.DEVICE_COUNTERS_PER_SLICE_134:
            limit = limits.DEVICE_COUNTERS_PER_SLICE_134
            self._add(f"{path}.devices", f"consume more than {limit} counters together", "too-many")

    def _binding(self, device: Object, path: str) -> None:
        wanted, failed = device.get("bindingConditions", []), device.get("bindingFailureConditions", [])
        for name, conditions, limit in (
            ("bindingConditions", wanted, limits.BINDING_CONDITIONS),
            ("bindingFailureConditions", failed, limits.BINDING_FAILURE_CONDITIONS),
        ):
            where = f"{path}.{name}"
            if self._within(conditions, limit, where):
                for index, condition in enumerate(conditions):
                    self._name(condition, limits.label_key, f"{where}[{index}]")
            self._unique(conditions, where)
        for index, condition in enumerate(failed):
            if condition in wanted:
                self._add(f"{path}.bindingFailureConditions[{index}]", "is a binding condition as well", "duplicate")
        if bool(wanted) != bool(failed):
            missing = "bindingFailureConditions" if wanted else "bindingConditions"
            self._add(f"{path}.{missing}", "is required: both kinds of condition go together", "required")

    def _node_resources(self, device: Object, path: str) -> None:  # noqa: C901
        capacities = device.get("capacity", {})
        for name, mapping in device.get("nodeAllocatableResourceMappings", {}).items():
            where = f"{path}.nodeAllocatableResourceMappings[{name}]"
            if "/" in name and "kubernetes.io/" not in name:
                self._add(where, "must be a resource of the node", "name")
            if not mapping:
                self._add(where, "must have allocationMultiplier or capacityKey", "exactly-one")
            self._positive(mapping, "allocationMultiplier", where)
            self._capacity_key(mapping, capacities, where)
        for name, entry in device.get("nodeAllocatableResources", {}).items():
            where = f"{path}.nodeAllocatableResources[{name}]"
            if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
                self._add(where, "must be a resource of the node: cpu, memory or hugepages", "name")
            mapping, overhead = entry.get("mapping"), entry.get("overhead")
            if mapping is None and overhead is None:
                self._add(where, "must have mapping or overhead", "exactly-one")
            if mapping is not None:
                if ("capacityKey" in mapping) == ("deviceMultiplier" in mapping):
                    self._add(f"{where}.mapping", "must have one of capacityKey and deviceMultiplier", "exactly-one")
                for one, other in (("capacityKey", "capacityMultiplier"), ("capacityMultiplier", "capacityKey")):
                    if one in mapping and other not in mapping:
                        self._add(f"{where}.mapping.{other}", f"is required with {one}", "required")
                self._capacity_key(mapping, capacities, f"{where}.mapping")
                self._positive(mapping, "deviceMultiplier", f"{where}.mapping")
                if "capacityKey" in mapping:
                    self._positive(mapping, "capacityMultiplier", f"{where}.mapping")
            if overhead is not None:
                if not overhead:
                    self._add(f"{where}.overhead", "must have perPod or perContainer", "exactly-one")
                for part, amount in overhead.items():
                    if quantity.parse(amount) < 0:
                        self._add(f"{where}.overhead.{part}", "must not be negative", "value")

    def _capacity_key(self, mapping: Object, capacities: Object, path: str) -> None:
        if "capacityKey" in mapping and mapping["capacityKey"] not in (set(capacities) - {""}):
            self._add(f"{path}.capacityKey", "must be a capacity of the device", "unknown-reference")

    def _positive(self, mapping: Object, name: str, path: str) -> None:
        if name in mapping and quantity.parse(mapping[name]) <= 0:
            self._add(f"{path}.{name}", "must be more than zero", "value")

    def _partition_type(self, spec: Object, devices: list[Object], path: str) -> None:
        name = spec.get("partitionTypeAttribute")
        if name is None:
            return
        where = f"{path}.partitionTypeAttribute"
        if not any(device.get("consumesCounters") for device in devices):
            self._add(where, "needs devices that consume counters", "forbidden")
        if not self._name(name, self._fully_qualified, where):
            return
        domain = f"{spec.get('driver', '')}/"
        bare = name[len(domain) :] if name.startswith(domain) else ""
        for index, device in enumerate(devices):
            attributes = device.get("attributes", {})
            attribute = attributes.get(name, attributes.get(bare) if bare else None)
            if device.get("consumesCounters") and "string" not in (attribute or {}):
                self._add(f"{path}.devices[{index}].attributes[{name}]", "must be there, as a string", "required")

    def _skipped(self, operations: list[str], path: str) -> None:
        self._unique(operations, path)
        for index, operation in enumerate(operations):
            self._one_of(operation, schema.SKIPPABLE, f"{path}[{index}]")
        if "NodePrepareResources" in operations and not {"NodeUnprepareResources", "*"} & set(operations):
            self._add(path, "NodePrepareResources needs NodeUnprepareResources as well", "value")


def _anything(_name: str) -> str:
    return ""


def _values(attribute: Object) -> int:
    """How many values an attribute counts for: the length of its lists, else one."""
    return sum(len(value) for value in attribute.values() if isinstance(value, list)) or 1


def _constrained(constraints: list[Object]) -> dict[str, set[str]]:
    """Attributes that constraints use, by the request they name; "" stands for all requests."""
    used: dict[str, set[str]] = {}
    for constraint in constraints:
        attribute = constraint.get("matchAttribute", constraint.get("distinctAttribute"))
        if attribute is not None:
            for request in constraint.get("requests") or [""]:
                used.setdefault(request, set()).add(attribute)
    return used
