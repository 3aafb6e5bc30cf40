# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""RDMA devices from /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import re

from .model import Gid, Interface, RdmaDevice, RdmaPort
from .pci import address_in, is_anothers
from .reader import Reader

_CLASS = "/sys/class/infiniband"
_LINK_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "ethernet"}
_PORT, _INDEX = re.compile(r"^[0-9]{1,3}$"), re.compile(r"^[0-9]{1,5}$")
_RATE = re.compile(r"^([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
_CHAR_DEVICE = re.compile(r"^(uverbs|umad|issm)\d+$")
_DEVICE_FILES = ("node_type", "node_guid", "sys_image_guid", "fw_ver", "board_id")
_PORT_FILES = ("link_layer", "state", "phys_state", "lid", "sm_lid", "rate")
_EMPTY_GID = re.compile(r"^(fe80(:0000){3}|0000(:0000){3})(:0000){4}$")


def read_rdma_devices(reader: Reader, interfaces: list[Interface], with_gids: bool = True) -> list[RdmaDevice]:
    """All RDMA devices of the RDMA namespace that the tree shows, by name. Rates are Gbit/s."""
    names = reader.names(_CLASS)
    char_devices = _char_devices(reader, names) if names else {}
    hardware: dict[
        str, list[Interface]
    ] = {}  # by what they hang on, which may be an SF below the folder of its function
    for one in interfaces:
        if one.address and one.kind in ("physical", "vf", "sf"):
            link = reader.link(f"/sys/class/net/{one.name}", expected=False)
            owner = link.rpartition("/net/")[0] if link else reader.link(f"/sys/class/net/{one.name}/device")
            hardware.setdefault(owner or "", []).append(one)
    devices = []
    for name in names:
        device = _device(reader, name, hardware, with_gids)
        if device:
            device.char_devices = char_devices.get(name, [])
            devices.append(device)
    return devices


def _char_devices(reader: Reader, names: list[str]) -> dict[str, list[str]]:
    """The character devices of each RDMA device: verbs, and MAD and SM access of each port.

    They hang where the RDMA device hangs, beside it: C(ibdev) is read only where several hang there, or none is known.
    """
    beside: dict[str, list[str]] = {}
    for name in names:
        owner, found, _name = (reader.link(f"{_CLASS}/{name}", expected=False) or "").rpartition("/infiniband/")
        if found:
            beside.setdefault(owner, []).append(name)
    devices: dict[str, list[str]] = {}
    for kind in ("infiniband_verbs", "infiniband_mad"):
        for name in reader.names(f"/sys/class/{kind}"):
            if not _CHAR_DEVICE.match(name):
                continue
            folder = reader.link(f"/sys/class/{kind}/{name}", expected=False)
            siblings = beside.get((folder or "").rpartition(f"/{kind}/")[0], [])
            device = siblings[0] if len(siblings) == 1 else None
            device = device or reader.text(f"{folder or f'/sys/class/{kind}/{name}'}/ibdev")
            if device:
                devices.setdefault(device, []).append(f"/dev/infiniband/{name}")
    return devices


def _device(reader: Reader, name: str, hardware: dict[str, list[Interface]], with_gids: bool) -> RdmaDevice | None:
    target = reader.link(f"{_CLASS}/{name}", expected=False)
    if is_anothers(reader, f"{_CLASS}/{name}", target):
        return None
    folder = target or f"{_CLASS}/{name}"
    # what the device hangs on: a PCI function, or an SF, which is an auxiliary device below its PF's directory
    owner = target.rpartition("/infiniband/")[0] if target else reader.link(f"{folder}/device", expected=False)
    address = address_in(owner)
    with reader.folder(folder) as opened:
        texts = [opened.text(name) for name in _DEVICE_FILES]
    if not any(texts) and not reader.names(folder):
        reader.report(f"{_CLASS}/{name}", "an empty or missing device directory")
    node_type, node_guid, image_guid, firmware, board = texts
    device = RdmaDevice(
        name=name,
        address=address,
        node_type=_after_colon(node_type),
        node_guid=node_guid or None,
        sys_image_guid=image_guid or None,
        firmware=firmware or None,
        board_id=board or None,
    )
    siblings = hardware.get(owner, []) if address and owner else []
    parent = None if address else reader.text(f"{folder}/parent")
    ports = [name for name in reader.names(f"{folder}/ports") if _PORT.match(name)]
    for port_name in ports:
        device.ports.append(
            _port(reader, f"{folder}/ports/{port_name}", int(port_name), siblings, len(ports) == 1, with_gids)
        )
    device.ports.sort(key=lambda port: port.port)
    # the parent of a soft RDMA device is the interface under it
    if parent and len(device.ports) == 1 and not device.ports[0].interfaces:
        device.ports[0].interfaces = [parent]
    device.interfaces = sorted({interface for port in device.ports for interface in port.interfaces})
    return device


def _port(
    reader: Reader, path: str, number: int, siblings: list[Interface], only_port: bool, with_gids: bool
) -> RdmaPort:
    with reader.folder(path) as folder:
        layer, state, phys_state, lid, sm_lid, speed = map(folder.text, _PORT_FILES)
    port = RdmaPort(
        port=number,
        link_layer=_LINK_LAYERS.get(layer or "", layer or None),
        state=_after_colon(state),
        phys_state=_after_colon(phys_state),
        lid=lid or None,
        sm_lid=sm_lid or None,
    )
    rate = _RATE.match(speed or "")
    port.rate_gbps = float(rate.group(1)) if rate else None
    # several ports on one PCI function are told apart by dev_port, which counts from 0
    sole = only_port and len(siblings) == 1
    port.interfaces = [i.name for i in siblings if sole or i.dev_port == number - 1]
    if with_gids:
        port.gids = _gids(reader, path)
        port.interfaces += sorted({gid.interface for gid in port.gids if gid.interface} - set(port.interfaces))
    return port


def _gids(reader: Reader, folder: str) -> list[Gid]:
    gids = []
    for name in sorted((entry for entry in reader.names(f"{folder}/gids") if _INDEX.match(entry)), key=int):
        text = reader.text(f"{folder}/gids/{name}")
        if text and not _EMPTY_GID.match(text):
            gids.append(
                Gid(
                    index=int(name),
                    gid=text,
                    type=reader.text(f"{folder}/gid_attrs/types/{name}") or None,
                    interface=reader.text(f"{folder}/gid_attrs/ndevs/{name}") or None,
                )
            )
    return gids


def _after_colon(text: str | None) -> str | None:
    """The word in C(4: ACTIVE)."""
    return (text or "").rpartition(":")[2].strip() or None
