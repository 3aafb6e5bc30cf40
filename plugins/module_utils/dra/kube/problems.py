# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Errors in a site's input, all reported together."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One error.

    `path` is the position in the input: `dra_claims_templates[0].devices[1].where.min_speed` for inventory,
    `spec.devices.requests[0].name` for an object. `rule` is a short, stable name for programs. `fix` says how
    to fix the error, if `message` does not make that obvious.
    """

    path: str
    message: str
    rule: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.fix})" if self.fix else "")


class Problems(ValueError):
    """All errors that were found; `problems` is never empty."""

    def __init__(self, problems: t.Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
