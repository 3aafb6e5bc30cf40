# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""`Offer`, a device that a driver publishes or would publish, and helpers with which the vendors' modules build
offers."""

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
    """A device that a driver publishes, or would publish for a probed node.

    - `device` is the v1 Device, `address` the address of its PCI function (empty if it has none), and `counter_sets`
      are the v1 CounterSets from which it consumes.
    - `unknown` are the qualified names of attributes and capacities that the driver publishes, but whose values a probe
      cannot read. A selector that uses one cannot be evaluated without a cluster.
    - `assumed` are those whose values are only likely. A selector that matches such a value counts as a match; if it
      does not match, the result is unknown.
    - A `possible` device, such as a MIG partition, may or may not exist. `slices` leaves it out.
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
    """Options that determine, besides a node's facts and the driver's version, which devices a driver publishes.

    `group_by` and `reserved_cpus` are options of the CPU driver. `consumable_shares` is an option of NVIDIA's driver:
    memory, unlimited, a number as text, or empty for off. `counters` says whether the API server supports counters, and
    `shares` whether it and the scheduler also support devices that are allocated several times.
    """

    group_by: str | None
    reserved_cpus: str | None
    counters: bool
    shares: bool
    consumable_shares: str


@dataclass(frozen=True)
class Vendor:
    """A built-in driver: its tables, and how to predict what it publishes for a node.

    `offers` takes the node's name, its topology facts, the knowledge of the site's version and the options. It is None
    if the devices cannot be predicted from a probe. `check_config` returns the problems of an opaque configuration; it
    takes the parameters, their path and the knowledge.
    """

    knowledge: DriverKnowledge
    offers: t.Callable[[str, NodeFacts, DriverKnowledge, Options], list[Offer]] | None = None
    check_config: t.Callable[[Object, str, DriverKnowledge], list[Problem]] | None = None


@dataclass
class DeviceBuilder:
    """Collects the attributes of one device."""

    driver: DriverKnowledge
    attributes: dict[str, dict[str, Scalar | list[int]]] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)

    def put(self, name: str, value: Scalar | None, sure: bool = True) -> None:
        """Add an attribute unless its value is unknown, empty or too long. `name` may be unqualified, as the driver
        publishes it. If not `sure`, the value is only assumed."""
        if value is None or value == "":
            return
        if isinstance(value, str) and limits.size(value) > limits.ATTRIBUTE_VALUE_BYTES:
            return
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
        self.attributes[name] = {kind: value}
        if not sure:
            self.assumed.add(self.driver.qualified(name))

    def put_standard(self, facts: StandardAttributes, *names: str) -> None:
        """Add standard attributes by their qualified names."""
        numa_node = facts.get("numaNode")
        values = {PCIE_ROOT: facts.get("pcieRoot"), PCI_BUS_ID: facts.get("pciBusID")}
        for name in names:
            self.put(name, {**values, NUMA_NODE: numa_node, NUMA_NODE_DRANET: numa_node}[name])

    def put_numa_node(self, facts: NodeFacts, function: FunctionFacts, as_list: bool) -> None:
        """Add NUMA_NODE. If it is a list, the cluster needs the feature gate DRAListTypeAttributes."""
        numa_node = function["kubernetes"].get("numaNode")
        if numa_node is not None:
            self.attributes[NUMA_NODE] = {"ints": numa_list(facts, numa_node)} if as_list else {"int": numa_node}

    def missing(self, *names: str) -> list[str]:
        """Those of the names under which there is no attribute."""
        return [name for name in names if name not in self.attributes]

    def qualified(self, *names: str) -> frozenset[str]:
        return frozenset(self.driver.qualified(name) for name in names)

    def offer(self, node: str, name: str, unknown: frozenset[str], address: str = "", **more: object) -> Offer:
        """The device with this name in the node's pool. `more` are its fields besides the attributes."""
        device: Object = {"name": name, "attributes": self.attributes, **more}
        return Offer(
            self.driver.name, node, node, device, address=address, unknown=unknown, assumed=frozenset(self.assumed)
        )


def numa_list(facts: NodeFacts, number: int) -> list[int]:
    """A NUMA node, followed by the nearest other NUMA nodes of its socket. Nodes with an unknown socket are included.

    The list is that of k8s.io/dynamic-resource-allocation (deviceattribute, numa_linux.go).
    """
    nodes = {entry["id"]: entry for entry in facts["numa_nodes"]}
    distances = {
        int(node): distance
        for node, distance in (nodes.get(number) or {}).get("distances", {}).items()
        if int(node) != number
    }
    shortest = min(distances.values(), default=None)
    socket = nodes[number]["package"] if number in nodes else None
    near = [node for node in sorted(distances) if distances[node] == shortest]
    sockets = {node: (nodes.get(node) or {}).get("package") for node in near}
    return [number, *(node for node in near if None in (socket, sockets[node]) or sockets[node] == socket)]


def gpus_of(facts: NodeFacts, driver: DriverKnowledge) -> list[tuple[int, GpuFacts, FunctionFacts]]:
    """The driver's GPUs: number, GPU and PCI function. GPUs that are passed through to a VM (vfio-pci) are left out."""
    gpus: list[tuple[int, GpuFacts, FunctionFacts]] = []
    for gpu in facts["gpus"]:
        function = facts["functions"][gpu["address"]]
        if function["vendor_id"] in driver.vendors and gpu["driver"] != "vfio-pci":
            gpus.append((len(gpus), gpu, function))
    return gpus


def unknown_standard_attributes(function: FunctionFacts, facts: NodeFacts) -> tuple[str, ...]:
    """The standard attributes of a function whose values are unknown, because the topology was imported, not probed."""
    if facts["source"]["kind"] == "sysfs" or function["kubernetes"]:
        return ()
    return (PCIE_ROOT, PCI_BUS_ID, NUMA_NODE, NUMA_NODE_DRANET)


def possible_partitions(whole: Offer, device_type: str, count: int, unknown: frozenset[str]) -> list[Offer]:
    """Devices for up to `count` partitions of a GPU. A probe does not read whether the GPU is partitioned.

    `unknown` are further unknown attributes of the partitions.
    """
    attributes = {**whole.device["attributes"], "type": {"string": device_type}}
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
        for number in range(count)
    ]
