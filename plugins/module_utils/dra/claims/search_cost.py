# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many devices the scheduler tries in the worst case for the nearest pairs of a board.

The scheduler searches depth first and backtracks one device at a time. So a claim that cannot be satisfied takes the
longest: every order in which some of its pairs can be chosen is tried. A try is one device tested for one alternative.

The bound holds whatever devices other pods have. Assume that `pairs` are requested and at most `pairs - 1` are free.
With one NIC per GPU, all free pairs then touch one of `pairs - 1` devices (Koenig's theorem), so there are at most
`P(pairs - 1, d) * degree ** d` ordered choices of `d` pairs, where `degree` is the largest number of partners of one
device. With several NICs per GPU, boards whose GPUs share either all their NICs or none are counted cluster by
cluster; for other boards every choice counts, whatever is free.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from fractions import Fraction
from math import perm

#: The maximum of this bound for a claim. kube-scheduler 1.37.1 made more than eight million tries a second on two busy
#: processors, so this number takes a fifth of its limit of ten seconds per node.
MAX_TRIES = 16_000_000

Partners = t.Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Size:
    """The size of a search: the number of alternatives of a request, and the number of all devices of the node."""

    alternatives: int
    devices: int


def worst_case_tries(graphs: t.Sequence[Partners], pairs: int, size: Size, has_other_requests: bool = False) -> int:
    """An upper bound of the scheduler's tries on one node for `pairs` repetitions of a GPU and its NICs.

    `graphs` contains, for each NIC of the group, the devices with which each GPU may be paired; VFs and partitions are
    separate devices. With `has_other_requests`, other requests of the claim come after these, and every complete choice
    is tried for them.
    """
    gpus = max((len(graph) for graph in graphs), default=0)
    alike = all(graph == graphs[0] for graph in graphs)
    max_partners = [max(map(len, graph.values()), default=0) for graph in graphs]
    ways = [1]  # the number of ways to choose the first 0, 1, 2 ... NICs of one GPU
    for number, partners in enumerate(max_partners):
        ways.append(ways[-1] * max(partners - number if alike else partners, 1))
    row = size.alternatives * size.devices  # the tries of one request
    total = 0
    for chosen in range(pairs + (1 if has_other_requests else 0)):
        choices = Fraction(perm(gpus, chosen) * ways[-1] ** chosen)
        weight = None if has_other_requests else _weight(graphs, pairs, alike)
        if weight is not None:
            choices = min(choices, perm(pairs - 1, chosen) * weight**chosen)
        # each GPU that can be chosen next costs the tries of its first NIC, each of those the tries of the second ...
        total += int(choices * row * (1 + max(gpus - chosen, 0) * sum(ways[:-1]))) + 1
    return total


def _weight(graphs: t.Sequence[Partners], pairs: int, alike: bool) -> Fraction | None:
    """The maximum number of choices of a repetition, divided by that of free repetitions; None if there is no bound."""
    if len(graphs) == 1:
        return Fraction(_degree(graphs[0]))
    if not alike:
        return None
    clusters: dict[frozenset[str], int] = {}
    for nics in graphs[0].values():
        clusters[nics] = clusters.get(nics, 0) + 1
    if sum(map(len, clusters)) != len(frozenset().union(*clusters)):
        return None
    nics_per_gpu = len(graphs)
    weights = [Fraction(1)]
    for nics, gpus in clusters.items():
        weights.append(Fraction(perm(len(nics), nics_per_gpu)))  # GPUs are short
        for free in range(1, min(gpus, pairs - 1) + 1):  # NICs are short
            weights.append(
                Fraction(gpus * perm(min(len(nics), nics_per_gpu * free + nics_per_gpu - 1), nics_per_gpu), free)
            )
    return max(weights)


def _degree(graph: Partners) -> int:
    """The largest number of partners of one GPU or NIC."""
    counts: dict[str, int] = {}
    for nics in graph.values():
        for nic in nics:
            counts[nic] = counts.get(nic, 0) + 1
    return max([*map(len, graph.values()), *counts.values()], default=0)
