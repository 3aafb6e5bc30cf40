# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""One short name for a node's shape, equal for nodes that are built alike."""

from __future__ import annotations

import hashlib

from .model import PciFunction, Topology

_SHAPING = ("gpu", "accelerator", "nic", "nvme", "data_direct", "nvlink_management")


def fingerprint(topology: Topology) -> str:
    """Sixteen hex digits of a SHA-256 over NUMA nodes and the PCI tree above GPUs, NICs and NVMe.

    What the parts are and how they hang together counts: identifiers, device and function number on the bus, NUMA
    node, the widest link they offer. Serial numbers, addresses, drivers, VFs and link state do not, nor do domain and
    bus numbers, which the firmware deals out anew when a card is added elsewhere.
    """
    functions = topology.functions
    # by the whole path, so that links that contradict each other make two branches and not a circle
    children: dict[tuple[str | None, ...], set[str]] = {}
    for function in functions.values():
        if function.kind not in _SHAPING or function.physfn:
            continue
        path: tuple[str | None, ...] = (function.root_complex,)
        for step in [*function.bridges, function.address]:
            children.setdefault(path, set()).add(step)
            path += (step,)

    def describe(path: tuple[str | None, ...]) -> str:
        address = path[-1] or ""
        function = functions.get(address) or PciFunction(address=address)
        link = function.link
        own = [
            address.rpartition(":")[2],
            function.class_code,
            function.vendor_id,
            function.device_id,
            function.numa_node,
            function.switch_label,
            link.max_speed_gts if link else None,
            link.max_width if link else None,
        ]
        return f"{own}({below(path)})"

    def below(path: tuple[str | None, ...]) -> str:
        return ",".join(sorted(describe((*path, address)) for address in children.get(path, ())))

    shape = [
        [(node.cpus, sorted(node.distances.items())) for node in topology.numa_nodes],
        [package.cpus for package in topology.packages],
        sorted(below(path) for path in children if len(path) == 1),
    ]
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
