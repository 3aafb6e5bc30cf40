# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Every device of a fleet with its state, in a form that stays small for thousands of nodes."""

from __future__ import annotations

import typing as t

from ..alignment.devices import kind_of
from ..holds import hold
from ..kube.objects import ObjectView
from ..scheduler.search_devices import identify
from ..vendors.offer import Offer
from .fleet import Fleet, Node
from .stranded import Stranded

#: The letter of each state. A device that is used and also held or degraded counts as used. A held device that has
#: other taints too counts as held.
STATES = {
    "u": "used",
    "h": "held",
    "d": "degraded",
    "s": "stranded",
    "f": "free",
    "x": "unknown",
}


def fleet_map(fleet: Fleet, stranded_devices: t.Sequence[Stranded], labels: t.Sequence[str] = ()) -> dict[str, t.Any]:
    """The devices of all nodes, each with its state.

    `shapes` are lists of devices, each with its `driver/device` and kind (gpu, nic, cpu, other), that nodes have in
    common. Each entry of `nodes` has `node`, `shape` (the position in `shapes`) and `states`, a letter of STATES for
    each device of the shape. `closed` is why the node takes no pod without tolerations. `unclear` maps drivers whose
    devices on the node are unknown to the reason. `labels` has the values of the requested `labels`.
    """
    stranded: dict[str, dict[str, bool]] = {}
    for entry in stranded_devices:
        stranded.setdefault(entry.node, {})[entry.device] = entry.certain
    shapes: dict[tuple[tuple[str, str], ...], int] = {}
    nodes = []
    for node in fleet.nodes.values():
        offers = [offer for offer in node.offers if not offer.possible]
        shape = tuple((f"{offer.driver}/{offer.device['name']}", kind_of(offer.driver, None, None)) for offer in offers)
        owners = node.owners()
        states = "".join(_state(offer, identify(offer) in owners, stranded.get(node.name, {})) for offer in offers)
        nodes.append(
            {
                "node": node.name,
                "shape": shapes.setdefault(shape, len(shapes)),
                "states": states,
                "closed": _closed(node),
                "unclear": dict(node.unclear),
                "labels": {name: node.labels[name] for name in labels if name in node.labels},
            }
        )
    return {
        "states": STATES,
        "shapes": [[{"device": name, "kind": kind} for name, kind in shape] for shape in shapes],
        "nodes": nodes,
    }


def _state(offer: Offer, used: bool, stranded: t.Mapping[str, bool]) -> str:
    if used:
        return "u"
    taints: t.Sequence[ObjectView] = offer.device.get("taints") or ()
    if any(taint.get("key") == hold.KEY for taint in taints):
        return "h"
    if taints:
        return "d"
    certain = stranded.get("/".join(identify(offer)))
    return "f" if certain is None else "s" if certain else "x"


def _closed(node: Node) -> str:
    """Why the node takes no pod without tolerations; empty if it takes such pods."""
    if node.cordoned:
        return "cordoned"
    keys = sorted(str(taint.get("key")) for taint in node.taints if taint.get("effect") in ("NoSchedule", "NoExecute"))
    return f"tainted {', '.join(keys)}" if keys else ""


def counts(map_of_fleet: t.Mapping[str, t.Any]) -> dict[str, int]:
    """How many devices of a fleet map are in each state, by the name of the state."""
    letters = "".join(node["states"] for node in map_of_fleet["nodes"])
    return {state: letters.count(letter) for letter, state in STATES.items()}
