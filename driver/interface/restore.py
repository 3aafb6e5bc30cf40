# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restoring the host state of an interface that came back to the node.

BPF programs stay attached when an interface moves, so those that a pod left behind are removed. The order of the steps
matters: comments say why one step must come before another.
"""

from __future__ import annotations

import errno
import time
import typing as t

from ..base.objects import ObjectView
from ..kernel import addresses, link_dump, links, netlink, programs, qdiscs, routes, sysctls, vf
from ..kernel.ethtool import Ethtool, EthtoolState, recorded_flow_rules
from ..kernel.ethtool_netlink import EthtoolNetlink
from ..kernel.links import step
from ..kernel.netlink import Netlink
from ..kernel.routes import Route
from .host_state import TAG, HostState, is_created_for_address, is_learned, read, restorable

#: Both sysctls are turned off while addresses are restored: DAD has passed before, and the kernel must not generate
#: further addresses.
_ACCEPT_DAD = "net.ipv6.conf.IFNAME.accept_dad"
_GEN_MODE = "net.ipv6.conf.IFNAME.addr_gen_mode"
_GEN_NONE = "1"
_RTN_LOCAL = 2
#: How long to wait until the kernel has created the routes of IPv6 addresses, and the pause between two checks.
_IPV6_TIMEOUT_SECONDS, _IPV6_CHECK_SECONDS = 3.0, 0.002
_NO_MAC = ("", "00:00:00:00:00:00")


def restore(connection: Netlink, link: links.Link, state: HostState, address: str | None) -> list[str]:
    """Restore the host state of a link of the node's namespace; `address` is its PCI address. Returns what could not be
    restored, one sentence each.

    Raises KernelError only if the name, MTU or MAC address cannot be set, or if the link cannot be brought up or down.
    Other unexpected errors of the kernel are raised as OSError.
    """
    if restorable(read(connection, link, address)) == restorable(state):
        return []
    notes: list[str] = []
    index = link.index
    if link.up:
        with step(f"bring {link.name} down"):
            links.set_link_state(connection, index, up=False)
    _restore_vf(connection, state, address, notes)  # first: a VF may accept only the address that its PF set
    name = _restore_link(connection, link, state, notes)
    requested = _restore_ethtool(name, state["ethtool"], notes)
    if state.get("vfs"):
        _try(notes, "vfs", vf.write_all, connection, index, state["vfs"])
    if "driver" in state:
        with EthtoolNetlink() as tool:
            tool.write(name, state["driver"])
    wanted = dict(state["sysctls"])
    deferred = {key: wanted.pop(key) for key in (_ACCEPT_DAD, _GEN_MODE) if key in wanted}
    _try(notes, "sysctls", sysctls.write, name, {key: "0" if key == _ACCEPT_DAD else _GEN_NONE for key in deferred})
    _restore_sysctls(name, wanted, notes)
    _restore_addresses(connection, index, state, notes)
    up = links.IFF_UP if state["up"] else 0
    with step(f"bring {name} {'up' if state['up'] else 'down'}"):
        links.change(connection, index, flags=state["flags"] | up, mask=links.RESTORED_FLAGS | links.IFF_UP)
    _restore_addresses(connection, index, state, notes)  # IPv6 addresses are lost when the interface goes down
    _wait_for_ipv6(connection, index, state)
    _try(notes, "sysctls", sysctls.write, name, deferred)
    _trim_addresses(connection, index, state)
    _restore_qdiscs(connection, index, state, notes)
    if "files" in state:
        link_dump.write_files(name, state["files"])
    _restore_neighbors(connection, index, state, notes)
    _restore_routes(connection, index, state, notes)
    _note_inactive_features(name, requested, notes)
    return notes


def _try(notes: list[str], what: str, function: t.Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except OSError as error:
        notes.append(f"{what}: {error.args[1] if len(error.args) > 1 else error}")


# ---- the link


def _restore_link(connection: Netlink, link: links.Link, state: HostState, notes: list[str]) -> str:
    """Restore name, altnames and attributes. Returns the link's current name."""
    index = link.index
    name = _restore_names(connection, link, state, notes)
    if state["mac"] != link.mac and state["mac"] not in _NO_MAC and len(links.mac_bytes(state["mac"])) == 6:
        with step(f"set the MAC address of {name} to {state['mac']}"):
            if "vf" in state:
                vf.set_mac(connection, link, state["mac"])
            else:
                links.change(connection, index, netlink.attribute(links.IFLA_ADDRESS, links.mac_bytes(state["mac"])))
    if state["mtu"] != link.mtu:
        with step(f"set the MTU of {name} to {state['mtu']}"):
            links.change(connection, index, netlink.u32(links.IFLA_MTU, state["mtu"]))
    _restore_numbers(connection, link, state, notes)
    if state["alias"] != netlink.string(link.raw.get(links.IFLA_IFALIAS, b"")):
        alias = netlink.attribute(links.IFLA_IFALIAS, state["alias"].encode())
        _try(notes, "alias", links.change, connection, index, alias)
    _remove_programs(connection, link, state, notes)
    _restore_master(connection, link, state["master"], notes)
    if "attributes" in state:
        _try(notes, "attributes", link_dump.restore_attributes, connection, index, state["attributes"])
    return name


