# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Blocking netlink requests and dumps. Numbers are those of linux/netlink.h.

The values of attributes are bytes, and only the caller decodes them. So attributes that a newer kernel adds can be
restored unchanged from a dump.
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
_RECEIVE_BYTES = 1 << 17
#: How often an inconsistent dump is made again before its last result is used.
_MAX_DUMPS = 8
#: Maximum number of requests per packet: the replies must fit into the receive buffer.
_MAX_BATCH = 128

Attributes = dict[int, bytes]
_Self = t.TypeVar("_Self", bound="Connection")


def attribute(kind: int, value: bytes = b"", nested: bool = False) -> bytes:
    """One attribute, padded."""
    head = _ATTRIBUTE.pack(len(value) + 4, kind | (_NESTED if nested else 0))
    return head + value + b"\0" * (-len(value) % 4)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that contains other attributes."""
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
    """The attributes in `data`, in order, as (kind, value). A kind may be repeated, as in lists."""
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

    The connection belongs to the network namespace of the thread that creates it, or to that of `opened`, a raw netlink
    socket. Errors are OSError with the kernel's error number, and its extended message if there is one.
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
        """Send a request that creates an object; it is not an error if the object exists already."""
        try:
            self.request(kind, body, CREATE | flags)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise

    def drop(self, kind: int, body: bytes) -> None:
        """Send a request that removes an object; it is not an error if the object does not exist."""
        try:
            self.request(kind, body)
        except OSError as error:
            if not missing(error):
                raise

    def dump(
        self, kind: int, body: bytes, keep: t.Callable[[bytes], bool] | None = None, optional: bool = False
    ) -> list[tuple[int, bytes]]:
        """All entries that the kernel lists, or those for whose body `keep` returns True, as (type, body). The dump is
        repeated if it was inconsistent.

        `keep` saves memory: a routing table may have a million entries, of which few matter. With `optional`, the
        result is empty if the kernel does not have the table, such as without IPv6."""
        entries: list[tuple[int, bytes]] = []
        try:
            for _unused in range(_MAX_DUMPS):
                entries, consistent = self._exchange(kind, body, REQUEST | DUMP, keep)
                if consistent:
                    break
        except OSError as error:
            if not optional or error.errno not in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                raise
        return entries

    def codes(self, kind: int, bodies: t.Sequence[bytes], flags: int) -> list[int]:
        """Send many requests of one kind, several per packet. Returns the error number of each request, 0 for
        success."""
        error_numbers: list[int] = []
        for start in range(0, len(bodies), _MAX_BATCH):
            batch = bodies[start : start + _MAX_BATCH]
            first = self._sequence + 1
            self._sequence += len(batch)
            self._socket.send(
                b"".join(
                    _HEADER.pack(16 + len(body), kind, REQUEST | ACK | flags, first + number, 0) + body
                    for number, body in enumerate(batch)
                )
            )
            replies: dict[int, int] = {}
            while len(replies) < len(batch):
                data, (sender, _groups) = self._socket.recvfrom(_RECEIVE_BYTES)
                offset = 0
                while not sender and offset + 16 <= len(data):
                    length, reply_kind, _unused, sequence, _unused = _HEADER.unpack_from(data, offset)
                    if reply_kind == _ERROR and first <= sequence < first + len(batch):
                        replies[sequence] = -struct.unpack_from("=i", data, offset + 16)[0]
                    offset += (length + 3) & ~3
            error_numbers += [replies[first + number] for number in range(len(batch))]
        return error_numbers

    def _exchange(
        self, kind: int, body: bytes, flags: int, keep: t.Callable[[bytes], bool] | None = None
    ) -> tuple[list[tuple[int, bytes]], bool]:
        """Send a request. Returns the replies, and whether the kernel reported no interruption."""
        self._sequence += 1
        sequence = self._sequence
        self._socket.send(_HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body)
        replies: list[tuple[int, bytes]] = []
        consistent = True
        while True:
            data, (sender, _groups) = self._socket.recvfrom(_RECEIVE_BYTES)
            if sender:  # not the kernel: a pod's processes may send to sockets of their namespace
                continue
            offset = 0
            while offset + 16 <= len(data):
                length, reply_kind, reply_flags, reply_sequence, _unused = _HEADER.unpack_from(data, offset)
                payload = data[offset + 16 : offset + length]
                offset += (length + 3) & ~3
                if reply_sequence != sequence:  # left from an interrupted dump
                    continue
                consistent = consistent and not reply_flags & _DUMP_INTERRUPTED
                if reply_kind in (_ERROR, _DONE):
                    self._raise(payload, reply_kind, reply_flags)
                    return replies, consistent
                if keep is None or keep(payload):
                    replies.append((reply_kind, payload))

    @staticmethod
    def _raise(payload: bytes, kind: int, flags: int) -> None:
        """Raise OSError if the last message of an exchange reports an error."""
        code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
        if not code:
            return
        detail = ""
        if flags & _ACK_TLVS:
            # the error is followed by the request's header, or by the whole request if it is not capped
            start = 4
            if kind == _ERROR:
                start += 16 if flags & _CAPPED else (struct.unpack_from("=I", payload, 4)[0] + 3) & ~3
            detail = string(attributes(payload, start).get(1, b""))
        raise OSError(code, detail or os.strerror(code))


def missing(error: OSError) -> bool:
    """Whether the error means that the object does not exist."""
    return error.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL)
