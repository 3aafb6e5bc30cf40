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
import re
import typing as t
from dataclasses import dataclass, field, replace

from ..cel.engine import Engine
from ..cel.errors import EvaluationError, Uncheckable
from ..cel.subject import Subject
from ..kube import schema, versions
from ..kube.problems import Problem, Problems
from ..kube.reader import child
from ..scheduler import allocator
from ..scheduler.search_requests import class_selectors, expressions
from ..vendors.drivers import knowledge
from ..vendors.knowledge import NUMA_NODE, PCIE_ROOT
from ..vendors.offer import Offer
from ..vendors.offers import blind, offers
from ..vendors.server import Server
from .claim_compiler import Compiled
from .inventory import PREFIX, Claim

Object = dict[str, t.Any]
_V1 = "resource.k8s.io/v1"
_MACRO = re.compile(r"\.(?:exists|exists_one|all|map|filter|transform\w+)\s*\(")


@dataclass
class Reach:
    """What the nodes of a site are to a claim.

    C(claim) is C(namespace/name), or the name with C(namespaces) joined by commas. C(refused) maps each node that
    cannot satisfy it to the reason, C(unknown) each node of which the probe cannot tell.
    """

    claim: str
    nodes: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a person: where the claim can run, and each reason once with the nodes that it holds for."""
        total = len(self.nodes) + len(self.refused) + len(self.unknown)
        found = [f"{self.claim}: {len(self.nodes)} of {total} node(s)"]
        for what, reasons in (("not", self.refused), ("perhaps", self.unknown)):
            for reason, nodes in by_reason(reasons):
                found.append(f"  {what} {shown(nodes)}: {reason}")
        return found


def by_reason(reasons: t.Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Reasons with the nodes that they hold for, the most nodes first."""
    found: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        found.setdefault(reason, []).append(node)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def shown(names: t.Sequence[str]) -> str:
    """Up to three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_Texts = tuple[str, ...]


class _Memory:
    """Evaluates a selector on a device of a shape once, whatever the number of claims."""

    # devices live as long as the shapes do, so that an id stands for one device
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.subjects: dict[int, Subject] = {}
        self.known: dict[tuple[str, int], bool | Exception] = {}
        self.guessed: dict[int, set[str]] = {}
        self.words: dict[_Texts, set[str]] = {}
        self.fits: dict[tuple[_Texts, int], tuple[int, ...]] = {}

    def matches(self, expression: str, device: t.Mapping[str, t.Any], driver: str) -> bool:
        key = (expression, id(device))
        answer = self.known.get(key)
        if answer is None:
            subject = self.subjects.get(id(device))
            if subject is None:
                subject = self.subjects[id(device)] = Subject(device, driver)
            try:
                answer = self.engine.selects(expression, subject)
            except Exception as error:  # noqa: BLE001  # pylint: disable=broad-exception-caught
                answer = error  # what was raised is raised again for the next claim
            self.known[key] = answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def unsure(self, offered: t.Sequence[Offer]) -> set[str]:
        """The names of what a probe cannot tell of the devices, or only guess."""
        if id(offered) not in self.guessed:
            names = {name for offer in offered for name in offer.unknown | offer.assumed}
            self.guessed[id(offered)] = {name.rpartition("/")[2] for name in names}
        return self.guessed[id(offered)]

    def mentioned(self, texts: _Texts) -> set[str]:
        """The words of selectors, attributes' names among them."""
        if texts not in self.words:
            self.words[texts] = set(re.findall(r"\w+", " ".join(texts)))
        return self.words[texts]

    def fitting(self, texts: _Texts, offered: t.Sequence[Offer]) -> tuple[int, ...]:
        """The positions of the devices that all the selectors match. Raises what M(matches) raises.

        Those of the class come first, and what they leave is known after the first claim.
        """
        if not texts:
            return tuple(range(len(offered)))
        key = (texts, id(offered))
        if key not in self.fits:
            text, left = texts[-1], self.fitting(texts[:-1], offered)
            self.fits[key] = tuple(i for i in left if self.matches(text, offered[i].device, offered[i].driver))
        return self.fits[key]


