# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The boards of a site as one group of a claim sees them: which GPUs and NICs fit it, and which pairs are nearest."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ...topology.affinity import RANK
from ...topology.boards import Board, board_map, nearest
from ..cel.engine import Engine
from ..kube.objects import Object, ObjectView, Scalar
from ..scheduler.published import Nodes, PublishedNode
from ..scheduler.search_devices import attribute
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import MAYBE, YES, Selection
from ..vendors.knowledge import NUMA_NODE, OWN, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge
from ..vendors.offer import Offer
from ..vendors.offers import offers
from ..vendors.server import Server

#: What `nearest` reaches where a claim does not say: below one root complex. NODE crosses the processor's own fabric
#: and SYS the link between processors, which can be slower than a NIC, so a claim must ask for them.
AT_LEAST_DEFAULT = "PHB"

NEAREST_GPUS = f"{OWN}/nearestGPUs"
NEAREST_GPU_LEVEL = f"{OWN}/nearestGPULevel"
BOARD = f"{OWN}/board"
_COMPARED = (PCI_BUS_ID, PCIE_ROOT, NUMA_NODE, NEAREST_GPUS, NEAREST_GPU_LEVEL, BOARD)


@dataclass(frozen=True)
class Fit:
    """A device that fits a request. `place` is its function on the board's map: for a VF its PF.

    `values` are the attributes that pairs are compared or selected by.
    """

    address: str
    place: str
    values: t.Mapping[str, Scalar]


@dataclass(frozen=True)
class Asked:
    """One request of a group: its driver by name, and the selectors of its class and its own, as CEL."""

    driver: str
    texts: tuple[str, ...]


@dataclass
class Shape:
    """A board of the site as a group sees it, with the nodes that have it.

    `gpus` are the GPUs that fit, by address; `nics` has, for each NIC of the group, what fits, by place on the board.
    `devices` is the most that a node publishes, `many` how many devices of a GPU fit, where it has partitions.
    `allowed` has, for each NIC of the group, the nearest places of each GPU; a GPU without any has an empty set.
    """

    board: Board
    nodes: list[str]
    gpus: dict[str, Fit]
    nics: list[dict[str, list[Fit]]]
    devices: int
    many: dict[str, int]
    allowed: list[dict[str, frozenset[str]]] = field(default_factory=list)

    def served(self) -> list[str]:
        """The GPUs that have a nearest NIC for every NIC of the group, in the order of their addresses."""
        return [gpu for gpu in self.gpus if all(nearest_to[gpu] for nearest_to in self.allowed)]


class Boards:
    """The boards of the probed nodes.

    Nodes whose facts cannot be read are left out: `reach` reports them. So are nodes that only slices show.
    """

    def __init__(
        self,
        nodes: Nodes,
        drivers: t.Mapping[str, ObjectView],
        known: t.Mapping[str, DriverKnowledge],
        server: Server,
        engine: Engine,
    ) -> None:
        self.selection = Selection(engine)
        self._known: dict[tuple[Asked, tuple[Asked, ...], str], list[Shape]] = {}
        self.found: list[tuple[str, Board, list[Offer], dict[str, str]]] = []
        for node in sorted(nodes):
            facts = nodes[node]
            if isinstance(facts, PublishedNode):
                continue  # slices do not say how near devices are to each other
            try:
                board = board_map(facts)
                physical = {nic["address"]: nic["physfn"] or nic["address"] for nic in facts["nics"]}
                offered = offers(node, facts, drivers, known, server)
            except (KeyError, TypeError, AttributeError, ValueError):
                continue
            if board.shape:
                self.found.append((node, board, offered, physical))

    def shapes(self, gpu: Asked, nics: t.Sequence[Asked], at_least: str) -> list[Shape]:
        """The different maps of boards that have a device for each request, those of the most nodes first."""
        key = (gpu, tuple(nics), at_least)
        if key not in self._known:
            self._known[key] = self._shapes(gpu, nics, at_least)
        return self._known[key]

    def _shapes(self, gpu: Asked, nics: t.Sequence[Asked], at_least: str) -> list[Shape]:
        found: dict[t.Hashable, Shape] = {}
        for node, board, offered, physical in self.found:
            places = set(board.gpus)
            parts = [fit for fit in self._fits(gpu, offered, {}) if fit.place in places]
            gpus = {fit.place: fit for fit in parts}
            rows = [_by_place(self._fits(nic, offered, physical), board) for nic in nics]
            if not gpus or not all(rows):
                continue
            key = (
                board.shape,
                _key(gpus.values()),
                *(_key(one for fits in row.values() for one in fits) for row in rows),
            )
            if key in found:
                found[key].nodes.append(node)
            else:
                ordered = {address: gpus[address] for address in board.gpus if address in gpus}
                allowed = [_allowed(board, ordered, row, at_least) for row in rows]
                many = {address: sum(fit.place == address for fit in parts) for address in ordered}
                found[key] = Shape(board, [node], ordered, rows, len(offered), many, allowed)
        by_map: dict[str, list[Shape]] = {}
        for shape in found.values():
            by_map.setdefault(shape.board.shape, []).append(shape)
        merged = [_agreed(alike) for alike in by_map.values()]
        return sorted(merged, key=lambda shape: (-len(shape.nodes), shape.board.shape))

    def _fits(self, asked: Asked, offered: t.Sequence[Offer], physical: t.Mapping[str, str]) -> list[Fit]:
        found = []
        for offer in offered:
            if offer.driver != asked.driver:
                continue
            if all(self.selection.judge(text, offer) in (YES, MAYBE) for text in asked.texts):
                values = {name: value for name in _COMPARED for value in _values(offer, name)}
                found.append(Fit(offer.address, physical.get(offer.address, offer.address), values))
        return found


