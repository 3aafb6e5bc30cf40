# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which nodes can satisfy a claim, and why the others cannot.

A claim is tried on each node as if no device were in use. Nodes whose devices no claim of the site can distinguish are
tried only once, and so are claims with the same requests.
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
from .selector_cache import SelectorCache, Texts
from .shapes import NodeShape, shapes
from .unreachable import by_reason, constraint_of, shown, unreachable

_V1 = "resource.k8s.io/v1"
#: The kinds of refusals that mean that there are too few devices.
_TOO_FEW = ("absent", "count", "selector", "taint", "used", "constraint")


_Answer = t.Union[allocator.Allocation, allocator.Refusal]


@dataclass
class Reach:
    """Which nodes of a site can satisfy a claim.

    `claim` is `namespace/name`; several namespaces are joined by commas. `refused` maps each node that cannot satisfy
    the claim to the reason, and `unknown` each node for which that is unknown. If the nodes come from slices and
    claims, `unpaired` describes, by node, the free devices whose partners are unavailable.
    """

    claim: str
    nodes: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unpaired: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Lines of text: the number of nodes that can satisfy the claim, and each reason with the nodes that it is
        for."""
        total = len(self.nodes) + len(self.refused) + len(self.unknown)
        text_lines = [f"{self.claim}: {len(self.nodes)} of {total} node(s)"]
        for what, reasons in (("not", self.refused), ("unknown", self.unknown)):
            for reason, nodes in by_reason(reasons):
                text_lines.append(f"  {what} {shown(nodes)}: {reason}")
        return text_lines + unpaired_lines(self.unpaired)


def reach(
    drivers: ObjectView,
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: Nodes,
    engine: Engine,
    allow_unreachable: bool = False,
    server: Server | None = None,
) -> tuple[list[Reach], list[Problem]]:
    """Try every claim on every node. `nodes` maps names to topology facts, or to what the drivers of the node publish.

    Returns a Reach for each claim, and a problem for each claim that no node can satisfy. There is no problem if it is
    unknown whether some node can satisfy the claim, or with `allow_unreachable`. `drivers` is `dra_claims_drivers`, and
    `server` the API server to which the drivers publish.
    """
    node_shapes, problems = shapes(drivers, claims, classes, nodes, server, engine)
    cache = SelectorCache(engine)
    trials = _Trials(classes, node_shapes, cache, (server or Server()).constraints)
    in_use = _NodesInUse(nodes, node_shapes, cache, server)
    reaches = []
    for claim, compiled in claims:
        requested: Object = {
            key: compiled.devices[key] for key in ("requests", "constraints") if compiled.devices.get(key)
        }
        key = json.dumps(requested, sort_keys=True)
        result, refusals = _result(claim, compiled, trials.answers(key, requested), node_shapes)
        result.unpaired = in_use.unpaired(key, requested, classes, {*result.nodes, *result.unknown})
        reaches.append(result)
        if refusals and not result.nodes and not result.unknown and not allow_unreachable:
            problems.append(unreachable(claim, compiled, requested, refusals, node_shapes, classes, cache))
    return reaches, problems


def _result(
    claim: Claim, compiled: Compiled, answers: t.Sequence[_Answer], node_shapes: t.Sequence[NodeShape]
) -> tuple[Reach, list[tuple[allocator.Refusal, list[str]]]]:
    """The result for the nodes of all shapes, from the answer for each shape, and the refusals, each with its nodes."""
    result = Reach(f"{','.join(claim.namespaces)}/{claim.name}", [])
    refusals: list[tuple[allocator.Refusal, list[str]]] = []
    filters = filters_by_expression(claim, compiled)
    for answer, shape in zip(answers, node_shapes):
        if isinstance(answer, allocator.Allocation):
            result.nodes += shape.nodes
            continue
        refusal = replace(answer, reason=with_filters(answer.reason, filters))
        if refusal.unknown:
            result.unknown.update(dict.fromkeys(shape.nodes, refusal.reason))
        else:
            result.refused.update(dict.fromkeys(shape.nodes, refusal.reason))
            refusals.append((refusal, shape.nodes))
    result.nodes.sort()
    return result, refusals


class _Trials:
    """The result of claims on each shape of node.

    Claims with equal requests, or with requests that the same devices match, are tried only once.
    """

    def __init__(
        self,
        classes: t.Mapping[str, Object],
        node_shapes: t.Sequence[NodeShape],
        cache: SelectorCache,
        constraint_kinds: t.Sequence[str],
    ) -> None:
        self._classes = classes
        self._shapes = node_shapes
        self._cache = cache
        self._constraint_kinds = constraint_kinds
        self._answers: dict[str, list[_Answer]] = {}
        #: Answers, each with the selectors that its reason quotes.
        self._alike: dict[tuple[t.Hashable, ...], tuple[_Answer, set[str]]] = {}

    def answers(self, key: str, requested: Object) -> list[_Answer]:
        """The answers for `requested`, one for each shape. `key` identifies `requested`."""
        if key not in self._answers:
            bodies = [
                (body["deviceClassName"], tuple(_selectors(body, self._classes))) for body in _request_bodies(requested)
            ]
            different = list(dict.fromkeys(bodies))
            frame = _request_frame(requested, [different.index(body) for body in bodies])
            self._answers[key] = [
                self._answer(number, shape, key, requested, frame, different)
                for number, shape in enumerate(self._shapes)
            ]
        return self._answers[key]

    def _answer(
        self,
        number: int,
        shape: NodeShape,
        key: str,
        requested: Object,
        frame: str,
        different: t.Sequence[tuple[str, Texts]],
    ) -> _Answer:
        texts = {text for _name, selectors in different for text in selectors}
        equivalence: tuple[t.Hashable, ...]
        try:
            matching = (
                _matching(name, selectors, self._classes, shape.offers, self._cache) for name, selectors in different
            )
            equivalence = (number, frame, *matching)
        except (EvaluationError, Uncheckable):
            equivalence = (number, key)  # a selector fails, so the answer holds only for equal claims
        answer, quoted = self._alike.get(equivalence, (None, set()))
        # a reason that quotes a selector is valid only for claims that have this selector
        if answer is None or not quoted <= texts:
            answer = _allocate(
                requested, self._classes, shape.offers, self._cache, shape.uncertain, self._constraint_kinds
            )
            reason = answer.reason if isinstance(answer, allocator.Refusal) else ""
            self._alike[equivalence] = (answer, {text for text in texts if text in reason})
        return answer


class _NodesInUse:
    """The nodes with devices that are in use. Nodes of one shape can differ in the devices that are in use."""

    def __init__(
        self, nodes: Nodes, node_shapes: t.Sequence[NodeShape], cache: SelectorCache, server: Server | None
    ) -> None:
        self._cache = cache
        self._nodes: dict[str, tuple[list[Offer], t.Mapping[DeviceId, str]]] = {}
        self._known: dict[str, dict[str, list[str]]] = {}
        for shape in node_shapes:
            for name in shape.nodes:
                node = nodes[name]
                if isinstance(node, PublishedNode) and node.taken:
                    offers = [server.stored(offer) if server else offer for offer in node.offers]
                    cache.reuse_results(offers, shape.offers)
                    self._nodes[name] = (offers, node.taken)

    def unpaired(
        self, key: str, requested: Object, classes: t.Mapping[str, Object], possible: t.Collection[str]
    ) -> dict[str, list[str]]:
        """For each of the `possible` nodes, the free devices whose partners are unavailable. `key` identifies
        `requested`."""
        if key not in self._known:
            texts = {
                name: unpaired(requested, classes, offers, self._cache, taken)
                for name, (offers, taken) in sorted(self._nodes.items())
                if name in possible
            }
            self._known[key] = {name: sentences for name, sentences in texts.items() if sentences}
        return self._known[key]


def _selectors(body: Object, classes: t.Mapping[str, Object]) -> list[str]:
    """The selectors of a request's class, then those of the request itself."""
    return expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])