def _restore_names(connection: Netlink, link: links.Link, state: HostState, notes: list[str]) -> str:
    """Restore name and altnames. Returns the link's current name: unchanged if another interface has the original
    one."""
    index, name = link.index, link.name
    altnames = [altname for altname in link.altnames if not altname.startswith(TAG)]
    if altnames != state["altnames"]:
        _try(notes, "altnames", links.altnames, connection, index, altnames, False)
    if name != state["name"]:
        try:
            links.change(connection, index, netlink.text(links.IFLA_IFNAME, state["name"]))
            name = state["name"]
        except OSError as error:
            if error.errno != errno.EEXIST:
                with step(f"rename {name} to {state['name']}"):
                    raise
            notes.append(f"the name {state['name']} is taken by another interface; this one is {name}")
    for altname in state["altnames"]:
        _try(notes, f"altname {altname}", links.altnames, connection, index, [altname], True)
    return name


def _restore_numbers(connection: Netlink, link: links.Link, state: ObjectView, notes: list[str]) -> None:
    numbers = {"txQueueLength": links.IFLA_TXQLEN, "group": links.IFLA_GROUP, "gsoMaxSegs": links.IFLA_GSO_MAX_SEGS}
    for key, attribute in {**numbers, **links.SIZES}.items():
        if key in state and state[key] != link.number(attribute):
            _try(notes, key, links.change, connection, link.index, netlink.u32(attribute, state[key]))


def _remove_programs(connection: Netlink, link: links.Link, state: HostState, notes: list[str]) -> None:
    """Remove the BPF programs that the state does not contain."""
    index = link.index
    removed = {program for mode, program in link.xdp.items() if state["xdp"].get(mode) != program}
    if removed:
        _try(notes, "BPF links of XDP programs", programs.detach_xdp_links, index, removed)
        link = links.get(connection, index=index) or link
    _try(notes, "BPF programs", programs.remove, index, link.kind, state.get("programs"))
    for mode, program in link.xdp.items():
        if state["xdp"].get(mode) != program:
            _try(notes, f"XDP program ({mode})", links.remove_xdp, connection, index, mode)


def _restore_master(connection: Netlink, link: links.Link, name: str, notes: list[str]) -> None:
    master = links.get(connection, name=name) if name else None
    if name and master is None:
        notes.append(f"the interface's master {name} no longer exists")
    elif (master.index if master else 0) != link.number(links.IFLA_MASTER):
        value = netlink.u32(links.IFLA_MASTER, master.index if master else 0)
        _try(notes, f"master {name}", links.change, connection, link.index, value)


# ---- settings of the link


def _restore_vf(connection: Netlink, state: HostState, address: str | None, notes: list[str]) -> None:
    function = vf.function(address) if address else None
    if function and "vf" in state:
        _try(notes, "vf", vf.write, connection, function, state["vf"])


