# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The NICs that a site divides into shares, by the settings of its drivers or by the devices that they publish.

The controller adds the setting of a node from the inventory to the node's facts, under the key SETTING.
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
#: The path of the setting in the inventory.
VARIABLE = "dra_driver_settings.shares"
NAMESPACE = f"{LANEWISE}/shareNamespace"
FACTOR = f"{LANEWISE}/shareFactor"
BANDWIDTH = "bandwidth"
_FACTOR = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{1,2})?", re.ASCII)


@dataclass(frozen=True)
class DividedNic:
    """A NIC that is divided: its node, the device for its shares, its factor, and its v1 DeviceCapacity `bandwidth`.

    `ceiling` is the limit of one share when others are idle, and `physical` the bandwidth that is divided. Both are in
    bit/s, and None if unknown. `factor` is empty if unknown.
    """

    node: str
    device: str
    factor: str
    bandwidth: Object
    ceiling: int | None = None
    physical: int | None = None


def with_setting(facts: t.Mapping[str, object], value: object) -> Object:
    """The facts with the setting `shares` of the node's driver, or without the setting if `value` is None."""
    without = {key: item for key, item in facts.items() if key != SETTING}
    return without if value is None else {**without, SETTING: value}


def rules_of(facts: NodeFacts) -> tuple[ShareRule, ...]:
    """The rules in a node's facts. Raises ValueError for invalid rules; `setting_problems` reports all errors."""
    setting = t.cast(Object, facts).get(SETTING)
    if setting is None:
        return ()
    reader = Reader()
    rules = read_shares(reader, setting, VARIABLE)
    if reader.problems:
        raise ValueError(str(reader.problems[0]))
    return rules


def setting_problems(nodes: t.Mapping[str, NodeFacts]) -> tuple[list[Problem], set[str]]:
    """The problems of the settings of all nodes, and the nodes with an invalid setting. Nodes with the same problem
    share one entry."""
    nodes_by_problem: dict[tuple[str, str, str, str], list[str]] = {}
    unreadable = set()
    for node in sorted(nodes):
        setting = t.cast(Object, nodes[node]).get(SETTING)
        if setting is None:
            continue
        reader = Reader()
        rules = read_shares(reader, setting, VARIABLE)
        problems = reader.problems
        if problems:
            unreadable.add(node)
        else:
            try:
                problems = _ineffective_rules(rules, nodes[node])
            except (KeyError, TypeError, AttributeError, ValueError):
                continue  # facts that cannot be read are reported elsewhere
        for problem in problems:
            nodes_by_problem.setdefault((problem.path, problem.message, problem.rule, problem.fix), []).append(node)
    return [
        Problem(path, f"{message} ({_node_list(names)})", rule, fix)
        for (path, message, rule, fix), names in nodes_by_problem.items()
    ], unreadable


def _node_list(names: t.Sequence[str]) -> str:
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{'node' if len(names) == 1 else 'nodes'} {listed}"


def _ineffective_rules(rules: t.Sequence[ShareRule], facts: NodeFacts) -> list[Problem]:
    """The problems of entries that match only NICs of earlier entries, or have rates above the links of all their
    NICs."""
    earlier: dict[int, list[int]] = {number: [] for number in range(len(rules))}
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
                earlier[number].append(next(position for position, other in enumerate(rules) if other is first))
    problems = []
    for number, rule in enumerate(rules):
        path = child(VARIABLE, number)
        if earlier[number] and not links[number]:
            others = ", ".join(f"shares[{position}]" for position in sorted(set(earlier[number])))
            message = f"matches only NICs that {others} matches first, and the first matching entry applies"
            problems.append(Problem(child(path, "select"), message, "contradiction", "move the entry up, or remove it"))
        speeds = [mbps * 10**6 for mbps in links[number] if mbps]
        if not speeds or len(speeds) < len(links[number]):
            continue
        problems += _rates_above_link(rule, max(speeds), path)
    return problems


def _rates_above_link(rule: ShareRule, link: int, path: str) -> list[Problem]:
    """The problems of rates of an entry that are too high for the NIC with the fastest link, `link` in bit/s."""
    speed = f"{quantity(link)}bit/s, the speed of the fastest link of its NICs"
    capacity = int(min(link, rule.bandwidth or link) * rule.factor)
    promised = f"{quantity(capacity)}bit/s, the capacity of its NIC with the fastest link"
    limits: list[tuple[str, int | None, int, str]] = [
        ("ceiling", rule.ceiling, link, speed),
        ("bandwidth", rule.bandwidth, link, speed),
        ("default", rule.default, capacity, promised),
        ("min", rule.minimum, capacity - rule.step, f"{promised}, minus one step"),
    ]
    return [
        Problem(child(path, key), f"{quantity(rate)}bit/s is above {limit}", "out-of-range", "lower it or remove it")
        for key, rate, maximum, limit in limits
        if rate is not None and rate > maximum
    ]


def divided_nics(node: str, facts: NodeFacts) -> tuple[list[DividedNic], list[str]]:
    """The NICs that a node's driver would divide, and the reasons why other matching NICs are not divided.

    Raises ValueError for an invalid setting, and KeyError or TypeError for invalid facts.
    """
    rules = rules_of(facts)
    if not rules:
        return [], []
    publication = publish.publication(facts, shares=rules)
    nics = []
    for device in publication.devices:
        divided = publication.shared.get(device["name"])
        if divided is not None:
            factor, physical = factor_text(divided.rule.factor), _physical(divided, device)
            ceiling = divided.rule.share_ceiling(physical) if physical else None
            nics.append(DividedNic(node, device["name"], factor, device["capacity"][BANDWIDTH], ceiling, physical))
    reasons = [f"{name}: {reason}" for name, reason in publication.withheld.items() if name.endswith(SUFFIX)]
    return nics, reasons


def _physical(divided: Divided, device: Object) -> int | None:
    """The bandwidth that is divided, in bit/s; None if unknown."""
    return divided.rule.physical(divided.mbps or device["attributes"].get("linkSpeedMbps", {}).get("int"))


def published_divided_nics(node: str, offers: t.Iterable[Offer]) -> list[DividedNic]:
    """The NICs that a node's driver divides, according to the devices that the driver publishes."""
    nics = []
    for offer in offers:
        attributes = offer.device.get("attributes") or {}
        capacity = offer.device.get("capacity") or {}
        kind = (attributes.get("type") or {}).get("string")
        if offer.driver != LANEWISE or kind != SHARE or BANDWIDTH not in capacity:
            continue
        factor = str((attributes.get("shareFactor") or {}).get("string"))
        factor = factor if _FACTOR.fullmatch(factor) else ""
        nics.append(DividedNic(node, offer.device["name"], factor, capacity[BANDWIDTH]))
    return nics
