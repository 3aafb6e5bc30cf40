# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The boards of a site, and, for each group of a claim, its matching GPUs and NICs with their nearest pairs."""

from __future__ import annotations

import collections
import functools
import operator
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
from ..vendors.knowledge import LANEWISE, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge
from ..vendors.offer import Offer
from ..vendors.offers import offers
from ..vendors.server import Server

#: The farthest level that `align: nearest` accepts by default: below one root complex. NODE crosses the internal fabric
#: of a processor, and SYS the link between processors. Both can be slower than a NIC, so a claim must request them.
DEFAULT_AT_LEAST = "PHB"

NEAREST_GPUS = f"{LANEWISE}/nearestGPUs"
NEAREST_GPU_LEVEL = f"{LANEWISE}/nearestGPULevel"
BOARD = f"{LANEWISE}/board"
#: The attributes that are compared or selected by `pairing`.
_COMPARED = (PCI_BUS_ID, PCIE_ROOT, NUMA_NODE, NEAREST_GPUS, NEAREST_GPU_LEVEL, BOARD)


@dataclass(frozen=True)
class MatchingDevice:
    """A device that matches a request.

    `place` is its address on the board's map; for a VF, that of its PF. `values` are the attributes by which pairs are
    compared or selected.
    """

    address: str
    place: str
    values: t.Mapping[str, Scalar]


@dataclass(frozen=True)
class RequestSelectors:
    """The driver and the CEL selectors of one request of a group, including the selectors of its class."""

    driver: str
    texts: tuple[str, ...]


@dataclass
class MatchedBoard:
    """A board of the site, its devices that match a group, and the nodes that have the board.

    - `gpus` are the matching GPUs by address. `gpu_parts` is the number of matching devices of each GPU, which is more
      than one if the GPU is partitioned; the largest of the nodes.
    - `nics` contains, for each NIC request of the group, the matching devices by their place on the board. `allowed`
      contains, for each NIC request, the places of the nearest NICs of each GPU; a set is empty if no NIC is near
      enough.
    - `max_devices` is the largest number of devices that one of the nodes publishes.
    """

    board: Board
    nodes: list[str]
    gpus: dict[str, MatchingDevice]
    nics: list[dict[str, list[MatchingDevice]]]
    max_devices: int
    gpu_parts: collections.Counter[str]
    allowed: list[dict[str, frozenset[str]]] = field(default_factory=list)

    def add(self, node: str, devices: int, gpu_parts: collections.Counter[str]) -> None:
        """Add a node that publishes so many devices, and so many parts of each GPU."""
        self.nodes.append(node)
        self.max_devices = max(self.max_devices, devices)
        self.gpu_parts |= gpu_parts  # the larger number of each

    def served(self) -> list[str]:
        """The GPUs that have a nearest NIC for every NIC request of the group, in the order of their addresses."""
        return [gpu for gpu in self.gpus if all(nearest_to[gpu] for nearest_to in self.allowed)]


class Boards:
    """The boards of the probed nodes.

    Nodes with invalid facts are left out, because `reach` reports them. Nodes that are known only from slices are left
    out too, as slices do not contain the distances between devices.
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
        self._matched_boards: dict[tuple[RequestSelectors, tuple[RequestSelectors, ...], str], list[MatchedBoard]] = {}
        self._nodes: list[tuple[str, Board, list[Offer], dict[str, str]]] = []
        for node in sorted(nodes):
            facts = nodes[node]
            if isinstance(facts, PublishedNode):
                continue
            try:
                board = board_map(facts)
                physical = {nic["address"]: nic["physfn"] or nic["address"] for nic in facts["nics"]}
                offered = offers(node, facts, drivers, known, server)
            except (KeyError, TypeError, AttributeError, ValueError):
                continue
            if board.shape:
                self._nodes.append((node, board, offered, physical))

    def matched(self, gpu: RequestSelectors, nics: t.Sequence[RequestSelectors], at_least: str) -> list[MatchedBoard]:
        """The different boards with a device for each request, those with the most nodes first."""
        key = (gpu, tuple(nics), at_least)
        if key not in self._matched_boards:
            self._matched_boards[key] = self._matched(gpu, nics, at_least)
        return self._matched_boards[key]

    def _matched(self, gpu: RequestSelectors, nics: t.Sequence[RequestSelectors], at_least: str) -> list[MatchedBoard]:
        matched_boards: dict[t.Hashable, MatchedBoard] = {}
        for node, board, offered, physical in self._nodes:
            places = set(board.gpus)
            gpu_devices = [device for device in self._matching(gpu, offered, {}) if device.place in places]
            gpus = {device.place: device for device in gpu_devices}
            rows = [_by_place(self._matching(nic, offered, physical), board) for nic in nics]
            if not gpus or not all(rows):
                continue
            key = (
                board.shape,
                _key(gpus.values()),
                *(_key(device for devices in row.values() for device in devices) for row in rows),
            )
            gpu_parts = collections.Counter(device.place for device in gpu_devices)
            if key in matched_boards:
                matched_boards[key].add(node, len(offered), gpu_parts)
            else:
                ordered = {address: gpus[address] for address in board.gpus if address in gpus}
                allowed = [_allowed(board, ordered, row, at_least) for row in rows]
                matched_boards[key] = MatchedBoard(board, [node], ordered, rows, len(offered), gpu_parts, allowed)
        by_map: dict[str, list[MatchedBoard]] = {}
        for matched in matched_boards.values():
            by_map.setdefault(matched.board.shape, []).append(matched)
        merged = [_merged(same_map) for same_map in by_map.values()]
        return sorted(merged, key=lambda matched: (-len(matched.nodes), matched.board.shape))

    def _matching(
        self, request: RequestSelectors, offered: t.Sequence[Offer], physical: t.Mapping[str, str]
    ) -> list[MatchingDevice]:
        """The devices of a node that match a request, or may match it. `physical` maps VFs to their PFs."""
        devices = []
        for offer in offered:
            if offer.driver != request.driver:
                continue
            if all(self.selection.judge(text, offer) in (YES, MAYBE) for text in request.texts):
                values = {name: value for name in _COMPARED for value in _values(offer, name)}
                devices.append(MatchingDevice(offer.address, physical.get(offer.address, offer.address), values))
        return devices


def selectors_of(driver: DriverKnowledge, body: Object, classes: t.Mapping[str, Object]) -> RequestSelectors:
    """The selectors of a request for a driver's device, with those of its class."""
    texts = expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])
    return RequestSelectors(driver.name, tuple(texts))


