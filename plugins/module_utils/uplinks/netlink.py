# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Blocking netlink requests and dumps. Attributes are decoded only on request.

Attributes stay bytes until read, so what a newer kernel adds survives from a dump to the request that restores it.
Numbers are those of linux/netlink.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import typing as t

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4
NETLINK_GENERIC = 16
NETLINK_RDMA = 20

REQUEST = 0x1
ACK = 0x4
DUMP = 0x300
REPLACE = 0x100
EXCLUSIVE = 0x200
CREATE = 0x400
APPEND = 0x800

_DUMP_INTERRUPTED = 0x10
_CAPPED = 0x100
_ACK_TLVS = 0x200
_ERROR = 2
_DONE = 3
_SOL_NETLINK = 270
_CAP_ACK = 10
_EXT_ACK = 11
_STRICT_CHECK = 12
_NESTED = 0x8000
_TYPE = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE = 1 << 17
#: How often an inconsistent dump is repeated before it is used as it is.
_DUMP_TRIES = 8
#: Requests per packet: their replies must fit into the receive buffer.
_AT_ONCE = 128

Attributes = dict[int, bytes]
_Self = t.TypeVar("_Self", bound="Connection")


def attribute(kind: int, value: bytes = b"", nested: bool = False) -> bytes:
    """One attribute, padded."""
    head = _ATTRIBUTE.pack(len(value) + 4, kind | (_NESTED if nested else 0))
    return head + value + b"\0" * (-len(value) % 4)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that holds others."""
    return attribute(kind, b"".join(inner), nested=True)


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    """A string attribute with the NUL byte that the kernel requires."""
    return attribute(kind, os.fsencode(value) + b"\0")


def pairs(data: bytes, offset: int = 0) -> t.Iterator[tuple[int, bytes]]:
    """The attributes in `data`, in order; a kind may be repeated, as in lists."""
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            return
        yield kind & _TYPE, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> Attributes:
    """The attributes in `data` by their kind."""
    return dict(pairs(data, offset))


def number(value: bytes) -> int:
    """An unsigned number in the machine's byte order, of any width."""
    return int.from_bytes(value, _ORDER)


def string(value: bytes) -> str:
    """A string without its NUL byte, decoded like file names, because interface names may be any bytes."""
    return os.fsdecode(value.split(b"\0", 1)[0])


_ORDER: t.Literal["little", "big"] = "little" if struct.pack("=H", 1)[0] else "big"


class Connection:
    """A connection to the kernel, for use by one thread, as a context manager.

    It belongs to the network namespace of the thread that creates it, or to that of `opened`, a raw netlink socket.
    Errors are OSError with the kernel's error number, and its extended message if there is one.
    """

    def __init__(self, protocol: int = NETLINK_ROUTE, opened: socket.socket | None = None) -> None:
        self._socket = opened or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        for option in (_CAP_ACK, _EXT_ACK, _STRICT_CHECK):
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:  # an older kernel: no extended messages, and callers filter dumps
                pass
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, body: bytes, flags: int = 0) -> list[tuple[int, bytes]]:
        """Send one request and return the replies before its acknowledgment, as (type, body)."""
        return self._exchange(kind, body, REQUEST | ACK | flags)[0]

    def ensure(self, kind: int, body: bytes, flags: int) -> None:
        """A request that creates something; if it exists already, that is not an error."""
        try:
            self.request(kind, body, CREATE | flags)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise

    def drop(self, kind: int, body: bytes) -> None:
        """A request that removes something; if it is gone already, that is not an error."""
        try:
            self.request(kind, body)
        except OSError as error:
            if not missing(error):
                raise

    def dump(
        self, kind: int, body: bytes, keep: t.Callable[[bytes], bool] | None = None, optional: bool = False
    ) -> list[tuple[int, bytes]]:
        """All entries that the kernel lists, or those whose body `keep` accepts. Repeated if the dump was inconsistent.

        A routing table may have a million entries, of which few matter. With `optional`, the result is empty if the
        kernel does not have the table, such as without IPv6."""
        found: list[tuple[int, bytes]] = []
        try:
            for _unused in range(_DUMP_TRIES):
                found, whole = self._exchange(kind, body, REQUEST | DUMP, keep)
                if whole:
                    break
        except OSError as error:
            if not optional or error.errno not in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                raise
        return found

    def codes(self, kind: int, bodies: t.Sequence[bytes], flags: int) -> list[int]:
        """Many requests of one kind, several per packet: the error number of each, 0 for success."""
        found: list[int] = []
        for start in range(0, len(bodies), _AT_ONCE):
            part = bodies[start : start + _AT_ONCE]
            first = self._sequence + 1
            self._sequence += len(part)
            self._socket.send(
                b"".join(
                    _HEADER.pack(16 + len(body), kind, REQUEST | ACK | flags, first + place, 0) + body
                    for place, body in enumerate(part)
                )
            )
            answers: dict[int, int] = {}
            while len(answers) < len(part):
                data, (sender, _groups) = self._socket.recvfrom(_RECEIVE)
                offset = 0
                while not sender and offset + 16 <= len(data):
                    length, got, _unused, sequence, _unused = _HEADER.unpack_from(data, offset)
                    if got == _ERROR and first <= sequence < first + len(part):
                        answers[sequence] = -struct.unpack_from("=i", data, offset + 16)[0]
                    offset += (length + 3) & ~3
            found += [answers[first + place] for place in range(len(part))]
        return found

    def _exchange(
        self, kind: int, body: bytes, flags: int, keep: t.Callable[[bytes], bool] | None = None
    ) -> tuple[list[tuple[int, bytes]], bool]:
        self._sequence += 1
        sequence = self._sequence
        self._socket.send(_HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body)
        replies: list[tuple[int, bytes]] = []
        whole = True
        while True:
            data, (sender, _groups) = self._socket.recvfrom(_RECEIVE)
            if sender:  # not the kernel: a pod's processes may send to sockets of their namespace
                continue
            offset = 0
            while offset + 16 <= len(data):
                length, got, got_flags, got_sequence, _unused = _HEADER.unpack_from(data, offset)
                payload = data[offset + 16 : offset + length]
                offset += (length + 3) & ~3
                if got_sequence != sequence:  # a leftover of an interrupted dump
                    continue
                whole = whole and not got_flags & _DUMP_INTERRUPTED
                if got in (_ERROR, _DONE):
                    self._raise(payload, got, got_flags)
                    return replies, whole
                if keep is None or keep(payload):
                    replies.append((got, payload))

    @staticmethod
    def _raise(payload: bytes, kind: int, flags: int) -> None:
        code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
        if not code:
            return
        words = ""
        if flags & _ACK_TLVS:
            # the error is followed by the request's header, or by the whole request if it is not capped
            start = 4
            if kind == _ERROR:
                start += 16 if flags & _CAPPED else (struct.unpack_from("=I", payload, 4)[0] + 3) & ~3
            words = string(attributes(payload, start).get(1, b""))
        raise OSError(code, words or os.strerror(code))


def missing(error: OSError) -> bool:
    """Whether the error means that the object does not exist."""
    return error.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL)
