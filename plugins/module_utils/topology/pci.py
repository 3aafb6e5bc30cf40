# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""PCI functions from /sys/bus/pci (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import errno
import functools
import re
import typing as t

from . import config_space, cpu, cpuset, ids
from .kubernetes import standard_attributes
from .model import Link, PciFunction, Sriov, Vpd
from .reader import Folder, Reader

DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
#: Real trees are a tenth as deep. Deeper trees are damaged, and programs that walk them would run out of resources.
MAX_DEPTH = 64
#: The largest possible MAX_NUMNODES (CONFIG_NODES_SHIFT), for trees that do not list their nodes.
_MAX_NODES = 1024
_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_HEX = re.compile(r"^0x[0-9a-f]{1,8}$")
#: The lines that the PCI core writes to uevent, in order; lines of the driver core may come before them.
_UEVENT = re.compile(
    r"^(PCI_CLASS=[0-9A-F]{4,6}\nPCI_ID=[0-9A-F]{4}:[0-9A-F]{4}\nPCI_SUBSYS_ID=[0-9A-F]{4}:[0-9A-F]{4})\n"
    r"PCI_SLOT_NAME=(\S+)$",
    re.MULTILINE,
)
_DRIVER = re.compile(r"^DRIVER=(\S+)$", re.MULTILINE)
#: Base classes of memory controllers, bridges, communication, system peripherals, serial buses and signal processing:
#: most of a server's functions, none of which have relevant SR-IOV or VPD.
_PLAIN = frozenset(("05", "06", "07", "08", "0c", "11"))
#: A device on a USB bus is below its host controller's PCI function, which is not a NIC.
USB = re.compile(r"/usb[0-9]+/")
_GROUP = re.compile(r"^[0-9]{1,9}$")
_VIRTFN = re.compile(r"^virtfn[0-9]{1,5}$")
_SRIOV = ("sriov_numvfs", "sriov_offset", "sriov_stride", "sriov_vf_device", "sriov_drivers_autoprobe")
_SPEED = re.compile(r"^([0-9]{1,4}(?:\.[0-9])?) GT/s")


def address_in(path: str | None) -> str | None:
    """The last PCI address in a sysfs path: the function that a device is below."""
    for part in reversed((path or "").split("/")):
        if ADDRESS.match(part):
            return part
    return None


@functools.lru_cache(maxsize=16384)
def sort_key(address: str) -> tuple[int, ...]:
    """A sort key that orders addresses as numbers; anything else comes last."""
    if not ADDRESS.match(address):
        return (1 << 32,)
    return tuple(int(part, 16) for part in re.split("[:.]", address))


@functools.lru_cache(maxsize=16384)
def slot_of(address: str) -> str:
    """The physical device that a function belongs to: the address without the function number."""
    return address.rpartition(".")[0]


def locate(parent: str) -> tuple[str | None, list[str]]:
    """Root complex and bridges above the functions in the directory `parent` of sysfs.

    The root complex is the outermost host bridge on the path. An inner host bridge (Intel VMD) is not one of the
    bridges, but the PCI function above it is. The result is (None, []) for a path without a host bridge, or with more
    bridges than any machine has.
    """
    parts = parent.split("/")
    root = next((part for part in parts if _HOST_BRIDGE.match(part)), None)
    if root is None or parts[:3] != ["", "sys", "devices"]:
        return None, []
    bridges = [part for part in parts[parts.index(root) + 1 :] if ADDRESS.match(part)]
    return (root, bridges) if len(bridges) <= MAX_DEPTH else (None, [])


def is_other_device(reader: Reader, path: str, target: str | None) -> bool:
    """Whether the link at `path` leads to the folder of another device, whose files do not describe this device. If so,
    this is reported."""
    if target is None or target.rpartition("/")[2] == path.rpartition("/")[2]:
        return False
    reader.report(path, f"leads to the folder of another device: {target}")
    return True


def network_carriers(reader: Reader) -> set[str]:
    """The functions that have interfaces or RDMA devices, which are NICs, whatever their class. USB devices do not
    count."""
    addresses = set()
    for folder in ("/sys/class/net", "/sys/class/infiniband"):
        for name, path in reader.links(folder).items():
            if path is None and name != "bonding_masters":  # a file among the interfaces
                path = reader.link(f"{folder}/{name}/device", expected=False)
            elif path and not path.endswith(f"/{name}"):  # another device's
                continue
            if path and not ("/usb" in path and USB.search(path)):
                address = address_in(path)
                if address:
                    addresses.add(address)
    return addresses


