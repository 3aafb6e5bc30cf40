# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reads the device selectors in the driver's settings."""

from __future__ import annotations

from dataclasses import fields

from ...topology.selector import LINK_LAYERS, NEAR, NUMBERS, TEXTS, TYPES, Selector
from ..kube.objects import Object
from ..kube.reader import Reader, child


def read_selectors(reader: Reader, value: object, path: str) -> tuple[Selector, ...]:
    """A list of selectors. Errors go to the reader."""
    found = [read_selector(reader, item, place) for item, place in reader.items(value, path)]
    return tuple(one for one in found if one is not None)


def read_selector(reader: Reader, value: object, path: str) -> Selector | None:
    """A selector with at least one condition; None if there is none. Errors go to the reader."""
    known = [one.name for one in fields(Selector)]
    given = reader.mapping(value, path, known, "a selector")
    if given is None:
        return None
    if not given:
        reader.problem(path, "is an empty selector", "empty", f"set at least one of {', '.join(known)}")
        return None
    found: Object = {}
    for key, item in given.items():
        place = child(path, key)
        if key in TEXTS:
            found[key] = tuple(reader.strings(item, place))
            for text in found[key] if key in ("type", "link_layer") else ():
                if not any(sign in text for sign in "*?["):
                    reader.choice(text, place, TYPES if key == "type" else LINK_LAYERS)
        elif key in NUMBERS:
            items = reader.items(item, place) if isinstance(item, list) else [(item, place)]
            numbers = [reader.integer(number, where, 0) for number, where in items]
            found[key] = tuple(number for number in numbers if number is not None)
        elif key == "near_gpu":
            found[key] = reader.choice(item, place, NEAR)
        else:
            found[key] = reader.integer(item, place, 1)
    return Selector(**found)