def reach(
    drivers: t.Mapping[str, t.Any],
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: t.Mapping[str, t.Any],
    engine: Engine,
    allow_unreachable: bool = False,
    server: Server | None = None,
) -> tuple[list[Reach], list[Problem]]:
    """Try every claim on every node (name to topology facts). Problems are claims that no node can satisfy.

    A claim that some node may satisfy, for all the probe can tell, is no problem; nor is any where the site says
    C(dra_claims_allow_unreachable). C(drivers) is C(dra_claims_drivers), C(server) what they publish to.
    """
    shapes, problems = _shapes(drivers, claims, classes, nodes, server)
    memory = _Memory(engine)
    unseen = blind(drivers)
    kinds = (server or Server()).constraints
    answers: dict[str, list[allocator.Allocation | allocator.Refusal]] = {}
    alike: dict[tuple[t.Any, ...], tuple[allocator.Allocation | allocator.Refusal, set[str]]] = {}
    found = []
    for claim, compiled in claims:
        asked: Object = {key: compiled.devices[key] for key in ("requests", "constraints") if key in compiled.devices}
        key = json.dumps(asked, sort_keys=True)
        if key not in answers:
            answers[key] = []
            bodies = [(body["deviceClassName"], tuple(_selectors(body, classes))) for body in _asked_bodies(asked)]
            different = list(dict.fromkeys(bodies))
            frame = _frame(asked, [different.index(body) for body in bodies])
            texts = {text for _name, own in different for text in own}
            for number, (offered, _names) in enumerate(shapes):
                try:
                    same = (number, frame, *(_fits(name, own, classes, offered, memory) for name, own in different))
                except (EvaluationError, Uncheckable):
                    same = (number, key)  # a selector that fails: only the same claim is alike
                answer, quoted = alike.get(same, (None, set()))
                # a reason that quotes a selector holds for claims that have this selector
                if answer is None or not quoted <= texts:
                    answer = _try(asked, classes, offered, memory, unseen, kinds)
                    reason = answer.reason if isinstance(answer, allocator.Refusal) else ""
                    alike[same] = (answer, {text for text in texts if text in reason})
                answers[key].append(answer)
        result = Reach(f"{','.join(claim.namespaces)}/{claim.name}", [])
        refusals: list[tuple[allocator.Refusal, list[str]]] = []
        spoken = _spoken(claim, compiled)
        for answer, (_offered, names) in zip(answers[key], shapes):
            if isinstance(answer, allocator.Allocation):
                result.nodes += names
                continue
            told = replace(answer, reason=_speak(answer.reason, spoken))
            if told.unknown:
                result.unknown.update(dict.fromkeys(names, told.reason))
            else:
                result.refused.update(dict.fromkeys(names, told.reason))
                refusals.append((told, names))
        result.nodes.sort()
        found.append(result)
        if refusals and not result.nodes and not result.unknown and not allow_unreachable:
            problems.append(_unreachable(claim, compiled, asked, refusals, shapes, classes, memory))
    return found, problems


def _selectors(body: Object, classes: t.Mapping[str, Object]) -> list[str]:
    """The expressions of a request: its class's, then its own."""
    return expressions([*class_selectors(classes, body), *(body.get("selectors") or ())])


def _asked_bodies(asked: Object) -> list[Object]:
    return [body for request in asked["requests"] for body in request.get("firstAvailable") or [request["exactly"]]]


def _frame(asked: Object, places: list[int]) -> str:
    """What a claim asks for, with C(places) among different ones in place of its selectors and classes."""
    bodies = [
        {key: value for key, value in body.items() if key not in ("selectors", "deviceClassName")}
        for body in _asked_bodies(asked)
    ]
    names = [[request["name"], len(request.get("firstAvailable") or ())] for request in asked["requests"]]
    return json.dumps([names, places, bodies, asked.get("constraints")], sort_keys=True)


