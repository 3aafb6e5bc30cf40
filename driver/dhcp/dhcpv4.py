# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DHCPv4 (RFC 2131, 2132, 3442).

Routes are those of option 121, without a default route, because the pod's own network has one.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import ipaddress
import itertools
import secrets
import socket
import struct
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base.objects import Object
from ..kernel import links
from ..kernel import netns as namespaces
from ..kernel.netlink import Netlink
from .exchange import Refusal, datagram, is_usable, new_lease, no_lease, send_repeatedly
from .lease import FOREVER, Lease

_ETH_P_IP = 0x0800
_BROADCAST = b"\xff" * 6
_ANY, _ALL = "0.0.0.0", "255.255.255.255"
_SERVER_PORT, _CLIENT_PORT = 67, 68
_MAGIC_COOKIE = b"\x63\x82\x53\x63"
_BOOTP = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")
_OPT_MASK, _OPT_MTU, _OPT_ADDRESS, _OPT_LEASE_TIME, _OPT_TYPE, _OPT_SERVER, _OPT_PARAMETERS = 1, 26, 50, 51, 53, 54, 55
_OPT_RENEW_TIME, _OPT_REBIND_TIME, _OPT_CLIENT_ID, _OPT_ROUTES, _OPT_END = 58, 59, 61, 121, 255
_MSG_DISCOVER, _MSG_OFFER, _MSG_REQUEST, _MSG_ACK, _MSG_NAK, _MSG_RELEASE = 1, 2, 3, 5, 6, 7
#: The time until a request is sent again; the last value repeats.
_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)


