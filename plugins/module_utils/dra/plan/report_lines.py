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
from .stranded_value import StrandedValue


def total(fit: Fit) -> str:
    """A count as an exact number or a bound: `8`, `at least 8`, `at most 8`; `about 8` if neither bound is certain."""
    bound = {(False, False): "", (True, False): "at least ", (False, True): "at most ", (True, True): "about "}
    return f"{bound[fit.at_least, fit.at_most]}{fit.total}"


def lines(
    fits: t.Sequence[Fit],
    after: t.Sequence[Fit],
    stranded_devices: t.Sequence[Stranded],
    value: StrandedValue | None = None,
    unit: str = "",
) -> list[str]:
    """How many pods fit before and after a change, why no more fit, and the stranded devices.

    `after` is empty without a change. The reasons are those after the change. `unit` is the unit of prices.
    """
    report = []
    after_change = {fit.workload: fit for fit in after}
    for before in fits:
        changed = after_change.get(before.workload)
        change = f", {total(changed)} after the change" if changed else ""
        report.append(f"{before.workload}: {total(before)} more{change}")
        current = changed or before
        if current.over_quota:
            report.append(f"  {current.over_quota} fit on nodes, but are not admitted: {current.quota}")
        if current.held_back:
            report.append(f"  {current.held_back} fit on nodes, but the spread constraints exclude them")
        report += [f"  {shortened(names)}: {reason}" for _kind, reason, names in current.reasons()]
        report += unpaired_lines({name: on_node.unpaired for name, on_node in current.nodes.items()})
    for (reason, remedy), devices in _by_reason(stranded_devices).items():
        report.append(f"stranded: {shortened(devices)}: {reason}{remedy}")
    if value and value.devices:
        report.append(f"certainly stranded in total: {_value_text(value, unit)}")
    return report


def _value_text(value: StrandedValue, unit: str) -> str:
    parts = [f"{value.devices} device(s)"]
    if value.gbps:
        parts.append(f"{_number(value.gbps, 3)} Gbit/s")
    if value.cost is not None:
        without_price = f" ({value.unpriced} without a price)" if value.unpriced else ""
        parts.append(f"{_number(value.cost, 2)} {unit}".rstrip() + without_price)
    return ", ".join(parts)


def _number(number: float, places: int) -> str:
    """A number with at most this many decimal places."""
    return f"{number:.{places}f}".rstrip("0").rstrip(".")


def table(names: t.Sequence[str], columns: t.Sequence[tuple[str, t.Sequence[Fit]]]) -> list[str]:
    """The counts of workloads in columns: one for the current fleet, and one after each change."""
    rows = [["", *(head for head, _fits in columns)]]
    for name in names:
        counts = [next((total(fit) for fit in fits if fit.workload == name), "") for _head, fits in columns]
        rows.append([name, *counts])
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _by_reason(stranded_devices: t.Sequence[Stranded]) -> dict[tuple[str, str], list[str]]:
    """The devices by the reason, and by which claims must end so that they become usable."""
    groups: dict[tuple[str, str], list[str]] = {}
    for stranded in stranded_devices:
        if not stranded.certain:
            remedy = " (not certain)"
        elif stranded.holders:
            remedy = f"; usable once claim {' or '.join(stranded.holders)} ends"
        elif stranded.together:
            remedy = f"; usable once claims {' and '.join(stranded.together)} have ended"
        else:
            remedy = ""
        groups.setdefault((stranded.reason, remedy), []).append(stranded.device)
    return groups
