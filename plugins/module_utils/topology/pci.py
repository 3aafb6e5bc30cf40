# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""PCI functions from /sys/bus/pci (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import functools
import re

from . import config_space, cpu, cpuset, ids
from .kubernetes import standard_attributes
from .model import Link, PciFunction, Sriov
from .reader import Reader

DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_HEX = re.compile(r"^0x[0-9a-f]{1,8}$")
_MODALIAS = re.compile(
    r"^pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    r"bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})$"
)
_SPEED = re.compile(r"^([0-9]{1,4}(?:\.[0-9])?) GT/s")


def address_in(path: str | None) -> str | None:
    """The last PCI address in a sysfs path: the function that something hangs on."""
    for part in reversed((path or "").split("/")):
        if ADDRESS.match(part):
            return part
    return None


@functools.lru_cache(maxsize=16384)
def sort_key(address: str) -> tuple[int, ...]:
    """Orders addresses as numbers; anything else comes last."""
    if not ADDRESS.match(address):
        return (1 << 32,)
    return tuple(int(part, 16) for part in re.split("[:.]", address))


@functools.lru_cache(maxsize=16384)
def slot_of(address: str) -> str:
    """The physical device that a function belongs to: the address without the function number."""
    return address.rpartition(".")[0]


def locate(address: str, target: str | None) -> tuple[str | None, list[str]]:
    """Root complex and bridges, from where the kernel's link in /sys/bus/pci/devices leads.

    The root complex is the outermost host bridge on the path. A host bridge further in (Intel VMD) does not count as
    one of the bridges, but the PCI function that it hangs on does. (None, []) where the link does not say.
    """
    parts = (target or "").split("/")
    if parts[:3] != ["", "sys", "devices"] or parts[-1] != address:
        return None, []
    root = next((part for part in parts if _HOST_BRIDGE.match(part)), None)
    if root is None:
        return None, []
    bridges = [part for part in parts[parts.index(root) + 1 : -1] if ADDRESS.match(part)]
    return root, bridges


