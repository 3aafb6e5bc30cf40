# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Netlink messages that pyroute2 (0.7.2 to 0.9.7) lacks or encodes wrongly, as pyroute2 classes, and its sockets.

Import this file only where a netlink socket is opened: pyroute2 is slow to load. Netlink attributes are named after
this collection's settings, not after the constants of the kernel. Numbers are those of linux/if_link.h,
linux/ethtool_netlink.h, linux/dcbnl.h and rdma/rdma_netlink.h.
"""

from __future__ import annotations

import typing as t

from .pyroute2_types import Message, Socket

try:
    from pyroute2 import IPRoute
    from pyroute2.netlink import NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, genlmsg, nla, nlmsg
    from pyroute2.netlink.devlink import devlinkcmd
    from pyroute2.netlink.generic import GenericNetlinkSocket
    from pyroute2.netlink.generic.ethtool import ethtoolbitset, ethtoolheader
    from pyroute2.netlink.nlsocket import NetlinkSocket
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfbase

    IMPORT_ERROR = ""
except ImportError as error:  # System.socket reports the error and uses no class of this file
    IMPORT_ERROR = str(error)
    genlmsg = nla = nlmsg = object
    ifinfbase = type("ifinfbase", (), {})
    NLA_F_NESTED = 0
    devlinkcmd = ethtoolbitset = ethtoolheader = None

NEW_LINK, GET_LINK, GET_DCB, SET_DCB = 16, 18, 78, 79
SET_RDMA_SYSTEM = (5 << 10) + 7
#: Attributes of a message: name and value, as pyroute2 encodes them.
Attributes = t.Sequence[tuple[str, object]]
#: The numbers of the families that are not generic. The class IPRoute of pyroute2 0.9 accepts only its own messages, so
#: it is not used for ROUTE.
_FAMILIES = {"ROUTE": 0, "RDMA": 20}


class Link(ifinfbase, nlmsg):
    """An interface. pyroute2's own class encodes a VF's GUID as 36 bytes in little-endian order instead of the 16 of
    struct ifla_vf_guid, and its VLAN as 14 bytes, where new kernels require 16 (ifla_vf_vlan_info)."""

    class vflist(nla):
        nla_flags = NLA_F_NESTED
        nla_map = ((1, "vf", "info"),)

        class info(nla):
            nla_flags = NLA_F_NESTED
            nla_map = (
                *((1, "mac", "address"), (2, "vlan", "tag"), (4, "spoof_check", "number")),
                *((5, "link_state", "number"), (6, "rate", "limits"), (9, "trust", "number")),
                *((10, "node_guid", "guid"), (11, "port_guid", "guid"), (12, "vlans", "tags")),
            )

            class number(nla):
                fields = (("vf", "I"), ("number", "I"))

            class address(nla):
                fields = (("vf", "I"), ("mac", "32s"))

            class tag(nla):
                fields = (("vf", "I"), ("vlan", "I"), ("qos", "I"))

            class limits(nla):
                fields = (("vf", "I"), ("low", "I"), ("high", "I"))

            class guid(nla):  # aligned as on 64-bit machines
                fields = (("vf", "I"), ("pad", "I"), ("guid", "Q"))

            class tags(nla):
                nla_flags = NLA_F_NESTED
                nla_map = ((1, "vlan", "tag"),)

                class tag(nla):
                    fields = (("vf", "I"), ("vlan", "I"), ("qos", "I"), ("protocol", ">H"), ("pad", "H"))


class Ethtool(genlmsg):
    """A message of the generic netlink family `ethtool`."""

    ethtoolheader = ethtoolheader
    ethtoolbitset = ethtoolbitset

    class switch(nla):
        fields = (("value", "B"),)
        value_map = {0: False, 1: True}


_HEADER = (1, "header", "ethtoolheader")


def _numbers(first: int, *names: str) -> tuple[tuple[int, str, str], ...]:
    """Rows of `nla_map` for 32-bit attributes with consecutive numbers."""
    return tuple((first + offset, name, "uint32") for offset, name in enumerate(names))


class Channels(Ethtool):
    nla_map = (
        _HEADER,
        *_numbers(2, "rx max", "tx max", "other max", "combined max"),
        *_numbers(6, "rx", "tx", "other", "combined"),
    )


class Rings(Ethtool):
    nla_map = (
        _HEADER,
        *_numbers(2, "rx max", "rx_mini max", "rx_jumbo max", "tx max"),
        *_numbers(6, "rx", "rx_mini", "rx_jumbo", "tx"),
    )


class Coalesce(Ethtool):
    nla_map = (
        _HEADER,
        *_numbers(2, "rx_usecs", "rx_frames", "rx_usecs_irq", "rx_frames_irq"),
        *_numbers(6, "tx_usecs", "tx_frames", "tx_usecs_irq", "tx_frames_irq"),
        *((11, "adaptive_rx", "switch"), (12, "adaptive_tx", "switch")),
        *((24, "cqe_mode_tx", "switch"), (25, "cqe_mode_rx", "switch")),
    )


class Pause(Ethtool):
    nla_map = (_HEADER, (2, "autoneg", "switch"), (3, "rx", "switch"), (4, "tx", "switch"))


class Features(Ethtool):
    nla_map = (
        _HEADER,
        *((2, "changeable", "ethtoolbitset"), (3, "wanted", "ethtoolbitset")),
        *((4, "active", "ethtoolbitset"), (5, "fixed", "ethtoolbitset")),
    )


class PrivateFlags(Ethtool):
    nla_map = (_HEADER, (2, "active", "ethtoolbitset"))


#: The command that reads each group (the next number sets it), and its message.
ETHTOOL: dict[str, tuple[int, type[Ethtool]]] = {
    "features": (11, Features),
    "private_flags": (13, PrivateFlags),
    "rings": (15, Rings),
    "channels": (17, Channels),
    "coalesce": (19, Coalesce),
    "pause": (21, Pause),
}


class Dcb(nlmsg):
    """The Data Center Bridging settings of an interface."""

    fields = (("family", "B"), ("cmd", "B"), ("pad", "H"))
    nla_map = ((1, "ifname", "asciiz"), (13, "ieee", "ieee"))

    class ieee(nla):
        nla_flags = NLA_F_NESTED
        nla_map = ((1, "ets", "ets"), (2, "pfc", "pfc"), (3, "apps", "apps"), (10, "buffer", "buffer"))

        class ets(nla):
            fields = (
                *(("willing", "B"), ("ets_cap", "B"), ("cbs", "B")),
                *(("bandwidth", "8B"), ("rx_bandwidth", "8B"), ("tsa", "8B"), ("priority_tc", "8B")),
                *(("reco_bandwidth", "8B"), ("reco_tsa", "8B"), ("reco_priority_tc", "8B")),
            )

        class pfc(nla):
            fields = (
                *(("cap", "B"), ("enabled", "B"), ("mbc", "B"), ("pad", "B"), ("delay", "H"), ("pad2", "H")),
                *(("requests", "8Q"), ("indications", "8Q")),
            )

        class apps(nla):
            nla_flags = NLA_F_NESTED
            nla_map = ((1, "app", "app"),)

            class app(nla):
                fields = (("selector", "B"), ("priority", "B"), ("protocol", "H"))

        class buffer(nla):
            fields = (("priority_buffer", "8B"), ("size", "8I"), ("total", "I"))


class DcbReply(nlmsg):
    """The reply to a change: `status` is 0, or the negative error number as an unsigned byte."""

    fields = Dcb.fields
    nla_map = ((13, "status", "uint8"),)


Devlink = devlinkcmd


class RdmaSystem(nlmsg):
    """The settings of the RDMA subsystem."""

    nla_map = ((66, "netns_mode", "uint8"),)


def open_socket(name: str) -> Socket:
    """A socket: `IPRoute`, or that of the family `name`. Raises NetlinkError, OSError."""
    if name == "IPRoute":
        return IPRoute(ext_ack=True)
    classic = name in _FAMILIES  # not a generic netlink family
    socket = NetlinkSocket(_FAMILIES[name], ext_ack=True) if classic else GenericNetlinkSocket(ext_ack=True)
    try:
        socket.bind(*(() if classic else (name, genlmsg)))
    except BaseException:
        socket.close()
        raise
    if name == "ROUTE":
        socket.register_policy({NEW_LINK: Link, GET_DCB: Dcb, SET_DCB: DcbReply})
    return socket


def exchange(
    socket: Socket, number: int, message: type[nlmsg], attributes: Attributes, change: bool = False, **fields: int
) -> tuple[Message, ...]:
    """The kernel's replies to a message. For a change there is at least an acknowledgment."""
    request: Message = message()
    request.update(fields)
    request["attrs"] = list(attributes)
    return tuple(socket.nlm_request(request, msg_type=number, msg_flags=NLM_F_REQUEST | (NLM_F_ACK if change else 0)))


def generic(
    socket: Socket, command: int, message: type[nlmsg], attributes: Attributes, change: bool = False
) -> tuple[Message, ...]:
    """As `exchange`, for a generic netlink family; the replies have the class of the message."""
    socket.register_policy(socket.prid, message)
    return exchange(socket, socket.prid, message, attributes, change, cmd=command, version=1)
