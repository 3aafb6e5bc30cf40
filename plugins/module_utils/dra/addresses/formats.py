# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""An address plan as rows, as lines for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import typing as t

from ..kube.objects import Object
from .site_plan import Site

COLUMNS = (
    *("rail", "family", "node", "index", "range", "first", "last", "usable"),
    *("prefix", "gateway", "reach", "pool"),
)
#: The columns of the table that a terminal shows for each pool.
_TABLE_COLUMNS = ("node", "index", "range", "usable", "gateway")
#: A spreadsheet treats text that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def rows(site: Site) -> list[Object]:
    """A row for each range, sorted by rail, family, pool and index."""
    entries = []
    for name, ranges in site.ranges.items():
        for node_range in ranges:
            row: Object = {
                "rail": node_range.rail,
                "family": node_range.family,
                "node": name,
                "index": site.indexes[name],
                "range": str(node_range.range),
                "first": str(node_range.range[0]),
                "last": str(node_range.range[-1]),
                "usable": node_range.usable,
                "prefix": node_range.prefix,
                "gateway": str(node_range.gateway) if node_range.gateway else None,
                "reach": node_range.reach,
                "pool": str(node_range.pool),
            }
            entries.append(row)
    return sorted(entries, key=lambda row: (row["rail"], row["family"], row["pool"], row["index"]))


def pool_rows(site: Site) -> list[Object]:
    """A row for each pool. `room` is the number of nodes that have room in the pool, `nodes` that of the nodes with a
    range in it."""
    return [
        {
            "rail": pool.rail,
            "family": f"ipv{pool.network.version}",
            "pool": str(pool.network),
            "per_node": pool.per_node,
            "prefix": pool.prefix,
            "reach": pool.reach,
            "room": pool.max_nodes,
            "nodes": len(members),
        }
        for pools, members in site.pools
        for pool in sorted(pools, key=lambda pool: (pool.rail, pool.network.version))
    ]


def lines(site: Site) -> list[str]:
    """Lines for a terminal: a table of nodes for each pool."""
    text_lines: list[str] = []
    ranges = rows(site)
    for pool in pool_rows(site):
        pool_ranges = [row for row in ranges if row["pool"] == pool["pool"]]
        text_lines.append(
            f"rail {pool['rail']}, {pool['pool']}: {pool['per_node']} addresses per node, {pool['nodes']} nodes, "
            f"room for {pool['room']}; prefix length {pool['prefix']}; addresses reach "
            + ("only this rail" if pool["reach"] == "rail" else "all destinations")
        )
        table: list[tuple[str, ...]] = [_TABLE_COLUMNS]
        table += [tuple("-" if row[key] is None else str(row[key]) for key in _TABLE_COLUMNS) for row in pool_ranges]
        widths = [max(len(row[column]) for row in table) for column in range(len(_TABLE_COLUMNS))]
        for row in table:
            text_lines.append("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    return text_lines


def as_csv(site: Site) -> str:
    """All rows, with a header. Text that a spreadsheet would treat as a formula gets a leading apostrophe."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(site):
        writer.writerow([_cell(row[key]) for key in COLUMNS])
    return stream.getvalue()


def _cell(value: t.Any) -> t.Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
