# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network interfaces: what one was on the node, giving it to a pod, and taking it back.

What the pod's interface gets: C(addresses) of the InterfaceConfig, or a lease for each family in its C(dhcp), or where
the configuration has neither field the global addresses that the interface had on the node. With these also go, each
unless the configuration has the field itself, the node's routes through this interface alone (but no default route of
the main table: the pod has its own), the rules from these addresses to the tables of these routes, and the permanent
neighbors. A child interface gets nothing of the node's. An empty list is a field that is there.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import DriverError, KernelError, Refused
from ..dra.kube.problems import Problem
from ..kernel import addresses, dad, links, netlink, routes, stacked, sysctls, vf, vrf
from ..kernel import ethtool as driver_settings
from ..kernel import netns as namespaces
from ..kernel.ethtool import Ethtool
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import abilities, children, host_state, rehearsal, take_back
from .identity import Identity, find, mark, tag
from .rehearsal import Wanted

Object = dict[str, t.Any]
Config = t.Mapping[str, t.Any]

#: The fields that the kernel can be asked about before anything moves.
_TRIED = {"addresses", "routes", "rules", "neighbors", "sysctls", "vrf"}
_DISABLE_IPV6 = "net.ipv6.conf.IFNAME.disable_ipv6"
#: How often addresses are looked at while they are being proven unique, in seconds.
_SETTLE_STEP = 0.02
#: How long an IPv6 address that a route needs is waited for, links of hardware that come up included, in seconds.
_SOURCE_TIME = 6.0


@dataclass(frozen=True)
class Place:
    """Where an interface is: C(side) host, pod or missing; its name and index there, and whether it is up there and has
    carrier."""

    side: t.Literal["host", "pod", "missing"]
    name: str = ""
    index: int = 0
    up: bool = False
    carrier: bool = False

    @classmethod
    def of(cls, side: t.Literal["host", "pod"], link: links.Link) -> Place:
        return cls(side, link.name, link.index, link.up, link.carrier)