def _fits(
    name: str, texts: _Texts, classes: t.Mapping[str, Object], offered: t.Sequence[Offer], memory: _Memory
) -> tuple[t.Any, ...]:
    """The devices that fit the selectors of a request, those of its class C(name) among them.

    Claims of the same frame for which these are the same get the same devices, or none for the same reason. Selectors
    that name what the probe does not know stay as they are: for them, what fits is not the whole answer.
    """
    if name not in classes or not memory.unsure(offered).isdisjoint(memory.mentioned(texts)):
        return name, texts
    return memory.fitting(texts, offered)


def reach_of(
    objects: t.Sequence[Object],
    nodes: t.Mapping[str, t.Any],
    drivers: t.Mapping[str, t.Any],
    engine: Engine,
    kubernetes: str = f"1.{schema.NEWEST}",
    gates: versions.Gates = None,
) -> list[Reach]:
    """Try the claims and templates among C(objects), of any DRA version, on every node (name to topology facts).

    C(drivers) is C(dra_claims_drivers); DeviceTaintRules among the objects hold, and what a server of this release
    drops is not there. A class that is not among the objects makes the answer unknown. Raises Problems where a driver
    or the facts of a node cannot be read, ValueError for a release that is not known.
    """
    for name, options in drivers.items():
        knowledge(name, options)
    classes: dict[str, Object] = {}
    claims: list[tuple[Claim, Compiled]] = []
    rules = [item for item in objects if item["kind"] == "DeviceTaintRule"]
    server = Server(kubernetes, gates, rules)
    kept = (server.claim(versions.convert(item, _V1)) for item in objects if (_V1, item["kind"]) in schema.SERVED)
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


def _spoken(claim: Claim, compiled: Compiled) -> dict[str, str]:
    """The CEL expressions of a claim in the words of its inventory: C(min_speed 400G)."""
    devices = [choice for group in claim.groups for device in group.devices for choice in device.choices()]
    values = {
        child(child(device.path, "where"), name): value for device in devices for name, value in device.where.items()
    }
    spoken = {}
    for index, request in enumerate(compiled.devices["requests"]):
        bodies = request.get("firstAvailable") or [request["exactly"]]
        ways = [f"firstAvailable[{way}]" for way in range(len(bodies))] if "firstAvailable" in request else ["exactly"]
        for body, way in zip(bodies, ways):
            for number, selector in enumerate(body.get("selectors") or ()):
                path = compiled.origins.get(f"requests[{index}].{way}.selectors[{number}]", "")
                if path in values:
                    name = path.rpartition(".")[2]
                    spoken.update(dict.fromkeys(expressions([selector]), f"{name} {values[path]}"))
    return spoken


def _speak(reason: str, spoken: t.Mapping[str, str]) -> str:
    for expression in sorted(spoken, key=len, reverse=True):
        reason = reason.replace(expression, spoken[expression])
    return reason


def _try(
    asked: Object,
    classes: t.Mapping[str, Object],
    offered: t.Sequence[Offer],
    engine: allocator.Engine,
    unseen: t.Sequence[str],
    kinds: t.Sequence[str],
) -> allocator.Allocation | allocator.Refusal:
    for body in _asked_bodies(asked):
        name = body["deviceClassName"]
        if name not in classes:
            return allocator.Refusal(f"class {name!r} is not of this site", "", "unknown")
    answer = allocator.allocate([{"devices": asked}], classes, offered, engine, blind=unseen, constraints=kinds)
    if isinstance(answer, allocator.Refusal) and answer.kind == "constraint":
        names = _constraint_of(asked, answer.path).get("requests") or ()
        if len({"/" in name for name in names}) == 2:
            reason = f"{answer.reason} (the first device of a preference list must have the attribute of every level)"
            return replace(answer, reason=reason)
    return answer


