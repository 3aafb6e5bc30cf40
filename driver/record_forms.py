# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The forms of records on disk, and how one becomes another.

An upgrade finds the records of the release before, and a rollback those of the release after. Pods run on meanwhile,
and a record that nobody reads is a device that nobody takes back. The rules, in the order of preference:

- A new field has a default, and is written only where it holds something else. Other releases leave out what they do
  not know. The number of the form stays.
- Where a field changes its meaning, the form gets the next number in CONVERSIONS, with what makes each of the two of
  the other. That release still writes the form before (WRITTEN), so that the release before can read it; the next one
  writes the new form.
- A form that older readers understand well enough, all the same, says so by C(readable_by).

tests/driver/test_record_releases.py keeps the readers and the records of releases, and tries each with the others.
"""

from __future__ import annotations

import copy
import typing as t
from dataclasses import dataclass

Object = dict[str, t.Any]


@dataclass(frozen=True)
class Conversion:
    """Between a form and the one before it: C(up) makes it of that, C(down) makes that of it. They may change their
    argument."""

    up: t.Callable[[Object], Object]
    down: t.Callable[[Object], Object]


#: The first form that there was, and by number what makes each later one.
FIRST = 1
CONVERSIONS: dict[int, Conversion] = {}
#: The form that is written: the newest that the release before this one reads.
WRITTEN = 1


class NewerForm(ValueError):
    """What a newer driver wrote, and this one cannot use."""


def newest() -> int:
    """The form that the code works with."""
    return max([FIRST, *CONVERSIONS])


def read(value: t.Any) -> Object:
    """A record of any form in the newest one. Raises ValueError, NewerForm where only a newer driver can read it."""
    if not isinstance(value, dict) or value.get("schema").__class__ is not int:
        raise ValueError("it is no mapping with a schema")
    form = value["schema"]
    if form > newest():
        if value.get("readable_by").__class__ is not int or value["readable_by"] > newest():
            raise NewerForm(f"its schema is {form}, and this driver knows up to {newest()}")
        return value
    if form < FIRST:
        raise ValueError(f"there never was a schema {form}")
    for number in range(form + 1, newest() + 1):
        value = CONVERSIONS[number].up(value)
    return {**value, "schema": newest()}


def written(value: Object) -> Object:
    """A record of the newest form in that which is written."""
    if newest() > WRITTEN:
        value = copy.deepcopy(value)  # else a conversion would change the record that is worked on
    for number in range(newest(), WRITTEN, -1):
        value = CONVERSIONS[number].down(value)
    return {**value, "schema": WRITTEN}
