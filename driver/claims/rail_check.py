# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks whether pods send to each rail through that rail's interface, according to the routes in their network
namespaces.

A pod with `NET_ADMIN` can change its routes, and so can a network plugin. Without this check, the only symptom of that
is a slow job.
"""

from __future__ import annotations

import ipaddress
import typing as t
from pathlib import Path

from ..base.errors import KernelError
from ..dra.config.rail_range import RailRange
from ..interface import rails
from ..kernel import addresses, links, netns
from ..kernel.netlink import Netlink
from ..uplinks.routes import Routes
from .records import ATTACHED, DeviceRecord, Record

#: Documentation addresses (RFC 5737, RFC 3849), used as destinations outside of all rails.
_OUTSIDE = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}


def in_use(records: t.Iterable[Record], ranges: t.Iterable[RailRange]) -> list[tuple[RailRange, int]]:
    """Each range, with the number of its addresses that claims have."""
    assigned = [
        ipaddress.ip_interface(rail_address["address"]).ip
        for record in records
        for rail_address in _rail_addresses(record)
    ]
    return [(rail_range, sum(address in rail_range.range for address in assigned)) for rail_range in ranges]


def misrouted(records: t.Sequence[Record], pin: t.Callable[[str], Path]) -> list[str]:
    """The problems of devices in pods that have addresses of rails: traffic to a rail that leaves through another
    interface or has no route, and missing addresses. `pin` returns the pinned namespace of a claim. Devices whose
    configuration has routes, rules or a VRF are left out. An error of one claim does not hide those of others."""
    messages: list[str] = []
    attached = [
        record for record in records if record.phase == ATTACHED and record.pod and any(_rail_addresses(record))
    ]
    for record in attached:
        if not netns.alive(pin(record.uid)):
            continue
        same_pod = [other for other in attached if other.pod == record.pod]
        problems: list[str] = []
        try:
            with links.step(f"read the routes of pod {record.pod}"), Netlink(pin(record.uid)) as connection:
                indexes = {link.name: link.index for link in links.listed(connection)}
                for device in record.held:
                    if not {"routes", "rules", "vrf"} & set(device.config):
                        problems += _problems(connection, device, indexes, same_pod)
        except KernelError as error:  # for example, an interface has just left the pod
            problems.append(error.message)
        messages += [f"claim {record.claim}: {problem}" for problem in problems]
    return messages


def _rail_addresses(record: Record) -> list[rails.RailAddress]:
    return [rail_address for device in record.held for rail_address in rails.rail_addresses(device.config)]


def _problems(
    connection: Netlink, device: DeviceRecord, indexes: t.Mapping[str, int], same_pod: t.Sequence[Record]
) -> t.Iterator[str]:
    """The problems of a device. `indexes` are those of the pod's interfaces, `same_pod` the records of the pod's
    claims."""
    rail = device.known.device.get("attributes", {}).get("rail", {}).get("int", "?")
    index = indexes.get(device.interface)
    if index is None:
        yield f"{device.interface} of rail {rail} is not in the pod"
        return
    present = {entry["address"] for entry, _flags in addresses.listed(connection, index)}
    names = {number: name for name, number in indexes.items()}
    kernel = Routes(connection)
    for rail_address in rails.rail_addresses(device.config):
        interface = ipaddress.ip_interface(rail_address["address"])
        if rail_address["address"] not in present:
            yield f"{device.interface} of rail {rail} does not have {rail_address['address']}"
            continue
        destination = _other_address(rail_address, same_pod)
        for source in (interface.ip, None):
            if destination is None:
                break  # the pool has no other address
            used = kernel.outgoing_links_exact(destination, source)
            expected = {index} if source else _rail_interfaces(rail_address, same_pod, indexes)
            if not used or used - expected:
                traffic = f"what {source or 'the pod'} sends to {rail_address['pool']} of rail {rail}"
                if used:
                    yield f"{traffic} leaves through {_interface_names(used, names)}, not through {device.interface}"
                else:
                    yield f"{traffic} has no route, and should leave through {device.interface}"
        if rail_address["reach"] == "rail" and (
            used := kernel.outgoing_links_exact(_OUTSIDE[interface.version], interface.ip)
        ):
            interface_names = _interface_names(used, names)
            yield f"{interface.ip} of rail {rail} can send to other networks, through {interface_names}"


def _interface_names(indexes: t.Iterable[int], names: t.Mapping[int, str]) -> str:
    """The names of interfaces. A pod may have chosen them: what is not printable is escaped."""
    found = sorted(names.get(index, "an interface") for index in indexes)
    return " and ".join(name if name.isprintable() else ascii(name) for name in found)


def _other_address(
    rail_address: rails.RailAddress, same_pod: t.Sequence[Record]
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address of the pool that the pod does not have; None if there is none. The first and the last address of a
    pool with more than two are not chosen: in an IPv4 network they are the network and the broadcast address."""
    pool = ipaddress.ip_network(rail_address["pool"])
    own = {ipaddress.ip_interface(other["address"]).ip for record in same_pod for other in _rail_addresses(record)}
    if pool.num_addresses > 2:
        positions = range(-2, -min(pool.num_addresses, len(own) + 3), -1)
    else:
        positions = range(-pool.num_addresses, 0)
    return next((pool[position] for position in positions if pool[position] not in own), None)


def _rail_interfaces(
    rail_address: rails.RailAddress, records: t.Iterable[Record], indexes: t.Mapping[str, int]
) -> set[int]:
    """The indexes of a pod's interfaces with addresses of the same pool."""
    devices = [device for record in records for device in record.held]
    same_pool = [
        device
        for device in devices
        if any(other["pool"] == rail_address["pool"] for other in rails.rail_addresses(device.config))
    ]
    return {indexes[device.interface] for device in same_pool if device.interface in indexes}
