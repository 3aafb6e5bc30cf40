# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Checking whether links, addresses, routes or rules of this namespace have changed since the last check."""

from __future__ import annotations

import errno
import socket
import struct

from .routes import MAX_DEFAULT_PREFIX

#: RTMGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV6_IFADDR and _IPV6_ROUTE, and two groups without such a name:
#: RTNLGRP_IPV6_RULE and RTNLGRP_NEXTHOP (linux/rtnetlink.h).
_GROUPS = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31
_ROUTES = (24, 25)  # RTM_NEWROUTE, RTM_DELROUTE
_HEADER = struct.Struct("=IH")
_BUFFER_BYTES = 1 << 20


class Watch:
    """A subscription to rtnetlink notifications. The kernel queues each before the call that makes the change
    returns."""

    def __init__(self) -> None:
        """Raises OSError."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((0, _GROUPS))
        except OSError:
            self._socket.close()
            raise

    def changed(self) -> bool:
        """Whether something relevant has changed; also True if notifications were lost.

        Raises OSError.
        """
        changed = False
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return changed
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                changed = True
                continue
            changed = changed or _is_relevant(data)

    def close(self) -> None:
        self._socket.close()


def _is_relevant(data: bytes) -> bool:
    """Whether a notification is relevant. Routes other than default routes are not: a BGP node has many that change,
    and they are looked up each time."""
    offset = 0
    while offset + 18 <= len(data):
        length, kind = _HEADER.unpack_from(data, offset)
        if length < 18 or kind not in _ROUTES or data[offset + 17] <= MAX_DEFAULT_PREFIX:  # rtm_dst_len
            return True
        offset += (length + 3) & ~3
    return False
