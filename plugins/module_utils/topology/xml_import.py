# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""A topology from a file that stands in for a node: NCCL's topology XML, or what C(lstopo --of xml) wrote.

Both say less than the node itself, and what they do not say stays unknown. Neither is the kernel's word on what
Kubernetes would publish, so C(kubernetes) is empty on every function.
"""

from __future__ import annotations

import re
import typing as t
from xml.parsers import expat

from . import cpu, cpuset, ids, overrides, pci, probe
from .model import (
    Finding,
    Gid,
    Interface,
    Link,
    NumaNode,
    Nvme,
    Package,
    PciFunction,
    RdmaDevice,
    RdmaPort,
    Source,
    Topology,
)

_MAX_BYTES = 16 << 20  # the files of large machines have some hundred kilobytes
_MAX_ELEMENTS = 200_000
_MAX_DEPTH = 200

_BUSID = re.compile(r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")
_NUMBER = re.compile(r"^[0-9]{1,9}$")
_HEX = re.compile(r"^0x[0-9a-f]{1,16}$")
_SPEED = re.compile(r"^([0-9]{1,3}(?:\.[0-9]{1,3})?) GT/s")
_DECIMAL = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,9})?$")

#: Beginnings of the names that RDMA drivers and rdma-core's renaming rules give; network interfaces have others.
_RDMA_NAME = re.compile(r"^(mlx[45]_|bnxt_re|irdma|efa_|rdmap|rocep|iwp|hfi1_|qedr|hns_|erdma_|mana_|ionic_|siw|rxe)")

#: Class and subclass, identifiers, revision, and from hwloc 3 on the programming interface.
_PCI_TYPE = re.compile(
    r"^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\] \[([0-9a-f]{4}):([0-9a-f]{4})\] ([0-9a-f]{2})(?: ([0-9a-f]{2}))?$"
)
_BRIDGE_BUSES = re.compile(r"^([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]$")
#: A namespace, or one path to it: the subsystem's number, in a path's name also the controller's (nvme_set_disk_name).
_NAMESPACE = re.compile(r"^nvme([0-9]{1,9})(?:c([0-9]{1,9}))?n[0-9]{1,9}$")
_PORT_INFO = re.compile(r"^Port([0-9]{1,3})(State|LID|GID([0-9]{1,4}))$")

#: Subclasses for which the PCI Code and ID Assignment Specification knows the programming interface 00 alone, so that
#: the four digits of hwloc before 3 say all six.
_ONE_INTERFACE = frozenset(
    ("0200", "0203", "0205", "0206", "0207", "0280", "0302", "0380", "0600", "0601", "0680", "0b40")
)

#: hwloc_obj_osdev_type_e: numbers in hwloc 1.x and 2.x, bits from 3 on, of which an RDMA device may have the network's
#: besides its own.
_OSDEV_NUMBERS = {0: "block", 2: "network", 3: "openfabrics"}
_OSDEV_BITS = ((1 << 5, "openfabrics"), (1 << 4, "network"), (1 << 0, "block"))

#: enum ib_port_state
_PORT_STATES = {"0": "NOP", "1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}


class _Element:
    """An element with the line that it begins on, which xml.etree does not keep."""

    __slots__ = ("tag", "attributes", "line", "children", "texts")

    def __init__(self, tag: str, attributes: dict[str, str], line: int) -> None:
        self.tag = tag
        self.attributes = attributes
        self.line = line
        self.children: list[_Element] = []
        self.texts: list[str] = []

    def get(self, name: str) -> str | None:
        """The attribute without blanks around it; None where it is absent or empty."""
        return self.attributes.get(name, "").strip() or None

    def wrong(self, name: str, expected: str) -> ValueError:
        value = self.attributes.get(name, "")[:60]
        return ValueError(f"line {self.line}: <{self.tag}> has {name}={value!r}; expected {expected}")

    def number(self, name: str) -> int | None:
        """A decimal number; None where the attribute is absent, empty or -1 (unknown)."""
        text = self.get(name)
        if text is None or text == "-1":
            return None
        if not _NUMBER.match(text):
            raise self.wrong(name, "a number")
        return int(text)

    def address(self, name: str) -> str:
        """A PCI address as the kernel writes it: lower case, four or more digits of domain."""
        match = _BUSID.match((self.get(name) or "").lower())
        if not match:
            raise self.wrong(name, "a PCI address with its domain, such as 0000:1b:00.0")
        domain, bus, device, function = match.groups()
        return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def read_xml(path: str, form: str = "auto", locality_overrides: t.Sequence[dict[str, t.Any]] = ()) -> Topology:
    """Read the node that a file describes.

    @param path: the file. At most 16 MiB are taken.
    @param form: C(nccl), C(hwloc), or C(auto) to tell it from the root element.
    @param locality_overrides: see :func:`overrides.check_overrides`.
    @raise ValueError: for a file that is no such XML; the text names the line and what to do. Its subclass
        OverrideError is raised for an override that is malformed.
    @raise OSError: for a file that cannot be read.
    """
    if form not in ("auto", "nccl", "hwloc"):
        raise ValueError(f"unknown form {form!r}; give 'auto', 'nccl' or 'hwloc'")
    stated = list(locality_overrides)
    overrides.check_overrides(stated)
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES >> 20} MiB, so no topology file; give the file of one node")
    root = _parse(data)
    known = {"system": "nccl", "topology": "hwloc"}
    found = known.get(root.tag)
    if found is None:
        hint = " (an NCCL graph; give the file of NCCL_TOPO_DUMP_FILE)" if root.tag == "graphs" else ""
        raise ValueError(
            f"line {root.line}: the root element is <{root.tag[:60]}>{hint}; an NCCL topology begins with <system>, "
            "a file of lstopo with <topology>"
        )
    if form not in ("auto", found):
        raise ValueError(f"line {root.line}: <{root.tag}> is the {found} form, not {form}; leave the form to 'auto'")
    topology = Topology(source=Source(kind=f"{found}_xml", path=path))
    if found == "nccl":
        _Nccl(topology).read(root, stated)
    else:
        _Hwloc(topology).read(root, stated)
    return topology


def _parse(data: bytes) -> _Element:
    """Parse a document. A document type with an internal subset is refused, an external DTD is not looked for.

    This is the parser below xml.etree, used directly because only here declarations can be refused and lines be had.
    """
    parser = expat.ParserCreate("UTF-8")  # as NCCL and lstopo write; no other codec is let in
    parser.buffer_text = True
    stack: list[_Element] = []
    roots: list[_Element] = []
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MAX_ELEMENTS or len(stack) >= _MAX_DEPTH:
            raise ValueError(
                f"line {parser.CurrentLineNumber}: more than {_MAX_ELEMENTS} elements or {_MAX_DEPTH} levels, so no "
                "topology file; give the file of one node"
            )
        element = _Element(tag, attributes, parser.CurrentLineNumber)
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].texts.append(data)

    def doctype(_name: str, _system: str | None, _public: str | None, has_subset: int) -> None:
        if has_subset:  # before any of it is read: defaults of attributes make gigabytes of a file, entities too
            raise ValueError(
                f"line {parser.CurrentLineNumber}: the document type has declarations of its own in brackets, which no "
                "topology file needs; remove them, or write the file anew with the tool that made it"
            )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"not well-formed XML: {error}; give the file as NCCL or lstopo wrote it") from None
    return roots[0]


def _finish(topology: Topology, stated: list[dict[str, t.Any]], models: dict[str, str]) -> None:
    """Order the parts as the node's own probe does, and derive what follows from them."""
    addresses = sorted(topology.functions, key=pci.sort_key)
    topology.functions = {address: topology.functions[address] for address in addresses}
    topology.interfaces.sort(key=lambda interface: interface.name)
    topology.rdma_devices.sort(key=lambda device: device.name)
    topology.numa_nodes.sort(key=lambda node: node.id)
    for device in topology.rdma_devices:
        device.ports.sort(key=lambda port: port.port)
        device.interfaces = sorted({interface for port in device.ports for interface in port.interfaces})
    carriers = {one.address for one in topology.interfaces if one.address and one.kind != "usb"}
    carriers |= {device.address for device in topology.rdma_devices if device.address}
    for address in carriers:
        if topology.functions[address].kind == "other":
            topology.functions[address].kind = "nic"
    described = {nvme.address: nvme for nvme in topology.nvme}
    topology.nvme = [
        described.get(function.address) or Nvme(address=function.address)
        for function in topology.functions.values()
        if function.kind == "nvme"
    ]
    probe.complete(topology, stated, models)
    for nvme in topology.nvme:
        nvme.numa_node = topology.functions[nvme.address].numa_node


