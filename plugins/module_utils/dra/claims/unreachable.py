# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Why no node can satisfy a claim, and what could be requested instead."""

from __future__ import annotations

import re
import typing as t

from ..kube.objects import Object
from ..kube.problems import Problem
from ..scheduler import allocator
from ..vendors.knowledge import NUMA_NODE, PCIE_ROOT
from ..vendors.offer import Offer
from .claim_compiler import Compiled
from .inventory import PREFIX, Claim
from .shapes import NodeShape


def by_reason(reasons: t.Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Each reason with its nodes, those with the most nodes first."""
    nodes_by_reason: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        nodes_by_reason.setdefault(reason, []).append(node)
    return sorted(nodes_by_reason.items(), key=lambda item: (-len(item[1]), item[0]))


def shown(names: t.Sequence[str]) -> str:
    """Up to three names, and the number of further ones."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def unreachable(
    claim: Claim,
    compiled: Compiled,
    requested: Object,
    refusals: list[tuple[allocator.Refusal, list[str]]],
    shapes: t.Sequence[NodeShape],
    classes: t.Mapping[str, Object],
    engine: allocator.Engine,
) -> Problem:
    """The problem that no node can satisfy a claim. `refusals` are the reasons, each with its nodes."""
    # a node with the devices but without the alignment explains more than a node without any GPU
    order = {"absent": 2, "selector": 1}
    refusals = sorted(refusals, key=lambda item: (order.get(item[0].kind, 0), -len(item[1])))
    first = refusals[0][0]
    details = "; ".join(f"{shown(names)}: {refusal.reason}" for refusal, names in refusals[:3])
    more = f"; and {len(refusals) - 3} more reasons" if len(refusals) > 3 else ""
    path = _origin(compiled, first.path) or claim.path
    allow = f"set {PREFIX}allow_unreachable to render it anyway"
    constraint = constraint_of(requested, first.path)
    roots: dict[str, set[str]] = {}
    rule = "unreachable"
    fix = allow
    if first.kind == "constraint" and constraint.get("matchAttribute") == PCIE_ROOT:
        offered = next(shape.offers for shape in shapes if shape.nodes == refusals[0][1])
        roots = _roots(offered, requested, constraint, classes, engine)
        if len(roots) > 1 and all(roots.values()) and not set.intersection(*roots.values()):
            rule = "disjoint-roots"
            requests = " and ".join(roots)
            details = f"the PCIe roots of {requests} are disjoint on this board. {details}"
        satisfiable = [shape.nodes for shape in shapes if _with_numa(requested, classes, shape.offers, engine)]
        if satisfiable:
            count = sum(map(len, satisfiable))
            # a preference list is possible only if the devices have the attribute of every level
            preference = ", or prefer by [pcie_root, numa_node]" if roots and all(roots.values()) else ""
            fix = f"align on numa_node{preference}: {count} node(s) can satisfy that; or {allow}"
    total = sum(len(names) for _refusal, names in refusals)
    return Problem(path, f"none of {total} node(s) can satisfy this: {details}{more}", rule, fix)


def _origin(compiled: Compiled, path: str) -> str:
    """The inventory path for a path in a claim; empty if it is unknown."""
    known = path.partition(".spec.devices.")[2]
    while known and known not in compiled.origins:
        known = known[: max(known.rfind("."), known.rfind("["), 0)]
    return compiled.origins.get(known, "")


def constraint_of(requested: Object, path: str) -> Object:
    """The constraint at the end of a path; empty if the path is not that of a constraint."""
    match = re.search(r"constraints\[(\d+)\]$", path)
    entries: list[Object] = requested.get("constraints") or []
    return entries[int(match.group(1))] if match and int(match.group(1)) < len(entries) else {}


def _roots(
    offered: t.Sequence[Offer],
    requested: Object,
    constraint: Object,
    classes: t.Mapping[str, Object],
    engine: allocator.Engine,
) -> dict[str, set[str]]:
    """The PCIe roots of the devices that match each request of a constraint."""
    roots_by_request: dict[str, set[str]] = {}
    for request in requested["requests"]:
        names = constraint.get("requests") or [request["name"]]
        if not any(name.partition("/")[0] == request["name"] for name in names):
            continue
        roots = roots_by_request.setdefault(request["name"], set())
        for body in request.get("firstAvailable") or [request["exactly"]]:
            for offer in offered:
                alone = {
                    "requests": [{"name": "device", "exactly": {**body, "allocationMode": "ExactCount", "count": 1}}]
                }
                fits = allocator.allocate([{"devices": alone}], classes, [offer], engine)
                value = allocator.attribute(offer, PCIE_ROOT)
                if isinstance(fits, allocator.Allocation) and value:
                    roots.add(str(next(iter(value.values()))))
    return roots_by_request


def _with_numa(
    requested: Object, classes: t.Mapping[str, Object], offered: t.Sequence[Offer], engine: allocator.Engine
) -> bool:
    """Whether the claim could be satisfied if it were aligned on the NUMA node instead of the PCIe root."""
    constraints = [
        {**entry, "matchAttribute": NUMA_NODE} if entry.get("matchAttribute") == PCIE_ROOT else entry
        for entry in requested["constraints"]
    ]
    changed = {**requested, "constraints": constraints}
    return isinstance(allocator.allocate([{"devices": changed}], classes, offered, engine), allocator.Allocation)
