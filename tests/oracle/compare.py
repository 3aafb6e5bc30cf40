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
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import PciFunction, RdmaDevice, Topology
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
    "encoding-from-text": "hwloc assumes 128b/130b encoding for the text '5.0 GT/s', and no FLITs for '64.0 GT/s'",
    "no-locality": "a function without local CPUs belongs to the whole machine in hwloc; the probe reports unknown",
    "locality-from-list": "hwloc reads local_cpus only; the probe also local_cpulist",
    "locality-of-host-bridge": "hwloc places a whole host bridge by the CPUs of its first function",
    "locality-not-read": "if numa_node is set, the probe does not read local_cpus of other functions; hwloc does",
    "locality-conflict": "hwloc cannot insert a CPU set that partly overlaps another; it uses one that covers both",
    "numa-from-file": "hwloc derives a function's NUMA node from its CPUs only; the kernel's numa_node is more precise",
    "no-nodes": "without /sys/devices/system/node hwloc makes up node 0",
    "node-from-list": "hwloc drops a NUMA node without cpumap; the probe also reads cpulist",
    "node-overlap": "hwloc drops a NUMA node with CPUs that also belong to another node",
    "node-without-cpus": "hwloc assigns CPUs of its own choice to a NUMA node without CPUs",
    "offline-cpus": "hwloc leaves CPUs that are offline or not recorded out of packages and NUMA nodes",
    "no-distances": "hwloc shows no distances for a single node or after it dropped a node",
    "package-conflict": "hwloc drops a package whose CPUs partly overlap those of another object",
    "virtual-interface": "hwloc leaves out interfaces below /sys/devices/virtual",
    "class-directory": "hwloc skips entries of /sys/class that are directories without a device link",
    "other-fabric": "hwloc also counts devices of /sys/class/bxi and /sys/class/cxi as OpenFabrics",
    "no-nvme-class": "the tree has the block device of an NVMe drive but not its controller",
}

_STATES = {"1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}
_OTHER_FABRICS = ("BXI", "Slingshot")


@dataclass
class Comparison:
    """The result for one tree: how many facts were compared, and the differences with and without a rule."""

    name: str
    functions: int = 0
    facts: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(self.rules.items()))
        text = f"{self.name}: {self.functions} functions, {self.facts} facts; {rules or 'no differences'}"
        return text + "".join(f"\n    UNEXPLAINED {line}" for line in self.unexplained)


def compare(name: str, root: Path, topology: Topology, machine: lstopo.Machine) -> Comparison:
    """Compare the probe's `topology` of a node with hwloc's `machine`; the node's files are below `root`."""
    return _Comparer(name, root, topology, machine).run()


def _bits(cpu_list: str | None) -> int | None:
    """The bits of a list like 0-3,8."""
    return None if cpu_list is None else cpuset.from_list(cpu_list)


def _mask(text: str) -> int | None:
    """A mask as hwloc parses it: hexadecimal words of any length, with or without 0x."""
    try:
        words = [int(word, 16) for word in text.split(",")]
    except ValueError:
        return None
    return sum(word << 32 * position for position, word in enumerate(reversed(words)))