def _is_switch(element: _Element) -> bool:
    """Whether a C(pci) element only holds others."""
    below = {child.tag for child in element.children}
    return "pci" in below and not below & {"gpu", "nic"}


def _devices_below(element: _Element) -> t.Iterator[_Element]:
    for child in element.children:
        if child.tag == "pci" and not _is_switch(child):
            yield child
        yield from _devices_below(child)


class _Nccl:
    """NCCL's topology file (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE; src/graph/xml.cc in NCCL).

    RCCL's is the same with version 2 and what it needs to know of its GPUs and of the links between them.

    The graph knows whole switches: NCCL climbs two sysfs levels a step, so root ports and the downstream ports of
    switches are not in it. C(bridges) are the enclosing C(pci) elements, one a switch, fake addresses such as
    ffff:ff:01.0 included; C(root_complex) is unknown. C(link_speed) and C(link_width) are what the two ends of the
    link can do at best (NCCL reads max_link_speed and max_link_width of both), so they fill the maximum and leave the
    current state unknown. NCCL merges the functions of a multi-port card, so an RDMA device may be named under
    another function of its own card.

    To NCCL each C(pci) element is a switch of its own, also where several have one bus id, as in RCCL's models (xml.cc
    appends elements, topo.cc makes a node of each). Such switches get made-up addresses from ffff:fe:00.0 on; a GPU or
    NIC keeps its own.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._renamed: dict[str, str] = {}  # made-up address -> what the file says
        self._devices: set[str] = set()
        self._lines: dict[str, int] = {}
        self._speeds: dict[str, int] = {}  # function -> the fastest of its networks, Mbit/s

    def read(self, root: _Element, stated: list[dict[str, t.Any]]) -> None:
        topology = self._topology
        version = root.get("version")
        if version not in (None, "1", "2"):
            raise root.wrong("version", "1 (NCCL) or 2 (RCCL); dump the topology with a release of either")
        cpus = [element for element in root.children if element.tag == "cpu"]
        if not cpus:
            raise ValueError(f"line {root.line}: <system> holds no <cpu>; give a topology file, not a graph or a part")
        hosts = {element.get("host_hash") for element in cpus}
        if len(hosts) > 1:
            raise ValueError(
                f"line {root.line}: <system> describes {len(hosts)} hosts (host_hash differs); keep the <cpu> elements "
                "of one host"
            )
        self._devices = {child.address("busid") for child in _devices_below(root)}
        for element in cpus:
            node = self._cpu(element)
            for child in element.children:
                if child.tag == "pci":
                    self._pci(child, node, [])
                elif child.tag == "nic":
                    self._nic(child, None)
        _finish(topology, stated, {})
        for nic in topology.nics:
            nic.speed_mbps = nic.speed_mbps or self._speeds.get(nic.address)
        if self._renamed:
            topology.findings.append(
                Finding(
                    id="import-address-shared",
                    severity="info",
                    summary=f"The file gives {len(self._renamed)} of its switches the address of another function",
                    action="Nothing to do: each is a switch of its own, as NCCL takes it, at a made-up address.",
                    devices=list(self._renamed),
                    evidence=[
                        f"{made_up}: {address} in line {self._lines[made_up]}"
                        for made_up, address in list(self._renamed.items())[:20]
                    ],
                )
            )
        unclassified = [
            function.address
            for function in topology.functions.values()
            if function.kind == "other" and function.class_code is None
        ]
        if unclassified:
            topology.findings.append(
                Finding(
                    id="import-kind-unknown",
                    severity="info",
                    summary=f"The file does not say what {len(unclassified)} of its PCI functions are",
                    action="Write class, vendor and device of each into the file, or probe the machine: NCCL itself "
                    "reads there what its file leaves out.",
                    devices=unclassified,
                    evidence=[f"line {self._lines[address]}: {address} has no class" for address in unclassified[:8]],
                )
            )

    def _cpu(self, element: _Element) -> int | None:
        """A NUMA node. NCCL writes the number -1 where the machine does not say."""
        topology = self._topology
        arch = element.get("arch")
        topology.system.architecture = topology.system.architecture or {"arm64": "aarch64"}.get(arch or "", arch)
        number = element.number("numaid")
        if number is None:
            return None
        cpus = None
        mask = element.get("affinity")
        if mask is not None:
            cpus = cpuset.from_mask(mask)
            if cpus is None:
                raise element.wrong("affinity", "a CPU mask such as 00000000,0000ffff")
        text = None if cpus is None else cpuset.to_list(cpus)
        node = next((one for one in topology.numa_nodes if one.id == number), None)
        if node is None:  # a dump may hold a node twice, the second time for bonded networks
            topology.numa_nodes.append(NumaNode(id=number, cpus=text))
        elif None not in (node.cpus, text) and node.cpus != text:
            raise element.wrong("affinity", f"the CPUs that NUMA node {number} has further up, {node.cpus}")
        return number

    def _pci(self, element: _Element, node: int | None, bridges: list[str]) -> None:
        address = element.address("busid")
        if _is_switch(element) and (address in self._lines or address in self._devices):
            address = self._made_up(element, address)
        if address in self._lines:
            raise element.wrong("busid", f"an address of its own (line {self._lines[address]} has it too)")
        self._lines[address] = element.line
        function = PciFunction(address=address, bridges=bridges, numa_node=node)
        if node is not None:
            function.numa_source = "import"
        digits = self._hex(element, "class", 6)
        function.class_code = digits if digits and len(digits) == 6 else None
        for name, attribute in (
            ("vendor", "vendor_id"),
            ("device", "device_id"),
            ("subsystem_vendor", "subsystem_vendor_id"),
            ("subsystem_device", "subsystem_device_id"),
        ):
            value = self._hex(element, name, 4)
            setattr(function, attribute, value.zfill(4) if value and value != "ffff" else None)
        function.name = ids.device_name(function.vendor_id, function.device_id)
        function.kind = self._kind(element, function, digits)
        speed = _SPEED.match(element.get("link_speed") or "")
        width = element.number("link_width") or 0
        link = Link(
            max_speed_gts=float(speed.group(1)) or None if speed else None,
            max_width=width if 0 < width <= 32 else None,
        )
        function.link = link if link != Link() else None
        self._topology.functions[address] = function
        for child in element.children:
            if child.tag == "pci":
                self._pci(child, node, [*bridges, address])
            elif child.tag == "nic":
                self._nic(child, function)

    def _made_up(self, element: _Element, address: str) -> str:
        """An address for one more switch with a bus id that is taken."""
        number = len(self._renamed)
        made_up = f"ffff:fe:{number >> 3:02x}.{number & 7}"
        if number >> 11 or made_up in self._lines:
            raise element.wrong("busid", "an address of its own")
        self._renamed[made_up] = address
        return made_up

    @staticmethod
    def _hex(element: _Element, name: str, digits: int) -> str | None:
        text = element.get(name)
        if text is None:
            return None
        text = text.lower()
        if not _HEX.match(text) or len(text) > digits + 2:
            raise element.wrong(name, f"0x and up to {digits} hexadecimal digits")
        return text[2:]

    @staticmethod
    def _kind(element: _Element, function: PciFunction, digits: str | None) -> str:
        """What a function is: by class and identifiers, else by what NCCL hung below it, else unknown (other).

        A class may be shortened to its first digits (NCCL writes 0x03 and 0x02 where sysfs is not to be read). In
        this format class 03 is a GPU, so one without a vendor is none of the adapters that ids.kind sorts out. What
        holds a C(gpu) element is one whatever else is said of it, as NCCL takes it (ncclTopoAddPci in graph/topo.cc).
        """
        below = {child.tag for child in element.children}
        if "gpu" in below:
            return "gpu"
        kind = ids.kind(digits, function.vendor_id, function.device_id, not function.bridges)
        if kind == "other" and (digits is None or digits[:2] == "03" and function.vendor_id is None):
            if digits:
                return "gpu"
            if "nic" in below:
                return "nic"
            if "pci" in below:
                return "bridge"
        return kind

    def _nic(self, element: _Element, function: PciFunction | None) -> None:
        """The networks of a card; without a function where NCCL found no PCI device behind them."""
        topology = self._topology
        address = function.address if function else None
        for child in element.children:
            name = child.get("name")
            if child.tag != "net" or name is None:
                continue
            speed = child.number("speed") or None
            port = child.number("port")
            if address and speed:
                self._speeds[address] = max(speed, self._speeds.get(address, 0))
            if "+" in name:  # devices that NCCL bonded: the place, GUID and speed of each are unknown
                for part in name.split("+"):
                    if part:
                        self._rdma_device(part)
            elif port or _RDMA_NAME.match(name):  # verbs count ports from 1, NCCL's sockets have port 0
                device = self._rdma_device(name)
                device.address = device.address or address
                device.sys_image_guid = device.sys_image_guid or self._guid(child)
                if port and all(one.port != port for one in device.ports):
                    device.ports.append(RdmaPort(port=port, rate_gbps=speed / 1000 if speed else None))
            elif port == 0 and all(one.name != name for one in topology.interfaces):
                interface = Interface(name=name, kind=_interface_kind(function), address=address, speed_mbps=speed)
                topology.interfaces.append(interface)

    def _rdma_device(self, name: str) -> RdmaDevice:
        devices = self._topology.rdma_devices
        device = next((one for one in devices if one.name == name), None)
        if device is None:
            device = RdmaDevice(name=name)
            devices.append(device)
        return device

    @staticmethod
    def _guid(element: _Element) -> str | None:
        """The system image GUID as the kernel writes it.

        NCCL prints the big-endian number of ibv_query_device on machines that are all little-endian, so its bytes
        stand in reverse.
        """
        text = (element.get("guid") or "").lower()
        if not _HEX.match(text) or not int(text, 16):
            return None
        digits = int(text, 16).to_bytes(8, "little").hex()
        return ":".join(digits[start : start + 4] for start in range(0, 16, 4))


class _Hwloc:
    """The XML of lstopo (hwloc 2.x and 3.x; 1.x with all but its distances).

    hwloc builds its PCI tree from the bus numbers in the bridges' configuration space, and puts every bus that it
    cannot hang below a bridge under a host bridge of its own. C(root_complex) is therefore stated only where that is
    the kernel's host bridge too: bus 00 of a domain, or any bus of a domain in which bridges were read, with a domain
    of four digits (behind Intel VMD the outermost host bridge is another one, which the file does not tie to it).

    C(numa_node) follows the CPUs of the object that the host bridge hangs on, by the rule of
    :func:`cpu.numa_node_of`; on a machine with a single NUMA node the file cannot tell locality from its absence.
    C(gb_per_s) is all that is said of a link. C(class_code) is given where the programming interface, which hwloc
    before 3 leaves out, is told or can be 00 only. VFs look like any other function.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._sets: dict[int, int] = {}
        self._models: dict[str, str] = {}
        self._devices_are_bits = False
        self._bridged_domains: set[str] = set()
        self._hosts: dict[str, str] = {}  # function -> domain:bus of the host bridge object above it

    def read(self, root: _Element, stated: list[dict[str, t.Any]]) -> None:
        topology = self._topology
        version = root.get("version")
        if version is not None and not version.startswith(("2.", "3.")):
            raise root.wrong("version", "2.x, 3.x or none (1.x); write the file with lstopo --export-xml-flags v2")
        self._devices_are_bits = (version or "").startswith("3.")
        machines = [child for child in root.children if child.tag == "object"]
        if not machines:
            raise ValueError(f"line {root.line}: <topology> holds no <object>; write the file with lstopo --of xml")
        for machine in machines:
            self._system(root, machine)
            self._processors(machine)
        self._take_borrowed_cpus()
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
        _finish(topology, stated, self._models)

    def _system(self, root: _Element, machine: _Element) -> None:
        system = self._topology.system
        values = {**_infos(root), **_infos(machine)}  # hwloc 3 tells at the root what is not hardware
        system.architecture = values.get("Architecture")
        system.vendor = values.get("DMISysVendor")
        system.product = values.get("DMIProductName") or values.get("PlatformModel")
        system.board = values.get("DMIBoardName")
        system.bios_version = values.get("DMIBIOSVersion")
        system.kernel = values.get("OSRelease")
        system.cpu_model = values.get("CPUModel")

    def _processors(self, element: _Element) -> None:
        """NUMA nodes and packages, wherever they are in the tree."""
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

    def _take_borrowed_cpus(self) -> None:
        """Leave each CPU to one NUMA node, as the kernel does: hwloc gives a node without CPUs those that it is near.

        What such a node is near are whole nodes with CPUs, so a node whose CPUs all belong to smaller ones has none.
        Of nodes with the same CPUs the first has them: the kernel numbers the nodes of processors before those of
        memory alone (acpi_numa_init in drivers/acpi/numa/srat.c), the firmware of POWER does the same. Sets that cross
        in another way are left as they are.
        """
        taken = 0
        nodes = {node.id: node for node in self._topology.numa_nodes}
        for number, cpus in sorted(self._sets.items(), key=lambda item: (bin(item[1]).count("1"), item[0])):
            if cpus and cpus & ~taken == 0:
                self._sets[number], nodes[number].cpus = 0, ""
            taken |= cpus

    def _distances(self, root: _Element) -> None:
        """The firmware's latency matrix (hwloc 2.x only; kind 5 is HWLOC_DISTANCES_KIND_FROM_OS and MEANS_LATENCY)."""
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
                    "the file anew with lstopo"
                )
            for row, number in enumerate(numbers):
                line = values[row * len(numbers) : (row + 1) * len(numbers)]
                nodes[number].distances = {str(other): value for other, value in zip(numbers, line)}

    def _object(
        self,
        element: _Element,
        cpus: int | None,
        host: str | None,
        bridges: list[str],
        function: PciFunction | None,
    ) -> None:
        """Walk the tree with the nearest CPU set, the host bridge, the bridges and the function above."""
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

    def _function(self, element: _Element, cpus: int | None, bridges: list[str]) -> PciFunction:
        address = element.address("pci_busid")
        if address in self._topology.functions:
            raise element.wrong("pci_busid", "an address of its own (an object before it has it too)")
        identity = _PCI_TYPE.match((element.get("pci_type") or "").lower())
        if not identity:
            raise element.wrong("pci_type", "class and identifiers such as 0207 [15b3:101b] [15b3:0007] 00")
        digits, vendor, device, subsystem_vendor, subsystem_device, revision, interface = identity.groups()
        function = PciFunction(address=address, bridges=bridges, class_code=digits + (interface or ""))
        if vendor != "0000":  # zeros: hwloc could not read them, nor the revision
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

    def _device_kind(self, element: _Element) -> str | None:
        number = element.number("osdev_type")
        if number is None:
            return None
        if not self._devices_are_bits:
            return _OSDEV_NUMBERS.get(number)
        return next((kind for bit, kind in _OSDEV_BITS if number & bit), None)

    def _os_device(self, element: _Element, function: PciFunction | None) -> None:
        topology = self._topology
        name, kind, values = element.get("name"), self._device_kind(element), _infos(element)
        address = function.address if function else None
        if name is None:
            return
        if kind == "network":
            interface = Interface(name=name, kind=_interface_kind(function), address=address)
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
            nvme = next((one for one in topology.nvme if one.address == address), None)
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
        """Tell each RDMA port its interface: the card's only one, or the one of the same port number."""
        for device in self._topology.rdma_devices:
            siblings = [one for one in self._topology.interfaces if one.address and one.address == device.address]
            for port in device.ports:
                port.interfaces = [one.name for one in siblings if len(siblings) == 1 or one.dev_port == port.port - 1]


