# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Upper interfaces of an interface: macvlan, macvtap, ipvlan, VLAN and the like, in any network namespace.

When an interface moves to another namespace, the kernel keeps its upper interfaces where they are. It shows each upper
interface only in the namespace of that interface, and neither in /sys nor in the link lists of other namespaces. But an
interface can have only one rx_handler (struct net_device), and a macvlan in passthru mode must be the only upper
interface (drivers/net/macvlan.c, macvlan_common_newlink). So a request for such a macvlan shows whether any macvlan,
macvtap, ipvlan, macsec, bond, bridge, team or Open vSwitch uses the interface, up or down, in any namespace. The
request uses a name that already exists in the target namespace. The kernel checks the name last, so nothing is ever
created.

The request does not show the number of upper interfaces. But the addresses that they receive while they are up are in
the filter of their lower interface (dev_uc_add), where the node can read them.

VLANs do not use an rx_handler. They are found by requesting every VLAN ID with an invalid MTU: the kernel first checks
whether the ID is free, and then refuses the MTU (net/8021q/vlan_netlink.c, vlan_newlink).
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

#: An interface name that is in use in a namespace which exists for that purpose only: its loopback interface has it.
_TAKEN_NAME = "lanewise.taken"
#: How long that namespace is kept for the next use.
_KEEP_SECONDS = 10.0
_MODE, _PASSTHRU = 1, 8
_ARPHRD_ETHER = 1
_VLAN_ID, _VLAN_PROTOCOL = 1, 5
_VLAN_PROTOCOLS = (b"\x81\x00", b"\x88\xa8")
_VLAN_IDS = range(4096)
_VLANS = "/proc/net/vlan"
_MAX_MTU = 65535
#: Kinds whose IFLA_LINK is a peer, not a lower interface.
PAIRS = ("veth", "netkit", "vxcan")
#: Kinds that the request cannot check: a new macvlan on such an interface attaches to the lower interface instead.
_TRANSPARENT_KINDS = ("macvlan", "macvtap")
_RTM_GETNSID = 90
_NSID, _NSID_FD, _NSID_TARGET = 1, 3, 4
_RTM_GETNEIGH = 30
#: struct ndmsg, its flag for entries of the device itself, and the attribute with the address.
_NDMSG, _NTF_SELF, _NDA_LLADDR = struct.Struct("=BxxxiHBB"), 2, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Upper(t.NamedTuple):
    """An upper interface. `key` identifies its namespace (None: the node's), `owner` describes it for messages. `mac`
    is the interface's own address, `received` are the other unicast addresses that it receives."""

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
    """A namespace whose loopback interface is named _TAKEN_NAME. It is closed _KEEP_SECONDS after its last use: while
    there is any namespace but the node's, the kernel refuses to change the mode of RDMA devices in namespaces."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1
        self._process = 0
        self._users = 0
        self._last_use = 0.0

    @contextlib.contextmanager
    def opened(self) -> t.Iterator[int]:
        """An open file of the namespace. Raises OSError."""
        with self._lock:
            # after a fork the child opens its own namespace and does not close this file
            if self._process != os.getpid():
                self._descriptor, self._process, self._users = -1, os.getpid(), 0
            if self._descriptor < 0:
                self._descriptor = _create_with_taken_name()
                threading.Thread(target=self._close_unused, name="taken", daemon=True).start()
            self._users += 1
            descriptor = self._descriptor
        try:
            yield descriptor
        finally:
            with self._lock:
                self._users -= 1
                self._last_use = time.monotonic()

    def _close_unused(self) -> None:
        remaining = _KEEP_SECONDS
        while remaining > 0:
            time.sleep(remaining)
            with self._lock:
                remaining = _KEEP_SECONDS if self._users else self._last_use + _KEEP_SECONDS - time.monotonic()
                if remaining <= 0:
                    os.close(self._descriptor)
                    self._descriptor = -1


def _create_with_taken_name() -> int:
    """Create a namespace whose loopback interface is named _TAKEN_NAME. Returns an open file. Raises OSError."""
    descriptor = netns.new()
    try:
        with Netlink(descriptor) as connection:
            loopback = links.get(connection, name="lo")
            if loopback is None:
                raise OSError(errno.ENODEV, "a new network namespace has no loopback interface")
            links.change(connection, loopback.index, netlink.text(links.IFLA_IFNAME, _TAKEN_NAME))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_taken_name_namespace = _TakenNameNamespace()


def checkable(link: links.Link) -> bool:
    """Whether :func:`evidence` works for this interface: it does for Ethernet interfaces, except macvlan and
    macvtap."""
    return link.type == _ARPHRD_ETHER and link.kind not in _TRANSPARENT_KINDS


def evidence(connection: Netlink, link: links.Link) -> str:
    """What shows that an interface of the connection's namespace has upper interfaces, as a short text; empty if it has
    none, or if that cannot be checked (:func:`checkable`). Raises OSError.
    """
    if not checkable(link):
        return ""
    info = netlink.nest(
        links.IFLA_LINKINFO,
        netlink.text(links.IFLA_INFO_KIND, "macvlan"),
        netlink.nest(links.IFLA_INFO_DATA, netlink.u32(_MODE, _PASSTHRU)),
    )
    body = links.header() + netlink.u32(links.IFLA_LINK, link.index) + netlink.text(links.IFLA_IFNAME, _TAKEN_NAME)
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
    raise OSError(
        errno.EEXIST, f"the kernel created a macvlan in a namespace that already has an interface {_TAKEN_NAME}"
    )


def vlans(connection: Netlink, link: links.Link) -> list[int]:
    """The IDs of an interface's VLANs in any namespace. Raises OSError.

    Empty if the VLAN module is not loaded. This makes 8,192 requests.
    """
    if not os.path.isdir(_VLANS) or link.mtu >= _MAX_MTU:
        return []
    vlan_ids: set[int] = set()
    start = links.header() + netlink.u32(links.IFLA_LINK, link.index) + netlink.u32(links.IFLA_MTU, _MAX_MTU)
    start += netlink.text(links.IFLA_IFNAME, _TAKEN_NAME)
    for protocol in _VLAN_PROTOCOLS:
        bodies = []
        for vlan_id in _VLAN_IDS:
            data = netlink.u16(_VLAN_ID, vlan_id) + netlink.attribute(_VLAN_PROTOCOL, protocol)
            info = netlink.text(links.IFLA_INFO_KIND, "vlan") + netlink.nest(links.IFLA_INFO_DATA, data)
            bodies.append(start + netlink.nest(links.IFLA_LINKINFO, info))
        codes = connection.codes(links.RTM_NEWLINK, bodies, netlink.CREATE)
        vlan_ids |= {vlan_id for vlan_id, code in zip(_VLAN_IDS, codes) if code == errno.EEXIST}
    return sorted(vlan_ids)


def uppers(link: links.Link, candidates: t.Sequence[links.Link], link_netnsid: int | None) -> list[links.Link]:
    """The candidates, all of one namespace, that are upper interfaces of `link`. `link_netnsid` is the ID that their
    namespace has for the namespace of `link`; None if both are the same."""
    return [
        candidate
        for candidate in candidates
        if candidate.kind not in PAIRS
        and candidate.number(links.IFLA_LINK) == link.index
        and (
            candidate.raw.get(links.IFLA_LINK_NETNSID) is None
            if link_netnsid is None
            else netnsid(candidate) == link_netnsid
        )
        and not (link_netnsid is None and candidate.index == link.index)
    ]


def netnsid(link: links.Link) -> int | None:
    """The ID of the namespace of the interface in a link's IFLA_LINK; None if it is the link's own namespace."""
    raw = link.raw.get(links.IFLA_LINK_NETNSID)
    return int(struct.unpack("=i", raw)[0]) if raw else None


def list_uppers(connection: Netlink, link: links.Link) -> list[Upper]:
    """All upper interfaces of an interface of the node that can be listed. Raises OSError."""
    host = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        on_node = uppers(link, links.listed(connection), None)
        result = [_upper(connection, upper_link, None, "the node") for upper_link in on_node]
        for namespace in node_namespaces.other_namespaces():
            with contextlib.suppress(OSError, KernelError), Netlink(namespace.descriptor) as elsewhere:
                candidates = links.listed(elsewhere)  # before the next line: the kernel assigns IDs when it lists links
                host_netnsid = get_netnsid(elsewhere, host)
                if host_netnsid is not None:
                    upper_links = uppers(link, candidates, host_netnsid)
                    result += [
                        _upper(elsewhere, upper_link, namespace.key, namespace.owner) for upper_link in upper_links
                    ]
        return result
    finally:
        os.close(host)


def _upper(connection: Netlink, link: links.Link, key: node_namespaces.Key | None, owner: str) -> Upper:
    return Upper(link.name, link.kind, link.index, key, owner, link.mac, received(connection, link))


def received(connection: Netlink, link: links.Link) -> frozenset[str]:
    """The unicast addresses that an interface of the connection's namespace receives, except its own: those of its
    macvlans that are up, in any namespace, and those that were added manually. Raises OSError."""
    macs = set()
    for _unused, reply in connection.dump(_RTM_GETNEIGH, _NDMSG.pack(socket.AF_BRIDGE, link.index, 0, 0, 0)):
        _family, index, _state, flags, _kind = _NDMSG.unpack_from(reply)
        address = netlink.attributes(reply, _NDMSG.size).get(_NDA_LLADDR, b"")
        if index == link.index and flags & _NTF_SELF and address and not address[0] & 1:
            macs.add(links.mac_text(address))
    return frozenset(macs - {link.mac})


def lasting_evidence(
    connection: Netlink, link: links.Link, timeout: float = node_namespaces.DESTRUCTION_SECONDS
) -> tuple[str, list[Upper]]:
    """The evidence of upper interfaces of an interface of the node (:func:`evidence`), and the upper interfaces that
    can be listed.

    If none can be listed, this repeats the check for `timeout` seconds, because the kernel may be about to destroy the
    namespace (:func:`node_namespaces.attempts`). Raises OSError.
    """
    reason, listed = "", list[Upper]()
    for _attempt in node_namespaces.attempts(timeout):
        reason = evidence(connection, link)
        listed = list_uppers(connection, link) if reason else []
        if not reason or listed or link.master:
            break
    return reason, listed


def foreign_uppers(connection: Netlink, link: links.Link, timeout: float = node_namespaces.DESTRUCTION_SECONDS) -> str:
    """The upper interfaces through which others could read and send the traffic of a pod that gets an interface of the
    node, as a short text; empty if there are none. Upper interfaces in the node's own namespace do not count. Raises
    OSError.

    Any pod with NET_ADMIN and without a user namespace can create a macvlan of an interface of the node in its own
    namespace, because the kernel accepts its capability for the node's namespace (rtnl_newlink, IFLA_LINK_NETNSID).
    """
    reason, listed = lasting_evidence(connection, link, timeout)
    if not reason:
        return ""
    foreign = [str(upper) for upper in listed if upper.key is not None]
    if foreign:
        return f"{', '.join(foreign[:4])} uses it"
    return "" if listed or link.master else f"{reason}, in a network namespace that no process or mount refers to"


def hidden_vlans(connection: Netlink, link: links.Link, timeout: float = node_namespaces.DESTRUCTION_SECONDS) -> str:
    """As :func:`foreign_uppers`, for VLANs that no namespace lists. Raises OSError."""
    vlan_ids: list[int] = []
    for _attempt in node_namespaces.attempts(timeout):
        vlan_ids = vlans(connection, link)
        if len(vlan_ids) <= sum(upper.kind == "vlan" for upper in list_uppers(connection, link) if vlan_ids):
            return ""
    first = ", ".join(map(str, vlan_ids[:8])) + (" and others" if len(vlan_ids) > 8 else "")
    users = f"VLANs {first} use it" if len(vlan_ids) > 1 else f"VLAN {first} uses it"
    return f"{users}, in a network namespace that no process or mount refers to"


def get_netnsid(connection: Netlink, descriptor: int, target: int | None = None) -> int | None:
    """The ID by which a namespace refers to the namespace of the open file `descriptor`; None if it has no such ID
    (RTM_GETNSID, net/core/net_namespace.c). The referring namespace is the connection's, or with `target` the namespace
    to which the connection's refers by that ID. Raises OSError."""
    body = struct.pack("=B3x", socket.AF_UNSPEC) + netlink.u32(_NSID_FD, descriptor)
    if target is not None:
        body += netlink.u32(_NSID_TARGET, target)
    for _unused, reply in connection.request(_RTM_GETNSID, body):
        raw = netlink.attributes(reply, 4).get(_NSID)
        if raw:
            result = int(struct.unpack("=i", raw)[0])
            return result if result >= 0 else None
    return None


