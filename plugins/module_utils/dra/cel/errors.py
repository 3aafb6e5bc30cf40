# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Errors of selectors, and the verdict on a selector."""

from __future__ import annotations

from dataclasses import dataclass


class EngineMissing(Exception):
    """The Python package cel-expr-python is not installed for this Python."""


class EvaluationError(Exception):
    """The selector fails on this device. The scheduler then aborts scheduling of the pod on all nodes."""


class Uncheckable(Exception):
    """The engine lacks something that the server has, so only a server can check or evaluate the selector."""


@dataclass(frozen=True)
class Verdict:
    """`errors` are reasons for which a server refuses the selector, `unchecked` what only a server can check.

    `cost` is the server's estimate of the worst case, or None if it is unknown.
    """

    errors: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    cost: int | None = None


BARE_DEVICE = Verdict(unchecked=("cannot be checked offline: device as a whole",))
