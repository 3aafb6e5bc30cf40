# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The different sets of devices among the nodes of a site."""

from __future__ import annotations

import json
import re
import typing as t

from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem
from ..scheduler.allocator import not_predicted
from ..scheduler.published import Nodes, PublishedNode
from ..scheduler.search_requests import expressions
from ..vendors.drivers import knowledge
from ..vendors.offer import Offer
from ..vendors.offers import blind, offers
from ..vendors.server import Server
from .claim_compiler import Compiled
from .inventory import Claim

_MACRO = re.compile(r"\.(?:exists|exists_one|all|map|filter|transform\w+)\s*\(")


class Shaped(t.NamedTuple):
    """A set of devices, the nodes that have it, and the drivers of which nothing is certain there, with the reason."""

    offers: list[Offer]
    nodes: list[str]
    blind: t.Mapping[str, str]


def shapes(
    drivers: ObjectView,
    claims: t.Sequence[tuple[Claim, Compiled]],
    classes: t.Mapping[str, Object],
    nodes: Nodes,
    server: Server | None,
) -> tuple[list[Shaped], list[Problem]]:
    """The different sets of devices among the nodes, each with its nodes.

    Attributes that no selector and no constraint names make no difference: serial numbers, MAC addresses. Of those that
    only constraints name, it counts which devices have the same value, not the value.
    """
    problems = []
    sight = sight_of([compiled.devices for _claim, compiled in claims], classes)
    known = {name: knowledge(name, options) for name, options in drivers.items()}
    unpredicted = {name: not_predicted(name) for name in blind(drivers)}
    found: dict[str, Shaped] = {}
    for node in sorted(nodes):
        given = nodes[node]
        if isinstance(given, PublishedNode):
            offered, unsure = [server.keeps(offer) if server else offer for offer in given.offers], given.unclear
        else:
            try:
                offered, unsure = offers(node, given, drivers, known, server), unpredicted
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                message = f"these are not facts of topology_info: {type(error).__name__} {error}"
                problems.append(Problem(f"topology_facts of {node}", message, "bad-facts", "probe the node again"))
                continue
        key = json.dumps([sight.of(offered), sorted(unsure.items())])
        found.setdefault(key, Shaped(offered, [], unsure)).nodes.append(node)
    return list(found.values()), problems


def sight_of(devices: t.Sequence[ObjectView], classes: t.Mapping[str, Object]) -> Sight:
    """What claims with these `devices` can see of a device, with all `classes`, v1 DeviceClasses by name."""
    texts = {text for body in bodies(devices, classes) for text in expressions(body.get("selectors") or ())}
    matched = {
        str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        for one in devices
        for constraint in one.get("constraints", ())
    }
    everything = "\n".join(texts)
    return Sight(set(re.findall(r"\w+", everything)), matched, bool(_MACRO.search(everything)))


def bodies(devices: t.Sequence[ObjectView], classes: t.Mapping[str, Object]) -> t.Iterator[Object]:
    """All that has selectors: classes, and the requests and alternatives of claims."""
    for item in classes.values():
        yield item["spec"]
    for one in devices:
        for request in one.get("requests") or ():
            yield from request.get("firstAvailable") or [request["exactly"]]


class Sight:
    """What the claims of a site can see of devices: `words` in selectors, attributes `matched` by constraints."""

    def __init__(self, words: set[str], matched: set[str], whole: bool) -> None:
        self.words = words
        self.matched = matched
        self.whole = whole
        self.attributes: dict[str, set[str]] = {}  # those met so far, by driver
        self.visible: dict[str, dict[str, bool]] = {}  # those that claims look at, and whether at the value itself
        self.sorts: dict[tuple[t.Hashable, ...], int] = {}

    def of(self, offered: t.Sequence[Offer]) -> str:
        """A text that is equal for nodes that no claim can tell apart."""
        if self.whole:
            look = [
                [one.driver, one.device, sorted(one.unknown), sorted(one.assumed), one.possible, list(one.counter_sets)]
                for one in offered
            ]
        else:
            look = self._look(offered)
        return json.dumps(look, sort_keys=True)

    def _look(self, offered: t.Sequence[Offer]) -> list[list[object]]:
        numbers: dict[t.Hashable, int] = {}
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

    def _visible(self, driver: str, attributes: ObjectView) -> dict[str, bool]:
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
