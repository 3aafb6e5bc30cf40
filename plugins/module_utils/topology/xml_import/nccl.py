# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reading the topology XML of NCCL and RCCL."""

from __future__ import annotations

import re
import typing as t

from .. import cpuset, ids
from ..model import Finding, Interface, Link, NumaNode, PciFunction, RdmaDevice, RdmaPort, Topology
from ..overrides import Override
from .complete import finish, interface_kind
from .document import Element

_HEX = re.compile(r"^0x[0-9a-f]{1,16}$")
_SHORT = re.compile(r"^[0-9]{1,3}$", re.ASCII)
_SPEED = re.compile(r"^([0-9]{1,3}(?:\.[0-9]{1,3})?) GT/s")
#: Prefixes of the names that RDMA drivers and rdma-core's renaming rules give; network interfaces have others.
_RDMA_NAME = re.compile(r"^(mlx[45]_|bnxt_re|irdma|efa_|rdmap|rocep|iwp|hfi1_|qedr|hns_|erdma_|mana_|ionic_|siw|rxe)")


def _is_switch(element: Element) -> bool:
    """Whether a `pci` element only contains other `pci` elements."""
    below = {child.tag for child in element.children}
    return "pci" in below and not below & {"gpu", "nic"}


def _devices_below(element: Element) -> t.Iterator[Element]:
    for child in element.children:
        if child.tag == "pci" and not _is_switch(child):
            yield child
        yield from _devices_below(child)