@dataclass
class Attached:
    """C(network) is for the claim's status: interfaceName, hardwareAddress, ips (those that were asked for,
    with prefixes). C(leases) are to be kept in the record and given to LeaseRenewer. C(notes) say what the log should,
    one sentence each."""

    network: Object
    leases: list[Object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def where(identity: Identity, netns: Path | None, host: Object | None = None) -> Place:
    """Looks in the pod's namespace (where it is alive), then on the node. C(host) is the host state, for an interface
    that was given to the pod."""
    with step(f"look for {identity.name}"):
        if netns is not None and namespaces.alive(netns) and not namespaces.is_host(netns):
            with Netlink(netns) as connection:
                found = find(connection, identity, netns, _known(host))
            if found:
                return Place.of("pod", found)
        with Netlink() as connection:
            found = find(connection, identity, None)
        return Place.of("host", found) if found else Place("missing")


def ailment(identity: Identity, host: Object, config: Config, netns: Path) -> str:
    """What is wrong with an interface that a pod has, a few words; empty where it is well."""
    if not namespaces.alive(netns):
        return "the pod's network namespace is gone"
    if "child" in config:
        with step(f"look for the {config['child']['type']} of {identity.name}"):
            link = children.get(netns, config, str(config.get("name") or host["name"]))
        place = Place.of("pod", link) if link else Place("missing")
    else:
        place = where(identity, netns, host)
    if place.side == "missing":
        return "its interface is gone"
    if place.side == "host":
        return "its interface is on the node, and not in the pod"
    if not place.up:
        return f"{place.name} was set down in the pod"
    if not place.carrier:
        return f"the link of {place.name} is down"
    with step(f"look at the addresses of {place.name}"), Netlink(netns) as connection:
        taken = dad.duplicates(connection, place.index)
    return f"another node has {', '.join(taken)} of {place.name}" if taken else ""


def _known(host: Object | None) -> Object | None:
    """What tells a virtual interface from others; None in the records of older drivers."""
    return (host or {}).get(host_state.MARK)


def snapshot(identity: Identity) -> Object:
    """The host state: what detach restores, as JSON. KernelError (ENODEV) where the interface is not on the node."""
    with step(f"read what {identity.name} is on the node"), Netlink() as connection:
        link = find(connection, identity, None)
        if link is None:
            raise OSError(errno.ENODEV, "it is not on the node")
        state = {**host_state.read(connection, link, identity.address), host_state.MARK: mark(link)}
        if stacked.evidence(connection, link):
            # they stay; where they are not the node's own, attach refuses
            state[host_state.UPPERS] = [stacked.known(one) for one in stacked.found(connection, link)]
        return state


def check(identity: Identity, config: Config, path: str = "") -> list[Problem]:
    """What this interface, now on the node, cannot do of a valid InterfaceConfig, each with the field's path.

    Rules: C(unsupported), C(bad-value). KernelError (ENODEV) where the interface is not on the node.
    """
    with step(f"look at what {identity.name} can do"), Netlink() as connection:
        link = find(connection, identity, None)
        if link is None:
            raise OSError(errno.ENODEV, "it is not on the node")
        found = abilities.problems(connection, link, identity.address, config, path)
        if found or not _TRIED & set(config):
            return found
        # what goes along the kernel has taken on the node; of it, the addresses alone may matter to what is asked for
        host: Object = {"addresses": [], "routes": [], "rules": [], "neighbors": []}
        if not {"addresses", "dhcp", "child"} & set(config):
            host["addresses"] = [entry for entry, _unused in addresses.listed(connection, link.index)]
        name, mtu = str(config.get("name") or link.name), int(config.get("mtu", link.mtu))
        if "dhcp" in config:
            config = {**config, "routes": []}  # they may go by what is leased
        return rehearsal.problems(name, _wanted(host, config), config, mtu, path)


def attach(identity: Identity, host: Object, config: Config, netns: Path) -> Attached:
    """Gives the interface, or a child of it, to the namespace, configured and up. With C(dhcp) it has no address,
    route, rule and neighbor yet: C(take_leases) is next, which may wait long.

    Idempotent: may be called again for the same namespace, after a crash in the middle too. Where a step fails
    everything is taken back (as detach does) before the error is raised.
    """
    if not namespaces.alive(netns):
        raise KernelError(f"attach {identity.name}", errno.ENOENT, "the pod's network namespace is gone")
    if namespaces.is_host(netns):
        raise Refused(f"{identity.name} is not given to a pod in the node's own network namespace")
    try:
        return _attach(identity, host, config, netns)
    except Exception as failure:
        _undo(failure, identity, host, netns, config)
        raise


def _undo(failure: Exception, identity: Identity, host: Object, netns: Path, config: Config) -> None:
    """Takes everything back, and adds to the failure what could not be."""
    try:
        said = "; ".join(f"not restored: {note}" for note in detach(identity, host, netns, config))
    except DriverError as second:
        said = f"it did not come back: {second.message}"
    if said and isinstance(failure, DriverError):
        failure.message += f"; {said}"
        failure.args = (failure.message,)


def settle(netns: Path, asked: t.Mapping[str, t.Sequence[str]], timeout: float = 5.0) -> list[str]:
    """Waits until the IPv6 addresses in C(asked), by interface (the C(interfaceName) and C(ips) of Attached), are
    proven unique; once for a claim, after all of attach, so that they wait together. KernelError where another node has
    one of them, or the time is up. Interfaces that have no carrier cannot prove anything: they are waited for as long,
    then told of in what is returned.

    What nobody asked for is not waited for: addresses that routers announce, and the link-local one that the kernel
    makes of itself, which takes a second or two. GIDs of RoCE do not depend on it. The kernel makes them when an
    address is added, proven or not, and the default GIDs, which look like link-local addresses, of the MAC address when
    the interface is up (drivers/infiniband/core/roce_gid_mgmt.c, net/ipv6/addrconf.c ipv6_add_addr). So GIDs of
    C(asked), and those mapped from IPv4 addresses, are under way when attach returns. A program that binds to the
    link-local address itself in its first seconds (EADDRNOTAVAIL) has to try again, as on any node.
    """
    notes: list[str] = []
    wanted = {name: {one for one in ips if ":" in one} for name, ips in asked.items()}
    wanted = {name: ips for name, ips in wanted.items() if ips}
    if not wanted:
        return notes
    with step("wait for IPv6 addresses"), Netlink(netns) as connection:
        indexes = {}
        for name in wanted:
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"the pod has no interface {name}")
            indexes[name] = link.index
        end = time.monotonic() + timeout
        while True:
            waiting = {name: _tentative(connection, name, index, wanted[name]) for name, index in indexes.items()}
            waiting = {name: left for name, left in waiting.items() if left}
            if not waiting:
                return notes
            if time.monotonic() >= end:
                break
            time.sleep(_SETTLE_STEP)
        for name, left in waiting.items():
            link = links.get(connection, index=indexes[name])
            if link is not None and link.carrier:
                raise OSError(errno.ETIMEDOUT, f"{', '.join(left)} of {name} not proven unique in {timeout:g} s")
            notes.append(f"{name} has no carrier: {', '.join(left)} not proven unique yet")
    return notes


