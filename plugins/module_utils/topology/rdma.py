# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""RDMA devices from /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import re

from .model import Gid, Interface, RdmaDevice, RdmaPort
from .pci import address_in, is_other_device
from .reader import Folder, Reader

_CLASS = "/sys/class/infiniband"
_LINK_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "ethernet"}
_PORT, _INDEX = re.compile(r"^[0-9]{1,3}$"), re.compile(r"^[0-9]{1,5}$")
_RATE = re.compile(r"^([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
_CHAR_DEVICE = re.compile(r"^(uverbs|umad|issm)\d+$")
_DEVICE_FILES = ("node_type", "node_guid", "sys_image_guid", "fw_ver", "board_id")
_PORT_FILES = ("link_layer", "state", "phys_state", "lid", "sm_lid", "rate")
_EMPTY_GID = re.compile(r"^(fe80(:0000){3}|0000(:0000){3})(:0000){4}$")


def read_rdma_devices(reader: Reader, interfaces: list[Interface], with_gids: bool = True) -> list[RdmaDevice]:
    """All RDMA devices of the namespace that the tree shows, sorted by name. Rates are in Gbit/s."""
    links = reader.links(_CLASS)
    char_devices = _char_devices(reader, links) if links else {}
    # by parent, which may be an SF below the folder of its function
    hardware: dict[str, list[Interface]] = {}
    for interface in interfaces:
        if interface.address and interface.kind in ("physical", "vf", "sf"):
            link = reader.links("/sys/class/net").get(interface.name)
            owner = link.rpartition("/net/")[0] if link else reader.link(f"/sys/class/net/{interface.name}/device")
            hardware.setdefault(owner or "", []).append(interface)
    devices = []
    for name, target in links.items():
        device = _device(reader, name, target, hardware, with_gids)
        if device:
            device.char_devices = char_devices.get(name, [])
            devices.append(device)
    return devices


def _char_devices(reader: Reader, links: dict[str, str | None]) -> dict[str, list[str]]:
    """The character devices of each RDMA device: verbs, and MAD and SM access of each port.

    They have the same parent as the RDMA device. `ibdev` is read only if several RDMA devices have that parent, or if
    the link does not lead to it.
    """
    by_parent: dict[str, list[str]] = {}
    for name, target in links.items():
        owner, separator, _name = (target or "").rpartition("/infiniband/")
        if separator:
            by_parent.setdefault(owner, []).append(name)
    devices: dict[str, list[str]] = {}
    for kind in ("infiniband_verbs", "infiniband_mad"):
        for name, folder in reader.links(f"/sys/class/{kind}").items():
            if not _CHAR_DEVICE.match(name):
                continue
            siblings = by_parent.get((folder or "").rpartition(f"/{kind}/")[0], [])
            device = siblings[0] if len(siblings) == 1 else None
            device = device or reader.text(f"{folder or f'/sys/class/{kind}/{name}'}/ibdev")
            if device:
                devices.setdefault(device, []).append(f"/dev/infiniband/{name}")
    return devices


def _device(
    reader: Reader, name: str, target: str | None, hardware: dict[str, list[Interface]], with_gids: bool
) -> RdmaDevice | None:
    if is_other_device(reader, f"{_CLASS}/{name}", target):
        return None
    path = target or f"{_CLASS}/{name}"
    # the parent: a PCI function, or an SF, which is an auxiliary device below its PF's directory
    owner = target.rpartition("/infiniband/")[0] if target else reader.link(f"{path}/device", expected=False)
    device = RdmaDevice(name=name, address=address_in(owner))
    siblings = hardware.get(owner, []) if device.address and owner else []
    with reader.folder(path) as folder:
        _add_attributes(reader, device, folder)
        parent = None if device.address else folder.text("parent")
        with folder.folder("ports") as ports:
            names = [name for name in ports.names() if _PORT.match(name)]
            device.ports = [_port(ports, name, siblings, len(names) == 1, with_gids) for name in names]
    device.ports.sort(key=lambda port: port.port)
    # the parent of a soft RDMA device is the interface below it
    if parent and len(device.ports) == 1 and not device.ports[0].interfaces:
        device.ports[0].interfaces = [parent]
    device.interfaces = sorted({interface for port in device.ports for interface in port.interfaces})
    return device


def _add_attributes(reader: Reader, device: RdmaDevice, folder: Folder) -> None:
    texts = [folder.text(name) or None for name in _DEVICE_FILES]
    if not any(texts) and not folder.names():
        reader.report(f"{_CLASS}/{device.name}", "an empty or missing device directory")
    node_type, device.node_guid, device.sys_image_guid, device.firmware, device.board_id = texts
    device.node_type = _after_colon(node_type)


def _port(ports: Folder, name: str, siblings: list[Interface], only_port: bool, with_gids: bool) -> RdmaPort:
    number = int(name)
    with ports.folder(name) as folder:
        layer, state, phys_state, lid, sm_lid, speed = [folder.text(name) for name in _PORT_FILES]
        gids = _gids(folder) if with_gids else []
    rate = _RATE.match(speed or "")
    # several ports on one PCI function differ by dev_port, which counts from 0
    sole = only_port and len(siblings) == 1
    interfaces = [i.name for i in siblings if sole or i.dev_port == number - 1]
    if gids:
        interfaces += sorted({gid.interface for gid in gids if gid.interface}.difference(interfaces))
    return RdmaPort(
        port=number,
        link_layer=_LINK_LAYERS.get(layer or "", layer or None),
        state=_after_colon(state),
        phys_state=_after_colon(phys_state),
        rate_gbps=float(rate.group(1)) if rate else None,
        lid=lid or None,
        sm_lid=sm_lid or None,
        interfaces=interfaces,
        gids=gids,
    )


def _gids(port: Folder) -> list[Gid]:
    with port.folder("gids") as folder:
        texts = {name: folder.text(name) for name in sorted(filter(_INDEX.match, folder.names()), key=int)}
    gids = {name: text for name, text in texts.items() if text and not _EMPTY_GID.match(text)}
    if not gids:
        return []
    with port.folder("gid_attrs") as above, above.folder("types") as types, above.folder("ndevs") as ndevs:
        return [
            Gid(index=int(name), gid=text, type=types.text(name) or None, interface=ndevs.text(name) or None)
            for name, text in gids.items()
        ]


def _after_colon(text: str | None) -> str | None:
    """The word in `4: ACTIVE`."""
    return (text or "").rpartition(":")[2].strip() or None
