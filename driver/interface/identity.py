# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which interface is a device's, whatever its name is now and whoever had it meanwhile.

A PCI function's is told by its parent device and permanent MAC address, which nobody in a pod can change. A virtual one
has neither. While it is away it has our altname, which a pod with NET_ADMIN may take off or put on another interface.
What such a pod cannot make is a link of the same kind with the same other end outside of its own namespace: a veth's
peer, or what a macvlan or VLAN is made of (IFLA_LINK, IFLA_LINK_NETNSID). So this decides, and the altname only where
it leaves several, as with kinds that have no other end (dummy).
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

Object = dict[str, t.Any]

PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True)
class Identity:
    """How an interface is found wherever it is: by the PCI address of its function (`0000:8a:00.0`), and where that
    has several interfaces by their permanent MAC address. `name` is that of an interface without a PCI function, on
    the node; for others it is only where to look first."""

    address: str | None
    permanent_mac: str | None
    name: str


def tag(identity: Identity) -> str:
    """The altname of a virtual interface while it is away."""
    return f"{host_state.TAG}{identity.name}"


def mark(link: links.Link) -> Object:
    """What a link is known by in a pod, as JSON for the host state. `space` is the node's number of the namespace that
    its other end is in, where that is not the node's."""
    known: Object = {
        "kind": link.kind,
        "peer": link.number(links.IFLA_LINK),
        "foreign": links.IFLA_LINK_NETNSID in link.raw,
    }
    number = stacked.netnsid(link)
    return known if number is None else {**known, "space": number}


class OtherEnd(t.NamedTuple):
    """What the other end of a pair says of an interface: its index, and the number of the namespace that it is in
    (None: that of the other end), as the namespace of the other end counts; the node knows that one as `space`."""

    ifindex: int
    number: int | None
    space: int | None


def other_end(connection: Netlink, known: Object) -> OtherEnd | None:
    """Asks the other end of an interface where it is; None where there is none, any more or at all. Both ends of a pair
    come and go together, and no pod can change what the other end says. `connection` is on the node."""
    if known["kind"] not in stacked.PAIRS or not known["peer"] or (known["foreign"] and "space" not in known):
        return None
    peer = links.get(connection, index=known["peer"], space=known.get("space"))
    if peer is None or peer.kind != known["kind"]:
        return None
    return OtherEnd(peer.number(links.IFLA_LINK), stacked.netnsid(peer), known.get("space"))


def find_elsewhere(
    connection: Netlink, there: Netlink, descriptor: int, identity: Identity, known: Object | None
) -> links.Link | None:
    """The interface in a namespace that is neither the node's nor its pod's: `there` is a connection to it and
    `descriptor` an open file of it, `connection` is on the node. Raises OSError."""
    if identity.address is not None:
        return find(there, identity, descriptor)
    if known is None:
        return links.get(there, altname=tag(identity))
    told = other_end(connection, known)
    if told is not None:
        where = stacked.namespace_number(connection, descriptor, told.space if told.number is not None else None)
        if where is None or where != (told.space if told.number is None else told.number):
            return None
        return links.get(there, index=told.ifindex)
    if known["kind"] in stacked.PAIRS:
        return None  # it went with its other end
    found = links.get(there, altname=tag(identity))
    return found if found is not None and found.kind == known["kind"] else None


def find(
    connection: Netlink, identity: Identity, netns: Path | int | None, known: Object | None = None, tagged: bool = False
) -> links.Link | None:
    """The interface in one namespace, `netns` or the node's. `known` is what `mark` told of it on the node.

    A virtual one has our tag everywhere but on the node before attach and after detach; `tagged` asks for it only
    while it has that.
    """
    if identity.address is None:
        if netns is not None:
            return _virtual(connection, identity, known)
        found = links.get(connection, altname=tag(identity))
        return found if found is not None or tagged else links.get(connection, name=identity.name)
    parents = _parents(identity.address)
    with Ethtool(netns) as tool:
        first = links.get(connection, name=identity.name)
        if first is not None and _matches(first, identity, parents, tool, sure=True):
            return first
        candidates = [one for one in links.listed(connection) if _matches(one, identity, parents, tool, sure=False)]
        for one in candidates:
            if identity.permanent_mac and _permanent(one, tool) == identity.permanent_mac:
                return one
    # a virtual function's permanent address changes with the one that its physical function gives it
    return candidates[0] if len(candidates) == 1 else None


