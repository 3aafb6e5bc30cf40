# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Raw Ethernet frames with arbitrary addresses, including forged ones."""

from __future__ import annotations

import ipaddress
import struct

BROADCAST = "ff:ff:ff:ff:ff:ff"
ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"
_IPV4, _ARP, _IPV6, _VLAN, _OUTER_VLAN = 0x0800, 0x0806, 0x86DD, 0x8100, 0x88A8
_UDP, _ICMPV6 = 17, 58
_ROUTER_ADVERTISEMENT, _NEIGHBOR_ADVERTISEMENT = 134, 136
_SOURCE_LINK, _TARGET_LINK = 1, 2


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def ethernet(to: str, source: str, ethertype: int, payload: bytes) -> bytes:
    return (mac(to) + mac(source) + struct.pack("!H", ethertype) + payload).ljust(60, b"\0")


def marked(text: str) -> bytes:
    """A payload with a marker, which `program.py receive` reports."""
    return f"lanewise:{text};".encode()


def datagram(to_mac: str, from_mac: str, to: str, source: str, text: str) -> bytes:
    """An IPv4 datagram in a frame."""
    payload = marked(text)
    udp = struct.pack("!HHHH", 9, 9, 8 + len(payload), 0) + payload
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, _UDP, 0, packed(source), packed(to))
    checksum = struct.pack("!H", _checksum(head))
    return ethernet(to_mac, from_mac, _IPV4, head[:10] + checksum + head[12:] + udp)


def tagged(frame: bytes, *vlans: int) -> bytes:
    """A frame with these VLAN tags, the outermost first."""
    tags = b""
    for index, vlan in enumerate(vlans):
        outer = index < len(vlans) - 1
        tags += struct.pack("!HH", _OUTER_VLAN if outer else _VLAN, vlan)
    return frame[:12] + tags + frame[12:]


def arp(operation: int, to_mac: str, from_mac: str, sender: tuple[str, str], to: tuple[str, str]) -> bytes:
    """An ARP message. `sender` and `to`, its target, are a MAC address and an IP address each."""
    head = struct.pack("!HHBBH", 1, _IPV4, 6, 4, operation)
    return ethernet(to_mac, from_mac, _ARP, head + mac(sender[0]) + packed(sender[1]) + mac(to[0]) + packed(to[1]))


def neighbor_advertisement(to_mac: str, from_mac: str, to: str, address: str) -> bytes:
    """An advertisement of an IPv6 address at `from_mac` that overrides known entries."""
    body = struct.pack("!BBHI", _NEIGHBOR_ADVERTISEMENT, 0, 0, 0x20000000) + packed(address)
    body += struct.pack("!BB", _TARGET_LINK, 1) + mac(from_mac)
    return _icmpv6(to_mac, from_mac, to, address, body)


def router_advertisement(from_mac: str) -> bytes:
    """An advertisement of the sender to all nodes as a router for half an hour."""
    body = struct.pack("!BBHBBHII", _ROUTER_ADVERTISEMENT, 0, 0, 64, 0, 1800, 0, 0)
    body += struct.pack("!BB", _SOURCE_LINK, 1) + mac(from_mac)
    return _icmpv6(ALL_NODES_MAC, from_mac, ALL_NODES, link_local(from_mac), body)


def link_local(address: str) -> str:
    """The link-local address that belongs to a MAC address."""
    raw = bytearray(mac(address))
    raw[0] ^= 2
    return str(ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + bytes(raw[:3]) + b"\xff\xfe" + bytes(raw[3:])))


def _icmpv6(to_mac: str, from_mac: str, to: str, source: str, body: bytes) -> bytes:
    pseudo = packed(source) + packed(to) + struct.pack("!IxxxB", len(body), _ICMPV6)
    body = body[:2] + struct.pack("!H", _checksum(pseudo + body)) + body[4:]
    head = struct.pack("!IHBB", 6 << 28, len(body), _ICMPV6, 255) + packed(source) + packed(to)
    return ethernet(to_mac, from_mac, _IPV6, head + body)


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
