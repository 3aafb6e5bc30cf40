# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel events that may change what the node publishes.

A node that runs pods creates and removes virtual interfaces continuously. Those of kinds that pods use are ignored,
unless the settings list them, and so are messages about ports of bridges: if a NIC becomes a port, the kernel also
sends a message about the NIC itself.
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
from ..uplinks.routes import MAX_DEFAULT_PREFIX
from . import links

_GROUPS = 0x1 | 0x40 | 0x400 | 1 << 31  # RTMGRP_LINK, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE, RTNLGRP_NEXTHOP
_LINKS, _ROUTES = (16, 17), (24, 25)  # RTM_NEWLINK, RTM_DELLINK, RTM_NEWROUTE, RTM_DELROUTE
_NEXTHOPS = (104, 105)  # RTM_NEWNEXTHOP, RTM_DELNEXTHOP: may change a default route without an event for the route
_UEVENTS = 1  # the kernel's own group; udev's is 2
_SUBSYSTEMS = (b"net", b"pci", b"infiniband")
_BUFFER_BYTES = 4 << 20
_POD_KINDS = (
    *("veth", "netkit", "macvlan", "macvtap", "ipvlan", "ipvtap"),
    *("tun", "vxlan", "geneve", "ifb", "wireguard", "ipip", "sit", "gre", "nlmon"),
)


class Monitor:
    """Calls `changed` with a reason for each relevant event, in a separate thread; `changed` must return quickly.

    `virtual` returns the name patterns of relevant virtual interfaces. `is_held` returns whether the interface of this
    name belongs to a claim: then its events are ignored, because its moves to a pod and back cause them. The monitor
    watches the network namespace of
    the thread that creates the monitor.
    """

    def __init__(
        self,
        changed: t.Callable[[str], None],
        virtual: t.Callable[[], t.Sequence[str]],
        is_held: t.Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Raises KernelError."""
        self._changed = changed
        self._virtual = virtual
        self._is_held = is_held
        self._stop_reader, self._stop_writer = os.pipe2(os.O_CLOEXEC)
        self._sockets: list[socket.socket] = []
        try:
            for protocol, groups in ((socket.NETLINK_ROUTE, _GROUPS), (15, _UEVENTS)):  # NETLINK_KOBJECT_UEVENT
                opened = socket.socket(
                    socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
                )
                self._sockets.append(opened)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                opened.bind((0, groups))
        except OSError as error:
            self._close()
            raise KernelError("subscribe to the kernel's interface events", error.errno or 0) from error
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.write(self._stop_writer, b"x")
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _close(self) -> None:
        for opened in self._sockets:
            opened.close()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def _run(self) -> None:
        uevents = self._sockets[1]
        sources: list[socket.socket | int] = [*self._sockets, self._stop_reader]
        while True:
            ready, _write, _error = select.select(sources, [], [])
            if self._stop_reader in ready:
                return
            for opened in self._sockets:
                if opened not in ready:
                    continue
                try:
                    data = opened.recv(1 << 16)
                except BlockingIOError:
                    continue
                except OSError:  # ENOBUFS: the socket's buffer overflowed
                    self._changed("netlink messages were lost; reading everything again")
                    continue
                try:
                    reason = _uevent(data, self._is_held) if opened is uevents else self._rtnetlink(data)
                except (struct.error, IndexError):  # other privileged processes can send to this socket, too
                    reason = "a netlink message could not be parsed"
                if reason:
                    self._changed(reason)

    def _rtnetlink(self, data: bytes) -> str:
        """What has changed, according to the netlink messages in `data`; empty if none is relevant."""
        offset = 0
        while offset + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, offset)
            if length < 16:
                break
            body = data[offset + 16 : offset + length]
            offset += (length + 3) & ~3
            if (kind in _ROUTES and body[1] <= MAX_DEFAULT_PREFIX) or kind in _NEXTHOPS:  # rtm_dst_len
                return "a default route has changed"
            if kind in _LINKS and body[0] != socket.AF_BRIDGE:  # ifi_family
                link = links.parse(body)
                listed = any(fnmatch.fnmatchcase(link.name, pattern) for pattern in self._virtual())
                if (listed or link.kind not in _POD_KINDS) and not self._is_held(link.name):
                    return f"interface {link.name} has changed"
        return ""


def _uevent(data: bytes, is_held: t.Callable[[str], bool]) -> str:
    """What has changed, according to a kernel uevent; empty if it is not relevant. A uevent is a header and KEY=value
    strings, separated by NUL bytes."""
    header, *pairs = data.split(b"\0")
    values = dict(pair.partition(b"=")[::2] for pair in pairs)
    subsystem = values.get(b"SUBSYSTEM")
    if subsystem not in _SUBSYSTEMS or b"/virtual/net/" in header or b"/queues/" in header:
        return ""
    name = header.decode(errors="replace").rpartition("@")[2].rpartition("/")[2]
    return "" if subsystem == b"net" and is_held(name) else f"device {name} has changed"
