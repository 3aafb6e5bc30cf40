# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All attributes of a link in rtnetlink and /sys/class/net, for comparing and restoring them.

Every attribute of the link itself is included, also those of newer kernels, and every file of the link and its queues;
of nested attributes the parts `_INFO_KEPT`, `_INET_KEPT` and `_INET6_KEPT`. The exceptions may differ between two reads
of an unchanged link, or are compared elsewhere (`MAY_DIFFER`, `_FILES_MAY_DIFFER`, `_QUEUE_FILES_MAY_DIFFER`, each with
the reason).
"""

from __future__ import annotations

import errno
import os
import socket
import typing as t

from . import links, netlink
from .netlink import Netlink

SYS = "/sys/class/net"

_NAMES = (
    "UNSPEC ADDRESS BROADCAST IFNAME MTU LINK QDISC STATS COST PRIORITY MASTER WIRELESS PROTINFO TXQLEN MAP WEIGHT "
    "OPERSTATE LINKMODE LINKINFO NET_NS_PID IFALIAS NUM_VF VFINFO_LIST STATS64 VF_PORTS PORT_SELF AF_SPEC GROUP "
    "NET_NS_FD EXT_MASK PROMISCUITY NUM_TX_QUEUES NUM_RX_QUEUES CARRIER PHYS_PORT_ID CARRIER_CHANGES PHYS_SWITCH_ID "
    "LINK_NETNSID PHYS_PORT_NAME PROTO_DOWN GSO_MAX_SEGS GSO_MAX_SIZE PAD XDP EVENT NEW_NETNSID IF_NETNSID "
    "CARRIER_UP_COUNT CARRIER_DOWN_COUNT NEW_IFINDEX MIN_MTU MAX_MTU PROP_LIST ALT_IFNAME PERM_ADDRESS "
    "PROTO_DOWN_REASON PARENT_DEV_NAME PARENT_DEV_BUS_NAME GRO_MAX_SIZE TSO_MAX_SIZE TSO_MAX_SEGS ALLMULTI "
    "DEVLINK_PORT GSO_IPV4_MAX_SIZE GRO_IPV4_MAX_SIZE DPLL_PIN MAX_PACING_OFFLOAD_HORIZON NETNS_IMMUTABLE HEADROOM "
    "TAILROOM"
).split()
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}

_ELSEWHERE = "is compared in host_state.py, in another form"
_COUNTS = "is a counter"
_STATE = "depends on carrier and on the other end"
_INDEX = "links and namespaces get new numbers when either end moves"
_USERS = "counts listeners, such as programs of the node; stacked.py finds the leftovers of a pod"
#: Attributes that are not settings of the link, or are compared elsewhere, with the reason.
MAY_DIFFER = {
    **dict.fromkeys(("ADDRESS", "IFNAME", "MTU", "MASTER", "TXQLEN", "IFALIAS", "GROUP", "PROP_LIST"), _ELSEWHERE),
    **dict.fromkeys(("GSO_MAX_SEGS", "GSO_MAX_SIZE", "GRO_MAX_SIZE", "GSO_IPV4_MAX_SIZE"), _ELSEWHERE),
    **dict.fromkeys(("GRO_IPV4_MAX_SIZE", "PERM_ADDRESS", "XDP", "NUM_VF", "VFINFO_LIST"), _ELSEWHERE),
    **dict.fromkeys(("STATS", "STATS64", "CARRIER_CHANGES", "CARRIER_UP_COUNT", "CARRIER_DOWN_COUNT"), _COUNTS),
    **dict.fromkeys(("CARRIER", "EVENT"), _STATE),
    **dict.fromkeys(("LINK", "LINK_NETNSID", "NEW_NETNSID", "IF_NETNSID", "NEW_IFINDEX"), _INDEX),
    **dict.fromkeys(("PROMISCUITY", "ALLMULTI"), _USERS),
    "QDISC": "is noop until the link comes up for the first time; configured qdiscs are in the host state (qdiscs.py)",
    **dict.fromkeys(("HEADROOM", "TAILROOM"), "depends on what the other end needs, and cannot be set"),
    "WIRELESS": "is an event, not a setting",
    "PAD": "has no meaning",
}

_INFO_KEPT = {1: "KIND", 2: "DATA", 4: "SLAVE_KIND"}
#: Kinds of links whose data contains timers.
_INFO_WITH_TIMERS = ("bridge", "bond")
_INET_KEPT = {1: "CONF"}
#: AF_INET6 without flags, statistics, ICMP statistics, cache time stamps and the MTU announced by a router.
_INET6_KEPT = {2: "CONF", 7: "TOKEN", 8: "ADDR_GEN_MODE"}
#: The interrupt number in IFLA_MAP (struct rtnl_link_ifmap): a function gets a new one when it is bound.
_INTERRUPT = slice(24, 26)
_INET6, _TOKEN = "AF_INET6", 7
_NO_TOKEN = bytes(16)
_REASON_MASK, _REASON_VALUE = 1, 2
_TESTING, _DORMANT, _UP = 4, 5, 6

#: Files below /sys/class/net/NAME that may differ.
_FILES_MAY_DIFFER = {
    **dict.fromkeys(("ifindex", "iflink"), _INDEX),
    **dict.fromkeys(("carrier_changes", "carrier_up_count", "carrier_down_count"), _COUNTS),
    **dict.fromkeys(("carrier", "operstate", "speed", "duplex", "dormant", "testing", "uevent"), _STATE),
    **dict.fromkeys(("address", "mtu", "tx_queue_len", "netdev_group", "ifalias", "flags"), _ELSEWHERE),
    **dict.fromkeys(("link_mode", "broadcast", "proto_down"), "is an attribute of the rtnetlink message too"),
    "addr_assign_type": "changes when an address is set, as restoring does",
    "name_assign_type": "changes when a name is set, as restoring does",
}
_QUEUE_FILES_MAY_DIFFER = {
    **dict.fromkeys(("tx_timeout", "stall_cnt"), _COUNTS),
    **dict.fromkeys(("inflight", "limit", "stall_max"), "the kernel computes it from the traffic"),
    "traffic_class": "depends on the queueing discipline",
}
#: Written even if the values are equal, because a write also resets what was set for single NAPI instances.
_FOR_ALL_NAPI = ("gro_flush_timeout", "napi_defer_hard_irqs")


def name(kind: int) -> str:
    """An attribute's name in linux/if_link.h, without IFLA_; the number if this module does not know the name."""
    return _NAMES[kind] if kind < len(_NAMES) else str(kind)


