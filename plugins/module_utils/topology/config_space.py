# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Decoding PCI configuration space and vital product data (VPD).

The functions take a `read(offset, size)` callable instead of the whole space: on real hardware, each dword is a
transaction with the device, and an ordinary user may read the first 64 bytes only.
"""

from __future__ import annotations

import functools
import typing as t

from .model import Acs, Link, Vpd

Read = t.Callable[[int, int], "bytes | None"]

_CAP_POINTER = 0x34
_CAP_ID_PCIE = 0x10
_EXT_CAP_ID_ACS = 0x000D
_STATUS_CAP_LIST = 0x10
_MAX_LANES = 32

#: Link speed codes of LNKCAP and LNKSTA (PCIe Base Specification 6.0, section 7.5.3.6).
_SPEED_CODES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}

#: Bits of the ACS capability and control registers, in order (section 7.7.11.2).
ACS_NAMES = ("SV", "TB", "RR", "CR", "UF", "EC", "DT")


def _word(data: bytes | None, offset: int, size: int) -> int | None:
    if data is None or len(data) < offset + size:
        return None
    return int.from_bytes(data[offset : offset + size], "little")


@functools.lru_cache(maxsize=256)
def payload_rate(speed_gts: float | None, width: int | None) -> float | None:
    """The payload rate of one direction in GB/s: lanes times rate, less the overhead of 8b/10b (2.5 and 5 GT/s),
    128b/130b (8 to 32 GT/s) or FLIT coding (64 GT/s)."""
    if not speed_gts or not width:
        return None
    if speed_gts <= 5:
        coding = 0.8
    elif speed_gts < 64:
        coding = 128 / 130
    else:
        coding = 242 / 256
    return round(speed_gts * coding * width / 8, 3)


def find_capability(read: Read, capability_id: int, header: bytes | None = None) -> int | None:
    """The offset of a capability in the first 256 bytes, or None. `header` is the first 64, if they were read
    already."""
    header = header or read(0, 64)
    status = _word(header, 0x06, 2)
    pointer = _word(header, _CAP_POINTER, 1)
    if status is None or pointer is None or not status & _STATUS_CAP_LIST:
        return None
    seen = set()
    while pointer >= 0x40 and pointer not in seen:
        seen.add(pointer)
        entry = read(pointer & 0xFC, 2)
        if entry is None or len(entry) < 2:
            return None
        if entry[0] == capability_id:
            return pointer & 0xFC
        pointer = entry[1]
    return None


def read_link(read: Read, header: bytes | None = None) -> Link | None:
    """The link of a function from its PCI Express capability; None if there is none, or if it cannot be read.

    `header` is the first 64 bytes, if they were read already.
    """
    offset = find_capability(read, _CAP_ID_PCIE, header)
    if offset is None:
        return None
    registers = read(offset, 20)
    capability, status = _word(registers, 0x0C, 4), _word(registers, 0x12, 2)
    if capability is None or status is None:
        return None
    return _link(capability & 0x3FF, status & 0x3FF)


@functools.lru_cache(maxsize=256)
def _link(capability: int, status: int) -> Link | None:
    """The link described by the lowest ten bits of Link Capabilities and Link Status. The result is cached, as many
    ports have the same values."""
    speed, width = _SPEED_CODES.get(status & 0xF), _width(status)
    best, best_width = _SPEED_CODES.get(capability & 0xF), _width(capability)
    if not (speed or width or best or best_width):
        return None
    return Link(
        speed_gts=speed,
        width=width,
        max_speed_gts=best,
        max_width=best_width,
        gb_per_s=payload_rate(speed, width),
    )


def _width(register: int) -> int | None:
    lanes = register >> 4 & 0x3F
    return lanes if 0 < lanes <= _MAX_LANES else None


def read_acs(read: Read) -> Acs | None:
    """The ACS capability; None if the port has none, or if the extended configuration space cannot be read."""
    offset = 0x100
    seen = set()
    while offset >= 0x100 and offset not in seen:
        seen.add(offset)
        registers = read(offset, 8)
        header = _word(registers, 0, 4)
        if header is None or header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _EXT_CAP_ID_ACS:
            capability, control = _word(registers, 4, 2), _word(registers, 6, 2)
            if capability is None or control is None:
                return None
            return Acs(capable=_acs_names(capability), enabled=_acs_names(control))
        offset = header >> 20 & 0xFFC
    return None


def _acs_names(register: int) -> list[str]:
    return [name for bit, name in enumerate(ACS_NAMES) if register >> bit & 1]


def read_vpd(read: Read) -> Vpd | None:
    """Name, part number, serial number and NVIDIA's V3 UUID; None if there is no readable VPD.

    Only the identifier string and the read-only block are read: VPD is a mailbox with four bytes per transaction, and
    slow.
    """
    vpd = Vpd()
    offset = 0
    readable = False
    while offset < 0x8000:
        head = read(offset, 3)
        if head is None or len(head) < 3 or head[0] in (0x00, 0xFF):
            break
        if not head[0] & 0x80:  # a small resource: only the end tag matters
            if head[0] >> 3 == 0x0F:
                break
            offset += 1 + (head[0] & 7)
            continue
        length = int.from_bytes(head[1:3], "little")
        if head[0] not in (0x82, 0x90):
            break
        body = read(offset + 3, length)
        if body is None or len(body) < length:
            break
        readable = True
        if head[0] == 0x82:
            vpd.name = _vpd_text(body)
        else:
            _read_vpd_fields(body, vpd)
            break
        offset += 3 + length
    return vpd if readable else None


def _read_vpd_fields(body: bytes, vpd: Vpd) -> None:
    position = 0
    while position + 3 <= len(body):
        key, size = body[position : position + 2], body[position + 2]
        value = body[position + 3 : position + 3 + size]
        if len(value) < size:
            return
        if key == b"PN":
            vpd.part_number = _vpd_text(value)
        elif key == b"SN":
            vpd.serial_number = _vpd_text(value)
        elif key == b"V3":
            vpd.uuid = _vpd_text(value)
        if b"SMDL=SW_MNG" in value:
            vpd.nvlink_management = True
        position += 3 + size


def _vpd_text(raw: bytes) -> str | None:
    try:
        text = raw.decode("ascii").strip(" \0")
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() else None