def hold(connection: Netlink, identity: Identity, link: links.Link) -> None:
    """Have our tag on this interface of a pod, and on no other. Raises OSError."""
    name = tag(identity)
    other = links.get(connection, altname=name)
    if other is not None and other.index != link.index:
        if other.name == name:
            links.set_up(connection, other.index, False)
            links.change(connection, other.index, netlink.text(links.IFLA_IFNAME, "dev%d"))
        else:
            links.altnames(connection, other.index, [name], add=False)
    links.altnames(connection, link.index, [name], add=True)


def _virtual(connection: Netlink, identity: Identity, known: Object | None) -> links.Link | None:
    """A virtual interface in a pod."""
    tagged = links.get(connection, altname=tag(identity))
    if known is None:  # a record of an older driver
        return tagged
    with Netlink() as node:
        if at_home(node, identity, known):  # then whatever looks like it in the pod is another
            return None
    alike = [one for one in links.listed(connection) if one.kind == known["kind"]]
    if not known["peer"]:
        return tagged if tagged is not None and tagged.kind == known["kind"] else _only(alike)
    outside = [one for one in alike if links.IFLA_LINK_NETNSID in one.raw]
    same = [one for one in outside if one.number(links.IFLA_LINK) == known["peer"]]
    if len(same) != 1:
        # the other end went to another namespace meanwhile and has another number there, or it is in the pod as well,
        # which it can only be where both were on the node
        same = same or (outside if known["foreign"] else alike)
        same = [one for one in same if tagged is not None and one.index == tagged.index]
    return _only(same)


def at_home(connection: Netlink, identity: Identity, known: Object) -> bool:
    """Whether a virtual interface is on the node, with our tag or without."""
    if links.get(connection, altname=tag(identity)) is not None:
        return True
    named = links.get(connection, name=identity.name)
    if named is None:
        return False
    now = mark(named)
    return all(now[key] == known[key] for key in ("kind", "peer", "foreign"))


def _only(found: list[links.Link]) -> links.Link | None:
    return found[0] if len(found) == 1 else None


def _matches(link: links.Link, identity: Identity, parents: set[str], tool: Ethtool, sure: bool) -> bool:
    # IPoIB is hardware too, but for the interfaces of further partitions
    if link.kind and (link.kind != "ipoib" or link.number(links.IFLA_LINK) not in (0, link.index)):
        return False
    if (link.parent not in parents) if link.parent else (tool.bus(link.name) not in parents):
        return False
    if _representor(link):
        return False
    return not sure or (identity.permanent_mac is not None and _permanent(link, tool) == identity.permanent_mac)


def _permanent(link: links.Link, tool: Ethtool) -> str:
    return link.permanent_mac or tool.permanent_mac(link.name)


def _representor(link: links.Link) -> bool:
    """Whether it stands for a port of a switch inside the device: it has the PCI address of the physical function.

    Names of such ports: Documentation/networking/representors.rst (pf0, pf0vf1, c1pf0sf88); those of uplinks are p0.
    """
    name = netlink.string(link.raw.get(links.IFLA_PHYS_PORT_NAME, b""))
    return "pf" in name


def _parents(address: str) -> set[str]:
    """The names that the device which an interface belongs to may have: virtio devices stand below their function."""
    try:
        entries = os.listdir(f"{PCI}/{address}")
    except OSError:
        entries = []
    return {address} | {entry for entry in entries if entry.startswith("virtio") and entry[6:].isdigit()}
