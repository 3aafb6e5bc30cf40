# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The API versions of `resource.k8s.io`: the kinds that each release serves, and conversion between versions.

Sources: pkg/api/resourceclaimspec/util.go and pkg/apis/resource/v1beta1/conversion.go of Kubernetes 1.34 to 1.37. In
memory all objects are in the form of `resource.k8s.io/v1`.
"""

from __future__ import annotations

import re
import typing as t

from .objects import Object, ObjectView

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
#: The first minor release that can serve a kind in a version (1.34 is the oldest supported release).
SERVED: dict[tuple[str, str], int] = {
    **{(version, kind): 34 for version in (V1, V1BETA2, V1BETA1) for kind in PLURALS if kind != "DeviceTaintRule"},
    (V1ALPHA3, "DeviceTaintRule"): 34,
    (V1BETA2, "DeviceTaintRule"): 36,
    (V1, "DeviceTaintRule"): 37,
}
#: All versions, the preferred ones first.
PREFERENCE = (V1, V1BETA2, V1BETA1, V1ALPHA3)

#: The fields of a request that are in `exactly` in v1, and in the request itself in v1beta1.
EXACT_FIELDS = (
    *("deviceClassName", "adminAccess", "selectors", "allocationMode", "count"),
    *("tolerations", "capacity", "derivedAttributes"),
)


def minor_of(kubernetes: str) -> int:
    """The minor release in `1.37`, `v1.37.1` or `1.37+`; a release newer than the newest known one counts as that one.

    Raises ValueError for anything but a release since 1.34; older releases do not serve `resource.k8s.io/v1`.
    """
    match = re.match(r"v?1\.(\d+)(?:[.+-].*)?$", kubernetes)
    if not match:
        raise ValueError(f"{kubernetes!r} is not a Kubernetes release such as 1.37")
    minor = int(match.group(1))
    if minor < OLDEST:
        hint = f" (if you mean 1.{minor}0, quote it: YAML reads 1.{minor}0 as the number 1.{minor})"
        hint = hint if 0 < minor < 10 else ""
        raise ValueError(f"Kubernetes {kubernetes} is older than 1.{OLDEST}{hint}")
    return min(minor, NEWEST)


def is_dra(obj: ObjectView) -> bool:
    """Whether an object belongs to the API group of dynamic resource allocation."""
    return str(obj.get("apiVersion")).partition("/")[0] == GROUP


def choose(served: t.Iterable[str], kind: str = "ResourceClaim", kubernetes: str = f"1.{NEWEST}") -> str:
    """The newest API version of `served` that has the kind: `resource.k8s.io/v1` before v1beta2, v1beta1, v1alpha3.

    `served` contains API versions with or without their group; those of other groups are ignored. Raises LookupError
    if none has the kind.
    """
    offered = {version if "/" in version else f"{GROUP}/{version}" for version in served}
    minor = minor_of(kubernetes)
    for version in PREFERENCE:
        if version in offered and SERVED.get((version, kind), minor + 1) <= minor:
            return version
    raise LookupError(f"no served version of {GROUP} has {kind}; served are {', '.join(sorted(offered)) or 'none'}")


def convert(obj: ObjectView, api_version: str) -> Object:
    """Convert `obj`, a DRA object in any version, to `api_version` (`resource.k8s.io/v1beta1`).

    v1beta1 has no `exactly` in requests, wraps a device's fields in `basic`, and cannot leave `nodeName` and `allNodes`
    unset. The result shares leaves with `obj`, which is not modified. Raises ValueError for a kind or version that does
    not belong to DRA, or if the version lacks the kind.
    """
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or (version, kind) not in SERVED:
        raise ValueError(f"{version} {kind} is not a kind of dynamic resource allocation")
    if (api_version, kind) not in SERVED:
        raise ValueError(f"{api_version} has no {kind}")
    converted = {**obj, "apiVersion": api_version}
    was_flat, is_flat = version == V1BETA1, api_version == V1BETA1
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
    """Replace the value at `path` with the result of `change`, and copy the objects that contain it."""
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
    nested = {name: value for name, value in request.items() if name not in EXACT_FIELDS}
    exactly = {name: value for name, value in request.items() if name in EXACT_FIELDS and value is not None}
    # As in the server: strings and numbers count if they are not empty or zero, all other fields if they are set.
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
