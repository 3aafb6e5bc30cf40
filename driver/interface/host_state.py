# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The host state of an interface: its state on the node before a pod gets it. This module reads host states and
compares them, and `restore.py` restores one.

A host state also contains what the kernel will learn again, such as routes from router advertisements; those are not
restored. It contains neither classes and filters of qdiscs nor nexthop objects. A route with a nexthop object is
restored with the next hops of that object.
"""

from __future__ import annotations

import errno
import json
import typing as t

from ..base.objects import Object, ObjectView
from ..kernel import addresses, link_dump, links, netlink, programs, qdiscs, routes, stacked, sysctls, vf
from ..kernel.addresses import AddressState, Neighbor
from ..kernel.ethtool import Ethtool, EthtoolState
from ..kernel.ethtool_netlink import EthtoolNetlink
from ..kernel.ethtool_netlink import Settings as DriverSettings
from ..kernel.netlink import Netlink
from ..kernel.routes import Route, Rule
from ..kernel.vf import VfSettings

#: While an interface without a PCI address is in a pod, it has an altname with this prefix.
TAG = "lanewise-"
#: Keys of a host state that are not settings of the interface, so they are not restored.
MARK: t.Final = "mark"
UPPERS: t.Final = "uppers"
CHILD: t.Final = "child"


class _Mark(t.TypedDict):
    kind: str
    peer: int
    foreign: bool


class Mark(_Mark, total=False):
    """What identifies a virtual interface while it is in a pod (identity.mark)."""

    space: int  # the ID (netnsid) of the namespace of the other end


class _Child(t.TypedDict):
    received: list[str]


class Child(_Child, total=False):
    """What identifies a claim's child interface once it has left its pod: its index and MAC address at creation.
    `received` are the unicast MAC addresses that the parent accepted before the child was created, besides its own."""

    index: int
    mac: str


class Sizes(t.TypedDict, total=False):
    """Maximum sizes of GSO and GRO packets in bytes; without those that this kernel does not support."""

    gsoMaxSize: int
    groMaxSize: int
    gsoIPv4MaxSize: int
    groIPv4MaxSize: int


class _HostState(t.TypedDict):
    name: str
    kind: str
    altnames: list[str]
    alias: str
    mtu: int
    mac: str
    permanentMac: str
    up: bool
    flags: int
    txQueueLength: int
    group: int
    gsoMaxSegs: int
    master: str  # the name of the interface that this one is a port of, or empty
    xdp: dict[str, int]
    addresses: list[AddressState]
    routes: list[Route]
    rules: list[Rule]
    neighbors: list[Neighbor]
    sysctls: dict[str, str]
    qdiscs: list[qdiscs.Qdisc]
    ethtool: EthtoolState


class HostState(_HostState, Sizes, total=False):
    """The state of an interface on the node, as JSON. Records of old releases do not contain all keys.

    `programs` are the kernel's IDs of BPF programs, `driver` the settings of ethtool's netlink family, `attributes`
    and `files` all other settings of the link (link_dump.py). A virtual function has `vf`, a physical one `vfs`.
    """

    programs: dict[str, list[int]]
    driver: DriverSettings
    attributes: dict[str, str]
    files: dict[str, str]
    vf: VfSettings
    vfs: dict[str, VfSettings]
    mark: Mark
    uppers: list[stacked.Mark]  # its upper interfaces before a pod had it, if any
    child: Child  # the child interface that its claim has, if any


def read(connection: Netlink, link: links.Link, address: str | None) -> HostState:
    """The host state of a link of the node's namespace; `address` is its PCI address. Raises OSError."""
    name = link.name
    master = links.get(connection, index=link.number(links.IFLA_MASTER)) if links.IFLA_MASTER in link.raw else None
    entries = [entry for entry, _flags in addresses.listed(connection, link.index, name)]
    ips = {entry["address"].split("/")[0] for entry in entries}
    link_routes = sorted(routes.listed(connection, link.index, ips), key=_as_json)
    with Ethtool() as tool:
        ethtool = tool.read(name)
    with EthtoolNetlink() as generic:
        driver = generic.read(name)
    state: HostState = {
        "name": name,
        "kind": link.kind,
        "altnames": [altname for altname in link.altnames if not altname.startswith(TAG)],
        "alias": netlink.string(link.raw.get(links.IFLA_IFALIAS, b"")),
        "mtu": link.mtu,
        "mac": link.mac,
        "permanentMac": link.permanent_mac,
        "up": link.up,
        "flags": link.flags & links.RESTORED_FLAGS,
        "txQueueLength": link.number(links.IFLA_TXQLEN),
        "group": link.number(links.IFLA_GROUP),
        "gsoMaxSegs": link.number(links.IFLA_GSO_MAX_SEGS),
        "master": master.name if master else "",
        "xdp": link.xdp,
        "addresses": entries,
        "routes": link_routes,
        "rules": _rules(connection, name, ips, link_routes),
        "neighbors": addresses.neighbors(connection, link.index),
        "sysctls": sysctls.read(name),
        "qdiscs": qdiscs.listed(connection, link.index),
        "ethtool": ethtool,
        "driver": driver,
        "attributes": link_dump.attributes(link),
        "files": link_dump.files(name),
        "programs": programs.listed(link.index, link.kind),
    }
    sizes = {size: link.number(kind) for size, kind in links.SIZES.items() if kind in link.raw}
    state = {**state, **t.cast("Sizes", sizes)}
    _read_functions(connection, link, address, state)
    return state


