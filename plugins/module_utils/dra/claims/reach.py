# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which nodes can satisfy a claim, and why the others cannot.

A claim is tried on each node as if the node were free. Nodes whose devices look alike to all claims of the site are
tried once, and so are claims that ask for the same.
"""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass, field, replace

from ..apiserver import features
from ..cel.engine import Engine
from ..cel.errors import EvaluationError, Uncheckable
from ..kube import versions
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem, Problems
from ..kube.reader import child
from ..scheduler import allocator
from ..scheduler.published import Nodes, PublishedNode
from ..scheduler.search_devices import DeviceId
from ..scheduler.search_requests import class_selectors, expressions
from ..vendors.drivers import knowledge
from ..vendors.offer import Offer
from ..vendors.server import Server
from .claim_compiler import Compiled
from .inventory import Claim
from .pair_reasons import pair_reason, unpaired, unpaired_lines
from .selector_memory import SelectorMemory, Texts
from .shapes import Shaped, shapes
from .unreachable import by_reason, constraint_of, shown, unreachable

_V1 = "resource.k8s.io/v1"
#: Refusals that say that there are too few devices.
_LACKING = ("absent", "count", "selector", "taint", "used", "constraint")


_Answer = t.Union[allocator.Allocation, allocator.Refusal]


@dataclass
class Reach:
    """Which nodes of a site can satisfy a claim.

    `claim` is `namespace/name`, or the name with `namespaces` joined by commas. `refused` maps each node that
    cannot satisfy it to the reason, `unknown` each node for which the probe does not know enough. If the nodes come
    from slices and claims, `unpaired` describes, by node, the free devices whose partners a claim has.
    """

    claim: str
    nodes: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unpaired: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Lines of text: where the claim can run, and each reason once with the nodes that it holds for."""
        total = len(self.nodes) + len(self.refused) + len(self.unknown)
        found = [f"{self.claim}: {len(self.nodes)} of {total} node(s)"]
        for what, reasons in (("not", self.refused), ("unknown", self.unknown)):
            for reason, nodes in by_reason(reasons):
                found.append(f"  {what} {shown(nodes)}: {reason}")
        return found + unpaired_lines(self.unpaired)


def reach(
    drivers: ObjectView,
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: Nodes,
    engine: Engine,
    allow_unreachable: bool = False,
    server: Server | None = None,
) -> tuple[list[Reach], list[Problem]]:
    """Try every claim on every node (name to topology facts or to what its drivers publish). Problems are claims that
    no node can satisfy.

    A claim that some node may satisfy, as far as the probe knows, is not a problem; nor is any claim if the site sets
    `dra_claims_allow_unreachable`. `drivers` is `dra_claims_drivers`, `server` what they publish to.
    """
    node_shapes, problems = shapes(drivers, claims, classes, nodes, server)
    memory = SelectorMemory(engine)
    trials = _Trials(classes, node_shapes, memory, (server or Server()).constraints)
    occupied = _Occupied(nodes, node_shapes, memory, server)
    found = []
    for claim, compiled in claims:
        asked: Object = {key: compiled.devices[key] for key in ("requests", "constraints") if key in compiled.devices}
        key = json.dumps(asked, sort_keys=True)
        result, refusals = _result(claim, compiled, trials.answers(key, asked), node_shapes)
        result.unpaired = occupied.unpaired(key, asked, classes, {*result.nodes, *result.unknown})
        found.append(result)
        if refusals and not result.nodes and not result.unknown and not allow_unreachable:
            problems.append(unreachable(claim, compiled, asked, refusals, node_shapes, classes, memory))
    return found, problems


def _result(
    claim: Claim, compiled: Compiled, answers: t.Sequence[_Answer], node_shapes: t.Sequence[Shaped]
) -> tuple[Reach, list[tuple[allocator.Refusal, list[str]]]]:
    """The nodes of each shape by the answer for it, and the refusals, each with its nodes."""
    result = Reach(f"{','.join(claim.namespaces)}/{claim.name}", [])
    refusals: list[tuple[allocator.Refusal, list[str]]] = []
    spoken = inventory_words(claim, compiled)
    for answer, shape in zip(answers, node_shapes):
        if isinstance(answer, allocator.Allocation):
            result.nodes += shape.nodes
            continue
        refusal = replace(answer, reason=in_inventory_words(answer.reason, spoken))
        if refusal.unknown:
            result.unknown.update(dict.fromkeys(shape.nodes, refusal.reason))
        else:
            result.refused.update(dict.fromkeys(shape.nodes, refusal.reason))
            refusals.append((refusal, shape.nodes))
    result.nodes.sort()
    return result, refusals


