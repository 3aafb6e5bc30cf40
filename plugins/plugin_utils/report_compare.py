# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Describes how two nodes differ, and which nodes of a fleet differ from their peers."""

from __future__ import annotations

import hashlib
import typing as t
from collections import Counter
from dataclasses import dataclass, field

from ..module_utils.topology import cpuset
from .report_facts import Device, View, natural

_NAMES = {
    "gpu": ("GPU", "GPUs"),
    "accelerator": ("accelerator", "accelerators"),
    "nic": ("NIC", "NICs"),
    "nvme": ("NVMe drive", "NVMe drives"),
    "data_direct": ("data-direct function", "data-direct functions"),
}
#: Names that do not identify a product: those of hypervisors, and placeholders of firmware.
_NO_PRODUCTS = (
    "KVM",
    "Standard PC",
    "Virtual Machine",
    "VirtualBox",
    "VMware",
    "HVM domU",
    "Google Compute Engine",
    "OpenStack",
    "System Product Name",
    "To be filled",
    "To Be Filled",
    "Default string",
    "Not Specified",
)
_SYSTEM = (
    ("architecture", "architecture"),
    ("virtual", "virtual machine"),
    ("iommu_enabled", "IOMMU enabled"),
)


def fingerprint_of(view: View) -> str:
    """The fingerprint of a node's topology, or one that is computed here if the facts have none."""
    if view.topology.fingerprint:
        return view.topology.fingerprint
    parts = sorted(f"{d.kind} {d.address} {d.model} {d.numa} {d.root} {d.bridges} {d.degraded}" for d in view.devices)
    return "report:" + hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def hardware_of(view: View) -> str:
    """Vendor and product, else the processors; empty if neither is known. Peers have the same hardware."""
    system = view.topology.system
    product = system.product or system.board or ""
    if product and not product.startswith(_NO_PRODUCTS):
        return " ".join(dict.fromkeys(word for word in (system.vendor, product) if word))
    cpus = sum((cpuset.from_list(node.cpus or "") or 0).bit_count() for node in view.topology.numa_nodes)
    if not system.cpu_model or not cpus:
        return ""
    return f"{product or 'Unknown product'}, {cpus} CPUs {system.cpu_model}"


def plural(count: int, kind: str) -> str:
    """A number of devices of a kind, such as `2 NICs`."""
    return f"{count} {_NAMES[kind][count != 1]}"


def _location(device: Device) -> str:
    """Where a device is, as part of a sentence."""
    if device.switch:
        location = f"under switch {device.switch}"
    elif device.root:
        location = f"under {device.root}"
    else:
        location = "under an unknown root complex"
    return location + (f", NUMA node {device.numa}" if device.numa is not None else "")


def _listed(names: t.Iterable[str], maximum: int = 4) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:maximum]) + (f" and {len(names) - maximum} more" if len(names) > maximum else "")


def _pairs(node: View, peer: View) -> tuple[list[tuple[Device, Device]], list[Device], list[Device]]:
    """Match devices by address, then the rest of each kind and model in address order (buses may be renumbered).

    Returns the pairs of a node's and its peer's device, the devices that only the node has, and those of the peer.
    """
    of_peer = {(d.kind, d.address): d for d in peer.devices}
    pairs, others = [], []
    for device in node.devices:
        match = of_peer.pop((device.kind, device.address), None)
        if match:
            pairs.append((device, match))
        else:
            others.append(device)
    unmatched: dict[tuple[str, str], list[Device]] = {}
    for device in sorted(of_peer.values(), key=lambda d: natural(d.address)):
        unmatched.setdefault((device.kind, device.model), []).append(device)
    only_node = []
    for device in sorted(others, key=lambda d: natural(d.address)):
        queue = unmatched.get((device.kind, device.model))
        if queue:
            pairs.append((device, queue.pop(0)))
        else:
            only_node.append(device)
    return pairs, only_node, [device for queue in unmatched.values() for device in queue]


