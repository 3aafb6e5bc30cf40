# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Binary data of PCI functions, as hardware would return it: configuration space and VPD.

Layouts are those of the PCI Express Base Specification (chapter 7) and of the PCI Local Bus Specification 3.0
(appendix I, VPD); register names and offsets follow include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import struct

#: Link speed in GT/s -> the code of the Link Capabilities and Link Status registers.
SPEED_CODE = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

#: Device/Port Type field of the PCI Express capability.
PORT_TYPE = {"endpoint": 0, "root": 4, "upstream": 5, "downstream": 6, "integrated": 9}

#: Bits of the ACS capability and control registers, by the suffixes of the constants PCI_ACS_*.
ACS_BIT = {"SV": 0, "TB": 1, "RR": 2, "CR": 3, "UF": 4, "EC": 5, "DT": 6}

_CAP_EXPRESS, _CAP_SSVID, _CAP_VPD = 0x10, 0x0D, 0x03
_EXT_DSN, _EXT_ACS, _EXT_ARI, _EXT_SRIOV = 0x0003, 0x000D, 0x000E, 0x0010


def acs_word(names: str) -> int:
    """The register value of space separated ACS names ("SV RR CR UF"). Raises KeyError for an unknown name."""
    return sum(1 << ACS_BIT[name] for name in names.split())


def config_space(  # noqa: PLR0913, PLR0917
    vendor: int,
    device: int,
    class_code: int,
    revision: int = 0,
    subsystem: tuple[int, int] = (0, 0),
    buses: tuple[int, int, int] | None = None,
    port: str | None = None,
    link: tuple[float, int] | None = None,
    max_link: tuple[float, int] | None = None,
    multifunction: bool = False,
    slot: bool = False,
    has_vpd: bool = False,
    serial: int | None = None,
    acs: tuple[str, str] | None = None,
    sriov: dict | None = None,
    virtual: bool = False,
) -> bytes:
    """Configuration space of one function: 4096 bytes for PCI Express, 256 bytes for conventional PCI.

    `buses` is (primary, secondary, subordinate); with it the header is of type 1. `port` is a key of PORT_TYPE, or None
    for conventional PCI. `link` and `max_link` are (GT/s, lanes); a VF reports a link of (0, 0). `acs` is (capable,
    enabled) as ACS names. `sriov` has total, num, offset, stride, vf. A VF (`virtual`) reports FFFFh as vendor and
    device (SR-IOV specification, 3.4.1).
    """
    space = bytearray(4096 if port is not None else 256)
    ids = (0xFFFF, 0xFFFF) if virtual else (vendor, device)
    struct.pack_into("<HHHHI", space, 0, *ids, 0x0406, 0x0010, class_code << 8 | revision)
    space[0x0E] = (1 if buses else 0) | (0x80 if multifunction else 0)
    if buses:
        space[0x18:0x1B] = bytes(buses)
    else:
        struct.pack_into("<HH", space, 0x2C, *subsystem)
    _write_capabilities(space, subsystem, buses, port, link, max_link, slot, has_vpd)
    if port is not None:
        _write_extended_capabilities(space, serial, acs, sriov, ari=virtual or sriov is not None)
    return bytes(space)


def _write_capabilities(space, subsystem, buses, port, link, max_link, slot, has_vpd) -> None:  # noqa: PLR0917
    capabilities = []
    if port is not None:
        capabilities.append((0x40, _CAP_EXPRESS))
    if buses and subsystem != (0, 0):
        capabilities.append((0x80, _CAP_SSVID))
    if has_vpd:
        capabilities.append((0x90, _CAP_VPD))
    pointer = 0x34
    for offset, identifier in capabilities:
        space[pointer] = offset
        space[offset] = identifier
        pointer = offset + 1
    if not capabilities:
        struct.pack_into("<H", space, 0x06, 0)
    if port is not None:
        struct.pack_into("<H", space, 0x42, 2 | PORT_TYPE[port] << 4 | (0x100 if slot else 0))
        speed, width = max_link or link or (0, 0)
        code = SPEED_CODE.get(speed, 0)
        struct.pack_into("<I", space, 0x4C, code | width << 4)
        struct.pack_into("<I", space, 0x6C, (1 << code) - 1 << 1 if code else 0)
        speed, width = link or (0, 0)
        struct.pack_into("<H", space, 0x52, SPEED_CODE.get(speed, 0) | width << 4)
    if buses and subsystem != (0, 0):
        struct.pack_into("<HH", space, 0x84, *subsystem)


def _write_extended_capabilities(space, serial, acs, sriov, ari) -> None:
    capabilities = []
    if serial is not None:
        capabilities.append((0x100, _EXT_DSN, struct.pack("<Q", serial)))
    if acs is not None:
        capabilities.append((0x120, _EXT_ACS, struct.pack("<HH", acs_word(acs[0]), acs_word(acs[1]))))
    if ari:
        capabilities.append((0x140, _EXT_ARI, b"\0\0\0\0"))
    if sriov is not None:
        body = bytearray(0x3C)
        control = 0x19 if sriov["num"] else 0x10  # VF Enable, VF MSE, ARI Capable Hierarchy
        struct.pack_into("<H", body, 0x04, control)
        struct.pack_into("<HHH", body, 0x08, sriov["total"], sriov["total"], sriov["num"])
        struct.pack_into("<HH", body, 0x10, sriov["offset"], sriov["stride"])
        struct.pack_into("<H", body, 0x16, sriov["vf"])
        struct.pack_into("<II", body, 0x18, 0x553, 1)
        capabilities.append((0x180, _EXT_SRIOV, bytes(body)))
    if capabilities and capabilities[0][0] != 0x100:  # the list always starts at 100h
        capabilities[0] = (0x100, *capabilities[0][1:])
    for index, (offset, identifier, body) in enumerate(capabilities):
        next_offset = capabilities[index + 1][0] if index + 1 < len(capabilities) else 0
        struct.pack_into("<I", space, offset, identifier | 1 << 16 | next_offset << 20)
        space[offset + 4 : offset + 4 + len(body)] = body


def vpd(name: str, fields: dict[str, str]) -> bytes:
    """A VPD image: identifier string, read-only section with its checksum, end tag.

    `fields` are two-letter keywords (PN, EC, SN, V0 .. VZ) with ASCII values of at most 255 bytes.
    """
    text = name.encode("ascii")
    image = bytearray(b"\x82" + struct.pack("<H", len(text)) + text)
    body = b"".join(k.encode("ascii") + bytes([len(v)]) + v.encode("ascii") for k, v in fields.items())
    image += b"\x90" + struct.pack("<H", len(body) + 4) + body + b"RV\x01"
    image.append(-sum(image) & 0xFF)
    image.append(0x78)
    return bytes(image)