def _shapes(
    drivers: t.Mapping[str, t.Any],
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: t.Mapping[str, t.Any],
    server: Server | None,
) -> tuple[list[tuple[list[Offer], list[str]]], list[Problem]]:
    """The different sets of devices among the nodes, each with its nodes.

    Attributes that no selector and no constraint names make no difference: serial numbers, MAC addresses. Of those that
    only constraints name, it counts which devices have the same value, not the value.
    """
    problems = []
    texts = {text for body in _bodies(claims, classes) for text in expressions(body.get("selectors") or ())}
    matched = {
        str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        for _claim, compiled in claims
        for constraint in compiled.devices.get("constraints", ())
    }
    everything = "\n".join(texts)
    sight = _Sight(set(re.findall(r"\w+", everything)), matched, bool(_MACRO.search(everything)))
    known = {name: knowledge(name, options) for name, options in drivers.items()}
    found: dict[str, tuple[list[Offer], list[str]]] = {}
    for node in sorted(nodes):
        try:
            offered = offers(node, nodes[node], drivers, known, server)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            message = f"these are not facts of topology_info: {type(error).__name__} {error}"
            problems.append(Problem(f"topology_facts of {node}", message, "bad-facts", "probe the node again"))
            continue
        found.setdefault(sight.of(offered), (offered, []))[1].append(node)
    return list(found.values()), problems


def _bodies(claims: t.Sequence[tuple[Claim, Compiled]], classes: t.Mapping[str, Object]) -> t.Iterator[Object]:
    for item in classes.values():
        yield item["spec"]
    for _claim, compiled in claims:
        for request in compiled.devices["requests"]:
            yield from request.get("firstAvailable") or [request["exactly"]]


class _Sight:
    """What the claims of a site can see of devices: C(words) in selectors, attributes C(matched) by constraints."""

    def __init__(self, words: set[str], matched: set[str], whole: bool) -> None:
        self.words = words
        self.matched = matched
        self.whole = whole
        self.attributes: dict[str, set[str]] = {}  # those met so far, by driver
        self.visible: dict[str, dict[str, bool]] = {}  # those that claims look at, and whether at the value itself
        self.sorts: dict[tuple[t.Any, ...], int] = {}

    def of(self, offered: t.Sequence[Offer]) -> str:
        """The same for nodes that no claim can tell apart."""
        if self.whole:
            look = [
                [one.driver, one.device, sorted(one.unknown), sorted(one.assumed), one.possible, list(one.counter_sets)]
                for one in offered
            ]
        else:
            look = self._look(offered)
        return json.dumps(look, sort_keys=True)

    def _look(self, offered: t.Sequence[Offer]) -> list[list[t.Any]]:
        numbers: dict[t.Any, int] = {}
        look = []
        for offer in offered:
            attributes = offer.device.get("attributes") or {}
            seen: Object = {}
            for name, by_value in self._visible(offer.driver, attributes).items():
                value = attributes.get(name)
                if value is not None:
                    seen[name] = value if by_value else numbers.setdefault((name, repr(value)), len(numbers))
            rest = {k: v for k, v in offer.device.items() if k not in ("name", "attributes", "consumesCounters")}
            counters = [
                [numbers.setdefault(("", entry["counterSet"]), len(numbers)), entry["counters"]]
                for entry in offer.device.get("consumesCounters") or ()
            ]
            sets = [
                [numbers.setdefault(("", entry["name"]), len(numbers)), entry["counters"]]
                for entry in offer.counter_sets
            ]
            sort = (offer.driver, offer.unknown, offer.assumed, offer.possible)
            look.append([self.sorts.setdefault(sort, len(self.sorts)), seen, rest, counters, sets])
        return look

    def _visible(self, driver: str, attributes: t.Mapping[str, t.Any]) -> dict[str, bool]:
        """The attributes of a driver that claims look at. Few are new after the first nodes."""
        known = self.attributes.setdefault(driver, set())
        visible = self.visible.setdefault(driver, {})
        if not known.issuperset(attributes):
            for name in attributes:
                if name.rpartition("/")[2] in self.words:
                    visible[name] = True
                elif (name if "/" in name else f"{driver}/{name}") in self.matched:
                    visible[name] = False
            known.update(attributes)
        return visible