def detach(identity: Identity, host: Object, netns: Path | None, config: Config) -> list[str]:
    """As :func:`take_back.take_back`; all that it says, why others must not have the interface first."""
    outcome = take_back.take_back(identity, host, netns, config)
    return [*(reason.text for reason in outcome.reasons), *outcome.notes]


# ---- attaching


def _wanted(host: Object, config: Config) -> Wanted:
    inherits = not any(name in config for name in ("addresses", "dhcp", "child"))
    taken = _global(host) if inherits else []
    own = {entry["address"].split("/")[0] for entry in taken}
    carried = [_pod_route(route) for route in host["routes"] if inherits and _goes_along(route, own)]
    system = (routes.TABLE_MAIN, routes.TABLE_LOCAL, routes.TABLE_DEFAULT)
    tables = {(route["family"], route["table"]) for route in carried if route["table"] not in system}
    table = config.get("vrf", {}).get("table")
    wanted = Wanted(
        addresses=[{"address": one} for one in config["addresses"]] if "addresses" in config else taken,
        routes=[routes.configured(route) for route in config["routes"]] if "routes" in config else carried,
        rules=[routes.configured_rule(rule) for rule in config["rules"]]
        if "rules" in config
        else [
            rule
            for rule in host["rules"]
            if rule.get("source", "/").split("/")[0] in own
            and (rule["family"], rule["table"]) in tables
            and not {"iif", "oif", "goto"} & set(rule)
        ],
        neighbors=list(config["neighbors"])
        if "neighbors" in config
        else [neighbor for neighbor in host["neighbors"] if inherits and not neighbor["flags"]],
        sysctls=dict(config.get("sysctls", {})),
    )
    six = any(":" in entry["address"] for entry in wanted.addresses) or "ipv6" in config.get("dhcp", ())
    if six and not config.get("mtu", 1280) < 1280:
        # container runtimes switch IPv6 off in pods whose own network has none
        wanted.sysctls.setdefault(_DISABLE_IPV6, 0)
        kind = dad.mode(config)
        wanted.sysctls = {**dad.settings(kind), **wanted.sysctls}
        for entry in wanted.addresses:
            if ":" in entry["address"]:
                entry["flags"] = dad.flags(kind, entry)
    if table is not None:
        for route in wanted.routes:
            if route.get("table", routes.TABLE_MAIN) == routes.TABLE_MAIN:
                route["table"] = table
    return wanted


def _global(host: Object) -> list[Object]:
    """The host's addresses that a pod can have: global ones, without the name of the node's interface in them."""
    return [
        {key: value for key, value in entry.items() if key not in ("label", "protocol")}
        for entry in host["addresses"]
        if entry["scope"] == 0
    ]


def _goes_along(route: Object, own: set[str]) -> bool:
    """Whether a route of the node makes sense in a pod that has the interface and its addresses."""
    if route["type"] != routes.RTN_UNICAST or "expires" in route or route["table"] == routes.TABLE_LOCAL:
        return False
    if route["protocol"] in (routes.RTPROT_KERNEL, routes.RTPROT_REDIRECT, routes.RTPROT_RA):
        return False
    if route["table"] == routes.TABLE_MAIN and route["destination"].endswith("/0"):
        return False
    if any(hop["device"] for hop in route.get("hops", [{"device": route.get("device", "other")}])):
        return False
    return route.get("source", "") in {"", *own}


def _pod_route(route: Object) -> Object:
    return {**route, "protocol": routes.RTPROT_STATIC}


