# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Small machines that have only the files that a test needs, in the format of the kernel."""

from __future__ import annotations

import os
import struct
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe

GPU = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NIC = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
NIC_VF = {"class": "0x020700", "vendor": "0x15b3", "device": "0x101e"}
ETHERNET = {"class": "0x020000", "vendor": "0x8086", "device": "0x1521"}
NVME = {"class": "0x010802", "vendor": "0x144d", "device": "0xa80a"}
BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
DATA_DIRECT = {"class": "0x080100", "vendor": "0x15b3", "device": "0x2100"}
LINK_GEN5_X16 = {
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
}


class Tree:
    """A node's /sys and /proc below `root`. Paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys").mkdir(parents=True)
        self._folders: dict[str, str] = {}
        self._created: set[str] = set()

    def probe(self, *overrides: dict[str, t.Any], **options: t.Any) -> Topology:
        return probe(str(self.root), overrides, diagnose=diagnose, **options)

    def _in_created_folder(self, path: str) -> str:
        """Create the folder of a file. Returns the file's path on the computer that runs the test."""
        folder = os.path.dirname(path)
        if folder not in self._created:
            os.makedirs(f"{self.root}/{folder}", exist_ok=True)
            self._created.add(folder)
        return f"{self.root}/{path}"

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file. A string is written with a final newline, like a value of the kernel."""
        with open(self._in_created_folder(path), "wb") as file:
            file.write(content if isinstance(content, bytes) else f"{content}\n".encode())

    def link(self, path: str, target: str) -> None:
        """Make `path` a relative symbolic link to `target`, as in sysfs."""
        os.symlink(os.path.relpath(target, os.path.dirname(path)), self._in_created_folder(path))

    def cpus(self, *packages: str) -> None:
        """Add packages (sockets) with these CPU lists, such as `0-3`."""
        for number, cpus in enumerate(packages):
            first, _dash, last = cpus.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
                self.write(f"{folder}/physical_package_id", str(number))
                self.write(f"{folder}/core_siblings_list", cpus)

    def nodes(self, *cpus: str, distances: t.Sequence[str] = ()) -> None:
        """Add NUMA nodes with these CPU lists. An empty list is a node without CPUs."""
        for number, text in enumerate(cpus):
            folder = f"sys/devices/system/node/node{number}"
            self.write(f"{folder}/cpulist", text)
            self.write(f"{folder}/meminfo", f"Node {number} MemTotal:       1024 kB")
            if distances:
                self.write(f"{folder}/distance", distances[number])

    def folder(self, address: str) -> str:
        return self._folders[address]

    def pci(self, path: str, attributes: dict[str, t.Any], numa: int | None = None, **more: t.Any) -> str:
        """Add a function at `path` below sys/devices, such as pci0000:17/0000:17:01.0/0000:18:00.0.

        Missing functions above it are added as bridges of the same NUMA node. The attribute `driver` is the name of
        the driver. Returns the address.
        """
        parts = path.split("/")
        for index, part in enumerate(parts[:-1]):
            if part.count(":") == 2 and part not in self._folders:
                self.pci("/".join(parts[: index + 1]), BRIDGE, numa)
        address, folder = parts[-1], f"sys/devices/{path}"
        self._folders[address] = folder
        self.link(f"sys/bus/pci/devices/{address}", folder)
        values = {**attributes, **more}
        if numa is not None:
            values["numa_node"] = numa
        driver = values.pop("driver", None)
        if driver:
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        for name, value in values.items():
            self.write(f"{folder}/{name}", value if isinstance(value, bytes) else str(value))
        return address

    def vf(self, pf: str, number: int, path: str, attributes: dict[str, t.Any], **more: t.Any) -> str:
        """Add a VF of the function `pf`; `path` and `attributes` are as in `pci`. Returns the VF's address."""
        address = self.pci(path, attributes, **more)
        self.link(f"{self.folder(address)}/physfn", self.folder(pf))
        self.link(f"{self.folder(pf)}/virtfn{number}", self.folder(address))
        self.write(f"{self.folder(pf)}/sriov_totalvfs", "8")
        return address

    def net(self, name: str, owner: str | None = None, **attributes: t.Any) -> None:
        """Add an interface of the PCI function or folder `owner`, or a virtual interface without an owner."""
        parent = self._folders.get(owner, owner) if owner else "sys/devices/virtual"
        folder = f"{parent}/net/{name}"
        self.link(f"sys/class/net/{name}", folder)
        count = len(list((self.root / "sys/class/net").iterdir()))
        values = {"ifindex": count, "type": 1, "address": f"02:00:00:00:00:{count:02x}", **attributes}
        for attribute, value in values.items():
            self.write(f"{folder}/{attribute}", str(value))

    def stack(self, upper: str, *lowers: str, master: bool = False) -> None:
        """Make `lowers` the lower interfaces of `upper`, and with `master` also `upper` their master."""
        for lower in lowers:
            upper_folder, lower_folder = (
                os.readlink(self.root / "sys/class/net" / name).replace("../..", "", 1) for name in (upper, lower)
            )
            self.link(f"sys{upper_folder}/lower_{lower}", f"sys{lower_folder}")
            if master:
                self.link(f"sys{lower_folder}/master", f"sys{upper_folder}")

    def routes(self, *names: str) -> None:
        """Write an IPv4 routing table: default routes through these interfaces, then a route to a network."""
        rows = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"]
        rows += [f"{name}\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0" for name in names]
        rows.append("other\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0")
        self.write("proc/net/route", "\n".join(rows))

    def rdma(self, name: str, owner: str | None, ports: int = 1, **attributes: t.Any) -> str:
        """Add an RDMA device of the PCI function or folder `owner`, with active ports. Returns its folder."""
        parent = self._folders.get(owner, owner) if owner else "sys/devices/virtual"
        folder = f"{parent}/infiniband/{name}"
        self.link(f"sys/class/infiniband/{name}", folder)
        for attribute, value in {"node_type": "1: CA", **attributes}.items():
            self.write(f"{folder}/{attribute}", str(value))
        for port in range(1, ports + 1):
            self.port(name, port)
        return folder

    def port(self, device: str, number: int, **attributes: t.Any) -> None:
        """Write the attributes of a port of an RDMA device. It is active unless the attributes differ."""
        folder = os.readlink(self.root / "sys/class/infiniband" / device).removeprefix("../../")
        values = {
            "link_layer": "InfiniBand",
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
        }
        for attribute, value in {**values, **attributes}.items():
            self.write(f"sys/{folder}/ports/{number}/{attribute}", str(value))


