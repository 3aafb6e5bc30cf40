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
_EMPTY_GID = re.compile(r"^(fe80(:0000){3}|0000(:0000){3})(:0000){4}$")


def read_rdma_devices(reader: Reader, interfaces: list[Interface], with_gids: bool = True) -> list[RdmaDevice]:
    """All RDMA devices of the RDMA namespace that the tree shows, by name. Rates are Gbit/s."""
    names = reader.names(_CLASS)
    char_devices = _char_devices(reader) if names else {}
    hardware = {one.name: one for one in interfaces if one.address and one.kind in ("physical", "vf", "sf")}
    devices = []
    for name in names:
        device = _device(reader, name, hardware, with_gids)
        if device:
            device.char_devices = char_devices.get(name, [])
            devices.append(device)
    return devices


def _char_devices(reader: Reader) -> dict[str, list[str]]:
    """The character devices of each RDMA device: verbs, and MAD and SM access of each port."""
    found: dict[str, list[str]] = {}
    for folder in ("/sys/class/infiniband_verbs", "/sys/class/infiniband_mad"):
        for name in reader.names(folder):
            if re.match(r"^(uverbs|umad|issm)\d+$", name):
                device = reader.text(f"{folder}/{name}/ibdev")
                if device:
                    found.setdefault(device, []).append(f"/dev/infiniband/{name}")
    return found


def _device(reader: Reader, name: str, hardware: dict[str, Interface], with_gids: bool) -> RdmaDevice | None:
    target = reader.link(f"{_CLASS}/{name}", expected=False)
    if is_anothers(reader, f"{_CLASS}/{name}", target):
        return None
    folder = target or f"{_CLASS}/{name}"
    if not reader.names(folder):
        reader.report(f"{_CLASS}/{name}", "an empty or missing device directory")
    # what the device hangs on: a PCI function, or an SF, which is an auxiliary device below its PF's directory
    owner = target.rpartition("/infiniband/")[0] if target else reader.link(f"{folder}/device", expected=False)
    address = address_in(owner)
    device = RdmaDevice(
        name=name,
        address=address,
        node_type=_after_colon(reader.text(f"{folder}/node_type")),
        node_guid=reader.text(f"{folder}/node_guid") or None,
        sys_image_guid=reader.text(f"{folder}/sys_image_guid") or None,
        firmware=reader.text(f"{folder}/fw_ver") or None,
        board_id=reader.text(f"{folder}/board_id") or None,
    )
    siblings = [hardware[one] for one in reader.names(f"{owner}/net") if one in hardware] if address else []
    parent = reader.text(f"{folder}/parent")  # the interface under a soft RDMA device
    ports = [name for name in reader.names(f"{folder}/ports") if re.match(r"^[0-9]{1,3}$", name)]
    for port_name in ports:
        device.ports.append(
            _port(reader, f"{folder}/ports/{port_name}", int(port_name), siblings, len(ports) == 1, with_gids)
        )
    device.ports.sort(key=lambda port: port.port)
    if parent and len(device.ports) == 1 and not device.ports[0].interfaces:
        device.ports[0].interfaces = [parent]
    device.interfaces = sorted({interface for port in device.ports for interface in port.interfaces})
    return device


def _port(
    reader: Reader, folder: str, number: int, siblings: list[Interface], only_port: bool, with_gids: bool
) -> RdmaPort:
    layer = reader.text(f"{folder}/link_layer")
    port = RdmaPort(
        port=number,
        link_layer=_LINK_LAYERS.get(layer or "", layer or None),
        state=_after_colon(reader.text(f"{folder}/state")),
        phys_state=_after_colon(reader.text(f"{folder}/phys_state")),
        lid=reader.text(f"{folder}/lid") or None,
        sm_lid=reader.text(f"{folder}/sm_lid") or None,
    )
    rate = re.match(r"^([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", reader.text(f"{folder}/rate") or "")
    port.rate_gbps = float(rate.group(1)) if rate else None
    # several ports on one PCI function are told apart by dev_port, which counts from 0
    sole = only_port and len(siblings) == 1
    port.interfaces = [i.name for i in siblings if sole or i.dev_port == number - 1]
    if with_gids:
        port.gids = _gids(reader, folder)
        port.interfaces += sorted({gid.interface for gid in port.gids if gid.interface} - set(port.interfaces))
    return port


def _gids(reader: Reader, folder: str) -> list[Gid]:
    gids = []
    for name in sorted(
        (entry for entry in reader.names(f"{folder}/gids") if re.match(r"^[0-9]{1,5}$", entry)), key=int
    ):
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