def _identifiers(event: str) -> tuple[str, str, str, str, str]:
    """Class, vendor, device, subsystem vendor and subsystem device, from the lines of uevent that contain them."""
    code, part, subsystem = (line.partition("=")[2].lower() for line in event.split("\n"))
    (vendor, device), (subsystem_vendor, subsystem_device) = part.split(":"), subsystem.split(":")
    return code.zfill(6), vendor, device, subsystem_vendor, subsystem_device


def _may_have_vfs(function: PciFunction) -> bool:
    """Whether a function can be a relevant PF or VF."""
    return function.kind != "bridge" and (function.kind != "other" or (function.class_code or "")[:2] not in _PLAIN)


def _contradict(vf: PciFunction, pf: PciFunction) -> bool:
    """Whether vendors or bridges show that `vf` cannot be a VF of `pf`."""
    if vf.vendor_id and pf.vendor_id and vf.vendor_id != pf.vendor_id:
        return True
    located = vf.root_complex is not None and pf.root_complex is not None
    return located and (vf.root_complex, vf.bridges) != (pf.root_complex, pf.bridges)


class PciReader:
    """Reads the PCI functions of one node. `config_space` is whether more than the first 64 bytes were readable."""

    def __init__(
        self,
        reader: Reader,
        nodes: t.Collection[int],
        node_cpus: dict[int, int],
        with_vpd: bool = True,
        only_relevant: bool = False,
        known_vpd: t.MutableMapping[str, Vpd] | None = None,
    ) -> None:
        self.config_space: bool | None = None
        self._reader = reader
        self._nodes = nodes or range(_MAX_NODES)
        self._node_cpus = node_cpus
        online = cpu.online_cpus(reader)
        self._online = -1 if online is None else online
        self._with_vpd = with_vpd
        self._known_vpd = {} if known_vpd is None else known_vpd
        self._only_relevant = only_relevant
        self._group_types: dict[str, str | None] = {}
        self._cpu_sets: dict[int, tuple[str, int | None]] = {}
        self._has_iommu_groups = bool(reader.entered("/sys/kernel/iommu_groups"))
        self._above: dict[str, tuple[str | None, list[str]]] = {}
        self._slots: dict[str, str] = {}
        self._vf_numbers: dict[tuple[str, str], int] = {}  # by the addresses of PF and VF
        self._identities: dict[str, tuple[str, str, str, str, str]] = {}  # by the lines of uevent that contain them
        self._carriers = network_carriers(reader)
        self._speeds: dict[str, float | None] = {}
        self._placed: dict[
            int | None, PciFunction
        ] = {}  # one function per NUMA node: bridges there have the same local CPUs
        self._first_vfs: dict[tuple[str | None, ...], PciFunction] = {}

    def read(self) -> dict[str, PciFunction]:
        """All functions, by address, in address order."""
        reader = self._reader
        targets = reader.links(DEVICES)
        names = []
        for name in targets:
            if ADDRESS.match(name):
                names.append(name)
            else:
                reader.report(f"{DEVICES}/{name}", "not a PCI address")
        for name in reader.names("/sys/bus/pci/slots"):
            slot_address = reader.text(f"/sys/bus/pci/slots/{name}/address")
            if slot_address:
                self._slots[slot_address] = name
        functions = {name: self._function(name, targets[name]) for name in sorted(names, key=sort_key)}
        self._check_vfs(functions)
        return functions

    def _check_vfs(self, functions: dict[str, PciFunction]) -> None:
        """Remove a VF's PF if the VF cannot belong to it, and set the numbers of VFs if PF and VF agree.

        A VF has its PF's vendor, and is below the same root complex and bridges.
        """
        for vf in functions.values():
            pf = functions.get(vf.physfn) if vf.physfn else None
            if pf is not None and (pf.physfn or _contradict(vf, pf)):
                self._reader.report(f"{DEVICES}/{vf.address}/physfn", f"leads to {vf.physfn}, which cannot be its PF")
                vf.physfn = None
        for (pf_address, vf_address), number in self._vf_numbers.items():
            if vf_address in functions and functions[vf_address].physfn == pf_address:
                functions[vf_address].vf_number = number

    def _function(self, address: str, target: str | None) -> PciFunction:
        with self._reader.folder(target or f"{DEVICES}/{address}") as folder:
            return self._read_function(address, target, folder)

    def _read_function(self, address: str, target: str | None, folder: Folder) -> PciFunction:
        # Files are opened without checking whether they exist: listing the folder takes longer than the few failures.
        function = PciFunction(address=address)
        if is_other_device(self._reader, f"{DEVICES}/{address}", target):
            # Kubernetes follows the link in any case
            number = folder.integer("numa_node", whole=True)
            function.kubernetes = standard_attributes(address, target, number)
            return function
        if target:
            parent = folder.path.rpartition("/")[0]
            above = self._above.get(parent) or self._locate(parent)
            function.root_complex, function.bridges = above[0], above[1][:]
        self._identify(function, folder)
        if self._is_left_out(function):
            return function
        first = self._first_vf(function)
        self._add_revision(function, folder, first)
        if not (function.class_code or function.vendor_id) and not folder.names():
            self._reader.report(f"{DEVICES}/{address}", "an empty or missing device directory")
            function.root_complex, function.bridges = None, []  # the path is that of a missing device
            function.kubernetes = standard_attributes(address, target, None)
        elif not self._is_left_out(function):
            self._describe(function, target, folder, first)
        return function

    def _locate(self, parent: str) -> tuple[str | None, list[str]]:
        """As `locate`, but for most bridges the result is derived from that of the bridge above."""
        path, _slash, name = parent.rpartition("/")
        root, bridges = self._above.get(path, (None, []))
        known = root is not None and len(bridges) < MAX_DEPTH and ADDRESS.match(name)
        above = (root, [*bridges, name]) if known else locate(parent)
        self._above[parent] = above
        return above

    def _is_left_out(self, function: PciFunction) -> bool:
        """Whether only the identifiers of a function are relevant."""
        return self._only_relevant and function.kind == "other" and (function.class_code or "")[:2] in _PLAIN

    def _identify(self, function: PciFunction, folder: Folder) -> None:
        """Fill in identifiers, driver and kind."""
        text = folder.text("uevent") or ""
        event = _UEVENT.search(text)
        if event and event.group(2) == function.address:
            block = event.group(1)
            known = self._identities.get(block)
            if known is None:
                known = self._identities[block] = _identifiers(block)
            (
                function.class_code,
                function.vendor_id,
                function.device_id,
                function.subsystem_vendor_id,
                function.subsystem_device_id,
            ) = known
            driver = _DRIVER.search(text) if "DRIVER=" in text else None
            function.driver = driver.group(1) if driver else None
        else:  # a recorded tree may contain only the separate files
            function.class_code = self._hexadecimal(folder, "class", 6)
            function.vendor_id = self._hexadecimal(folder, "vendor", 4)
            function.device_id = self._hexadecimal(folder, "device", 4)
            function.subsystem_vendor_id = self._hexadecimal(folder, "subsystem_vendor", 4)
            function.subsystem_device_id = self._hexadecimal(folder, "subsystem_device", 4)
            function.driver = (folder.link("driver") or "").rpartition("/")[2] or None
        self._set_kind(function, folder)

    def _add_revision(self, function: PciFunction, folder: Folder, first: PciFunction | None) -> None:
        """Fill in the revision, and those identifiers that have no file, from configuration space."""
        if first:
            function.revision = first.revision
        elif function.physfn is None:
            self._read_config(function, folder)
        function.revision = function.revision or self._hexadecimal(folder, "revision", 2)
        if not (function.revision and function.vendor_id and function.class_code):
            self._identify_from_header(function, folder)
            self._set_kind(function, folder)

    def _read_config(self, function: PciFunction, folder: Folder) -> None:
        """Fill in revision, link and the ACS of bridges from configuration space: one file instead of five.

        Ordinary users may read the first 64 bytes only; for them the link is read from its files (`_link`).
        """
        with folder.opened("config") as file:
            header = file.read(0, 64) or b""
            if len(header) == 64 and header[:4] != b"\xff\xff\xff\xff":
                function.revision = f"{header[8]:02x}"
                function.link = config_space.read_link(file.read, header)
            if function.kind == "bridge":
                function.acs = config_space.read_acs(self._beyond_header(file.read))

    def _beyond_header(self, read: config_space.Read) -> config_space.Read:
        """A wrapper of `read` that records whether configuration space beyond the first 64 bytes could be read."""

        def recording(offset: int, size: int) -> bytes | None:
            data = read(offset, size)
            if offset >= 64 and data is not None:
                self.config_space = bool(data) or bool(self.config_space)
            return data

        return recording

    def _describe(self, function: PciFunction, target: str | None, folder: Folder, first: PciFunction | None) -> None:
        """Fill in everything about a function except its identity."""
        if function.root_complex is None:
            self._reader.report(
                f"{DEVICES}/{function.address}", f"does not lead below a PCI host bridge: {target or 'not a link'}"
            )
        function.name = ids.device_name(function.vendor_id, function.device_id)
        if self._slots:  # if a card has its own switch, the slot's address is the switch's
            for step in (function.address, *reversed(function.bridges)):
                function.slot = self._slots.get(slot_of(step))
                if function.slot:
                    break
        kernel_numa = folder.integer("numa_node", whole=True)
        self._locality(function, folder, kernel_numa, first)
        function.kubernetes = standard_attributes(function.address, target, kernel_numa)
        if first is not None:
            function.link = first.link
        elif function.link is None:
            function.link = self._link(folder)
        if self._has_iommu_groups:
            self._iommu_group(function, folder)
        if function.physfn is None and _may_have_vfs(function):
            function.sriov = self._sriov(folder)
        if self._with_vpd and (function.kind == "data_direct" or function.kind == "nic" and function.physfn is None):
            # before Linux 5.15, reading the VPD of a card without VPD fails with EIO
            with folder.opened("vpd", no_value=errno.EIO) as file:
                function.vpd = self._with_known_vpd(function, config_space.read_vpd(file.read))
            if function.vpd and function.vpd.nvlink_management:
                function.kind = "nvlink_management"

    def _with_known_vpd(self, function: PciFunction, read: Vpd | None) -> Vpd | None:
        """The VPD of a function, completed with what an earlier probe read from the same card: reading may fail
        temporarily."""
        key = f"{function.address} {function.vendor_id}:{function.device_id}"
        known = self._known_vpd.get(key)
        if known and (read is None or read.serial_number in (None, known.serial_number)):
            fields = read.__dict__ if read else {}
            read = Vpd(**{name: fields.get(name) or value for name, value in known.__dict__.items()})
        if read:
            self._known_vpd[key] = read
        return read

    def _set_kind(self, function: PciFunction, folder: Folder) -> None:
        """Set the kind and, if the function can be a VF, the PF."""
        on_root_bus = bool(function.root_complex) and not function.bridges
        function.kind = ids.kind(function.class_code, function.vendor_id, function.device_id, on_root_bus)
        if function.kind == "other" and function.address in self._carriers:
            function.kind = "nic"
        if function.physfn is None and _may_have_vfs(function):
            function.physfn = self._link_target(folder, "physfn")

    def _first_vf(self, function: PciFunction) -> PciFunction | None:
        """The first VF of the same PF and part that was read: some of its values apply to the other VFs, too.

        These are the revision (the kernel uses that of VF 0, pci_read_vf_config_common), the link (that of the PF),
        and the CPUs if both VFs have the same NUMA node.
        """
        if function.physfn is None or function.kind == "other":
            return None
        part = (function.physfn, function.class_code, function.vendor_id, function.device_id)
        first = self._first_vfs.setdefault(part, function)
        return None if first is function else first

    def _hexadecimal(self, folder: Folder, name: str, digits: int) -> str | None:
        text = folder.text(name)
        if text is None:
            return None
        if not _HEX.match(text) or len(text) > digits + 2:
            self._reader.report(f"{folder.path}/{name}", f"not a hexadecimal number: {text[:40]!r}")
            return None
        return text[2:].zfill(digits)

    def _identify_from_header(self, function: PciFunction, folder: Folder) -> None:
        """Fill in values that have no file from configuration space, such as the revision on kernels before 4.10."""
        header = folder.data("config", 64) or b""
        if len(header) < 64 or header[8:12] == b"\xff\xff\xff\xff":  # a function that does not respond returns ones
            return

        def word(offset: int, size: int) -> str:
            return header[offset : offset + size][::-1].hex()

        if header[0:2] != b"\xff\xff":  # the IDs of a VF are ones, other values are valid (PCIe Base, SR-IOV chapter)
            function.vendor_id = function.vendor_id or word(0, 2)
            function.device_id = function.device_id or word(2, 2)
        function.revision = function.revision or word(8, 1)
        function.class_code = function.class_code or word(9, 3)
        if header[14] & 0x7F == 0:
            function.subsystem_vendor_id = function.subsystem_vendor_id or word(0x2C, 2)
            function.subsystem_device_id = function.subsystem_device_id or word(0x2E, 2)

    def _locality(
        self, function: PciFunction, folder: Folder, kernel_numa: int | None, first: PciFunction | None
    ) -> None:
        numa_from_cpus = None
        reported = kernel_numa is not None and kernel_numa >= 0
        if reported and kernel_numa not in self._nodes:
            self._reader.report(f"{folder.path}/numa_node", f"contains NUMA node {kernel_numa}, which does not exist")
            reported = False
        # the kernel derives one value from the other, so both are read only for relevant functions
        similar = first if function.kind != "bridge" else self._placed.get(kernel_numa)
        if reported and similar is not None and similar.numa_source == "kernel" and similar.numa_node == kernel_numa:
            function.local_cpus = similar.local_cpus
        elif not reported or function.kind != "other":
            bits = cpu.local_cpus(self._reader, folder)
            if bits is not None:
                known = self._cpu_sets.get(bits)
                if known is None:
                    # a node lists only its online CPUs, a function may list all
                    node = cpu.numa_node_of(bits & self._online, self._node_cpus)
                    known = self._cpu_sets[bits] = (cpuset.to_list(bits), node)
                function.local_cpus, numa_from_cpus = known
        if reported and numa_from_cpus not in (
            None,
            kernel_numa,
        ):  # a damaged recording: on a running kernel they agree
            self._reader.report(
                f"{folder.path}/numa_node", f"{kernel_numa}, but the local CPUs belong to node {numa_from_cpus}"
            )
        elif reported:
            function.numa_node, function.numa_source = kernel_numa, "kernel"
            if function.local_cpus is not None:
                self._placed.setdefault(kernel_numa, function)
        elif numa_from_cpus is not None:
            function.numa_node, function.numa_source = numa_from_cpus, "local_cpus"

    def _link(self, folder: Folder) -> Link | None:
        current = folder.text("current_link_speed")
        if current is None:
            return None  # not PCI Express: the kernel creates no link files for such a function
        width = folder.text("current_link_width")
        best, best_width = folder.text("max_link_speed"), folder.text("max_link_width")
        link = Link(
            self._speed(current),
            self._width(folder, "current_link_width", width),
            self._speed(best),
            self._width(folder, "max_link_width", best_width),
        )
        link.gb_per_s = config_space.payload_rate(link.speed_gts, link.width)
        return link if link.speed_gts or link.width or link.max_speed_gts or link.max_width else None

    def _speed(self, text: str | None) -> float | None:
        if not text:
            return None
        if text not in self._speeds:
            match = _SPEED.match(text)
            self._speeds[text] = float(match.group(1)) if match else None
        return self._speeds[text]

    def _width(self, folder: Folder, name: str, text: str | None) -> int | None:
        value = folder.number(name, text)
        return value if value and 0 < value <= 32 else None  # 0 and 255: the kernel does not know

    def _iommu_group(self, function: PciFunction, folder: Folder) -> None:
        group = (folder.link("iommu_group") or "").rpartition("/")[2]
        if not _GROUP.match(group):
            return
        function.iommu_group = int(group)
        if group not in self._group_types:
            self._group_types[group] = self._reader.text(f"/sys/kernel/iommu_groups/{group}/type") or None
        function.iommu_group_type = self._group_types[group]

    def _link_target(self, folder: Folder, link: str) -> str | None:
        """The PCI function to which a link such as physfn leads."""
        target = folder.link(link)
        name = (target or "").rpartition("/")[2]
        if ADDRESS.match(name):
            return name
        if target:
            self._reader.report(f"{folder.path}/{link}", "does not lead to a PCI function")
        return None

    def _sriov(self, folder: Folder) -> Sriov | None:
        total = folder.integer("sriov_totalvfs")
        if total is None:
            return None
        texts = {name: folder.text(name) for name in _SRIOV}

        def number(name: str) -> int | None:
            return folder.number(name, texts[name])

        autoprobe = number("sriov_drivers_autoprobe")
        sriov = Sriov(
            total_vfs=total,
            num_vfs=number("sriov_numvfs"),
            offset=number("sriov_offset"),
            stride=number("sriov_stride"),
            vf_device_id=texts["sriov_vf_device"] or None,
            drivers_autoprobe=None if autoprobe is None else bool(autoprobe),
        )
        if sriov.num_vfs != 0:
            names = [name for name in folder.names() if _VIRTFN.match(name)]
            for name in sorted(names, key=lambda name: int(name[6:])):
                address = self._link_target(folder, name)
                if address:
                    sriov.vfs.append(address)
                    self._vf_numbers[folder.name, address] = int(name[6:])
        return sriov
