# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Whether links, addresses, routes or rules of this namespace have changed since the last check."""

from __future__ import annotations

import errno
import socket
import struct

from .routes import SHORT

#: RTMGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, and those without such a name:
#: RTNLGRP_IPV6_RULE, RTNLGRP_NEXTHOP (linux/rtnetlink.h)
_GROUPS = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31
_ROUTES = (24, 25)  # RTM_NEWROUTE, RTM_DELROUTE
_HEADER = struct.Struct("=IH")
_ROOM = 1 << 20


class Watch:
    """Notifications of rtnetlink. The kernel queues each before the call that made the change returns."""

    def __init__(self) -> None:
        """Raises OSError."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            self._socket.bind((0, _GROUPS))
        except OSError:
            self._socket.close()
            raise

    def changed(self) -> bool:
        """Whether something relevant has changed; also True if notifications were lost.

        Raises OSError.
        """
        found = False
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True
                continue
            found = found or _matters(data)

    def close(self) -> None:
        self._socket.close()


def _matters(data: bytes) -> bool:
    """Whether a notification is relevant. Routes to networks are not: a BGP node has many changing ones, and they are
    looked up each time."""
    at = 0
    while at + 18 <= len(data):
        length, kind = _HEADER.unpack_from(data, at)
        if length < 18 or kind not in _ROUTES or data[at + 17] <= SHORT:  # rtm_dst_len
            return True
        at += (length + 3) & ~3
    return False
