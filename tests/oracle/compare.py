# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare what the probe and hwloc report about a node, fact by fact.

A difference is either explained by one of `RULES`, whose condition is checked against the node's own files, or it is
unexplained. docs/oracles.md has the evidence for each rule.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology import cpuset
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import PciFunction, Topology
from ansible_collections.lanewise.dra.tests.oracle import lstopo

RULES = {
    "wide-domain": "hwloc ignores PCI domains of more than 16 bits, and the devices of their functions",
    "bridge-without-buses": "hwloc drops a bridge whose config space names no valid range of buses",
    "bridge-without-config": "hwloc recognizes a bridge by config space; without it the function is a plain device",
    "bridge-of-other-class": "a parent that is not a PCI-to-PCI bridge (CardBus, ...) is a device to hwloc",
    "bridge-not-recorded": "the kernel's path names a bridge that the recording left out of /sys/bus/pci/devices",
    "host-bridge-by-bus": "hwloc creates a host bridge for each bus without a parent bridge, not for each root complex",
    "no-kernel-path": "no link from /sys/bus/pci/devices: hwloc uses bus numbers, the probe reports unknown",
    "id-without-file": "hwloc reads ids from their own files only; the probe also from uevent and config space",
    "revision-without-config": "hwloc reads the revision from config space only and reports ff without it",
    "unreadable-is-zero": "hwloc writes 0 if a file is missing; the probe reports null",
    "encoding-from-text": "hwloc takes the text '5.0 GT/s' for 128b/130b and '64.0 GT/s' for no FLIT",
    "no-locality": "a function without local CPUs belongs to the whole machine in hwloc; the probe reports unknown",
    "locality-from-list": "hwloc reads local_cpus only; the probe also local_cpulist",
    "locality-of-host-bridge": "hwloc places a whole host bridge by the CPUs of its first function",
    "locality-not-read": "if numa_node is set, the probe does not read local_cpus of other functions; hwloc does",
    "locality-conflict": "hwloc cannot insert a CPU set that crosses another object's; it uses one that covers both",
    "numa-from-file": "hwloc derives a function's NUMA node from its CPUs only; the kernel's numa_node is more precise",
    "no-nodes": "without /sys/devices/system/node hwloc makes up node 0",
    "node-from-list": "hwloc drops a NUMA node without cpumap; the probe also reads cpulist",
    "node-overlap": "hwloc drops a NUMA node whose CPUs are also another's",
    "node-without-cpus": "hwloc gives a NUMA node without CPUs those of a place that it chooses",
    "offline-cpus": "hwloc leaves CPUs that are offline or not recorded out of packages and NUMA nodes",
    "no-distances": "hwloc shows no distances for a single node or where one node was dropped",
    "package-conflict": "hwloc drops a package whose CPUs cross another object's",
    "virtual-interface": "hwloc leaves out interfaces below /sys/devices/virtual",
    "class-directory": "hwloc skips entries of /sys/class that are directories without a device link",
    "other-fabric": "hwloc also counts devices of /sys/class/bxi and /sys/class/cxi as OpenFabrics",
    "no-nvme-class": "the tree has the block device of an NVMe drive but not its controller",
}

