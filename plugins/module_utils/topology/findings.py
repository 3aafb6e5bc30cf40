# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What an operator should know about a node before GPUs and NICs are paired on it.

Every rule reads the finished topology and adds findings with the values that it saw. No rule speaks where the facts
that it needs were not readable.
"""

from __future__ import annotations

from . import cpuset, ids
from .affinity import RANK, Proximity, fabric_nics
from .config_space import payload_rate
from .model import Finding, Link, PciFunction, Topology

_ACCELERATORS = ("gpu", "accelerator")


def find(topology: Topology, proximity: Proximity) -> list[Finding]:
    """All findings, the severest first, in a stable order."""
    findings = (
        _unreadable(topology)
        + _nothing(topology)
        + _links(topology)
        + _ports(topology)
        + _gpus_without_near_nic(topology, proximity)
        + _asymmetry(topology)
        + _numa(topology)
        + _iommu(topology)
        + _acs(topology, proximity)
        + _kubernetes(topology)
        + _drivers(topology)
        + _displays(topology)
        + _virtual(topology)
    )
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _as_root(topology: Topology) -> str:
    """How to read what takes root: a recorded tree holds what was recorded, whoever reads it."""
    return "Run the probe as root (become)" if topology.source.path == "/" else "Record the machine again as root"


def _names(addresses: list[str]) -> str:
    return ", ".join(addresses[:3]) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")


def _interesting(topology: Topology) -> list[PciFunction]:
    """The functions that findings are about; VFs follow their PF."""
    return [
        function
        for function in topology.functions.values()
        if function.kind in (*_ACCELERATORS, "nic", "nvme", "data_direct") and function.physfn is None
    ]


def _unreadable(topology: Topology) -> list[Finding]:
    source = topology.source
    findings = []
    if source.unreadable_count:
        findings.append(
            Finding(
                id="unreadable",
                severity="warning",
                summary=f"{source.unreadable_count} file(s) could not be read; what they say is unknown",
                action=f"{_as_root(topology)}, and check the kernel log for the devices named."
                if source.path == "/"
                else f"{_as_root(topology)}: what is damaged or left out there is unknown here.",
                evidence=source.unreadable[:20],
            )
        )
    if source.config_space is False and topology.gpus and not topology.system.virtual:
        findings.append(
            Finding(
                id="config-space-restricted",
                severity="info",
                summary="PCI configuration space was readable in part only, so ACS is unknown",
                action=f"{_as_root(topology)}.",
            )
        )
    return findings


def _nothing(topology: Topology) -> list[Finding]:
    if topology.functions:
        return []
    return [
        Finding(
            id="no-pci-functions",
            severity="info",
            summary="No PCI function is to be seen, so there was nothing to check",
            action="On a machine with GPUs or NICs, check that /sys/bus/pci is there: containers and recordings may "
            "lack it.",
            evidence=[f"no functions in {topology.source.path}"],
        )
    ]


def _text(speed: float | None, width: int | None) -> str:
    return f"{speed:g} GT/s x{width}" if speed and width else f"{speed or '?'} GT/s x{width or '?'}"


def _slower(link: Link, other: Link) -> tuple[float | None, int | None]:
    """The best speed and width that both ends of a link can do."""
    speeds = [speed for speed in (link.max_speed_gts, other.max_speed_gts) if speed]
    widths = [width for width in (link.max_width, other.max_width) if width]
    return (min(speeds) if speeds else None, min(widths) if widths else None)


def _is_downstream(bridges: list[str], position: int) -> bool:
    """Whether the link that the bridge at C(position) tells of is the one below it.

    Below a host bridge root port, upstream port, downstream port, upstream port ... take turns, and a host bridge
    inside (Intel VMD, where the domain changes) starts anew.
    """
    if position >= len(bridges):
        return False
    first = position
    while first and bridges[first - 1].partition(":")[0] == bridges[position].partition(":")[0]:
        first -= 1
    return (position - first) % 2 == 0


def _links(topology: Topology) -> list[Finding]:
    """Compare every link on the way to a device with what both of its ends can do."""
    if topology.system.virtual or topology.source.kind != "sysfs":
        return []  # hypervisors make up link speeds, files do not tell both ends of a link
    functions = topology.functions
    findings = []
    seen: set[str] = set()
    users: dict[str, list[PciFunction]] = {}
    for function in _interesting(topology):
        for address in [*function.bridges, function.address]:
            users.setdefault(address, []).append(function)
    for function in _interesting(topology):
        for address in [*function.bridges, function.address]:
            if address in seen or address not in functions:
                continue
            seen.add(address)
            lower = functions[address]
            position = function.bridges.index(address) if address in function.bridges else len(function.bridges)
            upper = functions.get(function.bridges[position - 1]) if position else None
            if upper is None or lower.link is None or upper.link is None or _is_downstream(function.bridges, position):
                continue
            best_speed, best_width = _slower(lower.link, upper.link)
            link = lower.link
            slow = bool(link.speed_gts and best_speed and link.speed_gts < best_speed)
            narrow = bool(link.width and best_width and link.width < best_width)
            affected = users[address]
            evidence = [
                f"{address}: {_text(link.speed_gts, link.width)}, can do {_text(link.max_speed_gts, link.max_width)}",
                f"{upper.address} above it can do {_text(upper.link.max_speed_gts, upper.link.max_width)}",
            ]
            if slow or narrow:
                idle = not narrow and lower.kind in _ACCELERATORS
                findings.append(
                    Finding(
                        id="link-degraded",
                        severity="info" if idle else "error" if narrow else "warning",
                        summary=f"The PCIe link of {lower.name or lower.kind} {address} runs at "
                        f"{_text(link.speed_gts, link.width)}, both ends can do {_text(best_speed, best_width)}",
                        action="An idle GPU lowers its link speed to save power: look again under load."
                        if idle
                        else "Reseat the card or riser, check the slot's bifurcation and speed in firmware, and the "
                        "kernel log for AER errors.",
                        devices=sorted({one.address for one in affected}),
                        evidence=evidence,
                    )
                )
            ours, theirs = (payload_rate(one.max_speed_gts, one.max_width) for one in (lower.link, upper.link))
            if ours and theirs and theirs < ours and lower.kind != "bridge":
                findings.append(
                    Finding(
                        id="link-limited-by-slot",
                        severity="info",
                        summary=f"{lower.name or lower.kind} {address} could do {ours:.1f} GB/s, its slot {theirs:.1f}",
                        action="Move the card to a wider or newer slot if its full rate is needed.",
                        devices=[address],
                        evidence=evidence,
                    )
                )
    return findings


def _ports(topology: Topology) -> list[Finding]:
    """RDMA ports that are down. A rail is broken when no port of its function is up: in switchdev mode one of the
    function's ports carries the traffic and the others stand for VFs."""
    nics = {nic.address: nic for nic in topology.nics}
    alive = {device.address for device in topology.rdma_devices for port in device.ports if port.state == "ACTIVE"}
    findings = []
    for device in topology.rdma_devices:
        nic = nics.get(device.address or "")
        for port in device.ports:
            if port.state in (None, "ACTIVE") or nic is None or nic.physfn:
                continue
            broken = nic.rail is not None and nic.address not in alive
            findings.append(
                Finding(
                    id="rdma-port-down",
                    severity="error" if broken else "info",
                    summary=f"Port {port.port} of {device.name} is {port.state} ({port.phys_state or 'link unknown'})"
                    + (f"; rail {nic.rail} is broken" if broken else ""),
                    action="Check cable, transceiver and switch port"
                    + (", and that a subnet manager runs." if port.link_layer == "infiniband" else "."),
                    devices=[nic.address],
                    evidence=[f"state {port.state}, physical state {port.phys_state}, rate {port.rate_gbps} Gbit/s"],
                )
            )
    return findings


