# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses of DHCPv6 (RFC 8415). Routes and prefixes come from router advertisements.

The client asks for one address in one IA_NA. If a server assigns several addresses, the client uses one of them: the
requested one if it is usable, and otherwise the first usable one. It never uses or renews the others.
"""

from __future__ import annotations

import errno
import random
import secrets
import socket
import struct
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..kernel import addresses, links
from ..kernel import netns as namespaces
from ..kernel.netlink import Netlink
from .exchange import Refusal, datagram, is_usable, new_lease, no_lease, send_repeatedly
from .lease import Lease

_SERVERS = "ff02::1:2"
_SERVER_PORT, _CLIENT_PORT = 547, 546
_MSG_SOLICIT, _MSG_ADVERTISE, _MSG_REQUEST, _MSG_RENEW, _MSG_REBIND, _MSG_REPLY, _MSG_RELEASE = 1, 2, 3, 5, 6, 7, 8
_OPT_CLIENT_ID, _OPT_SERVER_ID, _OPT_IA_NA, _OPT_IA_ADDRESS = 1, 2, 3, 5
_OPT_PREFERENCE, _OPT_ELAPSED_TIME, _OPT_STATUS_CODE = 7, 8, 13
#: The preference of a server whose Advertise ends the collection of others.
_MAX_PREFERENCE = 255
#: The first and the maximum time until a message is sent again: those of a Request (RFC 8415, section 7.6). The first
#: one is also used for Renew and Rebind, because one attempt to renew a lease takes only a few seconds.
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0
_UNSPEC_FAIL, _NO_BINDING = 1, 3
_STATUS_NAMES = {1: "UnspecFail", 2: "NoAddrsAvail", 3: "NoBinding", 4: "NotOnLink", 5: "UseMulticast"}
_IAID = 1
#: The start of an IA_NA: IAID, T1, T2. Of an IA address: address, preferred and valid lifetime.
_IA_NA, _IA_ADDRESS = struct.Struct("!III"), struct.Struct("!16sII")


class _NoBinding(Refusal):
    """The server with this DUID does not know the lease that was to be renewed."""

    def __init__(self, action: str, detail: str, server: bytes) -> None:
        super().__init__(action, 0, detail)
        self.server = server


class Client6:
    """DHCPv6 for one address of one interface, from its link-local address. `action` starts the messages of errors."""

    def __init__(self, netns: Path, name: str, action: str, deadline: float) -> None:
        self._name, self._action = name, action
        with Netlink(netns) as connection:
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"the pod has no interface {name}")
            client_address = self._link_local(connection, link.index, deadline)
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
    def _link_local(connection: Netlink, index: int, deadline: float) -> str:
        """The link-local address after DAD, which takes one to two seconds."""
        while True:
            for entry, flags in addresses.listed(connection, index):
                if entry["address"].startswith("fe80:") and not flags & addresses.TENTATIVE:
                    return str(entry["address"].split("/")[0])
            if time.monotonic() >= deadline:
                raise OSError(errno.EADDRNOTAVAIL, "the interface has no link-local address yet")
            time.sleep(0.02)

    def __enter__(self) -> Client6:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def acquire(self, deadline: float) -> Lease:
        """Request a lease until `deadline` (time.monotonic). Raises NoLease, Refusal and OSError."""
        offer = self._exchange(_MSG_SOLICIT, b"", b"", deadline)
        return self._lease(self._exchange(_MSG_REQUEST, offer.server, offer.address, deadline))

    def renew(self, lease: Lease, rebind: bool, deadline: float) -> Lease:
        """Renew a lease, with `rebind` at any server. Raises NoLease after `deadline`, Refusal and OSError."""
        kind, server = (_MSG_REBIND, b"") if rebind else (_MSG_RENEW, bytes.fromhex(lease["serverDuid"]))
        address = _packed_address(lease)
        try:
            return self._lease(self._exchange(kind, server, address, deadline))
        except _NoBinding as error:
            # the server has lost the lease, for example in a restart: it may grant it again (section 18.2.10.1)
            return self._lease(self._exchange(_MSG_REQUEST, error.server, address, deadline))

    def release(self, lease: Lease) -> None:
        """Release a lease, without waiting for the server's reply. Raises OSError."""
        server, address = bytes.fromhex(lease["serverDuid"]), _packed_address(lease)
        self._socket.sendto(self._message(_MSG_RELEASE, secrets.token_bytes(3), server, address, 0.0), self._target)

    def _message(self, kind: int, transaction_id: bytes, server: bytes, address: bytes, elapsed: float) -> bytes:
        """A message about `address`, or about any address if it is empty. `elapsed` is in seconds."""
        ia = _IA_NA.pack(_IAID, 0, 0)
        if address:
            ia += option(_OPT_IA_ADDRESS, _IA_ADDRESS.pack(address, 0, 0))
        body = option(_OPT_CLIENT_ID, self._duid) + (option(_OPT_SERVER_ID, server) if server else b"")
        hundredths = min(int(elapsed * 100), 0xFFFF)  # RFC 8415, section 21.9
        body += option(_OPT_ELAPSED_TIME, struct.pack("!H", hundredths)) + option(_OPT_IA_NA, ia)
        return bytes((kind,)) + transaction_id + body

    def _exchange(self, kind: int, server: bytes, address: bytes, deadline: float) -> _Reply:
        """Send a request repeatedly, and return the first reply that assigns an address.

        After the first Solicit, the Advertise of the server with the highest preference is returned instead: at once if
        that is _MAX_PREFERENCE, otherwise when the Solicit would be sent again (RFC 8415, section 18.2.1).

        An Advertise without a usable address is ignored (section 18.2.9). So is a Reply without one, unless it refuses
        the request or revokes the address. After UnspecFail the request is repeated (section 18.2.10). Raises Refusal
        for a refusal or revocation, and NoLease after `deadline`."""
        transaction_id = secrets.token_bytes(3)
        best: _Reply | None = None
        collecting = kind == _MSG_SOLICIT

        def send(elapsed: float) -> None:
            self._socket.sendto(self._message(kind, transaction_id, server, address, elapsed), self._target)

        reason = ""
        for retry_at in send_repeatedly(send, deadline, _retry_pauses()):
            while (timeout := retry_at - time.monotonic()) > 0:
                reply = self._receive(kind, transaction_id, address, timeout)
                if reply is None:
                    continue
                if reply.address:
                    if not collecting or reply.preference == _MAX_PREFERENCE:
                        return reply
                    if best is None or reply.preference > best.preference:
                        best = reply
                    continue
                if reply.refusal and not reply.temporary and kind != _MSG_SOLICIT:
                    raise reply.error(self._action)
                reason = reply.refusal or "the server assigned no usable address"
            if best is not None:
                return best
            collecting = False
        raise no_lease(self._action, "DHCPv6", reason)

    def _receive(self, kind: int, transaction_id: bytes, address: bytes, timeout: float) -> _Reply | None:
        """The next packet, if it is a server's reply to this client's message of type `kind` about `address`; None for
        any other packet, or if there is none within `timeout` seconds."""
        data = datagram(self._socket, timeout)
        reply_kind = _MSG_ADVERTISE if kind == _MSG_SOLICIT else _MSG_REPLY
        if not data or data[:4] != bytes((reply_kind,)) + transaction_id:
            return None
        if _first(data[4:], _OPT_CLIENT_ID) != self._duid or not _first(data[4:], _OPT_SERVER_ID):
            return None
        return _parse_reply(data[4:], address)

    def _lease(self, reply: _Reply) -> Lease:
        address = f"{socket.inet_ntop(socket.AF_INET6, reply.address)}/128"
        times = reply.valid, reply.renew_time, reply.rebind_time
        lease = new_lease("ipv6", self._name, address, *times, preferred=reply.preferred)
        lease["serverDuid"] = reply.server.hex()
        lease["preferred"] = reply.preferred
        return lease


