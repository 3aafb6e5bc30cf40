# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Child interfaces (macvlan, ipvlan) that are created in a pod while their parent interface stays on the node.

A pod with NET_ADMIN and without a user namespace can move its child interface to another namespace, and also interfaces
that it created on top of the child. So when a claim ends, all namespaces are searched for upper interfaces of the
parent. The claim's own child is removed wherever it is. The kernel does not report who created the others. Unless they
belong to the node or to another claim, or existed before the claim, the parent is withheld until they are gone.
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

#: The children that other claims have on the same parent: interface indexes by the namespace of the pod. The index is 0
#: if the claim's record does not contain it.
Siblings = t.Mapping[node_namespaces.Key, t.Collection[int]]


def create(
    identity: Identity, host: HostState, config: ObjectView, netns: Path, name: str, attributes: t.Iterable[bytes]
) -> int:
    """Create a macvlan or ipvlan with these attributes in the pod's namespace. The parent stays on the node and is
    brought up. Stores the identity of the child in `host` and returns the child's index. Raises KernelError."""
    child = config["child"]
    kind = child["type"]
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            parent = find(outside, identity, None)
            if parent is None:
                raise OSError(errno.ENODEV, "not found")
        with step(f"bring {parent.name} up"):
            if not parent.up:
                links.set_link_state(outside, parent.index, up=True)
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
                created = get(netns, config, name, parent)
                if created is None:
                    raise OSError(errno.ENODEV, "the kernel reported success, but there is no such interface")
        finally:
            os.close(descriptor)
    host[host_state.CHILD] = {**known, "index": created.index, "mac": created.mac}
    return created.index


def get(netns: Path, config: ObjectView, name: str, parent: links.Link | None = None) -> links.Link | None:
    """The child in a pod, of the given parent or of any parent; None if there is none."""
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
    timeout: float = node_namespaces.DESTRUCTION_SECONDS,
) -> str:
    """Remove the child. With `siblings`, also remove other upper interfaces of the parent in the pod, unless they
    belong to another claim, and look for such interfaces in other namespaces for up to `timeout` seconds. Returns why
    the parent must be withheld; empty if there is no reason. Raises KernelError."""
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
            reason = "" if siblings is None else _remaining_uppers(outside, parent, host, config, siblings, timeout)
        if parent.up and not host["up"] and not reason:
            with step(f"bring {parent.name} down again"):
                # the kernel may be about to destroy upper interfaces together with the pod's namespace
                used, _uppers = stacked.lasting_evidence(outside, parent)
                if not used:
                    links.set_link_state(outside, parent.index, up=False)
        if not reason:
            return ""
        return f"{parent.name}: {reason}, so a pod whose claim has ended could still use its addresses"


def _remove_inside(
    netns: Path, parent: links.Link | None, host: HostState, config: ObjectView, siblings: Siblings | None
) -> None:
    """Remove the child from the pod, whatever its current name. With `siblings`, also remove other upper interfaces of
    the parent. Those of other claims stay, and all stay if the index of another claim's child is not recorded."""
    child = get(netns, config, pod_interface_name(config, host["name"]), parent)
    other_claims = siblings.get(namespaces.identity(netns), ()) if siblings is not None else (0,)
    removed = {child.index} if child else set()
    with Netlink(netns) as connection:
        if parent is not None:
            uppers = {link.index for link in stacked.inside(connection, parent, from_node=True)}
            removed |= uppers & {host.get(host_state.CHILD, {}).get("index", 0)} if 0 in other_claims else uppers
        for index in sorted(removed - set(other_claims)):
            links.delete(connection, index)


def _remaining_uppers(
    outside: Netlink, parent: links.Link, host: HostState, config: ObjectView, siblings: Siblings, timeout: float
) -> str:
    """Remove the child wherever it is now, and look for other upper interfaces of the parent, until there are none or
    `timeout` seconds have passed. Returns what uses the parent, as a short text."""
    reason = ""
    for _attempt in node_namespaces.attempts(timeout):
        # a port of a bond or bridge always shows evidence: its master
        if parent.master or not stacked.evidence(outside, parent):
            return ""
        uppers = stacked.list_uppers(outside, parent)
        children = [upper for upper in uppers if _is_child_of_claim(upper, host, config, siblings)]
        if children:
            stacked.remove(outside, children)
            uppers = stacked.list_uppers(outside, parent)
        reason = _unknown_uppers(outside, parent, host, uppers, siblings)
        if not reason:
            break
    return reason


def _is_child_of_claim(upper: stacked.Upper, host: HostState, config: ObjectView, siblings: Siblings) -> bool:
    """Whether an upper interface of the parent is the claim's child, by its MAC address: no two macvlans of a parent
    that are up have the same one. Every ipvlan has the parent's address, so ipvlans cannot be distinguished."""
    mac = host.get(host_state.CHILD, {}).get("mac")
    if not mac or upper.mac != mac or upper.kind != config["child"]["type"] or upper.kind != "macvlan":
        return False
    if stacked.mark_of(upper) in host.get(host_state.UPPERS, ()):
        return False
    other_claims = siblings.get(upper.key, ()) if upper.key else ()
    return upper.ifindex not in other_claims and 0 not in other_claims


def _unknown_uppers(
    outside: Netlink, parent: links.Link, host: HostState, uppers: t.Sequence[stacked.Upper], siblings: Siblings
) -> str:
    """The upper interfaces of the parent that belong neither to the node nor to another claim, and did not exist before
    the claim's child, as a short text; empty if there are none. `uppers` are those that can be listed."""
    before = host.get(host_state.UPPERS, ())
    unknown = [
        str(upper)
        for upper in uppers
        if upper.key and upper.key not in siblings and stacked.mark_of(upper) not in before
    ]
    if unknown:
        return f"{', '.join(unknown[:4])} uses it"
    if not uppers:
        reason = stacked.evidence(outside, parent)
        return f"{reason}, {_UNLISTED}" if reason else ""
    child = host.get(host_state.CHILD)
    if child is None:  # it was not created, or it was created by an older driver
        return ""
    known = {mac for upper in uppers for mac in (upper.mac, *upper.received)}
    hidden = stacked.received(outside, parent) - known - set(child["received"])
    return f"it receives packets for {min(hidden)}, which is not the address of a listed interface" if hidden else ""