def _gpus_without_near_nic(topology: Topology, proximity: Proximity) -> list[Finding]:
    fabric = proximity.neighbours(nic.address for nic in fabric_nics(topology.nics))
    grouped = {address for group in topology.groups for address in group.gpus}
    # to fabric NICs only: a management port nearby is of no help
    nearest = {
        gpu.address: proximity.nearest(gpu.address, fabric) for gpu in topology.gpus if gpu.address not in grouped
    }
    far = [gpu for gpu in topology.gpus if gpu.address in nearest and nearest[gpu.address].devices]
    unknown = [gpu for gpu in topology.gpus if gpu.address in nearest and not nearest[gpu.address].devices]
    hidden = bool(proximity.undecided)
    across = {
        address
        for group in topology.groups
        if RANK[group.level] > RANK["PHB"]
        for address in group.gpus
        if topology.functions[address].root_complex  # unknown in an NCCL file
    }
    findings = []
    if far:
        findings.append(
            Finding(
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
        )
    if across:
        findings.append(
            Finding(
                id="gpu-nic-through-cpu",
                severity="info",
                summary=f"{len(across)} GPU(s) share a NUMA node, but no PCIe root, with their nearest NIC",
                action="GPUDirect traffic crosses the CPU here. Align claims on the NUMA node, not on the PCIe root.",
                devices=sorted(across),
                evidence=[f"{group.common}: {group.level}" for group in topology.groups if group.level == "NODE"],
            )
        )
    if unknown and fabric and topology.source.kind == "sysfs":
        findings.append(
            Finding(
                id="gpu-nic-locality-unknown",
                severity="warning",
                summary=f"For {len(unknown)} GPU(s) the machine does not say which NIC is near",
                action=f"{_as_root(topology)}: the VPD of NICs and data-direct functions pairs them."
                if hidden
                else "State the locality in the inventory (topology_locality_overrides) if the provider tells it.",
                devices=[gpu.address for gpu in unknown],
                evidence=[f"{gpu.address}: NUMA node {gpu.numa_node}" for gpu in unknown[:8]],
            )
        )
    return findings


def _asymmetry(topology: Topology) -> list[Finding]:
    """Groups, or NUMA nodes that have any, with unequal numbers of GPUs or NICs."""
    findings = []
    # NICs on a rail: one for storage beside them is no asymmetry
    on_rail = {nic.address for nic in topology.nics if nic.rail is not None}
    counts = [
        (group.common or "?", len(group.gpus), len(on_rail.intersection(group.nics))) for group in topology.groups
    ]
    if len({count[1:] for count in counts}) > 1:
        findings.append(
            Finding(
                id="asymmetric-groups",
                severity="warning",
                summary="GPU-NIC groups differ in size, so that some GPUs have less network than others",
                action="Check whether a card is missing or sits in the wrong slot.",
                devices=[address for group in topology.groups for address in group.gpus],
                evidence=[f"{common}: {gpus} GPU(s), {nics} NIC(s)" for common, gpus, nics in counts],
            )
        )
    nodes: dict[int, int] = {}
    for gpu in topology.gpus:
        if gpu.numa_node is not None:
            nodes[gpu.numa_node] = nodes.get(gpu.numa_node, 0) + 1
    if len(set(nodes.values())) > 1:
        findings.append(
            Finding(
                id="asymmetric-gpus",
                severity="info",
                summary="NUMA nodes hold different numbers of GPUs",
                action="Check whether a GPU is missing.",
                devices=[gpu.address for gpu in topology.gpus],
                evidence=[f"NUMA node {number}: {count} GPU(s)" for number, count in sorted(nodes.items())],
            )
        )
    return findings


def _numa(topology: Topology) -> list[Finding]:
    functions = _interesting(topology)
    findings = []
    silent = [function.address for function in functions if function.numa_node is None]
    if silent:
        findings.append(
            Finding(
                id="numa-unknown",
                severity="info" if len(topology.numa_nodes) < 2 else "warning",
                summary=f"{len(silent)} of {len(functions)} device(s) have no NUMA node",
                action="Enable NUMA affinity in firmware (_PXM) or the hypervisor, or state it in the inventory "
                "(topology_locality_overrides).",
                devices=silent,
                evidence=[f"{len(topology.numa_nodes)} NUMA node(s) on the machine"],
            )
        )
    sets = {node.id: cpuset.from_list(node.cpus or "") or 0 for node in topology.numa_nodes}
    conflicts = []
    for function in functions:
        local = cpuset.from_list(function.local_cpus or "") or 0
        written = function.kubernetes.get("numaNode")
        node = sets.get(written) if written is not None else None
        if local and node and not local & node:
            conflicts.append(
                (function.address, f"{function.address}: NUMA node {written}, but CPUs {function.local_cpus}")
            )
        if written is not None and sets and written not in sets:
            conflicts.append((function.address, f"{function.address}: NUMA node {written} does not exist"))
    by_root: dict[str, dict[int, str]] = {}
    for function in functions:
        if function.root_complex and function.numa_node is not None and function.numa_source != "override":
            by_root.setdefault(function.root_complex, {}).setdefault(function.numa_node, function.address)
    for root, members in by_root.items():
        if len(members) > 1:
            text = ", ".join(f"{address} on node {number}" for number, address in sorted(members.items()))
            conflicts += [(address, f"{root}: {text}") for address in members.values()]
    if conflicts:
        findings.append(
            Finding(
                id="numa-conflict",
                severity="warning",
                summary="The machine contradicts itself on NUMA locality",
                action="Update the firmware, then state the truth in the inventory (topology_locality_overrides).",
                devices=sorted({address for address, text in conflicts}),
                evidence=sorted({text for address, text in conflicts}),
            )
        )
    return findings


def _iommu(topology: Topology) -> list[Finding]:
    system = topology.system
    if system.virtual or system.architecture != "x86_64" or not topology.gpus:
        return []
    translated = [
        function
        for function in _interesting(topology)
        if function.kind in ("gpu", "nic") and (function.iommu_group_type or "").startswith("DMA")
    ]
    if not translated:
        return []
    return [
        Finding(
            id="iommu-translation",
            severity="warning",
            summary="The IOMMU translates the DMA of GPUs or NICs, which slows or breaks GPUDirect",
            action="Boot with iommu=pt (and intel_iommu=on where VFs go to virtual machines).",
            devices=[function.address for function in translated],
            evidence=[
                f"{one.address}: IOMMU group {one.iommu_group} type {one.iommu_group_type}" for one in translated[:8]
            ]
            + [f"kernel arguments: {' '.join(system.iommu_arguments) or 'none about the IOMMU'}"],
        )
    ]


def _acs(topology: Topology, proximity: Proximity) -> list[Finding]:  # noqa: C901
    """ACS on the switch ports between a GPU and its nearest NIC.

    On ordinary switches request or completion redirect sends peer-to-peer traffic up to the root complex. Boards
    with a data-direct function need redirect set in one direction each instead (rdma-core, rdma_topo): never clear it
    there.
    """
    if topology.system.virtual:
        return []
    functions = topology.functions
    redirecting: dict[str, str] = {}
    wrong: dict[str, str] = {}
    hit: set[str] = set()
    for gpu in topology.gpus:
        if RANK[gpu.nearest_nics.level] > RANK["PXB"]:
            continue
        for nic in gpu.nearest_nics.devices:
            end = gpu.nearest_nics.via.get(nic, nic)
            common = proximity.common(gpu.address, nic)
            for side, address in (("gpu", gpu.address), ("nic", end)):
                bridges = functions[address].bridges
                # the port right below the meeting point decides where a request turns; those further down do not
                ports = bridges[bridges.index(common) + 1 :][:1] if common in bridges else []
                for port in ports:
                    acs = functions[port].acs if port in functions else None
                    if acs is None:
                        continue
                    if end == nic:
                        active = [name for name in ("RR", "CR") if name in acs.enabled]
                        if active:
                            redirecting[port] = f"{port}: {', '.join(active)} enabled"
                            hit |= {gpu.address, nic}
                        continue
                    wanted_on, wanted_off = ("RR", "CR") if side == "gpu" else ("CR", "RR")
                    if wanted_on not in acs.enabled or wanted_off in acs.enabled:
                        wrong[port] = (
                            f"{port} towards the {side}: {', '.join(acs.enabled) or 'nothing'} enabled, "
                            f"needs {wanted_on} on and {wanted_off} off"
                        )
                        hit |= {gpu.address, nic}
    findings = []
    if redirecting:
        findings.append(
            Finding(
                id="acs-redirect",
                severity="warning",
                summary="ACS redirects peer-to-peer traffic between GPUs and NICs through the root complex",
                action="Clear request and completion redirect on these ports (pci=config_acs= or at boot) unless VFs "
                "or devices below them are passed to virtual machines.",
                devices=sorted(hit),
                evidence=sorted(redirecting.values()),
            )
        )
    if wrong:
        findings.append(
            Finding(
                id="acs-data-direct",
                severity="warning",
                summary="ACS of the data-direct path is not what this board needs for GPUDirect",
                action="Set the ports as rdma-core's rdma_topo writes them for this machine; do not clear ACS blankly.",
                devices=sorted(hit),
                evidence=sorted(wrong.values()),
            )
        )
    return findings


def _kubernetes(topology: Topology) -> list[Finding]:
    if topology.source.kind != "sysfs":
        return []
    functions = topology.functions
    devices = [gpu.address for gpu in topology.gpus] + [nic.address for nic in topology.nics if nic.physfn is None]
    unpublishable = [address for address in devices if "pcieRoot" not in functions[address].kubernetes]
    findings = []
    if unpublishable:
        findings.append(
            Finding(
                id="no-pcie-root-attribute",
                severity="info",
                summary=f"Kubernetes cannot publish pcieRoot for {_names(unpublishable)}",
                action="Align claims on numaNode.",
                devices=unpublishable,
                evidence=[
                    f"{address}: root complex {functions[address].root_complex}" for address in unpublishable[:8]
                ],
            )
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
        findings.append(
            Finding(
                id="disjoint-pcie-roots",
                severity="warning",
                summary=f"{len(disjoint)} GPU(s) have another pcieRoot than the NIC that serves them",
                action="A claim that matches on pcieRoot can never be met here. Match on numaNode.",
                devices=[address for address, text in disjoint],
                evidence=[text for address, text in disjoint[:8]],
            )
        )
    return findings


def _drivers(topology: Topology) -> list[Finding]:
    if topology.source.kind != "sysfs":
        return []
    without = [one for one in _interesting(topology) if one.driver is None and one.kind != "data_direct"]
    if not without:
        return []
    return [
        Finding(
            id="no-driver",
            severity="info",
            summary=f"No driver is bound to {_names([one.address for one in without])}",
            action="Install or load the driver if the device is to be used from this system.",
            devices=[one.address for one in without],
            evidence=[f"{one.address}: {one.name or one.kind} {one.vendor_id}:{one.device_id}" for one in without[:8]],
        )
    ]


def _displays(topology: Topology) -> list[Finding]:
    """Display controllers that are counted as GPUs, or not counted, without knowledge of the part."""
    if topology.source.kind == "nccl_xml":
        return []  # which function is a GPU is said there
    functions = [one for one in topology.functions.values() if one.physfn is None]
    counted = [one for one in functions if ids.is_unlisted_gpu(one)]
    silent = [one for one in functions if (one.class_code or "")[:2] == "03" and one.vendor_id is None]
    findings = []
    if counted:
        findings.append(
            Finding(
                id="display-unlisted",
                severity="warning",
                summary=f"{_names([one.address for one in counted])}: display controller of a vendor that is not "
                "listed here, counted as a GPU",
                action="Nothing to do for a GPU. Report the identifiers if it is the graphics of a management "
                "processor: it then takes part in pairs and rails by mistake.",
                devices=[one.address for one in counted],
                evidence=[f"{one.address}: class {one.class_code}, {one.vendor_id}:{one.device_id}" for one in counted],
            )
        )
    if silent and topology.source.kind == "sysfs":
        findings.append(
            Finding(
                id="display-unlisted",
                severity="warning",
                summary=f"{_names([one.address for one in silent])}: display controller without a readable vendor, "
                "not counted as a GPU",
                action="Check why the identifiers could not be read: a GPU may be missing here.",
                devices=[one.address for one in silent],
                evidence=[f"{one.address}: class {one.class_code}, no vendor" for one in silent],
            )
        )
    return findings


def _virtual(topology: Topology) -> list[Finding]:
    if not topology.system.virtual or not _interesting(topology):
        return []
    return [
        Finding(
            id="virtual-machine",
            severity="info",
            summary="This is a virtual machine: the PCIe tree is the hypervisor's, not the hardware's",
            action="Where the provider publishes the machine's layout (an NCCL topology file, say), import it or "
            "state it as overrides.",
            evidence=[f"product {topology.system.product}, CPU {topology.system.cpu_model}"],
        )
    ]
