# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Finds room for a job: the devices to hold for the job, and as few pods as possible to move so that the job fits.

The result has a proven lower bound of the number of moves, `at_least`. With fewer moves the job cannot fit, whichever
nodes the moved pods get. A plan with exactly this number of moves is optimal.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ..cel.engine import Engine
from ..holds.hold import KEY
from ..holds.tolerations import with_toleration
from ..kube import quantity
from ..kube.objects import ObjectView
from ..scheduler.answers import Result
from ..scheduler.search_devices import DeviceId, identify
from . import pods
from .cheapest_choice import Choice, Row, cheapest_choice
from .fleet import Fleet, Node, Workload
from .movable import Movable
from .options import NodeOptions, Option, Question, SearchBudget, options_key
from .simulation import PlacementSimulation
from .states import States

#: The maximum number of sets of pods that are searched, and of plans for which the moved pods are placed.
SEARCHES, MAX_PLANS = 20_000, 200


@dataclass(frozen=True)
class Move:
    """A pod, `namespace/name`, to move away from a node. `to` is a node that has room for it; empty if none has."""

    pod: str
    uid: str
    node: str
    to: str


@dataclass(frozen=True)
class Room:
    """Whether a job fits after some moves.

    `devices` are the ones to hold; `placements` has the node and the devices of each pod of the job. `at_least` is a
    lower bound of the number of moves, None if the job cannot fit with any moves. `optimal` says whether it is certain
    that no plan has fewer moves. If the job does not fit, `reason` says why. `arrived` is the number of pods of the job
    that already run on held devices.
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
    """`count` pods of a workload, for which the hold named `hold` reserves devices; at most `moves` pods are moved.

    `may_wait` allows moved pods to wait if no node has room for them. `searches` is the maximum number of sets of pods
    that are searched.
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

    The job's claims are treated as if they tolerate the hold. Devices of the hold are used first: if they suffice, the
    hold is not changed. `tolerant` are the claims, `namespace/name`, that tolerate the hold: pods that have devices of
    the hold through such a claim count as arrived pods of the job. Raises ValueError for a workload without claims or
    with requests that cannot be read.
    """
    if not job.workload.claims:
        raise ValueError(f"workload {job.workload.name} has no claims: there is nothing to hold")
    claims = tuple(with_toleration(claim, job.hold) for claim in job.workload.claims)
    job = replace(job, workload=replace(job.workload, claims=claims))
    held = _held(fleet, job.hold)
    job, arrived, used = _arrived(fleet, job, held, tolerant)
    if job.count == 0:
        return Room(True, devices=tuple(used), optimal=True, arrived=arrived)
    if held:
        plan = _search(_only_held(fleet, held), replace(job, moves=0), (), engine)
        if plan.fits:
            return _with_arrived(plan, used, arrived)
    return _with_arrived(_search(fleet, job, movable, engine), used, arrived)


def _with_arrived(plan: Room, used: t.Sequence[DeviceId], arrived: int) -> Room:
    return replace(plan, devices=tuple(dict.fromkeys([*used, *plan.devices])), arrived=arrived)


def _held(fleet: Fleet, name: str) -> set[DeviceId]:
    """The devices of the hold of this name."""
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
    """The job without its arrived pods, the number of arrived pods, and the devices that they have."""
    users: dict[str, list[DeviceId]] = {}
    for node in fleet.nodes.values():
        for device in node.held:
            if device.owner in tolerant and device.result.id in held:
                users.setdefault(device.owner, []).append(device.result.id)
    pods_of_job = [pod for node in fleet.nodes.values() for pod in node.pods if users.keys() & set(pod.claims)]
    arrived = len(pods_of_job)
    return (
        replace(job, count=max(0, job.count - arrived)),
        arrived,
        [device for devices in users.values() for device in devices],
    )


def _only_held(fleet: Fleet, held: t.Collection[DeviceId]) -> Fleet:
    """The fleet with a taint on all devices except these."""
    taint = {"key": f"{KEY}-outside", "effect": "NoSchedule"}

    def tainted(node: Node) -> Node:
        offers = []
        for offer in node.offers:
            if identify(offer) not in held:
                offer = replace(offer, device={**offer.device, "taints": [*offer.device.get("taints", ()), taint]})
            offers.append(offer)
        return replace(node, offers=tuple(offers))

    return replace(fleet, nodes={name: tainted(node) for name, node in fleet.nodes.items()})


def _search(fleet: Fleet, job: Job, movable: t.Sequence[Movable], engine: Engine) -> Room:
    search = _Search(fleet, job, movable, engine)
    at_least, choice = search.bounds()
    if at_least is None:
        return Room(False, at_least=None, reason=search.why_impossible())
    if choice is None or choice.cost > job.moves:
        reason = "no plan was found within the budget of the search"
        if at_least > job.moves:
            reason = f"at least {at_least} pod(s) would have to be moved, but only {job.moves} may be"
        return Room(False, at_least=at_least, reason=reason)
    for _attempt in range(MAX_PLANS):
        if choice is None or choice.cost > job.moves:
            break
        outcome = _plan_for(fleet, job, search, choice, engine)
        if not choice.entries and not isinstance(outcome, Room):
            return Room(False, at_least=at_least, reason="the spread constraints of the job prevent it from fitting")
        if isinstance(outcome, Room):
            return replace(outcome, at_least=at_least, optimal=len(outcome.moves) == at_least)
        search.ban(outcome)
        choice = search.cheapest()
    return Room(False, at_least=at_least, reason="no plan was found in which the job and each moved pod fit")


class _Search:
    """The options of all nodes. Nodes in the same state share one NodeOptions."""

    def __init__(self, fleet: Fleet, job: Job, movable: t.Sequence[Movable], engine: Engine) -> None:
        try:
            requests = pods.requests(job.workload.pod)
        except quantity.QuantityError as error:
            raise ValueError(f"workload {job.workload.name}: its requests cannot be read: {error}") from error
        self.job, self.fleet = job, fleet
        self.states = States(fleet, [job.workload], engine)
        self.movable: dict[str, list[Movable]] = {name: [] for name in fleet.nodes}
        for pod in sorted(movable, key=lambda pod: pod.pod) if job.moves else ():
            if pod.node in self.movable:
                self.movable[pod.node].append(pod)
        self.options: dict[str, NodeOptions] = {}
        self.banned: set[tuple[str, tuple[int, ...]]] = set()
        self.budget = SearchBudget(job.searches)
        question = Question(self.states, job.workload, requests, job.count)
        groups: dict[tuple[t.Hashable, ...], NodeOptions] = {}
        for name in self._order():
            node = fleet.nodes[name]
            key = options_key(self.states, node, self.movable[name], job.workload)
            if key not in groups:
                groups[key] = NodeOptions(question, node, self.movable[name])
            self.options[name] = groups[key]
        self.groups = list(groups.values())

    def _order(self) -> list[str]:
        """The names of all nodes, those with devices of the hold first."""
        names = _nodes_of_hold(self.fleet, self.job.hold)
        return sorted(self.fleet.nodes, key=lambda name: (name not in names, name))

    def bounds(self) -> tuple[int | None, Choice | None]:
        """The lower bound, None if the job can never fit, and the cheapest known plan."""
        for size in range(self.job.moves + 1):
            within_budget = [group.try_sets(size, self.budget) for group in self.groups]  # all, even after a failure
            choice, lower = self.cheapest(), self._lower_bound()
            if lower is None:
                return None, None
            if not all(within_budget) or (choice and choice.cost <= lower) or lower > self.job.moves:
                return lower, choice
            if all(group.complete for group in self.groups):
                break
        return self._lower_bound(), self.cheapest()

    def free(self, name: str) -> int:
        """How many pods of the job fit on a node if no pod is moved."""
        return max((option.count for option in self.options[name].options if not option.moved), default=0)

    def _need(self) -> int:
        """How many pods of the job do not fit if no pod is moved."""
        return max(0, self.job.count - sum(self.free(name) for name in self.options))

    def _lower_bound(self) -> int | None:
        rows: list[Row] = []
        for name, options in self.options.items():
            rows.append((name, [(cost, count - self.free(name)) for cost, count in options.optimistic()]))
        choice = cheapest_choice(rows, self._need())
        return choice.cost if choice else None

    def cheapest(self) -> Choice | None:
        """The cheapest known plan without banned options; its entries are positions in the options of each node."""
        rows: list[Row] = []
        for name, options in self.options.items():
            free = self.free(name)
            gains = [
                (len(option.moved), 0 if (name, option.moved) in self.banned else option.count - free)
                for option in options.options
            ]
            rows.append((name, gains))
        return cheapest_choice(rows, self._need())

    def ban(self, option: tuple[str, tuple[int, ...]]) -> None:
        """Exclude an option, a node and the positions of its moved pods, from further plans."""
        self.banned.add(option)

    def why_impossible(self) -> str:
        refused = sorted({pods.refuses(node, self.job.workload.pod) for node in self.fleet.nodes.values()} - {""})
        max_count = sum(options.max_count for options in self.options.values())
        reason = f"; {refused[0]}" if refused and not max_count else ""
        condition = "whatever pods are moved" if self.job.moves else "without moving pods"
        return f"{self.job.count} pod(s) do not fit, {condition}: at most {max_count} fit{reason}"


def _nodes_of_hold(fleet: Fleet, hold: str) -> set[str]:
    """The names of the nodes that have devices of a hold."""
    held = _held(fleet, hold)
    return {node.name for node in fleet.nodes.values() for offer in node.offers if identify(offer) in held}


def _plan_for(
    fleet: Fleet, job: Job, search: _Search, choice: Choice, engine: Engine
) -> Room | tuple[str, tuple[int, ...]]:
    """The plan for a choice of options, or the node and the moved pods of the option that makes it fail."""
    chosen: dict[str, Option] = {name: search.options[name].options[number] for name, number in choice.entries.items()}
    moved = [search.movable[name][number] for name, option in chosen.items() for number in option.moved]
    simulation = PlacementSimulation(fleet, [job.workload, *(pod.workload for pod in moved)], engine)
    for name, option in chosen.items():
        owners = [claim for number in option.moved for claim in search.movable[name][number].claims]
        simulation.replace_node(fleet.nodes[name].without(owners))
    placements = _place_job(job, search, chosen, simulation)
    if len(placements) < job.count:
        last = next(reversed(chosen), None)
        return (last, chosen[last].moved) if last else ("", ())
    moves = []
    for pod in moved:
        to = _place_elsewhere(pod, simulation)
        if not to and not job.may_wait:
            return pod.node, chosen[pod.node].moved
        moves.append(Move(pod.pod, pod.uid, pod.node, to))
    order = list(chosen)
    moves.sort(key=lambda move: (order.index(move.node), move.pod))
    devices = _to_hold(fleet, placements)
    by_node = tuple((name, tuple(result.id for result in results)) for name, results in placements)
    return Room(True, tuple(moves), devices, by_node)


def _place_job(
    job: Job, search: _Search, chosen: t.Mapping[str, Option], simulation: PlacementSimulation
) -> list[tuple[str, tuple[Result, ...]]]:
    """Place the pods of the job on the chosen nodes, then on nodes of the hold, then on those with the least room.

    Returns the node and the devices of each placed pod.
    """
    nodes_of_hold = _nodes_of_hold(search.fleet, job.hold)
    others = [name for name in search.options if name not in chosen and search.free(name)]
    others.sort(key=lambda name: (name not in nodes_of_hold, search.free(name), name))
    placements: list[tuple[str, tuple[Result, ...]]] = []
    names = [*chosen, *others]
    progress = True
    while progress and len(placements) < job.count:
        progress = False
        for name in names:  # tried again after each round: a spread constraint may allow more pods then
            while len(placements) < job.count:
                results = simulation.place(job.workload, name, f"hold {job.hold}/{len(placements)}")
                if results is None:
                    break
                placements.append((name, results))
                progress = True
    return placements


def _place_elsewhere(moved: Movable, simulation: PlacementSimulation) -> str:
    """Place a moved pod on a node, on its current node only if no other has room.

    Returns the name of the node; empty if none has room.
    """
    for name in sorted(simulation.nodes, key=lambda name: (name == moved.node, name)):
        if simulation.place(moved.workload, name, moved.claims[0]) is not None:
            return name
    return ""


def _to_hold(fleet: Fleet, placements: t.Iterable[tuple[str, tuple[Result, ...]]]) -> tuple[DeviceId, ...]:
    """The devices of placements, and all other devices that use the same counter sets."""
    devices: dict[DeviceId, None] = {}
    for name, results in placements:
        sets = {key for result in results if not result.admin for key in _counter_sets(result.offer.device, result.id)}
        for result in results:
            if not result.admin:
                devices[result.id] = None
        for offer in fleet.nodes[name].offers:
            if sets & set(_counter_sets(offer.device, identify(offer))):
                devices[identify(offer)] = None
    return tuple(devices)


def _counter_sets(device: ObjectView, identity: DeviceId) -> list[tuple[str, str, str]]:
    """The counter sets that a device uses, by driver, pool and name."""
    driver, pool, _name = identity
    return [(driver, pool, str(entry["counterSet"])) for entry in device.get("consumesCounters") or ()]
