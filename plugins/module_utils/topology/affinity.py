# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""How near two devices are, and what is derived from it: nearest devices, groups and rails.

Levels, from near to far:

`SELF`    one physical device: the same function, another function of the card, a PF and its VFs
`PIX`     one PCIe switch (or other bridge) between them
`PXB`     several switches, without crossing a host bridge
`PHB`     the same root complex, through its host bridge
`NODE`    the same NUMA node, and nothing nearer is known
`SYS`     different NUMA nodes
`UNKNOWN` the machine does not report it; this is never treated as near

The names are those of NVML's nvmlGpuTopologyLevel_t; the rule is applied to the kernel's device paths.
"""

from __future__ import annotations

import typing as t

from .config_space import payload_rate
from .model import Affinity, Gpu, Group, Nearest, Nic, PciFunction, Topology
from .pci import slot_of, sort_key

LEVELS = ("SELF", "PIX", "PXB", "PHB", "NODE", "SYS", "UNKNOWN")
RANK = {level: rank for rank, level in enumerate(LEVELS)}


#: The matrix grows with the square of the number of devices, so it stays empty above this limit. Nearest devices are
#: always computed.
MATRIX_LIMIT = 256


def _domain(address: str) -> str:
    return address.partition(":")[0]


def level(first: PciFunction, second: PciFunction) -> str:
    """The level between two functions; it is symmetric."""
    if slot_of(first.address) == slot_of(second.address):
        return "SELF"
    if (first.physfn or first.address) == (second.physfn or second.address):
        return "SELF"
    if first.switch_label is not None and first.switch_label == second.switch_label:
        return "PIX"
    if first.root_complex == second.root_complex:
        near = _within_root(first, second)
        if near:
            return near
    if first.numa_node is None or second.numa_node is None:
        return "UNKNOWN"
    return "NODE" if first.numa_node == second.numa_node else "SYS"


def whole_switches(root_complex: str | None) -> bool:
    """Whether each bridge above a function represents a whole switch, and not one port of a switch.

    That is the case if bridges are known and the root complex is not. NCCL's files are like that: they leave out the
    downstream ports of switches and invent addresses for some switches. Sysfs has both or neither.
    """
    return root_complex is None


def _shared_bridges(first: PciFunction, second: PciFunction) -> int:
    """How many bridges two functions have in common, from the root complex down."""
    shared = 0
    for first_bridge, second_bridge in zip(first.bridges, second.bridges):
        if first_bridge != second_bridge:
            break
        shared += 1
    return shared


def _within_root(first: PciFunction, second: PciFunction) -> str | None:
    """The level of two functions below one root complex; None if the root is unknown and they share no bridge."""
    first_bridges, second_bridges = first.bridges, second.bridges
    shared = _shared_bridges(first, second)
    if shared == 0:
        return "PHB" if first.root_complex else None
    if whole_switches(first.root_complex):
        return "PIX" if len(first_bridges) == len(second_bridges) == shared else "PXB"
    meeting = first_bridges[shared - 1]
    for bridges, address in ((first_bridges, first.address), (second_bridges, second.address)):
        step = bridges[shared] if len(bridges) > shared else address
        if _domain(step) != _domain(meeting):
            return "PHB"  # another host bridge begins below the meeting point (Intel VMD)
    # a switch is an upstream port with downstream ports below it: one more port on each path still belongs to that
    # switch
    return "PIX" if max(len(first_bridges), len(second_bridges)) - shared <= 1 else "PXB"


def meeting_point(first: PciFunction, second: PciFunction) -> str | None:
    """The last common bridge of two functions, their root complex or `NUMA node N`; None if they share nothing
    known."""
    shared = None
    if first.root_complex == second.root_complex:
        depth = _shared_bridges(first, second)
        shared = first.bridges[depth - 1] if depth else first.root_complex
    if shared is None and first.switch_label is not None and first.switch_label == second.switch_label:
        shared = first.switch_label
    if shared is None and first.numa_node is not None and first.numa_node == second.numa_node:
        shared = f"NUMA node {first.numa_node}"
    return shared


class Proximity:
    """Levels between the devices of one node, with the data-direct path of a NIC taken into account."""

    def __init__(self, topology: Topology) -> None:
        self._functions = topology.functions
        self._data_direct = {nic.address: nic.data_direct for nic in topology.nics if nic.data_direct}
        self._distances = {node.id: node.distances for node in topology.numa_nodes}
        self._indexes: dict[tuple[str, ...], Neighbours] = {}
        self.undecided = self._near_unpaired_data_direct()

    def _near_unpaired_data_direct(self) -> set[str]:
        """GPUs near a data-direct function whose NIC is unknown because the function's VPD cannot be read. The nearest
        NIC of these GPUs is then unknown, too."""
        known = set(self._data_direct.values())
        directs = [function for function in self._functions.values() if function.kind == "data_direct"]
        if all(function.address in known for function in directs):
            return set()
        undecided = set()
        for gpu in self._functions.values():
            if gpu.kind == "gpu":
                near = [function.address for function in directs if RANK[level(gpu, function)] <= RANK["PXB"]]
                if near and not known.intersection(near):
                    undecided.add(gpu.address)
        return undecided

    def _functions_of(self, address: str) -> list[PciFunction]:
        """The functions through which a device is reached: its own, and the data-direct DMA function if a NIC has
        one."""
        functions = [self._functions[address]]
        if address in self._data_direct:
            functions.append(self._functions[self._data_direct[address]])
        return functions

    def gpu_to_nic(self, gpu: str, nic: str) -> tuple[str, str]:
        """The level between a GPU and a NIC, and the function to which it applies: the NIC itself or its DMA
        function."""
        best = ("UNKNOWN", nic)
        if gpu in self.undecided:
            return best
        for function in self._functions_of(nic):
            near = level(self._functions[gpu], function)
            if RANK[near] < RANK[best[0]]:
                best = (near, function.address)
        return best

    def capability(self, address: str) -> float:
        """The highest rate of a function's own link, in GB/s; 0 if it is unknown."""
        link = self._functions[address].link
        return payload_rate(link.max_speed_gts, link.max_width) or 0.0 if link else 0.0

    def common(self, gpu: str, nic: str) -> str | None:
        """The meeting point of a GPU and a NIC on the nearest path between them."""
        return meeting_point(self._functions[gpu], self._functions[self.gpu_to_nic(gpu, nic)[1]])

    def matrix(self, gpus: list[str], others: list[str], nics: set[str]) -> Affinity:
        """The levels of all pairs of devices; without levels if there are more than `MATRIX_LIMIT` devices."""
        devices = gpus + others
        if len(devices) > MATRIX_LIMIT:
            return Affinity(devices=devices)
        accelerators = set(gpus)
        rows = [["SELF"] * len(devices) for device in devices]
        for row, device in enumerate(devices):
            for column in range(row + 1, len(devices)):
                other = devices[column]
                if device in accelerators and other in nics:
                    near = self.gpu_to_nic(device, other)[0]
                else:
                    near = level(self._functions[device], self._functions[other])
                rows[row][column] = rows[column][row] = near
        return Affinity(devices=devices, levels=rows)

    def _closest_nodes(self, ends: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
        """Of devices on other NUMA nodes, those at the smallest SLIT distance; all if a distance is unknown. `ends` are
        the two functions that meet, by device."""
        distances: dict[str, int | None] = {}
        for other, (own_end, other_end) in ends.items():
            own_node, other_node = self._functions[own_end].numa_node, self._functions[other_end].numa_node
            distances[other] = None if own_node is None else self._distances.get(own_node, {}).get(str(other_node))
        known = [distance for distance in distances.values() if distance is not None]
        if len(known) < len(distances):
            return ends
        return {other: end for other, end in ends.items() if distances[other] == min(known)}

    def neighbours(self, addresses: t.Iterable[str]) -> Neighbours:
        """The index in which the nearest of these devices is found. It is cached for the same devices."""
        key = tuple(addresses)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = Neighbours({address: self._functions_of(address) for address in key})
        return index

    def nearest(self, address: str, among: Neighbours) -> Nearest:
        """The nearest of the indexed devices. `via` maps a NIC to the DMA function that makes it near."""
        result = among.results.get(address)
        if result is None:
            result = among.results[address] = self._nearest(address, among)
        return result

    def _nearest(self, address: str, among: Neighbours) -> Nearest:
        if address in self.undecided:
            return Nearest()
        nearest_level, ends = among.nearest(self._functions_of(address))
        if nearest_level == "SYS":
            ends = self._closest_nodes(ends)
        result = Nearest(level=nearest_level, devices=sorted(ends, key=sort_key))
        for other, (own_end, other_end) in ends.items():
            if own_end != address:
                result.via[address] = own_end
            elif other_end != other:
                result.via[other] = other_end
        return result


def _keys(function: PciFunction) -> list[list[tuple[str, str | int]]]:
    """The keys that a function shares with others within each level: PIX, PXB, PHB and NODE."""
    near: list[tuple[str, str | int]] = [("slot", slot_of(function.address))]
    near += [("bridge", bridge) for bridge in function.bridges[-2:]]
    if function.switch_label is not None:
        near.append(("label", function.switch_label))
    return [
        near,
        [("tree", function.bridges[0])] if function.bridges else [],
        [("root", function.root_complex)] if function.root_complex else [],
        [("numa", function.numa_node)] if function.numa_node is not None else [],
    ]


class Neighbours:
    """An index of devices by what they share with others, so that the nearest are found without comparing all pairs."""

    def __init__(self, functions_of: dict[str, list[PciFunction]]) -> None:
        self.results: dict[str, Nearest] = {}  # earlier results, by device
        self._functions_of = functions_of
        self._members: dict[tuple[str, str | int], list[str]] = {}
        for address, functions in functions_of.items():
            for function in functions:
                for tier in _keys(function):
                    for key in tier:
                        members = self._members.setdefault(key, [])
                        if not members or members[-1] != address:
                            members.append(address)

    def __bool__(self) -> bool:
        return bool(self._functions_of)

    @staticmethod
    def _meeting(functions: list[PciFunction], others: list[PciFunction]) -> tuple[str, str, str]:
        """The nearest level between two devices, and the two functions to which it applies."""
        function, other = functions[0], others[0]
        best = (level(function, other), function.address, other.address)
        if len(functions) > 1 or len(others) > 1:
            for function in functions:
                for other in others:
                    near = level(function, other)
                    if RANK[near] < RANK[best[0]]:
                        best = (near, function.address, other.address)
        return best

    def nearest(self, functions: list[PciFunction]) -> tuple[str, dict[str, tuple[str, str]]]:
        """The nearest level of any indexed device to `functions`, and for each device the two functions that meet."""
        for tier, bound in enumerate(("PIX", "PXB", "PHB", "NODE", "SYS")):
            candidates: dict[str, None] = {}
            if bound == "SYS":
                candidates = dict.fromkeys(self._functions_of)
            else:
                for function in functions:
                    for key in _keys(function)[tier]:
                        candidates.update(dict.fromkeys(self._members.get(key, ())))
            best = "UNKNOWN"
            ends: dict[str, tuple[str, str]] = {}
            for address in candidates:
                near, own_end, other_end = self._meeting(functions, self._functions_of[address])
                if near == "UNKNOWN" or RANK[near] > RANK[best]:
                    continue
                if near != best:
                    best, ends = near, {}
                ends[address] = (own_end, other_end)
            if RANK[best] <= RANK[bound]:
                return best, ends
        return "UNKNOWN", {}


def find_nearest(proximity: Proximity, gpus: list[Gpu], nics: list[Nic]) -> None:
    """Set the nearest NICs of every GPU, and the nearest GPUs of every NIC. VFs are left out: they are where their PF
    is."""
    physical = [nic for nic in nics if nic.physfn is None]
    near_nics = proximity.neighbours(nic.address for nic in physical)
    near_gpus = proximity.neighbours(gpu.address for gpu in gpus if gpu.address not in proximity.undecided)
    for gpu in gpus:
        gpu.nearest_nics = proximity.nearest(gpu.address, near_nics)
    for nic in physical:
        nic.nearest_gpus = proximity.nearest(nic.address, near_gpus)


def fabric_nics(nics: list[Nic]) -> list[Nic]:
    """The NICs that can carry GPU traffic: PFs with an RDMA device, or all PFs if the node has no RDMA device.

    NICs that carry the default route do not count, unless most NICs do: then routes do not distinguish them.
    An RDMA device that is in a pod counts, so that the result does not depend on who uses a card.
    """
    physical = [nic for nic in nics if nic.physfn is None]
    capable = [nic for nic in physical if nic.rdma_devices or "rdma_device" in nic.elsewhere] or physical
    others = [nic for nic in capable if not nic.default_route]
    return others if 2 * len(others) >= len(capable) else capable


def find_groups(proximity: Proximity, gpus: list[Gpu], nics: list[Nic]) -> list[Group]:
    """Pairing groups: GPUs and fabric NICs that are among each other's nearest devices, at level NODE or nearer.

    Both sides must agree, so that a GPU whose NIC is missing does not join the pairs of its neighbors.
    """
    fabric = [nic.address for nic in fabric_nics(nics)]
    near_nics = proximity.neighbours(fabric)
    near_gpus = proximity.neighbours(gpu.address for gpu in gpus if gpu.address not in proximity.undecided)
    served = {address: proximity.nearest(address, near_gpus) for address in fabric}
    groups: dict[int, Group] = {}  # by identity
    group_of: dict[str, Group] = {}  # NIC -> group
    for gpu in gpus:
        near = proximity.nearest(gpu.address, near_nics)
        partners = [address for address in near.devices if served[address].level == near.level]
        if not partners or RANK[near.level] > RANK["NODE"]:
            continue
        group = Group(level=near.level, gpus=[gpu.address], nics=partners)
        for address in partners:
            other = group_of.get(address)
            if other is not None and other is not group:
                other.gpus += [gpu_address for gpu_address in group.gpus if gpu_address not in other.gpus]
                other.nics += [nic_address for nic_address in group.nics if nic_address not in other.nics]
                groups.pop(id(group), None)  # this GPU joins two groups
                group = other
        groups[id(group)] = group
        for address in group.nics:
            group_of[address] = group
    for group in groups.values():
        group.gpus.sort(key=sort_key)
        group.nics.sort(key=sort_key)
        # all members share what the two farthest share; the distances of one GPU and one NIC include every distance
        pairs = [(group.gpus[0], nic) for nic in group.nics] + [(gpu, group.nics[0]) for gpu in group.gpus]
        group.common = proximity.common(*max(pairs, key=lambda pair: RANK[proximity.gpu_to_nic(*pair)[0]]))
    return list(groups.values())


def number_rails(proximity: Proximity, groups: list[Group], gpus: list[Gpu], nics: list[Nic]) -> None:
    """Number the rails of NICs and GPUs: as the site states them, or else derived from the groups.

    Rails are counted by GPU, so that a rail has the same number on all nodes of one model, even if a NIC is missing.
    With K NICs per GPU, GPU N has the rails from N*K on. With one NIC for S GPUs, GPU N has rail N/S. K and S are the
    smallest values of all groups. Of a group's NICs, only those with the highest possible PCIe rate count, whatever
    their current link. Other NICs (storage) and GPUs outside all groups have no rail.
    """
    if any(nic.rail_source == "override" for nic in nics):
        _follow_stated_rails(proximity, gpus, nics)
    elif groups:
        _derive_rails(proximity, groups, gpus, nics)
    _pass_rails_to_vfs(nics)


def _follow_stated_rails(proximity: Proximity, gpus: list[Gpu], nics: list[Nic]) -> None:
    """Give every GPU the rail of a nearest NIC with a stated rail; of several, the one that serves the fewest GPUs."""
    stated = {nic.address: nic for nic in nics if nic.rail_source == "override" and nic.physfn is None}
    among = proximity.neighbours(stated)
    served = dict.fromkeys(stated, 0)
    for gpu in gpus:
        near = proximity.nearest(gpu.address, among)
        if RANK[near.level] <= RANK["NODE"]:
            chosen = min(near.devices, key=served.__getitem__)
            served[chosen] += 1
            gpu.rail = stated[chosen].rail


def _derive_rails(proximity: Proximity, groups: list[Group], gpus: list[Gpu], nics: list[Nic]) -> None:
    gpu_at = {gpu.address: gpu for gpu in gpus}
    nic_at = {nic.address: nic for nic in nics}
    widest = []
    for group in groups:
        best = max(map(proximity.capability, group.nics))
        widest.append([address for address in group.nics if proximity.capability(address) == best])
    nics_per_gpu = max(1, min(len(rail_nics) // len(group.gpus) for group, rail_nics in zip(groups, widest)))
    gpus_per_nic = min(-(-len(group.gpus) // len(rail_nics)) for group, rail_nics in zip(groups, widest))
    used: set[int] = set()
    for group, rail_nics in zip(groups, widest):
        for position, address in enumerate(group.gpus):
            start = position // gpus_per_nic * nics_per_gpu
            gpu_nics = rail_nics[start : start + nics_per_gpu] or rail_nics[-1:]
            first = gpu_at[address].index // gpus_per_nic * nics_per_gpu
            for offset, nic in enumerate(gpu_nics):
                if nic_at[nic].rail is None:
                    rail = first + offset
                    while rail in used:  # the GPUs of several groups alternate in address order
                        rail += 1
                    used.add(rail)
                    nic_at[nic].rail, nic_at[nic].rail_source = rail, "derived"
            gpu_at[address].rail = nic_at[gpu_nics[0]].rail


def _pass_rails_to_vfs(nics: list[Nic]) -> None:
    by_address = {nic.address: nic for nic in nics}
    for nic in nics:
        if nic.physfn and nic.rail is None:
            parent = by_address.get(nic.physfn)
            if parent is not None and parent.rail is not None:
                nic.rail, nic.rail_source = parent.rail, parent.rail_source
