# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Detects nodes with too few devices by counting, without a search."""

from __future__ import annotations

import typing as t

from .candidates import Candidates
from .search_devices import LIST, Comparable
from .search_requests import Request


def too_few(search: Candidates) -> str:
    """Why some requests together need more devices than fit, regardless of constraints; empty if they do not.

    This is computed by bipartite matching. Requests for all devices, with admin access or for devices that can be
    shared are left out.
    """
    units: list[tuple[str, list[int]]] = []
    for rows in search.requests:
        for row in rows:
            if any(request.all_devices is not None or request.admin for request in row):
                continue
            fits = search.fit(row)
            if any(search.multiple[position] for position in fits):
                continue
            units += [(row[0].base, fits)] * min(request.count for request in row)
    fitting = too_small_set([fits for _name, fits in units])
    if fitting is None:
        return ""
    # only the devices in `fitting` fit these requests
    names_of_units = [name for name, fits in units if fitting.issuperset(fits)]
    names = ", ".join(dict.fromkeys(names_of_units))
    subject = f"request {names} needs" if len(set(names_of_units)) == 1 else f"requests {names} together need"
    return f"{subject} {len(names_of_units)} devices, and {len(fitting)} on this node fit"


def cannot_match(search: Candidates) -> bool:
    """Whether counting by value shows that a matchAttribute cannot be satisfied for all repetitions at the same time.

    A request counts only if the constraint covers all its alternatives.
    """
    if any(request.all_devices is not None for rows in search.requests for row in rows for request in row):
        return False  # the devices of such a request are fixed, and the search ends if they do not fit
    for rows, constraints in zip(search.requests, search.constraints):
        identical: dict[tuple[str, tuple[t.Hashable, ...]], list[list[list[Request]]]] = {}
        for constraint in constraints:
            if not constraint.distinct:
                covered = [row for row in rows if all(constraint.covers(request) for request in row)]
                request_keys = tuple(
                    tuple((request.suitability_key, request.count) for request in row) for row in covered
                )
                if covered:
                    identical.setdefault((constraint.attribute, request_keys), []).append(covered)
        for (name, _request_keys), groups in identical.items():
            if not _repeatable(search, name, groups[0], _disjoint(groups)):
                return True
    return False


def _repeatable(search: Candidates, name: str, rows: list[list[Request]], count: int) -> bool:
    """Whether there are devices for `count` groups of requests like these, each with one value of an attribute."""
    values: dict[Comparable | tuple[Comparable, int], set[int]] = {}
    by_row = [search.fit(row) for row in rows]
    for position in set().union(*by_row):
        value = search.attribute_value(name, position)
        if value is not None:
            values.setdefault((value, position) if value is LIST else value, set()).add(position)
    shared = any(search.multiple[position] for fits in by_row for position in fits)
    shared = shared or any(request.admin for row in rows for request in row)
    needs = [min(request.count for request in row) for row in rows]
    missing_groups = count
    for positions in values.values():
        with_value = [[position for position in fits if position in positions] for fits in by_row]
        if any(len(fits) < need for fits, need in zip(with_value, needs)):
            continue
        if shared:
            return True  # devices that serve several requests are not counted
        units = [fits for fits, need in zip(with_value, needs) for _unit in range(need)]
        number = 0
        while missing_groups and too_small_set(units * (number + 1)) is None:
            number, missing_groups = number + 1, missing_groups - 1
        if not missing_groups:
            return True
    return False


def too_small_set(units: t.Sequence[t.Sequence[int]]) -> set[int] | None:
    """A set of devices that is too small; None if every unit can get one of its devices that no other unit gets.

    The units whose devices are all in that set need more devices than it contains.
    """
    owner: dict[int, int] = {}

    def place(unit: int, seen: set[int]) -> bool:
        for position in units[unit]:
            if position not in seen:
                seen.add(position)
                if position not in owner or place(owner[position], seen):
                    owner[position] = unit
                    return True
        return False

    for unit in range(len(units)):
        seen: set[int] = set()
        if not place(unit, seen):
            return seen
    return None


def _disjoint(groups: list[list[list[Request]]]) -> int:
    """The number of groups; one if a request is in two of them."""
    keys = [row[0].key for group in groups for row in group]
    return len(groups) if len(set(keys)) == len(keys) else 1
