# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Upper interfaces of an interface: macvlan, macvtap, ipvlan, VLAN and the like, in any network namespace.

The kernel keeps them when the interface moves to another namespace, and shows each only in its own namespace, neither
in /sys nor in link lists of others. But an interface can have only one rx_handler (struct net_device), and a macvlan in
passthru mode must be the only upper (drivers/net/macvlan.c, macvlan_common_newlink). So a request for such a macvlan
shows whether there is any macvlan, macvtap, ipvlan, macsec, bond, bridge, team or Open vSwitch, up or down, anywhere.
The request uses a name that exists already in the target namespace. The kernel checks that last, so nothing is ever
created.

The request does not show how many there are. But the addresses that upper interfaces receive while they are up are in
the filter of their lower interface (dev_uc_add), where the node can read them.

VLANs do not use an rx_handler. They are found by requesting every VLAN ID with an MTU that is refused after the check
that the ID is free (net/8021q/vlan_netlink.c, vlan_newlink).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import time
import typing as t

from ..base.errors import KernelError
from . import links, netlink, netns, node_namespaces
from .netlink import Netlink

#: What identifies an upper interface in a host state: the key of its namespace, its index and its kind.
Mark = list[t.Union[list[int], int, str, None]]

#: The name of the loopback interface in a namespace whose only purpose is that this name is in use there.
_TAKEN = "lanewise.taken"
#: Seconds for which that namespace is kept for the next use.
_KEPT = 10.0
_MODE, _PASSTHRU = 1, 8
_ARPHRD_ETHER = 1
_VLAN_ID, _VLAN_PROTOCOL = 1, 5
_VLAN_PROTOCOLS = (b"\x81\x00", b"\x88\xa8")
_VLAN_NUMBERS = range(4096)
_VLANS = "/proc/net/vlan"
_MOST_MTU = 65535
#: Kinds whose IFLA_LINK is a peer, not a lower interface.
PAIRS = ("veth", "netkit", "vxcan")
#: Kinds on which a new macvlan attaches to their lower interface instead, so that the request would check that one.
_TRANSPARENT_KINDS = ("macvlan", "macvtap")
_RTM_GETNSID = 90
_NSID, _NSID_FD, _NSID_TARGET = 1, 3, 4
_RTM_GETNEIGH = 30
#: struct ndmsg, its flag for entries of the device itself, and the attribute with the address.
_NDMSG, _NTF_SELF, _NDA_LLADDR = struct.Struct("=BxxxiHBB"), 2, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Upper(t.NamedTuple):
    """An upper interface. `key` identifies its namespace (None: the node's). `mac` is its own address, `received` are
    others that it asks its lower interface for."""

    name: str
    kind: str
    ifindex: int
    key: node_namespaces.Key | None
    owner: str
    mac: str = ""
    received: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"the {self.kind or 'interface'} {self.name} of {self.owner}"


