# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The XML that `lstopo --of xml` writes: hwloc 1.x, 2.x and 3.x."""

from __future__ import annotations

import re

from .. import cpu, cpuset, ids
from ..model import Gid, Interface, Link, NumaNode, Nvme, Package, PciFunction, RdmaDevice, RdmaPort, Topology
from ..overrides import Override
from .complete import finish, interface_kind
from .document import Element

_NUMBER = re.compile(r"^[0-9]{1,9}$")
_DECIMAL = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,9})?$")
#: Class and subclass, identifiers, revision, and from hwloc 3 on the programming interface.
_PCI_TYPE = re.compile(
    r"^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\] \[([0-9a-f]{4}):([0-9a-f]{4})\] ([0-9a-f]{2})(?: ([0-9a-f]{2}))?$"
)
_BRIDGE_BUSES = re.compile(r"^([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]$")
#: An NVMe namespace, or one path to it: the number of the subsystem, and in a path's name also that of the controller
#: (nvme_set_disk_name).
_NAMESPACE = re.compile(r"^nvme([0-9]{1,9})(?:c([0-9]{1,9}))?n[0-9]{1,9}$")
_PORT_INFO = re.compile(r"^Port([0-9]{1,3})(State|LID|GID([0-9]{1,4}))$")
#: Subclasses whose only programming interface in the PCI Code and ID Assignment Specification is 00, so that the four
#: digits of hwloc before 3 determine all six.
_ONE_INTERFACE = frozenset(
    ("0200", "0203", "0205", "0206", "0207", "0280", "0302", "0380", "0600", "0601", "0680", "0b40")
)
#: hwloc_obj_osdev_type_e: numbers in hwloc 1.x and 2.x, bits since hwloc 3. An RDMA device may also have the bit for
#: networks.
_OSDEV_NUMBERS = {0: "block", 2: "network", 3: "openfabrics"}
_OSDEV_BITS = ((1 << 5, "openfabrics"), (1 << 4, "network"), (1 << 0, "block"))
#: enum ib_port_state
_PORT_STATES = {"0": "NOP", "1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}


class Hwloc:
    """The XML of lstopo (hwloc 2.x and 3.x; 1.x without its distances).

    hwloc builds its PCI tree from the bus numbers in the bridges' configuration space, and adds a host bridge for every
    bus that it cannot place below a bridge. `root_complex` is therefore set only if that host bridge also exists in the
    kernel: for bus 00 of a domain, or any bus of a domain in which bridges were read, if the domain has four digits.
    Behind Intel VMD, the outermost host bridge is another one, to which the file has no connection.

    `numa_node` is derived from the CPUs of the object above the host bridge by :func:`cpu.numa_node_of`. On a machine
    with a single NUMA node, the file does not show whether the locality is known. Links have only `gb_per_s`.
    `class_code` is set if the file contains the programming interface, which hwloc before 3 leaves out, or if it can
    only be 00. VFs cannot be distinguished from other functions.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._sets: dict[int, int] = {}
        self._models: dict[str, str] = {}
        self._devices_are_bits = False
        self._bridged_domains: set[str] = set()
        self._hosts: dict[str, str] = {}  # function -> domain:bus of the host bridge object above it

    def read(self, root: Element, stated: list[Override]) -> None:
        topology = self._topology
        version = root.get("version")
        if version is not None and not version.startswith(("2.", "3.")):
            raise root.wrong("version", "2.x, 3.x or none (1.x); write the file with lstopo --export-xml-flags v2")
        self._devices_are_bits = (version or "").startswith("3.")
        machines = [child for child in root.children if child.tag == "object"]
        if not machines:
            raise ValueError(f"line {root.line}: <topology> contains no <object>; write the file with lstopo --of xml")
        for machine in machines:
            self._system(root, machine)
            self._processors(machine)
        self._remove_shared_cpus()
        cpu.join_packages(topology.numa_nodes, self._sets, topology.packages)
        self._distances(root)
        for machine in machines:
            self._object(machine, None, None, [], None)
        for function in topology.functions.values():
            domain, colon, bus = self._hosts.get(function.address, "").partition(":")
            if bus and len(domain) == 4 and (bus == "00" or domain in self._bridged_domains):
                function.root_complex = f"pci{domain}:{bus}"
            self._set_kind(function)
        self._join_interfaces()
        finish(topology, stated, self._models)

    def _system(self, root: Element, machine: Element) -> None:
        system = self._topology.system
        values = {**_infos(root), **_infos(machine)}  # in hwloc 3 the root has the values that are not hardware
        system.architecture = values.get("Architecture")
        system.vendor = values.get("DMISysVendor")
        system.product = values.get("DMIProductName") or values.get("PlatformModel")
        system.board = values.get("DMIBoardName")
        system.bios_version = values.get("DMIBIOSVersion")
        system.kernel = values.get("OSRelease")
        system.cpu_model = values.get("CPUModel")

    def _processors(self, element: Element) -> None:
        """Read NUMA nodes and packages, wherever they are in the tree."""
        topology = self._topology
        for child in element.children:
            if child.tag != "object":
                continue
            kind, cpus = child.get("type"), _cpus(child)
            number = child.number("os_index") if kind in ("NUMANode", "Package", "Socket") else None
            if kind == "NUMANode" and number is not None:
                if any(node.id == number for node in topology.numa_nodes):
                    raise child.wrong("os_index", "another number than the NUMA nodes before it")
                node = NumaNode(id=number)
                if cpus is not None:
                    self._sets[number] = cpus
                    node.cpus = cpuset.to_list(cpus)
                memory = child.get("local_memory")
                if memory and memory.isdecimal() and len(memory) < 20:
                    node.memory_bytes = int(memory)
                topology.numa_nodes.append(node)
            elif number is not None and cpus is not None:
                topology.packages.append(Package(id=number, cpus=cpuset.to_list(cpus)))
                topology.system.cpu_model = topology.system.cpu_model or _infos(child).get("CPUModel")
            self._processors(child)

    def _remove_shared_cpus(self) -> None:
        """Assign each CPU to one NUMA node, as the kernel does: hwloc lists nearby CPUs for a node without CPUs.

        Those are CPUs of other nodes, so a node whose CPUs all belong to smaller nodes has no CPUs itself. Of nodes
        with the same CPUs, the first one has them: the kernel numbers nodes with processors before nodes with only
        memory (acpi_numa_init in drivers/acpi/numa/srat.c), as does the firmware of POWER. Sets that overlap in another
        way are not changed.
        """
        assigned = 0
        nodes = {node.id: node for node in self._topology.numa_nodes}
        for number, cpus in sorted(self._sets.items(), key=lambda item: (bin(item[1]).count("1"), item[0])):
            if cpus and cpus & ~assigned == 0:
                self._sets[number], nodes[number].cpus = 0, ""
            assigned |= cpus

    def _distances(self, root: Element) -> None:
        """Read the firmware's latency matrix (only in hwloc 2.x; kind 5 is HWLOC_DISTANCES_KIND_FROM_OS and
        MEANS_LATENCY)."""
        nodes = {node.id: node for node in self._topology.numa_nodes}
        for element in root.children:
            if element.tag != "distances2" or element.get("type") != "NUMANode":
                continue
            if element.get("kind") != "5" or element.get("indexing") != "os":
                continue
            numbers = _numbers(element, "indexes")
            values = _numbers(element, "u64values")
            if len(values) != len(numbers) ** 2 or not set(numbers) <= set(nodes):
                raise ValueError(
                    f"line {element.line}: <distances2> has {len(values)} values for {len(numbers)} NUMA nodes; write "
                    "the file again with lstopo"
                )
            for row, number in enumerate(numbers):
                line = values[row * len(numbers) : (row + 1) * len(numbers)]
                nodes[number].distances = {str(other): value for other, value in zip(numbers, line)}

    def _object(
        self,
        element: Element,
        cpus: int | None,
        host: str | None,
        bridges: list[str],
        function: PciFunction | None,
    ) -> None:
        """Walk the tree. The arguments are the nearest CPU set, and the host bridge, the bridges and the function
        above."""
        kind = element.get("type")
        if kind == "Bridge" and element.get("bridge_type") == "0-1":
            buses = _BRIDGE_BUSES.match((element.get("bridge_pci") or "").lower())
            if not buses:
                raise element.wrong("bridge_pci", "buses such as 0000:[17-1e]")
            host = f"{int(buses.group(1), 16):04x}:{buses.group(2)}"
        elif kind == "PCIDev" or kind == "Bridge" and element.get("pci_busid"):
            function = self._function(element, cpus, bridges)
            if host:
                self._hosts[function.address] = host
            if kind == "Bridge":
                function.kind = "bridge"
                self._bridged_domains.add(function.address.partition(":")[0])
                bridges = [*bridges, function.address]
        elif kind == "OSDev":
            self._os_device(element, function)
        elif kind not in ("Bridge", "Misc"):
            known = _cpus(element)
            cpus = cpus if known is None else known
        for child in element.children:
            if child.tag == "object":
                self._object(child, cpus, host, bridges, function)

    def _function(self, element: Element, cpus: int | None, bridges: list[str]) -> PciFunction:
        address = element.address("pci_busid")
        if address in self._topology.functions:
            raise element.wrong("pci_busid", "an address of its own (an object before it has it too)")
        identity = _PCI_TYPE.match((element.get("pci_type") or "").lower())
        if not identity:
            raise element.wrong("pci_type", "class and identifiers such as 0207 [15b3:101b] [15b3:0007] 00")
        digits, vendor, device, subsystem_vendor, subsystem_device, revision, interface = identity.groups()
        function = PciFunction(address=address, bridges=bridges, class_code=digits + (interface or ""))
        if vendor != "0000":  # zeros mean that hwloc could read neither the identifiers nor the revision
            function.vendor_id, function.device_id, function.revision = vendor, device, revision
        if subsystem_vendor != "0000":
            function.subsystem_vendor_id, function.subsystem_device_id = subsystem_vendor, subsystem_device
        values = _infos(element)
        function.name = ids.device_name(function.vendor_id, function.device_id) or values.get("PCIDevice")
        function.slot = values.get("PCISlot")
        if cpus is not None:
            function.local_cpus = cpuset.to_list(cpus)
            function.numa_node = cpu.numa_node_of(cpus, self._sets)
            function.numa_source = None if function.numa_node is None else "import"
        rate = element.get("pci_link_speed")
        if rate and _DECIMAL.match(rate) and float(rate):
            function.link = Link(gb_per_s=round(float(rate), 3))
        self._topology.functions[address] = function
        return function

    @staticmethod
    def _set_kind(function: PciFunction) -> None:
        digits = function.class_code or ""
        if function.kind != "bridge":
            function.kind = ids.kind(digits, function.vendor_id, function.device_id, not function.bridges)
        if len(digits) < 6:
            function.class_code = f"{digits}00" if digits in _ONE_INTERFACE else None

    def _device_kind(self, element: Element) -> str | None:
        number = element.number("osdev_type")
        if number is None:
            return None
        if not self._devices_are_bits:
            return _OSDEV_NUMBERS.get(number)
        return next((kind for bit, kind in _OSDEV_BITS if number & bit), None)

    def _os_device(self, element: Element, function: PciFunction | None) -> None:
        topology = self._topology
        name, kind, values = element.get("name"), self._device_kind(element), _infos(element)
        address = function.address if function else None
        if name is None:
            return
        if kind == "network":
            interface = Interface(name=name, kind=interface_kind(function), address=address)
            interface.mac = values.get("Address")
            if interface.mac and interface.mac.count(":") == 19:
                interface.link_layer = "infiniband"  # the only hardware addresses of twenty bytes
            port = values.get("Port", "")
            if _NUMBER.match(port) and int(port):
                interface.dev_port = int(port) - 1  # hwloc counts from 1
            topology.interfaces.append(interface)
        elif kind == "openfabrics":
            topology.rdma_devices.append(_rdma_device(name, address, values))
        elif kind == "block" and address and name.startswith("nvme"):
            nvme = next((nvme for nvme in topology.nvme if nvme.address == address), None)
            if nvme is None:
                nvme = Nvme(address=address, model=values.get("Model"), serial=values.get("SerialNumber"))
                topology.nvme.append(nvme)
            namespace = _NAMESPACE.match(name)
            controller = f"nvme{namespace.group(2) or namespace.group(1)}" if namespace else None
            if controller and controller not in nvme.controllers:
                nvme.controllers.append(controller)
        if address and "GPUModel" in values:
            self._models[address] = values["GPUModel"]

    def _join_interfaces(self) -> None:
        """Set the interface of each RDMA port: the only one of the card, or the one with the same port number."""
        for device in self._topology.rdma_devices:
            siblings = [
                interface
                for interface in self._topology.interfaces
                if interface.address and interface.address == device.address
            ]
            for port in device.ports:
                port.interfaces = [
                    interface.name
                    for interface in siblings
                    if len(siblings) == 1 or interface.dev_port == port.port - 1
                ]


def _rdma_device(name: str, address: str | None, values: dict[str, str]) -> RdmaDevice:
    device = RdmaDevice(
        name=name, address=address, node_guid=values.get("NodeGUID"), sys_image_guid=values.get("SysImageGUID")
    )
    ports: dict[int, RdmaPort] = {}
    for key, value in values.items():
        match = _PORT_INFO.match(key)
        if not match:
            continue
        number = int(match.group(1))
        port = ports.setdefault(number, RdmaPort(port=number))
        if match.group(2) == "State":
            port.state = _PORT_STATES.get(value)
        elif match.group(2) == "LID":
            port.lid = value
        else:
            port.gids.append(Gid(index=int(match.group(3)), gid=value))
    device.ports = list(ports.values())
    return device


def _infos(element: Element) -> dict[str, str]:
    """The name-value pairs of an object that are not empty."""
    pairs = [(child.get("name"), child.get("value")) for child in element.children if child.tag == "info"]
    return {name: value for name, value in pairs if name and value}


def _cpus(element: Element) -> int | None:
    """The CPU set of an object, from hwloc's text `0x000000ff,,0x0`: words from the highest to the lowest."""
    text = element.get("cpuset")
    if text is None or text.startswith("0xf...f"):  # an infinite set
        return None
    bits = cpuset.from_mask(",".join(word.replace("0x", "", 1).zfill(8) for word in text.split(",")))
    if bits is None:
        raise element.wrong("cpuset", "a CPU set such as 0x000000ff,0xffffffff")
    return bits


def _numbers(element: Element, tag: str) -> list[int]:
    """The numbers in all elements of one name: hwloc splits long lists into several elements."""
    words = [word for child in element.children if child.tag == tag for word in "".join(child.texts).split()]
    for word in words:
        if not _NUMBER.match(word):
            raise ValueError(f"line {element.line}: <{tag}> contains {word[:60]!r}, which is not a number")
    return [int(word) for word in words]
