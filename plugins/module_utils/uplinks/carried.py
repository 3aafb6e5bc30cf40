# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which interfaces carry this node's own traffic, and why: the rule that the driver and `host` share.

They are the interfaces of:

- default routes
- SSH sessions: the interface with the local address, and those through which the replies leave
- storage that the node itself uses
- other paths that the caller passes

All interfaces below these are included: ports of a bond, bridge or VRF, the parent of a VLAN, the PF of a VF, and the
underlay of a tunnel.

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

#: Maximum number of remote addresses that are looked up for one address of this node. Anyone can connect to an SSH
#: server: for further clients, only the interface with the local address is reported.
_MAX_REMOTES = 64
#: Maximum number of paths to storage that are looked up. If there are more, every interface with an address counts as
#: needed.
_MAX_STORAGE_PATHS = 1024


@dataclass(frozen=True)
class Path:
    """The local and the remote address of traffic that the node needs; either may be unknown.

    `local_reason` is the reason for the interface with the local address, and `remote_reason` the reason for those
    through which packets to the remote address leave. `bound_link` is the index of the link to which the socket is
    bound (0: none), and `mark` the mark of its packets.
    """

    local: Address | None
    remote: Address | None
    local_reason: str
    remote_reason: str
    bound_link: int = 0
    mark: int = 0
    local_port: int = 0
    remote_port: int = 0


@dataclass(frozen=True)
class Carried:
    """The needed interfaces, by index and by name, each with the reason as a clause in which `it` is the
    interface."""

    by_index: t.Mapping[int, str] = field(default_factory=dict)
    by_name: t.Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Sockets:
    """Open connections at the time `read_at`: those of SSH, each with whether it is certainly authenticated, and those
    with a port of storage, each with whether this node has accepted it; for both, what could not be examined.
    `ssh_ports` are the ports that the caller passed."""

    read_at: float
    ssh_ports: frozenset[int]
    ssh: list[tuple[sockets.Socket, bool]]
    ssh_unexamined: list[str]
    storage: list[tuple[sockets.Socket, bool]]
    storage_unexamined: list[str]


@dataclass
class _Tables:
    """The kernel's tables, valid until the kernel reports a change. `owners` are the indexes of the links that have
    each address."""

    stack: Stack
    owners: dict[Address, tuple[int, ...]]
    defaults: list[Default]