def inside(connection: Netlink, link: links.Link, from_node: bool = False) -> list[links.Link]:
    """The links of the connection's namespace that are upper interfaces of `link`, which is in the same namespace, or
    on the node (`from_node`). Raises OSError."""
    listed = links.listed(connection)
    host_netnsid = None
    if from_node:
        descriptor = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
        try:
            host_netnsid = get_netnsid(connection, descriptor)
        finally:
            os.close(descriptor)
        if host_netnsid is None:
            return []
    return uppers(link, listed, host_netnsid)


def remove_inside(connection: Netlink, link: links.Link) -> None:
    """Remove those upper interfaces of an interface that are in the same namespace, the connection's. Raises
    OSError."""
    for upper in inside(connection, link):
        links.delete(connection, upper.index)


def remove_all(connection: Netlink, link: links.Link, kept: t.Collection[Mark] = ()) -> list[Upper]:
    """Remove all upper interfaces of an interface of the node that can be listed, except those in `kept`
    (:func:`mark_of`). Returns the removed ones. Raises OSError."""
    removed = [upper for upper in list_uppers(connection, link) if mark_of(upper) not in kept]
    remove(connection, removed)
    return removed


def remove(connection: Netlink, removed: t.Sequence[Upper]) -> None:
    """Remove upper interfaces of an interface of the node from their namespaces. Raises OSError."""
    for upper in removed:
        if upper.key is None:
            links.delete(connection, upper.ifindex)
    if any(upper.key for upper in removed):
        for namespace in node_namespaces.other_namespaces():
            in_namespace = [upper for upper in removed if upper.key == namespace.key]
            if in_namespace:
                with contextlib.suppress(KernelError), Netlink(namespace.descriptor) as elsewhere:
                    for upper in in_namespace:
                        links.delete(elsewhere, upper.ifindex)


def mark_of(upper: Upper) -> Mark:
    """What identifies an upper interface, as JSON for the host state."""
    return [list(upper.key) if upper.key else None, upper.ifindex, upper.kind]
