# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which interfaces carry this node's own traffic, and why: the rule shared by the driver and the guard of configure.

They are the interfaces of default routes; of SSH sessions (both the one with the local address and those that the
replies leave by); of storage that the node uses itself; of other paths that the caller names; and all interfaces below
these: ports of a bond, bridge or VRF, the parent of a VLAN, the PF of a VF, the underlay of a tunnel.

Nothing is guessed. If something cannot be read, the interfaces concerned count as needed, with that as the reason.
"""

from __future__ import annotations

import collections
import threading
import time
import typing as t
from dataclasses import dataclass, field, replace

from . import links, netlink, routes, sockets, ssh, storage, tunnels
from .links import Link, Stack
from .routes import Address, Default, Query, Routes
from .watch import Watch

#: The most remote ends that are looked up for one address of this node. Anyone can connect to an SSH server: for more
#: clients only the interface with the local address is reported.
_MOST = 64
#: The most paths to storage that are looked up; with more, every interface with an address counts as needed.
_MOST_USED = 1024


@dataclass(frozen=True)
class Path:
    """The local and remote end of traffic that the node needs; either may be unknown.

    `holds` is the reason for the interface with the local address, `leads` the reason for those by which packets to the
    remote end leave.
    """

    own: Address | None
    far: Address | None
    holds: str
    leads: str
    bound: int = 0
    mark: int = 0
    own_port: int = 0
    far_port: int = 0


@dataclass(frozen=True)
class Carried:
    """Reasons, as clauses about the interface, by its index and by its name."""

    by_index: t.Mapping[int, str] = field(default_factory=dict)
    by_name: t.Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Sockets:
    """Open connections at one time: those of SSH, each with whether it is certainly authenticated, and those of
    storage; for each, what could not be read. `asked` are the ports that the caller named."""

    at: float
    asked: frozenset[int]
    ssh: list[tuple[sockets.Socket, bool]]
    ssh_unread: list[str]
    storage: list[sockets.Socket]
    storage_unread: list[str]


@dataclass
class _Tables:
    """The kernel's tables, valid until the kernel reports a change."""

    stack: Stack
    owners: dict[Address, tuple[int, ...]]
    defaults: list[Default]