@dataclass(frozen=True)
class _Reply:
    """What a server says about the IA_NA of this client. `server` is its DUID, and `preference` is what it announces in
    an Advertise: clients use the server with the highest one.

    `address` (16 bytes) is the one to use, and empty if there is none. Then `refusal` says how the server refused the
    request or revoked its addresses; empty if it did neither. It is `temporary` if the server could not process the
    request for an unspecified reason. `no_binding` means that the server does not know the lease. Lifetimes and times
    are in seconds.
    """

    server: bytes
    refusal: str = ""
    address: bytes = b""
    preferred: int = 0
    valid: int = 0
    renew_time: int = 0
    rebind_time: int = 0
    temporary: bool = False
    no_binding: bool = False
    preference: int = 0

    def error(self, action: str) -> Refusal:
        """The error for a refusal. `action` starts its message."""
        return _NoBinding(action, self.refusal, self.server) if self.no_binding else Refusal(action, 0, self.refusal)


def _retry_pauses() -> t.Iterator[float]:
    """The times until a message is sent again, in seconds. They double, and are random, so that the clients of many
    nodes do not send at the same time (RFC 8415, section 15)."""
    pause = _FIRST_RETRY_SECONDS * random.uniform(1.0, 1.1)  # never shorter, as required for a Solicit
    while True:
        yield pause
        pause = min(2 * pause, _MAX_RETRY_SECONDS) * random.uniform(0.95, 1.05)


