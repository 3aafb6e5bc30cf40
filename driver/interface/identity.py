# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finding a device's interface, whatever its current name and namespace.

The interface of a PCI function is identified by its parent device and permanent MAC address, which a pod cannot change.
A virtual interface has neither. While it is in a pod, it has the driver's altname. A pod with NET_ADMIN may remove that
altname or set it on another interface. But such a pod cannot create a link of the same kind whose other end is the same
interface outside the pod's namespace. The other end is a veth's peer, or the lower interface of a macvlan or VLAN
(IFLA_LINK, IFLA_LINK_NETNSID). So the other end identifies the interface. The altname decides only if several
interfaces match, as with kinds that have no other end (dummy).
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
    """What identifies an interface: the PCI address of its function (`0000:8a:00.0`) and, if that function has several
    interfaces, the permanent MAC address. On the node, `name` identifies an interface without a PCI function. For one
    with a PCI function, the interface of this name is only the first candidate."""

    address: str | None
    permanent_mac: str | None
    name: str


def tag(identity: Identity) -> str:
    """The altname of a virtual interface while it is not on the node."""
    return f"{host_state.TAG}{identity.name}"


def mark(link: links.Link) -> Mark:
    """What identifies a virtual link while it is in a pod, as JSON for the host state. `space` is the ID that the
    node's namespace has for the namespace of the other end; without that key the other end is on the node."""
    result: Mark = {
        "kind": link.kind,
        "peer": link.number(links.IFLA_LINK),
        "foreign": links.IFLA_LINK_NETNSID in link.raw,
    }
    netnsid = stacked.netnsid(link)
    return result if netnsid is None else {**result, "space": netnsid}


class OtherEnd(t.NamedTuple):
    """Where an interface is, according to the other end of its pair.

    `ifindex` is the interface's index, and `netnsid` the ID that the other end's namespace has for the interface's
    namespace (None: both are in the same one). `peer_netnsid` is the node's ID of the other end's namespace (None: the
    node's own)."""

    ifindex: int
    netnsid: int | None
    peer_netnsid: int | None


def other_end(connection: Netlink, known: Mark) -> OtherEnd | None:
    """Where an interface is, as its other end reports; None if the other end does not exist (any more). Both ends of a
    pair are created and deleted together, and no pod can change what the other end reports. `connection` is on the
    node."""
    if known["kind"] not in stacked.PAIRS or not known["peer"] or (known["foreign"] and "space" not in known):
        return None
    peer = links.get(connection, index=known["peer"], netnsid=known.get("space"))
    if peer is None or peer.kind != known["kind"]:
        return None
    return OtherEnd(peer.number(links.IFLA_LINK), stacked.netnsid(peer), known.get("space"))


def find_elsewhere(
    connection: Netlink, elsewhere: Netlink, descriptor: int, identity: Identity, known: Mark | None
) -> links.Link | None:
    """The interface in a namespace that is neither the node's nor the pod's. `elsewhere` is a connection to that
    namespace, and `descriptor` an open file of that namespace. `connection` is on the node. Raises OSError."""
    if identity.address is not None:
        return find(elsewhere, identity, descriptor)
    if known is None:
        return links.get(elsewhere, altname=tag(identity))
    other = other_end(connection, known)
    if other is not None:
        target = other.peer_netnsid if other.netnsid is not None else None
        netnsid = stacked.get_netnsid(connection, descriptor, target)
        if netnsid is None or netnsid != (other.peer_netnsid if other.netnsid is None else other.netnsid):
            return None
        return links.get(elsewhere, index=other.ifindex)
    if known["kind"] in stacked.PAIRS:
        return None  # the interface was deleted with its other end
    link = links.get(elsewhere, altname=tag(identity))
    return link if link is not None and link.kind == known["kind"] else None