class PciReader:
    """Reads the PCI functions of one node. C(config_space) tells whether more than the first 64 bytes were readable."""

    def __init__(self, reader: Reader, node_cpus: dict[int, int], with_vpd: bool = True) -> None:
        self.config_space: bool | None = None
        self._reader = reader
        self._node_cpus = node_cpus
        self._with_vpd = with_vpd
        self._group_types: dict[str, str | None] = {}
        self._cpu_sets: dict[int, tuple[str, int | None]] = {}
        self._slots: dict[str, str] = {}
        self._vf_numbers: dict[str, int] = {}

    def read(self) -> dict[str, PciFunction]:
        """All functions, by address, in address order."""
        reader = self._reader
        names = []
        for name in reader.names(DEVICES):
            if ADDRESS.match(name):
                names.append(name)
            else:
                reader.report(f"{DEVICES}/{name}", "not a PCI address")
        for name in reader.names("/sys/bus/pci/slots"):
            slot_address = reader.text(f"/sys/bus/pci/slots/{name}/address")
            if slot_address:
                self._slots[slot_address] = name
        functions = {name: self._function(name) for name in sorted(names, key=sort_key)}
        for address, number in self._vf_numbers.items():
            if address in functions:
                functions[address].vf_number = number
        return functions

    def _function(self, address: str) -> PciFunction:
        reader = self._reader
        target = reader.link(f"{DEVICES}/{address}", expected=False)
        folder = target or f"{DEVICES}/{address}"
        function = PciFunction(address=address)
        function.root_complex, function.bridges = locate(address, target)
        names = set(reader.names(folder))
        if not names:
            reader.report(f"{DEVICES}/{address}", "an empty or missing device directory")
        elif function.root_complex is None:
            reader.report(f"{DEVICES}/{address}", f"does not lead below a PCI host bridge: {target or 'not a link'}")
        self._identify(function, folder, names)
        function.kind = ids.kind(
            function.class_code, function.vendor_id, function.device_id, bool(function.root_complex) and not function.bridges
        )
        function.name = ids.device_name(function.vendor_id, function.device_id)
        function.slot = self._slots.get(slot_of(address))
        if "driver" in names:
            function.driver = (reader.link(f"{folder}/driver") or "").rpartition("/")[2] or None
        kernel_numa = reader.integer(f"{folder}/numa_node", whole=True) if "numa_node" in names else None
        self._locality(function, folder, names, kernel_numa)
        function.kubernetes = standard_attributes(address, target, kernel_numa)
        function.link = self._link(folder, names)
        if "iommu_group" in names:
            self._iommu_group(function, folder)
        if "sriov_totalvfs" in names:
            function.sriov = self._sriov(folder, names)
        if "physfn" in names:
            function.physfn = address_in(reader.link(f"{folder}/physfn"))
        if function.kind == "bridge" and "config" in names:
            function.acs = config_space.read_acs(self._config(folder))
        wants_vpd = function.kind == "data_direct" or function.kind == "nic" and function.physfn is None
        if self._with_vpd and wants_vpd and "vpd" in names:
            path = f"{folder}/vpd"
            function.vpd = config_space.read_vpd(lambda offset, size: reader.data(path, size, offset))
        return function

    def _config(self, folder: str) -> config_space.Read:
        path = f"{folder}/config"

        def read(offset: int, size: int) -> bytes | None:
            data = self._reader.data(path, size, offset)
            if offset >= 64 and data is not None:
                self.config_space = bool(data) or bool(self.config_space)
            return data

        return read

    def _identify(self, function: PciFunction, folder: str, names: set[str]) -> None:
        reader = self._reader

        def number(name: str, digits: int) -> str | None:
            if name not in names:
                return None
            text = reader.text(f"{folder}/{name}")
            if text is None:
                return None
            if not _HEX.match(text) or len(text) > digits + 2:
                reader.report(f"{folder}/{name}", f"not a hexadecimal number: {text[:40]!r}")
                return None
            return text[2:].zfill(digits)

        # one file holds all identifiers; the single ones are for trees that lack it
        alias = _MODALIAS.match(reader.text(f"{folder}/modalias") or "") if "modalias" in names else None
        if alias:
            vendor, device, subsystem_vendor, subsystem_device, base, sub, interface = alias.groups()
            function.vendor_id, function.device_id = vendor.lower(), device.lower()
            function.subsystem_vendor_id = subsystem_vendor.lower()
            function.subsystem_device_id = subsystem_device.lower()
            function.class_code = (base + sub + interface).lower()
        else:
            function.class_code = number("class", 6)
            function.vendor_id = number("vendor", 4)
            function.device_id = number("device", 4)
            function.subsystem_vendor_id = number("subsystem_vendor", 4)
            function.subsystem_device_id = number("subsystem_device", 4)
        function.revision = number("revision", 2)
        if "config" not in names or "revision" in names and function.vendor_id and function.class_code:
            return
        # kernels before 4.10 have no revision file, and a recorded tree may lack others
        header = reader.data(f"{folder}/config", 64) or b""
        if len(header) < 64 or header[0:2] == b"\xff\xff":  # a VF's ids read as ones
            return

        def word(offset: int, size: int) -> str:
            return header[offset : offset + size][::-1].hex()

        function.vendor_id = function.vendor_id or word(0, 2)
        function.device_id = function.device_id or word(2, 2)
        function.revision = function.revision or word(8, 1)
        function.class_code = function.class_code or word(9, 3)
        if header[14] & 0x7F == 0:
            function.subsystem_vendor_id = function.subsystem_vendor_id or word(0x2C, 2)
            function.subsystem_device_id = function.subsystem_device_id or word(0x2E, 2)

    def _locality(self, function: PciFunction, folder: str, names: set[str], kernel_numa: int | None) -> None:
        numa_from_cpus = None
        if "local_cpus" in names or "local_cpulist" in names:
            bits = cpu.local_cpus(self._reader, folder)
            if bits is not None:
                known = self._cpu_sets.get(bits)
                if known is None:
                    known = self._cpu_sets[bits] = (cpuset.to_list(bits), cpu.numa_node_of(bits, self._node_cpus))
                function.local_cpus, numa_from_cpus = known
        if kernel_numa is not None and kernel_numa >= 0:
            function.numa_node, function.numa_source = kernel_numa, "kernel"
        elif numa_from_cpus is not None:
            function.numa_node, function.numa_source = numa_from_cpus, "local_cpus"

    def _link(self, folder: str, names: set[str]) -> Link | None:
        reader = self._reader
        if "max_link_speed" not in names and "current_link_speed" not in names:
            return config_space.read_link(self._config(folder)) if "config" in names else None

        def speed(name: str) -> float | None:
            match = _SPEED.match(reader.text(f"{folder}/{name}") or "") if name in names else None
            return float(match.group(1)) if match else None

        def width(name: str) -> int | None:
            value = reader.integer(f"{folder}/{name}") if name in names else None
            return value if value and 0 < value <= 32 else None  # 0 and 255: the kernel does not know

        link = Link(
            speed_gts=speed("current_link_speed"),
            width=width("current_link_width"),
            max_speed_gts=speed("max_link_speed"),
            max_width=width("max_link_width"),
        )
        link.gb_per_s = config_space.payload_rate(link.speed_gts, link.width)
        return link if link != Link() else None

    def _iommu_group(self, function: PciFunction, folder: str) -> None:
        group = (self._reader.link(f"{folder}/iommu_group") or "").rpartition("/")[2]
        if not re.match(r"^[0-9]{1,9}$", group):
            return
        function.iommu_group = int(group)
        if group not in self._group_types:
            self._group_types[group] = self._reader.text(f"/sys/kernel/iommu_groups/{group}/type") or None
        function.iommu_group_type = self._group_types[group]

    def _sriov(self, folder: str, names: set[str]) -> Sriov:
        reader = self._reader

        def number(name: str) -> int | None:
            return reader.integer(f"{folder}/{name}") if name in names else None

        device_id = reader.text(f"{folder}/sriov_vf_device") if "sriov_vf_device" in names else None
        sriov = Sriov(
            total_vfs=number("sriov_totalvfs"),
            num_vfs=number("sriov_numvfs"),
            offset=number("sriov_offset"),
            stride=number("sriov_stride"),
            vf_device_id=device_id or None,
        )
        autoprobe = number("sriov_drivers_autoprobe")
        sriov.drivers_autoprobe = None if autoprobe is None else bool(autoprobe)
        links = sorted((name for name in names if re.match(r"^virtfn[0-9]{1,5}$", name)), key=lambda name: int(name[6:]))
        for name in links:
            address = address_in(reader.link(f"{folder}/{name}"))
            if address:
                sriov.vfs.append(address)
                self._vf_numbers[address] = int(name[6:])
        return sriov
