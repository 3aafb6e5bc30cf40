# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases for interfaces of pods: DHCPv4 (RFC 2131, 2132, 3442) and addresses of DHCPv6 (RFC 8415).

Routes are those of option 121, without a default route, because the pod's own network has one. For IPv6, routes and
prefixes come from router advertisements. Sockets are created in the pod's namespace; no thread stays there.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import logging
import secrets
import select
import socket
import struct
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DriverError, KernelError
from ..base.objects import Object, ObjectView
from ..kernel import addresses, links, netlink, routes
from ..kernel import netns as namespaces
from ..kernel.links import step
from ..kernel.netlink import Netlink
from .lease import Lease

log = logging.getLogger(__name__)

_ETH_P_IP = 0x0800
_BROADCAST = b"\xff" * 6
_ANY, _ALL = "0.0.0.0", "255.255.255.255"
_SERVER_PORT, _CLIENT_PORT = 67, 68
_MAGIC_COOKIE = b"\x63\x82\x53\x63"
_BOOTP = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")
_MASK, _MTU, _REQUESTED, _LEASE_TIME, _TYPE, _SERVER, _PARAMETERS = 1, 26, 50, 51, 53, 54, 55
_RENEW_TIME, _REBIND_TIME, _CLIENT_ID, _CLASSLESS, _END = 58, 59, 61, 121, 255
_DISCOVER, _OFFER, _REQUEST, _ACK, _NAK, _RELEASE = 1, 2, 3, 5, 6, 7
#: The lifetime of a lease that does not expire.
FOREVER = 2**32 - 1
#: The minimum time until a lease is renewed.
_MIN_RENEWAL_SECONDS = 5
#: The time until a request is sent again; the last value repeats.
_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)

_SERVERS6 = "ff02::1:2"
_SERVER_PORT6, _CLIENT_PORT6 = 547, 546
_SOLICIT, _ADVERTISE, _REQUEST6, _RENEW6, _REBIND6, _REPLY, _RELEASE6 = 1, 2, 3, 5, 6, 7, 8
_O_CLIENT, _O_SERVER, _O_IA, _O_ADDRESS, _O_ELAPSED, _O_STATUS = 1, 2, 3, 5, 8, 13
_IAID = 1
_IA_TIMES = struct.Struct("!II")


class NoLease(KernelError):
    """No server offered a lease in time."""


class Refusal(NoLease):
    """The server revoked or refused a lease."""


def acquire(netns: Path, name: str, family: str, timeout: float) -> Lease:
    """Request a lease for an interface that is up, without configuring the lease. Raises NoLease after `timeout`
    seconds, and KernelError."""
    end = time.monotonic() + timeout
    with step(f"request an {family} lease on {name}"):
        if family == "ipv6":
            with _Client6(netns, name, end) as client6:
                return client6.acquire(end)
        with _Client4(netns, name) as client4:
            return client4.acquire(end)


def renew(netns: Path, lease: Lease, rebind: bool, timeout: float) -> Lease:
    """Renew a lease with the server that granted it, or with `rebind` with any server. Raises Refusal if a server
    revoked the lease, NoLease after `timeout` seconds, and KernelError."""
    end = time.monotonic() + timeout
    with step(f"renew the {lease['family']} lease of {lease['interface']}"):
        if lease["family"] == "ipv6":
            with _Client6(netns, lease["interface"], end) as client6:
                return client6.renew(lease, rebind, end)
        with _Client4(netns, lease["interface"]) as client4:
            return client4.renew(lease, rebind, end)


def release(netns: Path, lease: Lease) -> None:
    """Release a lease, if possible; a failure is only logged. Call this before the interface leaves the pod."""
    try:
        if lease["family"] == "ipv6":
            with _Client6(netns, lease["interface"], time.monotonic()) as client6:
                client6.release(lease)
        else:
            with _Client4(netns, lease["interface"]) as client4:
                client4.release(lease)
    except (OSError, DriverError) as error:
        log.info("could not release the lease of %s, which expires by itself: %s", lease["interface"], error)


def age(lease: Lease) -> float:
    """Seconds since a lease was obtained."""
    if "boottime" in lease:
        return addresses.boottime() - float(lease["boottime"])
    return time.time() - float(lease["obtained"])