def _read_functions(connection: Netlink, link: links.Link, address: str | None, state: HostState) -> None:
    """Add the settings of the virtual function at `address`, or of all virtual functions of a physical one."""
    function = vf.function(address) if address else None
    if function:
        try:
            state["vf"] = vf.read(connection, function)
        except OSError as error:
            # its physical function is not on this machine, as in a virtual machine
            if error.errno != errno.ENODEV:
                raise
    elif address and (count := vf.count(address)):
        state["vfs"] = vf.read_all(connection, link.index, count)


def _as_json(item: object) -> str:
    return json.dumps(item, sort_keys=True)


def _rules(connection: Netlink, name: str, ips: set[str], link_routes: t.Sequence[Route]) -> list[Rule]:
    """The policy rules of an interface: those that contain its name, one of its addresses, or a table other than the
    system's in which it has a route."""
    system = (routes.TABLE_MAIN, routes.TABLE_LOCAL, routes.TABLE_DEFAULT)
    tables = {(route["family"], route["table"]) for route in link_routes if route["table"] not in system}
    return [
        rule
        for rule in routes.rules(connection)
        if name in (rule.get("iif"), rule.get("oif"))
        or (rule["family"], rule["table"]) in tables
        or {rule.get("source", "/").split("/")[0], rule.get("destination", "/").split("/")[0]} & ips
    ]


def differences(wanted: HostState, current: HostState, carrier: bool = True) -> list[tuple[str, str]]:
    """The differences of `current` from `wanted`, each as its key and a sentence; without what the kernel will learn
    again, or will create once there is `carrier`."""
    texts: list[tuple[str, str]] = []
    for key, value in restorable(wanted).items():
        now = current.get(key)
        if value == now:
            continue
        if key == "permanentMac" and "vf" in wanted:
            continue  # VF drivers report the address that the PF had set at the VF's last reset
        if isinstance(value, list) and isinstance(now, list):
            texts += [(key, text) for text in _list_differences(key, value, now, carrier)]
        elif isinstance(value, dict) and isinstance(now, dict):
            names = {*value} if key == "ethtool" else {*value, *now}  # records of older releases have fewer settings
            differing = [name for name in sorted(names) if value.get(name) != now.get(name)]
            texts += [
                (key, f"{key}: {_setting_difference(name, value.get(name), now.get(name))}") for name in differing
            ]
        else:
            texts.append((key, f"{key} is {now}, was {value}"))
    return texts


def _setting_difference(name: str, wanted: object, now: object) -> str:
    """How the setting `name` differs; for a mapping, which of its entries differ."""
    if not isinstance(wanted, dict) or not isinstance(now, dict):
        return f"{name} is {now}, was {wanted}"
    keys = [key for key in sorted({*wanted, *now}) if wanted.get(key) != now.get(key)]
    return f"{name}: " + ", ".join(f"{key} is {now.get(key)}, was {wanted.get(key)}" for key in keys)


def _list_differences(
    key: str, wanted: t.Sequence[Object | str], now: t.Sequence[Object | str], carrier: bool
) -> t.Iterator[str]:
    """The differences between two lists of addresses, routes and the like."""
    wanted, now = [list(map(_without_preferred_lifetime, items)) for items in (wanted, now)]
    for item in wanted:
        if item not in now and not _appears_later(item, carrier):
            yield f"{key}: {_as_json(item)} is missing"
    for item in now:
        if item not in wanted and not _appears_later(item, carrier) and not _follows_from_address(item):
            yield f"{key}: {_as_json(item)} was not there before"


def _without_preferred_lifetime(item: Object | str) -> Object | str:
    """An item without the time until which an address is preferred: that time passes, and two reads of it may differ by
    a second."""
    if isinstance(item, str):  # an altname
        return item
    return {key: value for key, value in item.items() if key not in ("preferredUntil", "preferredBoottime")}


def _appears_later(item: ObjectView | str, carrier: bool) -> bool:
    """Whether the kernel will learn this again, or will create it once there is carrier."""
    if isinstance(item, str):  # an altname
        return False
    return is_learned(item) or (not carrier and is_created_for_address(item))


def _follows_from_address(item: ObjectView | str) -> bool:
    """Whether this is a local IPv6 route that the kernel adds for an address: it may have appeared after the state was
    read."""
    return not isinstance(item, str) and is_created_for_address(item)


def restorable(state: HostState) -> Object:
    """The part of a host state that is restored and compared."""
    # rules stay on the node when an interface leaves: if one is missing, someone deleted it, so it is not restored
    return {key: value for key, value in state.items() if key not in (MARK, UPPERS, CHILD, "rules")}


def is_learned(item: ObjectView) -> bool:
    """Whether a route or address expires or comes from a router."""
    return "expires" in item or "validUntil" in item or (item.get("protocol") == routes.RTPROT_RA and "table" in item)


def is_created_for_address(route: ObjectView) -> bool:
    """Whether this is a local IPv6 route that the kernel creates for an address.

    The kernel creates such a route once, when DAD has passed. So it is not a difference from a state that was read
    before that moment, and it must not be removed: without the route, the address would stay unusable."""
    return (route.get("protocol"), route.get("table"), route.get("family")) == (
        routes.RTPROT_KERNEL,
        routes.TABLE_LOCAL,
        6,
    )
