# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks whether pods send to each rail through that rail's interface, according to the routes in their network
namespaces.

A pod with `NET_ADMIN` can change its routes, and so can a network plugin. The only symptom would be a slow job.
"""

from __future__ import annotations

import ipaddress
import typing as t
from pathlib import Path

from ..dra.config.rail_range import RailRange
from ..interface import rails
from ..kernel import addresses, links, netns
from ..kernel.netlink import Netlink
from ..uplinks.routes import Routes
from .records import ATTACHED, DeviceRecord, Record

#: Documentation addresses (RFC 5737, RFC 3849), which stand for destinations outside of all rails.
_OUTSIDE = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}


def in_use(records: t.Iterable[Record], ranges: t.Iterable[RailRange]) -> list[tuple[RailRange, int]]:
    """Each range, with how many of its addresses claims have."""
    held = [ipaddress.ip_interface(one["address"]).ip for record in records for one in _rail_addresses(record)]
    return [(one, sum(address in one.range for address in held)) for one in ranges]


def misrouted(records: t.Sequence[Record], pin: t.Callable[[str], Path]) -> list[str]:
    """The problems of devices in pods with addresses of rails: traffic that leaves through another rail's interface or
    has no route, and missing addresses. `pin` returns the pinned namespace of a claim. Devices whose configuration has
    routes, rules or a VRF are left out. Raises KernelError."""
    found: list[str] = []
    attached = [one for one in records if one.phase == ATTACHED and one.pod and any(_rail_addresses(one))]
    for record in attached:
        if not netns.alive(pin(record.uid)):
            continue
        same_pod = [other for other in attached if other.pod == record.pod]
        with links.step(f"read the routes of pod {record.pod}"), Netlink(pin(record.uid)) as connection:
            own = {link.name: link.index for link in links.listed(connection)}
            for device in record.held:
                if not {"routes", "rules", "vrf"} & set(device.config):
                    for wrong in _problems(connection, device, own, same_pod):
                        found.append(f"claim {record.claim}: {wrong}")
    return found


def _rail_addresses(record: Record) -> list[rails.RailAddress]:
    return [one for device in record.held for one in rails.rail_addresses(device.config)]


def _problems(
    connection: Netlink, device: DeviceRecord, own: t.Mapping[str, int], same_pod: t.Sequence[Record]
) -> t.Iterator[str]:
    rail = device.known.device.get("attributes", {}).get("rail", {}).get("int", "?")
    index = own.get(device.interface)
    if index is None:
        yield f"{device.interface} of rail {rail} is not in the pod"
        return
    has = {entry["address"] for entry, _flags in addresses.listed(connection, index)}
    names = {number: name for name, number in own.items()}
    kernel = Routes(connection)
    for one in rails.rail_addresses(device.config):
        interface = ipaddress.ip_interface(one["address"])
        if one["address"] not in has:
            yield f"{device.interface} of rail {rail} does not have {one['address']}"
            continue
        destination = _other_address(one)
        for source in (interface.ip, None):
            by = kernel.leads(destination, source)
            same = {index} if source else _rail_interfaces(one, same_pod, own)
            if not by or by - same:
                says = f"what {source or 'the pod'} sends to {one['pool']} of rail {rail}"
                where = " and ".join(sorted(names.get(number, "an interface") for number in by))
                yield f"{says} {f'leaves by {where}' if by else 'has no route'}, not by {device.interface}"
        if one["reach"] == "rail" and (by := kernel.leads(_OUTSIDE[interface.version], interface.ip)):
            where = " and ".join(sorted(names.get(number, "an interface") for number in by))
            yield f"{interface.ip} of rail {rail} can send to other networks, by {where}"


def _other_address(one: rails.RailAddress) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of the pool that the interface does not have."""
    own, pool = ipaddress.ip_interface(one["address"]).ip, ipaddress.ip_network(one["pool"])
    places = [place for place in (-2, -3, 0) if -pool.num_addresses <= place]
    return next((pool[place] for place in places if pool[place] != own), pool[0])


def _rail_interfaces(one: rails.RailAddress, records: t.Iterable[Record], own: t.Mapping[str, int]) -> set[int]:
    """The indexes of a pod's interfaces with addresses of the same pool."""
    devices = [device for record in records for device in record.held]
    same = [
        device
        for device in devices
        if any(other["pool"] == one["pool"] for other in rails.rail_addresses(device.config))
    ]
    return {own[device.interface] for device in same if device.interface in own}
