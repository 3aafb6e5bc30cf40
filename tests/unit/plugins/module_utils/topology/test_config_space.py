# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import config_space
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Acs, Link, Vpd
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import vpd
from hypothesis import given
from hypothesis import strategies as st


def read_from(data):
    """A function that reads these bytes of a file, as the probe reads config space and VPD."""
    return lambda offset, size: data[offset : offset + size]


def config_with(capabilities=(), extended=(), size=4096):
    """Config space with a linked list of capabilities and one of extended capabilities, each as (offset, ID, body)."""
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


def pcie_capability(speed, width, max_speed, max_width):
    """The body of a PCI Express capability. Speeds are codes of the specification."""
    return (
        b"\x02\x00"
        + bytes(8)
        + struct.pack("<I", max_width << 4 | max_speed)
        + b"\0\0"
        + struct.pack("<H", width << 4 | speed)
    )


def test_the_fields_of_the_vpd_are_read():
    data = vpd((b"PN", b"MCX75310AAS "), (b"SN", b"MT2226"), (b"V3", b"6d1c0b0e"), (b"RV", b"\x55\0\0"))
    assert config_space.read_vpd(read_from(data)) == Vpd(
        name="Card", part_number="MCX75310AAS", serial_number="MT2226", uuid="6d1c0b0e"
    )


def test_unprintable_vpd_values_are_dropped():
    assert config_space.read_vpd(read_from(vpd((b"SN", b"\xff\x01"), (b"PN", b"A\x01")))) == Vpd("Card")


@pytest.mark.parametrize("length", range(9, 21))
def test_a_truncated_vpd_value_is_dropped(length):
    whole = vpd((b"V3", b"0123456789"))
    assert config_space.read_vpd(read_from(whole[:length])) == Vpd("Card")


def test_a_vpd_field_longer_than_its_block_is_dropped():
    data = b"\x90\x05\x00V3\x40abcdefgh"
    assert config_space.read_vpd(read_from(data)) == Vpd()


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\0" * 64, b"\x78", b"\x82"])
def test_data_without_vpd_gives_none(data):
    assert config_space.read_vpd(read_from(data)) is None


def test_unreadable_vpd_gives_none():
    assert config_space.read_vpd(lambda offset, size: None) is None


@given(st.binary(max_size=300))
def test_random_bytes_give_none_or_printable_vpd(data):
    found = config_space.read_vpd(read_from(data))
    assert found is None or all(str(value).isprintable() for value in vars(found).values())


def test_capable_and_enabled_acs_controls_are_read():
    data = config_with(extended=[(0x100, 0x0001, b""), (0x148, 0x000D, struct.pack("<HH", 0x5F, 0x1D))])
    assert config_space.read_acs(read_from(data)) == Acs(
        capable=["SV", "TB", "RR", "CR", "UF", "DT"], enabled=["SV", "RR", "CR", "UF"]
    )


def test_acs_may_have_no_control_enabled():
    data = config_with(extended=[(0x100, 0x000D, struct.pack("<HH", 0x1F, 0))])
    assert config_space.read_acs(read_from(data)).enabled == []


def test_without_an_acs_capability_there_is_no_acs():
    assert config_space.read_acs(read_from(config_with(extended=[(0x100, 0x0001, b"")]))) is None


def test_acs_is_unknown_if_only_64_bytes_are_readable():
    data = config_with(extended=[(0x100, 0x000D, struct.pack("<HH", 0x1F, 0))])[:64]
    assert config_space.read_acs(read_from(data)) is None


def test_reading_ends_if_extended_capabilities_form_a_cycle():
    data = bytearray(config_with(extended=[(0x100, 0x0001, b""), (0x140, 0x0002, b"")]))
    struct.pack_into("<I", data, 0x140, 0x0002 | 1 << 16 | 0x100 << 20)  # the second points to the first
    assert config_space.read_acs(read_from(bytes(data))) is None


def test_the_link_is_read_from_the_pcie_capability():
    data = config_with([(0x40, 0x01, b""), (0x60, 0x10, pcie_capability(4, 8, 5, 16))])
    assert config_space.read_link(read_from(data)) == Link(16.0, 8, 32.0, 16, gb_per_s=15.754)


def test_without_a_pcie_capability_there_is_no_link():
    assert config_space.read_link(read_from(config_with([(0x40, 0x01, b"")]))) is None


def test_reading_ends_if_capabilities_form_a_cycle():
    data = bytearray(config_with([(0x40, 0x01, b""), (0x50, 0x05, b"")]))
    data[0x51] = 0x40  # the second points to the first
    assert config_space.read_link(read_from(bytes(data))) is None


@given(st.binary(max_size=512))
def test_any_config_space_is_read_without_an_error(data):
    config_space.read_acs(read_from(data))
    config_space.read_link(read_from(data))


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [(2.5, 1, 0.25), (8.0, 16, 15.754), (32.0, 16, 63.015), (64.0, 16, 121.0), (None, 16, None), (32.0, None, None)],
)
def test_the_payload_rate_follows_from_speed_and_width(speed, width, rate):
    assert config_space.payload_rate(speed, width) == rate
