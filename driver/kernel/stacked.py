# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is made of an interface: macvlan, macvtap, ipvlan, VLAN and the like, in whatever network namespace.

The kernel keeps them when the interface goes to another namespace, and shows them neither in /sys nor in a list of
links but in the namespace that they are in. But the kernel lets only one kind of them take an interface's packets
(struct net_device, rx_handler), and a macvlan in passthru mode only where it is the first one (drivers/net/macvlan.c,
macvlan_common_newlink). So asking for such a macvlan tells whether there is any of macvlan, macvtap, ipvlan, macsec,
bond, bridge, team or Open vSwitch, up or down, wherever it is. The request asks for a name that is taken where the
macvlan would go. The kernel looks at that last, so that nothing is ever made.

VLANs take no part in that. They are found by asking for every VLAN number with an MTU that is refused after the number
was found to be free (net/8021q/vlan_netlink.c, vlan_newlink).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import typing as t

from ..base.errors import KernelError
from . import links, netlink, netns, node_namespaces
from .netlink import Netlink

Object = dict[str, t.Any]

#: What the loopback interface is called in a namespace that we have for its name alone.
_TAKEN = "lanewise.taken"
_MODE, _PASSTHRU = 1, 8
_ARPHRD_ETHER = 1
_VLAN_ID, _VLAN_PROTOCOL = 1, 5
_VLAN_PROTOCOLS = (b"\x81\x00", b"\x88\xa8")
_VLAN_NUMBERS = range(4096)
_VLANS = "/proc/net/vlan"
_MOST_MTU = 65535
#: Kinds whose IFLA_LINK is another end, and not what they are made of.
PAIRS = ("veth", "netkit", "vxcan")
#: Kinds that are made of what their lower interface is made of, so that the question is about another interface.
_PASSED_ON = ("macvlan", "macvtap")
_RTM_GETNSID = 90
_NSID, _NSID_FD, _NSID_TARGET = 1, 3, 4
_libc = ctypes.CDLL(None, use_errno=True)


class Upper(t.NamedTuple):
    """One that is made of an interface. `key` is its namespace's (None: the node's)."""

    name: str
    kind: str
    ifindex: int
    key: node_namespaces.Key | None
    owner: str

    def __str__(self) -> str:
        return f"the {self.kind or 'interface'} {self.name} of {self.owner}"


class _Taken:
    """A namespace whose loopback interface has the name _TAKEN; made when first needed, and gone with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1
        self._process = 0

    def descriptor(self) -> int:
        """An open file of it. Raises OSError."""
        with self._lock:
            if self._process != os.getpid():  # a forked child would share it, which does no harm
                self._descriptor, self._process = -1, os.getpid()
            if self._descriptor < 0:
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
                self._descriptor = made
            return self._descriptor


_taken = _Taken()


def checkable(link: links.Link) -> bool:
    """Whether :func:`evidence` can tell for this interface: an Ethernet one that is no macvlan itself."""
    return link.type == _ARPHRD_ETHER and link.kind not in _PASSED_ON


def evidence(connection: Netlink, link: links.Link) -> str:
    """What says that something is made of an interface of the connection's namespace, a few words; empty where nothing
    is, or where that cannot be asked (:func:`checkable`). Raises OSError.
    """
    if not checkable(link):
        return ""
    info = netlink.nest(
        links.IFLA_LINKINFO,
        netlink.text(links.IFLA_INFO_KIND, "macvlan"),
        netlink.nest(links.IFLA_INFO_DATA, netlink.u32(_MODE, _PASSTHRU)),
    )
    body = links.header() + netlink.u32(links.IFLA_LINK, link.index) + netlink.text(links.IFLA_IFNAME, _TAKEN)
    body += netlink.u32(links.IFLA_NET_NS_FD, _taken.descriptor()) + info
    try:
        connection.request(links.RTM_NEWLINK, body, netlink.CREATE)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.EOPNOTSUPP):  # EOPNOTSUPP: a kernel without macvlan
            return ""
        if error.errno == errno.EINVAL:
            return "a macvlan or macvtap is made of it"
        if error.errno == errno.EBUSY:
            return "an ipvlan, macsec, bond, bridge or the like takes its packets"
        raise
    raise OSError(errno.EEXIST, f"a macvlan was made in a namespace that has a {_TAKEN} already")


def vlans(connection: Netlink, link: links.Link) -> list[int]:
    """The numbers of the VLANs that are made of an interface, in whatever namespace. Raises OSError.

    Empty where the kernel has no VLANs at this moment. 8,192 requests.
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
    """Those links of one namespace that are made of `link`. `own` is the number by which that namespace knows the
    one that `link` is in; None where it is the same one."""
    return [
        one
        for one in inside
        if one.kind not in PAIRS
        and one.number(links.IFLA_LINK) == link.index
        and (one.raw.get(links.IFLA_LINK_NETNSID) is None if own is None else netnsid(one) == own)
        and not (own is None and one.index == link.index)
    ]