class _Trials:
    """What claims get on each shape of node. Claims with equal requests, or with requests that the same devices match,
    are tried once."""

    def __init__(
        self,
        classes: t.Mapping[str, Object],
        node_shapes: t.Sequence[Shaped],
        memory: SelectorMemory,
        kinds: t.Sequence[str],
    ) -> None:
        self._classes = classes
        self._shapes = node_shapes
        self._memory = memory
        self._kinds = kinds
        self._answers: dict[str, list[_Answer]] = {}
        #: Answers, with the selectors that their reason quotes.
        self._alike: dict[tuple[t.Hashable, ...], tuple[_Answer, set[str]]] = {}

    def answers(self, key: str, asked: Object) -> list[_Answer]:
        """One for each shape. `key` stands for `asked`."""
        if key not in self._answers:
            bodies = [
                (body["deviceClassName"], tuple(_selectors(body, self._classes))) for body in _asked_bodies(asked)
            ]
            different = list(dict.fromkeys(bodies))
            frame = _frame(asked, [different.index(body) for body in bodies])
            self._answers[key] = [
                self._answer(number, shape, key, asked, frame, different) for number, shape in enumerate(self._shapes)
            ]
        return self._answers[key]

    def _answer(
        self,
        number: int,
        shape: Shaped,
        key: str,
        asked: Object,
        frame: str,
        different: t.Sequence[tuple[str, Texts]],
    ) -> _Answer:
        texts = {text for _name, own in different for text in own}
        same: tuple[t.Hashable, ...]
        try:
            fitting = (_fits(name, own, self._classes, shape.offers, self._memory) for name, own in different)
            same = (number, frame, *fitting)
        except (EvaluationError, Uncheckable):
            same = (number, key)  # a selector that fails: only the same claim is alike
        answer, quoted = self._alike.get(same, (None, set()))
        # a reason that quotes a selector holds for claims that have this selector
        if answer is None or not quoted <= texts:
            answer = _try(asked, self._classes, shape.offers, self._memory, shape.blind, self._kinds)
            reason = answer.reason if isinstance(answer, allocator.Refusal) else ""
            self._alike[same] = (answer, {text for text in texts if text in reason})
        return answer


class _Occupied:
    """The nodes on which claims have devices, each with its own: nodes of one shape can differ in what is taken."""

    def __init__(
        self, nodes: Nodes, node_shapes: t.Sequence[Shaped], memory: SelectorMemory, server: Server | None
    ) -> None:
        self._memory = memory
        self._nodes: dict[str, tuple[list[Offer], t.Mapping[DeviceId, str]]] = {}
        self._known: dict[str, dict[str, list[str]]] = {}
        for shape in node_shapes:
            for name in shape.nodes:
                given = nodes[name]
                if isinstance(given, PublishedNode) and given.taken:
                    own = [server.keeps(offer) if server else offer for offer in given.offers]
                    memory.alike(own, shape.offers)
                    self._nodes[name] = (own, given.taken)

    def unpaired(
        self, key: str, asked: Object, classes: t.Mapping[str, Object], possible: t.Collection[str]
    ) -> dict[str, list[str]]:
        """For each of the `possible` nodes, what is free there without its partner. `key` stands for `asked`."""
        if key not in self._known:
            texts = {
                name: unpaired(asked, classes, own, self._memory, taken)
                for name, (own, taken) in sorted(self._nodes.items())
                if name in possible
            }
            self._known[key] = {name: found for name, found in texts.items() if found}
        return self._known[key]


def _selectors(body: Object, classes: t.Mapping[str, Object]) -> list[str]:
    """The expressions of a request: its class's, then its own."""
    return expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])


def _asked_bodies(asked: Object) -> list[Object]:
    return [body for request in asked["requests"] for body in request.get("firstAvailable") or [request["exactly"]]]


def _frame(asked: Object, places: list[int]) -> str:
    """What a claim asks for, selectors and classes replaced by `places`: their positions among the different ones."""
    bodies = [
        {key: value for key, value in body.items() if key not in ("selectors", "deviceClassName")}
        for body in _asked_bodies(asked)
    ]
    names = [[request["name"], len(request.get("firstAvailable") or ())] for request in asked["requests"]]
    return json.dumps([names, places, bodies, asked.get("constraints")], sort_keys=True)


