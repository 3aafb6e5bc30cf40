# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which interfaces the node needs for itself, as the running kernel has it.

Those with a default route in any table, those that SSH sessions, the node's address and the way to the API server are
on, and everything that these stand on: the ports of a bond or bridge, the parent of a VLAN.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
import typing as t

from . import addresses as known_addresses
from . import links, routes
from .addresses import Address
from .links import Link, step
from .netlink import Netlink

_MAIN = (routes.TABLE_MAIN, routes.TABLE_DEFAULT)
_ESTABLISHED = "01"
_SSH_PORT = 22
_SSH_SERVERS = ("sshd", "sshd-session", "dropbear")
_READ = "read the node's network tables"


def default_routes(tables: str = "all") -> dict[int, str]:
    """Interfaces by index with the reason, of the default routes of C(all) tables, the C(main) ones, or the C(best).

    The best ones are those of the main table with the lowest metric, IPv6 counting where IPv4 has none.
    Routers announce themselves to every port of a fabric, so a default route that came by IPv6 router advertisement
    counts only where it is the node's best one and there is no other kind. Raises KernelError.
    """
    with step(_READ), Netlink() as kernel:
        known = [one for one in routes.defaults(kernel) if tables == "all" or one.table in _MAIN]
    if tables == "best":
        known = [one for one in known if not one.six] or known
    stated = [one for one in known if not one.by_router]
    if known and (tables == "best" or not stated):
        stated = stated or known
        best = min(one.priority for one in stated)
        stated = [one for one in stated if one.priority == best]
    found: dict[int, str] = {}
    for route in stated:
        where = "" if route.table in _MAIN else f" of table {route.table}"
        for index in route.indexes:
            found.setdefault(index, f"it carries the default route{where}")
    return found


def addresses() -> dict[Address, int]:
    """The addresses of this namespace and the index of the interface of each. Raises KernelError."""
    with step(_READ), Netlink() as kernel:
        return known_addresses.owners(kernel)


def ssh_sessions() -> set[tuple[Address, Address]]:
    """Own and far address of each SSH session to this node that is open.

    A session is a connection that an SSH server's process holds or that came to port 22; in a pod without the host's
    processes only the latter is seen.
    """
    connections: list[tuple[Address, int, Address, str]] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/thread-self/net/{name}", encoding="ascii") as file:
                next(file, None)
                for line in file:
                    columns = line.split()
                    if len(columns) > 9 and columns[3] == _ESTABLISHED:
                        own, port = _endpoint(columns[1])
                        connections.append((own, port, _endpoint(columns[2])[0], columns[9]))
        except OSError:
            continue
    held = _sockets_of(_SSH_SERVERS) if connections else set()
    return {(own, far) for own, port, far, inode in connections if port == _SSH_PORT or inode in held}


def _endpoint(text: str) -> tuple[Address, int]:
    """An address of /proc/net/tcp: words of 32 bits in the machine's byte order, in hex."""
    words, _colon, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address: Address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address, int(port, 16)


_SOCKET = re.compile(r"socket:\[(\d+)\]")


def _sockets_of(programs: t.Sequence[str]) -> set[str]:
    """Inodes of the sockets that processes of these names have open."""
    found: set[str] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as file:
                if file.read().strip() not in programs:
                    continue
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                match = _SOCKET.match(os.readlink(f"/proc/{entry}/fd/{descriptor}"))
                if match:
                    found.add(match.group(1))
        except OSError:
            continue  # it has ended meanwhile
    return found


def paths(pairs: t.Iterable[tuple[Address | None, Address | None]], reason: str) -> dict[int, str]:
    """Interfaces by index on the way between own and far addresses, either of which may be unknown.

    They are those that have the own address and those by which the far one is reached. Raises KernelError.
    """
    found: dict[int, str] = {}
    pairs = list(pairs)
    if not pairs:
        return found
    with step(_READ), Netlink() as kernel:
        owners = known_addresses.owners(kernel)
        for own, far in pairs:
            if own in owners:
                found[owners[own]] = reason
            index = routes.way_to(kernel, far, own if own in owners else None) if far else None
            if index:
                found.setdefault(index, reason)
    return found


def uplinks(needed: t.Mapping[int, str], known: t.Mapping[int, Link] | None = None) -> dict[str, str]:
    """Names and reasons of the interfaces in C(needed) (index and reason) and all that they stand on.

    Raises KernelError.
    """
    if known is None:
        with step(_READ), Netlink() as kernel:
            known = {link.index: link for link in links.listed(kernel)}
    ports: dict[int, list[int]] = {}
    for link in known.values():
        if link.master:
            ports.setdefault(link.master, []).append(link.index)
    found: dict[str, str] = {}
    pending = [(known[index], reason) for index, reason in needed.items() if index in known]
    while pending:
        link, reason = pending.pop()
        if link.name in found or link.name == "lo":
            continue
        found[link.name] = reason
        below = [*ports.get(link.index, ()), *([link.stands_on] if link.stands_on else [])]
        why = reason if reason.startswith("it is below") else f"it is below {link.name}: {reason}"
        pending += [(known[index], why) for index in below if index in known]
    return found
