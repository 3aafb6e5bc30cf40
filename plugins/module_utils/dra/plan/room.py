# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Room for a job: the devices to hold for it, and the fewest pods to move so that it fits.

The number of moves is proven to be within two bounds. `at_least` is the fewest without which the job cannot fit,
wherever the moved pods go; the moves found are an upper bound. Where both are the same, no plan has fewer.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ..cel.engine import Engine
from ..holds.hold import KEY
from ..holds.tolerations import tolerating
from ..kube import quantity
from ..kube.objects import ObjectView
from ..scheduler.answers import Result
from ..scheduler.search_devices import DeviceId, identify
from . import pods
from .fewest import Choice, Row, fewest
from .fleet import Fleet, Node, Workload
from .movable import Movable
from .options import Budget, NodeOptions, Option, Question, alike
from .scene import Scene
from .states import States

#: Sets of pods that are searched, and plans that are tried for whether the moved pods find another place.
SEARCHES, TRIES = 20_000, 200


@dataclass(frozen=True)
class Move:
    """A pod, `namespace/name`, that is to leave a node; `to` is a node that has room for it, empty where none has."""

    pod: str
    uid: str
    node: str
    to: str


@dataclass(frozen=True)
class Room:
    """Whether a job fits after some moves.

    `devices` are to be held; `placements` are those of each pod of the job, by node. `at_least` is a lower bound of the
    number of moves, None where moves cannot help. `optimal` says that no plan has fewer moves. Where the job does not
    fit, `reason` says why, and all but the bound is empty. `arrived` pods of the job run on the hold already.
    """

    fits: bool
    moves: tuple[Move, ...] = ()
    devices: tuple[DeviceId, ...] = ()
    placements: tuple[tuple[str, tuple[DeviceId, ...]], ...] = ()
    at_least: int | None = 0
    optimal: bool = False
    arrived: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Job:
    """`count` pods of a workload, for which the hold of this name is kept; at most `moves` pods are moved.

    `may_wait` lets moved pods wait where no node has room for them.
    """

    workload: Workload
    count: int
    hold: str
    moves: int = 0
    may_wait: bool = False
    searches: int = SEARCHES


def room(
    fleet: Fleet, job: Job, movable: t.Sequence[Movable], engine: Engine, tolerant: t.Collection[str] = ()
) -> Room:
    """The devices to hold and the pods to move for a job.

    The job's claims are taken to tolerate the hold. Devices that the hold has are used first: where they suffice, it
    stays as it is. Pods with claims of `tolerant`, `namespace/name`, that have devices of the hold are pods of the job
    that have arrived. Raises ValueError for a workload without claims or with requests that cannot be read.
    """
    if not job.workload.claims:
        raise ValueError(f"workload {job.workload.name} has no claims: there is nothing to hold")
    claims = tuple(tolerating(claim, job.hold) for claim in job.workload.claims)
    job = replace(job, workload=replace(job.workload, claims=claims))
    held = _held(fleet, job.hold)
    job, arrived, used = _arrived(fleet, job, held, tolerant)
    if job.count == 0:
        return Room(True, devices=tuple(used), optimal=True, arrived=arrived)
    if held:
        found = _search(_only(fleet, held), replace(job, moves=0), (), engine)
        if found.fits:
            return _with(found, used, arrived)
    return _with(_search(fleet, job, movable, engine), used, arrived)


def _with(found: Room, used: t.Sequence[DeviceId], arrived: int) -> Room:
    return replace(found, devices=tuple(dict.fromkeys([*used, *found.devices])), arrived=arrived)


def _held(fleet: Fleet, name: str) -> set[DeviceId]:
    """The devices that the hold of this name has."""
    return {
        identify(offer)
        for node in fleet.nodes.values()
        for offer in node.offers
        for taint in offer.device.get("taints") or ()
        if taint.get("key") == KEY and taint.get("value") == name
    }


def _arrived(
    fleet: Fleet, job: Job, held: t.Collection[DeviceId], tolerant: t.Collection[str]
) -> tuple[Job, int, list[DeviceId]]:
    """The job without its pods that run on the hold already, how many these are, and the devices that they have."""
    users: dict[str, list[DeviceId]] = {}
    for node in fleet.nodes.values():
        for one in node.held:
            if one.owner in tolerant and one.result.id in held:
                users.setdefault(one.owner, []).append(one.result.id)
    there = sum(1 for node in fleet.nodes.values() for pod in node.pods if any(claim in users for claim in pod.claims))
    return replace(job, count=max(0, job.count - there)), there, [one for some in users.values() for one in some]


