# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares through macvlan children: traffic classes on the parent interface, which stays on the node."""

from __future__ import annotations

import typing as t

from ..interface.identity import Identity, find
from ..kernel import htb, links
from ..kernel.links import step
from ..kernel.netlink import Netlink


def set_classes(parent: Identity, physical: int, wanted: t.Mapping[int, htb.Class]) -> None:
    """Set the classes of a NIC to `wanted`, which is keyed by minor numbers. `physical` is the NIC's rate in bit/s.

    Without classes, the parent gets the kernel's default qdisc again. Does nothing if the NIC does not exist any more:
    its classes and the interfaces of its shares were removed with it. Raises KernelError."""
    with Netlink() as connection, step(f"divide {parent.name}"):
        link = find(connection, parent, None)
        if link is not None:
            htb.divide(connection, link.index, physical, wanted)


def sent(parent: Identity) -> dict[int, int]:
    """The bytes that the shares of a NIC have sent since their classes were created, by minor number. Raises
    KernelError."""
    with Netlink() as connection, step(f"read the classes of {parent.name}"):
        link = find(connection, parent, None)
        return htb.sent(connection, link.index) if link is not None else {}


def problem(parent: Identity) -> str:
    """Why the driver cannot create classes on a NIC; empty if it can. Raises KernelError."""
    with Netlink() as connection, step(f"look for queueing disciplines of {parent.name}"):
        link = find(connection, parent, None)
        if link is None:
            return "it is not on the node"
        try:
            htb.exists(connection, link.index)
        except htb.ForeignQdisc as error:
            return f"{error.args[1]}, and dividing the NIC would replace it"
    return ""


def indexes(parents: t.Iterable[Identity]) -> dict[Identity, int]:
    """The interface indexes of NICs, without those that are not on the node. Raises KernelError."""
    with Netlink() as connection, step("find the NICs of shares"):
        parent_links = {parent: find(connection, parent, None) for parent in parents}
        return {parent: link.index for parent, link in parent_links.items() if link is not None}


def divided() -> list[links.Link]:
    """The interfaces on the node that have the driver's classes. Raises KernelError."""
    with Netlink() as connection, step("list the interfaces that the driver divides"):
        divided_links = [links.get(connection, index=index) for index in htb.interfaces(connection)]
        return [link for link in divided_links if link is not None]


def restore(link: links.Link) -> None:
    """Remove the driver's classes from an interface. Raises KernelError."""
    with Netlink() as connection, step(f"remove the classes of {link.name}"):
        htb.remove(connection, link.index)
