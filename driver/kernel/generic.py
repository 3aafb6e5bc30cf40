# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generic netlink: connections to a family. Numbers are those of linux/genetlink.h."""

from __future__ import annotations

import errno
import os
import struct
import typing as t

from . import netlink
from .netlink import Netlink

PROTOCOL = 16
#: The header of each message: command and version.
HEADER = struct.Struct("=BBxx")
#: Error numbers with which kernels and drivers report that they do not support something.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.EIO, errno.ENETDOWN, errno.ENOENT)
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2


FamilyType = t.TypeVar("FamilyType", bound="Family")


class Family:
    """A connection to the family `name` in one network namespace, as a context manager. Errors are OSError."""

    name: t.ClassVar[str]

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        self._connection = Netlink(netns, PROTOCOL)
        self._family = family(self._connection, self.name)

    def __enter__(self: FamilyType) -> FamilyType:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._connection.close()


def family(connection: Netlink, name: str) -> int:
    """The number of a family; 0 if the kernel does not have it. Raises OSError."""
    body = HEADER.pack(_GET_FAMILY, 1) + netlink.text(_FAMILY_NAME, name)
    try:
        replies = connection.request(_CONTROL, body)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return 0
        raise
    reply = netlink.attributes(replies[0][1], HEADER.size) if replies else {}
    return netlink.number(reply.get(_FAMILY_ID, b""))
