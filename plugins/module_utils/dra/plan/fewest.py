# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which nodes lose how many pods, so that enough of a workload fits and the fewest go: a sum over nodes.

Nodes do not depend on each other here. Spread constraints, and whether the pods that go find another place, are not
part of it, so the result is a lower bound if these count too.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

#: A node's name, and its choices: cost and gain.
Row = tuple[str, t.Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Choice:
    """The least cost at which the gains add up to what is needed, and the number of each node's choice."""

    cost: int
    of: t.Mapping[str, int]


def fewest(rows: t.Sequence[Row], need: int) -> Choice | None:
    """The cheapest choice of at most one entry per node whose gains add up to `need`; None if there is none.

    Of choices of the same cost it takes those of earlier nodes. Takes time in proportion to entries and `need`.
    """
    best: list[int | None] = [0] + [None] * need
    steps: list[tuple[str, list[int]]] = []
    for name, choices in rows:
        after, taken = list(best), [-1] * (need + 1)
        for number, (cost, gain) in enumerate(choices):
            if gain <= 0:
                continue
            for have in range(need):
                base = best[have]
                if base is None:
                    continue
                there = min(need, have + gain)
                old = after[there]
                if old is None or base + cost < old:
                    after[there], taken[there] = base + cost, number * (need + 1) + have
        best = after
        steps.append((name, taken))
    total = best[need]
    if total is None:
        return None
    found, have = {}, need
    for name, taken in reversed(steps):
        if taken[have] >= 0:
            found[name], have = divmod(taken[have], need + 1)
    return Choice(total, found)
