# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""CPUs, packages and NUMA nodes (Documentation/admin-guide/cputopology.rst, ABI/stable/sysfs-devices-node)."""

from __future__ import annotations

import re

from . import cpuset
from .model import NumaNode, Package, System
from .reader import Folder, Reader

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_DMI = "/sys/class/dmi/id"
_DMI_FILES = ("sys_vendor", "product_name", "board_name", "bios_version")
_CPU_NAME, _NODE_NAME = re.compile(r"^cpu\d{1,5}$"), re.compile(r"^node\d{1,5}$")
_MEMORY, _DISTANCES = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB"), re.compile(r"^[0-9]{1,9}(\s+[0-9]{1,9})*$")
_VIRTUAL_PRODUCTS = ("KVM", "Virtual Machine", "VirtualBox", "VMware", "HVM domU", "Google Compute Engine")
_VIRTUAL_VENDORS = ("QEMU", "Xen", "innotek GmbH", "VMware, Inc.")


def _cpus(reader: Reader, folder: Folder, mask_name: str, list_name: str, size: int = 65536) -> int | None:
    """A CPU set from the first of its two files that exists, the mask or the list.

    The kernel writes both from one value. In edited recordings they can differ. The mask comes first, as in hwloc.
    """
    for name, parse in ((mask_name, cpuset.from_mask), (list_name, cpuset.from_list)):
        text = folder.text(name, whole=True, size=size)
        if text is None:
            continue
        bits = parse(text)
        if bits is not None:
            return bits
        reader.report(f"{folder.path}/{name}", f"not a CPU set: {text[:40]!r}")
    return None


def local_cpus(reader: Reader, folder: Folder) -> int | None:
    """The local CPUs of a PCI function; None if they are unknown."""
    return _cpus(reader, folder, "local_cpus", "local_cpulist", 4096)


def online_cpus(reader: Reader) -> int | None:
    """The CPUs that are online; None if that is unknown."""
    return cpuset.from_list(reader.text(f"{_CPU}/online", 65536, whole=True) or "") or None


def read_packages(reader: Reader) -> list[Package]:
    """Packages (sockets) with their CPUs.

    Each CPU lists all CPUs of its package, so one CPU per package is read.
    """
    numbers = sorted(int(name[3:]) for name in reader.names(_CPU) if name[:3] == "cpu" and _CPU_NAME.match(name))
    covered = 0
    members: dict[int, int] = {}
    for number in numbers:
        if covered >> number & 1:
            continue
        with reader.folder(f"{_CPU}/cpu{number}/topology") as folder:
            identifier = folder.integer("physical_package_id")
            if identifier is None or identifier < 0:  # -1: the firmware does not report it (arm64 without PPTT)
                continue
            cpus = _cpus(reader, folder, "core_siblings", "core_siblings_list") or 0
        cpus |= 1 << number
        covered |= cpus
        members[identifier] = members.get(identifier, 0) | cpus
    return [Package(id=identifier, cpus=cpuset.to_list(cpus)) for identifier, cpus in sorted(members.items())]


def read_numa_nodes(reader: Reader) -> tuple[list[NumaNode], dict[int, int]]:
    """NUMA nodes, and the CPU set of each node that has one. Distances are SLIT numbers, memory is bytes."""
    numbers = sorted(int(name[4:]) for name in reader.entered(_NODE) if _NODE_NAME.match(name))
    online = cpuset.from_list(reader.text(f"{_NODE}/online", 65536, whole=True) or "")
    if online:  # an edited recording may have folders of nodes that are not in the recorded list
        numbers = [number for number in numbers if online >> number & 1]
    names = [str(number) for number in numbers]
    nodes = []
    sets: dict[int, int] = {}
    for number in numbers:
        node = NumaNode(id=number)
        with reader.folder(f"{_NODE}/node{number}") as folder:
            cpus = _cpus(reader, folder, "cpumap", "cpulist")
            if cpus is not None:
                sets[number] = cpus
                node.cpus = cpuset.to_list(cpus)
            memory = _MEMORY.search(folder.text("meminfo") or "")
            distances = folder.text("distance", size=65536, whole=True)
        if memory:
            node.memory_bytes = int(memory.group(1)) * 1024
        if distances:
            values = distances.split()
            if len(values) == len(numbers) and _DISTANCES.match(distances):
                node.distances = dict(zip(names, map(int, values)))
            else:
                reader.report(f"{folder.path}/distance", f"not one distance per node: {distances[:40]!r}")
        nodes.append(node)
    return nodes, sets


def join_packages(nodes: list[NumaNode], sets: dict[int, int], packages: list[Package]) -> None:
    """Set the package of each node, and the nodes of each package, if all CPUs of the node are in one package."""
    for package in packages:
        bits = cpuset.from_list(package.cpus) or 0
        for node in nodes:
            cpus = sets.get(node.id)
            if cpus and cpus & ~bits == 0:
                node.package = package.id
                package.numa_nodes.append(node.id)


def numa_node_of(cpus: int | None, sets: dict[int, int]) -> int | None:
    """The NUMA node that contains a whole CPU set; None if there is none, or if only one node has CPUs.

    With a single node the result would mean nothing: a VM whose host hides the sockets looks the same.
    """
    with_cpus = {number: bits for number, bits in sets.items() if bits}
    if not cpus or len(with_cpus) < 2:
        return None
    holders = [number for number, bits in with_cpus.items() if cpus & bits]
    return holders[0] if len(holders) == 1 and not cpus & ~with_cpus[holders[0]] else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch("[0-9]{1,5}", text) else None


def read_system(reader: Reader) -> System:
    """The machine's names, whether it is virtual, and the state of its IOMMU."""
    with reader.folder(reader.link(_DMI, expected=False) or _DMI) as folder:
        vendor, product, board, bios_version = [folder.text(name) or None for name in _DMI_FILES]
    system = System(
        vendor=vendor,
        product=product,
        board=board,
        bios_version=bios_version,
        kernel=reader.text("/proc/sys/kernel/osrelease") or None,
        architecture=reader.text("/proc/sys/kernel/arch") or reader.architecture(),
    )
    cpuinfo = (reader.text("/proc/cpuinfo", 16384) or "").split("\n\n")[0]
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    system.cpu_model = values.get("model name") or values.get("cpu") or None
    system.cpu_vendor = values.get("vendor_id") or None
    system.cpu_family = _number(values.get("cpu family"))
    system.cpu_model_number = _number(values.get("model"))
    if system.architecture is None:
        if "flags" in values:
            system.architecture = "x86_64" if "lm" in values["flags"].split() else "i386"
        elif "CPU implementer" in values:
            system.architecture = "aarch64"
    if "flags" in values:
        system.virtual = "hypervisor" in values["flags"].split()
    elif (system.product or "").startswith(_VIRTUAL_PRODUCTS) or system.vendor in _VIRTUAL_VENDORS:
        system.virtual = True
    elif system.vendor == "Amazon EC2" and system.product:
        system.virtual = ".metal" not in system.product
    if "iommu" in reader.names("/sys/class"):
        system.iommu_enabled = bool(reader.names("/sys/class/iommu"))
    arguments = (reader.text("/proc/cmdline", 16384) or "").split()
    system.iommu_arguments = [word for word in arguments if "iommu" in word.partition("=")[0] or word[:4] == "pci="]
    return system
