# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Putting a pod's interface into a VRF. Numbers are those of linux/if_link.h."""

from __future__ import annotations

import errno

from ..base.objects import ObjectView
from . import links, netlink
from .links import step
from .netlink import Netlink

_TABLE = 1


def join(connection: Netlink, index: int, vrf: ObjectView) -> None:
    """Put the interface into the VRF with this `name` and `table`, and create the VRF if it does not exist. Raises
    KernelError."""
    with step(f"create the VRF {vrf['name']}"):
        master = links.get(connection, name=vrf["name"])
        if master is None:
            info = netlink.nest(
                links.IFLA_LINKINFO,
                netlink.text(links.IFLA_INFO_KIND, "vrf"),
                netlink.nest(links.IFLA_INFO_DATA, netlink.u32(_TABLE, vrf["table"])),
            )
            body = links.header(0, links.IFF_UP, links.IFF_UP) + netlink.text(links.IFLA_IFNAME, vrf["name"]) + info
            connection.request(links.RTM_NEWLINK, body, netlink.CREATE | netlink.EXCLUSIVE)
            master = links.get(connection, name=vrf["name"])
        if master is None or master.kind != "vrf" or _table(master) != vrf["table"]:
            raise OSError(errno.EEXIST, f"the pod's {vrf['name']} is not a VRF with table {vrf['table']}")
    with step(f"put the interface in the VRF {vrf['name']}"):
        links.set_link_state(connection, master.index, up=True)
        links.change(connection, index, netlink.u32(links.IFLA_MASTER, master.index))


def _table(link: links.Link) -> int:
    info = netlink.attributes(link.raw.get(links.IFLA_LINKINFO, b""))
    return netlink.number(netlink.attributes(info.get(links.IFLA_INFO_DATA, b"")).get(_TABLE, b""))
