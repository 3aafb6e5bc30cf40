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
from .report_compare import PeerGroup
from .report_facts import SEVERITIES


class NodeFinding(t.NamedTuple):
    """A finding of a node, without its evidence."""

    severity: str
    id: str
    summary: str
    action: str


@dataclass
class Node:
    """The data of one node for the fleet page and the tables."""

    host: str  # as in the inventory
    shown: str  # the name to display
    file: str
    status: str = ""
    changed: str = ""
    facts_digest: str = ""  # SHA-256 of the stored facts; empty if the node was never probed
    without_devices: bool = False  # the facts have no PCI functions and no devices
    hardware: str = ""  # see `report_compare.hardware_of`
    product: str = ""
    gpu_model: str = ""
    gpus: int = 0
    nics: int = 0
    nvme: int = 0
    group_levels: str = ""  # the number of GPU-NIC groups by affinity level, such as `8 × PIX`
    fingerprint: str = ""  # of the topology
    findings: list[NodeFinding] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    peer_group: str = ""  # the name of its group
    claimed: ClaimedPairs = NO_CLAIMS

    @property
    def severities(self) -> dict[str, int]:
        """The number of findings by severity."""
        counts = Counter(finding.severity for finding in self.findings)
        return {severity: counts[severity] for severity in SEVERITIES}


@dataclass
class FindingVariant:
    """Nodes whose findings of one id have the same texts. `summaries` has how often a node has each summary."""

    nodes: list[Node]
    summaries: dict[str, int]
    actions: list[str]


@dataclass
class FindingGroup:
    """The findings of all nodes with one severity and id. Their summaries may differ, and so may their actions."""

    severity: str
    id: str
    by_host: dict[str, tuple[Node, list[NodeFinding]]] = field(default_factory=dict)

    @property
    def summaries(self) -> list[str]:
        """The distinct summaries, those of most nodes first."""
        counts = Counter(
            text for _node, findings in self.by_host.values() for text in {finding.summary for finding in findings}
        )
        return sorted(counts, key=lambda text: (-counts[text], text))

    @property
    def actions(self) -> list[str]:
        """The distinct actions; findings may have none."""
        return sorted(
            {finding.action for _node, findings in self.by_host.values() for finding in findings if finding.action}
        )

    @property
    def variants(self) -> list[FindingVariant]:
        """The nodes by the texts of their findings, the texts of most nodes first. Each node is in one of them."""
        variants: dict[tuple[NodeFinding, ...], FindingVariant] = {}
        for node, findings in self.by_host.values():
            summaries = dict(sorted(Counter(finding.summary for finding in findings).items()))
            actions = sorted({finding.action for finding in findings if finding.action})
            key = tuple(sorted(findings))
            variants.setdefault(key, FindingVariant([], summaries, actions)).nodes.append(node)
        return sorted(variants.values(), key=lambda variant: -len(variant.nodes))


@dataclass(frozen=True)
class DistinctTopology:
    """A distinct topology: its nodes, of which the first one is drawn, and the drawing (SVG; empty for none)."""

    first: Node
    nodes: list[Node]
    drawing: str


class Counts(t.TypedDict):
    """The numbers of the whole site, for the fleet page, `site.json` and the module's result.

    `probed` are nodes with facts, `groups` groups of peers, `shapes` distinct topologies, and `absent` nodes that the
    latest run could not probe.
    """

    nodes: int
    probed: int
    gpus: int
    nics: int
    groups: int
    shapes: int
    outliers: int
    absent: int
    findings: dict[str, int]


def node_row(node: Node) -> tables.Row:
    """A row of nodes.csv."""
    return [
        node.shown,
        node.status,
        node.product,
        node.gpu_model,
        node.gpus,
        node.nics,
        node.nvme,
        node.group_levels,
        *(node.severities[severity] for severity in SEVERITIES),
        "yes" if node.differences else "no",
        node.fingerprint,
        node.changed,
    ]


def counts_of(nodes: list[Node], peer_groups: list[PeerGroup]) -> Counts:
    """The numbers of the whole site."""
    severities = Counter(finding.severity for node in nodes for finding in node.findings)
    return {
        "nodes": len(nodes),
        "probed": sum(bool(node.facts_digest) for node in nodes),
        "gpus": sum(node.gpus for node in nodes),
        "nics": sum(node.nics for node in nodes),
        "groups": len(peer_groups),
        "shapes": len({node.fingerprint for node in nodes if node.fingerprint}),
        "outliers": sum(bool(node.differences) for node in nodes),
        "absent": sum(bool(node.status) for node in nodes),
        "findings": {severity: severities[severity] for severity in SEVERITIES},
    }


def finding_groups(nodes: list[Node]) -> list[FindingGroup]:
    """The findings of all nodes by severity and id, the most severe and most frequent first."""
    groups: dict[tuple[str, str], FindingGroup] = {}
    for node in nodes:
        for finding in node.findings:
            key = (finding.severity, finding.id)
            group = groups.setdefault(key, FindingGroup(*key))
            group.by_host.setdefault(node.host, (node, []))[1].append(finding)
    return sorted(groups.values(), key=lambda group: (SEVERITIES.index(group.severity), -len(group.by_host), group.id))
