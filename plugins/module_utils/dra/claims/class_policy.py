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
    """What a class sets and allows: its fields of an InterfaceConfig, and its policy if it has one."""

    name: str
    settings: ObjectView = field(default_factory=dict)
    policy: ObjectView | None = None

    def unusable(self, namespace: str) -> str:
        """Why claims of a namespace must not use the class; empty if they may."""
        if tenancy.allowed_settings(self.policy, namespace) is None:
            return f"class {self.name!r} is not for claims of namespace {namespace!r}"
        return ""

    def refused(self, namespace: str, interface: ObjectView, path: str) -> list[Problem]:
        """The fields of a valid InterfaceConfig, whose path is `path`, that the class does not allow."""
        allow = tenancy.allowed_settings(self.policy, namespace)
        found = [] if allow is None else tenancy.refused_fields(allow, self.settings, interface)
        fix = "leave it out, set it in the class, or let tenants of the class set it"
        return [Problem(f"{path}.{name}", f"class {self.name!r} {reason}", "tenancy", fix) for name, reason in found]


def terms(name: str, configs: t.Iterable[ObjectView]) -> ClassTerms:
    """The terms of a class from its opaque configurations, each a driver and its valid parameters."""
    own = [config["parameters"] for config in configs if config["driver"] == DRIVER]
    policies = [one for one in own if tenancy.is_policy(one)]
    return ClassTerms(name, tenancy.class_settings(own), policies[0] if policies else None)


def check(objects: t.Sequence[Object]) -> list[list[Problem]]:
    """The errors in the InterfaceConfigs and InterfacePolicies of valid DRA objects, for each object.

    A claim is checked against those of its classes that are among the objects.
    """
    found = [_own_problems(item) for item in objects]
    classes = {}
    for item, wrong in zip(objects, found):
        if item["kind"] == "DeviceClass" and not wrong:
            name = item["metadata"]["name"]
            classes[name] = terms(name, [one["opaque"] for one, _path in _entries(item)])
    for number, item in enumerate(objects):
        if item["kind"] in _DEVICES and not found[number]:
            found[number] = list(dict.fromkeys(_checked_against(item, classes)))
    return found


def _devices_of(item: ObjectView) -> tuple[ObjectView, str]:
    holder: ObjectView = item
    path = _DEVICES.get(item["kind"], ("spec",))
    for name in path:
        holder = holder.get(name) or {}
    return holder, ".".join(path)


def _entries(item: ObjectView) -> list[tuple[Object, str]]:
    """The configurations for the driver of this collection, each with the path of its parameters."""
    holder, path = _devices_of(item)
    entries = enumerate(holder.get("config") or ())
    return [
        (one, f"{path}.config[{index}].opaque.parameters")
        for index, one in entries
        if one.get("opaque") and one["opaque"]["driver"] == DRIVER
    ]


def _own_problems(item: ObjectView) -> list[Problem]:
    if item["kind"] != "DeviceClass" and item["kind"] not in _DEVICES:
        return []
    found: list[Problem] = []
    policies = 0
    for one, path in _entries(item):
        given = one["opaque"].get("parameters")
        if item["kind"] == "DeviceClass" and tenancy.is_policy(given):
            found += tenancy.validate(given, path)
            policies += 1
        else:
            found += interface_config.validate(given, path)
        if policies > 1:
            found.append(Problem(path, f"is a second {tenancy.POLICY_KIND}; a class can have only one", "duplicate"))
    return found


def _checked_against(item: ObjectView, classes: t.Mapping[str, ClassTerms]) -> t.Iterator[Problem]:
    holder, path = _devices_of(item)
    namespace = str(item["metadata"].get("namespace", "default"))
    for index, request in enumerate(holder.get("requests") or ()):
        place = f"{path}.requests[{index}]"
        exactly = request.get("exactly") or request  # before v1beta2 a request had no exactly
        if exactly.get("adminAccess"):
            continue
        asked = [(exactly.get("deviceClassName"), [request["name"]])]
        for sub in request.get("firstAvailable") or ():
            asked.append((sub.get("deviceClassName"), [request["name"], f"{request['name']}/{sub['name']}"]))
        for name, names in asked:
            if name not in classes:
                continue
            if reason := classes[name].unusable(namespace):
                yield Problem(place, reason, "tenancy", "use another class")
            for one, where in _entries(item):
                covers = not one.get("requests") or set(names) & set(one["requests"])
                if covers:
                    yield from classes[name].refused(namespace, one["opaque"]["parameters"], where)
