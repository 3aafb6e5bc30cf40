# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The devices of claims: what their drivers publish, and what the kernel reports for the same functions.

These are two independent readings: `scheduler.published` reads ResourceSlices, `Machine` a node's topology facts.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...topology import cpuset
from ...topology.affinity import RANK, Proximity
from ...topology.facts import FunctionFacts
from ...topology.model import Link, Nic, NumaNode, PciFunction, Topology
from ...topology.publish_device import stated_numa_node
from ..kube.objects import ObjectView
from ..scheduler.published import Published, value_of
from ..scheduler.search_devices import attribute
from ..vendors.drivers import DRIVERS
from ..vendors.knowledge import LANEWISE, NUMA_NODE, NUMA_NODE_DRANET, PCI_BUS_ID, PCIE_ROOT

Facts = ObjectView
#: The sections of facts that the comparison needs.
SECTIONS = ("functions", "gpus", "nics", "numa_nodes")

GPU, NIC, CPU, OTHER = "gpu", "nic", "cpu", "other"

#: Attributes that the kernel reports too, and their names among a function's `kubernetes` facts.
KERNEL = {
    PCIE_ROOT: "pcieRoot",
    PCI_BUS_ID: "pciBusID",
    NUMA_NODE: "numaNode",
    NUMA_NODE_DRANET: "numaNode",
    "gpu.amd.com/numaNode": "numaNode",
}
#: Attributes of a device's location. The kernel reports none for the CPU driver, whose devices are not PCI functions.
LOCALITY = (*KERNEL, "dra.cpu/numaNodeID", "dra.cpu/socketID")


def kind_of(driver: str, address: str | None, machine: Machine | None) -> str:
    """Whether a device is a GPU (or another accelerator), a NIC, CPUs or something else."""
    if machine and address in machine.gpus:
        return GPU
    if machine and address in machine.nics:
        return NIC
    kinds = DRIVERS[driver].kinds if driver in DRIVERS else {}
    return next((kind for kind in (GPU, CPU) if kind in kinds), NIC if kinds else OTHER)


