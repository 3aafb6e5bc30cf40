# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Child interfaces for a pod, whose parent stays on the node: macvlan and ipvlan."""

from __future__ import annotations

import errno
import os
import typing as t
from pathlib import Path

from ..base.objects import ObjectView
from ..kernel import links, netlink, stacked
from ..kernel.links import step
from ..kernel.netlink import Netlink
from .host_state import HostState
from .identity import Identity, find
from .wanted import name_of

_MACVLAN = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
_IPVLAN = {"l2": 0, "l3": 1, "l3s": 2}


def make(identity: Identity, config: ObjectView, netns: Path, name: str, attributes: t.Iterable[bytes]) -> int:
    """Create a macvlan or ipvlan with these attributes in the pod's namespace. The parent stays on the node and is set
    up. Returns the child's index."""
    child = config["child"]
    kind = child["type"]
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            parent = find(outside, identity, None)
            if parent is None:
                raise OSError(errno.ENODEV, "not found")
        with step(f"set {parent.name} up"):
            if not parent.up:
                links.set_up(outside, parent.index, True)
        if kind == "macvlan":
            mode = netlink.u32(1, _MACVLAN[child.get("mode", "bridge")])
        else:
            mode = netlink.u16(1, _IPVLAN[child.get("mode", "l2")])
        info = netlink.nest(
            links.IFLA_LINKINFO,
            netlink.text(links.IFLA_INFO_KIND, kind),
            netlink.nest(links.IFLA_INFO_DATA, mode),
        )
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with step(f"create the {kind} {name} of {parent.name} in the pod"):
                body = links.header() + netlink.u32(links.IFLA_LINK, parent.index)
                body += netlink.text(links.IFLA_IFNAME, name) + netlink.u32(links.IFLA_NET_NS_FD, descriptor)
                body += b"".join(attributes) + info
                try:
                    outside.request(links.RTM_NEWLINK, body, netlink.CREATE | netlink.EXCLUSIVE)
                except OSError as error:
                    if error.errno != errno.EEXIST or get(netns, config, name, parent) is None:
                        raise
                found = get(netns, config, name, parent)
                if found is None:
                    raise OSError(errno.ENODEV, "it did not appear")
        finally:
            os.close(descriptor)
    return found.index


def get(netns: Path, config: ObjectView, name: str, parent: links.Link | None = None) -> links.Link | None:
    """The child in a pod, of this parent or of any; None if there is none."""
    with Netlink(netns) as connection:
        link = links.get(connection, name=name)
    if link is None or link.kind != config["child"]["type"]:
        return None
    return link if parent is None or link.number(links.IFLA_LINK) == parent.index else None


def remove(identity: Identity, host: HostState, netns: Path | None, config: ObjectView) -> None:
    """Remove the child and all other upper interfaces that the pod created on its parent. Those in other namespaces
    stay: they may belong to the node, other claims or other programs."""
    name = name_of(config, host["name"])
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            parent = find(outside, identity, None)
        if netns is not None:
            with step(f"remove {name} from the pod"):
                link = get(netns, config, name, parent)
                with Netlink(netns) as inside:
                    if link is not None:
                        links.delete(inside, link.index)
                    if parent is not None:
                        stacked.end_inside(inside, parent, from_node=True)
        if parent is not None and parent.up and not host["up"]:
            with step(f"set {parent.name} down, as it was before"):
                says, _uppers = stacked.lasting(
                    outside, parent
                )  # those of the pod may be about to end with its namespace
                if not says:
                    links.set_up(outside, parent.index, False)