class _TakenNameNamespace:
    """A namespace whose loopback interface is named _TAKEN. It exists while it is in use and for _KEPT seconds more: as
    long as there is any namespace but the node's, the kernel refuses to change the mode of RDMA devices in namespaces.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1
        self._process = 0
        self._users = 0
        self._last = 0.0

    @contextlib.contextmanager
    def opened(self) -> t.Iterator[int]:
        """An open file of it. Raises OSError."""
        with self._lock:
            if self._process != os.getpid():  # a forked child would share it, which is harmless
                self._descriptor, self._process, self._users = -1, os.getpid(), 0
            if self._descriptor < 0:
                self._descriptor = _with_taken_name()
                threading.Thread(target=self._close_unused, name="taken", daemon=True).start()
            self._users += 1
            descriptor = self._descriptor
        try:
            yield descriptor
        finally:
            with self._lock:
                self._users -= 1
                self._last = time.monotonic()

    def _close_unused(self) -> None:
        remaining = _KEPT
        while remaining > 0:
            time.sleep(remaining)
            with self._lock:
                remaining = _KEPT if self._users else self._last + _KEPT - time.monotonic()
                if remaining <= 0:
                    os.close(self._descriptor)
                    self._descriptor = -1


def _with_taken_name() -> int:
    """A new namespace whose loopback interface is named _TAKEN, as an open file. Raises OSError."""
    made = netns.new()
    try:
        with Netlink(made) as connection:
            loopback = links.get(connection, name="lo")
            if loopback is None:
                raise OSError(errno.ENODEV, "a new network namespace has no loopback interface")
            links.change(connection, loopback.index, netlink.text(links.IFLA_IFNAME, _TAKEN))
    except BaseException:
        os.close(made)
        raise
    return made


_taken_name_namespace = _TakenNameNamespace()


def checkable(link: links.Link) -> bool:
    """Whether :func:`evidence` works for this interface: an Ethernet one that is not a macvlan itself."""
    return link.type == _ARPHRD_ETHER and link.kind not in _TRANSPARENT_KINDS


def evidence(connection: Netlink, link: links.Link) -> str:
    """Why an interface of the connection's namespace must have upper interfaces, as a short text; empty if it has
    none, or if that cannot be checked (:func:`checkable`). Raises OSError.
    """
    if not checkable(link):
        return ""
    info = netlink.nest(
        links.IFLA_LINKINFO,
        netlink.text(links.IFLA_INFO_KIND, "macvlan"),
        netlink.nest(links.IFLA_INFO_DATA, netlink.u32(_MODE, _PASSTHRU)),
    )
    body = links.header() + netlink.u32(links.IFLA_LINK, link.index) + netlink.text(links.IFLA_IFNAME, _TAKEN)
    with _taken_name_namespace.opened() as descriptor:
        body += netlink.u32(links.IFLA_NET_NS_FD, descriptor) + info
        try:
            connection.request(links.RTM_NEWLINK, body, netlink.CREATE)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.EOPNOTSUPP):  # EOPNOTSUPP: a kernel without macvlan
                return ""
            if error.errno == errno.EINVAL:
                return "a macvlan or macvtap uses it"
            if error.errno == errno.EBUSY:
                return "an ipvlan, macsec, bond, bridge or the like uses it"
            raise
    raise OSError(errno.EEXIST, f"the kernel created a macvlan in a namespace that already has an interface {_TAKEN}")


def vlans(connection: Netlink, link: links.Link) -> list[int]:
    """The IDs of an interface's VLANs in any namespace. Raises OSError.

    Empty if the VLAN module is not loaded. Makes 8,192 requests.
    """
    if not os.path.isdir(_VLANS) or link.mtu >= _MOST_MTU:
        return []
    found: set[int] = set()
    start = links.header() + netlink.u32(links.IFLA_LINK, link.index) + netlink.u32(links.IFLA_MTU, _MOST_MTU)
    start += netlink.text(links.IFLA_IFNAME, _TAKEN)
    for protocol in _VLAN_PROTOCOLS:
        bodies = []
        for number in _VLAN_NUMBERS:
            data = netlink.u16(_VLAN_ID, number) + netlink.attribute(_VLAN_PROTOCOL, protocol)
            info = netlink.text(links.IFLA_INFO_KIND, "vlan") + netlink.nest(links.IFLA_INFO_DATA, data)
            bodies.append(start + netlink.nest(links.IFLA_LINKINFO, info))
        codes = connection.codes(links.RTM_NEWLINK, bodies, netlink.CREATE)
        found |= {number for number, code in zip(_VLAN_NUMBERS, codes) if code == errno.EEXIST}
    return sorted(found)


def uppers(link: links.Link, inside: t.Sequence[links.Link], own: int | None) -> list[links.Link]:
    """The links of one namespace that are upper interfaces of `link`. `own` is that namespace's ID for the namespace of
    `link`; None if it is the same one."""
    return [
        one
        for one in inside
        if one.kind not in PAIRS
        and one.number(links.IFLA_LINK) == link.index
        and (one.raw.get(links.IFLA_LINK_NETNSID) is None if own is None else netnsid(one) == own)
        and not (own is None and one.index == link.index)
    ]


def netnsid(link: links.Link) -> int | None:
    """The ID of the namespace that a link's IFLA_LINK is in; None if it is the link's own."""
    raw = link.raw.get(links.IFLA_LINK_NETNSID)
    return int(struct.unpack("=i", raw)[0]) if raw else None


def list_uppers(connection: Netlink, link: links.Link) -> list[Upper]:
    """All upper interfaces of an interface of the node that can be listed. Raises OSError."""
    own = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        here = uppers(link, links.listed(connection), None)
        result = [_upper(connection, one, None, "the node") for one in here]
        for space in node_namespaces.other_namespaces():
            with contextlib.suppress(OSError, KernelError), Netlink(space.descriptor) as there:
                inside = links.listed(there)  # first: the kernel assigns the IDs when it lists
                number = namespace_number(there, own)
                if number is not None:
                    here = uppers(link, inside, number)
                    result += [_upper(there, one, space.key, space.owner) for one in here]
        return result
    finally:
        os.close(own)


def _upper(connection: Netlink, link: links.Link, key: node_namespaces.Key | None, owner: str) -> Upper:
    return Upper(link.name, link.kind, link.index, key, owner, link.mac, received(connection, link))


def received(connection: Netlink, link: links.Link) -> frozenset[str]:
    """The unicast addresses, except its own, that an interface of the connection's namespace is asked to receive: those
    of its macvlans that are up, in any namespace, and those that were added manually. Raises OSError."""
    found = set()
    for _unused, reply in connection.dump(_RTM_GETNEIGH, _NDMSG.pack(socket.AF_BRIDGE, link.index, 0, 0, 0)):
        _family, index, _state, flags, _kind = _NDMSG.unpack_from(reply)
        address = netlink.attributes(reply, _NDMSG.size).get(_NDA_LLADDR, b"")
        if index == link.index and flags & _NTF_SELF and address and not address[0] & 1:
            found.add(links.mac_text(address))
    return frozenset(found - {link.mac})


def lasting_evidence(
    connection: Netlink, link: links.Link, patience: float = node_namespaces.DESTRUCTION_SECONDS
) -> tuple[str, list[Upper]]:
    """The evidence of upper interfaces of an interface of the node (:func:`evidence`), and those that can be listed.

    If none can be listed, this repeats the check for `patience` seconds, because the kernel may be about to destroy the
    namespace (:func:`node_namespaces.attempts`). Raises OSError.
    """
    reason, here = "", list[Upper]()
    for _turn in node_namespaces.attempts(patience):
        reason = evidence(connection, link)
        here = list_uppers(connection, link) if reason else []
        if not reason or here or link.master:
            break
    return reason, here


def foreign_uppers(connection: Netlink, link: links.Link, patience: float = node_namespaces.DESTRUCTION_SECONDS) -> str:
    """Who else could read and send the traffic of a pod that gets an interface of the node; empty if nobody could.
    Upper interfaces in the node's own namespace do not count. Raises OSError.

    Any pod with NET_ADMIN and without a user namespace can create a macvlan of an interface of the node in its own
    namespace, because the kernel accepts its capability for the node's namespace (rtnl_newlink, IFLA_LINK_NETNSID).
    """
    reason, here = lasting_evidence(connection, link, patience)
    if not reason:
        return ""
    others = [str(one) for one in here if one.key is not None]
    if others:
        return f"{', '.join(others[:4])} uses it"
    return "" if here or link.master else f"{reason}, in a network namespace that no process or mount refers to"


def hidden_vlans(connection: Netlink, link: links.Link, patience: float = node_namespaces.DESTRUCTION_SECONDS) -> str:
    """As :func:`foreign_uppers`, for VLANs that no namespace lists. Raises OSError."""
    numbers: list[int] = []
    for _turn in node_namespaces.attempts(patience):
        numbers = vlans(connection, link)
        if len(numbers) <= sum(one.kind == "vlan" for one in list_uppers(connection, link) if numbers):
            return ""
    some = ", ".join(map(str, numbers[:8]))
    return f"VLAN {some} uses it, in a network namespace that no process or mount refers to"


def namespace_number(connection: Netlink, descriptor: int, target: int | None = None) -> int | None:
    """The ID that the connection's namespace, or the one with its ID `target`, has for the namespace of an open file;
    None if it has none (RTM_GETNSID, net/core/net_namespace.c)."""
    body = struct.pack("=B3x", socket.AF_UNSPEC) + netlink.u32(_NSID_FD, descriptor)
    if target is not None:
        body += netlink.u32(_NSID_TARGET, target)
    for _unused, reply in connection.request(_RTM_GETNSID, body):
        raw = netlink.attributes(reply, 4).get(_NSID)
        if raw:
            number = int(struct.unpack("=i", raw)[0])
            return number if number >= 0 else None
    return None


def inside(connection: Netlink, link: links.Link, from_node: bool = False) -> list[links.Link]:
    """The upper interfaces in the connection's namespace of an interface that is in the same namespace, or on the node
    (`from_node`). Raises OSError."""
    listed = links.listed(connection)
    own = None
    if from_node:
        descriptor = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
        try:
            own = namespace_number(connection, descriptor)
        finally:
            os.close(descriptor)
        if own is None:
            return []
    return uppers(link, listed, own)


def remove_inside(connection: Netlink, link: links.Link) -> None:
    """Remove the upper interfaces of an interface in its namespace, which is the connection's. Raises OSError."""
    for one in inside(connection, link):
        links.delete(connection, one.index)


def remove_all(connection: Netlink, link: links.Link, kept: t.Collection[Mark] = ()) -> list[Upper]:
    """Remove all upper interfaces of an interface of the node that can be listed, except those in `kept`
    (:func:`mark_of`). Returns the removed ones. Raises OSError."""
    removed = [one for one in list_uppers(connection, link) if mark_of(one) not in kept]
    remove(connection, removed)
    return removed


def remove(connection: Netlink, gone: t.Sequence[Upper]) -> None:
    """Remove upper interfaces of an interface of the node from their namespaces. Raises OSError."""
    for one in gone:
        if one.key is None:
            links.delete(connection, one.ifindex)
    if any(one.key for one in gone):
        for space in node_namespaces.other_namespaces():
            here = [one for one in gone if one.key == space.key]
            if here:
                with contextlib.suppress(KernelError), Netlink(space.descriptor) as there:
                    for one in here:
                        links.delete(there, one.ifindex)


def mark_of(upper: Upper) -> Mark:
    """What identifies an upper interface, as JSON for the host state."""
    return [list(upper.key) if upper.key else None, upper.ifindex, upper.kind]