def vpd(*fields: tuple[bytes, bytes], name: bytes = b"Card", tail: bytes = b"\x78") -> bytes:
    """Vital product data: an identifier string, then a read-only block with these pairs of keyword and value."""
    body = b"".join(key + bytes([len(value)]) + value for key, value in fields)
    return b"\x82" + struct.pack("<H", len(name)) + name + b"\x90" + struct.pack("<H", len(body)) + body + tail


def config_with_acs(control: int, capability: int = 0x1F) -> bytes:
    """Configuration space with the ACS capability: bits of the capability register and of the control register."""
    config = bytearray(4096)
    struct.pack_into("<IHH", config, 0x100, 0x0001000D, capability, control)
    return bytes(config)


def healthy_machine(root: Path, buses: t.Sequence[int] = (0x17, 0x97)) -> Tree:
    """A machine without findings: two sockets, each with a switch with a GPU, an InfiniBand NIC and an NVMe drive.

    The management NIC of socket 0 carries the default route through a VLAN on a bond. `buses` are the root buses.
    """
    tree = Tree(root)
    tree.cpus("0-3", "4-7")
    tree.nodes("0-3", "4-7", distances=("10 21", "21 10"))
    tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu lm")
    tree.write("proc/cmdline", "root=/dev/sda1 iommu=pt")
    for numa, bus in enumerate(buses):
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        cpus = "0-3" if numa == 0 else "4-7"
        devices = (GPU, "nvidia"), (NIC, "mlx5_core"), (NVME, "nvme")
        for slot, (kind, driver) in enumerate(devices):
            path = f"{switch}/0000:{bus + 2:02x}:{slot:02x}.0/0000:{bus + 3 + slot:02x}:00.0"
            for bridge in path.split("/")[1:-1]:
                if not (root / "sys/bus/pci/devices" / bridge).is_symlink():
                    tree.pci(path.partition(bridge)[0] + bridge, BRIDGE, numa, **LINK_GEN5_X16)
            tree.pci(path, kind, numa, local_cpulist=cpus, driver=driver, **LINK_GEN5_X16)
        nic = f"0000:{bus + 4:02x}:00.0"
        tree.net(f"ib{numa}", nic, type=32, dev_port=0, carrier=1, speed=400000)
        tree.rdma(f"mlx5_{numa}", nic, node_guid=f"0000:0000:0000:000{numa}")
    tree.pci(
        f"pci0000:{buses[0]:02x}/0000:{buses[0]:02x}:02.0/0000:{buses[0] + 8:02x}:00.0",
        ETHERNET,
        0,
        driver="igb",
        **LINK_GEN5_X16,
    )
    tree.net("eno1", f"0000:{buses[0] + 8:02x}:00.0", carrier=1, speed=1000)
    tree.net("bond0", **{"bonding/mode": "802.3ad 4"})
    tree.net("bond0.7", uevent="DEVTYPE=vlan")
    tree.stack("bond0", "eno1", master=True)
    tree.stack("bond0.7", "bond0")
    tree.routes("bond0.7")
    return tree
