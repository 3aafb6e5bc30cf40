# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The fields of objects that a plan uses, and a check that finds wrong fields in damaged dumps.

An object that an API server would not return is refused with its name and the path of each wrong field. Servers leave
out fields that are not set, so null is wrong too. Kinds of resource.k8s.io are checked against the tables in
`apiserver.schema`.
"""

from __future__ import annotations

import typing as t

from ..apiserver.decoder import Decoder
from ..apiserver.schema import child, fields
from ..apiserver.validate_claims import ClaimRules
from ..kube import quantity, versions
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem, Problems

#: The maximum number of problems listed; further ones are only counted.
MAX_LISTED = 20


class Leaf(t.NamedTuple):
    """A scalar value: its types, and their description for messages."""

    types: tuple[type, ...]
    description: str


TEXT, FLAG, NUMBER = Leaf((str,), "text"), Leaf((bool,), "true or false"), Leaf((int,), "a whole number")
AMOUNT, ANY = Leaf((str, int, float), "a quantity"), Leaf((dict,), "a mapping")

#: A form describes valid values. It is a leaf, a list that contains the form of each item, a mapping of `*` to the form
#: of every value, or a mapping of the fields of an object to their forms. Fields whose name ends with `!` are required.
#: Fields that are not in a form are not used.
Form = t.Union[Leaf, list[t.Any], t.Mapping[str, t.Any]]

AMOUNTS: Form = {"*": AMOUNT}
LABELS: Form = {"*": TEXT}
_REQUIREMENT: Form = {"key!": TEXT, "operator!": TEXT, "values": [TEXT]}
SELECTOR: Form = {"matchLabels": LABELS, "matchExpressions": [_REQUIREMENT]}
_RESOURCES: Form = {"requests": AMOUNTS, "limits": AMOUNTS}
_CONTAINER: Form = {"resources": _RESOURCES, "restartPolicy": TEXT}
_TAINT: Form = {"key!": TEXT, "value": TEXT, "effect!": TEXT}
_TOLERATION: Form = {"key": TEXT, "operator": TEXT, "value": TEXT, "effect": TEXT}
_FLAVOR: Form = {
    "name!": TEXT,
    "resources!": [{"name!": TEXT, "nominalQuota": AMOUNT, "borrowingLimit": AMOUNT, "lendingLimit": AMOUNT}],
}
_GROUPS: Form = [{"coveredResources!": [TEXT], "flavors!": [_FLAVOR]}]

#: The fields of a running pod's spec that a plan uses. A snapshot keeps all of them.
RUNNING: t.Mapping[str, Form] = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "nodeName": TEXT,
    "overhead": AMOUNTS,
    "resourceClaims": [{"name!": TEXT, "resourceClaimName": TEXT, "resourceClaimTemplateName": TEXT}],
    "resources": _RESOURCES,
    "schedulerName": TEXT,
}
#: The fields of the spec of a pod to place that a plan uses.
POD_SPEC: Form = {
    **RUNNING,
    "nodeSelector": LABELS,
    "tolerations": [_TOLERATION],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms!": [{"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "topologyKey!": TEXT,
            "maxSkew": NUMBER,
            "minDomains": NUMBER,
            "whenUnsatisfiable": TEXT,
            "labelSelector": SELECTOR,
            "matchLabelKeys": [TEXT],
            "nodeAffinityPolicy": TEXT,
            "nodeTaintsPolicy": TEXT,
        }
    ],
}
#: The fields by kind, besides `metadata`. Kinds of resource.k8s.io are checked against their schema instead.
FORMS: t.Mapping[str, Form] = {
    "Node": {"spec": {"taints": [_TAINT], "unschedulable": FLAG}, "status": {"allocatable": AMOUNTS}},
    "Pod": {
        "spec!": {**RUNNING, "containers!": [_CONTAINER]},
        "status": {
            "phase": TEXT,
            "resourceClaimStatuses": [{"name!": TEXT, "resourceClaimName": TEXT}],
            "extendedResourceClaimStatus": {"resourceClaimName": TEXT},
        },
    },
    "ResourceQuota": {
        "spec": {"hard": AMOUNTS, "scopes": [TEXT], "scopeSelector": ANY},
        "status": {"used": AMOUNTS},
    },
    "LocalQueue": {"spec!": {"clusterQueue!": TEXT, "stopPolicy": TEXT}},
    "ResourceFlavor": {
        "spec": {"nodeLabels": LABELS, "nodeTaints": [_TAINT], "tolerations": [_TOLERATION], "topologyName": TEXT}
    },
    "Cohort": {"spec": {"parentName": TEXT, "resourceGroups": _GROUPS}},
    "ClusterQueue": {
        "spec!": {
            "cohortName": TEXT,
            "cohort": TEXT,
            "stopPolicy": TEXT,
            "namespaceSelector": SELECTOR,
            "resourceGroups": _GROUPS,
            "flavorFungibility": {"whenCanBorrow": TEXT},
        },
        "status": {
            "flavorsReservation": [{"name!": TEXT, "resources": [{"name!": TEXT, "total": AMOUNT}]}],
            "pendingWorkloads": NUMBER,
            "conditions": [{"type!": TEXT, "status!": TEXT, "message": TEXT}],
        },
    },
}
_DRA = ("ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule")
_NAMESPACED = ("Pod", "ResourceClaim", "ResourceClaimTemplate", "ResourceQuota", "LocalQueue")


def check(objects: t.Sequence[ObjectView]) -> None:
    """Raises Problems with the wrong fields of all objects of the kinds that a plan uses."""
    errors: list[Problem] = []
    seen: dict[str, int] = {}
    for item in objects:
        kind = str(item.get("kind"))
        number = seen[kind] = seen.get(kind, -1) + 1
        if kind in FORMS or kind in _DRA:
            errors += problems(item, f"{kind}[{number}]")
    if errors:
        unlisted = len(errors) - MAX_LISTED
        listed = errors[:MAX_LISTED]
        if unlisted > 0:
            listed.append(Problem("objects", f"{unlisted} more fields are wrong", "damaged"))
        raise Problems(listed)


def problems(item: ObjectView, path: str) -> list[Problem]:
    """The errors of an object; `path` is its path in the input."""
    kind = str(item["kind"])
    metadata = item.get("metadata")
    name: object = metadata.get("name") if isinstance(metadata, dict) else None
    metadata_form = {"name!": TEXT, "labels": LABELS}
    if kind in _NAMESPACED:
        metadata_form["namespace!"] = TEXT
        if isinstance(metadata, dict) and metadata.get("namespace"):
            name = f"{metadata['namespace']}/{name}"
    path = f"{path} ({name})" if isinstance(name, str) else path
    errors: list[Problem] = []
    _walk(metadata if metadata is not None else {}, metadata_form, f"{path}.metadata", errors)
    if kind in _DRA:
        errors += _schema_problems(item, kind, path)
    else:
        _walk(item, FORMS[kind], path, errors)
    return errors


def without_nulls(value: t.Any) -> t.Any:
    """A value from a playbook without its nulls, which mean `not set` there."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def spec_problems(spec: object, form: Form, path: str) -> list[Problem]:
    """The errors of a part of an object that should have this form."""
    errors: list[Problem] = []
    _walk(spec, form, path, errors)
    return errors


