# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The part of a GPU that a device asks for: `share`."""

from __future__ import annotations

from ..kube.objects import Object
from ..kube.reader import Reader, child
from ..vendors.sharing import INTERVALS

KEYS = ("partition", "memory", "cores", "shares", "interval")
_MOST_SHARES = 1024


def read_share(reader: Reader, value: object, path: str) -> Object:
    """The parts that are asked for, checked. Errors go to the reader."""
    item = reader.mapping(value, path, KEYS, "a share")
    if item is None:
        return {}
    if not item:
        reader.problem(path, "asks for nothing", "missing", f"give one of {', '.join(KEYS)}")
    found: Object = {}
    for key, given in item.items():
        place = child(path, key)
        if key == "partition":
            found[key] = reader.string(given, place)
        elif key == "memory":
            found[key] = reader.amount(given, place)
        elif key == "cores":
            found[key] = reader.integer(given, place, 1, 100)
        elif key == "shares":
            found[key] = reader.integer(given, place, 1, _MOST_SHARES)
        else:
            found[key] = reader.choice(given, place, INTERVALS)
    return {key: one for key, one in found.items() if one is not None}
