# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finding a device's interface, whatever its current name and namespace.

The interface of a PCI function is identified by its parent device and permanent MAC address, which a pod cannot change.
A virtual interface has neither. While it is in a pod it has the driver's altname, which a pod with NET_ADMIN may remove
or set on another interface. But such a pod cannot create a link of the same kind with the same other end outside its
own namespace: a veth's peer, or the lower interface of a macvlan or VLAN (IFLA_LINK, IFLA_LINK_NETNSID). So the other
end decides, and the altname only if several interfaces match, as with kinds that have no other end (dummy).
"""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..kernel import links, netlink, stacked
from ..kernel.ethtool import Ethtool
from ..kernel.netlink import Netlink
from . import host_state
from .host_state import Mark

PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True)
class Identity:
    """What identifies an interface: the PCI address of its function (`0000:8a:00.0`) and, if that has several
    interfaces, the permanent MAC address. `name` identifies an interface without a PCI function on the node; otherwise
    the interface of this name is only checked first."""

    address: str | None
    permanent_mac: str | None
    name: str


def tag(identity: Identity) -> str:
    """The altname of a virtual interface while it is not on the node."""
    return f"{host_state.TAG}{identity.name}"


def mark(link: links.Link) -> Mark:
    """What identifies a virtual link in a pod, as JSON for the host state. `space` is the node's ID of the namespace of
    its other end, if that is not the node's."""
    known: Mark = {
        "kind": link.kind,
        "peer": link.number(links.IFLA_LINK),
        "foreign": links.IFLA_LINK_NETNSID in link.raw,
    }
    number = stacked.netnsid(link)
    return known if number is None else {**known, "space": number}


class OtherEnd(t.NamedTuple):
    """Where an interface is according to the other end of its pair: its index, and the ID that the other end's
    namespace has for its namespace (None: the same one). `space` is the node's ID of the other end's namespace."""

    ifindex: int
    number: int | None
    space: int | None


def other_end(connection: Netlink, known: Mark) -> OtherEnd | None:
    """Reads from the other end of an interface where it is; None if there is no other end (any more). Both ends of a
    pair are created and deleted together, and no pod can change what the other end reports. `connection` is on the
    node."""
    if known["kind"] not in stacked.PAIRS or not known["peer"] or (known["foreign"] and "space" not in known):
        return None
    peer = links.get(connection, index=known["peer"], space=known.get("space"))
    if peer is None or peer.kind != known["kind"]:
        return None
    return OtherEnd(peer.number(links.IFLA_LINK), stacked.netnsid(peer), known.get("space"))


def find_elsewhere(
    connection: Netlink, there: Netlink, descriptor: int, identity: Identity, known: Mark | None
) -> links.Link | None:
    """The interface in a namespace that is neither the node's nor its pod's. `there` is a connection to that namespace
    and `descriptor` an open file of it; `connection` is on the node. Raises OSError."""
    if identity.address is not None:
        return find(there, identity, descriptor)
    if known is None:
        return links.get(there, altname=tag(identity))
    other = other_end(connection, known)
    if other is not None:
        where = stacked.namespace_number(connection, descriptor, other.space if other.number is not None else None)
        if where is None or where != (other.space if other.number is None else other.number):
            return None
        return links.get(there, index=other.ifindex)
    if known["kind"] in stacked.PAIRS:
        return None  # it was deleted with its other end
    found = links.get(there, altname=tag(identity))
    return found if found is not None and found.kind == known["kind"] else None


def find(
    connection: Netlink, identity: Identity, netns: Path | int | None, known: Mark | None = None, tagged: bool = False
) -> links.Link | None:
    """The interface in one namespace, `netns` or the node's. `known` is the result of `mark` on the node.

    A virtual interface has the driver's tag everywhere except on the node before attach and after detach; with `tagged`
    it is found only with the tag.
    """
    if identity.address is None:
        if netns is not None:
            return _find_virtual(connection, identity, known)
        found = links.get(connection, altname=tag(identity))
        return found if found is not None or tagged else links.get(connection, name=identity.name)
    parents = _parent_names(identity.address)
    with Ethtool(netns) as tool:
        first = links.get(connection, name=identity.name)
        if first is not None and _matches(first, identity, parents, tool, check_mac=True):
            return first
        listed = links.listed(connection)
        candidates = [one for one in listed if _matches(one, identity, parents, tool, check_mac=False)]
        for one in candidates:
            if identity.permanent_mac and _permanent_mac(one, tool) == identity.permanent_mac:
                return one
    # a virtual function's permanent address follows the one that its physical function sets
    return candidates[0] if len(candidates) == 1 else None