def _attach(identity: Identity, host: Object, config: Config, netns: Path) -> Attached:
    name = str(config.get("name") or host["name"])
    wanted = _wanted(host, config)
    if "child" in config:
        index = children.make(identity, config, netns, name, _link_attributes(config))
        _set_ethtool(name, netns, config)
    else:
        index = _move(identity, host, config, netns, name)
    with step(f"set sysctls of {name}"):
        namespaces.run(netns, sysctls.write, name, wanted.sysctls)
    with Netlink(netns) as connection:
        if "vrf" in config:
            vrf.enslave(connection, index, config["vrf"])
        for entry in wanted.addresses:
            with step(f"add the address {entry['address']} to {name}"):
                addresses.add(connection, index, entry)
        with step(f"set {name} up"):
            links.set_up(connection, index, True)
        if not config.get("dhcp"):
            _route(connection, name, index, wanted)
        return _attached(connection, name, index, wanted, [])


def take_leases(host: Object, config: Config, netns: Path, timeout: float = 5.0) -> Attached:
    """Ends attach for a configuration with C(dhcp): asks for a lease of each family, C(timeout) seconds long each, and
    configures it and what may need it. Works in the pod's namespace alone, so the device's lock is not needed.

    Where a step fails the interface stays as it is, for detach.
    """
    from ..dhcp import client as dhcp

    name = str(config.get("name") or host["name"])
    wanted = _wanted(host, config)
    leases: list[Object] = []
    with Netlink(netns) as connection:
        with step(f"look for {name} in the pod"):
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, "it is gone")
        for kind in config["dhcp"]:
            lease = dhcp.acquire(netns, name, kind, timeout)
            leases.append(lease)
            dhcp.apply(connection, link.index, lease, config)
        _route(connection, name, link.index, wanted)
        return _attached(connection, name, link.index, wanted, leases)


def _route(connection: Netlink, name: str, index: int, wanted: Wanted) -> None:
    """Add what needs the interface's addresses."""
    _wait_for_sources(connection, name, index, wanted.routes)
    for route, error in routes.add_all(connection, index, wanted.routes):
        with step(f"add the route to {route['destination']} by {name}"):
            raise error
    for rule in wanted.rules:
        with step(f"add the rule with table {rule['table']} for {name}"):
            routes.add_rule(connection, rule)
    for neighbor in wanted.neighbors:
        with step(f"add the neighbor {neighbor['destination']} to {name}"):
            addresses.add_neighbor(connection, index, neighbor)


def _attached(connection: Netlink, name: str, index: int, wanted: Wanted, leases: list[Object]) -> Attached:
    with step(f"read {name} in the pod"):
        link = links.get(connection, index=index)
        if link is None:
            raise OSError(errno.ENODEV, "it is gone")
        asked = {str(ipaddress.ip_interface(one["address"])) for one in [*wanted.addresses, *leases]}
        listed = [entry["address"] for entry, _flags in addresses.listed(connection, index)]
    ips = [address for address in listed if address in asked]
    notes = [] if link.carrier else [f"{name} has no carrier yet"]
    return Attached({"interfaceName": name, "hardwareAddress": link.mac, "ips": ips}, leases, notes)


def _move(identity: Identity, host: Object, config: Config, netns: Path, name: str) -> int:
    """Settings that are made on the node, then the move; returns the index in the pod."""
    attributes = _link_attributes(config)
    mac = _mac(config)
    with Netlink(netns) as inside:
        with step(f"look for {identity.name} in the pod"):
            found = find(inside, identity, netns, _known(host))
        if found is not None:  # an attach that did not end
            with step(f"configure {name} in the pod"):
                if found.name != name:
                    attributes = [netlink.text(links.IFLA_IFNAME, name), *attributes]
                links.set_up(inside, found.index, False)
                if attributes:
                    links.change(inside, found.index, *attributes)
            _set_ethtool(found.name if found.name == name else name, netns, config)
            return found.index
        with Netlink() as outside:
            with step(f"look for {identity.name} on the node"):
                link = find(outside, identity, None)
                if link is None:
                    raise OSError(errno.ENODEV, "it is not there")
            with step(f"give {link.name} to a pod"):
                if says := stacked.strangers(outside, link):
                    raise OSError(errno.EBUSY, says)
            if identity.address is None:
                with step(f"mark {link.name}"):
                    links.altnames(outside, link.index, [tag(identity)], add=True)
            _set_vf(outside, identity, config)
            if mac and identity.address and vf.function(identity.address):
                with step(f"set the MAC address of {link.name} to {mac}"):
                    vf.set_mac(outside, link, mac)
                attributes = _link_attributes({**config, "mac": "", "vf": {}})
            _set_ethtool(link.name, None, config)
            with step(f"take the other names of {link.name}"):
                others = [other for other in link.altnames if not other.startswith(host_state.TAG)]
                links.altnames(outside, link.index, others, add=False)
            descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with step(f"move {link.name} to the pod as {name}"):
                    where_to = netlink.u32(links.IFLA_NET_NS_FD, descriptor)
                    new_name = netlink.text(links.IFLA_IFNAME, name)
                    # down as well: the move takes it down, but IPv6 must not begin before its sysctls are set
                    links.change(outside, link.index, where_to, new_name, *attributes, flags=0, mask=links.IFF_UP)
            finally:
                os.close(descriptor)
        with step(f"look for {name} in the pod"):
            found = links.get(inside, name=name)
            if found is None:
                raise OSError(errno.ENODEV, "it did not arrive")
            return found.index


