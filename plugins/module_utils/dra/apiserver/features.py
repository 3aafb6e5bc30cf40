# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The feature gates of dynamic resource allocation, and what a server without them drops or ignores.

Sources: pkg/features/kube_features.go and pkg/registry/resource/*/strategy.go of Kubernetes 1.34 to 1.37.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass
from functools import cache

from ..kube import comparison, limits, versions
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem
from ..kube.reader import nearest
from . import schema
from .decoder import Decoder

Gates = t.Optional[t.Mapping[str, bool]]

_STATUS_KINDS = frozenset({"ResourceClaim", "DeviceTaintRule"})


@dataclass(frozen=True)
class GatedField:
    """A field that a server drops while its gate is off.

    `path` is in the v1 form, with `[]` for the items of a list and `{}` for the values of a map. Servers before
    1.`drops_since` keep the field and ignore it. If `fatal_without` names a second gate and both gates are off, their
    scheduler fails every pod that uses the field. Up to 1.`idle_until` the field has no effect even while
    its gate is on.
    """

    kind: str
    path: str
    drops_since: int = versions.OLDEST
    fatal_without: str = ""
    idle_until: int = 0


@dataclass(frozen=True)
class Feature:
    """A feature gate: its default by minor release, the release since which it is locked, the gates that it needs, and
    the fields that it controls."""

    gate: str
    default: t.Mapping[int, bool]
    locked: int = versions.NEWEST + 1
    needs: tuple[str, ...] = ()
    fields: tuple[GatedField, ...] = ()

    def is_on(self, minor: int, gates: Gates = None) -> bool:
        """Whether the gate is on in Kubernetes 1.`minor`; `gates` are the gates that the site sets."""
        known = minor >= min(self.default)
        default = known and limits.at(self.default, minor)
        if not known or minor >= self.locked:
            return default
        return bool((gates or {}).get(self.gate, default))


def _claim(
    *paths: str, drops_since: int = versions.OLDEST, fatal_without: str = "", idle_until: int = 0
) -> tuple[GatedField, ...]:
    prefixes = {"ResourceClaim": "spec", "ResourceClaimTemplate": "spec.spec"}
    return tuple(
        GatedField(kind, f"{prefix}.devices.{path}", drops_since, fatal_without, idle_until)
        for kind, prefix in prefixes.items()
        for path in paths
    )


def _request(name: str, drops_since: int = versions.OLDEST) -> tuple[GatedField, ...]:
    return _claim(f"requests[].exactly.{name}", f"requests[].firstAvailable[].{name}", drops_since=drops_since)


def _slice(*paths: str) -> tuple[GatedField, ...]:
    return tuple(GatedField("ResourceSlice", f"spec.{path}") for path in paths)


FEATURES: dict[str, Feature] = {
    feature.gate: feature
    for feature in (
        Feature("DRAPrioritizedList", {34: True}, locked=37, fields=_claim("requests[].firstAvailable")),
        Feature("DRAAdminAccess", {34: True}, locked=36, fields=_claim("requests[].exactly.adminAccess")),
        Feature(
            "DRADeviceTaints",
            {34: False, 36: True},
            fields=(*_slice("devices[].taints"), *_request("tolerations", drops_since=35)),
        ),
        Feature("DRADeviceTaintRules", {35: False, 37: True}, needs=("DRADeviceTaints",)),
        Feature(
            "DRAPartitionableDevices",
            {34: False, 36: True},
            fields=_slice(
                "sharedCounters",
                "perDeviceNodeSelection",
                "devices[].consumesCounters",
                "devices[].nodeName",
                "devices[].nodeSelector",
                "devices[].allNodes",
            ),
        ),
        Feature("DRAResourceClaimDeviceStatus", {34: True}, locked=37),
        Feature(
            "DRADeviceBindingConditions",
            {34: False, 36: True},
            needs=("DRAResourceClaimDeviceStatus",),
            fields=_slice("devices[].bindingConditions", "devices[].bindingFailureConditions", "devices[].bindsToNode"),
        ),
        Feature(
            "DRAConsumableCapacity",
            {34: False, 36: True},
            fields=(
                *_slice("devices[].allowMultipleAllocations", "devices[].capacity{}.requestPolicy"),
                *_request("capacity"),
                # 1.34 compares pointers instead of values, so no two are ever equal (constraint.go)
                *_claim(
                    "constraints[].distinctAttribute",
                    drops_since=35,
                    fatal_without="DRAResourceClaimDeviceStatus",
                    idle_until=34,
                ),
            ),
        ),
        # On by default only if --min-compatibility-version is set above 1.36.
        Feature("DRAFractionalCapacityRange", {37: False}, needs=("DRAConsumableCapacity",)),
        Feature(
            "DRAExtendedResource",
            {34: False, 36: True},
            locked=37,
            fields=(GatedField("DeviceClass", "spec.extendedResourceName"),),
        ),
        Feature(
            "DRAListTypeAttributes",
            {36: False},
            fields=_slice(*(f"devices[].attributes{{}}.{name}" for name in ("ints", "bools", "strings", "versions"))),
        ),
        Feature(
            "DRANodeAllocatableResources",
            {36: False},
            fields=_slice("devices[].nodeAllocatableResourceMappings", "devices[].nodeAllocatableResources"),
        ),
        Feature("DRADerivedAttributes", {37: False}, fields=_request("derivedAttributes")),
        Feature(
            "DRADeviceCompatibilityGroups",
            {37: False},
            fields=_slice("devices[].consumesCounters[].compatibilityGroups"),
        ),
        Feature("DRAPartitionableDevicesType", {37: False}, fields=_slice("partitionTypeAttribute")),
        Feature("DRAOptionalNodeOperations", {37: False}, fields=_slice("skipNodeOperations")),
    )
}


def check_gates(gates: Gates) -> None:
    """Raises ValueError for a gate that is not a boolean: the string `false` would count as on."""
    for gate, on in (gates or {}).items():
        if not isinstance(on, bool):
            raise ValueError(f"{gate} must be true or false, without quotes, not {on!r}")


def enabled(gate: str, minor: int, gates: Gates = None) -> bool:
    """Whether a gate of FEATURES and all gates that it needs are on."""
    feature = FEATURES[gate]
    return feature.is_on(minor, gates) and all(enabled(need, minor, gates) for need in feature.needs)


@cache
def _steps(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\[\]|\{\}|[^.\[\]{}]+", path))


def _holders(value: object, steps: tuple[str, ...], path: str) -> t.Iterator[tuple[Object, str, str]]:
    """Every object that has the last of `steps` as a field, with that field's name and path."""
    step = steps[0]
    if step == "[]":
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _holders(item, steps[1:], f"{path}[{index}]")
    elif isinstance(value, dict):
        if step == "{}":
            for key, item in value.items():
                yield from _holders(item, steps[1:], f"{path}[{key}]")
        elif step in value:
            if len(steps) == 1:
                yield value, step, schema.child(path, step)
            else:
                yield from _holders(value[step], steps[1:], schema.child(path, step))


def dropped_device_fields(minor: int, gates: Gates = None) -> frozenset[str]:
    """The fields of a device in a v1 slice that a server of 1.`minor` drops, as paths below the device."""
    prefix = "spec.devices[]."
    return frozenset(
        gated.path[len(prefix) :]
        for feature in FEATURES.values()
        if not enabled(feature.gate, minor, gates)
        for gated in feature.fields
        if gated.kind == "ResourceSlice" and gated.path.startswith(prefix) and minor >= gated.drops_since
    )


def accepts_distinct_attribute(minor: int, gates: Gates = None) -> bool:
    """Whether the scheduler of 1.`minor` accepts constraints with distinctAttribute, even if they have no effect."""
    ignored = minor < 35 and enabled("DRAResourceClaimDeviceStatus", minor, gates)
    return ignored or enabled("DRAConsumableCapacity", minor, gates)


def drop_disabled(obj: Object, minor: int, gates: Gates = None) -> None:
    """Delete from a v1 object, in place, the fields that a server of 1.`minor` drops before it validates."""
    kind = obj.get("kind")
    for feature in FEATURES.values():
        off: bool | None = None
        for gated in feature.fields:
            if gated.kind == kind and minor >= gated.drops_since:
                if off is None:
                    off = not enabled(feature.gate, minor, gates)
                if off:
                    for holder, name, _unused in list(_holders(obj, _steps(gated.path), "")):
                        del holder[name]


def path_in_version(path: str, kind: str, version: str) -> str:
    """A path in the v1 form, converted to `version`; a path that is already in that form is returned unchanged."""
    if version != versions.V1BETA1:
        return path
    if kind == "ResourceSlice":
        return re.sub(r"^(spec\.devices\[\d+\])\.(?!basic\b|name$)", r"\1.basic.", path)
    return path.replace(".exactly.", ".", 1)


def unsupported(obj: ObjectView, kubernetes: str, gates: Gates = None) -> list[Problem]:
    """The fields of a new object that a server of release `kubernetes` (`"1.34"`) drops or ignores.

    `gates` are the feature gates that the site set. Rules of the problems: `unserved` (the release does not serve
    this kind in this API version), `unknown-field` (refused with `fieldValidation=Strict`, otherwise dropped),
    `dropped` (dropped silently), `inactive` (no effect while a gate is off) and `fatal` (the scheduler fails every
    pod that uses it). Empty fields are never reported. Raises ValueError as `minor_of` does.
    """
    minor = versions.minor_of(kubernetes)
    kind, version = obj.get("kind"), obj.get("apiVersion")
    since = versions.SERVED.get((str(version), str(kind)))
    if since is None or minor < since:
        fix = "" if kind in versions.PLURALS else nearest(kind, versions.PLURALS)
        return [Problem("apiVersion", f"Kubernetes 1.{minor} has no {kind} in {version}", "unserved", fix)]
    decoder = Decoder(str(version), minor)
    decoded = decoder.struct(dict(obj), str(kind), "")
    problems = [problem for problem, value in decoder.unknown if comparison.is_nonempty(value)]
    v1 = {**versions.convert(decoded, versions.V1), "kind": kind} if version == versions.V1BETA1 else decoded
    problems += _gated(v1, str(kind), str(version), minor, gates)
    gate = "DRADeviceTaints" if minor == 34 else "DRADeviceTaintRules"
    if kind == "DeviceTaintRule" and not enabled(gate, minor, gates):
        problems.append(_gate_problem("kind", gate, minor, "inactive"))
    if kind in _STATUS_KINDS:
        names = [name for name, value in decoded.get("status", {}).items() if comparison.is_nonempty(value)]
        problems += [Problem(f"status.{name}", "is not kept when an object is created", "dropped") for name in names]
    if kind not in versions.NAMESPACED and (decoded.get("metadata") or {}).get("namespace"):
        problems.append(Problem("metadata.namespace", f"is not kept: {kind} has no namespace", "dropped"))
    dropped_paths = tuple(f"{problem.path}{mark}" for problem in problems if problem.rule == "dropped" for mark in ".[")
    return [problem for problem in problems if not problem.path.startswith(dropped_paths)]


def _gated(v1: Object, kind: str, version: str, minor: int, gates: Gates) -> t.Iterator[Problem]:
    """The problems with fields that belong to a feature gate."""
    for feature in FEATURES.values():
        on = enabled(feature.gate, minor, gates)
        for gated in feature.fields:
            if gated.kind != kind or (on and minor > gated.idle_until):
                continue
            rule = "idle" if on else "dropped" if minor >= gated.drops_since else "inactive"
            if rule == "inactive" and gated.fatal_without and not enabled(gated.fatal_without, minor, gates):
                rule = "fatal"
            for holder, name, path in _holders(v1, _steps(gated.path), ""):
                if comparison.is_nonempty(holder[name]):
                    yield _gate_problem(path_in_version(path, kind, version), feature.gate, minor, rule)


def _gate_problem(path: str, gate: str, minor: int, rule: str) -> Problem:
    effects = {
        "dropped": f"is dropped by Kubernetes 1.{minor}",
        "inactive": f"has no effect in Kubernetes 1.{minor}",
        "fatal": f"makes the scheduler of Kubernetes 1.{minor} fail every pod that uses it",
    }
    if rule == "idle":
        message = f"has no effect in Kubernetes 1.{minor}, whether or not the feature gate {gate} is on"
        return Problem(path, message, "inactive")
    return Problem(path, f"{effects[rule]} while the feature gate {gate} is off", rule)