def _only(fleet: Fleet, held: t.Collection[DeviceId]) -> Fleet:
    """The fleet in which nothing is free but these devices."""
    taint = {"key": f"{KEY}-outside", "effect": "NoSchedule"}

    def closed(node: Node) -> Node:
        offers = []
        for offer in node.offers:
            if identify(offer) not in held:
                offer = replace(offer, device={**offer.device, "taints": [*offer.device.get("taints", ()), taint]})
            offers.append(offer)
        return replace(node, offers=tuple(offers))

    return replace(fleet, nodes={name: closed(node) for name, node in fleet.nodes.items()})


def _search(fleet: Fleet, job: Job, movable: t.Sequence[Movable], engine: Engine) -> Room:
    search = _Search(fleet, job, movable, engine)
    at_least, upper = search.bounds()
    if at_least is None:
        return Room(False, at_least=None, reason=search.why_never())
    if upper is None or upper.cost > job.moves:
        too_many = f"at least {at_least} pod(s) would have to be moved, and {job.moves} may be"
        reason = "within the budget of the search, no way was found" if at_least <= job.moves else too_many
        return Room(False, at_least=at_least, reason=reason)
    for _turn in range(TRIES):
        if upper is None or upper.cost > job.moves:
            break
        found = _realize(fleet, job, search, upper, engine)
        if not upper.of and not isinstance(found, Room):
            return Room(False, at_least=at_least, reason="the spread constraints of the job keep it from fitting")
        if isinstance(found, Room):
            return replace(found, at_least=at_least, optimal=len(found.moves) == at_least)
        search.ban(found)
        upper = search.cheapest()
    return Room(
        False, at_least=at_least, reason="no plan was found in which the job fits and each moved pod has a place"
    )


class _Search:
    """The options of all nodes; nodes in the same state share theirs."""

    def __init__(self, fleet: Fleet, job: Job, movable: t.Sequence[Movable], engine: Engine) -> None:
        try:
            asked = pods.requests(job.workload.pod)
        except quantity.QuantityError as error:
            raise ValueError(f"workload {job.workload.name}: its requests cannot be read: {error}") from error
        self.job, self.fleet = job, fleet
        self.states = States(fleet, [job.workload], engine)
        self.own: dict[str, list[Movable]] = {name: [] for name in fleet.nodes}
        for one in sorted(movable, key=lambda one: one.pod) if job.moves else ():
            if one.node in self.own:
                self.own[one.node].append(one)
        self.options: dict[str, NodeOptions] = {}
        self.banned: set[tuple[str, tuple[int, ...]]] = set()
        self.budget = Budget(job.searches)
        question = Question(self.states, job.workload, asked, job.count)
        groups: dict[tuple[t.Hashable, ...], NodeOptions] = {}
        for name in self._order():
            node = fleet.nodes[name]
            key = alike(self.states, node, self.own[name], job.workload)
            if key not in groups:
                groups[key] = NodeOptions(question, node, self.own[name])
            self.options[name] = groups[key]
        self.groups = list(groups.values())

    def _order(self) -> list[str]:
        """The nodes with devices of the hold first."""
        names = {node for node, _driver, _device in _places(self.fleet, self.job.hold)}
        return sorted(self.fleet.nodes, key=lambda name: (name not in names, name))

    def bounds(self) -> tuple[int | None, Choice | None]:
        """The lower bound, None where the job can never fit, and the cheapest plan that is known."""
        for size in range(self.job.moves + 1):
            inside = [group.level(size, self.budget) for group in self.groups]  # all, even after one has failed
            upper, lower = self.cheapest(), self._lower()
            if lower is None:
                return None, None
            if not all(inside) or (upper and upper.cost <= lower) or lower > self.job.moves:
                return lower, upper
            if all(group.whole for group in self.groups):
                break
        return self._lower(), self.cheapest()

    def free(self, name: str) -> int:
        """How many pods of the job fit on a node as it is."""
        return max((one.count for one in self.options[name].options if not one.gone), default=0)

    def _need(self) -> int:
        return max(0, self.job.count - sum(self.free(name) for name in self.options))

    def _lower(self) -> int | None:
        rows: list[Row] = []
        for name, options in self.options.items():
            rows.append((name, [(cost, count - self.free(name)) for cost, count in options.lower()]))
        found = fewest(rows, self._need())
        return found.cost if found else None

    def cheapest(self) -> Choice | None:
        """The cheapest plan that is known and not banned; its numbers are those of a node's options."""
        rows: list[Row] = []
        for name, options in self.options.items():
            free = self.free(name)
            gains = [
                (len(one.gone), 0 if (name, one.gone) in self.banned else one.count - free) for one in options.options
            ]
            rows.append((name, gains))
        return fewest(rows, self._need())

    def ban(self, option: tuple[str, tuple[int, ...]]) -> None:
        self.banned.add(option)

    def why_never(self) -> str:
        refused = sorted({pods.refuses(node, self.job.workload.pod) for node in self.fleet.nodes.values()} - {""})
        there = sum(group.most for group in map(self.options.__getitem__, self.options))
        more = f"; {refused[0]}" if refused and not there else ""
        what = "whatever pods are moved" if self.job.moves else "without moving pods"
        return f"{self.job.count} pod(s) do not fit, {what}: {there} fit at most{more}"


