# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Child interfaces for a pod, whose parent stays on the node: macvlan and ipvlan.

A pod with NET_ADMIN and without a user namespace can move its child, and what it made on it, to another namespace. So
when a claim ends, all namespaces are searched for upper interfaces of the parent. The claim's own child is removed
wherever it is. The kernel does not report who created the others. Unless they belong to the node or to another claim,
or existed before the claim, the parent is withheld until they are gone.
"""

from __future__ import annotations

import errno
import os
import typing as t
from pathlib import Path

from ..base.objects import ObjectView
from ..kernel import links, netlink, node_namespaces, stacked
from ..kernel import netns as namespaces
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import host_state
from .host_state import HostState
from .identity import Identity, find
from .network_config import pod_interface_name

_MACVLAN = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
_IPVLAN = {"l2": 0, "l3": 1, "l3s": 2}
_UNLISTED = "in a network namespace that no process or mount refers to"

#: The children of the same parent that other claims have: their indexes by the namespaces of their pods; 0 for a child
#: whose index is not recorded.
Siblings = t.Mapping[node_namespaces.Key, t.Collection[int]]


def make(
    identity: Identity, host: HostState, config: ObjectView, netns: Path, name: str, attributes: t.Iterable[bytes]
) -> int:
    """Create a macvlan or ipvlan with these attributes in the pod's namespace. The parent stays on the node and is set
    up. Adds what identifies the child to the host state, and returns the child's index."""
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
            known: host_state.Child = {"received": sorted(stacked.received(outside, parent))}
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
    host[host_state.CHILD] = {**known, "index": found.index, "mac": found.mac}
    return found.index


def get(netns: Path, config: ObjectView, name: str, parent: links.Link | None = None) -> links.Link | None:
    """The child in a pod, of this parent or of any; None if there is none."""
    with Netlink(netns) as connection:
        link = links.get(connection, name=name)
    if link is None or link.kind != config["child"]["type"]:
        return None
    return link if parent is None or link.number(links.IFLA_LINK) == parent.index else None


def remove(
    identity: Identity,
    host: HostState,
    netns: Path | None,
    config: ObjectView,
    siblings: Siblings | None = None,
    patience: float = node_namespaces.DESTRUCTION_SECONDS,
) -> str:
    """Remove the child. With `siblings`, also remove other upper interfaces of its parent in the pod, unless they are
    another claim's, and look for such interfaces in other namespaces. Returns why the parent must be withheld; empty if
    it need not be."""
    name = pod_interface_name(config, host["name"])
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            parent = find(outside, identity, None)
        if netns is not None:
            with step(f"remove {name} from the pod"):
                _remove_inside(netns, parent, host, config, siblings)
        if parent is None:
            return ""
        with step(f"look for upper interfaces of {parent.name}"):
            reason = "" if siblings is None else _remaining_uppers(outside, parent, host, config, siblings, patience)
        if parent.up and not host["up"] and not reason:
            with step(f"set {parent.name} down again"):
                # upper interfaces in the pod may be about to end with its namespace
                used, _uppers = stacked.lasting_evidence(outside, parent)
                if not used:
                    links.set_up(outside, parent.index, False)
        if not reason:
            return ""
        return f"{parent.name}: {reason}, so a pod whose claim has ended could still use its addresses"


def _remove_inside(
    netns: Path, parent: links.Link | None, host: HostState, config: ObjectView, siblings: Siblings | None
) -> None:
    """Remove the child from the pod, whatever its name is now. With `siblings` also other upper interfaces of its
    parent, unless another claim has them, or may have them because the index of its child is not recorded."""
    child = get(netns, config, pod_interface_name(config, host["name"]), parent)
    others = siblings.get(namespaces.identity(netns), ()) if siblings is not None else (0,)
    ours = {child.index} if child else set()
    with Netlink(netns) as connection:
        if parent is not None:
            here = {one.index for one in stacked.inside(connection, parent, from_node=True)}
            ours |= here & {host.get(host_state.CHILD, {}).get("index", 0)} if 0 in others else here
        for index in sorted(ours - set(others)):
            links.delete(connection, index)


def _remaining_uppers(
    outside: Netlink, parent: links.Link, host: HostState, config: ObjectView, siblings: Siblings, patience: float
) -> str:
    """Remove the child wherever it is now, and look for other upper interfaces of its parent, until there are none or
    `patience` seconds are over. Returns who has some, as a short text."""
    reason = ""
    for _turn in node_namespaces.attempts(patience):
        if parent.master or not stacked.evidence(outside, parent):
            return ""
        here = stacked.list_uppers(outside, parent)
        own = [one for one in here if _is_own_child(one, host, config, siblings)]
        if own:
            stacked.remove(outside, own)
            here = stacked.list_uppers(outside, parent)
        reason = _unknown_uppers(outside, parent, host, here, siblings)
        if not reason:
            break
    return reason


def _is_own_child(one: stacked.Upper, host: HostState, config: ObjectView, siblings: Siblings) -> bool:
    """Whether an upper interface of the parent is the claim's child: no two macvlans of a parent that are up have the
    same MAC address. An ipvlan has the address of its parent, so it cannot be distinguished from another ipvlan."""
    mac = host.get(host_state.CHILD, {}).get("mac")
    if not mac or one.mac != mac or one.kind != config["child"]["type"] or one.kind != "macvlan":
        return False
    if stacked.mark_of(one) in host.get(host_state.UPPERS, ()):
        return False
    others = siblings.get(one.key, ()) if one.key else ()
    return one.ifindex not in others and 0 not in others


def _unknown_uppers(
    outside: Netlink, parent: links.Link, host: HostState, here: t.Sequence[stacked.Upper], siblings: Siblings
) -> str:
    """Who has upper interfaces of the parent that are neither the node's nor another claim's, and did not exist before
    the claim's child; empty if nobody has any. `here` are those that can be listed."""
    before = host.get(host_state.UPPERS, ())
    strange = [str(one) for one in here if one.key and one.key not in siblings and stacked.mark_of(one) not in before]
    if strange:
        return f"{', '.join(strange[:4])} uses it"
    if not here:
        reason = stacked.evidence(outside, parent)
        return f"{reason}, {_UNLISTED}" if reason else ""
    child = host.get(host_state.CHILD)
    if child is None:  # it was not made, or an older driver made it
        return ""
    known = {mac for one in here for mac in (one.mac, *one.received)}
    hidden = stacked.received(outside, parent) - known - set(child["received"])
    return f"it receives for {min(hidden)}, which is not the address of a listed interface" if hidden else ""
