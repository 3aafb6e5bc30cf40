# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a fleet would be after a change: nodes cordoned, drained, removed or added, devices lost, claims gone."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from .fleet import Fleet, Node
from .pods import selected

#: The steps, and what each says.
STEPS = {
    "cordon": "nodes that take no more pods",
    "uncordon": "nodes that take pods again",
    "drain": "nodes that are cordoned, and whose pods and claims go",
    "remove": "nodes that go, with all that is on them",
    "add": "nodes that come: like one that is there, but empty",
    "lose": "devices that fail",
    "release": "claims that go, with the pods that use them",
}


def after(fleet: Fleet, steps: t.Sequence[ObjectView], path: str = "what_if") -> Fleet:
    """The fleet after some steps, one after the other. Each is a mapping of one of STEPS to what it is about:

    `cordon`, `uncordon`, `drain` and `remove` take `nodes`, a list of names, or `labels`, which the nodes have; `add`
    takes `like` and `count`; `lose` takes `node` and `devices`, names or PCI addresses; `release` takes `claims`, a
    list of `namespace/name`. Where the pods of a drained node go is not asked: they count as gone.

    Raises Problems with all that is wrong in the first step that cannot be taken.
    """
    for number, step in enumerate(steps):
        place = f"{path}[{number}]"
        if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in STEPS:
            known = ", ".join(STEPS)
            raise Problems([Problem(place, "is not a mapping with one step", "bad-step", f"give one of {known}")])
        name, value = next(iter(step.items()))
        place = f"{place}.{name}"
        if not isinstance(value, dict):
            raise Problems([Problem(place, "is not a mapping", "wrong-type", "see the documentation of the step")])
        fleet = _TAKE[name](fleet, value, place)
    return fleet


def _chosen(fleet: Fleet, value: ObjectView, place: str) -> list[str]:
    """The nodes that a step is about. Raises Problems where there are none, or one that does not exist."""
    names, labels = value.get("nodes"), value.get("labels")
    if (names is None) == (labels is None) or set(value) - {"nodes", "labels"}:
        raise Problems([Problem(place, "must have nodes or labels, and nothing else", "bad-step", "")])
    if labels is not None:
        found = [node.name for node in fleet.nodes.values() if selected({"matchLabels": labels}, node.labels)]
        if not found:
            raise Problems([Problem(f"{place}.labels", "are those of no node", "no-node", "look at the nodes' labels")])
        return found
    if not isinstance(names, list):
        raise Problems([Problem(f"{place}.nodes", "is not a list", "wrong-type", "give the names of nodes")])
    missing = [name for name in names if name not in fleet.nodes]
    if missing or not names:
        said = f"names nodes that do not exist: {', '.join(map(str, missing))}" if missing else "names no node"
        raise Problems([Problem(f"{place}.nodes", said, "no-node", "look at the names of the fleet's nodes")])
    return [str(name) for name in names]


def _changed(fleet: Fleet, names: t.Collection[str], change: t.Callable[[Node], Node]) -> Fleet:
    nodes = {name: change(node) if name in names else node for name, node in fleet.nodes.items()}
    return replace(fleet, nodes=nodes)


def _cordon(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    return _changed(fleet, _chosen(fleet, value, place), lambda node: replace(node, cordoned=True))


def _uncordon(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    return _changed(fleet, _chosen(fleet, value, place), lambda node: replace(node, cordoned=False))


def _drain(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    names = _chosen(fleet, value, place)
    return _changed(fleet, names, lambda node: replace(node, cordoned=True, held=(), pods=()))


def _remove(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    gone = set(_chosen(fleet, value, place))
    return replace(fleet, nodes={name: node for name, node in fleet.nodes.items() if name not in gone})


def _add(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    like, count = value.get("like"), value.get("count", 1)
    problems = []
    if set(value) - {"like", "count"}:
        problems.append(Problem(place, "must have like and count, and nothing else", "bad-step", ""))
    if like not in fleet.nodes:
        problems.append(Problem(f"{place}.like", f"there is no node {like!r}", "no-node", "name one that is there"))
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        problems.append(Problem(f"{place}.count", "is not a number from 1 to 10000", "wrong-type", ""))
    if problems:
        raise Problems(problems)
    nodes = dict(fleet.nodes)
    number = 0
    for _turn in range(t.cast(int, count)):
        while f"{like}-new-{number}" in nodes:
            number += 1
        name = f"{like}-new-{number}"
        nodes[name] = _empty(fleet.nodes[str(like)], name)
    return replace(fleet, nodes=nodes)


def _empty(node: Node, name: str) -> Node:
    labels = {**node.labels, "kubernetes.io/hostname": name} if node.labels else node.labels
    return replace(node, name=name, labels=labels, cordoned=False, pods=(), held=(), offers=tuple(_moved(node, name)))


def _moved(node: Node, name: str) -> t.Iterator[Offer]:
    """The node's devices in pools of another one's."""
    for offer in node.offers:
        pool = name if offer.pool == node.name else f"{offer.pool}-{name}"
        yield replace(offer, node=name, pool=pool)


def _lose(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    name, devices = value.get("node"), value.get("devices")
    if name not in fleet.nodes:
        raise Problems([Problem(f"{place}.node", f"there is no node {name!r}", "no-node", "name one that is there")])
    if not isinstance(devices, list) or not devices or set(value) - {"node", "devices"}:
        raise Problems([Problem(place, "must have node and devices, a list, and nothing else", "bad-step", "")])
    node = fleet.nodes[str(name)]
    there = {key for offer in node.offers for key in (str(offer.device["name"]), offer.address) if key}
    missing = [str(one) for one in devices if one not in there]
    if missing:
        said = f"node {name} has no device {', '.join(missing)}"
        raise Problems([Problem(f"{place}.devices", said, "no-device", "give names or PCI addresses of its devices")])
    kept = tuple(
        offer for offer in node.offers if offer.device["name"] not in devices and (offer.address or None) not in devices
    )
    ids = {identify(offer) for offer in kept}
    held = tuple(one for one in node.held if one.result.id in ids)
    return _changed(fleet, [node.name], lambda _node: replace(node, offers=kept, held=held))


def _release(fleet: Fleet, value: ObjectView, place: str) -> Fleet:
    claims = value.get("claims")
    if not isinstance(claims, list) or not claims or set(value) != {"claims"}:
        raise Problems([Problem(place, "must have claims, a list, and nothing else", "bad-step", "")])
    there = {one.owner for node in fleet.nodes.values() for one in node.held}
    missing = [str(one) for one in claims if one not in there]
    if missing:
        said = f"have no devices: {', '.join(missing)}"
        raise Problems([Problem(f"{place}.claims", said, "no-claim", "write them as namespace/name")])
    return _changed(fleet, list(fleet.nodes), lambda node: node.without(claims))


_TAKE: dict[str, t.Callable[[Fleet, ObjectView, str], Fleet]] = {
    "cordon": _cordon,
    "uncordon": _uncordon,
    "drain": _drain,
    "remove": _remove,
    "add": _add,
    "lose": _lose,
    "release": _release,
}
