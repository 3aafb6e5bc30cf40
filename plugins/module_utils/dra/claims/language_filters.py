# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads the filters of a device (`where`) from the inventory."""

from __future__ import annotations

import typing as t

from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child
from .inventory import FILTERS, LINK_LAYERS


def read_where(reader: Reader, value: object, path: str, kind: str) -> Object:
    """The valid filters of a device of this kind. Errors are recorded in `reader`."""
    known = FILTERS[kind]
    filters: Object = {}
    for name, item in (reader.mapping(value, path, known, f"the filters of kind {kind}") or {}).items():
        filter_value = _filter(reader, known[name], item, child(path, name), name)
        if filter_value is not None:
            filters[name] = filter_value
    return filters


def _filter(reader: Reader, value_type: str, value: object, path: str, name: str) -> t.Any:
    """The valid value of a filter, or None after recording an error."""
    if value_type == "integer":
        return reader.integer(value, path, 1 if name.startswith("min_") else 0, limits.INT64_MAX)
    if value_type == "boolean":
        return reader.boolean(value, path)
    if value_type == "amount":
        return reader.amount(value, path)
    if value_type == "link_layer":
        return reader.choice(value, path, LINK_LAYERS)
    text = reader.string(value, path)
    if text is not None and limits.size(text) > limits.ATTRIBUTE_VALUE_BYTES:
        max_bytes = limits.ATTRIBUTE_VALUE_BYTES
        reader.problem(path, f"must be at most {max_bytes} bytes long, like values of attributes", "too-long")
        return None
    return text