def _mac(config: Config) -> str:
    return str(config.get("mac") or config.get("vf", {}).get("mac") or "")


def _link_attributes(config: Config) -> list[bytes]:
    attributes = []
    mac = _mac(config)
    if mac:
        attributes.append(netlink.attribute(links.IFLA_ADDRESS, links.mac_bytes(mac)))
    if "mtu" in config:
        attributes.append(netlink.u32(links.IFLA_MTU, config["mtu"]))
    for size, kind in links.SIZES.items():
        if size in config:
            attributes.append(netlink.u32(kind, config[size]))
    return attributes


def _set_vf(connection: Netlink, identity: Identity, config: Config) -> None:
    one = vf.function(identity.address) if identity.address else None
    settings = dict(config.get("vf", {}))
    if one is None:
        if settings:
            raise Refused(f"{identity.name} is no virtual function: it has no vf settings")
        return
    if "mac" in config:
        # an untrusted function may only take the address that its physical function gave it
        settings.setdefault("mac", config["mac"])
    if settings:
        with step(f"set vf of {identity.name}"):
            try:
                vf.write(connection, one, settings)
            except OSError:
                if set(settings) == {"mac"} and "vf" not in config:
                    return  # the function may still take it by itself
                raise


def _set_ethtool(name: str, netns: Path | None, config: Config) -> None:
    settings = config.get("ethtool", {})
    if not settings:
        return
    with Ethtool(netns) as tool:
        with step(f"set rings of {name}"):
            if settings.get("rings"):
                tool.set_rings(name, settings["rings"])
        with step(f"set private flags of {name}"):
            tool.set_private_flags(name, settings.get("privateFlags", {}))
        with step(f"set features of {name}"):
            if settings.get("features"):
                known, fixed = tool.features(name), tool.fixed_features(name)
                found, unknown = driver_settings.resolve(settings["features"], known, fixed)
                if unknown:
                    raise OSError(errno.EOPNOTSUPP, f"no feature {', '.join(unknown)} that can be changed")
                if found:
                    tool.set_features(name, found)


def _tentative(connection: Netlink, name: str, index: int, asked: t.Collection[str]) -> list[str]:
    """Those of the addresses that cannot be used yet, as they are not proven unique; OSError (EADDRINUSE) where one is
    proven not to be."""
    waiting = []
    for entry, flags in addresses.listed(connection, index):
        if entry["address"] not in asked:
            continue
        if flags & addresses.DADFAILED:
            raise OSError(errno.EADDRINUSE, f"another node has {entry['address']}, which {name} was to have")
        if dad.pending(flags):
            waiting.append(entry["address"])
    return waiting


def _wait_for_sources(connection: Netlink, name: str, index: int, wanted: t.Sequence[Object]) -> None:
    """IPv6 takes no route with a source address that is not proven unique."""
    sources = {str(ipaddress.ip_address(one["source"])) for one in wanted if one["family"] == 6 and "source" in one}
    end = time.monotonic() + _SOURCE_TIME
    while sources:
        with step(f"wait for IPv6 addresses of {name}"):
            held = [entry["address"] for entry, _unused in addresses.listed(connection, index)]
            left = _tentative(connection, name, index, [one for one in held if one.split("/")[0] in sources])
            if not left:
                return
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, f"{', '.join(sorted(left))} not proven unique, which a route needs")
        time.sleep(_SETTLE_STEP)
