# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A device that a driver would publish for a probed node, and the helpers with which the vendors' modules build it."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ...topology.facts import FunctionFacts, GpuFacts, NodeFacts
from ...topology.kubernetes import StandardAttributes
from ..kube import limits
from ..kube.objects import Object, Scalar
from ..kube.problems import Problem
from .knowledge import NUMA_NODE, NUMA_NODE_DRANET, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge


@dataclass(frozen=True)
class Offer:
    """A device that a driver would publish.

    `device` is a v1 Device, `address` the PCI function behind it where there is one. `counter_sets` are the v1
    CounterSets that it consumes from. `unknown` are qualified attributes and capacities that the driver publishes but a
    probe cannot see: a selector that uses one cannot be evaluated without a cluster. `assumed` are those with a likely
    value: a match counts as a match, everything else as unknown. A `possible` device, such as a MIG partition, may or
    may not exist: slices leave it out.
    """

    driver: str
    pool: str
    node: str
    device: Object
    address: str = ""
    counter_sets: tuple[Object, ...] = ()
    unknown: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()
    possible: bool = False


class Options(t.TypedDict):
    """Options that determine, with facts and version, which devices a driver publishes.

    `group_by` and `reserved_cpus` are options of the CPU driver; `counters` says whether the server keeps counters,
    `shares` whether server and scheduler also support devices that are allocated several times.
    `consumable_shares` (memory, unlimited or a number as text; empty: off) is one of NVIDIA's.
    """

    group_by: str | None
    reserved_cpus: str | None
    counters: bool
    shares: bool
    consumable_shares: str


@dataclass(frozen=True)
class Vendor:
    """A built-in driver: what it publishes in general, and what it would publish for a node.

    `offers` takes the node's name, its topology facts, the knowledge of the site's version and the options. It is None
    if a probe cannot predict what the driver publishes.
    """

    knowledge: DriverKnowledge
    offers: t.Callable[[str, NodeFacts, DriverKnowledge, Options], list[Offer]] | None = None
    #: Checks the parameters of an opaque configuration; takes the parameters, their path and the driver's knowledge.
    refuses: t.Callable[[Object, str, DriverKnowledge], list[Problem]] | None = None


@dataclass
class DeviceBuilder:
    """Collects the attributes of one device."""

    known: DriverKnowledge
    attributes: dict[str, dict[str, Scalar | list[int]]] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)

    def put(self, name: str, value: Scalar | None, sure: bool = True) -> None:
        """Add an attribute unless its value is unknown, empty or too long; `name` is as the driver writes it."""
        if value is None or value == "":
            return
        if isinstance(value, str) and limits.size(value) > limits.ATTRIBUTE_VALUE_BYTES:
            return
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
        self.attributes[name] = {kind: value}
        if not sure:
            self.assumed.add(self.known.qualified(name))

    def standard(self, facts: StandardAttributes, *names: str) -> None:
        """Add the standard attributes that this version of the driver has."""
        numa_node = facts.get("numaNode")
        known = {PCIE_ROOT: facts.get("pcieRoot"), PCI_BUS_ID: facts.get("pciBusID")}
        for name in names:
            self.put(name, {**known, NUMA_NODE: numa_node, NUMA_NODE_DRANET: numa_node}[name])

    def numa(self, facts: NodeFacts, function: FunctionFacts, as_list: bool) -> None:
        """Add the standard NUMA node. As a list it needs the cluster's gate DRAListTypeAttributes."""
        numa_node = function["kubernetes"].get("numaNode")
        if numa_node is not None:
            self.attributes[NUMA_NODE] = {"ints": numa_list(facts, numa_node)} if as_list else {"int": numa_node}

    def unknown(self, *names: str) -> frozenset[str]:
        return frozenset(self.known.qualified(name) for name in names)

    def offer(self, node: str, name: str, unknown: frozenset[str], address: str = "", **more: object) -> Offer:
        """The device of this name in the node's pool; `more` are fields of it beside its attributes."""
        device: Object = {"name": name, "attributes": self.attributes, **more}
        return Offer(
            self.known.name, node, node, device, address=address, unknown=unknown, assumed=frozenset(self.assumed)
        )


def numa_list(facts: NodeFacts, number: int) -> list[int]:
    """A NUMA node and those nearest to it in its socket, as k8s.io/dynamic-resource-allocation (deviceattribute,
    numa_linux.go) lists them. Nodes with an unknown socket are included."""
    nodes = {entry["id"]: entry for entry in facts["numa_nodes"]}
    distances = {
        int(node): far for node, far in (nodes.get(number) or {}).get("distances", {}).items() if int(node) != number
    }
    least = min(distances.values(), default=None)
    mine = nodes[number]["package"] if number in nodes else None
    near = [node for node in sorted(distances) if distances[node] == least]
    sockets = {node: (nodes.get(node) or {}).get("package") for node in near}
    return [number, *(node for node in near if None in (mine, sockets[node]) or sockets[node] == mine)]


def gpus_of(facts: NodeFacts, known: DriverKnowledge) -> list[tuple[int, GpuFacts, FunctionFacts]]:
    """The driver's GPUs and their functions, numbered; GPUs that are passed through to a guest are left out."""
    found: list[tuple[int, GpuFacts, FunctionFacts]] = []
    for gpu in facts["gpus"]:
        function = facts["functions"][gpu["address"]]
        if function["vendor_id"] in known.vendors and gpu["driver"] != "vfio-pci":
            found.append((len(found), gpu, function))
    return found


def unpublished(function: FunctionFacts, facts: NodeFacts) -> tuple[str, ...]:
    """The standard attributes that are unknown because the topology was imported."""
    if facts["source"]["kind"] == "sysfs" or function["kubernetes"]:
        return ()
    return (PCIE_ROOT, PCI_BUS_ID, NUMA_NODE, NUMA_NODE_DRANET)


def partitions(whole: Offer, known: DriverKnowledge, type_: str, most: int, unknown: frozenset[str]) -> list[Offer]:
    """Partitions that a GPU may be divided into; the probe does not see whether it is divided."""
    attributes = {**whole.device["attributes"], "type": {"string": type_}}
    return [
        Offer(
            whole.driver,
            whole.pool,
            whole.node,
            {"name": f"{whole.device['name']}-part-{number}", "attributes": attributes},
            address=whole.address,
            unknown=whole.unknown | unknown,
            assumed=whole.assumed,
            possible=True,
        )
        for number in range(most)
    ]
