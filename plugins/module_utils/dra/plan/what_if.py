# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Changes a fleet's nodes, devices and claims. Changes of servers, drivers and workloads are in `scenario`."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..apiserver.schema import EFFECTS
from ..kube import limits, quantity, versions
from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from ..vendors.server import Server
from .fleet import Fleet, Node
from .pods import UNSCHEDULABLE, selected

_CONDITION = "node.kubernetes.io/"  # the prefix of taint keys that Kubernetes itself sets
_EFFECTS = limits.at(EFFECTS, versions.NEWEST)  # the effects of device taints
#: The steps, and what each means.
STEPS = {
    "cordon": "nodes that take no more pods",
    "uncordon": "nodes that take pods again",
    "drain": "nodes that are cordoned, and whose pods and claims are deleted",
    "remove": "nodes that are removed with their devices, pods and claims",
    "add": "new empty nodes like an existing one, with these labels",
    "lose": "devices that fail",
    "replace": "devices that are replaced by new ones: free, without taints, with these attributes if they differ",
    "degrade": "devices that become worse: with these attributes, capacities or this taint",
    "release": "claims that are deleted, with the pods that use them",
}


def after(fleet: Fleet, steps: t.Sequence[ObjectView], path: str = "what_if") -> Fleet:
    """The fleet after a sequence of steps. Each step is a mapping of one of STEPS to its arguments.

    `cordon`, `uncordon`, `drain` and `remove` take `nodes`, a list of names, or `labels` of the nodes. `add` takes
    `like` and `count`, and additional `labels` of the new nodes. `lose`, `replace` and `degrade` take `node` and
    `devices`, a list of names or PCI addresses; the last two also take `attributes` and `capacity`, and `degrade` a
    `taint`. `release` takes `claims`, a list of `namespace/name`. The pods of a drained node are deleted; new pods that
    would replace them are not modelled.

    Raises Problems with all errors of the first invalid step.
    """
    for number, step in enumerate(steps):
        fleet = apply_step(fleet, step, f"{path}[{number}]")
    return fleet


def apply_step(fleet: Fleet, step: ObjectView, path: str) -> Fleet:
    """The fleet after one step, see `after`. Raises Problems."""
    if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in STEPS:
        known = ", ".join(STEPS)
        raise Problems([Problem(path, "is not a mapping with one step", "bad-step", f"give one of {known}")])
    name, value = next(iter(step.items()))
    path = f"{path}.{name}"
    if not isinstance(value, dict):
        raise Problems([Problem(path, "is not a mapping", "wrong-type", "see the documentation of the step")])
    return _APPLY[name](fleet, value, path)


def _nodes_of_step(fleet: Fleet, value: ObjectView, path: str) -> list[str]:
    """The nodes of a step. Raises Problems if there are none, or if one does not exist."""
    names, labels = value.get("nodes"), value.get("labels")
    if (names is None) == (labels is None) or set(value) - {"nodes", "labels"}:
        raise Problems([Problem(path, "must have nodes or labels, and nothing else", "bad-step", "")])
    if labels is not None:
        if not isinstance(labels, dict):
            raise Problems([Problem(f"{path}.labels", "is not a mapping", "wrong-type", "give labels of nodes")])
        matching = [node.name for node in fleet.nodes.values() if selected({"matchLabels": labels}, node.labels)]
        if not matching:
            raise Problems([Problem(f"{path}.labels", "match no node", "no-node", "check the labels of the nodes")])
        return matching
    if not isinstance(names, list):
        raise Problems([Problem(f"{path}.nodes", "is not a list", "wrong-type", "give the names of nodes")])
    missing = [name for name in names if not isinstance(name, str) or name not in fleet.nodes]
    if missing or not names:
        message = f"names nodes that do not exist: {', '.join(map(str, missing))}" if missing else "names no node"
        raise Problems([Problem(f"{path}.nodes", message, "no-node", "check the names of the fleet's nodes")])
    return [str(name) for name in names]


def _with_changed_nodes(fleet: Fleet, names: t.Collection[str], change: t.Callable[[Node], Node]) -> Fleet:
    nodes = {name: change(node) if name in names else node for name, node in fleet.nodes.items()}
    return replace(fleet, nodes=nodes)