def attributes(link: links.Link) -> dict[str, str]:
    """The attributes of a link, by name, in hexadecimal; without those that may differ."""
    values: dict[str, str] = {}
    for kind, value in link.raw.items():
        attribute_name = name(kind)
        if attribute_name in MAY_DIFFER:
            continue
        if attribute_name == "OPERSTATE":
            # two of the values are settings, the others depend on carrier
            if value[0] in (_TESTING, _DORMANT):
                values[attribute_name] = value.hex()
        elif attribute_name == "MAP":
            masked = bytearray(value)
            masked[_INTERRUPT] = bytes(len(masked[_INTERRUPT]))
            values[attribute_name] = masked.hex()
        elif attribute_name == "LINKINFO":
            values.update(_parts("LINKINFO", value, _INFO_KEPT))
            if link.kind in _INFO_WITH_TIMERS:
                values.pop("LINKINFO.DATA", None)
        elif attribute_name == "AF_SPEC":
            for family, inner in netlink.pairs(value):
                if family == socket.AF_INET:
                    values.update(_parts("AF_INET", inner, _INET_KEPT))
                elif family == socket.AF_INET6:
                    values.update(_parts(_INET6, inner, _INET6_KEPT))
                else:
                    values[f"AF_SPEC.{family}"] = inner.hex()
        else:
            values[attribute_name] = value.hex()
    return values


def _parts(start: str, value: bytes, kept: t.Mapping[int, str]) -> dict[str, str]:
    return {f"{start}.{kept[kind]}": inner.hex() for kind, inner in netlink.pairs(value) if kind in kept}


