# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the fields of claims and pods, which tenants can write: a field of the wrong type is refused, with its path."""

from __future__ import annotations

import typing as t

from ..base.errors import Refused
from ..base.objects import Object

_T = t.TypeVar("_T")


def mapping(value: t.Any, path: str) -> Object:
    """`value`, which is at `path`, as a mapping. Raises Refused for any other type."""
    if not isinstance(value, dict):
        raise Refused(f"{path or 'claim'}: must be a mapping")
    return value


_TYPE_NAMES = {str: "a string", bool: "true or false", list: "a list", dict: "a mapping"}


def get(holder: Object, key: str, kind: type[_T], path: str, default: _T | None = None) -> _T:
    """The field `key` of the mapping `holder` at `path`, of the type `kind`. Without a value (missing, null, or,
    for a string, empty) the default. Raises Refused for another type, and without a value if there is no default."""
    value = holder.get(key)
    field_path = f"{path}.{key}" if path else key
    if value is None or (value == "" and kind is str):
        if default is None:
            raise Refused(f"{field_path}: is missing")
        return default
    if not isinstance(value, kind):
        raise Refused(f"{field_path}: must be {_TYPE_NAMES[kind]}")
    return value


def allocated(claim: Object) -> Object:
    """What is allocated to a claim: results and configurations. Raises Refused."""
    allocation = get(get(claim, "status", dict, ""), "allocation", dict, "status")
    return get(allocation, "devices", dict, "status.allocation", {})
