# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What both versions of DHCP share: sending requests, receiving packets, and the lease that a server granted."""

from __future__ import annotations

import select
import socket
import time
import typing as t

from ..base.errors import KernelError
from ..kernel import addresses
from .lease import Lease

#: The minimum time until a lease is renewed.
_MIN_RENEWAL_SECONDS = 5
#: The time until a request is sent again; the last value repeats.
_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)


class NoLease(KernelError):
    """No server offered a lease in time."""


class Refusal(NoLease):
    """The server revoked or refused a lease."""


def datagram(connection: socket.socket, left: float) -> bytes | None:
    """The next packet; None if there is none within `left` seconds."""
    ready = select.select([connection], [], [], max(0.0, left))[0]
    if not ready:
        return None
    try:
        return connection.recv(4096)
    except ConnectionRefusedError:  # the server is not running now
        return None


def send_repeatedly(send: t.Callable[[], object], end: float) -> t.Iterator[float]:
    """Send repeatedly until the time `end`. After each attempt, yields the time until which to wait for a reply."""
    for attempt in range(1000):
        now = time.monotonic()
        if attempt and now >= end:
            return
        send()
        yield min(end, now + _RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])


def new_lease(family: str, name: str, address: str, lifetime: int, renew_time: int, rebind_time: int) -> Lease:
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
