# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Network interfaces from /sys/class/net (Documentation/ABI/testing/sysfs-class-net) and the default routes."""

from __future__ import annotations

import re

from .model import Interface, PciFunction
from .pci import USB, address_in, is_other_device
from .reader import Folder, Reader

_NET = "/sys/class/net"
_LINK_LAYERS = {1: "ethernet", 32: "infiniband", 772: "loopback"}  # linux/if_arp.h
#: The folder of an interface contains at least one of these files; a sparse recording may have only one.
_ATTRIBUTES = frozenset(("ifindex", "address", "addr_assign_type", "type", "flags", "mtu", "operstate", "dev_port"))
#: Files that are read in an interface's folder, if it has them.
_PORT_NAMES = ("phys_port_name", "phys_switch_id")
_FILES = (
    "type",
    "address",
    "addr_assign_type",
    "mtu",
    "operstate",
    "carrier",
    "speed",
    "dev_port",
    "ifalias",
    "uevent",
) + _PORT_NAMES
_NUMBERS = ("type", "ifindex", "mtu", "carrier", "speed", "dev_port")
_IFINDEX = re.compile(r"^IFINDEX=([0-9]{1,10})$", re.MULTILINE)
_DEVTYPE = re.compile(r"^DEVTYPE=(\w+)$", re.MULTILINE)
_DEVTYPES = ("vlan", "bond", "bridge", "macvlan", "ipvlan", "vxlan", "wlan")
#: Port names of representors: the ports through which a switchdev driver reaches VFs, SFs and, on a DPU, the host's PFs
#: (Documentation/networking/devlink/devlink-port.rst).
_REPRESENTOR = re.compile(r"^(c\d+)?pf\d+((vf|sf)\d+|hpf)?$")
_RTF_UP, _RTF_REJECT = 0x0001, 0x0200
_MAX_ROUTES_BYTES = 1 << 20


def read_interfaces(reader: Reader, functions: dict[str, PciFunction]) -> list[Interface]:
    """All interfaces of the network namespace that the tree shows, by name."""
    routed = default_route_interfaces(reader)
    interfaces = _InterfaceReader(reader, functions).read()
    for interface in interfaces:
        interface.default_route = interface.name in routed
    _add_partition_parents(reader, interfaces)
    _add_permanent_macs(reader, interfaces)
    return interfaces


class _InterfaceReader:
    """Reads the folders of /sys/class/net."""

    def __init__(self, reader: Reader, functions: dict[str, PciFunction]) -> None:
        self._reader = reader
        self._functions = functions
        self._files_of_vfs: dict[tuple[str, str | None], tuple[str, ...]] = {}  # by PF and driver

    def read(self) -> list[Interface]:
        interfaces = []
        for name, target in self._reader.links(_NET).items():
            # bonding_masters is the only plain file in this folder
            if name == "bonding_masters" or is_other_device(self._reader, f"{_NET}/{name}", target):
                continue
            with self._reader.folder(target or f"{_NET}/{name}") as folder:
                interface = self._interface(name, folder)
            if interface:
                interfaces.append(interface)
        return interfaces

    def _interface(self, name: str, folder: Folder) -> Interface | None:
        hardware = "/devices/virtual/" not in folder.path
        address = address_in(folder.path) if hardware else None
        names, texts = self._contents(folder, self._functions.get(address or ""))
        if not texts and names.isdisjoint(_ATTRIBUTES):
            if name == "lo":
                return None  # recordings contain only the link of lo, which is not damage
            self._reader.report(f"{_NET}/{name}", "not the directory of an interface")
            if names or not address_in(folder.path):
                return None  # otherwise the link still contains the PCI function of the interface

        interface = Interface(name=name, address=address)
        if hardware and address is None and "device" in names:
            interface.address = address_in(folder.link("device"))
        _add_attributes(interface, folder, texts)
        if hardware and folder.number("addr_assign_type", texts.get("addr_assign_type")) == 0:
            # NET_ADDR_PERM; a VLAN inherits this type with the parent's MAC
            interface.permanent_mac = interface.mac
        if not names or "master" in names:
            interface.master = (folder.link("master") or "").rpartition("/")[2] or None
        interface.lower = sorted([entry[6:] for entry in names if entry[:6] == "lower_"])
        interface.kind = _kind(interface, folder.path, names, texts.get("uevent") or "", self._functions)
        return interface

    def _contents(self, folder: Folder, function: PciFunction | None) -> tuple[set[str], dict[str, str | None]]:
        """All names in the folder of an interface, and the texts of the relevant files.

        The folder of a VF's interface is not listed (the names are empty), because nodes have many VFs, and a VF has no
        lower interfaces. Whether a VF has a port name depends on the driver, so only the first VF of a PF is checked.
        """
        if function and function.physfn and folder.path.endswith(f"/{function.address}/net/{folder.name}"):
            key = (function.physfn, function.driver)
            texts = {name: folder.text(name) for name in self._files_of_vfs.get(key, _FILES)}
            if any(texts.values()):
                if key not in self._files_of_vfs:
                    without = [name for name in _PORT_NAMES if texts[name] is None]
                    self._files_of_vfs[key] = tuple(name for name in _FILES if name not in without)
                return set(), texts
        names = set(folder.names())
        return names, {name: folder.text(name) for name in _FILES if name in names}


