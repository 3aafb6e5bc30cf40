# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A short name for a node's shape, equal for nodes with the same hardware layout."""

from __future__ import annotations

import hashlib

from ..model import NumaNode, PciFunction, Topology

_Tree = dict[str, "_Tree"]  # functions by address, each with those below it
_SHAPING = ("gpu", "accelerator", "nic", "nvme", "data_direct", "nvlink_management")


class _Text(str):
    """A string whose repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _nodes(nodes: list[NumaNode]) -> list[tuple[str | None, _Text]]:
    """CPUs and sorted distances of each NUMA node. Distances are formatted here, because they are as many as nodes
    squared."""
    shape = []
    order: list[str] = []
    starts: list[str] = []
    for node in nodes:
        if order != sorted(node.distances):
            order = sorted(node.distances)
            starts = [f"({key!r}, " for key in order]
        pairs = [f"{start}{node.distances[key]!r})" for start, key in zip(starts, order)]
        shape.append((node.cpus, _Text(f"[{', '.join(pairs)}]")))
    return shape


def fingerprint(topology: Topology) -> str:
    """Sixteen hex digits of a SHA-256 over NUMA nodes and the PCI tree above GPUs, NICs and NVMe.

    Parts and their connections count: identifiers, device and function number on the bus, NUMA node, and the maximum
    link speed and width. Serial numbers, addresses, drivers, VFs and link state do not count. Domain and bus numbers do
    not count either, because the firmware reassigns them when a card is added elsewhere.
    """
    functions = topology.functions
    # keyed by the whole path, so that contradictory links result in two branches and not in a cycle
    roots: dict[str | None, _Tree] = {}
    for function in functions.values():
        if function.kind in _SHAPING and not function.physfn:
            branch = roots.setdefault(function.root_complex, {})
            for step in function.bridges:
                branch = branch.setdefault(step, {})
            branch.setdefault(function.address, {})

    def describe(address: str, branch: _Tree) -> str:
        function = functions.get(address) or PciFunction(address=address)
        link = function.link
        properties = [
            address.rpartition(":")[2],
            function.class_code,
            function.vendor_id,
            function.device_id,
            function.numa_node,
            function.switch_label,
            link.max_speed_gts if link else None,
            link.max_width if link else None,
        ]
        return f"{properties}({below(branch)})"

    def below(branch: _Tree) -> str:
        return ",".join(sorted([describe(address, children) for address, children in branch.items()]))

    shape = [
        _nodes(topology.numa_nodes),
        [package.cpus for package in topology.packages],
        sorted(map(below, roots.values())),
    ]
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