class Rule:
    """The rule for the network namespace of the thread that creates it; usable from any thread of that namespace.

    With `remember`, an interface that was used by an SSH session stays needed while the session's local address is on
    the node: clients that have logged in over it will do so again. `root` is the folder of `sys` and `proc`.
    """

    def __init__(self, remember: bool = False, root: str = "") -> None:
        self._remember = remember
        self._root = root
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._ssh = ssh.Servers(f"{root}/proc")
        self._clients: dict[tuple[Address, Address], None] = {}
        self._tables: _Tables | None = None
        self._files: tuple[float, tuple[list[storage.End], list[str]]] = (0.0, ([], []))
        self._sockets: _Sockets | None = None
        self._last: tuple[float, object, Carried] | None = None

    def now(
        self,
        paths: t.Sequence[Path] = (),
        default_routes: str = "all",
        ssh_ports: t.Collection[int] = (),
        at_most: float = 0.0,
    ) -> Carried:
        """The needed interfaces of the whole node. Raises OSError if the kernel's tables cannot be read.

        `default_routes` selects the ones that count: `all`, those of the `main` table, or the `best` of those: the ones
        with the lowest metric, of IPv6 only if IPv4 has none. `ssh_ports` are ports of SSH servers in addition to those
        found. Open connections and the files that name storage may be `at_most` this old, in seconds; links, addresses
        and routes are always current. Concurrent callers share one answer.
        """
        asked = (tuple(paths), default_routes, frozenset(ssh_ports))
        with self._lock:
            if self._watch is None:
                self._watch = Watch()
            if self._watch.changed():
                self._tables = self._last = None
            began = time.monotonic()
            if self._last and self._last[1] == asked and began - self._last[0] <= at_most:
                return self._last[2]
            with netlink.Connection() as kernel:
                found = self._read(kernel, paths, default_routes, ssh_ports, at_most)
            # the answer is as old as the oldest of what it follows from
            oldest = min(began, self._sockets.at if self._sockets else began, self._files[0])
            self._last = (oldest, asked, found)
            return found

    def close(self) -> None:
        """Close the socket for the kernel's notifications."""
        with self._lock:
            if self._watch:
                self._watch.close()
            self._watch = self._tables = self._sockets = self._last = None

    def _read(
        self,
        kernel: netlink.Connection,
        paths: t.Sequence[Path],
        default_routes: str,
        ssh_ports: t.Collection[int],
        at_most: float,
    ) -> Carried:
        tables = self._tables
        lookups = Routes(kernel)
        if tables is None:
            stack = Stack(links.listed(kernel), f"{self._root}/sys")
            tables = self._tables = _Tables(stack, routes.owners(kernel), lookups.defaults())
        needed = _by_default(tables.defaults, default_routes)
        now = self._connections(frozenset(ssh_ports), at_most)
        unread = list(now.ssh_unread)
        for path in (*self._sessions(tables, lookups, now), *paths, *self._storage(now, at_most, unread)):
            for index, why in _on(path, tables, lookups):
                needed.setdefault(index, why)
        for interface, why in self._bound_storage():
            needed.setdefault(tables.stack.index(interface), why)
        if unread:
            what = ", ".join(dict.fromkeys(unread))
            why = f"it has an address, and what uses it cannot be determined: {what} could not be read"
            for index in sorted({index for holders in tables.owners.values() for index in holders}):
                needed.setdefault(index, why)
        found = _Spread(kernel, tables.stack, lookups).all_of(needed)
        return Carried(found, {tables.stack.links[index].name: why for index, why in found.items()})

    def _connections(self, ssh_ports: frozenset[int], at_most: float) -> _Sockets:
        """The open connections, at most this old: cached, as addresses change often on a node where pods start."""
        began, cached = time.monotonic(), self._sockets
        if cached and cached.asked == ssh_ports and at_most > 0 and began - cached.at <= at_most:
            return cached
        proc = f"{self._root}/proc"
        found = _Sockets(began, ssh_ports, [], [], [], [])
        self._sockets = None  # in case of an error: without a part of the connections, interfaces would be missed
        try:
            ports = sorted(self._ssh.ports(found.ssh_unread) | ssh_ports)
            open_now = sockets.established([(port, port) for port in ports], (), proc)
            found.ssh = self._ssh.sessions(open_now)
        except OSError as error:
            found.ssh_unread.append(f"the open TCP connections ({error.strerror or error})")
        ranges = [(low, high) for low, high, _what in storage.PORTS]
        try:
            found.storage = sockets.established(ranges, ranges, proc)
        except OSError as error:
            found.storage_unread.append(f"the open TCP connections ({error.strerror or error})")
        self._sockets = found
        return found

    def _sessions(self, tables: _Tables, lookups: Routes, now: _Sockets) -> list[Path]:
        """The paths of SSH sessions, including remembered ones."""
        found: dict[tuple[Address, Address], Path] = {}
        sure: dict[tuple[Address, Address], None] = {}
        for one, logged_in in now.ssh:
            found.setdefault((one.own, one.far), _of_socket(one, ssh_session(one.own, one.far)))
            if logged_in:
                sure[(one.own, one.far)] = None
        here = {own for own in {pair[0] for pair in self._clients} if own in tables.owners or lookups.holders(own)}
        for pair in self._clients:
            if pair[0] in here:
                found.setdefault(pair, ssh_session(*pair))
                sure[pair] = None
        kept = _bounded(found.values())
        if self._remember:
            kept_pairs = {(path.own, path.far) for path in kept}
            self._clients = {pair: None for pair in sure if pair in kept_pairs}
        return kept

    def _storage(self, now: _Sockets, at_most: float, unread: list[str]) -> list[Path]:
        """The paths of storage that this node uses, and of storage that it serves to others. Files are read again if
        they were read more than `at_most` seconds ago. What could not be read is added to `unread`."""
        used: dict[Path, None] = {}
        served: dict[Path, None] = {}
        began = time.monotonic()
        if not at_most or began - self._files[0] > at_most:
            self._files = (began, storage.ends(self._root))
        ends, problems = self._files[1]
        unread += [*problems, *now.storage_unread]
        for one, what in _by_port(now.storage, any(end.what == storage.CEPH for end in ends)):
            if storage.service(one.far_port):
                used[_of_socket(one, _storage_session(what, one.own, one.far, "to", "server"))] = None
            else:
                served[_of_socket(one, _storage_session(what, one.own, one.far, "from", "client"))] = None
        for end in ends:
            if end.far or end.own:
                used[_storage_session(end.what, end.own, end.far, "to", "server")] = None
        if len(used) > _MOST_USED:
            unread.append(f"all of {len(used)} paths to storage")
        return [*list(used)[:_MOST_USED], *_bounded(served)]

    def _bound_storage(self) -> t.Iterator[tuple[str, str]]:
        for end in self._files[1][0]:
            if end.interface:
                yield end.interface, f"{_an(f'{end.what} session')} is bound to it"


def _an(what: str) -> str:
    return f"{'an' if what.startswith(('iSCSI', 'NFS', 'NVMe', 'NBD', 'SMB', 'SSH')) else 'a'} {what}"


def ssh_session(own: Address | None, far: Address | None) -> Path:
    """The path of an SSH session to this node."""
    return Path(
        own, far, f"it has the address of an SSH session from {far}", f"it is on the route to the SSH client {far}"
    )


def _storage_session(what: str, own: Address | None, far: Address | None, way: str, role: str) -> Path:
    holds = f"it has the address of {_an(what)} session" + (f" {way} {far}" if far else "")
    return Path(own, far, holds, f"it is on the route to the {what} {role} {far}")


