# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The formats of stored files, and the conversions between them.

A file can outlive the release that wrote it: an upgrade finds the files of the release before, a rollback those of the
release after. Each kind of file has one object of `Formats`, and docs/architecture.md lists them all. The rules:

- A new field has a default, and readers ignore fields that they do not know. The number of the format does not change.
- If a field changes its meaning, the format gets the next number, with a Conversion between it and the format before.
  That release still writes the format before (`written`), so that the release before it can read it after a rollback;
  the next release writes the new format.
- If older readers can use a new format, its field `readable_by` contains the oldest format whose readers can use it.
"""

from __future__ import annotations

import copy
import typing as t
from dataclasses import dataclass

Object = dict[str, t.Any]


@dataclass(frozen=True)
class Conversion:
    """Converts between a format and the one before it: `up` to this format, `down` to the one before. Both may change
    their argument."""

    up: t.Callable[[Object], Object]
    down: t.Callable[[Object], Object]


class NewerFormat(ValueError):
    """A newer release wrote the file, in a format that this release does not know."""


class Formats:
    """The formats of one kind of file. The first has the number 1.

    `key` is the field that contains the format's number. `unnumbered` is the format of a file without a number (0:
    every file must have one). With `bare`, that format has no field for a number, and is written without one.
    `conversions` contains a Conversion for each later format, by its number. `written` is the format to write: the
    newest format that the previous release reads.
    """

    def __init__(
        self,
        key: str = "format",
        conversions: t.Mapping[int, Conversion] | None = None,
        written: int = 1,
        unnumbered: int = 0,
        bare: bool = False,
    ) -> None:
        self.key = key
        self.conversions = dict(conversions or {})
        self.written = written
        self.unnumbered = unnumbered
        self.bare = bare

    @property
    def newest(self) -> int:
        """The format that the code works with."""
        return max([1, *self.conversions])

    def read(self, value: t.Any) -> Object:
        """The content of a file of any format, converted to the newest, with its number. Raises ValueError for invalid
        content, and NewerFormat if only a newer release can read it."""
        number = value.get(self.key, self.unnumbered or None) if isinstance(value, dict) else None
        if number.__class__ is not int:
            raise ValueError(f"it is not a mapping with a {self.key}")
        if number > self.newest:
            readable_by = value.get("readable_by")
            if readable_by.__class__ is not int or readable_by > self.newest:
                raise NewerFormat(f"its {self.key} is {number}, and this release knows up to {self.newest}")
            return t.cast(Object, value)
        if number < 1:
            raise ValueError(f"there is no {self.key} {number}")
        for later in range(number + 1, self.newest + 1):
            value = self.conversions[later].up(value)
        return {**value, self.key: self.newest}

    def write(self, value: Object) -> Object:
        """Convert content of the newest format to the format to write, with its number unless that format has no field
        for it."""
        if self.newest > self.written:
            value = copy.deepcopy(value)  # otherwise a conversion would change the caller's object
        for later in range(self.newest, self.written, -1):
            value = self.conversions[later].down(value)
        if self.bare and self.written == self.unnumbered:
            return value
        return {self.key: self.written, **{name: item for name, item in value.items() if name != self.key}}
