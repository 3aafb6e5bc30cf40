# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs in a pod or on a machine: sends frames and datagrams, and receives frames. Standard library only.

program.py send INTERFACE          sends the frames of standard input: a line is a number of times and a frame in hex
program.py flood ADDRESS GROUP NUMBER TEXT   sends datagrams with a text to a multicast group
program.py hear INTERFACE [promiscuous]      prints "ready", then a line for each frame with a marker: its text, the
                                             sender's MAC address and VLAN (0: none), until standard input ends
"""

from __future__ import annotations

import re
import select
import socket
import struct
import sys

_ALL = 0x0003
_SOL_PACKET, _ADD_MEMBERSHIP, _AUXDATA = 263, 1, 8
_PROMISCUOUS = 1
_OUTGOING = 4
_VLAN_VALID = 0x10
_MARKER = re.compile(rb"lanewise:([a-z0-9-]{1,40});")


def send(interface: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as one:
        one.bind((interface, 0))
        for line in sys.stdin:
            number, text = line.split()
            for _each in range(int(number)):
                one.send(bytes.fromhex(text))


def flood(address: str, group: str, number: str, text: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        one.bind((address, 0))
        for _each in range(int(number)):
            one.sendto(f"lanewise:{text};".encode(), (group, 9))


def hear(interface: str, *more: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        one.setsockopt(_SOL_PACKET, _AUXDATA, 1)
        one.bind((interface, _ALL))
        if more:
            index = socket.if_nametoindex(interface)
            one.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, struct.pack("iHH8s", index, _PROMISCUOUS, 0, b""))
        print("ready", flush=True)
        while True:
            readable, _writable, _failed = select.select([one, sys.stdin], [], [])
            if one in readable:
                _report(*one.recvmsg(2048, 256))
            elif sys.stdin in readable and not sys.stdin.readline():
                return


def _report(frame: bytes, more: list[tuple[int, int, bytes]], _flags: int, sender: tuple[object, ...]) -> None:
    found = _MARKER.search(frame)
    if not found or sender[2] == _OUTGOING:
        return
    vlan = 0
    for level, kind, data in more:
        if (level, kind) == (_SOL_PACKET, _AUXDATA):
            status, _length, _snap, _mac, _net, number, _protocol = struct.unpack_from("=IIIHHHH", data)
            vlan = number & 0xFFF if status & _VLAN_VALID else 0
    if frame[12:14] in (b"\x81\x00", b"\x88\xa8"):
        vlan = int.from_bytes(frame[14:16], "big") & 0xFFF
    print(found.group(1).decode(), frame[6:12].hex(":"), vlan, flush=True)


if __name__ == "__main__":
    {"send": send, "flood": flood, "hear": hear}[sys.argv[1]](*sys.argv[2:])
