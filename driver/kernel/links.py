# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Links through rtnetlink. Numbers are those of linux/rtnetlink.h, linux/if_link.h and linux/if.h."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import typing as t
from dataclasses import dataclass

from ..base.errors import KernelError
from . import netlink
from .netlink import Netlink

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER = 1, 3, 4, 5, 10
IFLA_TXQLEN, IFLA_LINKINFO, IFLA_IFALIAS = 13, 18, 20
IFLA_NUM_VF, IFLA_VFINFO_LIST, IFLA_GROUP, IFLA_NET_NS_FD, IFLA_EXT_MASK = 21, 22, 27, 28, 29
IFLA_CARRIER, IFLA_LINK_NETNSID, IFLA_PHYS_PORT_NAME, IFLA_GSO_MAX_SEGS, IFLA_GSO_MAX_SIZE = 33, 37, 38, 40, 41
IFLA_XDP, IFLA_TARGET_NETNSID = 43, 46
IFLA_MIN_MTU, IFLA_MAX_MTU, IFLA_PROP_LIST, IFLA_ALT_IFNAME, IFLA_PERM_ADDRESS = 50, 51, 52, 53, 54
IFLA_PARENT_DEV_NAME, IFLA_GRO_MAX_SIZE = 56, 58
IFLA_TSO_MAX_SIZE = 59
IFLA_GSO_IPV4_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE = 63, 64
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
RTEXT_FILTER_VF, RTEXT_FILTER_SKIP_STATS = 1, 8

IFF_UP, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_MULTICAST = 0x1, 0x80, 0x100, 0x200, 0x1000
IFF_DEBUG, IFF_NOTRAILERS, IFF_PORTSEL, IFF_AUTOMEDIA, IFF_DYNAMIC = 0x4, 0x20, 0x2000, 0x4000, 0x8000
#: The flags that can be set, except IFF_UP (net/core/dev.c, __dev_change_flags).
RESTORED_FLAGS = IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST
RESTORED_FLAGS |= IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA | IFF_DYNAMIC

#: Attributes for the maximum sizes of GSO and GRO packets, by the names in InterfaceConfigs and host states.
SIZES = {
    "gsoMaxSize": IFLA_GSO_MAX_SIZE,
    "groMaxSize": IFLA_GRO_MAX_SIZE,
    "gsoIPv4MaxSize": IFLA_GSO_IPV4_MAX_SIZE,
    "groIPv4MaxSize": IFLA_GRO_IPV4_MAX_SIZE,
}

_XDP_FD, _XDP_FLAGS = 1, 3
#: The attribute and the flag of an XDP program, by mode: driver, generic, hardware.
_XDP = {"driver": (5, 4), "generic": (6, 2), "hardware": (7, 8)}

_IFINFO = struct.Struct("=BxHiII")


@dataclass(frozen=True)
class Link:
    """One link: its header and its attributes, which are parsed on access."""

    index: int
    flags: int
    raw: netlink.Attributes
    #: ARPHRD_*, of linux/if_arp.h
    type: int = 0

    @property
    def name(self) -> str:
        return netlink.string(self.raw.get(IFLA_IFNAME, b""))

    @property
    def mac(self) -> str:
        return mac_text(self.raw.get(IFLA_ADDRESS, b""))

    @property
    def permanent_mac(self) -> str:
        return mac_text(self.raw.get(IFLA_PERM_ADDRESS, b""))

    @property
    def mtu(self) -> int:
        return self.number(IFLA_MTU)

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)

    @property
    def carrier(self) -> bool:
        return bool(self.number(IFLA_CARRIER))

    @property
    def parent(self) -> str:
        """The link's device, such as a PCI address; empty before Linux 5.14 and for virtual links."""
        return netlink.string(self.raw.get(IFLA_PARENT_DEV_NAME, b""))

    @property
    def kind(self) -> str:
        """veth, macvlan ...; empty for hardware."""
        info = netlink.attributes(self.raw.get(IFLA_LINKINFO, b""))
        return netlink.string(info.get(IFLA_INFO_KIND, b""))

    @property
    def master(self) -> int:
        """The index of the bond, bridge or VRF that this link is a port of; 0 if none."""
        return self.number(IFLA_MASTER)

    @property
    def altnames(self) -> list[str]:
        return [
            netlink.string(value)
            for kind, value in netlink.pairs(self.raw.get(IFLA_PROP_LIST, b""))
            if kind == IFLA_ALT_IFNAME
        ]

    @property
    def xdp(self) -> dict[str, int]:
        """The IDs of the link's XDP programs by mode: driver, generic, hardware."""
        raw = netlink.attributes(self.raw.get(IFLA_XDP, b""))
        return {mode: netlink.number(raw[kind]) for mode, (kind, _flag) in _XDP.items() if kind in raw}

    def number(self, kind: int) -> int:
        return netlink.number(self.raw.get(kind, b""))


