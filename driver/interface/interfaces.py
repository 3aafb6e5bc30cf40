# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Giving network interfaces to pods: finding an interface, reading its host state, checking a configuration, attaching
and detaching.

`network_config.py` computes the addresses, routes and sysctls of the pod's interface. `take_back.py` moves the
interface back to the node.
"""

from __future__ import annotations

import errno
import ipaddress
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ..base.calls import NetworkData
from ..base.errors import DriverError, KernelError, Refused
from ..base.objects import ObjectView
from ..dhcp.lease import Lease
from ..dra.kube.problems import Problem
from ..kernel import addresses, dad, links, routes, stacked, sysctls, vrf
from ..kernel import netns as namespaces
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import abilities, children, dry_run, host_state, rails, take_back
from .dad_wait import wait_for_dad, wait_for_sources
from .host_state import HostState, Mark
from .identity import Identity, find, mark
from .move import link_attributes, move, set_ethtool
from .network_config import InheritedState, NetworkConfig, network_config, pod_interface_name

__all__ = [
    "Attached",
    "Identity",
    "InterfaceLocation",
    "attach",
    "check",
    "detach",
    "health_problem",
    "locate",
    "request_leases",
    "snapshot",
    "wait_for_dad",
]

#: The fields that can be tried in the kernel before anything moves.
_TRIAL_FIELDS = {"addresses", "routes", "rules", "neighbors", "sysctls", "vrf", rails.FIELD}


@dataclass(frozen=True)
class InterfaceLocation:
    """Where an interface is (`side`), its name and index in that namespace, and whether it is up and has carrier."""

    side: t.Literal["host", "pod", "missing"]
    name: str = ""
    index: int = 0
    up: bool = False
    carrier: bool = False

    @classmethod
    def of(cls, side: t.Literal["host", "pod"], link: links.Link) -> InterfaceLocation:
        return cls(side, link.name, link.index, link.up, link.carrier)


@dataclass
class Attached:
    """The result of an attach. `network` is for the claim's status, and its `ips` are the requested addresses. The
    caller stores `leases` in the record and renews them (LeaseRenewer). `notes` are for the log, one sentence each."""

    network: NetworkData
    leases: list[Lease] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def locate(identity: Identity, netns: Path | None, host: HostState | None = None) -> InterfaceLocation:
    """Look for an interface in the pod's namespace, if that still exists, then on the node. `host` is the host state of
    an interface that was given to the pod. Raises KernelError."""
    with step(f"look for {identity.name}"):
        if netns is not None and namespaces.alive(netns) and not namespaces.is_host(netns):
            with Netlink(netns) as connection:
                link = find(connection, identity, netns, _mark_of(host))
            if link:
                return InterfaceLocation.of("pod", link)
        with Netlink() as connection:
            link = find(connection, identity, None)
        return InterfaceLocation.of("host", link) if link else InterfaceLocation("missing")


def _mark_of(host: HostState | None) -> Mark | None:
    """What distinguishes a virtual interface from others; None if the record is from an old release, or without
    `host`."""
    return host.get(host_state.MARK) if host else None


def health_problem(identity: Identity, host: HostState, config: ObjectView, netns: Path) -> str:
    """The problem of an interface in a pod, as a short text; empty if it is healthy. Raises KernelError."""
    if not namespaces.alive(netns):
        return "the pod's network namespace is gone"
    if "child" in config:
        with step(f"look for the {config['child']['type']} of {identity.name}"):
            link = children.get(netns, config, pod_interface_name(config, host["name"]))
        location = InterfaceLocation.of("pod", link) if link else InterfaceLocation("missing")
    else:
        location = locate(identity, netns, host)
    if location.side == "missing":
        return "its interface is no longer in the pod's network namespace"
    if location.side == "host":
        return "its interface is on the node, not in the pod"
    if not location.up:
        return f"{location.name} was set down in the pod"
    if not location.carrier:
        return f"the link of {location.name} is down"
    with step(f"read the addresses of {location.name}"), Netlink(netns) as connection:
        duplicates = dad.duplicates(connection, location.index)
    return f"another node has {', '.join(duplicates)} of {location.name}" if duplicates else ""


def snapshot(identity: Identity) -> HostState:
    """The host state, which detach restores. Raises KernelError (ENODEV) if the interface is not on the node."""
    with step(f"read the state of {identity.name} on the node"), Netlink() as connection:
        link = find(connection, identity, None)
        if link is None:
            raise OSError(errno.ENODEV, "it is not on the node")
        state = host_state.read(connection, link, identity.address)
        state[host_state.MARK] = mark(link)
        if stacked.evidence(connection, link):
            # they are kept; attach fails if one is not in the node's own namespace
            state[host_state.UPPERS] = [stacked.mark_of(upper) for upper in stacked.list_uppers(connection, link)]
        return state


def check(identity: Identity, config: ObjectView, path: str = "") -> list[Problem]:
    """The fields of a valid InterfaceConfig that this interface, which is on the node, does not support, each with the
    field's path below `path`.

    Rules: `unsupported`, `bad-value`. Raises KernelError (ENODEV) if the interface is not on the node.
    """
    with step(f"check what {identity.name} supports"), Netlink() as connection:
        link = find(connection, identity, None)
        if link is None:
            raise OSError(errno.ENODEV, "it is not on the node")
        problems = abilities.problems(connection, link, identity.address, config, path)
        if problems or not _TRIAL_FIELDS & set(config):
            return problems
        # the kernel accepted the inherited state already; of that, only addresses can affect the configured fields
        host: InheritedState = {"addresses": [], "routes": [], "rules": [], "neighbors": []}
        if not {"addresses", "dhcp", "child", rails.FIELD} & set(config):
            host["addresses"] = [entry for entry, _unused in addresses.listed(connection, link.index, link.name)]
        name, mtu = pod_interface_name(config, link.name), int(config.get("mtu", link.mtu))
        if "dhcp" in config:
            config = {**config, "routes": []}  # routes may depend on the lease
        return dry_run.problems(name, network_config(host, config), config, mtu, path)


def attach(identity: Identity, host: HostState, config: ObjectView, netns: Path) -> Attached:
    """Give the interface, or a child of it, to the pod's namespace, configured and up. With `dhcp` it has no addresses,
    routes, rules and neighbors yet: `request_leases` adds them, which may take several seconds.

    Idempotent: it may be called again for the same namespace, also after a crash at any step. If a step fails, this
    undoes everything (as detach does) before it raises the error. Raises KernelError and Refused.
    """
    if not namespaces.alive(netns):
        raise KernelError(f"attach {identity.name}", errno.ENOENT, "the pod's network namespace is gone")
    if namespaces.is_host(netns):
        raise Refused(f"{identity.name} cannot be attached: the pod uses the node's own network namespace")
    try:
        return _attach(identity, host, config, netns)
    except Exception as failure:
        _undo(failure, identity, host, netns, config)
        raise


def _undo(failure: Exception, identity: Identity, host: HostState, netns: Path, config: ObjectView) -> None:
    """Detach the interface after a failed attach, and add to the failure's message what could not be restored."""
    try:
        remark = "; ".join(f"not restored: {note}" for note in detach(identity, host, netns, config))
    except DriverError as second:
        remark = f"{identity.name} could not be moved back to the node: {second.message}"
    if remark and isinstance(failure, DriverError):
        failure.message += f"; {remark}"
        failure.args = (failure.message,)