def _add_attributes(interface: Interface, folder: Folder, texts: dict[str, str | None]) -> None:
    index = _IFINDEX.search(texts.get("uevent") or "")
    texts["ifindex"] = index.group(1) if index else folder.text("ifindex")
    kind, ifindex, mtu, carrier, speed, dev_port = [folder.number(name, texts.get(name)) for name in _NUMBERS]
    if kind is not None:
        interface.link_layer = _LINK_LAYERS.get(kind, "other")
    interface.ifindex = ifindex
    interface.mac = texts.get("address") or None
    interface.mtu = mtu
    interface.operstate = texts.get("operstate") or None
    interface.carrier = None if carrier is None else bool(carrier)
    interface.speed_mbps = speed if speed is not None and 0 < speed < 2**31 else None  # -1: SPEED_UNKNOWN
    interface.dev_port = dev_port
    interface.phys_port_name = texts.get("phys_port_name") or None
    interface.phys_switch_id = texts.get("phys_switch_id") or None
    interface.alias = texts.get("ifalias") or None


def _kind(interface: Interface, folder: str, names: set[str], uevent: str, functions: dict[str, PciFunction]) -> str:
    if interface.link_layer == "loopback":
        return "loopback"
    if "bonding" in names:
        return "bond"
    if "bridge" in names:
        return "bridge"
    devtype = _DEVTYPE.search(uevent) if "DEVTYPE" in uevent else None
    if devtype and devtype.group(1) in _DEVTYPES:
        return devtype.group(1)
    if interface.phys_switch_id and _REPRESENTOR.match(interface.phys_port_name or ""):
        return "representor"
    if interface.address is None:
        return "virtual"
    if USB.search(folder):
        return "usb"
    if ".sf." in folder and re.search(r"\.sf\.\d+/", folder):
        return "sf"
    function = functions.get(interface.address)
    return "vf" if function and function.physfn else "physical"


def _add_partition_parents(reader: Reader, interfaces: list[Interface]) -> None:
    """Set the parents of IPoIB child interfaces. Parent and child have the same PCI function, and only iflink
    differs."""
    by_index = {interface.ifindex: interface.name for interface in interfaces if interface.ifindex is not None}
    for interface in interfaces:
        if interface.link_layer != "infiniband" or interface.kind not in ("physical", "vf", "sf"):
            continue
        folder = reader.links(_NET)[interface.name] or f"{_NET}/{interface.name}"
        parent = reader.integer(f"{folder}/iflink")
        if parent is not None and interface.ifindex is not None and parent != interface.ifindex:
            interface.kind = "virtual"
            if parent in by_index and by_index[parent] not in interface.lower:
                interface.lower = sorted([*interface.lower, by_index[parent]])