def find(
    connection: Netlink, identity: Identity, netns: Path | int | None, known: Mark | None = None, tagged: bool = False
) -> links.Link | None:
    """The interface in the namespace `netns` (None: the node's); None if it is not there. `known` is the result of
    `mark`, which was called while the interface was on the node.

    A virtual interface has the driver's altname (`tag`) everywhere except on the node before attach and after detach.
    With `tagged`, an interface without that altname is not returned. Raises OSError.
    """
    if identity.address is None:
        if netns is not None:
            return _find_virtual(connection, identity, known)
        by_altname = links.get(connection, altname=tag(identity))
        return by_altname if by_altname is not None or tagged else links.get(connection, name=identity.name)
    parents = _parent_names(identity.address)
    with Ethtool(netns) as tool:
        first = links.get(connection, name=identity.name)
        if first is not None and _matches(first, identity, parents, tool, check_mac=True):
            return first
        listed = links.listed(connection)
        candidates = [link for link in listed if _matches(link, identity, parents, tool, check_mac=False)]
        for link in candidates:
            if identity.permanent_mac and _permanent_mac(link, tool) == identity.permanent_mac:
                return link
    # the permanent address of a virtual function changes with the one that its physical function sets
    return candidates[0] if len(candidates) == 1 else None


def move_tag(connection: Netlink, identity: Identity, link: links.Link) -> None:
    """Give the driver's altname to this interface of a pod, and take it from any other interface. Raises OSError."""
    name = tag(identity)
    other = links.get(connection, altname=name)
    if other is not None and other.index != link.index:
        if other.name == name:
            links.set_link_state(connection, other.index, up=False)
            links.change(connection, other.index, netlink.text(links.IFLA_IFNAME, "dev%d"))
        else:
            links.altnames(connection, other.index, [name], add=False)
    links.altnames(connection, link.index, [name], add=True)


def _find_virtual(connection: Netlink, identity: Identity, known: Mark | None) -> links.Link | None:
    """The virtual interface in a pod; None if it is not there, or if several interfaces match."""
    tagged = links.get(connection, altname=tag(identity))
    if known is None:  # a record of an older driver
        return tagged
    with Netlink() as node:
        if is_on_node(node, identity, known):  # then a similar interface in the pod is another interface
            return None
    same_kind = [link for link in links.listed(connection) if link.kind == known["kind"]]
    if not known["peer"]:
        return tagged if tagged is not None and tagged.kind == known["kind"] else _single(same_kind)
    with_outside_peer = [link for link in same_kind if links.IFLA_LINK_NETNSID in link.raw]
    matches = [link for link in with_outside_peer if link.number(links.IFLA_LINK) == known["peer"]]
    if len(matches) != 1:
        # the other end has moved to another namespace and has another index there, or it is in the pod as well, which
        # is possible only if both ends were on the node
        matches = matches or (with_outside_peer if known["foreign"] else same_kind)
        matches = [link for link in matches if tagged is not None and link.index == tagged.index]
    return _single(matches)


def is_on_node(connection: Netlink, identity: Identity, known: Mark) -> bool:
    """Whether a virtual interface is on the node, with or without the driver's altname."""
    if links.get(connection, altname=tag(identity)) is not None:
        return True
    link = links.get(connection, name=identity.name)
    if link is None:
        return False
    now = mark(link)
    return (now["kind"], now["peer"], now["foreign"]) == (known["kind"], known["peer"], known["foreign"])


def _single(candidates: list[links.Link]) -> links.Link | None:
    return candidates[0] if len(candidates) == 1 else None


def _matches(link: links.Link, identity: Identity, parents: set[str], tool: Ethtool, check_mac: bool) -> bool:
    """Whether a link is an interface of the PCI function; with `check_mac`, it must also have the identity's permanent
    MAC address. `parents` are the possible names of the parent device."""
    # IPoIB interfaces are hardware too, except those of additional partitions
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
    """Whether a link is a representor, that is, a port of a switch inside the device, which has the PF's PCI address
    too.

    Representors have port names such as pf0, pf0vf1 or c1pf0sf88, and uplinks such as p0
    (Documentation/networking/representors.rst).
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