class Rule:
    """The rule for the network namespace of the thread that creates this object. Any thread of that namespace may use
    it.

    With `remember`, the interfaces of an SSH session stay needed after its end, as long as the session's local address
    is on the node: clients that have logged in are expected to log in again. `root` is the folder that contains `sys`
    and `proc`.
    """

    def __init__(self, remember: bool = False, root: str = "") -> None:
        self._remember = remember
        self._root = root
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._ssh = ssh.Servers(f"{root}/proc")
        self._clients: dict[tuple[Address, Address], None] = {}
        self._tables: _Tables | None = None
        self._files: tuple[float, tuple[list[storage.StorageEndpoint], list[str]]] = (0.0, ([], []))
        self._sockets: _Sockets | None = None
        self._last: tuple[float, object, Carried] | None = None

    def now(
        self,
        paths: t.Sequence[Path] = (),
        default_routes: str = "all",
        ssh_ports: t.Collection[int] = (),
        max_age: float = 0.0,
    ) -> Carried:
        """The needed interfaces of the whole node. Raises OSError if the kernel's tables cannot be read.

        `default_routes` selects the default routes that count: `all`, those of the `main` table, or the `best` of the
        main table. The best are those with the lowest metric, and IPv6 routes only if there are no IPv4 routes.
        `ssh_ports` are ports of SSH servers in addition to those that are found. Open connections and the files about
        storage may be up to `max_age` seconds old, and so may routes other than default routes; links, addresses, rules
        and default routes are always current. Callers within `max_age` share one result.
        """
        arguments = (tuple(paths), default_routes, frozenset(ssh_ports))
        with self._lock:
            if self._watch is None:
                self._watch = Watch()
            if self._watch.changed():
                self._tables = self._last = None
            began = time.monotonic()
            if self._last and self._last[1] == arguments and began - self._last[0] <= max_age:
                return self._last[2]
            with netlink.Connection() as kernel:
                result = self._read(kernel, paths, default_routes, ssh_ports, max_age)
            # the result is as old as the oldest data that it was computed from
            oldest = min(began, self._sockets.read_at if self._sockets else began, self._files[0])
            self._last = (oldest, arguments, result)
            return result

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
        max_age: float,
    ) -> Carried:
        tables = self._tables
        lookups = Routes(kernel)
        if tables is None:
            stack = Stack(links.listed(kernel), f"{self._root}/sys")
            tables = self._tables = _Tables(stack, routes.owners(kernel), lookups.defaults())
        needed = _by_default(tables.defaults, default_routes)
        connections = self._connections(frozenset(ssh_ports), max_age)
        unexamined = list(connections.ssh_unexamined)
        ssh_paths = self._sessions(tables, lookups, connections)
        storage_paths = self._storage(tables, connections, max_age, unexamined)
        for path in (*ssh_paths, *paths, *storage_paths):
            for index, why in _links_of_path(path, tables, lookups):
                needed.setdefault(index, why)
        for interface, why in self._bound_storage():
            needed.setdefault(tables.stack.index(interface), why)
        if unexamined:
            missing = ", ".join(dict.fromkeys(unexamined))
            why = f"it has an address, and what uses it cannot be determined: could not examine {missing}"
            for index in sorted({index for holders in tables.owners.values() for index in holders}):
                needed.setdefault(index, why)
        reasons = _LowerLinks(kernel, tables.stack, lookups).with_lower(needed)
        return Carried(reasons, {tables.stack.links[index].name: why for index, why in reasons.items()})

    def _connections(self, ssh_ports: frozenset[int], max_age: float) -> _Sockets:
        """The open connections, at most `max_age` seconds old. They are cached apart from the tables, because addresses
        change often on a node where pods start."""
        began, cached = time.monotonic(), self._sockets
        if cached and cached.ssh_ports == ssh_ports and max_age > 0 and began - cached.read_at <= max_age:
            return cached
        proc = f"{self._root}/proc"
        connections = _Sockets(began, ssh_ports, [], [], [], [])
        self._sockets = None  # for the case of an error: a result without some connections would lack interfaces
        try:
            ports = sorted(self._ssh.ports(connections.ssh_unexamined) | ssh_ports)
            open_now = sockets.established([(port, port) for port in ports], (), proc)
            connections.ssh = self._ssh.sessions(open_now)
        except OSError as error:
            connections.ssh_unexamined.append(f"the open TCP connections ({error.strerror or error})")
        ranges = [(low, high) for low, high, _what in storage.PORTS]
        try:
            open_now = sockets.established(ranges, ranges, proc)
            connections.storage = _with_acceptance(open_now, sockets.listening(proc))
        except OSError as error:
            connections.storage_unexamined.append(f"the open TCP connections ({error.strerror or error})")
        self._sockets = connections
        return connections

    def _sessions(self, tables: _Tables, lookups: Routes, connections: _Sockets) -> list[Path]:
        """The paths of SSH sessions, including remembered ones."""
        paths: dict[tuple[Address, Address], Path] = {}
        authenticated: dict[tuple[Address, Address], None] = {}
        for connection, is_authenticated in connections.ssh:
            if connection.remote in tables.owners:  # within the node
                continue
            pair = (connection.local, connection.remote)
            paths.setdefault(pair, _of_socket(connection, ssh_session(*pair)))
            if is_authenticated:
                authenticated[pair] = None
        remembered = {pair[0] for pair in self._clients}
        on_node = {local for local in remembered if local in tables.owners or lookups.holders(local)}
        for pair in self._clients:
            if pair[0] in on_node:
                paths.setdefault(pair, ssh_session(*pair))
                authenticated[pair] = None
        limited = _limited(paths.values())
        if self._remember:
            pairs = {(path.local, path.remote) for path in limited}
            self._clients = {pair: None for pair in authenticated if pair in pairs}
        return limited

    def _storage(self, tables: _Tables, connections: _Sockets, max_age: float, unexamined: list[str]) -> list[Path]:
        """The paths to storage that this node uses, and from clients of storage that it serves. Files are read again if
        they were read more than `max_age` seconds ago. What could not be read, or was left out because of a limit, is
        added to `unexamined`.

        Connections to an address of the node itself use no interface, so they do not count towards the limits. Of a
        client's connections to one port, which differ in the client's port, one is enough.
        """
        used: dict[Path, None] = {}
        served: dict[tuple[object, ...], Path] = {}
        began = time.monotonic()
        if not max_age or began - self._files[0] > max_age:
            self._files = (began, storage.endpoints(self._root))
        endpoints, problems = self._files[1]
        unexamined += [*problems, *connections.storage_unexamined]
        uses_ceph = any(endpoint.service_name == storage.CEPH for endpoint in endpoints)
        for sock, is_accepted, service in _by_port(connections.storage, uses_ceph):
            if sock.remote in tables.owners:
                continue
            if not is_accepted:
                used[_of_socket(sock, _storage_session(service, sock.local, sock.remote, "to", "server"))] = None
            else:
                path = _of_socket(sock, _storage_session(service, sock.local, sock.remote, "from", "client"))
                served.setdefault((sock.local, sock.remote, sock.local_port, sock.bound_link, sock.mark), path)
        for endpoint in endpoints:
            if endpoint.remote or endpoint.local:
                used[_storage_session(endpoint.service_name, endpoint.local, endpoint.remote, "to", "server")] = None
        if len(used) > _MAX_STORAGE_PATHS:
            unexamined.append(f"all of {len(used)} paths to storage")
        return [*list(used)[:_MAX_STORAGE_PATHS], *_limited(served.values())]

    def _bound_storage(self) -> t.Iterator[tuple[str, str]]:
        """The names of interfaces to which storage sessions are bound, each with the reason."""
        for endpoint in self._files[1][0]:
            if endpoint.interface:
                yield endpoint.interface, f"{_with_article(f'{endpoint.service_name} session')} is bound to it"


