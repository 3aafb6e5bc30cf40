# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses of DHCPv6 (RFC 8415). Routes and prefixes come from router advertisements."""

from __future__ import annotations

import errno
import secrets
import socket
import struct
import time
import typing as t
from pathlib import Path

from ..kernel import addresses, links
from ..kernel import netns as namespaces
from ..kernel.netlink import Netlink
from .exchange import NoLease, Refusal, datagram, new_lease, send_repeatedly
from .lease import Lease

_SERVERS = "ff02::1:2"
_SERVER_PORT, _CLIENT_PORT = 547, 546
_SOLICIT, _ADVERTISE, _REQUEST, _RENEW, _REBIND, _REPLY, _RELEASE = 1, 2, 3, 5, 6, 7, 8
_O_CLIENT, _O_SERVER, _O_IA, _O_ADDRESS, _O_ELAPSED, _O_STATUS = 1, 2, 3, 5, 8, 13
_IAID = 1
_IA_TIMES = struct.Struct("!II")


class Client6:
    """DHCPv6 for one address of one interface, from its link-local address."""

    def __init__(self, netns: Path, name: str, end: float) -> None:
        self._name = name
        with Netlink(netns) as connection:
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"the pod has no interface {name}")
            client_address = self._link_local(connection, link.index, end)
        self._duid = struct.pack("!HH", 3, 1 if len(links.mac_bytes(link.mac)) == 6 else 32) + links.mac_bytes(link.mac)
        self._target = (_SERVERS, _SERVER_PORT, 0, link.index)
        self._socket = namespaces.run(netns, socket.socket, socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((client_address, _CLIENT_PORT, 0, link.index))
        except OSError:
            self._socket.close()
            raise

    @staticmethod
    def _link_local(connection: Netlink, index: int, end: float) -> str:
        """The link-local address after DAD, which takes one to two seconds."""
        while True:
            for entry, flags in addresses.listed(connection, index):
                if entry["address"].startswith("fe80:") and not flags & addresses.TENTATIVE:
                    return str(entry["address"].split("/")[0])
            if time.monotonic() >= end:
                raise OSError(errno.EADDRNOTAVAIL, "the interface has no link-local address yet")
            time.sleep(0.02)

    def __enter__(self) -> Client6:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def acquire(self, end: float) -> Lease:
        offered = self._request(_SOLICIT, b"", b"", _ADVERTISE, end)
        return self._lease(self._request(_REQUEST, offered[_O_SERVER], offered[_O_IA], _REPLY, end))

    def renew(self, lease: Lease, rebind: bool, end: float) -> Lease:
        server = b"" if rebind else bytes.fromhex(lease["serverDuid"])
        ia = struct.pack("!III", _IAID, 0, 0) + self._address(lease)
        return self._lease(self._request(_REBIND if rebind else _RENEW, server, ia, _REPLY, end))

    def release(self, lease: Lease) -> None:
        ia = struct.pack("!III", _IAID, 0, 0) + self._address(lease)
        number = secrets.token_bytes(3)
        message = self._message(_RELEASE, number, bytes.fromhex(lease["serverDuid"]), ia)
        self._socket.sendto(message, self._target)

    @staticmethod
    def _address(lease: Lease) -> bytes:
        packed = socket.inet_pton(socket.AF_INET6, lease["address"].split("/")[0])
        return option(_O_ADDRESS, packed + struct.pack("!II", 0, 0))

    def _message(self, kind: int, number: bytes, server: bytes, ia: bytes) -> bytes:
        body = option(_O_CLIENT, self._duid) + (option(_O_SERVER, server) if server else b"")
        body += option(_O_ELAPSED, bytes(2)) + option(_O_IA, ia or struct.pack("!III", _IAID, 0, 0))
        return bytes((kind,)) + number + body

    def _request(self, kind: int, server: bytes, ia: bytes, wanted: int, end: float) -> dict[int, bytes]:
        """Send a request repeatedly, and return the options of the reply of the type `wanted`. Raises Refusal if the
        server refuses the request, and NoLease at the time `end`."""
        number = secrets.token_bytes(3)
        message = self._message(kind, number, server, ia)
        for again in send_repeatedly(lambda: self._socket.sendto(message, self._target), end):
            while (left := again - time.monotonic()) > 0:
                data = datagram(self._socket, left)
                if not data or len(data) < 4 or data[0] != wanted or data[1:4] != number:
                    continue
                options = dict(parse_options(data[4:]))
                if options.get(_O_CLIENT) != self._duid or _O_SERVER not in options:
                    continue
                for part in (
                    options.get(_O_STATUS, b""),
                    dict(parse_options(options.get(_O_IA, b"")[12:])).get(_O_STATUS, b""),
                ):
                    if len(part) >= 2 and struct.unpack_from("!H", part)[0]:
                        reason = part[2:].decode(errors="replace")
                        raise Refusal(f"request a lease on {self._name}", 0, f"the server refused it: {reason}")
                address = dict(parse_options(options.get(_O_IA, b"")[12:])).get(_O_ADDRESS, b"")
                if len(address) >= 16 + _IA_TIMES.size:
                    return options
        raise NoLease(f"request a lease on {self._name}", errno.ETIMEDOUT, "no DHCPv6 server answered in time")

    def _lease(self, options: dict[int, bytes]) -> Lease:
        ia = options[_O_IA]
        _unused, renew_time, rebind_time = struct.unpack_from("!III", ia)
        value = dict(parse_options(ia[12:]))[_O_ADDRESS]
        preferred, valid = _IA_TIMES.unpack_from(value, 16)
        if not valid:
            raise Refusal(f"request a lease on {self._name}", 0, "the server revoked it")
        address = f"{socket.inet_ntop(socket.AF_INET6, value[:16])}/128"
        lease = new_lease("ipv6", self._name, address, valid, renew_time, rebind_time)
        lease["serverDuid"] = options[_O_SERVER].hex()
        lease["preferred"] = min(preferred, valid)
        return lease


def option(kind: int, value: bytes) -> bytes:
    return struct.pack("!HH", kind, len(value)) + value


def parse_options(data: bytes) -> t.Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        kind, size = struct.unpack_from("!HH", data, offset)
        if offset + 4 + size > len(data):
            return
        yield kind, data[offset + 4 : offset + 4 + size]
        offset += 4 + size