class Machine:
    """A node's topology facts, as `lanewise.dra.topology_info` returns them.

    A probe sees little of a NIC that is in a pod. Its rate and link layer are then taken from `published`, the devices
    of the node. Raises ValueError if the facts lack sections that alignment needs.
    """

    def __init__(self, facts: Facts, published: t.Iterable[Published] = ()) -> None:
        missing = [name for name in SECTIONS if not isinstance(facts.get(name), (dict, list))]
        if missing:
            raise ValueError(f"the topology facts lack {', '.join(missing)}: probe all subsets")
        self.facts = facts
        #: Whether the facts come from the kernel. An imported file has no attributes.
        self.probed = (facts.get("source") or {}).get("kind", "sysfs") == "sysfs"
        nested = ("acs", "sriov", "vpd", "link")
        names = [field.name for field in dataclasses.fields(PciFunction) if field.name not in nested]
        self.functions: dict[str, PciFunction] = {}
        for address, fact in facts["functions"].items():
            link = Link(**fact["link"]) if fact.get("link") else None
            fields = {name: fact[name] for name in names if name in fact}
            self.functions[address] = PciFunction(**{**fields, "link": link, "address": address})
        self.gpus: dict[str, Facts] = {gpu["address"]: gpu for gpu in facts["gpus"]}
        self.nics: dict[str, Facts] = {nic["address"]: nic for nic in facts["nics"]}
        for device in published:
            nic = self.nics.get(device.address or "")
            if nic and nic.get("elsewhere"):
                self.nics[nic["address"]] = _completed(nic, device)
        self.numa = {int(node["id"]): node for node in facts["numa_nodes"]}
        nics = [Nic(address, data_direct=nic.get("data_direct")) for address, nic in self.nics.items()]
        numa = [NumaNode(number, distances=node.get("distances") or {}) for number, node in self.numa.items()]
        self._proximity = Proximity(Topology(functions=self.functions, nics=nics, numa_nodes=numa))

    def level(self, gpu: str | None, nic: str | None) -> tuple[str, str | None]:
        """The affinity of a GPU and a NIC, and the NIC's data-direct function if the affinity is that of this function.

        The affinity is `UNKNOWN` if the machine does not report it, or has no such GPU or NIC.
        """
        if gpu not in self.functions or nic not in self.functions:
            return "UNKNOWN", None
        level, function = self._proximity.gpu_to_nic(gpu, nic)
        return level, function if function != nic else None

    def nic_function(self, gpu: str, nic: str) -> PciFunction:
        """The function through which a NIC reaches a GPU: the NIC itself or its data-direct function."""
        return self.functions[self._proximity.gpu_to_nic(gpu, nic)[1]]

    def alike(self, first: str | None, second: str | None) -> bool:
        """Whether two NICs differ only in location: same rate, link layer and RDMA, and both PFs or both VFs."""
        first_nic, second_nic = self.nics.get(first or ""), self.nics.get(second or "")
        if first_nic is None or second_nic is None:
            return False
        same = all(first_nic.get(key) == second_nic.get(key) for key in ("speed_mbps", "link_layer"))
        return (
            same
            and bool(first_nic.get("physfn")) == bool(second_nic.get("physfn"))
            and has_rdma(first_nic) == has_rdma(second_nic)
        )

    def kernel_value(self, published: Published, name: str) -> t.Any:
        """The kernel's value of an attribute; None if the kernel has none, or if the facts are not from the kernel.

        If the site sets the NUMA node, lanewise.dev publishes the site's value, which then replaces the kernel's.
        """
        key = KERNEL.get(name)
        function = self.functions.get(published.address or "")
        if key is None or function is None or not self.probed:
            return None
        value = function.kubernetes.get(key)
        if key == "numaNode" and published.driver == LANEWISE:
            parent = self.functions.get(function.physfn or "")
            number = value if isinstance(value, int) else None
            function_facts, parent_facts = (
                t.cast(FunctionFacts, vars(pci_function) if pci_function else {}) for pci_function in (function, parent)
            )
            return stated_numa_node(function_facts, parent_facts, number)
        return value

    def lacks(self, published: Published) -> bool:
        """Whether the probe did not find the PCI function of a device."""
        return bool(published.address) and self.probed and published.address not in self.functions

    def numa_of(self, address: str | None) -> int | None:
        """The NUMA node of a function; None if the machine does not report it."""
        function = self.functions.get(address or "")
        return function.numa_node if function else None

    def nodes_of_cpus(self, cpus: str) -> list[int] | None:
        """The NUMA nodes of CPUs in the kernel's list format; None if they are unknown."""
        bits = cpuset.from_list(cpus)
        if not bits:
            return None
        nodes, remaining = [], bits
        for number, node in sorted(self.numa.items()):
            node_cpus = cpuset.from_list(node.get("cpus") or "") or 0
            if node_cpus & bits:
                nodes.append(number)
            remaining &= ~node_cpus
        return None if remaining else nodes


def has_rdma(nic: Facts) -> bool:
    """Whether a NIC has an RDMA device, here or in a pod."""
    return bool(nic.get("rdma_devices")) or "rdma_device" in nic.get("elsewhere", ())


def _completed(nic: Facts, published: Published) -> Facts:
    """The facts of a NIC whose interface or RDMA device is in a pod, completed by what its driver publishes."""
    from_slices = {
        key: value_of(attribute(published.offer, f"{published.driver}/{name}"))
        for key, name in (("speed_mbps", "linkSpeedMbps"), ("link_layer", "linkLayer"))
    }
    missing = {key: value for key, value in from_slices.items() if nic.get(key) is None and value is not None}
    return {**nic, **missing}


def nearer(level: str, than: str) -> bool:
    """Whether a level is nearer than another level; an unknown level is neither nearer nor farther."""
    return "UNKNOWN" not in (level, than) and RANK[level] < RANK[than]