def _with_article(noun: str) -> str:
    return f"{'an' if noun.startswith(('iSCSI', 'NFS', 'NVMe', 'NBD', 'SMB', 'SSH')) else 'a'} {noun}"


def ssh_session(local: Address | None, remote: Address | None) -> Path:
    """The path of an SSH session to this node."""
    return Path(
        local,
        remote,
        f"it has the address of an SSH session from {remote}",
        f"it is on the route to the SSH client {remote}",
    )


def _storage_session(service: str, local: Address | None, remote: Address | None, preposition: str, role: str) -> Path:
    local_reason = f"it has the address of {_with_article(service)} session" + (
        f" {preposition} {remote}" if remote else ""
    )
    return Path(local, remote, local_reason, f"it is on the route to the {service} {role} {remote}")


def _with_acceptance(
    connections: t.Iterable[sockets.Socket], listeners: t.Iterable[sockets.Socket]
) -> list[tuple[sockets.Socket, bool]]:
    """The connections, each with whether this node has accepted it: it has a listening socket for the local address."""
    listening = {(None if entry.local.is_unspecified else entry.local, entry.local_port) for entry in listeners}
    return [
        (entry, bool(listening & {(None, entry.local_port), (entry.local, entry.local_port)})) for entry in connections
    ]


def _by_port(
    connections: t.Sequence[tuple[sockets.Socket, bool]], uses_ceph: bool
) -> list[tuple[sockets.Socket, bool, str]]:
    """The connections to storage, each with whether this node has accepted it, and with its service, which follows from
    the server's port. The client's port does not count, because any client can choose it. Ports of Ceph OSDs count only
    if files (`uses_ceph`) or a connection to a monitor show that Ceph is used."""
    with_osd_port: list[tuple[sockets.Socket, bool, str]] = []
    others: list[tuple[sockets.Socket, bool, str]] = []
    for socket, is_accepted in connections:
        port = socket.local_port if is_accepted else socket.remote_port
        service = storage.service(port)
        if service:
            (with_osd_port if storage.is_ceph_osd_port(port) else others).append((socket, is_accepted, service))
    uses_ceph = uses_ceph or any(service == storage.CEPH for _socket, _accepted, service in others)
    return [*others, *(with_osd_port if uses_ceph else ())]


def _of_socket(socket: sockets.Socket, path: Path) -> Path:
    """The path with the socket's ports, mark and bound link."""
    return replace(
        path,
        bound_link=socket.bound_link,
        mark=socket.mark,
        local_port=socket.local_port,
        remote_port=socket.remote_port,
    )


def _limited(paths: t.Iterable[Path]) -> list[Path]:
    """The paths, with at most _MAX_REMOTES remote addresses for each local address."""
    remotes: dict[Address | None, set[Address | None]] = {}
    limited = []
    for path in paths:
        known = remotes.setdefault(path.local, set())
        if path.remote in known or len(known) < _MAX_REMOTES:
            known.add(path.remote)
            limited.append(path)
    return limited


