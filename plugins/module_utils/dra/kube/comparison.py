# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Compares a sent object with the one that the server returned, to find the fields that the server did not keep."""

from __future__ import annotations

import datetime
import re

from . import quantity

#: Metadata that the server sets. It ignores what a client sends there.
SERVER_METADATA = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,]\d+)?(?:Z|[+-](\d\d):(\d\d))", re.ASCII)
#: Paths of maps, whose keys are written in brackets.
_MAP_PATHS = re.compile(
    r"(?:labels|annotations|counters|(?:^|\.)(?:basic\.)?attributes|devices\[\d+\](?:\.basic)?\.capacity"
    r"|capacity\.requests|nodeAllocatableResource(?:s|Mappings)|consumedCapacity)$"
)


def dropped(sent: object, returned: object) -> list[str]:
    """Paths of the fields of `sent` that the server did not keep in `returned`, both of the same version.

    A value that the server changed counts as not kept. Ignored are empty fields (null, false, zero, empty), the
    server's own metadata, and different spellings of a quantity. Times are not compared: any valid time that replaces
    another one counts as kept.
    """
    lost: list[str] = []
    _compare(sent, returned, "", lost)
    return lost


def _compare(sent: object, returned: object, path: str, lost: list[str]) -> None:
    if isinstance(sent, dict) and isinstance(returned, dict):
        for name, value in sent.items():
            if path == "metadata" and name in SERVER_METADATA:
                continue
            inner = f"{path}[{name}]" if _MAP_PATHS.search(path) else f"{path}.{name}" if path else name
            if name in returned:
                _compare(value, returned[name], inner, lost)
            elif is_nonempty(value):
                lost.append(inner)
    elif isinstance(sent, list) and isinstance(returned, list):
        for index, value in enumerate(sent):
            if index < len(returned):
                _compare(value, returned[index], f"{path}[{index}]", lost)
            else:
                lost.append(f"{path}[{index}]")
    elif sent != returned and not _same(sent, returned) and is_nonempty(sent):
        lost.append(path)


def is_nonempty(value: object) -> bool:
    """Whether a value is not empty. Null, zero, false, "", a list without items and a map of empty values are empty."""
    return any(map(is_nonempty, value.values())) if isinstance(value, dict) else bool(value)


def _same(sent: object, returned: object) -> bool:
    """Whether two scalars are the same quantity in different spellings, or are both valid times."""
    if isinstance(sent, bool) or isinstance(returned, bool):
        return False
    try:
        return quantity.compare(sent, returned) == 0
    except quantity.QuantityError:
        pass
    return isinstance(sent, str) and isinstance(returned, str) and is_time(sent) and is_time(returned)


def is_time(text: str) -> bool:
    """Whether the API accepts `text` as an RFC 3339 time."""
    match = _TIME.fullmatch(text)
    if not match:
        return False
    year, month, day, hour, minute, second, zone_hour, zone_minute = (int(part or 0) for part in match.groups())
    if hour > 23 or minute > 59 or second > 59 or zone_hour > 24 or zone_minute > 60:
        return False
    try:
        datetime.date(year or 4, month, day)  # year 0 was a leap year too
    except ValueError:
        return False
    return True
