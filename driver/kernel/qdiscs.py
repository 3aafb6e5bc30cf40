# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configured queueing disciplines of an interface. Numbers are those of linux/rtnetlink.h and linux/pkt_sched.h.

Classes and filters are not included: a qdisc is restored without them, or not at all if it reports its options in a
different form than it accepts (htb).
"""

from __future__ import annotations

import socket
import struct
import typing as t

from . import netlink
from .netlink import Netlink

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
_KIND, _OPTIONS = 1, 2
#: TCA_OPTIONS, TCA_STAB, TCA_INGRESS_BLOCK and TCA_EGRESS_BLOCK. The other attributes are the kind and statistics.
_KEPT = (2, 8, 13, 14)
_TC = struct.Struct("=BxxxiIII")


class Qdisc(t.TypedDict):
    """A qdisc of a host state; `raw` contains the attributes in hexadecimal, by number."""

    kind: str
    handle: int
    parent: int
    raw: dict[str, str]


def listed(connection: Netlink, index: int) -> list[Qdisc]:
    """The qdiscs of an interface, parents first; without the kernel's default qdiscs, which have no handle. Raises
    OSError."""
    result: list[Qdisc] = []
    for _unused, body in connection.dump(RTM_GETQDISC, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)):
        _unused, owner, handle, parent, _unused = _TC.unpack_from(body)
        if owner != index or not handle:
            continue
        raw = netlink.attributes(body, _TC.size)
        result.append(
            {
                "kind": netlink.string(raw[_KIND]),
                "handle": handle,
                "parent": parent,
                "raw": {str(key): raw[key].hex() for key in _KEPT if raw.get(key)},
            }
        )
    return result


def add(connection: Netlink, index: int, qdisc: Qdisc) -> None:
    """Add a qdisc; it replaces an existing one with the same parent. Raises OSError."""
    body = _TC.pack(socket.AF_UNSPEC, index, qdisc["handle"], qdisc["parent"], 0)
    body += netlink.text(_KIND, qdisc["kind"])
    for key, value in qdisc["raw"].items():
        body += netlink.attribute(int(key), bytes.fromhex(value), nested=int(key) == _OPTIONS)
    connection.request(RTM_NEWQDISC, body, netlink.CREATE | netlink.REPLACE)


def remove(connection: Netlink, index: int, qdisc: Qdisc) -> None:
    """Remove a qdisc; a missing one is not an error. Raises OSError."""
    connection.drop(RTM_DELQDISC, _TC.pack(socket.AF_UNSPEC, index, qdisc["handle"], qdisc["parent"], 0))
