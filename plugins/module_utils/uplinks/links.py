# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Links: the kind of each link, and the lower links that its packets pass.

Numbers are those of linux/rtnetlink.h, linux/if_link.h, linux/if_tunnel.h and linux/veth.h.
"""

from __future__ import annotations

import os
import socket
import struct
import typing as t
from dataclasses import dataclass, field

from . import netlink

RTM_GETLINK = 18
_IFNAME, _LINK, _MASTER, _LINKINFO, _EXT_MASK, _LINK_NETNSID = 3, 5, 10, 18, 29, 37
_INFO_KIND, _INFO_DATA = 1, 2
_SKIP_STATS = 8
_IFF_LOOPBACK = 0x8
_IFINFO = struct.Struct("=BxHiII")
#: IFLA_HSR_SLAVE1, IFLA_HSR_SLAVE2
_HSR_PORTS = (1, 2)

#: The kind of an interface that Open vSwitch created: the interface of a bridge, an internal port, or the interface of
#: the whole switch (net/openvswitch/vport-internal_dev.c). The master of every port is the interface of the whole
#: switch (ovs_netdev_link in net/openvswitch/vport-netdev.c): rtnetlink does not report to which bridge the port
#: belongs.
OPEN_VSWITCH = "openvswitch"
#: Kinds whose ports may belong to guests and overlays.
SWITCHES = ("bridge", OPEN_VSWITCH)
#: Kinds that do not encapsulate packets, or for which the kernel reports the lower links.
_NOT_TUNNELS = {
    *("", "bond", "bridge", "dsa", "dummy", "failover", "hsr", "ifb", "ipoib", "ipvlan", "ipvtap", "macsec", "macvlan"),
    *("macvtap", "net_failover", "netdevsim", "nlmon", "rmnet", "team", "veth", "virt_wifi", "vlan", "vrf", "batadv"),
    *(OPEN_VSWITCH, "netkit", "lowpan", "vcan", "vxcan", "can"),
}


@dataclass(frozen=True)
class Link:
    """One link of a network namespace. `master` and `lower_or_peer` are indexes, 0 for none; `data` is
    IFLA_INFO_DATA."""

    index: int
    name: str
    kind: str = ""  # veth, vlan ..., empty for hardware
    master: int = 0
    lower_or_peer: int = 0  # the parent of a VLAN or macvlan; of a veth its other end
    data: netlink.Attributes = field(default_factory=dict)
    loopback: bool = False

    @property
    def is_tunnel(self) -> bool:
        """Whether the link encapsulates its packets in other packets, which are routed separately."""
        return self.kind not in _NOT_TUNNELS


def parse(body: bytes) -> Link:
    """A link from the body of RTM_NEWLINK. Raises struct.error if it is truncated."""
    _unused, _unused, index, flags, _unused = _IFINFO.unpack_from(body)
    raw = netlink.attributes(body, _IFINFO.size)
    info = netlink.attributes(raw.get(_LINKINFO, b""))
    lower_or_peer = netlink.number(raw.get(_LINK, b""))
    return Link(
        index=index,
        name=netlink.string(raw.get(_IFNAME, b"")),
        kind=netlink.string(info.get(_INFO_KIND, b"")),
        master=netlink.number(raw.get(_MASTER, b"")),
        lower_or_peer=0 if lower_or_peer == index or _LINK_NETNSID in raw else lower_or_peer,
        data=netlink.attributes(info.get(_INFO_DATA, b"")),
        loopback=bool(flags & _IFF_LOOPBACK),
    )


def listed(kernel: netlink.Connection) -> dict[int, Link]:
    """All links of the connection's namespace by index. Raises OSError."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + netlink.u32(_EXT_MASK, _SKIP_STATS)
    all_links = (parse(reply) for _unused, reply in kernel.dump(RTM_GETLINK, body))
    return {link.index: link for link in all_links}


class Stack:
    """The lower links of each link of a namespace; `sys` is the mount point of sysfs."""

    def __init__(self, links: t.Mapping[int, Link], sys: str = "/sys") -> None:
        self.links = links
        self._sys = sys
        self._names = {link.name: link.index for link in links.values()}
        self._ports: dict[int, list[int]] = {}
        for link in links.values():
            if link.master:
                self._ports.setdefault(link.master, []).append(link.index)
        self._switches = [link.index for link in links.values() if link.kind == OPEN_VSWITCH]

    def below(self, link: Link) -> list[Link]:
        """The links directly below `link` that its packets pass."""
        paired = link.kind in ("veth", "netkit")
        indexes = [] if paired else [link.lower_or_peer]
        if link.kind == OPEN_VSWITCH:
            indexes += [port for switch in self._switches for port in self._ports.get(switch, ())]
        else:
            indexes += self._ports.get(link.index, ())
        if link.kind == "hsr":
            indexes += [netlink.number(link.data.get(kind, b"")) for kind in _HSR_PORTS]
        if paired:  # the peer is not part of the path, unless it is the port of a bridge
            other = self.links.get(link.lower_or_peer)
            indexes += [other.index, other.master] if other and other.master else []
        indexes += [self._names[name] for name in self._parents(link.name) if name in self._names]
        return [self.links[index] for index in dict.fromkeys(indexes) if index in self.links and index != link.index]

    def kind(self, index: int) -> str:
        """The kind of a link; empty for hardware and for an unknown link."""
        return self.links[index].kind if index in self.links else ""

    def index(self, name: str) -> int:
        """The index of the link of this name; 0 if there is none."""
        return self._names.get(name, 0)

    def _parents(self, name: str) -> list[str]:
        """The names of the interfaces of a VF's PF, or of the function to which a subfunction belongs."""
        device = f"{self._sys}/class/net/{name}/device"
        names: list[str] = []
        for folder in (f"{device}/physfn/net", f"{os.path.realpath(device)}/../net"):
            try:
                names += os.listdir(folder)
            except OSError:
                continue
        return names