def _add_permanent_macs(reader: Reader, interfaces: list[Interface]) -> None:
    """Fill in the permanent addresses that sysfs lacks: from a bond's list of its ports, and from the running
    kernel."""
    by_name = {interface.name: interface for interface in interfaces}
    for bond in interfaces:
        if bond.kind != "bond":
            continue
        port = None
        for line in (reader.text(f"/proc/net/bonding/{bond.name}", 65536) or "").splitlines():
            key, colon, value = line.partition(": ")
            if key == "Slave Interface":
                port = by_name.get(value.strip())
            elif key == "Permanent HW addr" and port:
                port.permanent_mac = port.permanent_mac or value.strip().lower()
    unknown = {entry.name: entry for entry in interfaces if entry.address and entry.permanent_mac is None}
    for name, mac in reader.permanent_macs(unknown).items():
        unknown[name].permanent_mac = mac


def default_route_interfaces(reader: Reader) -> set[str]:
    """The interfaces of the default route with the lowest metric (/proc/net/route, /proc/net/ipv6_route).

    If IPv4 has a default route, only IPv4 counts: IPv6 routers announce themselves on every port, and the IPv6 file
    lists all tables. If the IPv6 file is too long to be read, this is reported: unlike in the IPv4 file, default routes
    may be at its end.
    """
    metrics: dict[str, int] = {}
    for line in (reader.text("/proc/net/route", _MAX_ROUTES_BYTES) or "").splitlines()[1:]:
        columns = line.split()
        if len(columns) >= 8 and columns[1] == columns[7] == "00000000" and _route_is_up(columns[3]):
            _keep_lowest(metrics, columns[0], columns[6], 10)
    if not metrics:
        text = reader.text("/proc/net/ipv6_route", _MAX_ROUTES_BYTES + 1) or ""
        if len(text) >= _MAX_ROUTES_BYTES:
            reader.report("/proc/net/ipv6_route", "longer than 1 MiB: a default route may be missing")
        for line in text.splitlines():
            columns = line.split()
            if len(columns) >= 10 and not columns[0].strip("0") and columns[1] == "00" and _route_is_up(columns[8]):
                _keep_lowest(metrics, columns[9], columns[5], 16)
    metrics.pop("lo", None)
    return {name for name, metric in metrics.items() if metric == min(metrics.values())}


def _keep_lowest(metrics: dict[str, int], name: str, text: str, base: int) -> None:
    try:
        metric = int(text, base)
    except ValueError:
        return
    metrics[name] = min(metric, metrics.get(name, metric))


def _route_is_up(flags: str) -> bool:
    try:
        value = int(flags, 16)
    except ValueError:
        return False
    return bool(value & _RTF_UP) and not value & _RTF_REJECT


def elsewhere(reader: Reader, functions: dict[str, PciFunction], interfaces: list[Interface]) -> dict[str, list[str]]:
    """What NICs without a visible interface have in another network namespace (`interface`, `rdma_device`), by address.

    The kernel keeps the folder of a class below a function as long as the function has a device of that class. In that
    folder, only devices of the reader's namespace are visible (get_device_parent in drivers/base/core.c).
    """
    classes = {"net": "interface", "infiniband": "rdma_device"}
    visible = {interface.address for interface in interfaces}
    hidden_by_address = {}
    for address, function in functions.items():
        if function.kind == "nic" and function.driver and address not in visible:
            folder = f"/sys/bus/pci/devices/{address}"
            entries = set(reader.names(folder))
            hidden = [
                what for name, what in classes.items() if name in entries and not reader.names(f"{folder}/{name}")
            ]
            if hidden:
                hidden_by_address[address] = hidden
    return hidden_by_address


def below(interfaces: list[Interface], names: set[str]) -> set[str]:
    """The interfaces in `names`, and all interfaces below them: the ports of a bond or bridge, the parent of a VLAN."""
    lower = {interface.name: set(interface.lower) for interface in interfaces}
    for interface in interfaces:
        if interface.master:
            lower.setdefault(interface.master, set()).add(interface.name)
    reached: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending |= lower.get(name, set())
    return reached