def _values(offer: Offer, name: str) -> t.Iterator[Scalar]:
    value = attribute(offer, name)
    if value is not None:
        scalar = next(iter(value.values()), None)
        if isinstance(scalar, (str, int)):
            yield scalar
    elif name == PCI_BUS_ID and name in offer.unknown:
        yield offer.address  # in an imported topology the value is unknown, but the driver publishes this address


def _key(devices: t.Iterable[MatchingDevice]) -> t.Hashable:
    return tuple((device.address, device.place, *device.values.items()) for device in devices)


def _by_place(devices: t.Iterable[MatchingDevice], board: Board) -> dict[str, list[MatchingDevice]]:
    """Devices by their place on the board, in the order of the map. Devices that are not on the map are left out."""
    by_place: dict[str, list[MatchingDevice]] = {nic: [] for nic in board.nics}
    for device in devices:
        if device.place in by_place:
            by_place[device.place].append(device)
    return {place: entries for place, entries in by_place.items() if entries}


def _allowed(board: Board, gpus: t.Iterable[str], nics: t.Iterable[str], at_least: str) -> dict[str, frozenset[str]]:
    """For each GPU, the NICs at its nearest level; an empty set if that level is farther than `at_least`."""
    places = list(nics)
    allowed = {}
    for gpu in gpus:
        level, best = nearest({nic: board.level(gpu, nic) for nic in places})
        allowed[gpu] = frozenset(best) if RANK[level] <= RANK[at_least] else frozenset()
    return allowed


def _merged(matched_boards: list[MatchedBoard]) -> MatchedBoard:
    """One entry for boards with the same map, even if their nodes publish different NICs.

    A claim cannot distinguish these nodes, as they have the same addresses. So a pair is allowed only if it is nearest
    on every node that has both devices.
    """
    first = matched_boards[0]
    if len(matched_boards) == 1:
        return first
    gpus = {gpu: matched.gpus[gpu] for gpu in first.board.gpus for matched in matched_boards if gpu in matched.gpus}
    nics: list[dict[str, list[MatchingDevice]]] = []
    allowed: list[dict[str, frozenset[str]]] = []
    for number in range(len(first.nics)):
        rows = [matched.nics[number] for matched in matched_boards]
        nics.append(
            {
                nic: _without_duplicates(row.get(nic, ()) for row in rows)
                for nic in first.board.nics
                if any(nic in row for row in rows)
            }
        )
        near = {}
        for gpu in gpus:
            with_gpu = [matched for matched in matched_boards if gpu in matched.gpus]
            pairs = frozenset().union(*(matched.allowed[number][gpu] for matched in with_gpu))
            near[gpu] = frozenset(
                nic
                for nic in pairs
                if all(nic in matched.allowed[number][gpu] or nic not in matched.nics[number] for matched in with_gpu)
            )
        allowed.append(near)
    nodes = [node for matched in matched_boards for node in matched.nodes]
    gpu_parts = functools.reduce(operator.or_, (matched.gpu_parts for matched in matched_boards))
    return MatchedBoard(
        first.board, nodes, gpus, nics, max(matched.max_devices for matched in matched_boards), gpu_parts, allowed
    )


def _without_duplicates(rows: t.Iterable[t.Sequence[MatchingDevice]]) -> list[MatchingDevice]:
    different: list[MatchingDevice] = []
    for devices in rows:
        different += [device for device in devices if device not in different]
    return different