def apply(connection: Netlink, index: int, lease: Lease, config: ObjectView) -> None:
    """Configure the lease's address, MTU and routes on the interface `index`. May be called again with a renewed lease.
    Raises KernelError."""
    name = lease["interface"]
    with step(f"add the leased address {lease['address']} to {name}"):
        entry: addresses.AddressState = {"address": lease["address"]}
        if lease["lifetime"] != FOREVER:
            obtained = addresses.boottime() - age(lease)
            entry["validBoottime"] = obtained + lease["lifetime"]
            entry["preferredBoottime"] = obtained + min(lease.get("preferred", lease["lifetime"]), lease["lifetime"])
        addresses.add(connection, index, entry, renew=True)
    if "mtu" in lease and "mtu" not in config:
        link = links.get(connection, index=index)
        if link and link.number(links.IFLA_MIN_MTU) <= lease["mtu"] <= (link.number(links.IFLA_MAX_MTU) or 65535):
            with step(f"set the leased MTU {lease['mtu']} of {name}"):
                if lease["mtu"] != link.mtu:
                    links.change(connection, index, netlink.u32(links.IFLA_MTU, lease["mtu"]))
    table = config.get("vrf", {}).get("table", routes.TABLE_MAIN)
    wanted: list[routes.Route] = [{**routes.configured(route), "table": table} for route in lease.get("routes", ())]
    for route, error in routes.add_all(connection, index, wanted):
        with step(f"add the leased route to {route['destination']} on {name}"):
            raise error


class _Client4:
    """DHCPv4 on one interface, through a packet socket, which works before the interface has an address."""

    def __init__(self, netns: Path, name: str) -> None:
        self._netns, self._name = netns, name
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

    def __enter__(self) -> _Client4:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def acquire(self, end: float) -> Lease:
        number = secrets.randbits(32)
        offer = self._request(number, {_TYPE: bytes([_DISCOVER])}, _OFFER, end)
        options = {_TYPE: bytes([_REQUEST]), _REQUESTED: offer.address, _SERVER: offer.options[_SERVER]}
        return self._lease(self._request(number, options, _ACK, end))

    def renew(self, lease: Lease, rebind: bool, end: float) -> Lease:
        client_address = socket.inet_aton(lease["address"].split("/")[0])
        message = self._message(number := secrets.randbits(32), {_TYPE: bytes([_REQUEST])}, client_address)
        if rebind:
            reply = self._exchange(number, lambda: self._broadcast(message), _ACK, end, self._receive_packet)
            return self._lease(reply)
        with self._server_socket(lease) as server:
            return self._lease(
                self._exchange(number, lambda: server.send(message), _ACK, end, lambda left: _datagram(server, left))
            )

    def release(self, lease: Lease) -> None:
        client_address = socket.inet_aton(lease["address"].split("/")[0])
        options = {_TYPE: bytes([_RELEASE]), _SERVER: socket.inet_aton(lease["server"])}
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

    def _request(self, number: int, options: dict[int, bytes], wanted: int, end: float) -> _Reply4:
        """Broadcast a request, and return the reply of the type `wanted`."""
        message = self._message(number, options)
        return self._exchange(number, lambda: self._broadcast(message), wanted, end, self._receive_packet)

    def _exchange(
        self,
        number: int,
        send: t.Callable[[], object],
        wanted: int,
        end: float,
        receive: t.Callable[[float], bytes | None],
    ) -> _Reply4:
        """Call `send` repeatedly until `receive` returns a reply of the type `wanted` to the transaction `number`.

        Raises Refusal if a server refuses the request, and NoLease at the time `end`."""
        for again in _send_repeatedly(send, end):
            while (left := again - time.monotonic()) > 0:
                data = receive(left)
                reply = _reply4(data, number, self._mac) if data else None
                if reply and reply.kind == _NAK:
                    raise Refusal(f"request a lease on {self._name}", 0, "the server refused it")
                if reply and reply.kind == wanted:
                    return reply
        raise NoLease(f"request a lease on {self._name}", errno.ETIMEDOUT, "no DHCP server answered in time")

    def _message(self, number: int, options: dict[int, bytes], client_address: bytes = bytes(4)) -> bytes:
        head = _BOOTP.pack(1, 1, 6, 0, number, 0, 0, client_address, bytes(4), bytes(4), bytes(4), self._mac, b"", b"")
        parameters = bytes((_MASK, _MTU, _LEASE_TIME, _RENEW_TIME, _REBIND_TIME, _CLASSLESS))
        all_options = {**options, _CLIENT_ID: b"\x01" + self._mac}
        if options[_TYPE] != bytes([_RELEASE]):
            all_options[_PARAMETERS] = parameters
        body = b"".join(bytes((kind, len(value))) + value for kind, value in all_options.items() if value)
        return (head + _MAGIC_COOKIE + body + bytes((_END,))).ljust(300, b"\0")

    def _broadcast(self, message: bytes) -> None:
        source, target = socket.inet_aton(_ANY), socket.inet_aton(_ALL)
        size = 8 + len(message)
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_UDP, size)
        udp = struct.pack("!HHHH", _CLIENT_PORT, _SERVER_PORT, size, 0)
        udp = udp[:6] + struct.pack("!H", _checksum(pseudo + udp + message) or 0xFFFF)
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0x10, 20 + size, 0, 0, 64, socket.IPPROTO_UDP, 0, source, target)
        head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
        self._socket.sendto(head + udp + message, (self._name, _ETH_P_IP, 0, 0, _BROADCAST))

    def _receive_packet(self, left: float) -> bytes | None:
        """The payload of the next packet to the client's port. Checksums are not verified: with checksum offload they
        may not be filled in yet."""
        data = _datagram(self._socket, left)
        if not data or len(data) < 28 or data[0] >> 4 != 4 or data[9] != socket.IPPROTO_UDP:
            return None
        start = (data[0] & 15) * 4
        fragment = struct.unpack_from("!H", data, 6)[0] & 0x3FFF
        if fragment or len(data) < start + 8 or struct.unpack_from("!H", data, start + 2)[0] != _CLIENT_PORT:
            return None
        return data[start + 8 : start + struct.unpack_from("!H", data, start + 4)[0]]

    def _lease(self, reply: _Reply4) -> Lease:
        options = reply.options
        mask = options.get(_MASK, b"")
        prefix = bin(int.from_bytes(mask if len(mask) == 4 else b"\xff" * 4, "big")).count("1")
        lifetime = _seconds(options.get(_LEASE_TIME), FOREVER)
        times = lifetime, _seconds(options.get(_RENEW_TIME), 0), _seconds(options.get(_REBIND_TIME), 0)
        lease = _lease("ipv4", self._name, f"{socket.inet_ntoa(reply.address)}/{prefix}", *times)
        lease["server"] = socket.inet_ntoa(options[_SERVER])
        lease["routes"] = list(_classless_routes(options.get(_CLASSLESS, b"")))
        if len(options.get(_MTU, b"")) == 2:
            lease["mtu"] = struct.unpack("!H", options[_MTU])[0]
        return lease