def _restore_ethtool(name: str, state: EthtoolState, notes: list[str]) -> dict[str, bool]:
    """Restore the ethtool settings. Returns the features whose requested state was changed, with that state."""
    with Ethtool() as tool:
        wanted, now = t.cast("ObjectView", state), t.cast("ObjectView", tool.read(name))
        writers: dict[str, t.Callable[..., None]] = {
            "channels": tool.set_channels,
            "rings": tool.set_rings,
            "privateFlags": tool.set_private_flags,
            "features": tool.request_features,  # some may not have been active on the node either
        }
        changed = {
            key: {setting: value for setting, value in wanted[key].items() if now[key].get(setting) != value}
            for key in writers
        }
        for key, write in writers.items():
            if changed[key]:
                _try(notes, f"ethtool {key}", write, name, changed[key])
        if "flowRules" in state:  # not in records of older drivers
            _try(notes, "ethtool flowRules", tool.set_flow_rules, name, recorded_flow_rules(state))
            _try(notes, "ethtool RSS", tool.set_rss, name, state["spreading"])
    return changed["features"]


def _note_inactive_features(name: str, requested: t.Mapping[str, bool], notes: list[str]) -> None:
    """Add a note about the features that do not have the state that was just requested. On the node some may not have
    had it either: a host state contains only what was requested."""
    if not requested:
        return
    with Ethtool() as tool:
        states = tool.feature_states(name)
    differing = [
        f"{feature} is {'off' if on else 'on'}"
        for feature, on in requested.items()
        if feature in states and states[feature].active is not on
    ]
    if differing:
        cause = "the driver of the interface refuses the change, or another feature or setting prevents it"
        notes.append(f"ethtool features: {', '.join(differing)}, not as requested: {cause}")


def _restore_sysctls(name: str, wanted: t.Mapping[str, str], notes: list[str]) -> None:
    """Write the sysctls that differ. Some may still differ then, because one sysctl can change another; those are
    written again."""
    failures: list[str] = []
    for _attempt in range(2):
        now = sysctls.read(name)
        differing = {key: value for key, value in wanted.items() if now.get(key) != value}
        failures = []
        if not differing:
            break
        for key, value in differing.items():
            _try(failures, f"sysctl {key}", sysctls.write, name, {key: value})
    notes += failures


def _restore_qdiscs(connection: Netlink, index: int, state: HostState, notes: list[str]) -> None:
    now = qdiscs.listed(connection, index)
    if now == state["qdiscs"]:
        return
    for qdisc in reversed(now):
        _try(notes, f"qdisc {qdisc['kind']}", qdiscs.remove, connection, index, qdisc)
    for qdisc in state["qdiscs"]:
        _try(notes, f"qdisc {qdisc['kind']}", qdiscs.add, connection, index, qdisc)


def _restore_neighbors(connection: Netlink, index: int, state: HostState, notes: list[str]) -> None:
    for neighbor in addresses.neighbors(connection, index):
        if neighbor not in state["neighbors"]:
            _try(notes, "neighbors", addresses.remove_neighbor, connection, index, neighbor)
    for neighbor in state["neighbors"]:
        _try(notes, f"neighbor {neighbor['destination']}", addresses.add_neighbor, connection, index, neighbor)


def _restore_addresses(connection: Netlink, index: int, state: HostState, notes: list[str]) -> None:
    """Restore the addresses in their original order, which decides which one is primary. If the addresses of a family
    are unchanged, they are not touched."""
    wanted = list(state["addresses"])
    for version in (4, 6):
        of_version = [entry for entry in wanted if _version(entry["address"]) == version]
        listed = addresses.listed(connection, index)
        now = [entry for entry, _unused in listed if _version(entry["address"]) == version]
        if now == of_version:
            continue
        # the last ones first: removing a primary address removes its secondaries
        for entry in reversed(now):
            _try(notes, f"address {entry['address']}", addresses.remove, connection, index, entry)
        for entry in addresses.ordered(of_version):
            try:
                addresses.add(connection, index, entry)
            except OSError as error:
                failure = f"address {entry['address']}: {error.args[1]}"
                if failure not in notes:
                    notes.append(failure)


