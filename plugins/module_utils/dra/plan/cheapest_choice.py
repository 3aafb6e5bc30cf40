# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Chooses how many pods each node loses, so that enough pods of a workload fit and the fewest pods are moved.

Nodes are independent here. Spread constraints are ignored, and so is whether other nodes have room for the moved pods.
The result is therefore a lower bound of the real cost.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

#: A node's name, and its entries: the cost (pods that are moved) and the gain (additional pods that fit) of each.
Row = tuple[str, t.Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Choice:
    """The minimum cost at which the gains add up to what is needed, and the position of the chosen entry by node."""

    cost: int
    entries: t.Mapping[str, int]


def cheapest_choice(rows: t.Sequence[Row], need: int) -> Choice | None:
    """The cheapest choice of at most one entry per node whose gains add up to at least `need`; None if there is none.

    Among choices of the same cost, entries of earlier nodes are preferred. The time is proportional to the number of
    entries times `need`.
    """
    best: list[int | None] = [0] + [None] * need
    steps: list[tuple[str, list[int]]] = []
    for name, entries in rows:
        after, taken = list(best), [-1] * (need + 1)
        for number, (cost, gain) in enumerate(entries):
            if gain <= 0:
                continue
            for have in range(need):
                base = best[have]
                if base is None:
                    continue
                reached = min(need, have + gain)
                old = after[reached]
                if old is None or base + cost < old:
                    after[reached], taken[reached] = base + cost, number * (need + 1) + have
        best = after
        steps.append((name, taken))
    total = best[need]
    if total is None:
        return None
    chosen, have = {}, need
    for name, taken in reversed(steps):
        if taken[have] >= 0:
            chosen[name], have = divmod(taken[have], need + 1)
    return Choice(total, chosen)
