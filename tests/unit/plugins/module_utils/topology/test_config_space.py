# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import config_space
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Acs, Link, Vpd
from hypothesis import given
from hypothesis import strategies as st


def reading(data):
    return lambda offset, size: data[offset : offset + size]


def space(capabilities=(), extended=(), size=4096):
    """Config space with (offset, id, body) capabilities and (offset, id, body) extended ones, linked in order."""
    data = bytearray(size)
    data[0x06] = 0x10 if capabilities else 0
    pointer = 0x34
    for offset, identifier, body in capabilities:
        data[pointer] = offset
        data[offset] = identifier
        data[offset + 2 : offset + 2 + len(body)] = body
        pointer = offset + 1
    for index, (offset, identifier, body) in enumerate(extended):
        following = extended[index + 1][0] if index + 1 < len(extended) else 0
        data[offset : offset + 4] = struct.pack("<I", identifier | 1 << 16 | following << 20)
        data[offset + 4 : offset + 4 + len(body)] = body
    return bytes(data)


def vpd(*fields, name=b"Card", tail=b"\x78"):
    body = b"".join(key + bytes([len(value)]) + value for key, value in fields)
    return b"\x82" + struct.pack("<H", len(name)) + name + b"\x90" + struct.pack("<H", len(body)) + body + tail


def express(speed, width, max_speed, max_width):
    return (
        b"\x02\x00"
        + bytes(8)
        + struct.pack("<I", max_width << 4 | max_speed)
        + b"\0\0"
        + struct.pack("<H", width << 4 | speed)
    )


def test_the_fields_of_the_vpd_are_read():
    data = vpd((b"PN", b"MCX75310AAS "), (b"SN", b"MT2226"), (b"V3", b"6d1c0b0e"), (b"RV", b"\x55\0\0"))
    assert config_space.read_vpd(reading(data)) == Vpd(
        name="Card", part_number="MCX75310AAS", serial_number="MT2226", uuid="6d1c0b0e"
    )


def test_unprintable_vpd_value_is_dropped():
    assert config_space.read_vpd(reading(vpd((b"SN", b"\xff\x01"), (b"PN", b"A\x01")))) == Vpd("Card")


@pytest.mark.parametrize("length", range(9, 21))
def test_truncated_vpd_gives_no_half_value(length):
    whole = vpd((b"V3", b"0123456789"))
    assert config_space.read_vpd(reading(whole[:length])) == Vpd("Card")


def test_a_vpd_field_longer_than_its_block_is_dropped():
    data = b"\x90\x05\x00V3\x40abcdefgh"
    assert config_space.read_vpd(reading(data)) == Vpd()


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\0" * 64, b"\x78", b"\x82"])
def test_data_without_a_vpd_gives_none(data):
    assert config_space.read_vpd(reading(data)) is None


def test_an_unreadable_vpd_gives_none():
    assert config_space.read_vpd(lambda offset, size: None) is None


@given(st.binary(max_size=300))
def test_random_vpd_is_parsed_or_not(data):
    found = config_space.read_vpd(reading(data))
    assert found is None or all(str(value).isprintable() for value in vars(found).values())


def test_capable_and_enabled_acs_controls_are_read():
    data = space(extended=[(0x100, 0x0001, b""), (0x148, 0x000D, struct.pack("<HH", 0x5F, 0x1D))])
    assert config_space.read_acs(reading(data)) == Acs(
        capable=["SV", "TB", "RR", "CR", "UF", "DT"], enabled=["SV", "RR", "CR", "UF"]
    )


def test_acs_may_have_no_control_enabled():
    data = space(extended=[(0x100, 0x000D, struct.pack("<HH", 0x1F, 0))])
    assert config_space.read_acs(reading(data)).enabled == []


def test_a_port_without_acs_has_none():
    assert config_space.read_acs(reading(space(extended=[(0x100, 0x0001, b"")]))) is None


def test_acs_is_unknown_with_64_bytes_only():
    data = space(extended=[(0x100, 0x000D, struct.pack("<HH", 0x1F, 0))])[:64]
    assert config_space.read_acs(reading(data)) is None


def test_reading_ends_if_extended_capabilities_form_a_cycle():
    assert (
        config_space.read_acs(reading(space(extended=[(0x100, 0x0001, b""), (0x140, 0x0002, b""), (0x100, 1, b"")])))
        is None
    )


def test_the_link_is_read_from_the_pcie_capability():
    data = space([(0x40, 0x01, b""), (0x60, 0x10, express(4, 8, 5, 16))])
    assert config_space.read_link(reading(data)) == Link(16.0, 8, 32.0, 16, gb_per_s=15.754)


def test_without_a_pcie_capability_there_is_no_link():
    assert config_space.read_link(reading(space([(0x40, 0x01, b"")]))) is None


def test_reading_ends_if_capabilities_form_a_cycle():
    data = bytearray(space([(0x40, 0x01, b""), (0x50, 0x05, b"")]))
    data[0x51] = 0x40
    assert config_space.read_link(reading(bytes(data))) is None


@given(st.binary(max_size=512))
def test_any_config_space_is_read_without_an_error(data):
    config_space.read_acs(reading(data))
    config_space.read_link(reading(data))


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [(2.5, 1, 0.25), (8.0, 16, 15.754), (32.0, 16, 63.015), (64.0, 16, 121.0), (None, 16, None), (32.0, None, None)],
)
def test_the_payload_rate_follows_from_speed_and_width(speed, width, rate):
    assert config_space.payload_rate(speed, width) == rate