def _request_bodies(requested: Object) -> list[Object]:
    return [body for request in requested["requests"] for body in request.get("firstAvailable") or [request["exactly"]]]


def _request_frame(requested: Object, places: list[int]) -> str:
    """The text of a claim's requests without selectors and classes. `places` identify those of each request."""
    bodies = [
        {key: value for key, value in body.items() if key not in ("selectors", "deviceClassName")}
        for body in _request_bodies(requested)
    ]
    names = [[request["name"], len(request.get("firstAvailable") or ())] for request in requested["requests"]]
    return json.dumps([names, places, bodies, requested.get("constraints")], sort_keys=True)


def _matching(
    name: str, texts: Texts, classes: t.Mapping[str, Object], offered: t.Sequence[Offer], cache: SelectorCache
) -> tuple[t.Hashable, ...]:
    """The devices that match the selectors of a request, including those of its class `name`.

    Claims with the same frame and the same matching devices get the same devices, or none for the same reason. If a
    selector uses a value that the probe does not know, the result is the selectors themselves, because the matching
    devices are uncertain.
    """
    if name not in classes or not cache.uncertain_values(offered).isdisjoint(cache.mentioned(texts)):
        return name, texts
    return cache.fitting(texts, offered)


def reach_of(
    objects: t.Sequence[Object],
    nodes: Nodes,
    drivers: ObjectView,
    engine: Engine,
    kubernetes: str = f"1.{versions.NEWEST}",
    gates: features.Gates = None,
) -> list[Reach]:
    """Try the claims and templates among `objects`, of any DRA version, on every node.

    `nodes` maps names to topology facts, or to what the drivers of the node publish. `drivers` is `dra_claims_drivers`.
    DeviceTaintRules among the objects apply; fields that a server of this release drops are ignored. If a class is not
    among the objects, the answer is unknown. Raises Problems if a driver or the facts of a node cannot be read, and
    ValueError for an unknown release.
    """
    for name, options in drivers.items():
        knowledge(name, options)
    classes: dict[str, Object] = {}
    claims: list[tuple[Claim, Compiled]] = []
    rules = [item for item in objects if item["kind"] == "DeviceTaintRule"]
    server = Server(kubernetes, gates, rules)
    served = (versions.convert(item, _V1) for item in objects if (_V1, item["kind"]) in versions.SERVED)
    stored = (server.without_dropped(item) for item in served)
    for item in stored:
        metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
        name = str(metadata.get("name") or f"{metadata.get('generateName')}*")
        if item["kind"] == "DeviceClass":
            classes[name] = {**item, "spec": spec}
        elif item["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
            devices = (spec.get("spec") or {} if item["kind"] == "ResourceClaimTemplate" else spec).get("devices") or {}
            if devices.get("requests"):
                namespaces = [str(metadata.get("namespace") or "default")]
                claims.append((Claim("", name, False, namespaces, {}, {}, [], "", []), Compiled(devices)))
    reaches, problems = reach(drivers, claims, classes, nodes, engine, allow_unreachable=True, server=server)
    if problems:
        raise Problems(problems)
    return reaches


def filters_by_expression(claim: Claim, compiled: Compiled) -> dict[str, str]:
    """The filters of the inventory for the CEL expressions of a claim, such as `min_speed 400G`, by expression."""
    devices = [choice for group in claim.groups for device in group.devices for choice in device.choices()]
    values = {
        child(child(device.path, "where"), name): f"{name} {value}"
        for device in devices
        for name, value in device.where.items()
    }
    for device in devices:
        share = child(device.path, "share")
        values[share] = f"shares that namespace {device.namespace} may use"
        values[child(share, "factor")] = f"shares with factor {device.share.get('factor', 'of the site')}"
    filters = {}
    for index, request in enumerate(compiled.devices["requests"]):
        bodies = request.get("firstAvailable") or [request["exactly"]]
        paths = [f"firstAvailable[{n}]" for n in range(len(bodies))] if "firstAvailable" in request else ["exactly"]
        for body, body_path in zip(bodies, paths):
            for number, selector in enumerate(body.get("selectors") or ()):
                path = compiled.origins.get(f"requests[{index}].{body_path}.selectors[{number}]", "")
                if path in values:
                    filters.update(dict.fromkeys(expressions([selector]), values[path]))
    return filters


def with_filters(reason: str, filters: t.Mapping[str, str]) -> str:
    """A reason with the filters of the inventory in place of CEL expressions."""
    for expression in sorted(filters, key=len, reverse=True):
        reason = reason.replace(expression, filters[expression])
    return reason


def _allocate(
    requested: Object,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: allocator.Engine,
    uncertain: t.Mapping[str, str],
    constraint_kinds: t.Sequence[str],
) -> _Answer:
    """The allocation of a claim on a node whose devices are all free, or the refusal with the reason."""
    for body in _request_bodies(requested):
        name = body["deviceClassName"]
        if name not in classes:
            return allocator.Refusal(f"class {name!r} does not belong to this site", "", "unknown")
    answer = allocator.allocate(
        [{"devices": requested}], classes, offered, engine, uncertain=uncertain, constraints=constraint_kinds
    )
    if isinstance(answer, allocator.Refusal) and answer.kind in _TOO_FEW:
        reason = pair_reason(requested, classes, offered, engine)
        if reason:
            return replace(answer, reason=reason)
    if isinstance(answer, allocator.Refusal) and answer.kind == "constraint":
        names = constraint_of(requested, answer.path).get("requests") or ()
        if len({"/" in name for name in names}) == 2:
            reason = f"{answer.reason} (the first device of a preference list must have the attribute of every level)"
            return replace(answer, reason=reason)
    return answer