def claim_problems(spec: object, path: str) -> list[Problem]:
    """The errors in the spec of a v1 ResourceClaim that comes from a server."""
    return _decoded(spec, "ResourceClaimSpec", versions.V1, path)


def new_claim_problems(spec: object, path: str) -> list[Problem]:
    """The errors in the spec of a v1 ResourceClaim from a playbook: those for which a server would refuse it."""
    decoder = Decoder(versions.V1, versions.NEWEST)
    decoded = decoder.struct(spec, "ResourceClaimSpec", path)
    errors = [*decoder.types, *(problem for problem, _value in decoder.unknown)]
    if not errors:
        ClaimRules(versions.NEWEST, None, None, errors).claim(decoded, path)
    return errors


def _walk(value: object, form: Form, path: str, errors: list[Problem]) -> None:
    if isinstance(form, Leaf):
        if not _fits(value, form):
            errors.append(_wrong(path, form.description, value))
    elif isinstance(form, list):
        if not isinstance(value, list):
            errors.append(_wrong(path, "a list", value))
            return
        for number, item in enumerate(value):
            _walk(item, form[0], f"{path}[{number}]", errors)
    elif not isinstance(value, dict):
        errors.append(_wrong(path, "a mapping", value))
    elif "*" in form:
        for name, item in value.items():
            _walk(item, form["*"], f"{path}[{name}]", errors)
    else:
        for name, inner in form.items():
            field = name.rstrip("!")
            if field in value:
                _walk(value[field], inner, f"{path}.{field}", errors)
            elif field != name:
                errors.append(Problem(f"{path}.{field}", "is missing", "missing"))


def _fits(value: object, form: Leaf) -> bool:
    if isinstance(value, bool) and bool not in form.types:
        return False
    if not isinstance(value, form.types):
        return False
    if form is not AMOUNT:
        return True
    try:
        return quantity.parse(value) >= 0
    except quantity.QuantityError:
        return False


def _wrong(path: str, expected: str, value: object) -> Problem:
    return Problem(path, f"must be {expected}, not {str(value)[:40]!r}", "wrong-type")