def _changes(device: Device, other: Device) -> t.Iterator[str]:
    """What differs between a device and its counterpart, as phrases such as `rail 1 instead of 2`."""

    def instead(label: str, ours: t.Any, theirs: t.Any) -> str:
        return (
            f"{label} {'unknown' if ours in (None, '') else ours} instead of "
            f"{'unknown' if theirs in (None, '') else theirs}"
        )

    if device.model != other.model:
        yield instead("model", device.model, other.model)
    if device.link != other.link and not (device.slow or other.slow):
        yield instead("link", device.link, other.link)
    if device.numa != other.numa:
        yield instead("NUMA node", device.numa, other.numa)
    if len(device.bridges) != len(other.bridges):
        yield f"behind {len(device.bridges)} bridges instead of {len(other.bridges)}"
    elif device.address == other.address and device.switch != other.switch:
        yield instead("switch", device.switch, other.switch)
    elif device.address == other.address and device.root != other.root:
        yield instead("root complex", device.root, other.root)
    if device.vfs != other.vfs:
        yield instead("VFs:", device.vfs, other.vfs)
    if device.rail != other.rail:
        yield instead("rail", device.rail, other.rail)
    if device.driver != other.driver:
        yield instead("driver", device.driver, other.driver)
    if device.notes != other.notes:
        yield instead("state", " ".join(device.notes), " ".join(other.notes))


def differences(node: View, peer: View) -> list[str]:
    """How `node` differs from `peer`, one sentence for each difference."""
    pairs, extra, missing = _pairs(node, peer)
    result = []
    for devices, word in ((missing, "fewer"), (extra, "more")):
        groups: dict[tuple[str, str], list[Device]] = {}
        for device in devices:
            groups.setdefault((device.kind, _location(device)), []).append(device)
        for (kind, location), members in groups.items():
            ours = sum(d.kind == kind for d in node.devices)
            theirs = sum(d.kind == kind for d in peer.devices)
            total = f" ({ours} instead of {theirs})" if ours != theirs else ""
            names = _listed(f"{d.model} at {d.address}" if d.model else d.address for d in members)
            result.append(f"{plural(len(members), kind)} {word}{total} {location}: {names}")
    phrases: dict[tuple[str, str], list[Device]] = {}
    moved = 0
    for device, other in pairs:
        moved += device.address != other.address
        for phrase in _changes(device, other):
            phrases.setdefault((device.kind, phrase), []).append(device)
    for (_kind, phrase), members in phrases.items():
        result.append(f"{_listed(f'{d.short} ({d.address})' for d in members)}: {phrase}")
    if moved:
        result.append(f"{moved} device{'s have' if moved > 1 else ' has'} another PCI address")
    result.extend(_system_differences(node, peer))
    return result


def _system_differences(node: View, peer: View) -> t.Iterator[str]:
    ours, theirs = node.topology, peer.topology
    for name, label in _SYSTEM:
        a, b = getattr(ours.system, name), getattr(theirs.system, name)
        if a != b and a is not None and b is not None:
            yield f"{label}: {a} instead of {b}"
    for label, a, b in (
        ("sockets", len(ours.packages), len(theirs.packages)),
        ("NUMA nodes", len(ours.numa_nodes), len(theirs.numa_nodes)),
    ):
        if a != b:
            yield f"{a} {label} instead of {b}"
    cpus = {n.id: n.cpus for n in theirs.numa_nodes}
    changed = [str(n.id) for n in ours.numa_nodes if n.id in cpus and n.cpus != cpus[n.id]]
    if changed:
        yield f"NUMA node {_listed(changed)}: another list of CPUs"
    if node.group_levels != peer.group_levels:
        yield f"GPU-NIC groups: {node.group_levels or 'none'} instead of {peer.group_levels or 'none'}"


