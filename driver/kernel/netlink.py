# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Netlink in any network namespace: the messages of :mod:`uplinks.netlink`, and a connection in a namespace.

pyroute2 opens a socket in another namespace by forking the whole process. A process with gRPC threads must not fork,
and each fork would take a tenth of the attach time.
"""

from __future__ import annotations

import os
import socket

from ..uplinks.netlink import (
    ACK,
    APPEND,
    CREATE,
    DUMP,
    EXCLUSIVE,
    NETLINK_RDMA,
    NETLINK_ROUTE,
    REPLACE,
    REQUEST,
    Attributes,
    Connection,
    attribute,
    attributes,
    missing,
    nest,
    number,
    pairs,
    string,
    text,
    u8,
    u16,
    u32,
)
from . import netns as namespaces

__all__ = [
    "ACK",
    "APPEND",
    "CREATE",
    "DUMP",
    "EXCLUSIVE",
    "NETLINK_RDMA",
    "NETLINK_ROUTE",
    "REPLACE",
    "REQUEST",
    "Attributes",
    "Netlink",
    "attribute",
    "attributes",
    "missing",
    "nest",
    "number",
    "pairs",
    "string",
    "text",
    "u8",
    "u16",
    "u32",
]


class Netlink(Connection):
    """A connection to the kernel in one network namespace, for use by one thread, as a context manager.

    `netns` is the namespace: a path, or the descriptor of an open file; None is that of the driver. Raises KernelError
    if it cannot be entered. Other errors are OSError with the kernel's error number, and its extended message if there
    is one.
    """

    def __init__(self, netns: str | os.PathLike[str] | int | None = None, protocol: int = NETLINK_ROUTE) -> None:
        super().__init__(protocol, namespaces.run(netns, socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, protocol))