def _by_port(found: t.Sequence[sockets.Socket], ceph: bool) -> list[tuple[sockets.Socket, str]]:
    """The connections to storage, each with its service by port. `ceph` is whether files show that Ceph is used."""
    stores: list[tuple[sockets.Socket, str]] = []
    others: list[tuple[sockets.Socket, str]] = []
    for one in found:
        what = storage.service(one.far_port) or storage.service(one.own_port)
        is_store = storage.is_store(one.far_port) or storage.is_store(one.own_port)
        (stores if is_store else others).append((one, what))
    ceph = ceph or any(what == storage.CEPH for _one, what in others)
    return [*others, *(stores if ceph else ())]


def _of_socket(one: sockets.Socket, path: Path) -> Path:
    return replace(path, bound=one.bound, mark=one.mark, own_port=one.own_port, far_port=one.far_port)


def _bounded(found: t.Iterable[Path]) -> list[Path]:
    """A limited number of remote ends of each local address, so that one address does not crowd out others."""
    counts: collections.Counter[Address | None] = collections.Counter()
    kept = []
    for path in found:
        counts[path.own] += 1
        if counts[path.own] <= _MOST:
            kept.append(path)
    return kept


def _by_default(defaults: t.Sequence[Default], tables: str) -> dict[int, str]:
    """The links of default routes, with the reason.

    Routers announce themselves to every port of a fabric, so a default route from an IPv6 router advertisement counts
    only if it is the node's best one and there is no other default route.
    """
    defaults = [one for one in defaults if tables == "all" or one.table in routes.MAIN]
    if tables == "best":
        defaults = [one for one in defaults if not one.six] or defaults
    stated = [one for one in defaults if not one.by_router]
    if defaults and (tables == "best" or not stated):
        stated = stated or defaults
        best = min(one.priority for one in stated)
        stated = [one for one in stated if one.priority == best]
    found: dict[int, str] = {}
    for route in stated:
        what = f"the route to {route.destination}" if route.destination else "the default route"
        where = "" if route.table in routes.MAIN else f" of table {route.table}"
        for index in route.links:
            found.setdefault(index, f"it carries {what}{where}")
    return found


def _on(path: Path, tables: _Tables, lookups: Routes) -> t.Iterator[tuple[int, str]]:
    """The links on a path, each with its reason."""
    if path.far in tables.owners:  # the node itself
        return
    if path.far:
        query = Query(path.far, path.own, path.bound, path.mark, path.own_port, path.far_port)
        for index in sorted(lookups.way(query)):
            yield index, path.leads
    holders: set[int] = set()
    if path.own:
        holders = {*tables.owners.get(path.own, ()), *lookups.holders(path.own, path.bound)}
    if path.bound:  # several links may have the same address, such as a link-local one
        holders = {path.bound} if path.bound in holders else {path.bound, *holders}
    # a VRF is only the start of look-ups: like lo, it is not on the path
    yield from ((index, path.holds) for index in sorted(holders) if tables.stack.kind(index) != "vrf")


class _Spread:
    """Extends the needed links by all links below them."""

    def __init__(self, kernel: netlink.Connection, stack: Stack, lookups: Routes) -> None:
        self._kernel = kernel
        self._stack = stack
        self._routes = lookups
        self._found: dict[int, str] = {}
        self._unknown_tunnels: list[tuple[Link, str]] = []

    def all_of(self, needed: t.Mapping[int, str]) -> dict[int, str]:
        """`needed` are reasons by index; the first reason of each link is kept. Raises OSError."""
        self._follow(needed)
        for tunnel, reason in self._unknown_tunnels:
            why = f"{tunnel.name} may send through it, as the kernel does not report where its packets go: {reason}"
            others = [self._stack.links[one] for one in sorted(self._routes.routed()) if one in self._stack.links]
            self._follow({one.index: why for one in others if not one.is_tunnel}, tunnels_too=False)
        return self._found

    def _follow(self, needed: t.Mapping[int, str], tunnels_too: bool = True) -> None:
        existing = self._stack.links
        pending = collections.deque((existing[index], why, True) for index, why in needed.items() if index in existing)
        while pending:
            link, reason, alone = pending.popleft()
            if link.index in self._found or link.loopback:
                continue
            self._found[link.index] = reason
            why = reason if reason.startswith("it is below") else f"it is below {link.name}: {reason}"
            below = self._stack.below(link)
            # if a bridge has other ports, its ports of guests and overlays do not carry the node's traffic
            others = link.kind in links.SWITCHES and any(not one.is_tunnel and one.kind != "veth" for one in below)
            pending += [(one, why, not others) for one in below]
            if link.is_tunnel and tunnels_too:
                pending += [(one, why, True) for one in self._under(link, reason, alone)]

    def _under(self, link: Link, reason: str, alone: bool) -> list[Link]:
        under = tunnels.underlay(self._kernel, link)
        found = {*under.links, *(hop for query in under.queries for hop in self._routes.way(query))}
        if not under.whole and alone:
            self._unknown_tunnels.append((link, reason))
        return [self._stack.links[one] for one in sorted(found) if one in self._stack.links and one != link.index]