class Nccl:
    """NCCL's topology file (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE; src/graph/xml.cc in NCCL).

    RCCL's file has the same format with version 2, and additional values of GPUs and the links between them.

    The graph contains whole switches: NCCL climbs two sysfs levels per step, so the graph contains neither root ports
    nor the downstream ports of switches. `bridges` are the enclosing `pci` elements, one per switch, including invented
    addresses such as ffff:ff:01.0; `root_complex` is unknown. `link_speed` and `link_width` are the maximum that both
    ends of the link support (NCCL reads max_link_speed and max_link_width of both); the current state is unknown. NCCL
    merges the functions of a multi-port card, so an RDMA device may be listed below another function of its card.

    For NCCL each `pci` element is a separate switch, even if several have the same bus ID, as in RCCL's models (xml.cc
    appends elements, topo.cc creates a node for each). Such switches get made-up addresses from ffff:fe:00.0 on; a GPU
    or NIC keeps its address.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._renamed: dict[str, str] = {}  # made-up address -> the address in the file
        self._devices: set[str] = set()
        self._lines: dict[str, int] = {}
        self._speeds: dict[str, int] = {}  # function -> the fastest of its networks, Mbit/s

    def read(self, root: Element, stated: list[Override]) -> None:
        topology = self._topology
        version = root.get("version")
        if version not in (None, "1", "2"):
            raise root.wrong("version", "1 (NCCL) or 2 (RCCL); dump the topology with a release of either")
        cpus = [element for element in root.children if element.tag == "cpu"]
        if not cpus:
            raise ValueError(
                f"line {root.line}: <system> contains no <cpu>; give a topology file, not a graph or a part of a file"
            )
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
        finish(topology, stated, {})
        for nic in topology.nics:
            nic.speed_mbps = nic.speed_mbps or self._speeds.get(nic.address)
        if self._renamed:
            topology.findings.append(
                Finding(
                    id="import-address-shared",
                    severity="info",
                    summary=f"The file gives {len(self._renamed)} of its switches the address of another function",
                    action="Nothing to do: each counts as a separate switch at a made-up address, as in NCCL.",
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
                    action="Write class, vendor and device of each into the file, or probe the machine, where NCCL "
                    "itself reads what its file leaves out.",
                    devices=unclassified,
                    evidence=[f"line {self._lines[address]}: {address} has no class" for address in unclassified[:8]],
                )
            )

    def _cpu(self, element: Element) -> int | None:
        """Read a NUMA node. NCCL writes the number -1 if the machine does not report it."""
        topology = self._topology
        arch = element.get("arch")
        topology.system.architecture = topology.system.architecture or {"arm64": "aarch64"}.get(arch or "", arch)
        self._processor(element)
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
        node = next((node for node in topology.numa_nodes if node.id == number), None)
        if node is None:  # a dump may contain a node twice, the second time for bonded networks
            topology.numa_nodes.append(NumaNode(id=number, cpus=text))
        elif None not in (node.cpus, text) and node.cpus != text:
            raise element.wrong("affinity", f"the CPUs that NUMA node {number} has further up, {node.cpus}")
        return number

    def _processor(self, element: Element) -> None:
        """Read the processor's vendor and model. Families above 14 are left out, because NCCL's releases count them
        differently."""
        system = self._topology.system
        system.cpu_vendor = system.cpu_vendor or element.get("vendor") or None
        family, model = (element.get(name) or "" for name in ("familyid", "modelid"))
        if _SHORT.match(family) and _SHORT.match(model) and int(family) < 15:
            system.cpu_family, system.cpu_model_number = int(family), int(model)

    def _pci(self, element: Element, node: int | None, bridges: list[str]) -> None:
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

    def _made_up(self, element: Element, address: str) -> str:
        """A made-up address for a switch whose bus ID another function has already."""
        number = len(self._renamed)
        made_up = f"ffff:fe:{number >> 3:02x}.{number & 7}"
        if number >> 11 or made_up in self._lines:
            raise element.wrong("busid", "an address of its own")
        self._renamed[made_up] = address
        return made_up

    @staticmethod
    def _hex(element: Element, name: str, digits: int) -> str | None:
        text = element.get(name)
        if text is None:
            return None
        text = text.lower()
        if not _HEX.match(text) or len(text) > digits + 2:
            raise element.wrong(name, f"0x and up to {digits} hexadecimal digits")
        return text[2:]

    @staticmethod
    def _kind(element: Element, function: PciFunction, digits: str | None) -> str:
        """The kind of a function: by class and identifiers, else by the elements below it, else unknown (other).

        A class may be shortened to its first digits (NCCL writes 0x03 and 0x02 if sysfs cannot be read). In this format
        class 03 is a GPU, so the display controllers that ids.kind excludes by vendor do not occur. A function with a
        `gpu` element is a GPU whatever its class, as in NCCL (ncclTopoAddPci in graph/topo.cc).
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

    def _nic(self, element: Element, function: PciFunction | None) -> None:
        """Read the networks of a card. `function` is None if NCCL found no PCI device for them."""
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
            if "+" in name:  # devices that NCCL merged: the location, GUID and speed of each are unknown
                for part in name.split("+"):
                    if part:
                        self._rdma_device(part)
            elif port or _RDMA_NAME.match(name):  # verbs count ports from 1, and NCCL's sockets have port 0
                device = self._rdma_device(name)
                device.address = device.address or address
                device.sys_image_guid = device.sys_image_guid or self._guid(child)
                if port and all(known_port.port != port for known_port in device.ports):
                    device.ports.append(RdmaPort(port=port, rate_gbps=speed / 1000 if speed else None))
            elif port == 0 and all(interface.name != name for interface in topology.interfaces):
                interface = Interface(name=name, kind=interface_kind(function), address=address, speed_mbps=speed)
                topology.interfaces.append(interface)

    def _rdma_device(self, name: str) -> RdmaDevice:
        devices = self._topology.rdma_devices
        device = next((device for device in devices if device.name == name), None)
        if device is None:
            device = RdmaDevice(name=name)
            devices.append(device)
        return device

    @staticmethod
    def _guid(element: Element) -> str | None:
        """The system image GUID as the kernel writes it.

        NCCL prints the big-endian number of ibv_query_device on machines that are all little-endian, so its bytes
        are in reverse order.
        """
        text = (element.get("guid") or "").lower()
        if not _HEX.match(text) or not int(text, 16):
            return None
        digits = int(text, 16).to_bytes(8, "little").hex()
        return ":".join(digits[start : start + 4] for start in range(0, 16, 4))