def changes(old: View | None, new: View) -> list[str]:
    """What changed on a node since its facts were last stored, as diff lines."""
    if old is None:
        counts = Counter(device.kind for device in new.devices)
        return ["+ new: " + (", ".join(plural(counts[kind], kind) for kind in _NAMES if counts[kind]) or "no devices")]
    lines = []
    before = {(d.kind, d.address): d for d in old.devices}
    after = {(d.kind, d.address): d for d in new.devices}
    for key, device in before.items():
        if key not in after:
            lines.append(f"- {device.short} {device.address} {device.model}".rstrip())
    for key, device in after.items():
        if key not in before:
            lines.append(f"+ {device.short} {device.address} {device.model}".rstrip())
        else:
            lines.extend(f"~ {device.short} {device.address}: {phrase}" for phrase in _changes(device, before[key]))
    old_findings = {(f.id, tuple(f.devices)): f for f in old.topology.findings}
    new_findings = {(f.id, tuple(f.devices)): f for f in new.topology.findings}
    lines.extend(
        f"- finding resolved: {f.severity} {f.id}: {f.summary}"
        for key, f in old_findings.items()
        if key not in new_findings
    )
    lines.extend(
        f"+ finding: {f.severity} {f.id}: {f.summary}" for key, f in new_findings.items() if key not in old_findings
    )
    if not lines:
        sections = [name for name, value in vars(new.topology).items() if value != getattr(old.topology, name)]
        lines.append("~ facts changed: " + (", ".join(sections) or "details that the report does not show"))
    return lines


class Member(t.Protocol):
    """The fields of a node by which nodes are grouped."""

    host: str
    hardware: str
    gpu_model: str
    gpus: int
    fingerprint: str


@dataclass
class PeerGroup:
    """Nodes that should be alike, because they are the same product with the same GPU.

    `usual` is the fingerprint of more than half of them; None if there is none.
    """

    name: str
    hosts: list[str] = field(default_factory=list)
    by_fingerprint: dict[str, list[str]] = field(default_factory=dict)  # hosts, the most frequent fingerprint first
    usual: str | None = None
    comparable: bool = True  # False if it is unknown whether the nodes are of one kind

    @property
    def outliers(self) -> list[str]:
        if self.usual is None:
            return []
        return [
            host for fingerprint, hosts in self.by_fingerprint.items() if fingerprint != self.usual for host in hosts
        ]


def group_peers(members: t.Sequence[Member]) -> list[PeerGroup]:
    """Group nodes by hardware and GPU model, the largest group first; hosts keep the order of `members`.

    Nodes with unknown hardware are not peers of each other.

    A node without a visible GPU joins the GPU nodes of its product if these are more than three times as many as the
    nodes without GPUs. It has then more likely lost its GPUs than been bought without them.
    """
    models: dict[str, Counter[str]] = {}
    without_gpus: Counter[str] = Counter()
    for member in members:
        if member.gpus:
            models.setdefault(member.hardware, Counter())[member.gpu_model] += 1
        else:
            without_gpus[member.hardware] += 1
    groups: dict[tuple[str, str], PeerGroup] = {}
    for member in members:
        model = member.gpu_model
        if not member.gpus and member.hardware in models:
            usual, number = min(models[member.hardware].items(), key=lambda item: (-item[1], item[0]))
            if number > 3 * without_gpus[member.hardware]:
                model = usual
        name = ", ".join([member.hardware or "Unknown product", *([model] if model else [])])
        group = groups.setdefault((member.hardware, model), PeerGroup(name=name, comparable=bool(member.hardware)))
        group.hosts.append(member.host)
        group.by_fingerprint.setdefault(member.fingerprint, []).append(member.host)
    for group in groups.values():
        group.by_fingerprint = dict(
            sorted(group.by_fingerprint.items(), key=lambda item: (-len(item[1]), natural(item[1][0])))
        )
        fingerprint, hosts = next(iter(group.by_fingerprint.items()))
        group.usual = fingerprint if group.comparable and 2 * len(hosts) > len(group.hosts) else None
    return sorted(groups.values(), key=lambda group: (-len(group.hosts), group.name))