class Client4:
    """DHCPv4 on one interface, through a packet socket, which works before the interface has an address. `action`
    starts the messages of errors."""

    def __init__(self, netns: Path, name: str, action: str) -> None:
        self._netns, self._name, self._action = netns, name, action
        with Netlink(netns) as connection:
            link = links.get(connection, name=name)
        if link is None:
            raise OSError(errno.ENODEV, f"the pod has no interface {name}")
        self._mac = links.mac_bytes(link.mac)
        if len(self._mac) != 6:
            raise OSError(errno.EOPNOTSUPP, "DHCPv4 is supported on Ethernet interfaces only")
        self._socket = namespaces.run(netns, socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        try:
            _attach_filter(self._socket)  # before binding: until then the socket receives nothing
            self._socket.bind((name, _ETH_P_IP))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Client4:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def acquire(self, deadline: float) -> Lease:
        """Request a lease until `deadline` (time.monotonic). Raises NoLease, Refusal and OSError."""
        transaction_id = secrets.randbits(32)
        offer = self._request(transaction_id, {_OPT_TYPE: bytes([_MSG_DISCOVER])}, _MSG_OFFER, deadline)
        options = {
            _OPT_TYPE: bytes([_MSG_REQUEST]),
            _OPT_ADDRESS: offer.address,
            _OPT_SERVER: offer.options[_OPT_SERVER],
        }
        return self._lease(self._request(transaction_id, options, _MSG_ACK, deadline))

    def renew(self, lease: Lease, rebind: bool, deadline: float) -> Lease:
        """Renew a lease, with `rebind` at any server. Raises NoLease after `deadline`, Refusal and OSError."""
        client_address = socket.inet_aton(lease["address"].split("/")[0])
        transaction_id = secrets.randbits(32)
        message = self._message(transaction_id, {_OPT_TYPE: bytes([_MSG_REQUEST])}, client_address)
        if rebind:
            broadcast = functools.partial(self._broadcast, message)
            return self._lease(self._exchange(transaction_id, broadcast, _MSG_ACK, deadline, self._receive_packet))
        with self._server_socket(lease) as server:
            send, receive = functools.partial(server.send, message), functools.partial(datagram, server)
            return self._lease(self._exchange(transaction_id, send, _MSG_ACK, deadline, receive))

    def release(self, lease: Lease) -> None:
        """Release a lease; a server does not reply to that. Raises OSError."""
        client_address = socket.inet_aton(lease["address"].split("/")[0])
        options = {_OPT_TYPE: bytes([_MSG_RELEASE]), _OPT_SERVER: socket.inet_aton(lease["server"])}
        with self._server_socket(lease) as server:
            server.send(self._message(secrets.randbits(32), options, client_address))

    def _server_socket(self, lease: Lease) -> socket.socket:
        """A UDP socket from the leased address to the lease's server."""
        connection = namespaces.run(self._netns, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._name.encode())
            connection.bind((lease["address"].split("/")[0], _CLIENT_PORT))
            connection.connect((lease["server"], _SERVER_PORT))
        except OSError:
            connection.close()
            raise
        return connection

    def _request(self, transaction_id: int, options: dict[int, bytes], kind: int, deadline: float) -> _Reply:
        """Broadcast a request, and return the reply of the type `kind`."""
        broadcast = functools.partial(self._broadcast, self._message(transaction_id, options))
        return self._exchange(transaction_id, broadcast, kind, deadline, self._receive_packet)

    def _exchange(
        self,
        transaction_id: int,
        send: t.Callable[[], object],
        kind: int,
        deadline: float,
        receive: t.Callable[[float], bytes | None],
    ) -> _Reply:
        """Call `send` repeatedly until `receive` returns a reply of the type `kind` with a usable address and a lease
        time other than 0.

        Raises Refusal if a server refuses the request, and NoLease after `deadline`."""
        reason = ""
        pauses = itertools.chain(_RETRY_SECONDS, itertools.repeat(_RETRY_SECONDS[-1]))
        for retry_at in send_repeatedly(lambda _elapsed: send(), deadline, pauses):
            while (timeout := retry_at - time.monotonic()) > 0:
                data = receive(timeout)
                reply = _parse_reply(data, transaction_id, self._mac) if data else None
                if reply and reply.kind == _MSG_NAK:
                    raise Refusal(self._action, 0, "the server refused it")
                if reply and reply.kind == kind:
                    server = socket.inet_ntoa(reply.options[_OPT_SERVER])
                    if not is_usable(reply.address):
                        reason = f"the server {server} assigned no usable address"
                    elif not reply.lease_time:
                        reason = f"the server {server} grants a lease of 0 seconds"
                    else:
                        return reply
        raise no_lease(self._action, "DHCP", reason)

    def _message(self, transaction_id: int, options: dict[int, bytes], client_address: bytes = bytes(4)) -> bytes:
        head = _BOOTP.pack(
            1, 1, 6, 0, transaction_id, 0, 0, client_address, bytes(4), bytes(4), bytes(4), self._mac, b"", b""
        )
        parameters = (_OPT_MASK, _OPT_MTU, _OPT_LEASE_TIME, _OPT_RENEW_TIME, _OPT_REBIND_TIME, _OPT_ROUTES)
        all_options = {**options, _OPT_CLIENT_ID: b"\x01" + self._mac}
        if options[_OPT_TYPE] != bytes([_MSG_RELEASE]):
            all_options[_OPT_PARAMETERS] = bytes(parameters)
        body = b"".join(bytes((kind, len(value))) + value for kind, value in all_options.items() if value)
        return (head + _MAGIC_COOKIE + body + bytes((_OPT_END,))).ljust(300, b"\0")

    def _broadcast(self, message: bytes) -> None:
        source, target = socket.inet_aton(_ANY), socket.inet_aton(_ALL)
        size = 8 + len(message)
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_UDP, size)
        udp = struct.pack("!HHHH", _CLIENT_PORT, _SERVER_PORT, size, 0)
        udp = udp[:6] + struct.pack("!H", _checksum(pseudo + udp + message) or 0xFFFF)
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0x10, 20 + size, 0, 0, 64, socket.IPPROTO_UDP, 0, source, target)
        head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
        self._socket.sendto(head + udp + message, (self._name, _ETH_P_IP, 0, 0, _BROADCAST))

    def _receive_packet(self, timeout: float) -> bytes | None:
        """The payload of the next packet to the client's port. Checksums are not verified: with checksum offload they
        may not be filled in yet."""
        data = datagram(self._socket, timeout)
        if not data or len(data) < 28 or data[0] >> 4 != 4 or data[9] != socket.IPPROTO_UDP:
            return None
        start = (data[0] & 15) * 4
        fragment = struct.unpack_from("!H", data, 6)[0] & 0x3FFF
        if fragment or len(data) < start + 8 or struct.unpack_from("!H", data, start + 2)[0] != _CLIENT_PORT:
            return None
        return data[start + 8 : start + struct.unpack_from("!H", data, start + 4)[0]]

    def _lease(self, reply: _Reply) -> Lease:
        options = reply.options
        mask = options.get(_OPT_MASK, b"")
        prefix = bin(int.from_bytes(mask if len(mask) == 4 else b"\xff" * 4, "big")).count("1")
        times = _seconds(options.get(_OPT_RENEW_TIME), 0), _seconds(options.get(_OPT_REBIND_TIME), 0)
        address = f"{socket.inet_ntoa(reply.address)}/{prefix}"
        lease = new_lease("ipv4", self._name, address, reply.lease_time, *times)
        lease["server"] = socket.inet_ntoa(options[_OPT_SERVER])
        lease["routes"] = list(_classless_routes(options.get(_OPT_ROUTES, b"")))
        if len(options.get(_OPT_MTU, b"")) == 2:
            lease["mtu"] = struct.unpack("!H", options[_OPT_MTU])[0]
        return lease


