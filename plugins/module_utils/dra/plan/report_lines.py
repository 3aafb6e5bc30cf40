# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The report of a plan as lines of text."""

from __future__ import annotations

import typing as t

from ..claims.pair_reasons import unpaired_lines
from .fit import Fit
from .reader import shortened
from .stranded import Stranded
from .worth import Worth


def total(found: Fit) -> str:
    """A count as an exact number or a bound: `8`, `at least 8`, `at most 8`; `about 8` if neither bound is certain."""
    bound = {(False, False): "", (True, False): "at least ", (False, True): "at most ", (True, True): "about "}
    return f"{bound[found.at_least, found.at_most]}{found.total}"


def lines(
    fits: t.Sequence[Fit],
    after: t.Sequence[Fit],
    lost: t.Sequence[Stranded],
    worth: Worth | None = None,
    unit: str = "",
) -> list[str]:
    """How many pods fit before and after a change, why no more fit, and the stranded devices."""
    found = []
    changed = {one.workload: one for one in after}
    for one in fits:
        then = changed.get(one.workload)
        found.append(f"{one.workload}: {total(one)} more" + (f", {total(then)} after the change" if then else ""))
        last = then or one
        if last.over_quota:
            found.append(f"  {last.over_quota} fit on nodes, but are not admitted: {last.quota}")
        if last.held_back:
            found.append(f"  {last.held_back} fit on nodes, but the spread constraints exclude them")
        found += [f"  {shortened(names)}: {reason}" for _kind, reason, names in last.reasons()]
        found += unpaired_lines({name: on_node.unpaired for name, on_node in last.nodes.items()})
    for (reason, who), devices in _by_reason(lost).items():
        found.append(f"stranded: {shortened(devices)}: {reason}{who}")
    if worth and worth.devices:
        found.append(f"stranded in total: {_worth(worth, unit)}")
    return found


def _worth(worth: Worth, unit: str) -> str:
    parts = [f"{worth.devices} device(s)"]
    if worth.gbps:
        parts.append(f"{worth.gbps:g} Gbit/s")
    if worth.money is not None:
        without = f" ({worth.unpriced} without a price)" if worth.unpriced else ""
        parts.append(f"{worth.money:g} {unit}".rstrip() + without)
    return ", ".join(parts)


def table(names: t.Sequence[str], columns: t.Sequence[tuple[str, t.Sequence[Fit]]]) -> list[str]:
    """The counts of workloads in columns: one for the current fleet, and one after each change."""
    rows = [["", *(head for head, _fits in columns)]]
    for name in names:
        counts = [next((total(one) for one in fits if one.workload == name), "") for _head, fits in columns]
        rows.append([name, *counts])
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _by_reason(lost: t.Sequence[Stranded]) -> dict[tuple[str, str], list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in lost:
        if not one.certain:
            who = " (not certain)"
        elif one.holders:
            who = f"; free it with {' or '.join(one.holders)}"
        else:
            who = f"; free it with {' and '.join(one.together)} together" if one.together else ""
        groups.setdefault((one.reason, who), []).append(one.device)
    return groups