def move_tag(connection: Netlink, identity: Identity, link: links.Link) -> None:
    """Put the driver's tag on this interface of a pod, and remove it from any other. Raises OSError."""
    name = tag(identity)
    other = links.get(connection, altname=name)
    if other is not None and other.index != link.index:
        if other.name == name:
            links.set_up(connection, other.index, False)
            links.change(connection, other.index, netlink.text(links.IFLA_IFNAME, "dev%d"))
        else:
            links.altnames(connection, other.index, [name], add=False)
    links.altnames(connection, link.index, [name], add=True)


def _find_virtual(connection: Netlink, identity: Identity, known: Mark | None) -> links.Link | None:
    """Find a virtual interface in a pod."""
    tagged = links.get(connection, altname=tag(identity))
    if known is None:  # a record of an older driver
        return tagged
    with Netlink() as node:
        if is_on_node(node, identity, known):  # so a similar interface in the pod is a different one
            return None
    alike = [one for one in links.listed(connection) if one.kind == known["kind"]]
    if not known["peer"]:
        return tagged if tagged is not None and tagged.kind == known["kind"] else _single(alike)
    outside = [one for one in alike if links.IFLA_LINK_NETNSID in one.raw]
    same = [one for one in outside if one.number(links.IFLA_LINK) == known["peer"]]
    if len(same) != 1:
        # the other end has moved to another namespace and has another index there, or it is in the pod as well, which
        # is possible only if both were on the node
        same = same or (outside if known["foreign"] else alike)
        same = [one for one in same if tagged is not None and one.index == tagged.index]
    return _single(same)


def is_on_node(connection: Netlink, identity: Identity, known: Mark) -> bool:
    """Whether a virtual interface is on the node, with or without the driver's tag."""
    if links.get(connection, altname=tag(identity)) is not None:
        return True
    named = links.get(connection, name=identity.name)
    if named is None:
        return False
    now = mark(named)
    return (now["kind"], now["peer"], now["foreign"]) == (known["kind"], known["peer"], known["foreign"])


def _single(found: list[links.Link]) -> links.Link | None:
    return found[0] if len(found) == 1 else None


def _matches(link: links.Link, identity: Identity, parents: set[str], tool: Ethtool, check_mac: bool) -> bool:
    """Whether a link is an interface of the PCI function; if `check_mac`, also with the identity's permanent MAC
    address."""
    # IPoIB is hardware, too, except for interfaces of additional partitions
    if link.kind and (link.kind != "ipoib" or link.number(links.IFLA_LINK) not in (0, link.index)):
        return False
    if (link.parent not in parents) if link.parent else (tool.bus(link.name) not in parents):
        return False
    if _is_representor(link):
        return False
    if not check_mac:
        return True
    return identity.permanent_mac is not None and _permanent_mac(link, tool) == identity.permanent_mac


def _permanent_mac(link: links.Link, tool: Ethtool) -> str:
    return link.permanent_mac or tool.permanent_mac(link.name)


def _is_representor(link: links.Link) -> bool:
    """Whether it is a representor, the port of a switch inside the device: it has the PF's PCI address, too.

    Port names of representors: Documentation/networking/representors.rst (pf0, pf0vf1, c1pf0sf88); uplinks are p0.
    """
    name = netlink.string(link.raw.get(links.IFLA_PHYS_PORT_NAME, b""))
    return "pf" in name


def _parent_names(address: str) -> set[str]:
    """The possible names of an interface's parent device: virtio devices are children of their PCI function."""
    try:
        entries = os.listdir(f"{PCI}/{address}")
    except OSError:
        entries = []
    return {address} | {entry for entry in entries if entry.startswith("virtio") and entry[6:].isdigit()}