def asked_of(driver: DriverKnowledge, body: Object, classes: t.Mapping[str, Object]) -> Asked:
    """The selectors of a request for a driver's device, with those of its class."""
    return Asked(driver.name, tuple(expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])))


def _values(offer: Offer, name: str) -> t.Iterator[Scalar]:
    value = attribute(offer, name)
    if value is not None:
        scalar = next(iter(value.values()), None)
        if isinstance(scalar, (str, int)):
            yield scalar
    elif name == PCI_BUS_ID and name in offer.unknown:
        yield offer.address  # of an imported topology; the driver publishes what the address is


def _key(fits: t.Iterable[Fit]) -> t.Hashable:
    return tuple((fit.address, fit.place, *fit.values.items()) for fit in fits)


def _by_place(fits: t.Iterable[Fit], board: Board) -> dict[str, list[Fit]]:
    """Devices by their place on the board, in its order; what is not on its map is left out."""
    found: dict[str, list[Fit]] = {nic: [] for nic in board.nics}
    for fit in fits:
        if fit.place in found:
            found[fit.place].append(fit)
    return {place: entries for place, entries in found.items() if entries}


def _allowed(board: Board, gpus: t.Iterable[str], nics: t.Iterable[str], at_least: str) -> dict[str, frozenset[str]]:
    """For each GPU the NICs at its best level, if that is near enough."""
    places = list(nics)
    found = {}
    for gpu in gpus:
        level, best = nearest({nic: board.level(gpu, nic) for nic in places})
        found[gpu] = frozenset(best) if RANK[level] <= RANK[at_least] else frozenset()
    return found


def _agreed(alike: list[Shape]) -> Shape:
    """Boards with one map as one shape, even if their nodes publish different NICs.

    A claim cannot tell these nodes apart, as they have the same addresses. So a pair is allowed where it is a nearest
    one on every node that has both devices.
    """
    first = alike[0]
    if len(alike) == 1:
        return first
    gpus = {gpu: shape.gpus[gpu] for gpu in first.board.gpus for shape in alike if gpu in shape.gpus}
    nics: list[dict[str, list[Fit]]] = []
    allowed: list[dict[str, frozenset[str]]] = []
    for number in range(len(first.nics)):
        rows = [shape.nics[number] for shape in alike]
        nics.append(
            {
                nic: _once(row.get(nic, ()) for row in rows)
                for nic in first.board.nics
                if any(nic in row for row in rows)
            }
        )
        near = {}
        for gpu in gpus:
            there = [shape for shape in alike if gpu in shape.gpus]
            pairs = frozenset().union(*(shape.allowed[number][gpu] for shape in there))
            near[gpu] = frozenset(
                nic
                for nic in pairs
                if all(nic in shape.allowed[number][gpu] or nic not in shape.nics[number] for shape in there)
            )
        allowed.append(near)
    nodes = [node for shape in alike for node in shape.nodes]
    many = {gpu: max(shape.many.get(gpu, 0) for shape in alike) for gpu in gpus}
    return Shape(first.board, nodes, gpus, nics, max(shape.devices for shape in alike), many, allowed)


def _once(rows: t.Iterable[t.Sequence[Fit]]) -> list[Fit]:
    found: list[Fit] = []
    for fits in rows:
        found += [fit for fit in fits if fit not in found]
    return found
