# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""News from the kernel that may change what the node publishes.

A node that runs pods makes and removes interfaces all the time. Of those that are software only, just the ones that the
settings name are of interest, and those that others stand on.
"""

from __future__ import annotations

import fnmatch
import os
import select
import socket
import struct
import threading
import typing as t

from ..base.errors import KernelError
from ..uplinks.routes import SHORT
from . import links

_GROUPS = 0x1 | 0x40 | 0x400 | 1 << 31  # RTMGRP_LINK, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE, RTNLGRP_NEXTHOP
_LINKS, _ROUTES = (16, 17), (24, 25)  # RTM_NEWLINK, RTM_DELLINK, RTM_NEWROUTE, RTM_DELROUTE
_NEXTHOPS = (104, 105)  # RTM_NEWNEXTHOP, RTM_DELNEXTHOP: a default route may go by it, and is not told of
_UEVENTS = 1  # the kernel's own group; udev's is 2
_SUBSYSTEMS = (b"net", b"pci", b"infiniband")
_BUFFER = 4 << 20
_POD_KINDS = ("veth", "macvlan", "ipvlan", "tun", "vxlan", "geneve", "ifb", "wireguard", "ipip", "sit", "gre", "nlmon")


class Monitor:
    """Calls `changed` with a reason for each event of interest, in a thread of its own; `changed` must be quick.

    `virtual` gives the patterns of software interfaces that are of interest, `held` says whether an interface of this
    name belongs to a claim: what it does on its way to a pod and back is no news. It watches the network namespace of
    the thread that makes it.
    """

    def __init__(
        self,
        changed: t.Callable[[str], None],
        virtual: t.Callable[[], t.Sequence[str]],
        held: t.Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Raises KernelError."""
        self._changed = changed
        self._virtual = virtual
        self._held = held
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC)
        self._sockets: list[socket.socket] = []
        try:
            for protocol, groups in ((socket.NETLINK_ROUTE, _GROUPS), (15, _UEVENTS)):  # NETLINK_KOBJECT_UEVENT
                opened = socket.socket(
                    socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
                )
                self._sockets.append(opened)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                opened.bind((0, groups))
        except OSError as error:
            self._close()
            raise KernelError("listen to the kernel's news of interfaces", error.errno or 0) from error
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.write(self._woken, b"x")
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _close(self) -> None:
        for opened in self._sockets:
            opened.close()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        uevents = self._sockets[1]
        waited: list[t.Any] = [*self._sockets, self._wake]
        while True:
            ready, _write, _error = select.select(waited, [], [])
            if self._wake in ready:
                return
            for opened in ready:
                try:
                    data = opened.recv(1 << 16)
                except BlockingIOError:
                    continue
                except OSError:  # ENOBUFS: there was more news than room, and some are lost
                    self._changed("news of the kernel were lost")
                    continue
                try:
                    reason = _uevent(data, self._held) if opened is uevents else self._rtnetlink(data)
                except (struct.error, IndexError):  # others with rights on the node's network can write to us as well
                    reason = "news that cannot be read"
                if reason:
                    self._changed(reason)

    def _rtnetlink(self, data: bytes) -> str:
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if length < 16:
                break
            body = data[at + 16 : at + length]
            at += (length + 3) & ~3
            if (kind in _ROUTES and body[1] <= SHORT) or kind in _NEXTHOPS:  # rtm_dst_len
                return "a default route has changed"
            if kind in _LINKS:
                link = links.parse(body)
                ours = any(fnmatch.fnmatchcase(link.name, pattern) for pattern in self._virtual())
                if (ours or link.kind not in _POD_KINDS) and not self._held(link.name):
                    return f"interface {link.name} has changed"
        return ""


def _uevent(data: bytes, held: t.Callable[[str], bool]) -> str:
    """A kernel uevent: a header and KEY=value strings with zero bytes between them."""
    header, *pairs = data.split(b"\0")
    values = dict(pair.partition(b"=")[::2] for pair in pairs)
    subsystem = values.get(b"SUBSYSTEM")
    if subsystem not in _SUBSYSTEMS or b"/virtual/net/" in header or b"/queues/" in header:
        return ""
    name = header.decode(errors="replace").rpartition("@")[2].rpartition("/")[2]
    return "" if subsystem == b"net" and held(name) else f"device {name} has changed"
