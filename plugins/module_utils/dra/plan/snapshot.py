# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reduces the objects of a cluster to the fields that a plan uses. A snapshot contains only these fields.

The playbooks write and check the version of its format, `__plan_snapshot_format` in playbooks/vars/plan.yml.
"""

from __future__ import annotations

import typing as t

from ..kube.objects import Object, ObjectView
from .forms import FORMS, Leaf

_METADATA = ("name", "namespace", "labels", "deletionTimestamp")
_CLAIM_DEVICES: t.Mapping[str, t.Any] = {"requests": ..., "constraints": ...}
#: The fields that are kept, by kind and name; `...` stands for the whole field. See `forms.Form` for the other values.
_KEPT_FIELDS: t.Mapping[str, t.Any] = {
    **FORMS,
    "ResourceSlice": {"spec": ...},
    "ResourceClaim": {
        "spec": {"devices": _CLAIM_DEVICES},
        "status": {"allocation": {"devices": {"results": ...}}},
    },
    "ResourceClaimTemplate": {"spec": {"spec": {"devices": _CLAIM_DEVICES}}},
    "DeviceClass": {"spec": {"selectors": ..., "extendedResourceName": ...}},
    "DeviceTaintRule": {"spec": ...},
}


def snapshot_of(item: ObjectView) -> Object:
    """An object without the fields that no plan uses.

    For example, annotations, owners, opaque configurations, images and pod addresses are left out. For kinds that a
    plan does not use, only the metadata of `_METADATA` are kept.
    """
    snapshot: Object = {name: item[name] for name in ("apiVersion", "kind") if name in item}
    snapshot["metadata"] = {name: item["metadata"][name] for name in _METADATA if item["metadata"].get(name)}
    snapshot.update(_part(item, _KEPT_FIELDS.get(str(item.get("kind")), {})))
    return snapshot


def _part(value: t.Any, form: t.Any) -> t.Any:
    """The part of a value that a form of `_KEPT_FIELDS` describes."""
    if form is ... or isinstance(form, Leaf) or (isinstance(form, dict) and "*" in form):
        return value
    if isinstance(form, list):
        return [_part(item, form[0]) for item in value] if isinstance(value, list) else []
    if not isinstance(value, dict):
        return {}
    fields = {name.rstrip("!"): inner for name, inner in form.items()}
    return {name: _part(value[name], inner) for name, inner in fields.items() if value.get(name) is not None}
