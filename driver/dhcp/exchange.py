# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What both versions of DHCP share: sending requests, receiving packets, and the lease that a server granted."""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
import time
import typing as t

from ..base.errors import KernelError
from ..kernel import addresses
from .lease import Lease

#: The minimum time until a lease is renewed.
_MIN_RENEWAL_SECONDS = 5


class NoLease(KernelError):
    """No server granted a usable lease before the deadline. A later attempt may succeed."""


class Refusal(NoLease):
    """A server refused a request (DHCPNAK, or a status code of DHCPv6), or revoked the lease that was to be renewed:
    the address of that lease must not be used any more."""


def no_lease(action: str, protocol: str, reason: str) -> NoLease:
    """The error after the deadline. `reason` is why the last reply of a server could not be used; empty if no server
    answered."""
    detail = f"no {protocol} server granted a usable lease in time: {reason}" if reason else ""
    return NoLease(action, errno.ETIMEDOUT, detail or f"no {protocol} server answered in time")


def datagram(connection: socket.socket, timeout: float) -> bytes | None:
    """The next packet; None if there is none within `timeout` seconds. Raises OSError."""
    ready = select.select([connection], [], [], max(0.0, timeout))[0]
    if not ready:
        return None
    try:
        return connection.recv(4096)
    except ConnectionRefusedError:  # the server is not running now
        return None


def send_repeatedly(send: t.Callable[[float], object], deadline: float, pauses: t.Iterable[float]) -> t.Iterator[float]:
    """Call `send`, at least once, until the time `deadline` (time.monotonic), with these pauses in seconds between the
    calls. Its argument is the time in seconds since the first call. After each call, yields the time until which to
    wait for a reply."""
    start = time.monotonic()
    elapsed = 0.0
    for pause in pauses:
        send(elapsed)
        retry_at = min(deadline, start + elapsed + pause)
        yield retry_at
        if time.monotonic() >= deadline:
            return
        elapsed = time.monotonic() - start


def is_usable(address: bytes) -> bool:
    """Whether a server may assign this address to an interface: it is not multicast, loopback, broadcast
    or all zeros."""
    ip = ipaddress.ip_address(address)
    return not (ip.is_unspecified or ip.is_loopback or ip.is_multicast or address == b"\xff" * 4)


def new_lease(
    family: str,
    name: str,
    address: str,
    lifetime: int,
    renew_time: int,
    rebind_time: int,
    preferred: int | None = None,
) -> Lease:
    """A lease that was obtained now. All times are in seconds; `renew_time` (T1) and `rebind_time` (T2) are the
    server's, or 0 if it leaves them to the client.

    By default, T1 and T2 are 0.5 and 0.875 of the lifetime for DHCPv4 (RFC 2131, section 4.4.5), and 0.5 and 0.8 of the
    preferred lifetime for DHCPv6 (RFC 8415, section 21.4; of the valid lifetime if the preferred one is 0). Both
    defaults also replace times in the wrong order. No lease is renewed immediately, whatever the server says.
    """
    base = preferred or lifetime
    default_renew, default_rebind = base // 2, int(base * (7 / 8 if family == "ipv4" else 4 / 5))
    rebind_time = rebind_time or max(default_rebind, renew_time)
    renew_time = renew_time or min(default_renew, rebind_time)
    if not renew_time <= rebind_time < lifetime:
        renew_time, rebind_time = default_renew, default_rebind
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
