# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Plans what groups with `align: nearest` are compiled to on the boards of the site.

It is a plain `matchAttribute` if that selects exactly the allowed pairs, otherwise alternatives with constraints
(`pairing`). If not all boards fit in one object, a claim is compiled to several objects.
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
from .boards import DEFAULT_AT_LEAST, Boards, MatchedBoard, selectors_of
from .inventory import NEAREST, NEAREST_ANNOTATION, PREFIX, Claim, Device, Group, request_name
from .pairing import NoPairing, Pairing, PairingPlanner, exclusions, plain_level
from .resolved_device import ResolvedDevice
from .search_cost import MAX_TRIES, Size, worst_case_tries

_NICS = ("nic", "rdma", "vf")
#: The alternative for all GPUs, in preference lists with other levels than `nearest`.
_OTHER = "other"


@dataclass
class Plan:
    """What a group with `nearest` is compiled to.

    It is a pairing for `nearest`, or none if `levels` contain a plain level in place of `nearest`.
    """

    levels: tuple[str, ...]
    gpu: Device
    nics: list[Device]
    pairing: Pairing | None = None


@dataclass
class BoardUse:
    """The object that a claim is compiled to for some boards.

    `claim` is the claim in the inventory, with its namespaces, and `name` the name of the object. `form` says how NICs
    are selected: `published map`, `board and address`, `address` or a level. `boards` contains the nodes by the name of
    their board's map. `gpus` are the GPUs with a nearest NIC, `without` those that have none.
    """

    claim: str
    name: str
    form: str
    at_least: str
    boards: dict[str, list[str]]
    nodes: list[str]
    gpus: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    #: Each nearest pair: the board, the level of the pair, and the addresses of GPU and NIC.
    pairs: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Namespace and name of the object."""
        return f"{self.claim.rpartition('/')[0]}/{self.name}"

    def affinity(self, names: t.Mapping[str, str]) -> Object:
        """The `affinity` of pods for nodes with these boards. `names` maps probed nodes to the names of their Nodes."""
        hosts = sorted({names.get(node, node) for node in self.nodes})
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]}]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    def line(self) -> str:
        """A line of text that says which boards this object is for, and how it selects NICs."""
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
    """Plans the groups of claims that request nearest devices. Errors are recorded in `reader`."""

    def __init__(
        self, reader: Reader, classes: t.Mapping[str, Object], boards: t.Callable[[], Boards | None], lists: bool
    ) -> None:
        self.reader = reader
        self.classes = classes
        self.boards = boards
        self.lists = lists
        self.uses: list[BoardUse] = []

    def plans(self, claim: Claim, resolved: t.Mapping[int, ResolvedDevice]) -> list[tuple[str, dict[int, Plan]]]:
        """The objects that a claim is compiled to: the suffix of each name, and the plans of its groups by `id(group)`.

        If the claim does not use `nearest`, it is one object, without a suffix or plans. Empty after recording errors.
        """
        groups = [group for group in claim.groups if NEAREST in group.align]
        if not groups:
            return [("", {})]
        problems_before = len(self.reader.problems)
        parts = [self._parts(group, resolved) for group in groups]
        if len(self.reader.problems) > problems_before or not all(parts):
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
        has_other_groups = len(claim.groups) > 1
        planned = [
            _PlannedGroup(self, group, part, resolved, boards, has_other_groups)
            for group, part in zip(groups, parts)
            if part
        ]
        served = [group.any_served() for group in planned]  # a list, so that each group records its problems
        if not all(served):
            return []
        packed = self._pack_boards(claim, planned)
        for suffix, plans, board_names in packed:
            self.uses += [
                planned_group.use(claim, suffix, board_names, plans[id(planned_group.group)])
                for planned_group in planned
            ]
        return [(suffix, plans) for suffix, plans, _board_names in packed]

    def named(self, claim: Claim, suffix: str) -> Claim:
        """The claim with the name of one of its objects, and an annotation with the form and level of this object."""
        name = claim.name + suffix
        namespaces = ",".join(claim.namespaces)
        uses = [use for use in self.uses if use.name == name and use.claim == f"{namespaces}/{claim.name}"]
        if not uses:
            return claim
        forms = "; ".join(dict.fromkeys(f"{use.form}, {use.at_least} or nearer" for use in uses))
        return replace(claim, name=name, annotations={**claim.annotations, NEAREST_ANNOTATION: forms})

    def _parts(self, group: Group, resolved: t.Mapping[int, ResolvedDevice]) -> tuple[Device, list[Device]] | None:
        """The GPU and the NICs of a group. Returns None after recording a problem if it is not one GPU with NICs."""
        problems_before = len(self.reader.problems)
        gpus, nics = [], []
        for device in group.devices:
            kind = resolved[id(device.choices()[0])].kind
            for key, is_set in (("all", device.all), ("admin", device.admin), ("first_of", bool(device.alternatives))):
                if is_set:
                    fix = "whole boards need no pairs: leave align out" if key == "all" else "leave it out"
                    message = "cannot be combined with nearest"
                    self.reader.problem(child(device.path, key), message, "contradiction", fix)
            if kind == "gpu":
                gpus.append(device)
            elif kind in _NICS:
                nics.append(device)
            else:
                problem = f"is of kind {kind}" if kind else "has no kind"
                message = f"nearest pairs a GPU with NICs, but this device {problem}"
                fix = "put it in a separate group" if kind else "set the kind of its class"
                self.reader.problem(device.path, message, "contradiction", fix)
        if len(gpus) != 1 or not nics:
            contents = f"{len(gpus)} GPU request(s) and {len(nics)} NIC request(s)"
            message = f"nearest is for one GPU and its NICs, but the group has {contents}"
            fix = "request several pairs with count at the group"
            self.reader.problem(group.align_path, message, "contradiction", fix)
        elif gpus[0].count > 1:
            fix = "request several pairs with count at the group"
            self.reader.problem(child(gpus[0].path, "count"), "must be 1 in a group with nearest", "contradiction", fix)
        for device in gpus + nics if len(self.reader.problems) == problems_before else []:
            resolved_device = resolved[id(device)]
            if resolved_device.driver is None or resolved_device.class_name not in self.classes:
                fix = f"describe it in {PREFIX}classes"
                message = (
                    f"class {resolved_device.class_name!r} does not belong to this site, so its devices are unknown"
                )
                self.reader.problem(child(device.path, "class"), message, "contradiction", fix)
        return None if len(self.reader.problems) > problems_before else (gpus[0], nics)

    def _pack_boards(self, claim: Claim, groups: list[_PlannedGroup]) -> list[tuple[str, dict[int, Plan], list[str]]]:
        """One object for all boards if possible; otherwise each board is added to the first object in which it fits.

        Each object has the suffix of its name, the plans of its groups and its boards. Empty after recording a problem.
        """
        board_names = [
            name for name in groups[0].board_names() if all(name in group.board_names() for group in groups[1:])
        ]
        bins: list[tuple[list[str], dict[int, Plan]]] = []
        try:
            bins = [(board_names, _plans(groups, board_names))]
        except NoPairing as error:
            if not error.split:
                return self._report(groups, error)
            for board_name in board_names:
                for number, (bin_boards, _plans_before) in enumerate(bins):
                    try:
                        bins[number] = ([*bin_boards, board_name], _plans(groups, [*bin_boards, board_name]))
                        break
                    except NoPairing:
                        continue
                else:
                    try:
                        bins.append(([board_name], _plans(groups, [board_name])))
                    except NoPairing as error_alone:
                        return self._report(groups, error_alone)
        if len(bins) > 1 and not claim.template:
            self.reader.problem(
                groups[0].group.align_path,
                f"the site has boards of {len(bins)} kinds that do not fit in one claim",
                "too-many",
                "make it a template: each kind of board then gets a separate template",
            )
            return []
        return [(f"-{boards[0][:8]}" if len(bins) > 1 else "", plans, boards) for boards, plans in bins]

    def _report(self, groups: list[_PlannedGroup], error: NoPairing) -> list[t.Any]:
        self.reader.problem(groups[0].group.align_path, error.reason, error.rule, error.fix)
        return []


class _PlannedGroup:
    """One group of a claim on the boards of the site. `has_other_groups` says that the claim has other groups too."""

    def __init__(
        self,
        planner: NearestPlanner,
        group: Group,
        parts: tuple[Device, list[Device]],
        resolved: t.Mapping[int, ResolvedDevice],
        boards: Boards,
        has_other_groups: bool,
    ) -> None:
        self.reader, self.group = planner.reader, group
        self.gpu, self.nics = parts
        self.has_other_groups = has_other_groups
        self.at_least = group.at_least or DEFAULT_AT_LEAST
        devices = [resolved[id(device)] for device in (self.gpu, *self.nics)]
        drivers = [(t.cast(DriverKnowledge, device.driver), device.kind) for device in devices]
        requests = []
        for device, (driver, _kind) in zip(devices, drivers):
            body = {
                "deviceClassName": device.class_name,
                "selectors": [{"cel": {"expression": text}} for text, _path in device.selectors],
            }
            requests.append(selectors_of(driver, body, planner.classes))
        self.matched_boards = boards.matched(requests[0], requests[1:], self.at_least)
        common: dict[str, str] = {}
        for level in ("pcie_root", "numa_node"):
            names = [set(driver.alignments(level, planner.lists)) for driver, _kind in drivers]
            shared = sorted(set.intersection(*names), key=_standard_first)
            if shared:
                common[level] = shared[0]
        self.plain = plain_level(self.matched_boards, self.at_least, common)
        self.planner = PairingPlanner(drivers[0], drivers[1:], others=len(group.align) > 1)

    def board_names(self) -> list[str]:
        """The names of the boards on which some GPU has a nearest NIC for every NIC request."""
        return [matched.board.shape for matched in self.matched_boards if matched.served()]

    def any_served(self) -> bool:
        """Whether some board has a pair that is near enough. Records a problem if there is none."""
        if self.board_names():
            return True
        path = self.group.align_path
        if not self.matched_boards:
            self.reader.problem(
                path,
                "no probed node has a GPU and NICs that fit this group and whose distance is known",
                "unreachable",
                "check the matrix in the report, and the drivers and filters of these devices",
            )
            return False
        best: dict[str, list[str]] = {}
        for matched in self.matched_boards:
            levels = [matched.board.level(gpu, nic) for gpu in matched.gpus for row in matched.nics for nic in row]
            best.setdefault(min(levels, key=RANK.__getitem__), []).extend(matched.nodes)
        nearest_levels = "; ".join(f"{level} on {_shown(nodes)}" for level, nodes in best.items())
        level = min(best, key=RANK.__getitem__)
        fix = f"if that is near enough, write at_least: {level}" if level == "NODE" else "check the report's matrix"
        if RANK[level] <= RANK["PHB"]:
            fix = f"if that is near enough, write at_least: {level}, or leave it out"
        message = f"no GPU has a NIC at {self.at_least} or nearer: the nearest is {nearest_levels}"
        self.reader.problem(path, message, "unreachable", fix)
        return False

    def plan(self, board_names: t.Sequence[str]) -> Plan:
        """What the group is compiled to for these boards. Raises NoPairing if that is not possible."""
        levels = self.group.align
        if self.plain:
            levels = tuple(dict.fromkeys(self.plain if level == NEAREST else level for level in levels))
            return Plan(levels, self.gpu, self.nics)
        matched_boards = [matched for matched in self.matched_boards if matched.board.shape in board_names]
        pairing = self.planner.pairing(matched_boards)
        plan = Plan(levels, self.gpu, self.nics, pairing)
        self._check_limits(plan, matched_boards)
        return plan

    def _check_limits(self, plan: Plan, matched_boards: t.Sequence[MatchedBoard]) -> None:
        """Raise NoPairing for a plan that exceeds a limit of the API, or takes the scheduler too long."""
        number = len(t.cast(Pairing, plan.pairing).alternatives)
        other_levels = len(plan.levels) - 1
        subrequests = max(number + other_levels, number + bool(other_levels))
        if subrequests > limits.FIRST_AVAILABLE:
            raise NoPairing(
                f"nearest needs {number} alternatives on this board, and {subrequests} with the other levels; "
                f"the limit is {limits.FIRST_AVAILABLE}",
                "use only nearest, or shorten the list",
                "too-many",
                split=len(matched_boards) > 1,
            )
        per_repetition = len(exclusions(number)) * len(self.nics) + sum(
            level not in (NEAREST, "any") for level in plan.levels
        )
        if per_repetition * self.group.count > limits.CONSTRAINTS:
            raise NoPairing(
                f"{self.group.count} repetitions need {per_repetition * self.group.count} constraints, "
                f"{per_repetition} each; the limit of a claim is {limits.CONSTRAINTS}",
                f"ask for at most {limits.CONSTRAINTS // per_repetition} in one claim, or for whole boards with all: "
                "true, which needs no pairs",
                "too-many",
            )
        cost = max(self._cost(plan, matched) for matched in matched_boards)
        if cost > MAX_TRIES:
            raise NoPairing(
                f"when other pods have some of these devices, the scheduler may try devices {cost} times; "
                f"more than {MAX_TRIES} tries may reach its limit of ten seconds per node",
                "ask for fewer repetitions in one claim, or for whole boards with all: true",
                "search-cost",
            )

    def _cost(self, plan: Plan, matched: MatchedBoard) -> int:
        """An upper bound of the scheduler's tries on one node with this board."""
        graphs = []
        other_levels = len(plan.levels) > 1
        for row, nearest_to in zip(matched.nics, matched.allowed):
            graph = {}
            for gpu in matched.gpus if other_levels else matched.served():
                places = row if other_levels else nearest_to[gpu]
                devices = frozenset(device.address for place in places for device in row.get(place, ()))
                for number in range(matched.gpu_parts[gpu]):
                    graph[f"{gpu}/{number}"] = devices
            graphs.append(graph)
        number = len(t.cast(Pairing, plan.pairing).alternatives) + len(plan.levels) - 1
        return worst_case_tries(
            graphs,
            self.group.count,
            Size(number, matched.max_devices),
            has_other_requests=self.has_other_groups or other_levels,
        )

    def use(self, claim: Claim, suffix: str, board_names: t.Sequence[str], plan: Plan) -> BoardUse:
        """The object that the claim is compiled to for these boards."""
        matched_boards = [matched for matched in self.matched_boards if matched.board.shape in board_names]
        served = list(dict.fromkeys(gpu for matched in matched_boards for gpu in matched.served()))
        return BoardUse(
            claim=f"{','.join(claim.namespaces)}/{claim.name}",
            name=claim.name + suffix,
            form=plan.pairing.form if plan.pairing else self.plain,
            at_least=self.at_least,
            boards={matched.board.shape: sorted(matched.nodes) for matched in matched_boards},
            nodes=sorted(node for matched in matched_boards for node in matched.nodes),
            gpus=served,
            without=sorted({gpu for matched in matched_boards for gpu in matched.gpus if gpu not in served}),
            pairs=sorted(
                {
                    (matched.board.shape, matched.board.level(gpu, nic), gpu, nic)
                    for matched in matched_boards
                    for row in matched.allowed
                    for gpu in matched.served()
                    for nic in row[gpu]
                }
            ),
        )