def netnsid(link: links.Link) -> int | None:
    """The number of the namespace that a link's IFLA_LINK is in; None where it is the link's own."""
    raw = link.raw.get(links.IFLA_LINK_NETNSID)
    return int(struct.unpack("=i", raw)[0]) if raw else None


def found(connection: Netlink, link: links.Link) -> list[Upper]:
    """All that can be listed of what is made of an interface of the node. Raises OSError."""
    own = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        here = uppers(link, links.listed(connection), None)
        result = [Upper(one.name, one.kind, one.index, None, "the node") for one in here]
        for space in node_namespaces.all_but_own():
            with contextlib.suppress(OSError, KernelError), Netlink(space.descriptor) as there:
                inside = links.listed(there)  # first: the kernel gives the numbers when it lists
                number = namespace_number(there, own)
                if number is not None:
                    here = uppers(link, inside, number)
                    result += [Upper(one.name, one.kind, one.index, space.key, space.owner) for one in here]
        return result
    finally:
        os.close(own)


def lasting(connection: Netlink, link: links.Link, patience: float = node_namespaces.ENDING) -> tuple[str, list[Upper]]:
    """What says that something is made of an interface of the node (:func:`evidence`), and all of it that is listed.

    Where nothing can be listed, it is asked again for `patience` seconds, as the kernel may be about to end the
    namespace (:func:`node_namespaces.looks`). Raises OSError.
    """
    says, here = "", list[Upper]()
    for _turn in node_namespaces.looks(patience):
        says = evidence(connection, link)
        here = found(connection, link) if says else []
        if not says or here or link.master:
            break
    return says, here


def strangers(connection: Netlink, link: links.Link, patience: float = node_namespaces.ENDING) -> str:
    """Who else could read and send what a pod does that gets an interface of the node; empty where nobody could. What
    the node itself made of it in its own namespace is its own affair. Raises OSError.

    Any pod with NET_ADMIN and without a user namespace may make a macvlan of an interface of the node in its own
    namespace, as the kernel takes its rights for those over the node's (rtnl_newlink, IFLA_LINK_NETNSID).
    """
    says, here = lasting(connection, link, patience)
    if not says:
        return ""
    others = [str(one) for one in here if one.key is not None]
    if others:
        return f"{', '.join(others[:4])} is made of it"
    return "" if here or link.master else f"{says}, in a network namespace that no process and no mount shows"


def hidden_vlans(connection: Netlink, link: links.Link, patience: float = node_namespaces.ENDING) -> str:
    """As :func:`strangers`, of VLANs that no namespace shows. Raises OSError."""
    numbers: list[int] = []
    for _turn in node_namespaces.looks(patience):
        numbers = vlans(connection, link)
        if len(numbers) <= sum(one.kind == "vlan" for one in found(connection, link) if numbers):
            return ""
    some = ", ".join(map(str, numbers[:8]))
    return f"of VLAN {some} one is made of it, in a network namespace that no process and no mount shows"


def namespace_number(connection: Netlink, descriptor: int, target: int | None = None) -> int | None:
    """The number by which the connection's namespace, or the one that it knows as `target`, knows another one that is
    an open file here; None where it does not (RTM_GETNSID, net/core/net_namespace.c)."""
    body = struct.pack("=B3x", socket.AF_UNSPEC) + netlink.u32(_NSID_FD, descriptor)
    if target is not None:
        body += netlink.u32(_NSID_TARGET, target)
    for _unused, reply in connection.request(_RTM_GETNSID, body):
        raw = netlink.attributes(reply, 4).get(_NSID)
        if raw:
            number = int(struct.unpack("=i", raw)[0])
            return number if number >= 0 else None
    return None


def end_inside(connection: Netlink, link: links.Link, from_node: bool = False) -> None:
    """Removes what the connection's namespace has of what is made of an interface, which is in the same one, or on the
    node (`from_node`). Raises OSError."""
    inside = links.listed(connection)
    own = None
    if from_node:
        descriptor = os.open(netns.HOST, os.O_RDONLY | os.O_CLOEXEC)
        try:
            own = namespace_number(connection, descriptor)
        finally:
            os.close(descriptor)
        if own is None:
            return
    for one in uppers(link, inside, own):
        links.delete(connection, one.index)


def end(connection: Netlink, link: links.Link, kept: t.Collection[t.Sequence[t.Any]] = ()) -> list[Upper]:
    """Removes all that can be listed of what is made of an interface of the node, but for those that `kept` names
    (:func:`known`). Returns what was removed. Raises OSError."""
    gone = [one for one in found(connection, link) if known(one) not in [list(entry) for entry in kept]]
    for one in gone:
        if one.key is None:
            links.delete(connection, one.ifindex)
    if any(one.key for one in gone):
        for space in node_namespaces.all_but_own():
            here = [one for one in gone if one.key == space.key]
            if here:
                with contextlib.suppress(KernelError), Netlink(space.descriptor) as there:
                    for one in here:
                        links.delete(there, one.ifindex)
    return gone


def known(upper: Upper) -> list[t.Any]:
    """How an upper interface is told from others, as JSON for the host state."""
    return [list(upper.key) if upper.key else None, upper.ifindex, upper.kind]