def _wait_for_ipv6(connection: Netlink, index: int, state: HostState) -> None:
    """Wait for DAD and for the routes of IPv6 addresses. The kernel creates these routes some time after the addresses,
    and only with carrier, which it detects up to a second later."""
    current = {entry["address"].split("/")[0] for entry, _unused in addresses.listed(connection, index)}
    created = [route for route in state["routes"] if is_created_for_address(route)]
    # an address that could not be restored has no route
    wanted = [
        route for route in created if route["type"] != _RTN_LOCAL or route["destination"].split("/")[0] in current
    ]
    end = time.monotonic() + _IPV6_TIMEOUT_SECONDS
    while time.monotonic() < end:
        link = links.get(connection, index=index)
        if link is None or not link.up:
            return
        if not any(flags & addresses.TENTATIVE for _unused, flags in addresses.listed(connection, index)):
            now = routes.listed(connection, index) if link.carrier else wanted
            if all(route in now for route in wanted):
                return
        time.sleep(_IPV6_CHECK_SECONDS)


def _trim_addresses(connection: Netlink, index: int, state: HostState) -> None:
    """Remove addresses that the kernel created while the state was restored."""
    wanted = {entry["address"] for entry in state["addresses"]}
    for entry, _unused in addresses.listed(connection, index):
        if entry["address"] not in wanted:
            addresses.remove(connection, index, entry)


def _restore_routes(connection: Netlink, index: int, state: HostState, notes: list[str]) -> None:
    sources = {entry["address"].split("/")[0] for entry in state["addresses"]}
    wanted = [route for route in state["routes"] if not is_learned(route) and not is_created_for_address(route)]
    now = routes.listed(connection, index, sources)
    for route in now:
        if route in state["routes"] or is_learned(route) or is_created_for_address(route):
            continue
        if _uses_only_this_interface(route):
            _try(notes, f"route {route['destination']}", routes.remove, connection, index, route)
    missing = [route for route in wanted if route not in now]
    for route in missing:
        _remove_partial_route(connection, route)
    for route, error in routes.add_all(connection, index, missing):
        remaining = _without_missing_hops(connection, route)
        if remaining:
            failed = routes.add_all(connection, index, [remaining])
            if not failed:
                notes.append(f"route {route['destination']}: restored without next hops whose interfaces are missing")
                continue
        notes.append(f"route {route['destination']} in table {route['table']}: {error.args[1]}")


def _remove_partial_route(connection: Netlink, route: Route) -> None:
    """Remove the part of a multipath route that was restored while interfaces of other next hops were missing, so that
    the whole route can be added. For IPv6 the kernel replaces the part itself."""
    if route["family"] == 6:
        return
    wanted = {(hop["device"], hop.get("gateway")) for hop in route.get("hops", ())}
    for name in {device for device, _unused in wanted if device}:
        link = links.get(connection, name=name)
        for other in routes.listed(connection, link.index) if link else ():
            hops = {
                (hop["device"] or name, hop.get("gateway")) for hop in other.get("hops", [other]) if "device" in hop
            }
            same = all(other.get(key) == route.get(key) for key in ("destination", "table", "metric", "tos", "type"))
            if same and link and hops < wanted:
                routes.remove(connection, link.index, other)


def _uses_only_this_interface(route: Route) -> bool:
    """Whether a route uses only this interface. A route that also uses other interfaces, or only an address of this
    one, must not be removed."""
    return not route.get("device", "") and "hops" not in route and "device" in route


def _without_missing_hops(connection: Netlink, route: Route) -> Route | None:
    """A multipath route without the next hops of missing interfaces; None if that leaves it unchanged or empty."""
    hops = [hop for hop in route.get("hops", ()) if not hop["device"] or links.get(connection, name=hop["device"])]
    return {**route, "hops": hops} if hops and len(hops) < len(route["hops"]) else None


def _version(address: str) -> int:
    return 6 if ":" in address else 4
