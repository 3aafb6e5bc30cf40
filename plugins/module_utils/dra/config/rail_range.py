# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The range of addresses that one node has on one rail, in the form of its driver's setting.

    rail: 0                     # the rail of the NICs that get these addresses
    range: 10.100.4.64/26       # what the driver hands out
    pool: 10.100.0.0/16         # the addresses of all nodes on this rail
    prefix: 16                  # the prefix length of an address in a pod; default: that of the pool
    gateway: 10.100.0.1         # for destinations outside the subnet of an address; default: none
    reach: rail                 # destinations of a rail's address: `rail` (only its pool, the default) or `all`

The site's plan (`addresses`) computes these ranges, and the driver hands out addresses from them. Both read them here.
"""

from __future__ import annotations

import ipaddress
import typing as t
from dataclasses import dataclass

from ..kube.objects import Object
from ..kube.reader import Reader, child

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

REACH = ("rail", "all")
#: The highest rail number, and the maximum number of a node's addresses on a rail. Table numbers depend on both.
MAX_RAIL, MAX_ADDRESSES = 1023, 4096
#: Above the tables of VRFs for which no table is configured (`interface_config.vrf_table`).
_FIRST_TABLE = 2_000_000
_KEYS = ("rail", "range", "pool", "prefix", "gateway", "reach")


@dataclass(frozen=True)
class RailRange:
    """One range. `range` is part of `pool`, and lies in one subnet of the length `prefix`, or `prefix` is that of a
    single address (/32, /128)."""

    rail: int
    range: Network
    pool: Network
    prefix: int
    gateway: Address | None = None
    reach: str = "rail"

    @property
    def family(self) -> str:
        """`ipv4` or `ipv6`."""
        return f"ipv{self.range.version}"

    @property
    def subnet(self) -> Network | None:
        """The subnet that the pods' addresses are in; None for single addresses, which have no neighbors."""
        if self.prefix == self.range.max_prefixlen:
            return None
        return self.range.supernet(new_prefix=self.prefix) if self.prefix < self.range.prefixlen else self.range

    @property
    def usable(self) -> int:
        """How many addresses can be handed out."""
        return self.range.num_addresses - sum(address in self.range for address in self.reserved)

    @property
    def reserved(self) -> set[Address]:
        """Addresses that are never handed out: the gateway, and those of the subnet itself (RFC 4291 2.6.1; not in a
        subnet of two addresses, RFC 3021 and RFC 6164)."""
        found: set[Address] = {self.gateway} if self.gateway else set()
        subnet = self.subnet
        if subnet is not None and subnet.num_addresses > 2:
            found.add(subnet.network_address)
            if subnet.version == 4:
                found.add(subnet.broadcast_address)
        return found

    def addresses(self) -> t.Iterator[Address]:
        """The addresses that can be handed out, the lowest first."""
        reserved = self.reserved
        return (address for address in self.range if address not in reserved)

    def table(self, address: Address) -> int:
        """The routing table of an address in a pod. Each address of a family on this node has its own table."""
        offset = int(address) - int(self.range.network_address)
        return _FIRST_TABLE + self.rail * MAX_ADDRESSES + offset

    def setting(self) -> Object:
        """As in the driver's settings."""
        found: Object = {
            "rail": self.rail,
            "range": str(self.range),
            "pool": str(self.pool),
            "prefix": self.prefix,
            "reach": self.reach,
        }
        return {**found, "gateway": str(self.gateway)} if self.gateway else found


def read_ranges(reader: Reader, value: object, path: str) -> tuple[RailRange, ...]:
    """The ranges of a setting. Problems are recorded in `reader`; ranges with problems are left out."""
    found: list[RailRange] = []
    for item, place in reader.items(value, path):
        one = read_range(reader, item, place)
        if one is None:
            continue
        for other in found:
            if other.rail == one.rail and other.family == one.family:
                message = f"rail {one.rail} already has the {one.family} range {other.range}"
                reader.problem(place, message, "duplicate", "use one range for each rail and family")
            elif overlap(other.range, one.range):
                message = f"{one.range} overlaps {other.range} of rail {other.rail}"
                reader.problem(place, message, "duplicate")
        found.append(one)
    return tuple(found)