@dataclass(frozen=True)
class _Reply:
    """A server's reply. `kind` is its message type, and `address` the address that it assigns (yiaddr)."""

    kind: int
    address: bytes
    options: dict[int, bytes]

    @property
    def lease_time(self) -> int:
        """The lease's lifetime in seconds; FOREVER if the server sends none."""
        return _seconds(self.options.get(_OPT_LEASE_TIME), FOREVER)


def _parse_reply(data: bytes, transaction_id: int, mac: bytes) -> _Reply | None:
    """A server's reply to the transaction `transaction_id`; None for any other packet."""
    if len(data) < _BOOTP.size + 4 or data[0] != 2 or data[_BOOTP.size : _BOOTP.size + 4] != _MAGIC_COOKIE:
        return None
    fields = _BOOTP.unpack_from(data)
    if fields[4] != transaction_id or fields[11][:6] != mac:
        return None
    options: dict[int, bytes] = {}
    offset = _BOOTP.size + 4
    while offset < len(data) and data[offset] != _OPT_END:
        if not data[offset]:
            offset += 1
            continue
        if offset + 2 > len(data) or offset + 2 + data[offset + 1] > len(data):
            return None
        value = data[offset + 2 : offset + 2 + data[offset + 1]]
        # an option longer than 255 bytes is split into several (RFC 3396)
        options[data[offset]] = options.get(data[offset], b"") + value
        offset += 2 + len(value)
    kind = options.get(_OPT_TYPE, b"")
    if len(kind) != 1 or len(options.get(_OPT_SERVER, b"")) != 4:  # each reply must identify the server
        return None
    return _Reply(kind[0], fields[8], options)


def _classless_routes(value: bytes) -> t.Iterator[Object]:
    """The routes of option 121, without a default route, in the form of an InterfaceConfig."""
    offset = 0
    while offset < len(value):
        prefix = value[offset]
        size = (prefix + 7) // 8
        if prefix > 32 or offset + 1 + size + 4 > len(value):
            return
        network = int.from_bytes(value[offset + 1 : offset + 1 + size].ljust(4, b"\0"), "big")
        gateway = socket.inet_ntoa(value[offset + 1 + size : offset + 5 + size])
        offset += 5 + size
        if not prefix:
            continue
        destination = str(ipaddress.ip_network((network, prefix), strict=False))
        yield {"destination": destination, **({"scope": "link"} if gateway == _ANY else {"gateway": gateway})}


def _seconds(value: bytes | None, default: int) -> int:
    return struct.unpack("!I", value)[0] if value and len(value) == 4 else default


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2 + len(data) % 2}H", data + b"\0" * (len(data) % 2)))
    total = (total & 0xFFFF) + (total >> 16)
    return int(~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)


#: The packet socket's filter (linux/bpf_common.h, linux/filter.h): code, jumps, constant. It accepts unfragmented UDP
#: packets to the client's port, so that the driver does not receive the rest of a pod's traffic.
_FILTER = (
    (0x30, 0, 0, 9),  # load the protocol
    (0x15, 0, 6, socket.IPPROTO_UDP),
    (0x28, 0, 0, 6),  # load flags and fragment offset
    (0x45, 4, 0, 0x3FFF),
    (0xB1, 0, 0, 0),  # the length of the IP header into X
    (0x48, 0, 0, 2),  # load the destination port
    (0x15, 0, 1, _CLIENT_PORT),
    (0x06, 0, 0, 0xFFFF),  # accept
    (0x06, 0, 0, 0),  # drop
)
_SO_ATTACH_FILTER = 26


def _attach_filter(packets: socket.socket) -> None:
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in _FILTER))
    # struct sock_fprog; the kernel copies the program
    packets.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_FILTER), ctypes.addressof(program))
    )