def _unreachable(
    claim: Claim,
    compiled: Compiled,
    asked: Object,
    refusals: list[tuple[allocator.Refusal, list[str]]],
    shapes: t.Sequence[tuple[list[Offer], list[str]]],
    classes: t.Mapping[str, Object],
    engine: allocator.Engine,
) -> Problem:
    # nodes that have the devices but not their alignment tell more than nodes without a GPU
    order = {"absent": 2, "selector": 1}
    refusals = sorted(refusals, key=lambda item: (order.get(item[0].kind, 0), -len(item[1])))
    first = refusals[0][0]
    told = "; ".join(f"{shown(names)}: {refusal.reason}" for refusal, names in refusals[:3])
    more = f"; and {len(refusals) - 3} more reasons" if len(refusals) > 3 else ""
    path = _origin(compiled, first.path) or claim.path
    where = f"set {PREFIX}allow_unreachable to render it all the same"
    constraint = _constraint_of(asked, first.path)
    roots: dict[str, set[str]] = {}
    rule = "unreachable"
    fix = where
    if first.kind == "constraint" and constraint.get("matchAttribute") == PCIE_ROOT:
        offered = next(devices for devices, names in shapes if names == refusals[0][1])
        roots = _roots(offered, asked, constraint, classes, engine)
        if len(roots) > 1 and all(roots.values()) and not set.intersection(*roots.values()):
            rule = "disjoint-roots"
            who = " and ".join(roots)
            told = f"PCIe roots are disjoint on this board: {who} never share one. {told}"
        works = [names for devices, names in shapes if _with_numa(asked, classes, devices, engine)]
        if works:
            numbers = sum(map(len, works))
            # a preference list needs the attribute of every level, if not its value in common
            other = ", or prefer by [pcie_root, numa_node]" if roots and all(roots.values()) else ""
            fix = f"align on numa_node{other}: {numbers} node(s) can satisfy that; or {where}"
    total = sum(len(names) for _refusal, names in refusals)
    return Problem(path, f"none of {total} node(s) can satisfy this: {told}{more}", rule, fix)


def _origin(compiled: Compiled, path: str) -> str:
    place = path.partition(".spec.devices.")[2]
    while place and place not in compiled.origins:
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return compiled.origins.get(place, "")


def _constraint_of(asked: Object, path: str) -> Object:
    match = re.search(r"constraints\[(\d+)\]$", path)
    entries: list[Object] = asked.get("constraints") or []
    return entries[int(match.group(1))] if match and int(match.group(1)) < len(entries) else {}


def _roots(
    offered: t.Sequence[Offer],
    asked: Object,
    constraint: Object,
    classes: t.Mapping[str, Object],
    engine: allocator.Engine,
) -> dict[str, set[str]]:
    """The PCIe roots of the devices that fit each request of a constraint."""
    found: dict[str, set[str]] = {}
    for request in asked["requests"]:
        names = constraint.get("requests") or [request["name"]]
        if not any(name.partition("/")[0] == request["name"] for name in names):
            continue
        roots = found.setdefault(request["name"], set())
        for body in request.get("firstAvailable") or [request["exactly"]]:
            for offer in offered:
                alone = {"requests": [{"name": "one", "exactly": {**body, "allocationMode": "ExactCount", "count": 1}}]}
                fits = allocator.allocate([{"devices": alone}], classes, [offer], engine)
                value = allocator.attribute(offer, PCIE_ROOT)
                if isinstance(fits, allocator.Allocation) and value:
                    roots.add(str(next(iter(value.values()))))
    return found


def _with_numa(
    asked: Object, classes: t.Mapping[str, Object], offered: t.Sequence[Offer], engine: allocator.Engine
) -> bool:
    """Whether the claim could be satisfied with the NUMA node in place of the PCIe root."""
    constraints = [
        {**entry, "matchAttribute": NUMA_NODE} if entry.get("matchAttribute") == PCIE_ROOT else entry
        for entry in asked["constraints"]
    ]
    instead = {**asked, "constraints": constraints}
    return isinstance(allocator.allocate([{"devices": instead}], classes, offered, engine), allocator.Allocation)