def read_range(reader: Reader, value: object, path: str) -> RailRange | None:
    """One range; None if it has problems, which are recorded in `reader`."""
    given = reader.mapping(value, path, _KEYS, "a range of addresses")
    if given is None:
        return None
    before = len(reader.problems)
    for key in ("rail", "range", "pool"):
        if key not in given:
            reader.problem(child(path, key), "is missing", "missing")
    rail = read_rail(reader, given.get("rail", 0), child(path, "rail"))
    node_range = read_network(reader, given.get("range", "0.0.0.0/32"), child(path, "range"))
    pool = read_network(reader, given.get("pool", "0.0.0.0/32"), child(path, "pool"))
    reach = reader.choice(given.get("reach", "rail"), child(path, "reach"), REACH)
    if len(reader.problems) > before or rail is None or node_range is None or pool is None or reach is None:
        return None
    if node_range.num_addresses > MAX_ADDRESSES:
        reader.problem(child(path, "range"), f"has more than {MAX_ADDRESSES} addresses", "too-many")
    if not within(node_range, pool):
        reader.problem(child(path, "range"), f"{node_range} is not in the pool {pool}", "bad-value")
    prefix = read_prefix(reader, given.get("prefix"), pool, node_range.prefixlen, child(path, "prefix"))
    gateway = read_address(reader, given["gateway"], child(path, "gateway")) if "gateway" in given else None
    if gateway is not None and gateway.version != node_range.version:
        reader.problem(child(path, "gateway"), f"is not in the same IP family as {node_range}", "bad-value")
    if len(reader.problems) > before or prefix is None:
        return None
    found = RailRange(rail, node_range, pool, prefix, gateway, reach)
    check_gateway(reader, found, child(path, "gateway"))
    return found if len(reader.problems) == before else None


def read_rail(reader: Reader, value: object, path: str) -> int | None:
    return reader.integer(value, path, 0, MAX_RAIL)


def read_network(reader: Reader, value: object, path: str) -> Network | None:
    """A network without host bits."""
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        if "/" not in text:
            raise ValueError("it has no prefix length")
        return ipaddress.ip_network(text)
    except ValueError as error:
        fix = "such as 10.100.0.0/16 or fd00:100::/64"
        reader.problem(path, f"is not a network without host bits: {error}", "bad-value", fix)
        return None


def read_address(reader: Reader, value: object, path: str) -> Address | None:
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        reader.problem(path, f"{text[:64]!r} is not an IP address", "bad-value")
        return None


def read_prefix(reader: Reader, value: object, pool: Network, longest: int, path: str) -> int | None:
    """The prefix length of addresses, by default the pool's. `longest` is that of a node's range: all of its addresses
    are then in one subnet."""
    if value is None:
        return pool.prefixlen
    number = reader.integer(value, path, pool.prefixlen, pool.max_prefixlen)
    if number is not None and longest < number < pool.max_prefixlen:
        message = f"must be from {pool.prefixlen} to {longest}, or {pool.max_prefixlen}"
        reader.problem(path, f"{message}: otherwise a node has several subnets", "out-of-range")
        return None
    return number


def check_gateway(reader: Reader, one: RailRange, path: str) -> None:
    """Record whether a gateway is missing, or cannot be reached."""
    subnet = one.subnet
    if one.gateway is None:
        if one.reach == "all" or subnet != one.pool:
            what = "reach is all" if one.reach == "all" else f"the subnet of an address is not the pool {one.pool}"
            reader.problem(path, f"is required because {what}", "missing", "set the router's address on this rail")
    elif subnet is not None and one.gateway not in subnet:
        reader.problem(path, f"{one.gateway} is not in {subnet}, the subnet of this node", "bad-value")


def overlap(one: Network, other: Network) -> bool:
    """Whether two networks of any family have an address in common."""
    return one.version == other.version and one.overlaps(t.cast(t.Any, other))


def within(one: Network, other: Network) -> bool:
    """Whether a network is part of another one."""
    return one.version == other.version and one.subnet_of(t.cast(t.Any, other))
