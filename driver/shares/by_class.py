# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares by macvlan children: classes on the parent interface, which stays on the node."""

from __future__ import annotations

import typing as t

from ..interface.identity import Identity, find
from ..kernel import htb, links
from ..kernel.links import step
from ..kernel.netlink import Netlink


def set_classes(parent: Identity, physical: int, wanted: t.Mapping[int, htb.Class]) -> None:
    """Set the classes of a NIC to `wanted`, by their minor numbers. Without classes, the parent gets the kernel's
    default qdisc again. If the NIC is gone, its classes and its shares' interfaces are gone, too. Raises
    KernelError."""
    with Netlink() as connection, step(f"divide {parent.name}"):
        link = find(connection, parent, None)
        if link is not None:
            htb.divide(connection, link.index, physical, wanted)


def sent(parent: Identity) -> dict[int, int]:
    """The bytes that the shares of a NIC have sent since their classes were made. Raises KernelError."""
    with Netlink() as connection, step(f"read the classes of {parent.name}"):
        link = find(connection, parent, None)
        return htb.sent(connection, link.index) if link is not None else {}


def problem(parent: Identity) -> str:
    """Why a NIC cannot have classes; empty if it can. Raises KernelError."""
    with Netlink() as connection, step(f"look for queueing disciplines of {parent.name}"):
        link = find(connection, parent, None)
        if link is None:
            return "it is not on the node"
        try:
            htb.exists(connection, link.index)
        except htb.ForeignQdisc as error:
            return f"{error.args[1]}; dividing the NIC would replace it"
    return ""


def divided() -> list[links.Link]:
    """The interfaces on the node that have the driver's classes. Raises KernelError."""
    with Netlink() as connection, step("list the interfaces that are divided"):
        found = [links.get(connection, index=index) for index in htb.interfaces(connection)]
        return [link for link in found if link is not None]


def restore(link: links.Link) -> None:
    """Remove the driver's classes from an interface. Raises KernelError."""
    with Netlink() as connection, step(f"remove the classes of {link.name}"):
        htb.remove(connection, link.index)
