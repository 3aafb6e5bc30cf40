# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What differs between API versions and between Kubernetes releases, and what a server would not keep.

Sources: pkg/features/kube_features.go, pkg/registry/resource/*/strategy.go, pkg/api/resourceclaimspec/util.go and
pkg/apis/resource/v1beta1/conversion.go of Kubernetes 1.34 to 1.37. In memory everything is `resource.k8s.io/v1`.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass
from functools import cache

from . import limits, quantity, schema
from .decoder import Decoder, is_time
from .objects import Object, ObjectView
from .problems import Problem
from .reader import nearest

Gates = t.Optional[t.Mapping[str, bool]]

PREFERENCE = (schema.V1, schema.V1BETA2, schema.V1BETA1, schema.V1ALPHA3)

# Metadata that belongs to the server; what a client sends there is not kept and not missed.
SERVER_METADATA = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)

_FLAT_REQUEST = tuple(name for name in schema.STRUCTS["ExactDeviceRequest"])
_STATUS_KINDS = frozenset({"ResourceClaim", "DeviceTaintRule"})


@dataclass(frozen=True)
class GatedField:
    """A field that a server drops while its gate is off.

    `path` is in the v1 form, with `[]` for the items of a list and `{}` for the values of a map. Servers before
    1.`drops_since` keep the field and act as if it were not there; with `fatal_without`, the name of another gate,
    their scheduler gives up every pod that uses the field where that one is off too. Up to 1.`idle_until` it has
    no effect even while its gate is on.
    """

    kind: str
    path: str
    drops_since: int = schema.OLDEST
    fatal_without: str = ""
    idle_until: int = 0


@dataclass(frozen=True)
class Feature:
    """A feature gate: its default from a minor release on, since when it cannot be changed, and what hangs on it."""

    gate: str
    default: t.Mapping[int, bool]
    locked: int = schema.NEWEST + 1
    needs: tuple[str, ...] = ()
    fields: tuple[GatedField, ...] = ()

    def on(self, minor: int, gates: Gates = None) -> bool:
        """Whether the gate is on in Kubernetes 1.`minor`, `gates` being what the site changed."""
        known = minor >= min(self.default)
        default = known and limits.at(self.default, minor)
        if not known or minor >= self.locked:
            return default
        return bool((gates or {}).get(self.gate, default))


def _claim(
    *paths: str, drops_since: int = schema.OLDEST, fatal_without: str = "", idle_until: int = 0
) -> tuple[GatedField, ...]:
    prefixes = {"ResourceClaim": "spec", "ResourceClaimTemplate": "spec.spec"}
    return tuple(
        GatedField(kind, f"{prefix}.devices.{path}", drops_since, fatal_without, idle_until)
        for kind, prefix in prefixes.items()
        for path in paths
    )


def _request(name: str, drops_since: int = schema.OLDEST) -> tuple[GatedField, ...]:
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
                # 1.34 compares the addresses of the values, so that no two are ever the same (constraint.go)
                *_claim(
                    "constraints[].distinctAttribute",
                    drops_since=35,
                    fatal_without="DRAResourceClaimDeviceStatus",
                    idle_until=34,
                ),
            ),
        ),
        # On by itself only in a server that does not promise to fall back to 1.36, which no server does by default.
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
    """Raises ValueError for a gate that is neither on nor off: the string `false` would count as on."""
    for gate, on in (gates or {}).items():
        if not isinstance(on, bool):
            raise ValueError(f"{gate} must be true or false, without quotes, not {on!r}")


def minor_of(kubernetes: str) -> int:
    """The minor release in `1.37`, `v1.37.1` or `1.37+`; a newer one than we know counts as the newest we know.

    Raises ValueError for anything but a release since 1.34; older ones do not serve `resource.k8s.io/v1`.
    """
    match = re.match(r"v?1\.(\d+)(?:[.+-].*)?$", kubernetes)
    if not match:
        raise ValueError(f"{kubernetes!r} is not a Kubernetes release such as 1.37")
    minor = int(match.group(1))
    if minor < schema.OLDEST:
        hint = f" (if you mean 1.{minor}0, quote it: YAML reads 1.{minor}0 as the number 1.{minor})"
        hint = hint if 0 < minor < 10 else ""
        raise ValueError(f"Kubernetes {kubernetes} is older than 1.{schema.OLDEST}{hint}")
    return min(minor, schema.NEWEST)


def enabled(gate: str, minor: int, gates: Gates = None) -> bool:
    """Whether a gate of FEATURES and all that it needs are on."""
    feature = FEATURES[gate]
    return feature.on(minor, gates) and all(enabled(need, minor, gates) for need in feature.needs)


def is_dra(obj: ObjectView) -> bool:
    """Whether an object is of the API group of dynamic resource allocation."""
    return str(obj.get("apiVersion")).partition("/")[0] == schema.GROUP


def choose(served: t.Iterable[str], kind: str = "ResourceClaim", kubernetes: str = f"1.{schema.NEWEST}") -> str:
    """The newest API version of `served` that has the kind: `resource.k8s.io/v1` before v1beta2, v1beta1, v1alpha3.

    `served` holds API versions with or without their group; others are passed over. Raises LookupError where none
    fits.
    """
    offered = {version if "/" in version else f"{schema.GROUP}/{version}" for version in served}
    minor = minor_of(kubernetes)
    for version in PREFERENCE:
        if version in offered and schema.SERVED.get((version, kind), minor + 1) <= minor:
            return version
    raise LookupError(
        f"no served version of {schema.GROUP} has {kind}; served are {', '.join(sorted(offered)) or 'none'}"
    )


def convert(obj: ObjectView, api_version: str) -> Object:
    """`obj`, a DRA object in any version, in `api_version` (`resource.k8s.io/v1beta1`).

    v1beta1 has no `exactly` in requests, wraps what describes a device in `basic`, and knows no unset `nodeName` and
    `allNodes`. The result shares its leaves with `obj`, which stays as it is. Raises ValueError for a kind or a
    version that is not of DRA, or where the version lacks the kind.
    """
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or (version, kind) not in schema.SERVED:
        raise ValueError(f"{version} {kind} is not a kind of dynamic resource allocation")
    if (api_version, kind) not in schema.SERVED:
        raise ValueError(f"{api_version} has no {kind}")
    converted = {**obj, "apiVersion": api_version}
    was_flat, is_flat = version == schema.V1BETA1, api_version == schema.V1BETA1
    if was_flat == is_flat:
        return converted
    path = {
        "ResourceClaim": ("spec", "devices", "requests"),
        "ResourceClaimTemplate": ("spec", "spec", "devices", "requests"),
        "ResourceSlice": ("spec",),
    }.get(kind)
    if path:
        change: t.Callable[[object], object]
        if kind == "ResourceSlice":
            change = _wrap_slice if is_flat else _unwrap_slice
        else:
            change = _flat_requests if is_flat else _nested_requests
        _change(converted, path, change)
    return converted


def _change(obj: Object, path: tuple[str, ...], change: t.Callable[[object], object]) -> None:
    """Replaces the value at `path` by the result of `change`, copying the objects on the way."""
    for name in path[:-1]:
        inner = obj.get(name)
        if not isinstance(inner, dict):
            return
        obj[name] = dict(inner)
        obj = obj[name]
    if path[-1] in obj:
        obj[path[-1]] = change(obj[path[-1]])


def _each(items: object, change: t.Callable[[Object], Object]) -> object:
    if not isinstance(items, list):
        return items
    return [change(item) if isinstance(item, dict) else item for item in items]


def _nested_requests(requests: object) -> object:
    return _each(requests, _nest)


def _nest(request: Object) -> Object:
    nested = {name: value for name, value in request.items() if name not in _FLAT_REQUEST}
    exactly = {name: value for name, value in request.items() if name in _FLAT_REQUEST and value is not None}
    # The server's own rule: text and numbers count when they are not zero, everything else when it is there.
    if any(value or name not in ("deviceClassName", "allocationMode", "count") for name, value in exactly.items()):
        nested["exactly"] = exactly
    return nested


def _flat_requests(requests: object) -> object:
    return _each(requests, _flatten)


def _flatten(request: Object) -> Object:
    flat = {name: value for name, value in request.items() if name != "exactly"}
    exactly = request.get("exactly")
    return {**flat, **exactly} if isinstance(exactly, dict) else flat


def _unwrap_slice(spec: object) -> object:
    if not isinstance(spec, dict):
        return spec
    unwrapped = {name: value for name, value in spec.items() if value or name not in ("nodeName", "allNodes")}
    if "devices" in unwrapped:
        unwrapped["devices"] = _each(unwrapped["devices"], _unwrap_device)
    return unwrapped


def _unwrap_device(device: Object) -> Object:
    basic = device.get("basic")
    outer = {name: value for name, value in device.items() if name != "basic"}
    return {**outer, **basic} if isinstance(basic, dict) else outer


def _wrap_slice(spec: object) -> object:
    if not isinstance(spec, dict):
        return spec
    return {**spec, "devices": _each(spec["devices"], _wrap_device)} if "devices" in spec else spec


def _wrap_device(device: Object) -> Object:
    wrapped: Object = {"basic": {name: value for name, value in device.items() if name != "name"}}
    return {"name": device["name"], **wrapped} if "name" in device else wrapped


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


def lost_of_devices(minor: int, gates: Gates = None) -> frozenset[str]:
    """The fields of a device in a v1 slice that a server of 1.`minor` drops, those of its values left out."""
    start = "spec.devices[]."
    return frozenset(
        gated.path[len(start) :]
        for feature in FEATURES.values()
        if not enabled(feature.gate, minor, gates)
        for gated in feature.fields
        if gated.kind == "ResourceSlice" and gated.path.startswith(start) and minor >= gated.drops_since
    )


def distinguishes(minor: int, gates: Gates = None) -> bool:
    """Whether the scheduler of 1.`minor` takes constraints by distinctAttribute, with an effect or without."""
    kept = minor < 35 and enabled("DRAResourceClaimDeviceStatus", minor, gates)
    return kept or enabled("DRAConsumableCapacity", minor, gates)


def drop_disabled(obj: Object, minor: int, gates: Gates = None) -> None:
    """Deletes from a v1 object, in place, the fields that a server of 1.`minor` drops before it validates."""
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


def carries(value: object) -> bool:
    """Whether a value is not empty: null, zero, false, "" and containers of only these are empty."""
    if isinstance(value, dict):
        return any(carries(item) for item in value.values())
    if isinstance(value, list):
        return bool(value)
    return bool(value)


def own_path(path: str, kind: str, version: str) -> str:
    """A path of the v1 form, as it reads in an object of `version`; one that already reads so stays as it is."""
    if version != schema.V1BETA1:
        return path
    if kind == "ResourceSlice":
        return re.sub(r"^(spec\.devices\[\d+\])\.(?!basic\b|name$)", r"\1.basic.", path)
    return path.replace(".exactly.", ".", 1)


def unsupported(obj: ObjectView, kubernetes: str, gates: Gates = None) -> list[Problem]:
    """What a server of release `kubernetes` (`"1.34"`) drops or ignores of an object that it creates.

    `gates` are the feature gates that the site set. Rules of the problems: `unserved` (no such kind in this version),
    `unknown-field` (a strict server refuses it, a lenient one drops it), `dropped` (silently left out), `inactive` (no
    effect while a gate is off) and `fatal` (the scheduler gives up every pod that uses it). Empty fields are never
    reported. Raises ValueError as `minor_of`.
    """
    minor = minor_of(kubernetes)
    kind, version = obj.get("kind"), obj.get("apiVersion")
    since = schema.SERVED.get((str(version), str(kind)))
    if since is None or minor < since:
        fix = "" if kind in schema.PLURALS else nearest(kind, schema.PLURALS)
        return [Problem("apiVersion", f"Kubernetes 1.{minor} has no {kind} in {version}", "unserved", fix)]
    decoder = Decoder(str(version), minor)
    read = decoder.struct(dict(obj), str(kind), "")
    found = [problem for problem, value in decoder.unknown if carries(value)]
    v1 = {**convert(read, schema.V1), "kind": kind} if version == schema.V1BETA1 else read
    found += _gated(v1, str(kind), str(version), minor, gates)
    gate = "DRADeviceTaints" if minor == 34 else "DRADeviceTaintRules"
    if kind == "DeviceTaintRule" and not enabled(gate, minor, gates):
        found.append(_gate_problem("kind", gate, minor, "inactive"))
    if kind in _STATUS_KINDS:
        kept = [name for name, value in read.get("status", {}).items() if carries(value)]
        found += [Problem(f"status.{name}", "is not kept when an object is created", "dropped") for name in kept]
    if kind not in schema.NAMESPACED and (read.get("metadata") or {}).get("namespace"):
        found.append(Problem("metadata.namespace", f"is not kept, {kind} has no namespace", "dropped"))
    whole = tuple(f"{problem.path}{mark}" for problem in found if problem.rule == "dropped" for mark in ".[")
    return [problem for problem in found if not problem.path.startswith(whole)]


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
                if carries(holder[name]):
                    yield _gate_problem(own_path(path, kind, version), feature.gate, minor, rule)


def _gate_problem(path: str, gate: str, minor: int, rule: str) -> Problem:
    what = {
        "dropped": f"is dropped by Kubernetes 1.{minor}",
        "inactive": f"has no effect in Kubernetes 1.{minor}",
        "fatal": f"is kept by Kubernetes 1.{minor}, whose scheduler then gives up every pod that uses it,",
    }
    if rule == "idle":
        return Problem(path, f"has no effect in Kubernetes 1.{minor}, whatever the feature gate {gate} is", "inactive")
    return Problem(path, f"{what[rule]} while the feature gate {gate} is off", rule)


def dropped(sent: object, returned: object) -> list[str]:
    """Paths of the fields of `sent` that the server did not keep in `returned`, both of the same version.

    Fields that say nothing (null, false, zero, empty), the server's own metadata and how quantities and times are
    written make no difference; a value that the server changed counts as not kept.
    """
    lost: list[str] = []
    _compare(sent, returned, "", lost)
    return lost


def _compare(sent: object, returned: object, path: str, lost: list[str]) -> None:
    if isinstance(sent, dict) and isinstance(returned, dict):
        for name, value in sent.items():
            if path == "metadata" and name in SERVER_METADATA:
                continue
            inner = f"{path}[{name}]" if _MAPS.search(path) else schema.child(path, name)
            if name in returned:
                _compare(value, returned[name], inner, lost)
            elif carries(value):
                lost.append(inner)
    elif isinstance(sent, list) and isinstance(returned, list):
        for index, value in enumerate(sent):
            if index < len(returned):
                _compare(value, returned[index], f"{path}[{index}]", lost)
            else:
                lost.append(f"{path}[{index}]")
    elif sent != returned and not _same(sent, returned) and carries(sent):
        lost.append(path)


_MAPS = re.compile(
    r"(?:labels|annotations|counters|(?:^|\.)(?:basic\.)?attributes|devices\[\d+\](?:\.basic)?\.capacity"
    r"|capacity\.requests|nodeAllocatableResource(?:s|Mappings)|consumedCapacity)$"
)


def _same(sent: object, returned: object) -> bool:
    """Whether two scalars are one quantity or one time in different words."""
    if isinstance(sent, bool) or isinstance(returned, bool):
        return False
    try:
        return quantity.compare(sent, returned) == 0
    except quantity.QuantityError:
        pass
    return isinstance(sent, str) and isinstance(returned, str) and is_time(sent) and is_time(returned)
