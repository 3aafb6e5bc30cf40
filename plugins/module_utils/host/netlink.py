# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Netlink messages (linux/netlink.h, linux/genetlink.h), for families that pyroute2 has not, or not in all releases.

What the kernel says beside an error number (extended acknowledgment) is kept: it names the setting and the limit.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import typing as t

ROUTE = 0
GENERIC = 16
RDMA = 20

CREATE, EXCLUSIVE = 0x400, 0x200
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_INTERRUPTED, _CAPPED, _TOLD = 0x10, 0x100, 0x200
_ERROR, _DONE = 2, 3
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _STRICT = 270, 10, 11, 12
_NESTED, _KIND = 0x8000, 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_GENERIC = struct.Struct("=BBxx")
_ROOM = 1 << 17
_SECONDS = 60.0
_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_ORDER: t.Literal["little", "big"] = "little" if struct.pack("=H", 1)[0] else "big"


def attribute(kind: int, value: bytes = b"", nested: bool = False) -> bytes:
    head = _ATTRIBUTE.pack(len(value) + 4, kind | (_NESTED if nested else 0))
    return head + value + b"\0" * (-len(value) % 4)


def nest(kind: int, *inner: bytes) -> bytes:
    return attribute(kind, b"".join(inner), nested=True)


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def pairs(data: bytes, offset: int = 0) -> t.Iterator[tuple[int, bytes]]:
    """The attributes in C(data); a kind may come twice, as in lists. Ends where the data make no sense."""
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > len(data):
            return
        yield kind & _KIND, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    return dict(pairs(data, offset))


def number(value: bytes) -> int:
    return int.from_bytes(value, _ORDER)


def string(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode(errors="replace")


class Netlink:
    """A connection to the kernel for one protocol. Errors are OSError, in the kernel's own words where it has some."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        self._families: dict[str, int] = {}
        for option in (_CAP_ACK, _EXT_ACK, _STRICT):
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:  # an older kernel, which says less
                pass
        self._socket.settimeout(_SECONDS)
        self._socket.bind((0, 0))

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
        """The bodies of the answers to one request."""
        return self._exchange(kind, body, _ACK | flags)[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all that the kernel lists, begun again where that changed meanwhile."""
        for _unused in range(8):
            found, whole = self._exchange(kind, body, _DUMP)
            if whole:
                break
        return found

    def generic(self, family: str, command: int, body: bytes) -> list[dict[int, bytes]]:
        """The attributes of what a generic netlink family answers. OSError with ENOENT where the kernel has it not."""
        if family not in self._families:
            ask = _GENERIC.pack(_GET_FAMILY, 1) + text(_FAMILY_NAME, family)
            told = attributes(self.request(_CONTROLLER, ask)[0], _GENERIC.size)
            self._families[family] = number(told[_FAMILY_ID])
        answers = self.request(self._families[family], _GENERIC.pack(command, 1) + body)
        return [attributes(answer, _GENERIC.size) for answer in answers]

    def _exchange(self, kind: int, body: bytes, flags: int) -> tuple[list[bytes], bool]:
        self._sequence += 1
        self._socket.send(_HEADER.pack(16 + len(body), kind, _REQUEST | flags, self._sequence, 0) + body)
        answers: list[bytes] = []
        whole = True
        while True:
            try:
                data, (sender, _groups) = self._socket.recvfrom(_ROOM)
            except socket.timeout:
                raise OSError(errno.ETIMEDOUT, f"the kernel did not answer in {_SECONDS:.0f} s") from None
            offset = len(data) if sender else 0  # the kernel is 0; what a process sends is no answer
            while offset + 16 <= len(data):
                length, got, got_flags, sequence, _unused = _HEADER.unpack_from(data, offset)
                payload = data[offset + 16 : offset + length]
                offset += max((length + 3) & ~3, 16)
                if sequence != self._sequence:
                    continue
                whole = whole and not got_flags & _INTERRUPTED
                if got in (_ERROR, _DONE):
                    _raise(payload, got, got_flags)
                    return answers, whole
                answers.append(payload)


def _raise(payload: bytes, kind: int, flags: int) -> None:
    code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
    if not code:
        return
    words = ""
    if flags & _TOLD:
        start = 4
        if kind == _ERROR:  # then the request stands before the words, whole or its header only
            start += 16 if flags & _CAPPED else (struct.unpack_from("=I", payload, 4)[0] + 3) & ~3
        words = string(attributes(payload, start).get(1, b""))
    raise OSError(code, words or os.strerror(code))