def _places(fleet: Fleet, hold: str) -> set[tuple[str, str, str]]:
    held = _held(fleet, hold)
    return {
        (node.name, offer.driver, str(offer.device["name"]))
        for node in fleet.nodes.values()
        for offer in node.offers
        if identify(offer) in held
    }


def _realize(
    fleet: Fleet, job: Job, search: _Search, choice: Choice, engine: Engine
) -> Room | tuple[str, tuple[int, ...]]:
    """The plan for a choice of options, or, if there is none, the node and its option that prevent it."""
    chosen: dict[str, Option] = {name: search.options[name].options[number] for name, number in choice.of.items()}
    gone = [search.own[name][number] for name, one in chosen.items() for number in one.gone]
    scene = Scene(fleet, [job.workload, *(one.workload for one in gone)], engine)
    for name, one in chosen.items():
        owners = [claim for number in one.gone for claim in search.own[name][number].claims]
        scene.put(fleet.nodes[name].without(owners))
    placements = _arrive(job, search, chosen, scene)
    if len(placements) < job.count:
        last = next(reversed(chosen), None)
        return (last, chosen[last].gone) if last else ("", ())
    moves = []
    for leaving in gone:
        to = _elsewhere(leaving, scene)
        if not to and not job.may_wait:
            return leaving.node, chosen[leaving.node].gone
        moves.append(Move(leaving.pod, leaving.uid, leaving.node, to))
    order = list(chosen)
    moves.sort(key=lambda move: (order.index(move.node), move.pod))
    devices = _to_hold(fleet, placements)
    by_node = tuple((name, tuple(one.id for one in results)) for name, results in placements)
    return Room(True, tuple(moves), devices, by_node)


def _arrive(
    job: Job, search: _Search, chosen: t.Mapping[str, Option], scene: Scene
) -> list[tuple[str, tuple[Result, ...]]]:
    """The pods of the job, placed on the nodes that were chosen and on others that have room, the fullest first."""
    ours = {node for node, _driver, _device in _places(search.fleet, job.hold)}
    others = [name for name in search.options if name not in chosen and search.free(name)]
    others.sort(key=lambda name: (name not in ours, search.free(name), name))
    found: list[tuple[str, tuple[Result, ...]]] = []
    names = [*chosen, *others]
    progress = True
    while progress and len(found) < job.count:
        progress = False
        for name in names:  # again from the start where a spread constraint kept nodes back
            while len(found) < job.count:
                results = scene.place(job.workload, name, f"hold {job.hold}/{len(found)}")
                if results is None:
                    break
                found.append((name, results))
                progress = True
    return found


def _elsewhere(one: Movable, scene: Scene) -> str:
    """A node that takes a moved pod, which is then there; empty where none does."""
    for name in sorted(scene.nodes, key=lambda name: (name == one.node, name)):
        if scene.place(one.workload, name, one.claims[0]) is not None:
            return name
    return ""


def _to_hold(fleet: Fleet, placements: t.Iterable[tuple[str, tuple[Result, ...]]]) -> tuple[DeviceId, ...]:
    """The devices of placements, and those that could take counters away from them."""
    found: dict[DeviceId, None] = {}
    for name, results in placements:
        sets = {key for one in results if not one.admin for key in _counter_sets(one.offer.device, one.id)}
        for one in results:
            if not one.admin:
                found[one.id] = None
        for offer in fleet.nodes[name].offers:
            if sets & set(_counter_sets(offer.device, identify(offer))):
                found[identify(offer)] = None
    return tuple(found)


def _counter_sets(device: ObjectView, one: DeviceId) -> list[tuple[str, str, str]]:
    return [(one[0], one[1], str(entry["counterSet"])) for entry in device.get("consumesCounters") or ()]