def _plans(groups: t.Sequence[_PlannedGroup], board_names: t.Sequence[str]) -> dict[int, Plan]:
    return {id(planned_group.group): planned_group.plan(board_names) for planned_group in groups}


def _standard_first(name: str) -> tuple[bool, str]:
    return not name.startswith("resource.kubernetes.io/"), name


def _shown(nodes: t.Sequence[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def add_pairs(body: Body, group: Group, plan: Plan) -> None:
    """Add the requests and constraints of a group with a pairing to a claim."""
    pairing = t.cast(Pairing, plan.pairing)
    alternatives = pairing.alternatives
    has_other_levels = len(plan.levels) > 1
    excluded = exclusions(len(alternatives))
    for index in range(group.count):
        gpu = request_name(plan.gpu, group, index)
        if not has_other_levels:
            # the GPU first, so that its NICs are tried right after it
            _add_request(
                body, plan.gpu, group, index, [(alternative.name, alternative.gpu) for alternative in alternatives]
            )
        for number, nic in enumerate(plan.nics):
            near = [
                (f"{NEAREST}-{alternative.name}" if has_other_levels else alternative.name, alternative.nics[number])
                for alternative in alternatives
            ]
            choices = [
                choice for level in plan.levels for choice in (near if level == NEAREST else [(_level_name(level), ())])
            ]
            _add_request(body, nic, group, index, choices)
        if has_other_levels:
            # the NICs come first and choose the level, so that a nearer level is tried for all GPUs before a farther
            # one
            _add_request(
                body,
                plan.gpu,
                group,
                index,
                [*((alternative.name, alternative.gpu) for alternative in alternatives), (_OTHER, ())],
            )
        for nic in plan.nics:
            name = request_name(nic, group, index)
            for gpu_numbers, nic_numbers in excluded or ([([], [0])] if has_other_levels else []):
                covered = [f"{gpu}/{alternatives[number].name}" for number in gpu_numbers]
                covered += [f"{gpu}/{_OTHER}"] if has_other_levels else []
                covered += [
                    f"{name}/{NEAREST + '-' if has_other_levels else ''}{alternatives[number].name}"
                    for number in nic_numbers
                ]
                body.constraints.append(({"requests": covered, "matchAttribute": pairing.attribute}, group.align_path))
        for level in plan.levels:
            _add_level_constraints(body, group, plan, index, level)


def _add_level_constraints(body: Body, group: Group, plan: Plan, index: int, level: str) -> None:
    """Add the constraints of another level than `nearest` in a preference list."""
    if level in (NEAREST, "any"):
        return
    by_attribute: dict[str, list[str]] = {}
    for nic in plan.nics:
        for attribute, _devices in body.required([plan.gpu, nic], level, group.align_path, pairs=False):
            by_attribute.setdefault(attribute, []).append(f"{request_name(nic, group, index)}/{_level_name(level)}")
    for attribute, names in by_attribute.items():
        requests = [request_name(plan.gpu, group, index), *names]
        body.constraints.append(({"requests": requests, "matchAttribute": attribute}, group.align_path))


def _level_name(level: str) -> str:
    """The name of a level's alternative."""
    return level.rpartition("/")[2].replace("_", "-").lower()


def _add_request(
    body: Body,
    device: Device,
    group: Group,
    index: int,
    choices: t.Sequence[tuple[str, t.Sequence[selectors.Selector]]],
) -> None:
    """Add a request with an alternative for each of `choices`, or without alternatives if there is only one.

    A choice is a name and further selectors.
    """
    name = request_name(device, group, index)
    bodies = []
    for choice, further in choices:
        choice_body = body.body_of(device)
        if further:
            text = str(selectors.all_of(*further))
            choice_body["selectors"] = [*choice_body.get("selectors", ()), {"cel": {"expression": text}}]
        bodies.append({"name": choice, **choice_body})
    if len(bodies) == 1:
        request: Object = {"name": name, "exactly": {key: value for key, value in bodies[0].items() if key != "name"}}
    else:
        request = {"name": name, "firstAvailable": bodies}
    body.requests.append((request, device))
    for position, config in enumerate(device.configs):
        body.add_config(config, device, position, group, index, [name])