@dataclass(frozen=True)
class _Reply4:
    kind: int
    address: bytes
    options: dict[int, bytes]


def _reply4(data: bytes, number: int, mac: bytes) -> _Reply4 | None:
    """A server's reply to the transaction `number`; None for any other packet."""
    if len(data) < _BOOTP.size + 4 or data[0] != 2 or data[_BOOTP.size : _BOOTP.size + 4] != _MAGIC_COOKIE:
        return None
    fields = _BOOTP.unpack_from(data)
    if fields[4] != number or fields[11][:6] != mac:
        return None
    options: dict[int, bytes] = {}
    offset = _BOOTP.size + 4
    while offset < len(data) and data[offset] != _END:
        if not data[offset]:
            offset += 1
            continue
        if offset + 2 > len(data) or offset + 2 + data[offset + 1] > len(data):
            return None
        value = data[offset + 2 : offset + 2 + data[offset + 1]]
        # an option longer than 255 bytes is split into several (RFC 3396)
        options[data[offset]] = options.get(data[offset], b"") + value
        offset += 2 + len(value)
    kind = options.get(_TYPE, b"")
    if len(kind) != 1 or len(options.get(_SERVER, b"")) != 4:  # each reply must identify the server
        return None
    return _Reply4(kind[0], fields[8], options)


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


def _lease(family: str, name: str, address: str, lifetime: int, renew_time: int, rebind_time: int) -> Lease:
    """A lease that was obtained now. The renewal times are the server's if they are in the right order, and otherwise
    the fractions of the lifetime that the RFCs recommend. No lease is renewed immediately, whatever the server says."""
    if not 0 < renew_time < rebind_time < lifetime:
        fraction = 7 / 8 if family == "ipv4" else 4 / 5
        renew_time, rebind_time = lifetime // 2, int(lifetime * fraction)
    return {
        "family": family,
        "interface": name,
        "address": address,
        "obtained": int(time.time()),
        "boottime": round(addresses.boottime(), 3),
        "lifetime": lifetime,
        "renew": max(renew_time, _MIN_RENEWAL_SECONDS),
        "rebind": max(rebind_time, _MIN_RENEWAL_SECONDS),
    }


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


def _datagram(connection: socket.socket, left: float) -> bytes | None:
    """The next packet; None if there is none within `left` seconds."""
    ready = select.select([connection], [], [], max(0.0, left))[0]
    if not ready:
        return None
    try:
        return connection.recv(4096)
    except ConnectionRefusedError:  # the server is not running now
        return None


def _send_repeatedly(send: t.Callable[[], object], end: float) -> t.Iterator[float]:
    """Send repeatedly until the time `end`. After each attempt, yields the time until which to wait for a reply."""
    for attempt in range(1000):
        now = time.monotonic()
        if attempt and now >= end:
            return
        send()
        yield min(end, now + _RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])


