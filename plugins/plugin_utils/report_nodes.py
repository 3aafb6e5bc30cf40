# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The data of each node, and of all nodes together, for the fleet page, the tables and `site.json`."""

from __future__ import annotations

import typing as t
from collections import Counter
from dataclasses import dataclass, field

from . import report_tables as tables
from .report_claims import NO_CLAIMS, ClaimedPairs
from .report_compare import Peers
from .report_facts import SEVERITIES


@dataclass
class Node:
    """The data of one node for the fleet page and the tables."""

    host: str  # as in the inventory
    shown: str  # the name to display
    file: str
    status: str = ""
    changed: str = ""
    digest: str = ""
    bare: bool = False  # the facts have no PCI functions and no devices
    build: str = ""
    product: str = ""
    gpu_model: str = ""
    gpus: int = 0
    nics: int = 0
    nvme: int = 0
    levels: str = ""
    shape: str = ""
    findings: list[tuple[str, str, str, str]] = field(default_factory=list)  # severity, id, summary, action
    differences: list[str] = field(default_factory=list)
    peers: str = ""
    claimed: ClaimedPairs = NO_CLAIMS

    @property
    def severities(self) -> dict[str, int]:
        counts = Counter(finding[0] for finding in self.findings)
        return {severity: counts[severity] for severity in SEVERITIES}


@dataclass
class FindingGroup:
    """A finding that several nodes may have. `nodes` has each node and how often it has the finding, by host."""

    severity: str
    id: str
    summary: str
    action: str
    nodes: dict[str, tuple[Node, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """A distinct topology: its nodes, of which the first one is drawn, and the drawing (SVG; empty for none)."""

    first: Node
    nodes: list[Node]
    drawing: str


class Counts(t.TypedDict):
    """The numbers of the whole site, for the fleet page, `site.json` and the module's result."""

    nodes: int
    probed: int
    gpus: int
    nics: int
    groups: int
    shapes: int
    outliers: int
    absent: int
    findings: dict[str, int]


def cells(node: Node) -> tables.Row:
    """A row of nodes.csv."""
    return [
        node.shown,
        node.status,
        node.product,
        node.gpu_model,
        node.gpus,
        node.nics,
        node.nvme,
        node.levels,
        *(node.severities[severity] for severity in SEVERITIES),
        "yes" if node.differences else "no",
        node.shape,
        node.changed,
    ]


def counts_of(nodes: list[Node], groups: list[Peers]) -> Counts:
    """The numbers of the whole site."""
    severities = Counter(finding[0] for node in nodes for finding in node.findings)
    return {
        "nodes": len(nodes),
        "probed": sum(bool(node.digest) for node in nodes),
        "gpus": sum(node.gpus for node in nodes),
        "nics": sum(node.nics for node in nodes),
        "groups": len(groups),
        "shapes": len({node.shape for node in nodes if node.shape}),
        "outliers": sum(bool(node.differences) for node in nodes),
        "absent": sum(bool(node.status) for node in nodes),
        "findings": {severity: severities[severity] for severity in SEVERITIES},
    }


def by_finding(nodes: list[Node]) -> list[FindingGroup]:
    """The findings of all nodes by severity and identifier, each with the nodes that have it."""
    groups: dict[tuple[str, str], FindingGroup] = {}
    for node in nodes:
        for severity, ident, summary, action in node.findings:
            group = groups.setdefault((severity, ident), FindingGroup(severity, ident, summary, action))
            _node, number = group.nodes.get(node.host, (node, 0))
            group.nodes[node.host] = (node, number + 1)
    return sorted(groups.values(), key=lambda group: (SEVERITIES.index(group.severity), -len(group.nodes), group.id))
