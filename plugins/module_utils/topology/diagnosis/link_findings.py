# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Findings on links that are slower than they could be, and on ports that are down."""

from __future__ import annotations

import typing as t

from ..config_space import payload_rate
from ..model import Finding, Link, PciFunction, Topology

ACCELERATORS = ("gpu", "accelerator")


def _text(speed: float | None, width: int | None) -> str:
    return f"{speed:g} GT/s x{width}" if speed and width else f"{speed or '?'} GT/s x{width or '?'}"


def _common_maximum(link: Link, other: Link) -> tuple[float | None, int | None]:
    """The highest speed and width that both ends of a link support."""
    speeds = [speed for speed in (link.max_speed_gts, other.max_speed_gts) if speed]
    widths = [width for width in (link.max_width, other.max_width) if width]
    return (min(speeds) if speeds else None, min(widths) if widths else None)


def _is_downstream(bridges: list[str], position: int) -> bool:
    """Whether the bridge at `position` reports the link below it, and not the one above.

    Below a host bridge, a root port is followed by upstream and downstream ports in turn. Another host bridge (Intel
    VMD, where the domain changes) starts this order again.
    """
    if position >= len(bridges):
        return False
    first = position
    while first and bridges[first - 1].partition(":")[0] == bridges[position].partition(":")[0]:
        first -= 1
    return (position - first) % 2 == 0


def links(topology: Topology, devices: list[PciFunction]) -> t.Iterator[Finding]:
    """Compare every link on the paths to `devices` with what both ends of the link support."""
    if topology.system.virtual or topology.source.kind != "sysfs":
        return  # hypervisors invent link speeds, and imported files do not contain both ends of a link
    functions = topology.functions
    users: dict[str, list[str]] = {}
    paths: dict[str, tuple[list[str], int]] = {}  # the bridges above the first user, and the position among them
    for function in devices:
        for position, address in enumerate([*function.bridges, function.address]):
            users.setdefault(address, []).append(function.address)
            paths.setdefault(address, (function.bridges, position))
    for address, (bridges, position) in paths.items():
        lower, upper = functions.get(address), functions.get(bridges[position - 1]) if position else None
        if lower and upper and lower.link and upper.link and not _is_downstream(bridges, position):
            yield from _link(lower, lower.link, upper, upper.link, users[address])


def _link(
    lower: PciFunction, link: Link, upper: PciFunction, upper_link: Link, users: list[str]
) -> t.Iterator[Finding]:
    """Findings on one link: `lower` reports it as `link`, the port above as `upper_link`."""
    best_speed, best_width = _common_maximum(link, upper_link)
    slow = bool(link.speed_gts and best_speed and link.speed_gts < best_speed)
    narrow = bool(link.width and best_width and link.width < best_width)
    own_rate, slot_rate = (payload_rate(end.max_speed_gts, end.max_width) for end in (link, upper_link))
    limited = own_rate and slot_rate and slot_rate < own_rate and lower.kind != "bridge"
    if not (slow or narrow or limited):
        return
    name, current = lower.name or lower.kind, _text(link.speed_gts, link.width)
    evidence = [
        f"{lower.address}: {current}, can do {_text(link.max_speed_gts, link.max_width)}",
        f"{upper.address} above it can do {_text(upper_link.max_speed_gts, upper_link.max_width)}",
    ]
    if slow or narrow:
        idle = not narrow and lower.kind in ACCELERATORS
        yield Finding(
            id="link-degraded",
            severity="info" if idle else "error" if narrow else "warning",
            summary=f"The PCIe link of {name} {lower.address} runs at {current}, both ends can do "
            f"{_text(best_speed, best_width)}",
            action="An idle GPU lowers its link speed to save power: check again under load."
            if idle
            else "Reseat the card or riser, check the slot's bifurcation and speed in firmware, and the kernel log for "
            "AER errors.",
            devices=sorted(set(users)),
            evidence=evidence,
        )
    if limited:
        yield Finding(
            id="link-limited-by-slot",
            severity="info",
            summary=f"{name} {lower.address} could do {own_rate:.1f} GB/s, its slot {slot_rate:.1f}",
            action="Move the card to a wider or newer slot if its full rate is needed.",
            devices=[lower.address],
            evidence=evidence,
        )


def ports(topology: Topology) -> t.Iterator[Finding]:
    """RDMA ports that are down. A rail is broken if no port of its NIC is up: in switchdev mode, one port of the
    function carries the traffic, and the others represent VFs."""
    nics = {nic.address: nic for nic in topology.nics}
    alive = {device.address for device in topology.rdma_devices for port in device.ports if port.state == "ACTIVE"}
    for device in topology.rdma_devices:
        nic = nics.get(device.address or "")
        for port in device.ports:
            if port.state in (None, "ACTIVE") or nic is None or nic.physfn:
                continue
            broken = nic.rail is not None and nic.address not in alive
            yield Finding(
                id="rdma-port-down",
                severity="error" if broken else "info",
                summary=f"Port {port.port} of {device.name} is {port.state} ({port.phys_state or 'link unknown'})"
                + (f"; rail {nic.rail} is broken" if broken else ""),
                action="Check cable, transceiver and switch port"
                + (", and that a subnet manager runs." if port.link_layer == "infiniband" else "."),
                devices=[nic.address],
                evidence=[f"state {port.state}, physical state {port.phys_state}, rate {port.rate_gbps} Gbit/s"],
            )
