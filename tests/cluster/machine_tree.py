# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks a pod's devices with nothing but the files of an example machine: its /sys and /proc.

This module uses no code of the collection. So it does not repeat a bug in the probe, its tables or its records.
"""

from __future__ import annotations

import collections
import typing as t
from pathlib import Path

#: How near a GPU and a NIC are: below the same host bridge, on the same NUMA node, or neither.
ROOT, NODE, FAR = 2, 1, 0


class Seen(t.NamedTuple):
    """The devices of a pod, by PCI address."""

    gpus: list[str]
    nics: list[str]


def cpu_list(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it, such as 0-3,8."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


class MachineTree:
    """The tree of a machine, below `path`. Its GPUs are bound to NVIDIA's kernel module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._devices = path / "sys/bus/pci/devices"
        self.gpu_by_minor: dict[int, str] = {}  #: PCI address by the minor number of /dev/nvidiaN
        for folder in (path / "proc/driver/nvidia/gpus").iterdir():
            text = (folder / "information").read_text()
            self.gpu_by_minor[int(text.partition("Device Minor:")[2].split()[0])] = folder.name
        self.nic_by_mac: dict[str, str] = {}  #: PCI address by the MAC address of an interface
        self.speed: dict[str, int] = {}  #: of a NIC by its PCI address, in Mbit/s
        for link in (path / "sys/class/net").iterdir():
            if (link / "device").exists():
                address = (link / "device").resolve().name
                self.nic_by_mac[(link / "address").read_text().strip()] = address
                self.speed[address] = int((link / "speed").read_text())
        self._cpus = path / "sys/devices/system/cpu"

    @property
    def gpus(self) -> list[str]:
        return sorted(self.gpu_by_minor.values())

    @property
    def fabric_nics(self) -> list[str]:
        """The fastest NICs of the machine."""
        return sorted(nic for nic, speed in self.speed.items() if speed == max(self.speed.values()))

    def pcie_root(self, address: str) -> str:
        """The host bridge of a PCI function, such as pci0000:15."""
        path = (self._devices / address).resolve()
        return path.relative_to(self.path.resolve() / "sys/devices").parts[0]

    def numa_node(self, address: str) -> int:
        """The NUMA node of a PCI function; -1 if the kernel does not know it."""
        return int((self._devices / address / "numa_node").read_text())

    @property
    def cpus(self) -> list[int]:
        """The CPUs that are online."""
        return cpu_list((self._cpus / "online").read_text())

    def cpu_node(self, cpu: int) -> int:
        """The NUMA node of a CPU."""
        [node] = (self._cpus / f"cpu{cpu}").glob("node[0-9]*")
        return int(node.name.removeprefix("node"))

    def cpu_socket(self, cpu: int) -> int:
        return int((self._cpus / f"cpu{cpu}/topology/physical_package_id").read_text())

    @property
    def smt(self) -> bool:
        """Whether some core has several CPUs."""
        cores = {(self.cpu_socket(cpu), (self._cpus / f"cpu{cpu}/topology/core_id").read_text()) for cpu in self.cpus}
        return len(cores) < len(self.cpus)

    def nearness(self, gpu: str, nic: str) -> int:
        """ROOT, NODE or FAR for two PCI functions."""
        if self.pcie_root(gpu) == self.pcie_root(nic):
            return ROOT
        return NODE if self.numa_node(gpu) == self.numa_node(nic) >= 0 else FAR

    def nearest_level(self, gpu: str) -> int:
        """How near the nearest NIC is to this GPU."""
        return max(self.nearness(gpu, nic) for nic in self.nic_by_mac.values())

    def location(self, gpu: str, address: str) -> t.Hashable:
        """The location of a PCI function at the level of this GPU's nearest NICs: its host bridge or its NUMA node."""
        return self.pcie_root(address) if self.nearest_level(gpu) == ROOT else self.numa_node(address)

    def aligned(self, seen: Seen) -> bool:
        """Whether a pod has GPUs and exactly one NIC for each, at the level of the GPU's nearest NICs."""
        if not seen.gpus or len(seen.gpus) != len(seen.nics):
            return False
        if any(self.nearest_level(gpu) == FAR for gpu in seen.gpus):
            return False
        first = seen.gpus[0]  # on one machine, the nearest NICs of all GPUs are at the same level
        locations = [collections.Counter(self.location(first, address) for address in addresses) for addresses in seen]
        return len({self.nearest_level(gpu) for gpu in seen.gpus}) == 1 and locations[0] == locations[1]

    def max_pairs(self, gpus: t.Iterable[str], nics: t.Iterable[str]) -> int:
        """The maximum number of disjoint aligned pairs of these devices."""
        gpus, nics = list(gpus), list(nics)
        if not gpus or self.nearest_level(gpus[0]) == FAR:
            return 0
        locations = [
            collections.Counter(self.location(gpus[0], address) for address in addresses) for addresses in (gpus, nics)
        ]
        return (locations[0] & locations[1]).total()