def _interface_kind(function: PciFunction | None) -> str:
    if function is None:
        return "virtual"
    # what is on a USB bus stands below its host controller, which is no NIC for it
    return "usb" if (function.class_code or "").startswith("0c03") else "physical"


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


def _infos(element: _Element) -> dict[str, str]:
    """The name-value pairs of an object that are not empty."""
    pairs = [(child.get("name"), child.get("value")) for child in element.children if child.tag == "info"]
    return {name: value for name, value in pairs if name and value}


def _cpus(element: _Element) -> int | None:
    """The CPU set of an object, from hwloc's text C(0x000000ff,,0x0): words from the highest to the lowest."""
    text = element.get("cpuset")
    if text is None or text.startswith("0xf...f"):  # an infinite set
        return None
    bits = cpuset.from_mask(",".join(word.replace("0x", "", 1).zfill(8) for word in text.split(",")))
    if bits is None:
        raise element.wrong("cpuset", "a CPU set such as 0x000000ff,0xffffffff")
    return bits


def _numbers(element: _Element, tag: str) -> list[int]:
    """The numbers in all elements of one name, which hwloc splits after some ten values."""
    words = [word for child in element.children if child.tag == tag for word in "".join(child.texts).split()]
    for word in words:
        if not _NUMBER.match(word):
            raise ValueError(f"line {element.line}: <{tag}> holds {word[:60]!r}, which is no number")
    return [int(word) for word in words]