class _Comparer:
    """Compares one node.

    A parameter `hwloc` is a value, function or device as reported by hwloc, and `probed` as reported by the probe.
    """

    def __init__(self, name: str, root: Path, topology: Topology, machine: lstopo.Machine) -> None:
        self.result = Comparison(name)
        self.root, self.topology, self.machine = root, topology, machine

    def run(self) -> Comparison:
        self.compare_function_sets()
        common = [f for address, f in self.topology.functions.items() if address in self.machine.functions]
        self.result.functions = len(common)
        for function in common:
            hwloc = self.machine.functions[function.address]
            self.compare_ids(function, hwloc)
            self.compare_bridges(function, hwloc)
            self.compare_link(function, hwloc)
            self.compare_locality(function, hwloc)
        self.compare_host_bridges(common)
        self.compare_os_devices()
        self.compare_numa_nodes()
        self.compare_packages()
        return self.result

    # Helpers

    def check(self, fact: str, probed: t.Any, hwloc: t.Any, rule: str | None = None) -> None:
        """Compare one fact. `rule` is the rule that explains a difference; without it a difference is unexplained."""
        self.result.facts += 1
        if probed == hwloc:
            return
        if rule:
            self.result.rules[rule] += 1
        else:
            self.result.unexplained.append(f"{fact}: probe {probed!r}, hwloc {hwloc!r}")

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
        """The rule by which hwloc does not report this function as a bridge, or None."""
        if _has_wide_domain(address):
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

    def compare_function_sets(self) -> None:
        for address in sorted(set(self.topology.functions) | set(self.machine.functions)):
            probed, hwloc = address in self.topology.functions, address in self.machine.functions
            rule = None
            if probed and not hwloc:
                if _has_wide_domain(address):
                    rule = "wide-domain"
                elif self.bridge_rule(address) == "bridge-without-buses":
                    rule = "bridge-without-buses"
            self.check(f"{address} exists", probed, hwloc, rule)

    def compare_ids(self, function: PciFunction, hwloc: lstopo.Function) -> None:
        files = {"class_code": "class", "vendor_id": "vendor", "device_id": "device"}
        for key, value in hwloc.ids.items():
            probed = getattr(function, key)
            if key == "class_code" and probed is not None:
                probed = probed[:4]
            rule = None
            if key == "revision":
                revision = self.text(function.address, "revision")
                if len(self.config(function.address)) < 9 and value == "ff" and probed == (revision[2:] or None):
                    rule = "revision-without-config"
            elif not int(value, 16) and not self.path(function.address, files.get(key, key[:-3])).exists():
                if probed is None:
                    rule = "unreadable-is-zero"
                elif probed in self.text(function.address, "uevent").lower():
                    rule = "id-without-file"
                elif bytes.fromhex(probed)[::-1] in self.config(function.address)[:64]:
                    rule = "id-without-file"
            self.check(f"{function.address} {key}", probed, value, rule)

    def compare_bridges(self, function: PciFunction, hwloc: lstopo.Function) -> None:
        if function.root_complex is None:
            rule = None if os.path.islink(self.path(function.address)) else "no-kernel-path"
            self.check(f"{function.address} bridges", function.bridges, hwloc.bridges, rule)
            return
        expected = []
        for bridge in function.bridges:
            rule = self.bridge_rule(bridge)
            if rule is None:
                expected.append(bridge)
            else:
                self.check(f"{function.address} below {bridge}", True, bridge in hwloc.bridges, rule)
        self.check(f"{function.address} bridges", expected, hwloc.bridges)

    def compare_host_bridges(self, common: list[PciFunction]) -> None:
        """Functions share a host bridge of hwloc if and only if they share a root complex of the probe."""
        groups: dict[int, list[PciFunction]] = {}
        for function in common:
            groups.setdefault(self.machine.functions[function.address].host_bridge, []).append(function)
        hosts_by_root: dict[str, list[int]] = {}
        for host, members in groups.items():
            roots = {function.root_complex for function in members}
            rule = "no-kernel-path" if None in roots else None
            self.check(f"root complexes of {[f.address for f in members]}", len(roots), 1, rule)
            for root in roots - {None}:
                hosts_by_root.setdefault(str(root), []).append(host)
        for root, hosts in hosts_by_root.items():
            # explained if at most one host bridge begins on the bus of the root complex, the others on other buses
            on_first_bus = []
            for host in hosts:
                tops = [f.address for f in groups[host] if not self.machine.functions[f.address].bridges]
                if any(address.rpartition(":")[0] == root[3:] for address in tops):
                    on_first_bus.append(host)
            rule = "host-bridge-by-bus" if len(on_first_bus) <= 1 else None
            self.check(f"host bridges of {root}", 1, len(hosts), rule)

    def compare_link(self, function: PciFunction, hwloc: lstopo.Function) -> None:
        link = function.link
        probed = (link.gb_per_s if link else None) or 0.0
        rule = None
        from_config = self.link_speed_in_config(function.address)
        speed, width = self.link_in_text(function.address)
        if _nearly_equal(probed, speed * _payload_share(speed) * width / 8):  # the probe uses the kernel's text
            if from_config is None and _nearly_equal(hwloc.speed, speed * 128 / 130 * width / 8):
                rule = "encoding-from-text"
        same = _nearly_equal(probed, hwloc.speed)
        self.check(f"{function.address} GB/s", hwloc.speed if same else probed, hwloc.speed, rule)

    def link_in_text(self, address: str) -> tuple[float, int]:
        """GT/s and lanes in current_link_*, 0 if these files do not contain numbers."""
        speed = re.match(r"^[\d.]+ ", self.text(address, "current_link_speed"))
        width = self.text(address, "current_link_width")
        return float(speed.group()) if speed else 0.0, int(width) if width.isdigit() else 0

    def link_speed_in_config(self, address: str) -> float | None:
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
                return speed * _payload_share(speed) * width / 8
            offset, hops = config[offset + 1] & 0xFC, hops + 1
        return None

    def compare_locality(self, function: PciFunction, hwloc: lstopo.Function) -> None:
        machine = self.machine
        first = min(
            (a for a, f in machine.functions.items() if f.host_bridge == hwloc.host_bridge and not f.bridges),
            key=lambda address: [int(part, 16) for part in re.split("[:.]", address)],
        )
        cpus = _bits(function.local_cpus)
        probed = None if cpus is None else cpus & machine.cpus
        rule = self.locality_rule(function.address, first, probed, hwloc.cpus)
        self.check(f"{function.address} CPUs", probed, hwloc.cpus, rule)
        node = function.numa_node
        with_cpus = {n.id for n in self.topology.numa_nodes if n.cpus}
        nodes = {number for number in with_cpus if hwloc.nodes >> number & 1}
        if node is None:
            # unknown is right unless hwloc reports exactly one of several nodes
            known = len(nodes) == 1 and len(with_cpus) > 1
            self.check(f"{function.address} NUMA node is known", False, known)
            return
        rule = None
        if node not in self.machine.nodes:
            rule = self.node_rule(node)
        elif self.text(function.address, "numa_node") == str(node):
            imprecise = len(nodes) > 1 or node not in with_cpus
            if imprecise and hwloc.nodes >> node & 1 or first != function.address and hwloc.cpus != probed:
                rule = "numa-from-file"
        elif self.has_list_only(function.address):
            rule = "locality-from-list"
        self.check(f"{function.address} NUMA", {node}, nodes, rule)

    def has_list_only(self, address: str) -> bool:
        """Whether the local CPUs of a function are available as a list but not as a mask."""
        return not self.path(address, "local_cpus").exists() and self.path(address, "local_cpulist").exists()

    def matches_a_file(self, address: str) -> bool:
        """Whether the probe's local CPUs are those of a file of the function, or unknown if neither file exists."""
        probed = _bits(self.topology.functions[address].local_cpus)
        in_files = []
        for name, parse in (("local_cpulist", cpuset.from_list), ("local_cpus", _mask)):
            if self.path(address, name).exists():
                in_files.append(parse(self.text(address, name)))
        return probed in (in_files or [None])

    def locality_rule(self, address: str, first: str, probed: int | None, hwloc: int) -> str | None:
        """The rule for different local CPUs. `first` is the first function below the same host bridge."""
        machine, function = self.machine, self.topology.functions[address]
        if probed is None and function.kind == "other" and self.text(address, "numa_node") == str(function.numa_node):
            return "locality-not-read"
        if not self.matches_a_file(address):
            return None
        if self.has_list_only(first) and hwloc == machine.cpus:
            return "locality-from-list"
        expected = (_mask(self.text(first, "local_cpus")) or 0) & machine.cpus or machine.cpus
        if hwloc == expected:
            if not probed and hwloc == machine.cpus:
                return "no-locality"
            return "locality-of-host-bridge" if first != address else None
        return "locality-conflict" if self.partly_overlaps(expected) and expected & ~hwloc == 0 else None

    def partly_overlaps(self, cpus: int) -> bool:
        """Whether an object of hwloc contains some but not all of these CPUs, and also others."""
        return any(
            object_cpus & cpus and object_cpus & ~cpus and cpus & ~object_cpus for object_cpus in self.machine.cpu_sets
        )

    # OS devices

    def compare_os_devices(self) -> None:
        unmatched = {(device.kind, device.name): device for device in self.machine.devices}
        interfaces = {("network", interface.name): interface.address for interface in self.topology.interfaces}
        rdma = {("openfabrics", device.name): device.address for device in self.topology.rdma_devices}
        for key, address in {**interfaces, **rdma}.items():
            device = unmatched.pop(key, None)
            if device is None:
                self.check(f"{key} exists", True, False, self.class_rule(*key))
                continue
            rule = "wide-domain" if address and _has_wide_domain(address) else None
            self.check(f"{key} address", address, device.address, rule)
        for rdma_device in self.topology.rdma_devices:
            for device in self.machine.devices:
                if (device.kind, device.name) == ("openfabrics", rdma_device.name):
                    self.compare_rdma_device(rdma_device, device)
        controllers = {name: nvme.address for nvme in self.topology.nvme for name in nvme.controllers}
        for (kind, name), device in unmatched.items():
            match = re.match(r"^(nvme\d+)(c\d+)?n\d+$", name)
            if kind == "block":
                if match:
                    self.compare_nvme(name, match.group(1), device.address, controllers)
                continue
            rule = "other-fabric" if device.subtype in _OTHER_FABRICS else None
            self.check(f"{kind} {name} exists", False, True, rule)

    def class_rule(self, kind: str, name: str) -> str | None:
        """The rule by which hwloc does not report a network interface or RDMA device, or None."""
        entry = self.root / "sys/class" / ("net" if kind == "network" else "infiniband") / name
        if entry.is_symlink() and "/virtual/" in os.readlink(entry):
            return "virtual-interface"
        return "class-directory" if not entry.is_symlink() and not (entry / "device").is_symlink() else None

    def compare_rdma_device(self, probed: RdmaDevice, hwloc: lstopo.OsDevice) -> None:
        self.check(f"{probed.name} GUID", probed.node_guid, hwloc.info.get("NodeGUID"))
        self.check(f"{probed.name} system GUID", probed.sys_image_guid, hwloc.info.get("SysImageGUID"))
        for port in probed.ports:
            info = lstopo.port_info(hwloc.info, port.port)
            self.check(f"{probed.name}/{port.port} state", port.state, _STATES.get(str(info["state"])))
            self.check(f"{probed.name}/{port.port} LID", port.lid, info["lid"])
            self.check(f"{probed.name}/{port.port} GIDs", {gid.index: gid.gid for gid in port.gids}, info["gids"])

    def compare_nvme(self, name: str, controller: str, address: str | None, controllers: dict[str, str]) -> None:
        """Compare the function of the block device `name`. `controllers` maps the probe's controllers to functions."""
        rule = None
        if not (self.root / "sys/class/nvme").is_dir() and not self.path(address or "", "nvme").is_dir():
            known = address in {nvme.address for nvme in self.topology.nvme}
            self.check(f"{name} is on an NVMe function", known, True)
            rule = "no-nvme-class"
        elif _has_wide_domain(controllers.get(controller) or ""):
            rule = "wide-domain"
        self.check(f"{name} address", controllers.get(controller), address, rule)

    # CPUs and memory

    def compare_numa_nodes(self) -> None:
        topology, machine = self.topology, self.machine
        folder = self.root / "sys/devices/system/node"
        if not topology.numa_nodes:
            rule = "no-nodes" if list(machine.nodes) == [0] and not folder.is_dir() else None
            self.check("NUMA nodes", [], sorted(machine.nodes), rule)
            return
        for node in topology.numa_nodes:
            cpus = _bits(node.cpus) or 0
            self.check(f"node {node.id} exists", True, node.id in machine.nodes, self.node_rule(node.id))
            if node.id not in machine.nodes:
                continue
            hwloc_cpus, hwloc_memory = machine.nodes[node.id]
            rule = "node-without-cpus" if node.cpus == "" else None
            if cpus and cpus & machine.online == hwloc_cpus & machine.online:
                rule = "offline-cpus"
            self.check(f"node {node.id} CPUs", cpus & machine.cpus, hwloc_cpus, rule)
            rule = None if node.memory_bytes is not None or hwloc_memory else "unreadable-is-zero"
            self.check(f"node {node.id} memory", node.memory_bytes, hwloc_memory, rule)
            distances = {int(number): value for number, value in node.distances.items()}
            no_table = len(topology.numa_nodes) < 2 or len(machine.nodes) < len(topology.numa_nodes)
            rule = "no-distances" if no_table and node.id not in machine.distances else None
            self.check(f"node {node.id} distances", distances, machine.distances.get(node.id, {}), rule)
        extra = set(machine.nodes) - {node.id for node in topology.numa_nodes}
        self.check("further NUMA nodes", set(), extra)

    def node_rule(self, number: int) -> str | None:
        """The rule by which hwloc does not report this NUMA node, or None."""
        if not (self.root / f"sys/devices/system/node/node{number}/cpumap").exists():
            return "node-from-list"
        cpus = {node.id: _bits(node.cpus) or 0 for node in self.topology.numa_nodes}
        earlier = [bits for node, bits in cpus.items() if node < number]
        return "node-overlap" if any(bits & cpus.get(number, 0) for bits in earlier) else None

    def compare_packages(self) -> None:
        machine = self.machine
        probed = {package.id: _bits(package.cpus) or 0 for package in self.topology.packages}
        hwloc = {number: cpus for number, cpus in machine.packages if number is not None}
        for number in sorted(set(probed) | set(hwloc)):
            cpus = probed.get(number)
            rule = None
            if cpus is not None and number not in hwloc:
                if self.partly_overlaps(cpus):
                    rule = "package-conflict"
            elif cpus is not None and cpus & machine.online == hwloc[number]:
                rule = "offline-cpus"
            self.check(f"package {number} CPUs", cpus, hwloc.get(number), rule)


def _has_wide_domain(address: str) -> bool:
    """Whether the PCI domain has more than four digits, like 10000:00:01.0."""
    return len(address.partition(":")[0]) > 4


def _payload_share(speed: float) -> float:
    """Payload bits per bit: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242 of a FLIT's 256 bytes above."""
    return 0.8 if speed <= 5 else 128 / 130 if speed <= 32 else 242 / 256


def _nearly_equal(speed: float, expected: float) -> bool:
    return abs(speed - expected) <= 0.0006 + 0.0001 * expected
