# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""`align: nearest`: which form a group gets on the boards of the site, and what it becomes.

A plain `matchAttribute` is written where it selects exactly the allowed pairs, else alternatives with constraints
(`pairing`). Boards that do not fit in one object get one each.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ...topology.affinity import RANK
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child
from ..vendors.knowledge import DriverKnowledge
from . import selectors
from .boards import AT_LEAST_DEFAULT, Boards, Shape, selectors_of
from .inventory import NEAREST, NEAREST_ANNOTATION, PREFIX, Claim, Device, Group, request_name
from .pairing import NoPairing, Pairing, PairingPlanner, exclusions, plain_level
from .search_cost import MAX_TRIES, Size, worst_case_tries

_NICS = ("nic", "rdma", "vf")
_OTHER = "other"


class ResolvedDevice(t.Protocol):
    """What a device of the inventory is on this site (`claim_compiler.Resolved`)."""

    class_name: str
    kind: str
    driver: DriverKnowledge | None
    selectors: list[tuple[str, str]]


@dataclass
class Plan:
    """What a group with `nearest` is compiled to: levels, with an attribute in place of `nearest`, or a pairing."""

    levels: tuple[str, ...]
    gpu: Device
    nics: list[Device]
    pairing: Pairing | None = None


@dataclass
class BoardUse:
    """The object that a claim is compiled to for some boards.

    `form` says what NICs are selected by: `published map`, `board and address`, `address` or a level. `boards` has the
    nodes by the name of their board's map. `gpus` are the GPUs with a nearest NIC, `without` those that have none.
    """

    claim: str
    name: str
    form: str
    at_least: str
    boards: dict[str, list[str]]
    nodes: list[str]
    gpus: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    #: Each nearest pair: the board, how near they are, and the addresses of GPU and NIC.
    pairs: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Namespace and name of the object."""
        return f"{self.claim.rpartition('/')[0]}/{self.name}"

    def affinity(self, names: t.Mapping[str, str]) -> Object:
        """The `affinity` of pods for nodes with these boards. `names` are those of the Nodes, by probed node."""
        hosts = sorted({names.get(node, node) for node in self.nodes})
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]}]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    def line(self) -> str:
        """A line of text: which boards this object is for, and what it selects by."""
        boards = f"{len(self.boards)} boards" if len(self.boards) > 1 else f"board {''.join(self.boards)}"
        text = f"{self.claim}: {self.name} is for {boards} ({_shown(self.nodes)}): {len(self.gpus)} GPUs have a NIC at "
        text += f"{self.at_least} or nearer, by {self.form}"
        return text + (f"; without one: {_shown(self.without)}" if self.without else "")


class Body(t.Protocol):
    """A claim that is being compiled: its requests and constraints, each with its origin in the inventory."""

    requests: list[tuple[Object, Device]]
    constraints: list[tuple[Object, str]]

    def body_of(self, device: Device) -> Object: ...

    def add_config(
        self, config: Object, device: Device, position: int, group: Group, index: int, requests: list[str]
    ) -> None: ...

    def required(
        self, devices: list[Device], level: str, path: str, pairs: bool = True
    ) -> list[tuple[str, list[Device]]]: ...


class NearestPlanner:
    """Plans the groups of claims that ask for nearest devices; errors go to `reader`."""

    def __init__(
        self, reader: Reader, classes: t.Mapping[str, Object], boards: t.Callable[[], Boards | None], lists: bool
    ) -> None:
        self.reader = reader
        self.classes = classes
        self.boards = boards
        self.lists = lists
        self.uses: list[BoardUse] = []

    def plans(self, claim: Claim, known: t.Mapping[int, ResolvedDevice]) -> list[tuple[str, dict[int, Plan]]]:
        """The objects that a claim is compiled to: the suffix of each one's name, and the plan of each group by
        `id(group)`. Empty if there are errors.
        """
        groups = [group for group in claim.groups if NEAREST in group.align]
        if not groups:
            return [("", {})]
        before = len(self.reader.problems)
        parts = [self._parts(group, known) for group in groups]
        if len(self.reader.problems) > before or not all(parts):
            return []
        boards = self.boards()
        if boards is None:
            self.reader.problem(
                groups[0].align_path,
                "nearest depends on the boards of the site, and no node of the site has been probed",
                "no-boards",
                f"run lanewise.dra.probe first, or set {PREFIX}report to its report",
            )
            return []
        more = len(claim.groups) > 1
        asked = [_PlannedGroup(self, group, part, known, boards, more) for group, part in zip(groups, parts) if part]
        served = [one.any_served() for one in asked]  # each reports its own problems
        if not all(served):
            return []
        found = self._packed(claim, asked)
        for suffix, plans, keys in found:
            self.uses += [one.use(claim, suffix, keys, plans[id(one.group)]) for one in asked]
        return [(suffix, plans) for suffix, plans, _keys in found]

    def named(self, claim: Claim, suffix: str) -> Claim:
        """The claim with the name of one of its objects, annotated with the form and level that it was compiled for."""
        name = claim.name + suffix
        namespaces = ",".join(claim.namespaces)
        mine = [use for use in self.uses if use.name == name and use.claim == f"{namespaces}/{claim.name}"]
        if not mine:
            return claim
        forms = "; ".join(dict.fromkeys(f"{use.form}, {use.at_least} or nearer" for use in mine))
        return replace(claim, name=name, annotations={**claim.annotations, NEAREST_ANNOTATION: forms})

    def _parts(self, group: Group, known: t.Mapping[int, ResolvedDevice]) -> tuple[Device, list[Device]] | None:
        """The GPU and the NICs of a group. Reports a problem and returns None if it is not one GPU with NICs."""
        before = len(self.reader.problems)
        gpus, nics = [], []
        for device in group.devices:
            kind = known[id(device.choices()[0])].kind
            for key, wrong in (("all", device.all), ("admin", device.admin), ("first_of", bool(device.alternatives))):
                if wrong:
                    fix = "whole boards need no pairs: leave align out" if key == "all" else "leave it out"
                    message = "cannot be combined with nearest"
                    self.reader.problem(child(device.path, key), message, "contradiction", fix)
            if kind == "gpu":
                gpus.append(device)
            elif kind in _NICS:
                nics.append(device)
            else:
                what = f"nearest pairs a GPU with NICs, but this device {'is ' + kind if kind else 'has no kind'}"
                fix = "put it in a separate group" if kind else "give its class a kind"
                self.reader.problem(device.path, what, "contradiction", fix)
        if len(gpus) != 1 or not nics:
            has = f"{len(gpus)} GPU request(s) and {len(nics)} NICs"
            reason = f"nearest is for one GPU and its NICs, and the group has {has}"
            fix = "request several pairs with count at the group"
            self.reader.problem(group.align_path, reason, "contradiction", fix)
        elif gpus[0].count > 1:
            fix = "request several pairs with count at the group"
            self.reader.problem(child(gpus[0].path, "count"), "must be 1 in a group with nearest", "contradiction", fix)
        for device in gpus + nics if len(self.reader.problems) == before else []:
            found = known[id(device)]
            if found.driver is None or found.class_name not in self.classes:
                fix = f"describe it in {PREFIX}classes"
                message = f"class {found.class_name!r} does not belong to this site, so its devices are unknown"
                self.reader.problem(child(device.path, "class"), message, "contradiction", fix)
        return None if len(self.reader.problems) > before else (gpus[0], nics)

    def _packed(self, claim: Claim, asked: list[_PlannedGroup]) -> list[tuple[str, dict[int, Plan], list[str]]]:
        """One object for all boards if possible; otherwise each board goes into the first object in which it fits."""
        keys = [key for key in asked[0].keys() if all(key in one.keys() for one in asked[1:])]
        bins: list[tuple[list[str], dict[int, Plan]]] = []
        try:
            bins = [(keys, _plans(asked, keys))]
        except NoPairing as wrong:
            if not wrong.split:
                return self._refuse(asked, wrong)
            for key in keys:
                for number, (others, _made) in enumerate(bins):
                    try:
                        bins[number] = ([*others, key], _plans(asked, [*others, key]))
                        break
                    except NoPairing:
                        continue
                else:
                    try:
                        bins.append(([key], _plans(asked, [key])))
                    except NoPairing as alone:
                        return self._refuse(asked, alone)
        if len(bins) > 1 and not claim.template:
            self.reader.problem(
                asked[0].group.align_path,
                f"the site has boards of {len(bins)} kinds that do not fit in one claim",
                "too-many",
                "make it a template: each kind of board then gets a separate template",
            )
            return []
        return [(f"-{held[0][:8]}" if len(bins) > 1 else "", made, held) for held, made in bins]

    def _refuse(self, asked: list[_PlannedGroup], wrong: NoPairing) -> list[t.Any]:
        self.reader.problem(asked[0].group.align_path, wrong.reason, wrong.rule, wrong.fix)
        return []


class _PlannedGroup:
    """One group of a claim on the boards of the site."""

    def __init__(
        self,
        planner: NearestPlanner,
        group: Group,
        parts: tuple[Device, list[Device]],
        known: t.Mapping[int, ResolvedDevice],
        boards: Boards,
        more: bool,
    ) -> None:
        self.reader, self.group = planner.reader, group
        self.gpu, self.nics = parts
        self.more = more
        self.at_least = group.at_least or AT_LEAST_DEFAULT
        found = [known[id(device)] for device in (self.gpu, *self.nics)]
        served = [(t.cast(DriverKnowledge, one.driver), one.kind) for one in found]
        asked = []
        for one, (driver, _kind) in zip(found, served):
            body = {
                "deviceClassName": one.class_name,
                "selectors": [{"cel": {"expression": text}} for text, _path in one.selectors],
            }
            asked.append(selectors_of(driver, body, planner.classes))
        self.shapes = boards.shapes(asked[0], asked[1:], self.at_least)
        common: dict[str, str] = {}
        for level in ("pcie_root", "numa_node"):
            names = [set(driver.alignments(level, planner.lists)) for driver, _kind in served]
            shared = sorted(set.intersection(*names), key=_standard_first)
            if shared:
                common[level] = shared[0]
        self.plain = plain_level(self.shapes, self.at_least, common)
        self.planner = PairingPlanner(served[0], served[1:], others=len(group.align) > 1)

    def keys(self) -> list[str]:
        return [shape.board.shape for shape in self.shapes if shape.served()]

    def any_served(self) -> bool:
        """Whether some board has a pair that is near enough. Reports a problem if none has."""
        if self.keys():
            return True
        path = self.group.align_path
        if not self.shapes:
            self.reader.problem(
                path,
                "no probed node has a GPU and NICs that fit this group and whose distance is known",
                "unreachable",
                "check the matrix in the report, and the drivers and filters of these devices",
            )
            return False
        best: dict[str, list[str]] = {}
        for shape in self.shapes:
            levels = [shape.board.level(gpu, nic) for gpu in shape.gpus for row in shape.nics for nic in row]
            best.setdefault(min(levels, key=RANK.__getitem__), []).extend(shape.nodes)
        nearest_levels = "; ".join(f"{level} on {_shown(nodes)}" for level, nodes in best.items())
        level = min(best, key=RANK.__getitem__)
        fix = f"if that is near enough, write at_least: {level}" if level == "NODE" else "check the report's matrix"
        if RANK[level] <= RANK["PHB"]:
            fix = f"if that is near enough, write at_least: {level}, or leave it out"
        message = f"no GPU has a NIC at {self.at_least} or nearer: the nearest is {nearest_levels}"
        self.reader.problem(path, message, "unreachable", fix)
        return False

    def plan(self, keys: t.Sequence[str]) -> Plan:
        """What the group is compiled to for these boards. Raises NoPairing."""
        levels = self.group.align
        if self.plain:
            levels = tuple(dict.fromkeys(self.plain if level == NEAREST else level for level in levels))
            return Plan(levels, self.gpu, self.nics)
        shapes = [shape for shape in self.shapes if shape.board.shape in keys]
        pairing = self.planner.pairing(shapes)
        plan = Plan(levels, self.gpu, self.nics, pairing)
        self._check_limits(plan, shapes)
        return plan

    def _check_limits(self, plan: Plan, shapes: t.Sequence[Shape]) -> None:
        """Raises NoPairing for a plan that exceeds a limit of the API, or takes the scheduler too long."""
        number = len(t.cast(Pairing, plan.pairing).alternatives)
        others = len(plan.levels) - 1
        most = max(number + others, number + bool(others))
        if most > limits.FIRST_AVAILABLE:
            raise NoPairing(
                f"nearest needs {number} alternatives on this board, with the other levels {most}; "
                f"the limit is {limits.FIRST_AVAILABLE}",
                "ask for nearest alone, or shorten the list",
                "too-many",
                split=len(shapes) > 1,
            )
        each = len(exclusions(number)) * len(self.nics) + sum(level not in (NEAREST, "any") for level in plan.levels)
        if each * self.group.count > limits.CONSTRAINTS:
            raise NoPairing(
                f"{self.group.count} repetitions need {each * self.group.count} constraints ({each} each); "
                f"the limit of a claim is {limits.CONSTRAINTS}",
                f"ask for at most {limits.CONSTRAINTS // each} in one claim, or for whole boards with all: true, "
                "which needs no pairs",
                "too-many",
            )
        cost = max(self._cost(plan, shape) for shape in shapes)
        if cost > MAX_TRIES:
            raise NoPairing(
                f"when other pods have some of these devices, the scheduler may try devices {cost} times; "
                f"more than {MAX_TRIES} tries may reach its limit of ten seconds per node",
                "ask for fewer repetitions in one claim, or for whole boards with all: true",
                "search-cost",
            )

    def _cost(self, plan: Plan, shape: Shape) -> int:
        graphs = []
        far = len(plan.levels) > 1
        for row, nearest_to in zip(shape.nics, shape.allowed):
            graph = {}
            for gpu in shape.gpus if far else shape.served():
                places = row if far else nearest_to[gpu]
                devices = frozenset(fit.address for place in places for fit in row.get(place, ()))
                for number in range(shape.gpu_parts[gpu]):
                    graph[f"{gpu}/{number}"] = devices
            graphs.append(graph)
        number = len(t.cast(Pairing, plan.pairing).alternatives) + len(plan.levels) - 1
        return worst_case_tries(graphs, self.group.count, Size(number, shape.devices), more=self.more or far)

    def use(self, claim: Claim, suffix: str, keys: t.Sequence[str], plan: Plan) -> BoardUse:
        """The object that the claim is compiled to for these boards."""
        shapes = [shape for shape in self.shapes if shape.board.shape in keys]
        served = list(dict.fromkeys(gpu for shape in shapes for gpu in shape.served()))
        return BoardUse(
            claim=f"{','.join(claim.namespaces)}/{claim.name}",
            name=claim.name + suffix,
            form=plan.pairing.form if plan.pairing else self.plain,
            at_least=self.at_least,
            boards={shape.board.shape: sorted(shape.nodes) for shape in shapes},
            nodes=sorted(node for shape in shapes for node in shape.nodes),
            gpus=served,
            without=sorted({gpu for shape in shapes for gpu in shape.gpus if gpu not in served}),
            pairs=sorted(
                {
                    (shape.board.shape, shape.board.level(gpu, nic), gpu, nic)
                    for shape in shapes
                    for row in shape.allowed
                    for gpu in shape.served()
                    for nic in row[gpu]
                }
            ),
        )


def _plans(asked: t.Sequence[_PlannedGroup], keys: t.Sequence[str]) -> dict[int, Plan]:
    return {id(one.group): one.plan(keys) for one in asked}


def _standard_first(name: str) -> tuple[bool, str]:
    return not name.startswith("resource.kubernetes.io/"), name


def _shown(nodes: t.Sequence[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def add_pairs(body: Body, group: Group, plan: Plan) -> None:
    """Write the requests and constraints of a group with a pairing."""
    pairing = t.cast(Pairing, plan.pairing)
    found = pairing.alternatives
    more = len(plan.levels) > 1
    excluded = exclusions(len(found))
    for index in range(group.count):
        gpu = request_name(plan.gpu, group, index)
        if not more:
            # the GPU first, so that its NICs are tried right after it
            _add(body, plan.gpu, group, index, [(one.name, one.gpu) for one in found])
        for number, nic in enumerate(plan.nics):
            near = [(f"{NEAREST}-{one.name}" if more else one.name, one.nics[number]) for one in found]
            ways = [way for level in plan.levels for way in (near if level == NEAREST else [(_name(level), ())])]
            _add(body, nic, group, index, ways)
        if more:
            # NICs choose the level, so that a nearer one is tried for all GPUs before a farther one
            _add(body, plan.gpu, group, index, [*((one.name, one.gpu) for one in found), (_OTHER, ())])
        for nic in plan.nics:
            name = request_name(nic, group, index)
            for ours, theirs in excluded or ([([], [0])] if more else []):
                covered = [f"{gpu}/{found[one].name}" for one in ours]
                covered += [f"{gpu}/{_OTHER}"] if more else []
                covered += [f"{name}/{NEAREST + '-' if more else ''}{found[one].name}" for one in theirs]
                body.constraints.append(({"requests": covered, "matchAttribute": pairing.attribute}, group.align_path))
        for level in plan.levels:
            _tie(body, group, plan, index, level)


def _tie(body: Body, group: Group, plan: Plan, index: int, level: str) -> None:
    """The constraints of another level in a list with `nearest`."""
    if level in (NEAREST, "any"):
        return
    ties: dict[str, list[str]] = {}
    for nic in plan.nics:
        for attribute, _devices in body.required([plan.gpu, nic], level, group.align_path, pairs=False):
            ties.setdefault(attribute, []).append(f"{request_name(nic, group, index)}/{_name(level)}")
    for attribute, names in ties.items():
        requests = [request_name(plan.gpu, group, index), *names]
        body.constraints.append(({"requests": requests, "matchAttribute": attribute}, group.align_path))


def _name(level: str) -> str:
    return level.rpartition("/")[2].replace("_", "-").lower()


def _add(body: Body, device: Device, group: Group, index: int, ways: t.Sequence[tuple[str, t.Sequence[t.Any]]]) -> None:
    """Write a request with an alternative for each of `ways`, or without alternatives if there is only one."""
    name = request_name(device, group, index)
    bodies = []
    for way, more in ways:
        one = body.body_of(device)
        if more:
            text = str(selectors.all_of(*more))
            one["selectors"] = [*one.get("selectors", ()), {"cel": {"expression": text}}]
        bodies.append({"name": way, **one})
    if len(bodies) == 1:
        request: Object = {"name": name, "exactly": {key: value for key, value in bodies[0].items() if key != "name"}}
    else:
        request = {"name": name, "firstAvailable": bodies}
    body.requests.append((request, device))
    for position, config in enumerate(device.configs):
        body.add_config(config, device, position, group, index, [name])