def _schema_problems(item: ObjectView, kind: str, path: str) -> list[Problem]:
    version = item.get("apiVersion")
    if not isinstance(version, str) or (version, kind) not in versions.SERVED:
        return [_wrong(f"{path}.apiVersion", f"a version of {versions.GROUP} that has {kind}", version)]
    if "spec" not in item:
        return [Problem(f"{path}.spec", "is missing", "missing")]
    spec = item["spec"]
    if kind == "ResourceSlice" and version != versions.V1BETA1 and _is_usual_slice(spec):
        return []
    errors = _decoded(spec, f"{kind}Spec", version, f"{path}.spec")
    status = item.get("status", {}) if kind == "ResourceClaim" else {}
    if not isinstance(status, dict):
        errors.append(_wrong(f"{path}.status", "a mapping", status))
    elif "allocation" in status:
        errors += _decoded(status["allocation"], "AllocationResult", version, f"{path}.status.allocation")
    return errors


class _StrictDecoder(Decoder):
    """A decoder that rejects null, which a server would read as not set."""

    def struct(self, value: object, name: str, path: str) -> Object:
        if isinstance(value, dict):
            for field in fields(name, self._version, self._minor):
                if field in value and value[field] is None:
                    self._wrong(child(path, field), "set", None)
        return super().struct(value, name, path)

    def _item(self, value: object, kind: str, path: str) -> object:
        if value is None:
            self._wrong(path, "set", None)
        return super()._item(value, kind, path)


def _decoded(value: object, struct: str, version: str, path: str) -> list[Problem]:
    decoder = _StrictDecoder(version, versions.NEWEST)
    decoded = decoder.struct(_without_config(value), struct, path)
    return decoder.types or list(_missing(decoded, struct, version, path))


def _without_config(value: object) -> object:
    """A value without `config`: only drivers know the format of opaque configurations."""
    if not isinstance(value, dict):
        return value
    return {
        name: _without_config(item) if name in ("devices", "spec") else item
        for name, item in value.items()
        if name != "config"
    }


#: Structures that need one of these fields, by name.
_ANY_OF = {
    "DeviceAttribute": ("string", "int", "bool", "version", "strings", "ints", "bools", "versions"),
    "DeviceSelector": ("cel",),
    "DeviceRequest": ("exactly", "firstAvailable"),
}


def _missing(value: t.Any, struct: str, version: str, path: str) -> t.Iterator[Problem]:
    """The required fields that a decoded structure does not have."""
    alternatives = _ANY_OF.get(struct, ())
    present = [name for name in alternatives if value.get(name) not in (None, [])]
    if alternatives and not present and version != versions.V1BETA1:
        yield Problem(path, f"has none of {', '.join(alternatives)}", "missing")
    for name, field in fields(struct, version, versions.NEWEST).items():
        item = value.get(name)
        item_path = child(path, name)
        kind = field.type.lstrip("*")
        if item is None:
            if field.required(versions.NEWEST - 1):
                yield Problem(item_path, "is missing", "missing")
        elif kind[:2] == "[]" and isinstance(item, list):
            for number, element in enumerate(item):
                yield from _missing_in_value(element, kind[2:], version, f"{item_path}[{number}]")
        elif kind[:2] == "{}":
            for key, element in item.items():
                yield from _missing_in_value(element, kind[2:], version, f"{item_path}[{key}]")
        else:
            yield from _missing_in_value(item, kind, version, item_path)


def _missing_in_value(value: object, kind: str, version: str, path: str) -> t.Iterator[Problem]:
    if isinstance(value, dict) and kind[:1].isupper():
        yield from _missing(value, kind, version, path)


#: The types of attribute values. Attributes that are lists are checked by the schema.
_ATTRIBUTES = {"string": str, "int": int, "bool": bool, "version": str}
_CHECKED = ("name", "attributes", "capacity")
_SLICE = ("ResourceSliceSpec", versions.V1, "")


def _is_usual_slice(spec: t.Any) -> bool:
    """Whether the spec of a ResourceSlice, v1 or v1beta2, has only usual fields, and these are valid.

    This is a fast check. Checking a large fleet against the whole schema would take too long.
    """
    try:
        pool = spec["pool"]
        rest = {name: value for name, value in spec.items() if name != "devices"}
        devices = spec.get("devices", [])
        if not isinstance(pool["name"], str) or not isinstance(devices, list) or _decoded(rest, *_SLICE):
            return False
        return all(_is_usual_device(device) for device in devices)
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _is_usual_device(device: t.Any) -> bool:
    if not isinstance(device["name"], str):
        return False
    for typed in device.get("attributes", {}).values():
        ((name, value),) = typed.items()
        if _ATTRIBUTES.get(name) is not type(value):
            return False
    for entry in device.get("capacity", {}).values():
        quantity.parse(entry["value"])
        if len(entry) > 1 and _decoded(entry, "DeviceCapacity", versions.V1, ""):
            return False
    rest = {name: value for name, value in device.items() if name not in _CHECKED}
    return not rest or not _decoded({**rest, "name": ""}, "Device", versions.V1, "")
