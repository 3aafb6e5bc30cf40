# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Traffic control filters and classes on an interface of the node. Numbers are those of linux/rtnetlink.h and
linux/pkt_sched.h.

The kernel drops filters and classes when the interface moves to another namespace, and does not report enough to
restore them. So an interface that has some is not given to pods. BPF filters are ignored: their owner (such as Cilium)
watches the interfaces and installs the filters again. The driver's own classes, which divide an interface (htb.py), are
also ignored.
"""

from __future__ import annotations

import errno
import socket
import struct
import typing as t

from . import htb, links, netlink
from .netlink import Netlink

_GET_CLASSES, _GET_FILTERS = 42, 46
_KIND = 1
_TC = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
#: The possible parents of filters: the root qdisc, ingress, and both sides of clsact. A request for ingress would also
#: return the filters of both sides of clsact, without saying which side.
_ROOT, _INGRESS = {0: "at the root"}, {0xFFFF0000: "at ingress"}
_CLSACT = {0xFFFFFFF2: "at ingress", 0xFFFFFFF3: "at egress"}
#: Qdiscs with configured classes; others (mq, fq_codel) create their own.
_CLASSFUL = ("htb", "hfsc", "drr", "qfq")


def lost_by_move(connection: Netlink, interface: str) -> str:
    """What an interface would lose by moving to another namespace, for messages (`filters (u32 at ingress)`); empty if
    nothing, or if there is no such interface. Raises OSError."""
    link = links.get(connection, name=interface)
    if link is None:
        return ""
    index = link.index
    filter_kinds = _filters(connection, index, _ROOT)
    filter_kinds += _filters(connection, index, _INGRESS) or _filters(connection, index, _CLSACT)
    classes = [kind for kind in _kinds(connection, _GET_CLASSES, index, 0) if kind in _CLASSFUL]
    lost = [("filters", filter_kinds), ("classes", classes)]
    return " and ".join(f"{what} ({', '.join(dict.fromkeys(kinds))})" for what, kinds in lost if kinds)


def _filters(connection: Netlink, index: int, parents: t.Mapping[int, str]) -> list[str]:
    """The kinds of the filters below some parents, without BPF programs, each with the description of its parent."""
    filters = [
        (kind, text) for parent, text in parents.items() for kind in _kinds(connection, _GET_FILTERS, index, parent)
    ]
    return [f"{kind} {text}" for kind, text in filters if kind != "bpf"]


def _kinds(connection: Netlink, request: int, index: int, parent: int) -> list[str]:
    try:
        replies = list(connection.dump(request, _TC.pack(socket.AF_UNSPEC, index, 0, parent, 0)))
    except OSError as error:
        # the interface has no such qdisc, or is gone
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return []
        raise
    kinds = []
    for _type, body in replies:
        _family, owner, handle, reply_parent, _info = _TC.unpack_from(body)
        kind = netlink.attributes(body, _TC.size).get(_KIND)
        if owner == index and kind and not (htb.is_ours(handle) or htb.is_ours(reply_parent)):
            kinds.append(netlink.string(kind))
    return kinds
