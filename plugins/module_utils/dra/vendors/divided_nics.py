# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The NICs that a site divides into shares, according to the settings of its drivers or the devices that they publish.

A node's facts have the setting under the key SETTING: the controller adds it from the inventory.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ...topology import publish
from ...topology.facts import NodeFacts
from ...topology.publish_shares import SHARE, SUFFIX, Divided, ShareRule, factor_text, quantity, rule_for
from ...topology.selector import values_of
from ..config.share_settings import read_shares
from ..kube.objects import Object
from ..kube.problems import Problem
from ..kube.reader import Reader, child
from .knowledge import LANEWISE
from .offer import Offer

#: The key in a node's facts for its driver's setting `shares`, unparsed.
SETTING = "driver_shares"
#: The inventory path of the setting.
VARIABLE = "dra_driver_settings.shares"
NAMESPACE = f"{LANEWISE}/shareNamespace"
FACTOR = f"{LANEWISE}/shareFactor"
BANDWIDTH = "bandwidth"
_FACTOR = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{1,2})?", re.ASCII)


@dataclass(frozen=True)
class DividedNic:
    """A NIC that is divided: its node, the device for its shares, its factor, and its v1 DeviceCapacity `bandwidth`.

    `ceiling` is the most that one share may use, `physical` what is divided, in bit/s; None if unknown.
    """

    node: str
    device: str
    factor: str
    bandwidth: Object
    ceiling: int | None = None
    physical: int | None = None


def with_setting(facts: t.Mapping[str, object], value: object) -> Object:
    """Facts with the setting `shares` of the node's driver; without the setting if `value` is None."""
    found = {key: item for key, item in facts.items() if key != SETTING}
    return found if value is None else {**found, SETTING: value}


def rules_of(facts: NodeFacts) -> tuple[ShareRule, ...]:
    """The rules in a node's facts. Raises ValueError for invalid rules; `setting_problems` reports all errors."""
    given = t.cast(Object, facts).get(SETTING)
    if given is None:
        return ()
    reader = Reader()
    found = read_shares(reader, given, VARIABLE)
    if reader.problems:
        raise ValueError(str(reader.problems[0]))
    return found


def setting_problems(nodes: t.Mapping[str, NodeFacts]) -> tuple[list[Problem], set[str]]:
    """The problems of each node's setting, once for all nodes with the same problem, and the nodes whose setting cannot
    be read."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    unreadable = set()
    for node in sorted(nodes):
        given = t.cast(Object, nodes[node]).get(SETTING)
        if given is None:
            continue
        reader = Reader()
        rules = read_shares(reader, given, VARIABLE)
        problems = reader.problems
        if problems:
            unreadable.add(node)
        else:
            try:
                problems = _ineffective_rules(rules, nodes[node])
            except (KeyError, TypeError, AttributeError, ValueError):
                continue  # facts that cannot be read are reported elsewhere
        for one in problems:
            found.setdefault((one.path, one.message, one.rule, one.fix), []).append(node)
    return [
        Problem(path, f"{message} (node {_name_list(names)})", rule, fix)
        for (path, message, rule, fix), names in found.items()
    ], unreadable


def _name_list(names: t.Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _ineffective_rules(rules: t.Sequence[ShareRule], facts: NodeFacts) -> list[Problem]:
    """Entries that match only NICs of earlier entries, and rates above the links of all their NICs."""
    taken: dict[int, list[int]] = {number: [] for number in range(len(rules))}
    links: dict[int, list[int | None]] = {number: [] for number in range(len(rules))}
    for nic in facts["nics"]:
        values = values_of(nic, facts)
        first = rule_for(rules, values)
        if first is None:
            continue
        for number, rule in enumerate(rules):
            if rule is first:
                links[number].append(nic["speed_mbps"])
            elif rule.select.matches(values):
                taken[number].append(next(at for at, other in enumerate(rules) if other is first))
    found = []
    for number, rule in enumerate(rules):
        place = child(VARIABLE, number)
        if taken[number] and not links[number]:
            others = ", ".join(f"shares[{one}]" for one in sorted(set(taken[number])))
            message = f"matches only NICs that {others} matches first, and the first matching entry applies"
            found.append(Problem(child(place, "select"), message, "contradiction", "move it up, or remove it"))
        known = [mbps * 10**6 for mbps in links[number] if mbps]
        if not known or len(known) < len(links[number]):
            continue
        found += _rates_above_link(rule, max(known), place)
    return found


def _rates_above_link(rule: ShareRule, link: int, place: str) -> list[Problem]:
    """Rates of an entry that are above `link`, the fastest link of its NICs, or above the capacity of that NIC's share
    device."""
    fastest = f"the fastest link of the NICs that it matches has {quantity(link)}"
    promised = int(min(link, rule.bandwidth or link) * rule.factor)
    what = f"the {quantity(promised)} that a NIC of this entry promises"
    limits: list[tuple[str, int | None, int, str]] = [
        ("ceiling", rule.ceiling, link, "the link"),
        ("bandwidth", rule.bandwidth, link, "the link"),
        ("default", rule.default, promised, what),
        ("min", rule.least, promised - rule.step, f"{what}, less a step"),
    ]
    fix = "lower it or remove it"
    return [
        Problem(child(place, key), f"{quantity(rate)} is above {words}: {fastest}", "out-of-range", fix)
        for key, rate, most, words in limits
        if rate is not None and rate > most
    ]


def divided_nics(node: str, facts: NodeFacts) -> tuple[list[DividedNic], list[str]]:
    """The NICs that a node's driver would divide, and the reasons why other matching NICs are not divided.

    Raises ValueError for an invalid setting, and KeyError or TypeError for invalid facts.
    """
    rules = rules_of(facts)
    if not rules:
        return [], []
    made = publish.publication(facts, shares=rules)
    found = []
    for device in made.devices:
        one = made.shared.get(device["name"])
        if one is not None:
            factor, physical = factor_text(one.rule.factor), _physical(one, device)
            ceiling = one.rule.most(physical) if physical else None
            found.append(DividedNic(node, device["name"], factor, device["capacity"][BANDWIDTH], ceiling, physical))
    reasons = [f"{place}: {reason}" for place, reason in made.withheld.items() if place.endswith(SUFFIX)]
    return found, reasons


def _physical(one: Divided, device: Object) -> int | None:
    return one.rule.physical(one.mbps or device["attributes"].get("linkSpeedMbps", {}).get("int"))


def published_divided_nics(node: str, offers: t.Iterable[Offer]) -> list[DividedNic]:
    """The NICs that a node's driver divides, by the devices that it publishes."""
    found = []
    for offer in offers:
        attributes = offer.device.get("attributes") or {}
        capacity = offer.device.get("capacity") or {}
        kind = (attributes.get("type") or {}).get("string")
        if offer.driver != LANEWISE or kind != SHARE or BANDWIDTH not in capacity:
            continue
        factor = str((attributes.get("shareFactor") or {}).get("string"))
        factor = factor if _FACTOR.fullmatch(factor) else ""
        found.append(DividedNic(node, offer.device["name"], factor, capacity[BANDWIDTH]))
    return found
