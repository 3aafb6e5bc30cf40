# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of virtual functions through devlink, for cards whose embedded switch is in switchdev mode: in that mode,
drivers accept no rates through the physical function's interface (vf.py). Numbers are those of linux/devlink.h.
"""

from __future__ import annotations

import errno
import os
import struct
import typing as t

from . import generic, netlink
from .vf import Function

_PORT_GET, _ESWITCH_GET, _RATE_GET, _RATE_SET = 5, 29, 74, 75
_BUS, _DEVICE, _PORT, _ESWITCH_MODE, _FLAVOUR = 1, 2, 3, 25, 77
_VF_NUMBER, _EXTERNAL, _SHARE, _MAX = 128, 149, 166, 167
_SWITCHDEV, _PCI_VF = 1, 4


class Rates(t.NamedTuple):
    """The guaranteed rate of a virtual function (`share`) and its maximum rate, in bit/s. 0 means no guarantee or no
    limit."""

    share: int
    maximum: int


class Devlink(generic.Family):
    """The devlink devices of one network namespace, as a context manager. Errors are OSError."""

    name = "devlink"

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        super().__init__(netns)
        self._listed: list[netlink.Attributes] = []

    def is_switchdev(self, function: Function) -> bool:
        """Whether the card of a virtual function is in switchdev mode; also False if the card has no devlink."""
        try:
            reply = self._request(_ESWITCH_GET, _device(function)) if self._family else {}
        except OSError as error:
            if error.errno in generic.UNSUPPORTED:
                return False
            raise
        return netlink.number(reply.get(_ESWITCH_MODE, b"")) == _SWITCHDEV

    def read(self, function: Function) -> Rates:
        """The rates of a virtual function."""
        reply = self._request(_RATE_GET, self._port(function))
        share, maximum = (netlink.number(reply.get(kind, b"")) * 8 for kind in (_SHARE, _MAX))
        return Rates(share, maximum)

    def write(self, function: Function, wanted: Rates) -> None:
        """Set the rates of a virtual function, rounded down to whole bytes per second, and read them back. Raises
        OSError (EIO) if the driver reports other rates then."""
        port, now = self._port(function), self.read(function)
        wanted = Rates(*(rate // 8 * 8 for rate in wanted))  # the kernel's unit is bytes per second
        if now == wanted:
            return
        share, maximum = ((_SHARE, wanted.share), (_MAX, wanted.maximum))
        # drivers check each value against the other one
        maximum_first = wanted.maximum >= now.maximum or not wanted.maximum
        for kind, rate in (maximum, share) if maximum_first else (share, maximum):
            value = netlink.attribute(kind, struct.pack("=Q", rate // 8))
            self._connection.request(self._family, generic.HEADER.pack(_RATE_SET, 1) + port + value)
        now = self.read(function)
        if now != wanted:
            requested = f"{wanted.share} to {wanted.maximum} were set"
            raise OSError(errno.EIO, f"it reports {now.share} to {now.maximum} bit/s after {requested}")

    def _port(self, function: Function) -> bytes:
        """The attributes that identify the port of a virtual function."""
        if not self._family:
            raise OSError(errno.EOPNOTSUPP, "the kernel has no devlink")
        for raw in self._ports():
            device = (netlink.string(raw.get(_BUS, b"")), netlink.string(raw.get(_DEVICE, b"")))
            if device != (function.bus, function.pf) or netlink.number(raw.get(_FLAVOUR, b"")) != _PCI_VF:
                continue
            number = netlink.number(raw[_VF_NUMBER]) if _VF_NUMBER in raw else None
            if number == function.index and not any(raw.get(_EXTERNAL, b"")):
                return _device(function) + netlink.u32(_PORT, netlink.number(raw[_PORT]))
        card = f"{function.bus}/{function.pf}"
        raise OSError(errno.ENODEV, f"{card} has no devlink port for its virtual function {function.index}")

    def _ports(self) -> list[netlink.Attributes]:
        """The ports of all cards. They are listed once, because this object is used for one operation only."""
        if not self._listed:
            request = generic.HEADER.pack(_PORT_GET, 1)
            bodies = [body for _unused, body in self._connection.dump(self._family, request)]
            self._listed = [netlink.attributes(body, generic.HEADER.size) for body in bodies]
        return self._listed

    def _request(self, command: int, body: bytes) -> netlink.Attributes:
        replies = self._connection.request(self._family, generic.HEADER.pack(command, 1) + body)
        return netlink.attributes(replies[0][1], generic.HEADER.size) if replies else {}


def _device(function: Function) -> bytes:
    return netlink.text(_BUS, function.bus) + netlink.text(_DEVICE, function.pf)
