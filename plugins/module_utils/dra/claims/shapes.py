# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Groups the nodes of a site by their devices."""

from __future__ import annotations

import json
import re
import typing as t

from ..cel.engine import Engine
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem
from ..scheduler.allocator import not_predicted
from ..scheduler.published import Nodes, PublishedNode
from ..scheduler.search_requests import expressions
from ..vendors.drivers import knowledge
from ..vendors.offer import Offer
from ..vendors.offers import offers, unpredictable
from ..vendors.server import Server
from .claim_compiler import Compiled
from .inventory import Claim


class NodeShape(t.NamedTuple):
    """A set of devices, the nodes with these devices, and the drivers whose devices are uncertain, each with the
    reason."""

    offers: list[Offer]
    nodes: list[str]
    uncertain: t.Mapping[str, str]


def shapes(
    drivers: ObjectView,
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: Nodes,
    server: Server | None,
    engine: Engine,
) -> tuple[list[NodeShape], list[Problem]]:
    """The different sets of devices among the nodes, each with its nodes.

    Attributes that no selector and no constraint uses, such as serial numbers and MAC addresses, make no difference.
    For an attribute that only constraints use, only the equality of values matters. The problems are nodes with invalid
    facts.
    """
    problems = []
    fingerprinter = fingerprinter_of([compiled.devices for _claim, compiled in claims], classes, engine)
    known = {name: knowledge(name, options) for name, options in drivers.items()}
    unpredicted = {name: not_predicted(name) for name in unpredictable(drivers)}
    shapes_by_key: dict[str, NodeShape] = {}
    for node in sorted(nodes):
        node_data = nodes[node]
        if isinstance(node_data, PublishedNode):
            offered = [server.stored(offer) if server else offer for offer in node_data.offers]
            uncertain = node_data.unclear
        else:
            try:
                offered, uncertain = offers(node, node_data, drivers, known, server), unpredicted
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                message = f"is not the result of topology_info: {type(error).__name__} {error}"
                problems.append(Problem(f"topology_facts of {node}", message, "bad-facts", "probe the node again"))
                continue
        key = json.dumps([fingerprinter.fingerprint(offered), sorted(uncertain.items())])
        shapes_by_key.setdefault(key, NodeShape(offered, [], uncertain)).nodes.append(node)
    return list(shapes_by_key.values()), problems


def fingerprinter_of(devices: t.Sequence[ObjectView], classes: t.Mapping[str, Object], engine: Engine) -> Fingerprinter:
    """The fingerprinter for claims with these `devices`, and for all `classes`, v1 DeviceClasses by name."""
    texts = {text for body in bodies(devices, classes) for text in expressions(body.get("selectors") or ())}
    matched = {
        str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        for claim_devices in devices
        for constraint in claim_devices.get("constraints") or ()
    }
    words = set(re.findall(r"\w+", "\n".join(texts)))
    return Fingerprinter(words, matched, not all(map(engine.looks_up_names_only, texts)))


def bodies(devices: t.Sequence[ObjectView], classes: t.Mapping[str, Object]) -> t.Iterator[Object]:
    """All parts with selectors: the specs of classes, and the requests and alternatives of claims."""
    for item in classes.values():
        yield item["spec"]
    for claim_devices in devices:
        for request in claim_devices.get("requests") or ():
            yield from request.get("firstAvailable") or [request["exactly"]]


class Fingerprinter:
    """Computes a fingerprint of a node's devices from the parts that the claims of a site can distinguish.

    `words` are the words in selectors, `matched` the attributes that constraints use. With `whole`, some selector may
    depend on any attribute, so the fingerprint contains all of them.
    """

    def __init__(self, words: set[str], matched: set[str], whole: bool) -> None:
        self.words = words
        self.matched = matched
        self.whole = whole
        self.attributes: dict[str, set[str]] = {}  # all attributes so far, by driver
        self.visible: dict[str, dict[str, bool]] = {}  # attributes that matter to claims, and whether the value matters
        self.kinds: dict[tuple[t.Hashable, ...], int] = {}

    def fingerprint(self, offered: t.Sequence[Offer]) -> str:
        """A text that is equal for nodes that no claim can distinguish."""
        if self.whole:
            parts = [
                [
                    offer.driver,
                    offer.device,
                    sorted(offer.unknown),
                    sorted(offer.assumed),
                    offer.possible,
                    list(offer.counter_sets),
                ]
                for offer in offered
            ]
        else:
            parts = self._relevant_parts(offered)
        return json.dumps(parts, sort_keys=True)

    def _relevant_parts(self, offered: t.Sequence[Offer]) -> list[list[object]]:
        """The parts of each device that claims can distinguish."""
        numbers: dict[t.Hashable, int] = {}
        parts = []
        for offer in offered:
            attributes = offer.device.get("attributes") or {}
            seen: Object = {}
            for name, by_value in self._visible(offer.driver, attributes).items():
                value = attributes.get(name)
                if value is not None:
                    seen[name] = value if by_value else numbers.setdefault((name, repr(value)), len(numbers))
            other_fields = {
                key: value
                for key, value in offer.device.items()
                if key not in ("name", "attributes", "consumesCounters")
            }
            counters = [
                [numbers.setdefault(("", entry["counterSet"]), len(numbers)), entry["counters"]]
                for entry in offer.device.get("consumesCounters") or ()
            ]
            sets = [
                [numbers.setdefault(("", entry["name"]), len(numbers)), entry["counters"]]
                for entry in offer.counter_sets
            ]
            kind = (offer.driver, offer.unknown, offer.assumed, offer.possible)
            parts.append([self.kinds.setdefault(kind, len(self.kinds)), seen, other_fields, counters, sets])
        return parts

    def _visible(self, driver: str, attributes: ObjectView) -> dict[str, bool]:
        """The attributes of a driver that matter to claims, updated with attributes that are new."""
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