def restore_attributes(connection: Netlink, index: int, wanted: t.Mapping[str, str]) -> None:
    """Restore the attributes that differ, in the form that the kernel reported; of nested ones, only the IPv6 token.

    If the kernel does not accept an attribute, it still differs afterwards, and the comparison reports it. Does nothing
    for a link that does not exist. Raises OSError if it disappears meanwhile, or if replies are lost.
    """
    link = links.get(connection, index=index)
    if link is None:
        return
    now = attributes(link)
    for attribute_name in sorted({*wanted, *now}):
        if wanted.get(attribute_name) == now.get(attribute_name):
            continue
        message = _message(attribute_name, wanted.get(attribute_name))
        if message:
            try:
                links.change(connection, index, message)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENOBUFS):
                    raise
    if "PROTO_DOWN" in now and wanted.get("PROTO_DOWN") != now["PROTO_DOWN"] and "PROTO_DOWN_REASON" in now:
        _send_again(connection, index, wanted, "PROTO_DOWN")  # refused above, because the reasons were still set


def _send_again(connection: Netlink, index: int, wanted: t.Mapping[str, str], attribute_name: str) -> None:
    message = _message(attribute_name, wanted.get(attribute_name))
    if message:
        try:
            links.change(connection, index, message)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise


def _message(attribute_name: str, value: str | None) -> bytes:
    """The attribute that restores a value; empty if there is none."""
    if attribute_name == "PROTO_DOWN_REASON" and value is None:
        no_reasons = netlink.u32(_REASON_MASK, 2**32 - 1) + netlink.u32(_REASON_VALUE, 0)
        return netlink.nest(_NUMBERS[attribute_name], no_reasons)
    if attribute_name == "OPERSTATE" and value is None:
        return netlink.u8(_NUMBERS[attribute_name], _UP)
    if attribute_name == f"{_INET6}.TOKEN":
        token = bytes.fromhex(value) if value else _NO_TOKEN
        return netlink.nest(_NUMBERS["AF_SPEC"], netlink.nest(socket.AF_INET6, netlink.attribute(_TOKEN, token)))
    if value is None or "." in attribute_name:
        return b""
    kind = _NUMBERS.get(attribute_name) or int(attribute_name)
    return netlink.attribute(kind, bytes.fromhex(value))


# ---- files


def files(link_name: str) -> dict[str, str]:
    """The contents of a link's files in /sys, by relative path; without files that may differ or have no value."""
    base = f"{SYS}/{link_name}"
    values = _values(base, "", _FILES_MAY_DIFFER)
    try:
        queues = os.listdir(f"{base}/queues")
    except OSError:
        queues = []
    for queue in queues:
        values.update(_values(base, f"queues/{queue}/", _QUEUE_FILES_MAY_DIFFER))
        if queue.startswith("tx-"):
            values.update(_values(base, f"queues/{queue}/byte_queue_limits/", _QUEUE_FILES_MAY_DIFFER))
    return values


def _values(base: str, folder: str, excluded: t.Container[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    try:
        opened = os.open(f"{base}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return values
    try:
        for entry in list(os.scandir(opened)):
            if entry.name in excluded or not entry.is_file(follow_symlinks=False):
                continue
            try:
                descriptor = os.open(entry.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=opened)
            except OSError:  # write-only
                continue
            try:
                values[f"{folder}{entry.name}"] = os.read(descriptor, 4096).decode(errors="replace").strip()
            except OSError:  # not supported by the device, or not while it is down
                continue
            finally:
                os.close(descriptor)
    except OSError:  # the link is gone
        pass
    finally:
        os.close(opened)
    return values


def write_files(link_name: str, wanted: t.Mapping[str, str]) -> None:
    """Write the files that differ, as far as the kernel accepts them."""
    now = files(link_name)
    for path, value in wanted.items():
        if path in now and (now[path] != value or path in _FOR_ALL_NAPI):
            try:
                descriptor = os.open(f"{SYS}/{link_name}/{path}", os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                os.write(descriptor, value.encode())
            except OSError:
                continue
            finally:
                os.close(descriptor)
