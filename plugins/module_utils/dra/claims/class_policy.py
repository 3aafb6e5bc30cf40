# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks claims against the policies of their DeviceClasses, for claims of the inventory and for other objects."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..config import interface_config, tenancy
from ..config.interface_config import DRIVER
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem

#: The path of the devices of a claim, by kind.
_DEVICES = {"ResourceClaim": ("spec", "devices"), "ResourceClaimTemplate": ("spec", "spec", "devices")}


@dataclass(frozen=True)
class ClassTerms:
    """What a class sets and allows: the fields of its InterfaceConfigs, and its InterfacePolicy, or None if it has
    none."""

    name: str
    settings: ObjectView = field(default_factory=dict)
    policy: ObjectView | None = None

    def why_unusable(self, namespace: str) -> str:
        """The reason why claims of a namespace may not use the class; empty if they may."""
        if tenancy.allowed_settings(self.policy, namespace) is None:
            return f"class {self.name!r} is not for claims of namespace {namespace!r}"
        return ""

    def refused_settings(self, namespace: str, interface: ObjectView, path: str) -> list[Problem]:
        """A problem for each field of a valid InterfaceConfig that the class does not let claims of the namespace set.

        `path` is the path of the InterfaceConfig. There are none if the namespace may not use the class at all.
        """
        allow = tenancy.allowed_settings(self.policy, namespace)
        refused = [] if allow is None else tenancy.refused_fields(allow, self.settings, interface)
        fix = "leave it out, set it in the class, or let tenants of the class set it"
        return [Problem(f"{path}.{name}", f"class {self.name!r} {reason}", "tenancy", fix) for name, reason in refused]


def terms(name: str, configs: t.Iterable[ObjectView]) -> ClassTerms:
    """The terms of a class, from its opaque configurations: mappings of `driver` and valid `parameters`."""
    parameters = [config["parameters"] for config in configs if config["driver"] == DRIVER]
    policies = [config for config in parameters if tenancy.is_policy(config)]
    return ClassTerms(name, tenancy.class_settings(parameters), policies[0] if policies else None)


def check(objects: t.Sequence[Object]) -> list[list[Problem]]:
    """For each of these valid DRA objects, the errors in its InterfaceConfigs and InterfacePolicies.

    A claim without such errors is checked against those of its classes that are among the objects.
    """
    problems = [_config_problems(item) for item in objects]
    classes: dict[str, ClassTerms] = {}
    for item, errors in zip(objects, problems):
        name = item["metadata"].get("name")  # absent if the server generates it
        if item["kind"] == "DeviceClass" and name and not errors:
            classes[name] = terms(name, [entry["opaque"] for entry, _path in _entries(item)])
    for number, item in enumerate(objects):
        if item["kind"] in _DEVICES and not problems[number]:
            problems[number] = list(dict.fromkeys(_policy_problems(item, classes)))
    return problems


def _devices_of(item: ObjectView) -> tuple[ObjectView, str]:
    """The mapping of an object that contains its configurations, and the path of this mapping."""
    mapping: ObjectView = item
    path = _DEVICES.get(item["kind"], ("spec",))
    for name in path:
        mapping = mapping.get(name) or {}
    return mapping, ".".join(path)


def _entries(item: ObjectView) -> list[tuple[Object, str]]:
    """The configurations for the driver of this collection, each with the path of its parameters."""
    devices, path = _devices_of(item)
    entries = enumerate(devices.get("config") or ())
    return [
        (entry, f"{path}.config[{index}].opaque.parameters")
        for index, entry in entries
        if entry.get("opaque") and entry["opaque"]["driver"] == DRIVER
    ]


def _config_problems(item: ObjectView) -> list[Problem]:
    """The errors of an object's configurations, without regard to other objects."""
    if item["kind"] != "DeviceClass" and item["kind"] not in _DEVICES:
        return []
    problems: list[Problem] = []
    policies = 0
    for entry, path in _entries(item):
        parameters = entry["opaque"].get("parameters")
        if item["kind"] == "DeviceClass" and tenancy.is_policy(parameters):
            problems += tenancy.validate(parameters, path)
            policies += 1
        else:
            problems += interface_config.validate(parameters, path)
        if policies > 1:
            problems.append(Problem(path, f"is a second {tenancy.POLICY_KIND}; a class can have only one", "duplicate"))
    return problems


def _policy_problems(item: ObjectView, classes: t.Mapping[str, ClassTerms]) -> t.Iterator[Problem]:
    """What the classes of a claim refuse."""
    devices, path = _devices_of(item)
    namespace = str(item["metadata"].get("namespace", "default"))
    for index, request in enumerate(devices.get("requests") or ()):
        request_path = f"{path}.requests[{index}]"
        exactly = request.get("exactly") or request  # requests have `exactly` only from v1beta2 on
        if exactly.get("adminAccess"):
            continue
        requested = [(exactly.get("deviceClassName"), [request["name"]])]
        for sub in request.get("firstAvailable") or ():
            requested.append((sub.get("deviceClassName"), [request["name"], f"{request['name']}/{sub['name']}"]))
        for class_name, references in requested:
            if class_name not in classes:
                continue
            if reason := classes[class_name].why_unusable(namespace):
                yield Problem(request_path, reason, "tenancy", "use another class")
            for entry, config_path in _entries(item):
                if not entry.get("requests") or set(references) & set(entry["requests"]):
                    parameters = entry["opaque"]["parameters"]
                    yield from classes[class_name].refused_settings(namespace, parameters, config_path)
