# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading the fields of a claim, which others wrote: a field of another type is refused with its path."""

from __future__ import annotations

import typing as t

from ..base.errors import Refused
from ..base.objects import Object

_T = t.TypeVar("_T")


def mapping(value: t.Any, path: str) -> Object:
    """A mapping at a path. Raises Refused for anything else."""
    if not isinstance(value, dict):
        raise Refused(f"{path or 'claim'}: must be a mapping")
    return value


_WORDS = {str: "a string", bool: "true or false", list: "a list", dict: "a mapping"}


def get(holder: Object, key: str, form: type[_T], path: str, default: _T | None = None) -> _T:
    """A field of the given type. Without a default it is required, and a string must not be empty. Raises Refused."""
    value = holder.get(key)
    where = f"{path}.{key}" if path else key
    if value is None or (value == "" and form is str):
        if default is None:
            raise Refused(f"{where}: is missing")
        return default
    if not isinstance(value, form):
        raise Refused(f"{where}: must be {_WORDS[form]}")
    return value


def allocated(claim: Object) -> Object:
    """What is allocated to a claim: results and configurations."""
    allocation = get(get(claim, "status", dict, ""), "allocation", dict, "status")
    return get(allocation, "devices", dict, "status.allocation", {})
