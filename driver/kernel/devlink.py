# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of virtual functions by devlink, for cards whose embedded switch is in switchdev mode: their drivers then
accept no rates through the physical function's interface (vf.py). Numbers are those of linux/devlink.h.
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
    """The guaranteed rate of a virtual function (`share`) and its maximum (`most`), in bit/s; 0 for no limit."""

    share: int
    most: int


class Devlink(generic.Family):
    """The devlink devices of one network namespace, as a context manager. Errors are OSError."""

    name = "devlink"

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        super().__init__(netns)
        self._listed: list[netlink.Attributes] = []

    def is_switchdev(self, function: Function) -> bool:
        """Whether the card of a virtual function is in switchdev mode; False also without devlink."""
        try:
            reply = self._ask(_ESWITCH_GET, _device(function)) if self._family else {}
        except OSError as error:
            if error.errno in generic.UNSUPPORTED:
                return False
            raise
        return netlink.number(reply.get(_ESWITCH_MODE, b"")) == _SWITCHDEV

    def read(self, function: Function) -> Rates:
        """The rates of a virtual function."""
        reply = self._ask(_RATE_GET, self._port(function))
        share, most = (netlink.number(reply.get(kind, b"")) * 8 for kind in (_SHARE, _MAX))
        return Rates(share, most)

    def write(self, function: Function, wanted: Rates) -> None:
        """Set the rates of a virtual function, and read them back."""
        port, now = self._port(function), self.read(function)
        wanted = Rates(*(rate // 8 * 8 for rate in wanted))  # the kernel counts whole bytes
        if now == wanted:
            return
        share, most = ((_SHARE, wanted.share), (_MAX, wanted.most))
        # drivers check each value against the other one
        for kind, rate in (most, share) if wanted.most >= now.most or not wanted.most else (share, most):
            value = netlink.attribute(kind, struct.pack("=Q", rate // 8))
            self._connection.request(self._family, generic.HEADER.pack(_RATE_SET, 1) + port + value)
        now = self.read(function)
        if now != wanted:
            after = f"{wanted.share} to {wanted.most} were set"
            raise OSError(errno.EIO, f"it reports {now.share} to {now.most} bit/s after {after}")

    def _port(self, function: Function) -> bytes:
        """The attributes that name the port of a virtual function."""
        if not self._family:
            raise OSError(errno.EOPNOTSUPP, "the kernel has no devlink")
        for raw in self._ports():
            named = (netlink.string(raw.get(_BUS, b"")), netlink.string(raw.get(_DEVICE, b"")))
            if named != (function.bus, function.pf) or netlink.number(raw.get(_FLAVOUR, b"")) != _PCI_VF:
                continue
            number = netlink.number(raw[_VF_NUMBER]) if _VF_NUMBER in raw else None
            if number == function.index and not any(raw.get(_EXTERNAL, b"")):
                return _device(function) + netlink.u32(_PORT, netlink.number(raw[_PORT]))
        card = f"{function.bus}/{function.pf}"
        raise OSError(errno.ENODEV, f"{card} has no devlink port for its virtual function {function.index}")

    def _ports(self) -> list[netlink.Attributes]:
        """The ports of all cards, listed once: this object is for one operation."""
        if not self._listed:
            asked = generic.HEADER.pack(_PORT_GET, 1)
            bodies = [body for _unused, body in self._connection.dump(self._family, asked)]
            self._listed = [netlink.attributes(body, generic.HEADER.size) for body in bodies]
        return self._listed

    def _ask(self, command: int, body: bytes) -> netlink.Attributes:
        replies = self._connection.request(self._family, generic.HEADER.pack(command, 1) + body)
        return netlink.attributes(replies[0][1], generic.HEADER.size) if replies else {}


def _device(function: Function) -> bytes:
    return netlink.text(_BUS, function.bus) + netlink.text(_DEVICE, function.pf)