def _fits(
    name: str, texts: Texts, classes: t.Mapping[str, Object], offered: t.Sequence[Offer], memory: SelectorMemory
) -> tuple[t.Hashable, ...]:
    """The devices that fit the selectors of a request, those of its class `name` among them.

    Claims of the same frame for which these are the same get the same devices, or none for the same reason. Selectors
    that name what the probe does not know stay as they are: for them, what fits is not the whole answer.
    """
    if name not in classes or not memory.unsure(offered).isdisjoint(memory.mentioned(texts)):
        return name, texts
    return memory.fitting(texts, offered)


def reach_of(
    objects: t.Sequence[Object],
    nodes: Nodes,
    drivers: ObjectView,
    engine: Engine,
    kubernetes: str = f"1.{versions.NEWEST}",
    gates: features.Gates = None,
) -> list[Reach]:
    """Try the claims and templates among `objects`, of any DRA version, on every node (name to topology facts,
    or to what its drivers publish).

    `drivers` is `dra_claims_drivers`. DeviceTaintRules among the objects apply; fields that a server of this release
    drops are ignored. A class that is not among the objects makes the answer unknown. Raises Problems where a driver
    or the facts of a node cannot be read, ValueError for a release that is not known.
    """
    for name, options in drivers.items():
        knowledge(name, options)
    classes: dict[str, Object] = {}
    claims: list[tuple[Claim, Compiled]] = []
    rules = [item for item in objects if item["kind"] == "DeviceTaintRule"]
    server = Server(kubernetes, gates, rules)
    kept = (server.claim(versions.convert(item, _V1)) for item in objects if (_V1, item["kind"]) in versions.SERVED)
    for item in kept:
        metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
        name = str(metadata.get("name") or f"{metadata.get('generateName')}*")
        if item["kind"] == "DeviceClass":
            classes[name] = item
        elif item["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
            devices = (spec.get("spec") or {} if item["kind"] == "ResourceClaimTemplate" else spec).get("devices") or {}
            if devices.get("requests"):
                namespaces = [str(metadata.get("namespace") or "default")]
                claims.append((Claim("", name, False, namespaces, {}, {}, [], "", []), Compiled(devices)))
    found, problems = reach(drivers, claims, classes, nodes, engine, allow_unreachable=True, server=server)
    if problems:
        raise Problems(problems)
    return found


def inventory_words(claim: Claim, compiled: Compiled) -> dict[str, str]:
    """The CEL expressions of a claim in the words of its inventory: `min_speed 400G`."""
    devices = [choice for group in claim.groups for device in group.devices for choice in device.choices()]
    values = {
        child(child(device.path, "where"), name): f"{name} {value}"
        for device in devices
        for name, value in device.where.items()
    }
    for device in devices:
        share = child(device.path, "share")
        values[share] = f"shares that namespace {device.namespace} may have"
        values[child(share, "factor")] = f"shares with factor {device.share.get('factor', 'of the site')}"
    spoken = {}
    for index, request in enumerate(compiled.devices["requests"]):
        bodies = request.get("firstAvailable") or [request["exactly"]]
        ways = [f"firstAvailable[{way}]" for way in range(len(bodies))] if "firstAvailable" in request else ["exactly"]
        for body, way in zip(bodies, ways):
            for number, selector in enumerate(body.get("selectors") or ()):
                path = compiled.origins.get(f"requests[{index}].{way}.selectors[{number}]", "")
                if path in values:
                    spoken.update(dict.fromkeys(expressions([selector]), values[path]))
    return spoken


def in_inventory_words(reason: str, spoken: t.Mapping[str, str]) -> str:
    for expression in sorted(spoken, key=len, reverse=True):
        reason = reason.replace(expression, spoken[expression])
    return reason


def _try(
    asked: Object,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: allocator.Engine,
    unseen: t.Mapping[str, str],
    kinds: t.Sequence[str],
) -> _Answer:
    for body in _asked_bodies(asked):
        name = body["deviceClassName"]
        if name not in classes:
            return allocator.Refusal(f"class {name!r} is not of this site", "", "unknown")
    answer = allocator.allocate([{"devices": asked}], classes, offered, engine, blind=unseen, constraints=kinds)
    if isinstance(answer, allocator.Refusal) and answer.kind in _LACKING:
        reason = pair_reason(asked, classes, offered, engine)
        if reason:
            return replace(answer, reason=reason)
    if isinstance(answer, allocator.Refusal) and answer.kind == "constraint":
        names = constraint_of(asked, answer.path).get("requests") or ()
        if len({"/" in name for name in names}) == 2:
            reason = f"{answer.reason} (the first device of a preference list must have the attribute of every level)"
            return replace(answer, reason=reason)
    return answer
