# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""CPUs, as kubernetes-sigs/dra-driver-cpu (pkg/device) publishes them."""

from __future__ import annotations

from ...topology import cpuset
from ...topology.facts import NodeFacts
from .filters import number
from .knowledge import NUMA_NODE, NUMA_NODE_DRANET, PCIE_ROOT, DriverKnowledge, Kind, Published
from .offer import DeviceBuilder, Offer, Options, Vendor

_KNOWLEDGE = DriverKnowledge(
    name="dra.cpu",
    title="CPU DRA driver",
    kubernetes="1.34",
    oldest="0.1.0",
    newest="0.2.0",
    release_lines=("0.1", "0.2"),
    source="repository kubernetes-sigs/dra-driver-cpu, commit 009e907",
    kinds={
        "cpu": Kind(
            capacities={"cpus": "dra.cpu/cpu"},
            filters={
                "numa_node": (number(NUMA_NODE, since=">0.2.0"), number("numaNodeID", until="0.3.0")),
                "socket": (number("socketID"),),
                "min_cpus": (number("numCPUs", "at_least"),),
            },
        )
    },
    align={
        "numa_node": (Published(NUMA_NODE, since=">0.2.0"), Published(NUMA_NODE_DRANET)),
        "pcie_root": (Published(PCIE_ROOT, since="0.2.0", list=True),),
    },
    hints={
        "pcie_root": "dra.cpu publishes PCIe roots as a list from 0.2.0 on, with --expose-pcie-roots and the feature "
        "gate DRAListTypeAttributes; align on numa_node",
        "numa_node": "dra.cpu publishes resource.kubernetes.io/numaNode in builds after 0.2.0; with older ones CPUs "
        "can be aligned only with drivers that publish dra.net/numaNode",
    },
)


def _cpu_list(text: str | None) -> list[int]:
    bits = cpuset.from_list(text or "") or 0
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def _individual_cpus(node: str, facts: NodeFacts, driver: DriverKnowledge, reserved: list[int]) -> list[Offer]:
    """A device for each CPU, as the driver publishes them with --cpu-device-mode=individual.

    The driver numbers devices by core, with the hyperthreads of a core next to each other. A probe does not read which
    CPUs share a core, so the names here contain the CPU's number instead.
    """
    numa_of = {cpu: entry["id"] for entry in facts["numa_nodes"] for cpu in _cpu_list(entry["cpus"])}
    result = []
    for package in facts["packages"]:
        for cpu in _cpu_list(package["cpus"]):
            if cpu in reserved:
                continue
            builder = DeviceBuilder(driver)
            _put_numa_node(builder, driver, numa_of.get(cpu))
            builder.put("dra.cpu/cpuID", cpu)
            builder.put("dra.cpu/socketID", package["id"])
            unknown = builder.qualified("smtEnabled", "coreID", "coreType", "cacheL3ID")
            result.append(builder.offer(node, f"cpudev{cpu:03}", unknown))
    return sorted(result, key=lambda offer: int(offer.device["attributes"]["dra.cpu/cpuID"]["int"]))


def _put_numa_node(builder: DeviceBuilder, driver: DriverKnowledge, numa: int | None) -> None:
    """Add the NUMA node, under each attribute name that the driver's version publishes."""
    if numa is not None:
        if driver.publishes_alignment(NUMA_NODE):
            builder.put(NUMA_NODE, numa)
        builder.put("dra.cpu/numaNodeID", numa)
        builder.put(NUMA_NODE_DRANET, numa)


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    """CPUs in groups, as the driver publishes them with --cpu-device-mode=grouped, or one by one.

    The option `group_by` is numa_node (the driver's default), socket, machine or individual. The option `reserved_cpus`
    is a list of CPUs as the kernel writes it.
    """
    reserved = _cpu_list(options.get("reserved_cpus"))
    group_by = options.get("group_by") or "numa_node"
    if group_by == "individual":
        return _individual_cpus(node, facts, driver, reserved)
    socket_of = {cpu: package["id"] for package in facts["packages"] for cpu in _cpu_list(package["cpus"])}
    groups: list[tuple[str, list[int], int | None]] = []
    if group_by == "socket":
        groups = [
            (f"cpudevsocket{package['id']:03}", _cpu_list(package["cpus"]), None) for package in facts["packages"]
        ]
    elif group_by == "machine":
        groups = [("cpudevmachine", sorted(socket_of), None)]
    else:
        groups = [
            (f"cpudevnuma{entry['id']:03}", _cpu_list(entry["cpus"]), entry["id"]) for entry in facts["numa_nodes"]
        ]
    result = []
    for name, cpus, numa in groups:
        cpus = [cpu for cpu in cpus if cpu not in reserved]
        if not cpus:
            continue
        builder = DeviceBuilder(driver)
        _put_numa_node(builder, driver, numa)
        if group_by != "machine":
            builder.put("dra.cpu/socketID", socket_of.get(cpus[0]))
        builder.put("dra.cpu/numCPUs", len(cpus))
        capacity = {"dra.cpu/cpu": {"value": str(len(cpus))}}
        unknown = builder.qualified("smtEnabled")
        result.append(builder.offer(node, name, unknown, capacity=capacity, allowMultipleAllocations=True))
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