def detach(identity: Identity, host: HostState, netns: Path | None, config: ObjectView) -> list[str]:
    """Take the interface back (:func:`take_back.take_back`). Returns the texts of the outcome: first the reasons to
    withhold the interface, then the notes."""
    outcome = take_back.take_back(identity, host, netns, config)
    return [*(reason.text for reason in outcome.reasons), *outcome.notes]


def _attach(identity: Identity, host: HostState, config: ObjectView, netns: Path) -> Attached:
    name = pod_interface_name(config, host["name"])
    network = network_config(host, config)
    with Netlink(netns) as connection:
        if "child" in config:
            index = children.create(identity, host, config, netns, name, link_attributes(config))
            set_ethtool(name, netns, config)
        else:
            index = move(connection, identity, host, config, netns, name)
        with step(f"set sysctls of {name}"):
            namespaces.run(netns, sysctls.write, name, network.sysctls)
        if "vrf" in config:
            vrf.join(connection, index, config["vrf"])
        for entry in network.addresses:
            with step(f"add the address {entry['address']} to {name}"):
                addresses.add(connection, index, entry)
        with step(f"bring {name} up"):
            links.set_link_state(connection, index, up=True)
        if not config.get("dhcp"):
            _add_routes(connection, name, index, network)
        return _attach_result(connection, name, index, network, [])


def request_leases(host: HostState, config: ObjectView, netns: Path, timeout: float = 5.0) -> Attached:
    """Finish the attach of a configuration with `dhcp`: request a lease of each family, for up to `timeout` seconds
    each, and configure the leases, routes, rules and neighbors. This changes only the pod's namespace, so it does not
    need the device's lock.

    If a step fails, the leases are released. The interface is left unchanged: the caller detaches it. Raises
    KernelError.
    """
    from ..dhcp import client as dhcp

    name = pod_interface_name(config, host["name"])
    network = network_config(host, config)
    leases: list[Lease] = []
    with Netlink(netns) as connection:
        with step(f"look for {name} in the pod"):
            link = links.get(connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, "the interface has disappeared")
        try:
            for family in config["dhcp"]:
                lease = dhcp.acquire(netns, name, family, timeout)
                leases.append(lease)
                dhcp.apply(connection, link.index, lease, config)
            _add_routes(connection, name, link.index, network)
            return _attach_result(connection, name, link.index, network, leases)
        except BaseException:
            for lease in leases:  # no record contains them yet
                dhcp.release(netns, lease)
            raise


def _add_routes(connection: Netlink, name: str, index: int, network: NetworkConfig) -> None:
    """Add routes, rules and neighbors, which need the interface's addresses."""
    wait_for_sources(connection, name, index, network.routes)
    for route, error in routes.add_all(connection, index, network.routes):
        with step(f"add the route to {route['destination']} through {name}"):
            raise error
    for rule in network.rules:
        with step(f"add the rule for table {rule['table']} of {name}"):
            routes.add_rule(connection, rule)
    for neighbor in network.neighbors:
        with step(f"add the neighbor {neighbor['destination']} to {name}"):
            addresses.add_neighbor(connection, index, neighbor)


def _attach_result(connection: Netlink, name: str, index: int, network: NetworkConfig, leases: list[Lease]) -> Attached:
    with step(f"read {name} in the pod"):
        link = links.get(connection, index=index)
        if link is None:
            raise OSError(errno.ENODEV, "the interface has disappeared")
        requested = [entry["address"] for entry in network.addresses] + [lease["address"] for lease in leases]
        normalized = {str(ipaddress.ip_interface(address)) for address in requested}
        listed = [entry["address"] for entry, _flags in addresses.listed(connection, index, link.name)]
    ips = [address for address in listed if address in normalized]
    notes = [] if link.carrier else [f"{name} has no carrier yet"]
    return Attached({"interfaceName": name, "hardwareAddress": link.mac, "ips": ips}, leases, notes)
