# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The part of a cluster's objects that a plan uses: all else stays out of a snapshot."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object, ObjectView
from .forms import FORMS, Leaf

#: The format of snapshots. A release reads that of its own number only.
FORMAT = 1

_META = ("name", "namespace", "labels")
_ASKED: t.Mapping[str, t.Any] = {"requests": ..., "constraints": ...}
#: By kind what is kept: fields by name, `...` for all of a field. A list stands for each of its items.
_KEPT: t.Mapping[str, t.Any] = {
    **FORMS,
    "ResourceSlice": {"spec": ...},
    "ResourceClaim": {
        "spec": {"devices": _ASKED},
        "status": {"allocation": {"devices": {"results": ...}}},
    },
    "ResourceClaimTemplate": {"spec": {"spec": {"devices": _ASKED}}},
    "DeviceClass": {"spec": {"selectors": ..., "extendedResourceName": ...}},
    "DeviceTaintRule": {"spec": ...},
}


def kept(one: ObjectView) -> Object:
    """An object without what no plan uses: annotations, owners, opaque configurations, images, addresses of pods and
    the like. Of a kind that a plan does not use, only name, namespace and labels are kept."""
    found: Object = {name: one[name] for name in ("apiVersion", "kind") if name in one}
    found["metadata"] = {name: one["metadata"][name] for name in _META if one["metadata"].get(name)}
    found.update(_part(one, _KEPT.get(str(one.get("kind")), {})))
    return found


def _part(value: t.Any, form: t.Any) -> t.Any:
    if form is ... or isinstance(form, Leaf) or (isinstance(form, dict) and "*" in form):
        return value
    if isinstance(form, list):
        return [_part(item, form[0]) for item in value] if isinstance(value, list) else []
    if not isinstance(value, dict):
        return {}
    fields = {name.rstrip("!"): inner for name, inner in form.items()}
    return {name: _part(value[name], inner) for name, inner in fields.items() if value.get(name) is not None}
