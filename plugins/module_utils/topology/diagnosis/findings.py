# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What an operator should know about a node before GPUs and NICs are paired on it.

Every rule reads the complete topology and yields findings with the values on which they are based. A rule yields
nothing if it lacks facts because they could not be read.
"""

from __future__ import annotations

import typing as t

from .. import cpuset, ids
from ..affinity import RANK, Proximity, fabric_nics
from ..model import Acs, Finding, Topology
from .link_findings import ACCELERATORS, links, ports

_REPORTED = (*ACCELERATORS, "nic", "nvme", "data_direct")
_SEVERITIES = ("error", "warning", "info")


class _Node:
    """The input of the rules: the topology, and the functions that findings are about (for a VF, this is its PF)."""

    def __init__(self, topology: Topology, proximity: Proximity) -> None:
        self.topology = topology
        self.proximity = proximity
        self.devices = [
            function
            for function in topology.functions.values()
            if function.kind in _REPORTED and function.physfn is None
        ]


def find(topology: Topology, proximity: Proximity) -> list[Finding]:
    """All findings, the most severe first, in a stable order."""
    node = _Node(topology, proximity)
    findings = [finding for rule in _RULES for finding in rule(node)]
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))


def _as_root(topology: Topology) -> str:
    """The action for reading what only root can read. Reading a recorded tree as root would not help."""
    return "Run the probe as root (become)" if topology.source.path == "/" else "Record the machine again as root"


def _names(addresses: list[str]) -> str:
    return ", ".join(addresses[:3]) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")


def _unreadable(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    source = topology.source
    if source.unreadable_count:
        yield Finding(
            id="unreadable",
            severity="warning",
            summary=f"{source.unreadable_count} file(s) could not be read; their content is unknown",
            action=f"{_as_root(topology)}, and check the kernel log for these devices."
            if source.path == "/"
            else f"{_as_root(topology)}: files that the recording lacks are unknown here.",
            evidence=source.unreadable[:20],
        )
    if source.config_space is False and topology.gpus and not topology.system.virtual:
        yield Finding(
            id="config-space-restricted",
            severity="info",
            summary="PCI configuration space was only partly readable, so ACS is unknown",
            action=f"{_as_root(topology)}.",
        )


def _nothing(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    if topology.functions:
        return
    yield Finding(
        id="no-pci-functions",
        severity="info",
        summary="No PCI function was found, so nothing could be checked",
        action="On a machine with GPUs or NICs, check that /sys/bus/pci exists: containers and recordings may lack it.",
        evidence=[f"no functions in {topology.source.path}"],
    )


def _gpus_without_near_nic(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    fabric = node.proximity.neighbours(nic.address for nic in fabric_nics(topology.nics))
    grouped = {address for group in topology.groups for address in group.gpus}
    # fabric NICs only: a management port nearby does not help
    nearest = {
        gpu.address: node.proximity.nearest(gpu.address, fabric) for gpu in topology.gpus if gpu.address not in grouped
    }
    far = [gpu for gpu in topology.gpus if gpu.address in nearest and nearest[gpu.address].devices]
    unknown = [gpu for gpu in topology.gpus if gpu.address in nearest and not nearest[gpu.address].devices]
    hidden = bool(node.proximity.undecided)
    across = {
        address
        for group in topology.groups
        if RANK[group.level] > RANK["PHB"]
        for address in group.gpus
        if topology.functions[address].root_complex  # unknown in an NCCL file
    }
    if far:
        yield Finding(
            id="gpu-without-near-nic",
            severity="warning",
            summary=f"{len(far)} GPU(s) have no fabric NIC of their own: the nearest is on another NUMA node or "
            "serves nearer GPUs",
            action="Check whether a NIC is missing. Move one to the NUMA node of these GPUs, or keep network-heavy "
            "work off them.",
            devices=[gpu.address for gpu in far],
            evidence=[
                f"{gpu.address} on NUMA node {gpu.numa_node}: nearest fabric NIC is {nearest[gpu.address].level} "
                f"({_names(nearest[gpu.address].devices)})"
                for gpu in far
            ],
        )
    if across:
        yield Finding(
            id="gpu-nic-through-cpu",
            severity="info",
            summary=f"{len(across)} GPU(s) share a NUMA node, but no PCIe root, with their nearest NIC",
            action="GPUDirect traffic crosses the CPU here. Align claims on the NUMA node, not on the PCIe root.",
            devices=sorted(across),
            evidence=[f"{group.common}: {group.level}" for group in topology.groups if group.level == "NODE"],
        )
    if unknown and fabric and topology.source.kind == "sysfs":
        yield Finding(
            id="gpu-nic-locality-unknown",
            severity="warning",
            summary=f"The machine does not say which NIC is near {len(unknown)} GPU(s)",
            action=f"{_as_root(topology)}: the VPD of NICs and data-direct functions pairs them."
            if hidden
            else "State the locality in the inventory (topology_locality_overrides) if the provider documents it.",
            devices=[gpu.address for gpu in unknown],
            evidence=[f"{gpu.address}: NUMA node {gpu.numa_node}" for gpu in unknown[:8]],
        )


def _asymmetry(node: _Node) -> t.Iterator[Finding]:
    """Groups with unequal numbers of GPUs or NICs, and NUMA nodes with unequal numbers of GPUs."""
    topology = node.topology
    # NICs on a rail: one for storage beside them is not an asymmetry
    on_rail = {nic.address for nic in topology.nics if nic.rail is not None}
    counts = [
        (group.common or "?", len(group.gpus), len(on_rail.intersection(group.nics))) for group in topology.groups
    ]
    if len({count[1:] for count in counts}) > 1:
        yield Finding(
            id="asymmetric-groups",
            severity="warning",
            summary="GPU-NIC groups differ in size, so that some GPUs have less network than others",
            action="Check whether a card is missing or sits in the wrong slot.",
            devices=[address for group in topology.groups for address in group.gpus],
            evidence=[f"{common}: {gpus} GPU(s), {nics} NIC(s)" for common, gpus, nics in counts],
        )
    nodes: dict[int, int] = {}
    for gpu in topology.gpus:
        if gpu.numa_node is not None:
            nodes[gpu.numa_node] = nodes.get(gpu.numa_node, 0) + 1
    if len(set(nodes.values())) > 1:
        yield Finding(
            id="asymmetric-gpus",
            severity="info",
            summary="NUMA nodes have different numbers of GPUs",
            action="Check whether a GPU is missing.",
            devices=[gpu.address for gpu in topology.gpus],
            evidence=[f"NUMA node {number}: {count} GPU(s)" for number, count in sorted(nodes.items())],
        )


def _numa(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    functions = node.devices
    unknown = [function.address for function in functions if function.numa_node is None]
    if unknown:
        yield Finding(
            id="numa-unknown",
            severity="info" if len(topology.numa_nodes) < 2 else "warning",
            summary=f"{len(unknown)} of {len(functions)} device(s) have no NUMA node",
            action="Enable NUMA affinity in firmware (_PXM) or the hypervisor, or state it in the inventory "
            "(topology_locality_overrides).",
            devices=unknown,
            evidence=[f"{len(topology.numa_nodes)} NUMA node(s) on the machine"],
        )
    conflicts = list(_numa_conflicts(node))
    if conflicts:
        yield Finding(
            id="numa-conflict",
            severity="warning",
            summary="The machine reports contradictory NUMA localities",
            action="Update the firmware. If that does not help, state the correct values in the inventory "
            "(topology_locality_overrides).",
            devices=sorted({address for address, text in conflicts}),
            evidence=sorted({text for address, text in conflicts}),
        )


def _numa_conflicts(node: _Node) -> t.Iterator[tuple[str, str]]:
    """Functions for which the kernel reports a NUMA node that contradicts other facts; each with the contradiction."""
    sets = {numa_node.id: cpuset.from_list(numa_node.cpus or "") or 0 for numa_node in node.topology.numa_nodes}
    by_root: dict[str, dict[int, str]] = {}
    for function in node.devices:
        local = cpuset.from_list(function.local_cpus or "") or 0
        reported = function.kubernetes.get("numaNode")
        cpus = sets.get(reported) if reported is not None else None
        if local and cpus and not local & cpus:
            yield function.address, f"{function.address}: NUMA node {reported}, but CPUs {function.local_cpus}"
        if reported is not None and sets and reported not in sets:
            yield function.address, f"{function.address}: NUMA node {reported} does not exist"
        if function.root_complex and function.numa_node is not None and function.numa_source != "override":
            by_root.setdefault(function.root_complex, {}).setdefault(function.numa_node, function.address)
    for root, members in by_root.items():
        if len(members) > 1:
            text = ", ".join(f"{address} on node {number}" for number, address in sorted(members.items()))
            for address in members.values():
                yield address, f"{root}: {text}"


def _iommu(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    system = topology.system
    if system.virtual or system.architecture != "x86_64" or not topology.gpus:
        return
    translated = [
        function
        for function in node.devices
        if function.kind in ("gpu", "nic") and (function.iommu_group_type or "").startswith("DMA")
    ]
    if not translated:
        return
    yield Finding(
        id="iommu-translation",
        severity="warning",
        summary="The IOMMU translates the DMA of GPUs or NICs, which slows or breaks GPUDirect",
        action="Boot with iommu=pt (and intel_iommu=on if VFs are passed to virtual machines).",
        devices=[function.address for function in translated],
        evidence=[
            f"{function.address}: IOMMU group {function.iommu_group} type {function.iommu_group_type}"
            for function in translated[:8]
        ]
        + [f"kernel arguments: {' '.join(system.iommu_arguments) or 'none about the IOMMU'}"],
    )


class _TurningPort(t.NamedTuple):
    """The port directly below the meeting point of a GPU and a NIC, on one side. This port decides whether a request
    turns there; ports further down do not matter."""

    gpu: str
    nic: str
    side: str  # gpu, nic
    data_direct: bool  # whether the NIC's side is a data-direct function
    port: str
    acs: Acs


def _turning_ports(node: _Node) -> t.Iterator[_TurningPort]:
    functions = node.topology.functions
    for gpu in node.topology.gpus:
        if RANK[gpu.nearest_nics.level] > RANK["PXB"]:
            continue
        for nic in gpu.nearest_nics.devices:
            end = gpu.nearest_nics.via.get(nic, nic)
            common = node.proximity.common(gpu.address, nic)
            for side, address in (("gpu", gpu.address), ("nic", end)):
                bridges = functions[address].bridges
                for port in bridges[bridges.index(common) + 1 :][:1] if common in bridges else ():
                    acs = functions[port].acs if port in functions else None
                    if acs is not None:
                        yield _TurningPort(gpu.address, nic, side, end != nic, port, acs)


def _acs(node: _Node) -> t.Iterator[Finding]:
    """ACS on the switch ports between a GPU and its nearest NIC.

    On ordinary switches, request or completion redirect sends peer-to-peer traffic up to the root complex. Boards with
    a data-direct function need one of them on each side (rdma-core, rdma_topo), so it must never be cleared there.
    """
    redirecting: dict[str, str] = {}
    wrong: dict[str, str] = {}
    behind_redirecting: set[str] = set()
    behind_wrong: set[str] = set()
    for gpu, nic, side, data_direct, port, acs in () if node.topology.system.virtual else _turning_ports(node):
        if data_direct:
            needed_on, needed_off = ("RR", "CR") if side == "gpu" else ("CR", "RR")
            if needed_on in acs.enabled and needed_off not in acs.enabled:
                continue
            wrong[port] = (
                f"{port} towards the {side}: {', '.join(acs.enabled) or 'nothing'} enabled, "
                f"needs {needed_on} on and {needed_off} off"
            )
            behind_wrong |= {gpu, nic}
        else:
            active = [name for name in ("RR", "CR") if name in acs.enabled]
            if not active:
                continue
            redirecting[port] = f"{port}: {', '.join(active)} enabled"
            behind_redirecting |= {gpu, nic}
    if redirecting:
        yield Finding(
            id="acs-redirect",
            severity="warning",
            summary="ACS redirects peer-to-peer traffic between GPUs and NICs through the root complex",
            action="Clear request and completion redirect on these ports (pci=config_acs= or at boot) unless VFs "
            "or devices below them are passed to virtual machines.",
            devices=sorted(behind_redirecting),
            evidence=sorted(redirecting.values()),
        )
    if wrong:
        yield Finding(
            id="acs-data-direct",
            severity="warning",
            summary="ACS on the data-direct path is not set as this board needs it for GPUDirect",
            action="Set the ports as rdma-core's rdma_topo does on this machine; never clear ACS on all ports.",
            devices=sorted(behind_wrong),
            evidence=sorted(wrong.values()),
        )


def _kubernetes(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    if topology.source.kind != "sysfs":
        return
    functions = topology.functions
    devices = [gpu.address for gpu in topology.gpus] + [nic.address for nic in topology.nics if nic.physfn is None]
    unpublishable = [address for address in devices if "pcieRoot" not in functions[address].kubernetes]
    if unpublishable:
        yield Finding(
            id="no-pcie-root-attribute",
            severity="info",
            summary=f"Kubernetes cannot publish pcieRoot for {_names(unpublishable)}",
            action="Align claims on numaNode.",
            devices=unpublishable,
            evidence=[f"{address}: root complex {functions[address].root_complex}" for address in unpublishable[:8]],
        )
    disjoint = []
    for gpu in topology.gpus:
        root = functions[gpu.address].kubernetes.get("pcieRoot")
        near = gpu.nearest_nics
        if not root or not near.devices or RANK[near.level] > RANK["PHB"]:
            continue
        if not any(functions[nic].kubernetes.get("pcieRoot") == root for nic in near.devices):
            roots = ", ".join(f"{nic} on {functions[nic].kubernetes.get('pcieRoot')}" for nic in near.devices)
            disjoint.append((gpu.address, f"{gpu.address} on {root}, {roots}"))
    if disjoint:
        yield Finding(
            id="disjoint-pcie-roots",
            severity="warning",
            summary=f"{len(disjoint)} GPU(s) and the NICs that serve them have different pcieRoots",
            action="A claim that matches on pcieRoot can never be satisfied here. Match on numaNode.",
            devices=[address for address, text in disjoint],
            evidence=[text for address, text in disjoint[:8]],
        )


def _drivers(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    if topology.source.kind != "sysfs":
        return
    without_driver = [
        function for function in node.devices if function.driver is None and function.kind != "data_direct"
    ]
    if not without_driver:
        return
    yield Finding(
        id="no-driver",
        severity="info",
        summary=f"No driver is bound to {_names([function.address for function in without_driver])}",
        action="Install or load the driver to use the device on this system.",
        devices=[function.address for function in without_driver],
        evidence=[
            f"{function.address}: {function.name or function.kind} {function.vendor_id}:{function.device_id}"
            for function in without_driver[:8]
        ],
    )


def _displays(node: _Node) -> t.Iterator[Finding]:
    """Display controllers of unknown vendors: those that are counted as GPUs, and those that are not."""
    topology = node.topology
    if topology.source.kind == "nccl_xml":
        return  # the file itself says which functions are GPUs
    functions = [function for function in topology.functions.values() if function.physfn is None]
    counted = [function for function in functions if ids.is_unlisted_gpu(function)]
    without_vendor = [
        function for function in functions if (function.class_code or "")[:2] == "03" and function.vendor_id is None
    ]
    if counted:
        yield Finding(
            id="display-unlisted",
            severity="warning",
            summary=f"{_names([function.address for function in counted])}: display controller of a vendor that is not "
            "listed here, counted as a GPU",
            action="Nothing to do for a GPU. Report the identifiers if it is the graphics of a management "
            "processor: pairs and rails are then wrong.",
            devices=[function.address for function in counted],
            evidence=[
                f"{function.address}: class {function.class_code}, {function.vendor_id}:{function.device_id}"
                for function in counted
            ],
        )
    if without_vendor and topology.source.kind == "sysfs":
        yield Finding(
            id="display-unlisted",
            severity="warning",
            summary=f"{_names([function.address for function in without_vendor])}: display controller without a "
            "readable vendor, not counted as a GPU",
            action="Check why the identifiers could not be read: a GPU may be missing here.",
            devices=[function.address for function in without_vendor],
            evidence=[f"{function.address}: class {function.class_code}, no vendor" for function in without_vendor],
        )


def _virtual(node: _Node) -> t.Iterator[Finding]:
    topology = node.topology
    if not topology.system.virtual or not node.devices:
        return
    yield Finding(
        id="virtual-machine",
        severity="info",
        summary="This is a virtual machine: the hypervisor defines the PCIe tree, which differs from the hardware's",
        action="If the provider publishes the machine's layout, for example as an NCCL topology file, import it or "
        "state it as overrides.",
        evidence=[f"product {topology.system.product}, CPU {topology.system.cpu_model}"],
    )


_RULES = (
    _unreadable,
    _nothing,
    lambda node: links(node.topology, node.devices),
    lambda node: ports(node.topology),
    _gpus_without_near_nic,
    _asymmetry,
    _numa,
    _iommu,
    _acs,
    _kubernetes,
    _drivers,
    _displays,
    _virtual,
)
