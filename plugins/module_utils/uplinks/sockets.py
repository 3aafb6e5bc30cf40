# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Open TCP connections of a network namespace, from sock_diag(7), or from /proc/net/tcp if that is not available.

The kernel filters by state and port, so that it returns only the relevant connections among thousands.
Numbers are those of linux/sock_diag.h and linux/inet_diag.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import typing as t
from dataclasses import dataclass

from . import netlink
from .routes import Address

_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = struct.Struct("=BBBBI48s")
_REPLY = struct.Struct("=BBBB2s2s16s16sI8sIIIII")
_REQ_BYTECODE, _MARK = 1, 15
_JMP, _S_GE, _S_LE, _D_GE, _D_LE = 1, 2, 3, 4, 5
_OP = struct.Struct("=BBH")
_ESTABLISHED, _LISTEN = 1, 10  # include/net/tcp_states.h
#: Error numbers of a kernel without sock_diag, or without its TCP module.
_MISSING = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL)

Ports = tuple[int, int]


@dataclass(frozen=True)
class Socket:
    """A TCP socket: its local and remote address and port, the index of the link to which it is bound (0: none), its
    mark and its inode."""

    local: Address
    local_port: int
    remote: Address
    remote_port: int
    bound_link: int = 0
    mark: int = 0
    inode: int = 0


def established(local: t.Sequence[Ports], remote: t.Sequence[Ports], proc: str = "/proc") -> list[Socket]:
    """The open connections of this thread's namespace with a local port in one of the ranges `local`, or a remote port
    in one of the ranges `remote`.

    Ranges are inclusive. Connections over the loopback interface are left out. Raises OSError.
    """
    ranges = [(True, *ports) for ports in local] + [(False, *ports) for ports in remote]
    connections = [connection for connection in _read(_ESTABLISHED, ranges, proc) if not connection.remote.is_loopback]
    return sorted(
        connections,
        key=lambda connection: (
            connection.local.version,
            connection.local.packed,
            connection.remote.packed,
            connection.local_port,
            connection.remote_port,
        ),
    )


def listening(proc: str = "/proc") -> list[Socket]:
    """The sockets of this thread's namespace that accept connections from other machines. Raises OSError."""
    return [listener for listener in _read(_LISTEN, [], proc) if not listener.local.is_loopback]


def _read(state: int, ranges: t.Sequence[tuple[bool, int, int]], proc: str) -> list[Socket]:
    try:
        with netlink.Connection(netlink.NETLINK_SOCK_DIAG) as kernel:
            return [
                tcp_socket
                for family in (socket.AF_INET, socket.AF_INET6)
                for tcp_socket in _dumped(kernel, family, state, ranges)
            ]
    except OSError as error:
        if error.errno not in _MISSING:
            raise
    tcp_sockets = _of_proc(state, proc)
    return [
        tcp_socket
        for tcp_socket in tcp_sockets
        if not ranges or any(low <= _port(tcp_socket, local) <= high for local, low, high in ranges)
    ]


def _port(tcp_socket: Socket, local: bool) -> int:
    return tcp_socket.local_port if local else tcp_socket.remote_port


def _dumped(
    kernel: netlink.Connection, family: int, state: int, ranges: t.Sequence[tuple[bool, int, int]]
) -> t.Iterator[Socket]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << state, bytes(48))
    request += netlink.attribute(_REQ_BYTECODE, port_filter(ranges)) if ranges else b""
    try:
        replies = kernel.dump(_SOCK_DIAG_BY_FAMILY, request)
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in _MISSING:  # a kernel without IPv6
            return
        raise
    for _unused, body in replies:
        reply_family, _state, _timer, _retransmits, local_port, remote_port, local, remote, bound_link, *rest = (
            _REPLY.unpack_from(body)
        )
        inode = rest[-1]
        mark = netlink.attributes(body, _REPLY.size).get(_MARK, b"")
        yield Socket(
            local=_address(reply_family, local),
            local_port=int.from_bytes(local_port, "big"),
            remote=_address(reply_family, remote),
            remote_port=int.from_bytes(remote_port, "big"),
            bound_link=bound_link,
            mark=netlink.number(mark),
            inode=inode,
        )


def port_filter(ranges: t.Sequence[tuple[bool, int, int]]) -> bytes:
    """An inet_diag bytecode program that accepts sockets with a port in one of `ranges`: whether it is the local port,
    the lowest and the highest port.

    The instructions jump forward: to the end of the program to accept, and 4 bytes beyond the end to reject
    (inet_diag_bc_run in net/ipv4/inet_diag.c).
    """
    parts = []
    for left, (local, low, high) in zip(range(len(ranges) - 1, -1, -1), ranges):
        greater_equal, less_equal = (_S_GE, _S_LE) if local else (_D_GE, _D_LE)
        part = _OP.pack(greater_equal, 8, 20) + _OP.pack(0, 0, low) + _OP.pack(less_equal, 8, 12) + _OP.pack(0, 0, high)
        # a jump uses the field `no`; the kernel requires that `yes` is the length of the instruction
        parts.append(part + (_OP.pack(_JMP, 4, 20 * left) if left else b""))
    return b"".join(parts)


def _address(family: int, value: bytes) -> Address:
    address: Address = ipaddress.ip_address(value[:4] if family == socket.AF_INET else value)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _of_proc(state: int, proc: str) -> list[Socket]:
    """The sockets of a state in /proc/net/tcp and tcp6. Raises OSError if the former cannot be read."""
    tcp_sockets = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/thread-self/net/{name}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue  # a kernel without IPv6
        for line in lines:
            columns = line.split()
            if len(columns) > 9 and int(columns[3], 16) == state:
                local, local_port = endpoint(columns[1])
                remote, remote_port = endpoint(columns[2])
                tcp_sockets.append(Socket(local, local_port, remote, remote_port, inode=int(columns[9])))
    return tcp_sockets


def endpoint(text: str) -> tuple[Address, int]:
    """The address and port of a field in /proc/net/tcp, which contains 32-bit words in the machine's byte order, in
    hex. Raises ValueError."""
    words, _colon, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8))
    return _address(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)