def _by_default(defaults: t.Sequence[Default], tables: str) -> dict[int, str]:
    """The links of default routes, each with its reason. `tables` is the argument `default_routes` of `Rule.now`.

    A default route from an IPv6 router advertisement counts only if there is no other default route, and only the best
    one counts: routers announce themselves to every port of a fabric.
    """
    defaults = [route for route in defaults if tables == "all" or route.table in routes.MAIN]
    if tables == "best":
        defaults = [route for route in defaults if not route.is_ipv6] or defaults
    counted = [route for route in defaults if not route.from_router]
    if defaults and (tables == "best" or not counted):
        counted = counted or defaults
        best = min(route.priority for route in counted)
        counted = [route for route in counted if route.priority == best]
    reasons: dict[int, str] = {}
    for route in counted:
        description = f"the route to {route.destination}" if route.destination else "the default route"
        table = "" if route.table in routes.MAIN else f" of table {route.table}"
        for index in route.links:
            reasons.setdefault(index, f"it carries {description}{table}")
    return reasons


def _links_of_path(path: Path, tables: _Tables, lookups: Routes) -> t.Iterator[tuple[int, str]]:
    """The links on a path, each with its reason."""
    if path.remote in tables.owners:  # the node itself
        return
    if path.remote:
        query = Query(path.remote, path.local, path.bound_link, path.mark, path.local_port, path.remote_port)
        for index in sorted(lookups.outgoing_links(query)):
            yield index, path.remote_reason
    holders: set[int] = set()
    if path.local:
        holders = {*tables.owners.get(path.local, ()), *lookups.holders(path.local, path.bound_link)}
    if path.bound_link:  # several links may have the same address, such as a link-local one
        holders = {path.bound_link} if path.bound_link in holders else {path.bound_link, *holders}
    # a VRF only selects the table of look-ups: packets do not pass it
    yield from ((index, path.local_reason) for index in sorted(holders) if tables.stack.kind(index) != "vrf")


class _LowerLinks:
    """Adds all lower links to the needed links."""

    def __init__(self, kernel: netlink.Connection, stack: Stack, lookups: Routes) -> None:
        self._kernel = kernel
        self._stack = stack
        self._routes = lookups
        self._reasons: dict[int, str] = {}
        self._unknown_tunnels: list[tuple[Link, str]] = []

    def with_lower(self, needed: t.Mapping[int, str]) -> dict[int, str]:
        """The reasons of `needed` and of all links below, by index; of several reasons for a link, the first. Raises
        OSError."""
        self._follow(needed)
        for tunnel, reason in self._unknown_tunnels:
            unknown = "the kernel does not report where the tunnel's packets go"
            why = f"{tunnel.name} may send through it, as {unknown}: {reason}"
            routed = [self._stack.links[index] for index in sorted(self._routes.routed()) if index in self._stack.links]
            self._follow({link.index: why for link in routed if not link.is_tunnel}, tunnels_too=False)
        return self._reasons

    def _follow(self, needed: t.Mapping[int, str], tunnels_too: bool = True) -> None:
        existing = self._stack.links
        # each link with its reason, and whether all traffic of the link above passes it
        pending = collections.deque((existing[index], why, True) for index, why in needed.items() if index in existing)
        while pending:
            link, reason, is_only_way = pending.popleft()
            if link.index in self._reasons or link.loopback:
                continue
            self._reasons[link.index] = reason
            why = reason if reason.startswith("it is below") else f"it is below {link.name}: {reason}"
            below = self._stack.below(link)
            # if a switch has other ports, its ports of guests and overlays do not carry the node's traffic
            has_other_ports = link.kind in links.SWITCHES and any(
                not lower.is_tunnel and lower.kind != "veth" for lower in below
            )
            pending += [(lower, why, not has_other_ports) for lower in below]
            if link.is_tunnel and tunnels_too:
                pending += [(lower, why, True) for lower in self._underlay(link, reason, is_only_way)]

    def _underlay(self, tunnel: Link, reason: str, is_only_way: bool) -> list[Link]:
        """The links that carry a tunnel's packets, as far as they are known."""
        underlay = tunnels.underlay(self._kernel, tunnel)
        indexes = {*underlay.links, *(hop for query in underlay.queries for hop in self._routes.outgoing_links(query))}
        if not underlay.complete and is_only_way:
            self._unknown_tunnels.append((tunnel, reason))
        return [
            self._stack.links[index]
            for index in sorted(indexes)
            if index in self._stack.links and index != tunnel.index
        ]