def _cordon(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    return _with_changed_nodes(fleet, _nodes_of_step(fleet, value, path), lambda node: replace(node, cordoned=True))


def _uncordon(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    """Kubernetes removes the taint of cordoned nodes together with the cordon."""
    return _with_changed_nodes(
        fleet,
        _nodes_of_step(fleet, value, path),
        lambda node: replace(node, cordoned=False, taints=_without_taints(node.taints, UNSCHEDULABLE["key"])),
    )


def _without_taints(taints: t.Sequence[ObjectView], prefix: str) -> tuple[ObjectView, ...]:
    return tuple(taint for taint in taints if not str(taint.get("key")).startswith(prefix))


def _drain(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    names = _nodes_of_step(fleet, value, path)
    return _with_changed_nodes(fleet, names, lambda node: replace(node, cordoned=True, held=(), pods=()))


def _remove(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    removed = set(_nodes_of_step(fleet, value, path))
    return replace(fleet, nodes={name: node for name, node in fleet.nodes.items() if name not in removed})


def _add(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    like, count, labels = value.get("like"), value.get("count", 1), value.get("labels") or {}
    problems = []
    if set(value) - {"like", "count", "labels"}:
        message = "must have like, and may have count and labels, but nothing else"
        problems.append(Problem(path, message, "bad-step", ""))
    if not isinstance(labels, dict) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        message = "is not a mapping of strings to strings"
        problems.append(Problem(f"{path}.labels", message, "wrong-type", "quote numbers"))
    if not isinstance(like, str) or like not in fleet.nodes:
        problems.append(Problem(f"{path}.like", f"there is no node {like!r}", "no-node", "name an existing node"))
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        problems.append(Problem(f"{path}.count", "is not a number from 1 to 10000", "wrong-type", ""))
    if problems:
        raise Problems(problems)
    nodes = dict(fleet.nodes)
    number = 0
    for _index in range(t.cast(int, count)):
        while f"{like}-new-{number}" in nodes:
            number += 1
        name = f"{like}-new-{number}"
        nodes[name] = _empty_copy(fleet.nodes[str(like)], name, fleet.server, labels)
    return replace(fleet, nodes=nodes)


def _empty_copy(node: Node, name: str, server: Server, labels: t.Mapping[str, str]) -> Node:
    """A copy of a node without its pods and cordon, and without the taints that Kubernetes sets for node conditions."""
    return replace(
        node,
        name=name,
        labels={**node.labels, "kubernetes.io/hostname": name, **labels},
        taints=_without_taints(node.taints, _CONDITION),
        cordoned=False,
        pods=(),
        held=(),
        offers=tuple(_moved_offers(node, name, server)),
    )


def _moved_offers(node: Node, name: str, server: Server) -> t.Iterator[Offer]:
    """The node's devices as devices of another node, in pools of that node, to which other taint rules may apply."""
    for offer in node.offers:
        pool = name if offer.pool == node.name else f"{offer.pool}-{name}"
        yield server.moved_to(offer, name, pool)


def _devices(fleet: Fleet, value: ObjectView, path: str, optional: t.Collection[str] = ()) -> tuple[Node, set[int]]:
    """The node of a step, and the positions of the devices of the step. `optional` are keys that the step may have."""
    name, devices = value.get("node"), value.get("devices")
    if not isinstance(name, str) or name not in fleet.nodes:
        raise Problems([Problem(f"{path}.node", f"there is no node {name!r}", "no-node", "name an existing node")])
    if not isinstance(devices, list) or not devices or set(value) - {"node", "devices", *optional}:
        may_have = f", may have {', '.join(optional)}" if optional else ""
        message = f"must have node and devices, a list{may_have}, and nothing else"
        raise Problems([Problem(path, message, "bad-step", "")])
    node = fleet.nodes[name]
    keys = [{str(offer.device["name"]), offer.address} - {""} for offer in node.offers]
    known = set().union(*keys)
    missing = [str(device) for device in devices if not isinstance(device, str) or device not in known]
    if missing:
        message = f"node {name} has no device {', '.join(missing)}"
        raise Problems([Problem(f"{path}.devices", message, "no-device", "give names or PCI addresses of its devices")])
    return node, {number for number, names in enumerate(keys) if names & set(devices)}


def _lose(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    node, lost = _devices(fleet, value, path)
    offers = tuple(offer for number, offer in enumerate(node.offers) if number not in lost)
    ids = {identify(offer) for offer in offers}
    held = tuple(held_device for held_device in node.held if held_device.result.id in ids)
    return _with_changed_nodes(fleet, [node.name], lambda _node: replace(node, offers=offers, held=held))


def _replace(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    """A device cannot be replaced while it is in use, so the claims that have it and their pods are removed."""
    node, chosen = _devices(fleet, value, path, ("attributes", "capacity"))
    ids = {identify(node.offers[number]) for number in chosen}
    free = node.without({held_device.owner for held_device in node.held if held_device.result.id in ids})
    return _with_changed_devices(fleet, free, chosen, value, path, ())


def _degrade(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    node, chosen = _devices(fleet, value, path, ("attributes", "capacity", "taint"))
    taint = value.get("taint")
    if not {"attributes", "capacity", "taint"} & set(value):
        raise Problems([Problem(path, "must have attributes, capacity or a taint", "bad-step", "add one of them")])
    if taint is not None and not _is_taint(taint):
        fix = f"the effects are {', '.join(_EFFECTS)}"
        raise Problems([Problem(f"{path}.taint", "must have a key, and one of the known effects", "wrong-type", fix)])
    return _with_changed_devices(fleet, node, chosen, value, path, None if taint is None else (taint,))


def _is_taint(value: object) -> bool:
    if not isinstance(value, dict) or value.get("effect") not in _EFFECTS:
        return False
    key = value.get("key")
    return isinstance(key, str) and not limits.label_key(key)


def _with_changed_devices(
    fleet: Fleet,
    node: Node,
    chosen: t.Collection[int],
    value: ObjectView,
    path: str,
    taints: tuple[ObjectView, ...] | None,
) -> Fleet:
    """The fleet with other values of some devices.

    `taints` are added to the existing ones. An empty tuple removes the existing ones; None keeps them.
    """
    attributes, capacity = value.get("attributes") or {}, value.get("capacity") or {}
    if not isinstance(attributes, dict) or not isinstance(capacity, dict):
        raise Problems([Problem(path, "has attributes or capacity that is not a mapping", "wrong-type", "")])
    new = {name: _typed(attribute, f"{path}.attributes.{name}") for name, attribute in attributes.items()}
    amounts = {name: _amount(amount, f"{path}.capacity.{name}") for name, amount in capacity.items()}
    offers = list(node.offers)
    for number in chosen:
        device = dict(offers[number].device)
        if new:
            device["attributes"] = {**(device.get("attributes") or {}), **new}
        for name, amount in amounts.items():
            capacities = device.get("capacity") or {}
            device["capacity"] = {**capacities, name: {**capacities.get(name, {}), "value": amount}}
        if taints is not None:
            existing = device.pop("taints", []) if taints else []
            device["taints"] = [*existing, *taints]
        offers[number] = replace(offers[number], device=device)
    by_id = {identify(offer): offer for offer in offers}
    held = tuple(
        replace(held_device, result=replace(held_device.result, offer=by_id[held_device.result.id]))
        for held_device in node.held
    )
    return _with_changed_nodes(fleet, [node.name], lambda _node: replace(node, offers=tuple(offers), held=held))


def _typed(value: object, path: str) -> ObjectView:
    """A v1 DeviceAttribute with this value. Versions are not supported: they become strings."""
    for kind, name in ((bool, "bool"), (int, "int"), (str, "string")):
        if isinstance(value, kind):
            return {name: value}
    raise Problems([Problem(path, f"{value!r} is not a string, whole number or boolean", "wrong-type", "")])


def _amount(value: object, path: str) -> str:
    fix = "give a quantity, such as 100G"
    try:
        amount = quantity.parse(str(value))
    except quantity.QuantityError as error:
        raise Problems([Problem(path, str(error), "wrong-type", fix)]) from error
    if amount < 0:
        raise Problems([Problem(path, f"{value} is less than zero", "wrong-type", fix)])
    return quantity.canonical(amount)


def _release(fleet: Fleet, value: ObjectView, path: str) -> Fleet:
    claims = value.get("claims")
    if not isinstance(claims, list) or not claims or set(value) != {"claims"}:
        raise Problems([Problem(path, "must have claims, a list, and nothing else", "bad-step", "")])
    owners = {held_device.owner for node in fleet.nodes.values() for held_device in node.held}
    missing = [str(claim) for claim in claims if not isinstance(claim, str) or claim not in owners]
    if missing:
        message = f"have no devices: {', '.join(missing)}"
        raise Problems([Problem(f"{path}.claims", message, "no-claim", "write them as namespace/name")])
    return _with_changed_nodes(fleet, list(fleet.nodes), lambda node: node.without(claims))


_APPLY: dict[str, t.Callable[[Fleet, ObjectView, str], Fleet]] = {
    "cordon": _cordon,
    "uncordon": _uncordon,
    "drain": _drain,
    "remove": _remove,
    "add": _add,
    "lose": _lose,
    "replace": _replace,
    "degrade": _degrade,
    "release": _release,
}