class _Client6:
    """DHCPv6 for one address of one interface, from its link-local address."""

    def __init__(self, netns: Path, name: str, end: float) -> None:
        self._name = name
        with Netlink(netns) as connection:
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"the pod has no interface {name}")
            client_address = self._link_local(connection, link.index, end)
        self._duid = struct.pack("!HH", 3, 1 if len(links.mac_bytes(link.mac)) == 6 else 32) + links.mac_bytes(link.mac)
        self._target = (_SERVERS6, _SERVER_PORT6, 0, link.index)
        self._socket = namespaces.run(netns, socket.socket, socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((client_address, _CLIENT_PORT6, 0, link.index))
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

    def __enter__(self) -> _Client6:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def acquire(self, end: float) -> Lease:
        offered = self._request(_SOLICIT, b"", b"", _ADVERTISE, end)
        return self._lease(self._request(_REQUEST6, offered[_O_SERVER], offered[_O_IA], _REPLY, end))

    def renew(self, lease: Lease, rebind: bool, end: float) -> Lease:
        server = b"" if rebind else bytes.fromhex(lease["serverDuid"])
        ia = struct.pack("!III", _IAID, 0, 0) + self._address(lease)
        return self._lease(self._request(_REBIND6 if rebind else _RENEW6, server, ia, _REPLY, end))

    def release(self, lease: Lease) -> None:
        ia = struct.pack("!III", _IAID, 0, 0) + self._address(lease)
        number = secrets.token_bytes(3)
        message = self._message(_RELEASE6, number, bytes.fromhex(lease["serverDuid"]), ia)
        self._socket.sendto(message, self._target)

    @staticmethod
    def _address(lease: Lease) -> bytes:
        packed = socket.inet_pton(socket.AF_INET6, lease["address"].split("/")[0])
        return _option(_O_ADDRESS, packed + struct.pack("!II", 0, 0))

    def _message(self, kind: int, number: bytes, server: bytes, ia: bytes) -> bytes:
        body = _option(_O_CLIENT, self._duid) + (_option(_O_SERVER, server) if server else b"")
        body += _option(_O_ELAPSED, bytes(2)) + _option(_O_IA, ia or struct.pack("!III", _IAID, 0, 0))
        return bytes((kind,)) + number + body

    def _request(self, kind: int, server: bytes, ia: bytes, wanted: int, end: float) -> dict[int, bytes]:
        """Send a request repeatedly, and return the options of the reply of the type `wanted`. Raises Refusal if the
        server refuses the request, and NoLease at the time `end`."""
        number = secrets.token_bytes(3)
        message = self._message(kind, number, server, ia)
        for again in _send_repeatedly(lambda: self._socket.sendto(message, self._target), end):
            while (left := again - time.monotonic()) > 0:
                data = _datagram(self._socket, left)
                if not data or len(data) < 4 or data[0] != wanted or data[1:4] != number:
                    continue
                options = dict(_options(data[4:]))
                if options.get(_O_CLIENT) != self._duid or _O_SERVER not in options:
                    continue
                for part in (
                    options.get(_O_STATUS, b""),
                    dict(_options(options.get(_O_IA, b"")[12:])).get(_O_STATUS, b""),
                ):
                    if len(part) >= 2 and struct.unpack_from("!H", part)[0]:
                        reason = part[2:].decode(errors="replace")
                        raise Refusal(f"request a lease on {self._name}", 0, f"the server refused it: {reason}")
                address = dict(_options(options.get(_O_IA, b"")[12:])).get(_O_ADDRESS, b"")
                if len(address) >= 16 + _IA_TIMES.size:
                    return options
        raise NoLease(f"request a lease on {self._name}", errno.ETIMEDOUT, "no DHCPv6 server answered in time")

    def _lease(self, options: dict[int, bytes]) -> Lease:
        ia = options[_O_IA]
        _unused, renew_time, rebind_time = struct.unpack_from("!III", ia)
        value = dict(_options(ia[12:]))[_O_ADDRESS]
        preferred, valid = _IA_TIMES.unpack_from(value, 16)
        if not valid:
            raise Refusal(f"request a lease on {self._name}", 0, "the server revoked it")
        address = f"{socket.inet_ntop(socket.AF_INET6, value[:16])}/128"
        lease = _lease("ipv6", self._name, address, valid, renew_time, rebind_time)
        lease["serverDuid"] = options[_O_SERVER].hex()
        lease["preferred"] = min(preferred, valid)
        return lease


def _option(kind: int, value: bytes) -> bytes:
    return struct.pack("!HH", kind, len(value)) + value


def _options(data: bytes) -> t.Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        kind, size = struct.unpack_from("!HH", data, offset)
        if offset + 4 + size > len(data):
            return
        yield kind, data[offset + 4 : offset + 4 + size]
        offset += 4 + size