@contextlib.contextmanager
def step(action: str) -> t.Iterator[None]:
    """Turn an OSError in the block into a KernelError that names the step."""
    try:
        yield
    except OSError as error:
        raise kernel_error(action, error) from error


def kernel_error(action: str, error: OSError) -> KernelError:
    """The KernelError for a step that failed with an OSError."""
    code = error.errno or 0
    detail = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else ""
    standard = os.strerror(code) if code else ""
    return KernelError(action, code, f"{detail} ({standard})" if detail and detail != standard else standard)


def mac_text(value: bytes) -> str:
    """A link address of any length: InfiniBand addresses have 20 bytes."""
    return value.hex(":") if any(value) else ""


def mac_bytes(value: str) -> bytes:
    return bytes.fromhex(value.replace(":", ""))


def header(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return _IFINFO.pack(socket.AF_UNSPEC, 0, index, flags, change)


def parse(body: bytes) -> Link:
    _unused, kind, index, flags, _unused = _IFINFO.unpack_from(body)
    return Link(index, flags, netlink.attributes(body, _IFINFO.size), kind)


def listed(connection: Netlink) -> list[Link]:
    """All links of the connection's namespace."""
    mask = netlink.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
    return [parse(body) for _unused, body in connection.dump(RTM_GETLINK, header() + mask)]


def get(
    connection: Netlink,
    name: str = "",
    altname: str = "",
    index: int = 0,
    vfs: bool = False,
    netnsid: int | None = None,
    statistics: bool = False,
) -> Link | None:
    """One link by name, altname or index; None if there is none. With `vfs` the link has the settings of the virtual
    functions, and with `statistics` the counters. `netnsid` is the ID that the connection's namespace has for another
    namespace to search. Raises OSError."""
    mask = (0 if statistics else RTEXT_FILTER_SKIP_STATS) | (RTEXT_FILTER_VF if vfs else 0)
    body = header(index) + netlink.u32(IFLA_EXT_MASK, mask)
    if name:
        body += netlink.text(IFLA_IFNAME, name)
    elif altname:
        body += netlink.text(IFLA_ALT_IFNAME, altname)
    if netnsid is not None:
        body += netlink.attribute(IFLA_TARGET_NETNSID, struct.pack("=i", netnsid))
    try:
        replies = connection.request(RTM_GETLINK, body)
    except OSError as error:
        # EINVAL: a kernel without altnames, or the ID of a namespace that is gone
        if netlink.missing(error) or (
            (altname or netnsid is not None) and error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
        ):
            return None
        raise
    return parse(replies[0][1])


def change(connection: Netlink, index: int, *attributes: bytes, flags: int = 0, mask: int = 0) -> None:
    """Set attributes, and those flags that are in `mask`. Raises OSError."""
    connection.request(RTM_SETLINK, header(index, flags, mask) + b"".join(attributes))


def set_link_state(connection: Netlink, index: int, *, up: bool) -> None:
    """Bring a link up or down. Raises OSError."""
    change(connection, index, flags=IFF_UP if up else 0, mask=IFF_UP)


def remove_xdp(connection: Netlink, index: int, mode: str) -> None:
    """Remove the XDP program of one mode (driver, generic, hardware)."""
    none = netlink.attribute(_XDP_FD, struct.pack("=i", -1)) + netlink.u32(_XDP_FLAGS, _XDP[mode][1])
    change(connection, index, netlink.nest(IFLA_XDP, none))


def altnames(connection: Netlink, index: int, names: t.Iterable[str], add: bool) -> None:
    """Add or remove altnames. It is not an error if the link already has or no longer has one of them. Raises
    OSError."""
    for name in names:
        body = header(index) + netlink.nest(IFLA_PROP_LIST, netlink.text(IFLA_ALT_IFNAME, name))
        try:
            flags = netlink.EXCLUSIVE | netlink.CREATE | netlink.APPEND if add else 0
            connection.request(RTM_NEWLINKPROP if add else RTM_DELLINKPROP, body, flags)
        except OSError as error:
            exists = add and error.errno == errno.EEXIST and (get(connection, altname=name) or _NONE).index == index
            if not exists and not (not add and error.errno in (errno.ENOENT, errno.EINVAL)):
                raise


_NONE = Link(0, 0, {})


def delete(connection: Netlink, index: int) -> None:
    """Delete a virtual link; a missing one is not an error."""
    connection.drop(RTM_DELLINK, header(index))
