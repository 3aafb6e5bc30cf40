# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reads the device selectors in the settings of the driver."""

from __future__ import annotations

from dataclasses import fields

from ...topology.selector import LINK_LAYERS, NEAR, NUMBERS, TEXTS, TYPES, Selector
from ..kube.objects import Object
from ..kube.reader import Reader, child


def read_selectors(reader: Reader, value: object, path: str) -> tuple[Selector, ...]:
    """A list of selectors. Errors are recorded in `reader`; selectors with errors are left out."""
    selectors = [read_selector(reader, item, item_path) for item, item_path in reader.items(value, path)]
    return tuple(selector for selector in selectors if selector is not None)


def read_selector(reader: Reader, value: object, path: str) -> Selector | None:
    """A selector with at least one condition, or None for any other value. Errors are recorded in `reader`."""
    known = [field.name for field in fields(Selector)]
    entry = reader.mapping(value, path, known, "a selector")
    if entry is None:
        return None
    if not entry:
        reader.problem(path, "is an empty selector", "empty", f"set at least one of {', '.join(known)}")
        return None
    conditions: Object = {}
    for key, item in entry.items():
        item_path = child(path, key)
        if key in TEXTS:
            conditions[key] = tuple(reader.strings(item, item_path))
            for text in conditions[key] if key in ("type", "link_layer") else ():
                if not any(wildcard in text for wildcard in "*?["):
                    reader.choice(text, item_path, TYPES if key == "type" else LINK_LAYERS)
        elif key in NUMBERS:
            items = reader.items(item, item_path) if isinstance(item, list) else [(item, item_path)]
            numbers = [reader.integer(number, number_path, 0) for number, number_path in items]
            conditions[key] = tuple(number for number in numbers if number is not None)
        elif key == "near_gpu":
            conditions[key] = reader.choice(item, item_path, NEAR)
        else:
            conditions[key] = reader.integer(item, item_path, 1)
    return Selector(**conditions)