def _parse_reply(options: bytes, requested: bytes) -> _Reply:
    """The content of a reply to a request for the address `requested`, which is empty if any will do."""
    server = _first(options, _OPT_SERVER_ID)
    ia = next((value for kind, value in parse_options(options) if kind == _OPT_IA_NA and _is_valid_ia(value)), b"")
    code, text = _status(options) or _status(ia[_IA_NA.size :]) or (0, "")
    if code:
        name = _STATUS_NAMES.get(code, f"status {code}")
        refusal = f"the server refused it: {name}{f' ({text})' if text else ''}"
        return _Reply(server, refusal, temporary=code == _UNSPEC_FAIL, no_binding=code == _NO_BINDING)
    revoked = False
    usable = []
    for kind, value in parse_options(ia[_IA_NA.size :]):
        if kind != _OPT_IA_ADDRESS or len(value) < _IA_ADDRESS.size:
            continue
        address, preferred, valid = _IA_ADDRESS.unpack_from(value)
        revoked = revoked or (not valid and requested in (b"", address))
        # RFC 8415, section 21.6: a client discards an address that is preferred for longer than it is valid
        if valid and preferred <= valid and is_usable(address):
            usable.append((address, preferred, valid))
    if not usable:
        return _Reply(server, "the server revoked it" if revoked else "")
    address, preferred, valid = next((entry for entry in usable if entry[0] == requested), usable[0])
    _iaid, renew_time, rebind_time = _IA_NA.unpack_from(ia)
    preference = int.from_bytes(_first(options, _OPT_PREFERENCE)[:1], "big")
    return _Reply(server, "", address, preferred, valid, renew_time, rebind_time, preference=preference)


def _is_valid_ia(value: bytes) -> bool:
    """Whether an IA_NA is the client's, with T1 and T2 in order: others are ignored (RFC 8415, section 21.4)."""
    if len(value) < _IA_NA.size:
        return False
    iaid, renew_time, rebind_time = _IA_NA.unpack_from(value)
    return iaid == _IAID and not 0 < rebind_time < renew_time


def _status(options: bytes) -> tuple[int, str] | None:
    """The code and the message of the status among options; None for success (RFC 8415, section 21.13)."""
    value = _first(options, _OPT_STATUS_CODE)
    code = int.from_bytes(value[:2], "big") if len(value) >= 2 else 0
    return (code, value[2:].decode(errors="replace")) if code else None


def _packed_address(lease: Lease) -> bytes:
    return socket.inet_pton(socket.AF_INET6, lease["address"].split("/")[0])


def _first(options: bytes, kind: int) -> bytes:
    """The value of the first option of a kind; empty if there is none."""
    return next((value for other, value in parse_options(options) if other == kind), b"")


def option(kind: int, value: bytes) -> bytes:
    """An option of DHCPv6 with its header (RFC 8415, section 21.1). Raises struct.error if it is over 65535 bytes."""
    return struct.pack("!HH", kind, len(value)) + value


def parse_options(data: bytes) -> t.Iterator[tuple[int, bytes]]:
    """The codes and values of options. Ends silently at an option that is cut off."""
    offset = 0
    while offset + 4 <= len(data):
        kind, size = struct.unpack_from("!HH", data, offset)
        if offset + 4 + size > len(data):
            return
        yield kind, data[offset + 4 : offset + 4 + size]
        offset += 4 + size