_STATES = {"1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}
_OTHER_FABRICS = ("BXI", "Slingshot")


@dataclass
class Comparison:
    name: str
    functions: int = 0
    facts: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        fired = ", ".join(f"{rule} {count}" for rule, count in sorted(self.rules.items()))
        text = f"{self.name}: {self.functions} functions, {self.facts} facts; {fired or 'no differences'}"
        return text + "".join(f"\n    UNEXPLAINED {line}" for line in self.unexplained)


def compare(name: str, root: Path, topology: Topology, seen: lstopo.Machine) -> Comparison:
    """Compare one node. `root` is the folder of its files, with which the rules are checked."""
    return _Comparer(name, root, topology, seen).run()


def _bits(text: str | None) -> int | None:
    return None if text is None else cpuset.from_list(text)


def _mask(text: str) -> int | None:
    """A mask as hwloc parses it: hexadecimal words of any length, with or without 0x."""
    try:
        words = [int(word, 16) for word in text.split(",")]
    except ValueError:
        return None
    return sum(word << 32 * place for place, word in enumerate(reversed(words)))


class _Comparer:
    def __init__(self, name: str, root: Path, topology: Topology, seen: lstopo.Machine) -> None:
        self.result = Comparison(name)
        self.root, self.topology, self.seen = root, topology, seen

    def run(self) -> Comparison:
        self.function_set()
        both = [f for address, f in self.topology.functions.items() if address in self.seen.functions]
        self.result.functions = len(both)
        for function in both:
            theirs = self.seen.functions[function.address]
            self.identity(function, theirs)
            self.bridges(function, theirs)
            self.link(function, theirs)
            self.locality(function, theirs)
        self.host_bridges(both)
        self.os_devices()
        self.numa_nodes()
        self.packages()
        return self.result

    # Helpers

    def check(self, what: str, ours: t.Any, theirs: t.Any, rule: str | None = None) -> None:
        """Count a fact. `rule` is the rule whose condition holds, if one does; it only matters if they differ."""
        self.result.facts += 1
        if ours == theirs:
            return
        if rule:
            self.result.rules[rule] += 1
        else:
            self.result.unexplained.append(f"{what}: probe {ours!r}, hwloc {theirs!r}")

    def path(self, address: str, name: str = "") -> Path:
        return self.root / "sys/bus/pci/devices" / address / name

    def config(self, address: str) -> bytes:
        try:
            with open(self.path(address, "config"), "rb") as file:
                return file.read(256)
        except OSError:
            return b""

    def text(self, address: str, name: str) -> str:
        """The text of a function's file, empty if there is none."""
        try:
            return self.path(address, name).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def bridge_rule(self, address: str) -> str | None:
        """Why hwloc would not know this function as a bridge."""
        if _wide(address):
            return "wide-domain"
        if not self.path(address).exists():
            return "bridge-not-recorded"
        config = self.config(address)
        if self.text(address, "class")[2:6] != "0604":
            return "bridge-of-other-class"
        if len(config) < 0x1B or config[0x0E] & 0x7F != 1:
            return "bridge-without-config"
        bus, secondary, subordinate = int(address.split(":")[1], 16), config[0x19], config[0x1A]
        if secondary <= bus or subordinate <= bus or secondary > subordinate:
            return "bridge-without-buses"
        return None

    # PCI

    def function_set(self) -> None:
        for address in sorted(set(self.topology.functions) | set(self.seen.functions)):
            ours, theirs = address in self.topology.functions, address in self.seen.functions
            rule = None
            if ours and not theirs:
                if _wide(address):
                    rule = "wide-domain"
                elif self.bridge_rule(address) == "bridge-without-buses":
                    rule = "bridge-without-buses"
            self.check(f"{address} exists", ours, theirs, rule)

    def identity(self, function: PciFunction, theirs: lstopo.Function) -> None:
        files = {"class_code": "class", "vendor_id": "vendor", "device_id": "device"}
        for key, value in theirs.ids.items():
            ours = getattr(function, key)
            if key == "class_code" and ours is not None:
                ours = ours[:4]
            rule = None
            if key == "revision":
                stated = self.text(function.address, "revision")
                if len(self.config(function.address)) < 9 and value == "ff" and ours == (stated[2:] or None):
                    rule = "revision-without-config"
            elif not int(value, 16) and not self.path(function.address, files.get(key, key[:-3])).exists():
                if ours is None:
                    rule = "unreadable-is-zero"
                elif ours in self.text(function.address, "uevent").lower():
                    rule = "id-without-file"
                elif bytes.fromhex(ours)[::-1] in self.config(function.address)[:64]:
                    rule = "id-without-file"
            self.check(f"{function.address} {key}", ours, value, rule)

    def bridges(self, function: PciFunction, theirs: lstopo.Function) -> None:
        if function.root_complex is None:
            rule = None if os.path.islink(self.root / "sys/bus/pci/devices" / function.address) else "no-kernel-path"
            self.check(f"{function.address} bridges", function.bridges, theirs.bridges, rule)
            return
        expected = []
        for bridge in function.bridges:
            rule = self.bridge_rule(bridge)
            if rule is None:
                expected.append(bridge)
            else:
                self.check(f"{function.address} below {bridge}", True, bridge in theirs.bridges, rule)
        self.check(f"{function.address} bridges", expected, theirs.bridges)

    def host_bridges(self, both: list[PciFunction]) -> None:
        """Functions share hwloc's host bridge if and only if they share our root complex."""
        groups: dict[int, list[PciFunction]] = {}
        for function in both:
            groups.setdefault(self.seen.functions[function.address].host_bridge, []).append(function)
        homes: dict[str, list[int]] = {}
        for host, members in groups.items():
            roots = {function.root_complex for function in members}
            rule = "no-kernel-path" if None in roots else None
            self.check(f"root complexes of {[f.address for f in members]}", len(roots), 1, rule)
            for root in roots - {None}:
                homes.setdefault(str(root), []).append(host)
        for root, hosts in homes.items():
            # explained if each further host bridge begins on another bus than the root complex itself
            odd = []
            for host in hosts:
                tops = [f.address for f in groups[host] if not self.seen.functions[f.address].bridges]
                if any(address.rpartition(":")[0] == root[3:] for address in tops):
                    odd.append(host)
            rule = "host-bridge-by-bus" if len(odd) <= 1 else None
            self.check(f"host bridges of {root}", 1, len(hosts), rule)

    def link(self, function: PciFunction, theirs: lstopo.Function) -> None:
        link = function.link
        ours = (link.gb_per_s if link else None) or 0.0
        rule = None
        from_config = self.link_status(function.address)
        speed, width = self.text_of_link(function.address)
        if _near(ours, speed * _coding(speed) * width / 8):  # the kernel's text, with the coding of that generation
            if from_config is None and _near(theirs.speed, speed * 128 / 130 * width / 8):
                rule = "encoding-from-text"
        same = _near(ours, theirs.speed)
        self.check(f"{function.address} GB/s", theirs.speed if same else ours, theirs.speed, rule)

    def text_of_link(self, address: str) -> tuple[float, int]:
        """GT/s and lanes in current_link_*, 0 if the kernel does not know them."""
        speed = re.match(r"^[\d.]+ ", self.text(address, "current_link_speed"))
        width = self.text(address, "current_link_width")
        return float(speed.group()) if speed else 0.0, int(width) if width.isdigit() else 0

    def link_status(self, address: str) -> float | None:
        """GB/s by the PCI Express capability, or None if config space does not contain it."""
        config = self.config(address)
        if len(config) < 0x40 or not config[0x06] & 0x10:
            return None
        offset, hops = config[0x34] & 0xFC, 0
        while 0x40 <= offset <= len(config) - 20 and hops < 48:
            if config[offset] == 0x10:
                status = int.from_bytes(config[offset + 0x12 : offset + 0x14], "little")
                generation, width = status & 0xF, status >> 4 & 0x3F
                speed = (0, 2.5, 5, 8, 16, 32, 64, 128)[generation] if generation < 8 else 0
                return speed * _coding(speed) * width / 8
            offset, hops = config[offset + 1] & 0xFC, hops + 1
        return None

    def locality(self, function: PciFunction, theirs: lstopo.Function) -> None:
        seen = self.seen
        first = min(
            (a for a, f in seen.functions.items() if f.host_bridge == theirs.host_bridge and not f.bridges),
            key=lambda address: [int(part, 16) for part in re.split("[:.]", address)],
        )
        own = _bits(function.local_cpus)
        ours = None if own is None else own & seen.cpus
        rule = self.locality_rule(function.address, first, ours, theirs.cpus)
        self.check(f"{function.address} CPUs", ours, theirs.cpus, rule)
        node = function.numa_node
        with_cpus = {n.id for n in self.topology.numa_nodes if n.cpus}
        nodes = {number for number in with_cpus if theirs.nodes >> number & 1}
        if node is None:
            # unknown is right unless hwloc's place is in exactly one of several nodes
            one = len(nodes) == 1 and len(with_cpus) > 1
            self.check(f"{function.address} NUMA", False, one)
            return
        rule = None
        if node not in self.seen.nodes:
            rule = self.node_rule(node)
        elif self.text(function.address, "numa_node") == str(node):
            spread = len(nodes) > 1 or node not in with_cpus
            if spread and theirs.nodes >> node & 1 or first != function.address and theirs.cpus != ours:
                rule = "numa-from-file"
        elif self.rule_of_list(function.address):
            rule = "locality-from-list"
        self.check(f"{function.address} NUMA", {node}, nodes, rule)

    def rule_of_list(self, address: str) -> bool:
        return not self.path(address, "local_cpus").exists() and self.path(address, "local_cpulist").exists()

    def is_stated(self, address: str) -> bool:
        """Whether our local CPUs are those of one of the function's files, or unknown if neither file exists."""
        own = _bits(self.topology.functions[address].local_cpus)
        reported = []
        for name, parse in (("local_cpulist", cpuset.from_list), ("local_cpus", _mask)):
            if self.path(address, name).exists():
                reported.append(parse(self.text(address, name)))
        return own in (reported or [None])

    def locality_rule(self, address: str, first: str, ours: int | None, theirs: int) -> str | None:
        seen, function = self.seen, self.topology.functions[address]
        if ours is None and function.kind == "other" and self.text(address, "numa_node") == str(function.numa_node):
            return "locality-not-read"
        if not self.is_stated(address):
            return None
        if self.rule_of_list(first) and theirs == seen.cpus:
            return "locality-from-list"
        expected = (_mask(self.text(first, "local_cpus")) or 0) & seen.cpus or seen.cpus
        if theirs == expected:
            if not ours and theirs == seen.cpus:
                return "no-locality"
            return "locality-of-host-bridge" if first != address else None
        crossing = any(one & expected and one & ~expected and expected & ~one for one in seen.cpu_sets)
        return "locality-conflict" if crossing and expected & ~theirs == 0 else None

    # OS devices

    def os_devices(self) -> None:
        found = {(device.kind, device.name): device for device in self.seen.devices}
        interfaces = {("network", one.name): one.address for one in self.topology.interfaces}
        rdma = {("openfabrics", one.name): one.address for one in self.topology.rdma_devices}
        for key, address in {**interfaces, **rdma}.items():
            device = found.pop(key, None)
            if device is None:
                self.check(f"{key} exists", True, False, self.class_rule(*key))
                continue
            rule = "wide-domain" if address and _wide(address) else None
            self.check(f"{key} address", address, device.address, rule)
        for one in self.topology.rdma_devices:
            for device in self.seen.devices:
                if (device.kind, device.name) == ("openfabrics", one.name):
                    self.rdma(one, device)
        controllers = {name: nvme.address for nvme in self.topology.nvme for name in nvme.controllers}
        for (kind, name), device in found.items():
            match = re.match(r"^(nvme\d+)(c\d+)?n\d+$", name)
            if kind == "block":
                if match:
                    self.nvme(name, match.group(1), device.address, controllers)
                continue
            rule = "other-fabric" if device.subtype in _OTHER_FABRICS else None
            self.check(f"{kind} {name} exists", False, True, rule)

    def class_rule(self, kind: str, name: str) -> str | None:
        entry = self.root / "sys/class" / ("net" if kind == "network" else "infiniband") / name
        if entry.is_symlink() and "/virtual/" in os.readlink(entry):
            return "virtual-interface"
        return "class-directory" if not entry.is_symlink() and not (entry / "device").is_symlink() else None

    def rdma(self, ours: t.Any, theirs: lstopo.OsDevice) -> None:
        self.check(f"{ours.name} GUID", ours.node_guid, theirs.info.get("NodeGUID"))
        self.check(f"{ours.name} system GUID", ours.sys_image_guid, theirs.info.get("SysImageGUID"))
        for port in ours.ports:
            info = lstopo.port_infos(theirs.info, port.port)
            self.check(f"{ours.name}/{port.port} state", port.state, _STATES.get(str(info["state"])))
            self.check(f"{ours.name}/{port.port} LID", port.lid, info["lid"])
            self.check(f"{ours.name}/{port.port} GIDs", {gid.index: gid.gid for gid in port.gids}, info["gids"])

    def nvme(self, name: str, controller: str, address: str | None, controllers: dict[str, str]) -> None:
        rule = None
        if not (self.root / "sys/class/nvme").is_dir() and not self.path(address or "", "nvme").is_dir():
            known = address in {one.address for one in self.topology.nvme}
            self.check(f"{name} is on an NVMe function", known, True)
            rule = "no-nvme-class"
        elif _wide(controllers.get(controller) or ""):
            rule = "wide-domain"
        self.check(f"{name} address", controllers.get(controller), address, rule)

    # CPUs and memory

    def numa_nodes(self) -> None:
        topology, seen = self.topology, self.seen
        folder = self.root / "sys/devices/system/node"
        if not topology.numa_nodes:
            rule = "no-nodes" if list(seen.nodes) == [0] and not folder.is_dir() else None
            self.check("NUMA nodes", [], sorted(seen.nodes), rule)
            return
        for node in topology.numa_nodes:
            cpus = _bits(node.cpus) or 0
            self.check(f"node {node.id} exists", True, node.id in seen.nodes, self.node_rule(node.id))
            if node.id not in seen.nodes:
                continue
            place, memory = seen.nodes[node.id]
            rule = "node-without-cpus" if node.cpus == "" else None
            if cpus and cpus & seen.online == place & seen.online:
                rule = "offline-cpus"
            self.check(f"node {node.id} CPUs", cpus & seen.cpus, place, rule)
            rule = None if node.memory_bytes is not None or memory else "unreadable-is-zero"
            self.check(f"node {node.id} memory", node.memory_bytes, memory, rule)
            ours = {int(number): value for number, value in node.distances.items()}
            dropped = len(topology.numa_nodes) < 2 or len(seen.nodes) < len(topology.numa_nodes)
            rule = "no-distances" if dropped and node.id not in seen.distances else None
            self.check(f"node {node.id} distances", ours, seen.distances.get(node.id, {}), rule)
        extra = set(seen.nodes) - {node.id for node in topology.numa_nodes}
        self.check("further NUMA nodes", set(), extra)

    def node_rule(self, number: int) -> str | None:
        """Why hwloc would not have this NUMA node."""
        if not (self.root / f"sys/devices/system/node/node{number}/cpumap").exists():
            return "node-from-list"
        cpus = {node.id: _bits(node.cpus) or 0 for node in self.topology.numa_nodes}
        before = [bits for other, bits in cpus.items() if other < number]
        return "node-overlap" if any(bits & cpus.get(number, 0) for bits in before) else None

    def packages(self) -> None:
        seen = self.seen
        ours = {package.id: _bits(package.cpus) or 0 for package in self.topology.packages}
        theirs = {number: cpus for number, cpus in seen.packages if number is not None}
        for number in sorted(set(ours) | set(theirs)):
            own = ours.get(number)
            rule = None
            if own is not None and number not in theirs:
                if any(one & own and one & ~own and own & ~one for one in seen.cpu_sets):
                    rule = "package-conflict"
            elif own is not None and own & seen.online == theirs[number]:
                rule = "offline-cpus"
            self.check(f"package {number} CPUs", own, theirs.get(number), rule)


def _wide(address: str) -> bool:
    return len(address.partition(":")[0]) > 4


def _coding(speed: float) -> float:
    """Payload bits per bit: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, FLITs of 242 in 256 bytes above."""
    return 0.8 if speed <= 5 else 128 / 130 if speed <= 32 else 242 / 256


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= 0.0006 + 0.0001 * other
