# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send frames and datagrams, and receive frames, in a pod or on a machine. Standard library only.

program.py send INTERFACE
    Send frames. Each line of standard input is a number of times and a frame in hexadecimal.
program.py flood ADDRESS GROUP NUMBER TEXT
    Send datagrams with a text to a multicast group.
program.py receive INTERFACE [promiscuous]
    Print "ready", then a line for each frame with a marker: its text, the sender's MAC address and the VLAN (0: none).
    Ends with standard input.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import sys

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_AUXDATA = 263, 1, 8
_PACKET_MR_PROMISC = 1
_PACKET_OUTGOING = 4
_TP_STATUS_VLAN_VALID = 0x10
_MARKER = re.compile(rb"lanewise:([a-z0-9-]{1,40});")


def send(interface: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as packets:
        packets.bind((interface, 0))
        for line in sys.stdin:
            number, text = line.split()
            for _repetition in range(int(number)):
                packets.send(bytes.fromhex(text))


def flood(address: str, group: str, number: str, text: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        datagrams.bind((address, 0))
        for _repetition in range(int(number)):
            datagrams.sendto(f"lanewise:{text};".encode(), (group, 9))


def receive(interface: str, *mode: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as packets:
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        packets.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        packets.bind((interface, _ETH_P_ALL))
        if mode:
            index = socket.if_nametoindex(interface)
            packets.setsockopt(
                _SOL_PACKET, _PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, _PACKET_MR_PROMISC, 0, b"")
            )
        print("ready", flush=True)
        while True:
            readable, _writable, _failed = select.select([packets, sys.stdin], [], [])
            if packets in readable:
                _report(*packets.recvmsg(2048, 256))
            elif sys.stdin in readable and not sys.stdin.readline():
                return


def _report(frame: bytes, ancillary: list[tuple[int, int, bytes]], _flags: int, sender: tuple[object, ...]) -> None:
    found = _MARKER.search(frame)
    if not found or sender[2] == _PACKET_OUTGOING:
        return
    vlan = 0
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _length, _snap, _mac, _net, number, _protocol = struct.unpack_from("=IIIHHHH", data)
            vlan = number & 0xFFF if status & _TP_STATUS_VLAN_VALID else 0
    if frame[12:14] in (b"\x81\x00", b"\x88\xa8"):
        vlan = int.from_bytes(frame[14:16], "big") & 0xFFF
    print(found.group(1).decode(), frame[6:12].hex(":"), vlan, flush=True)


if __name__ == "__main__":
    {"send": send, "flood": flood, "receive": receive}[sys.argv[1]](*sys.argv[2:])
