# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The range of addresses that one node has on one rail, in the form of the driver setting `rail_addresses`.

    rail: 0                     # the rail of the NICs that get these addresses
    range: 10.100.4.64/26       # the addresses that the driver assigns to pods
    pool: 10.100.0.0/16         # the addresses of all nodes on this rail
    prefix: 16                  # the prefix length of an address in a pod; default: that of the pool
    gateway: 10.100.0.1         # for destinations outside the subnet of an address; default: none
    reach: rail                 # destinations of a rail's address: `rail` (only its pool, the default) or `all`

The site's plan (`addresses`) computes these ranges, and the driver assigns addresses from them to pods.
"""

from __future__ import annotations

import ipaddress
import typing as t
from dataclasses import dataclass

from ..kube.objects import Object
from ..kube.reader import Reader, child

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

REACH_CHOICES = ("rail", "all")
#: The highest rail number, and the maximum number of a node's addresses on a rail. Numbers of tables depend on both.
MAX_RAIL, MAX_ADDRESSES = 1023, 4096
#: The lowest number of a table for an address. It is above the tables that `interface_config.vrf_table` returns.
_FIRST_TABLE = 2_000_000
_KEYS = ("rail", "range", "pool", "prefix", "gateway", "reach")


@dataclass(frozen=True)
class RailRange:
    """The addresses of one node on one rail, of one IP family.

    `range` is part of `pool`. All of its addresses are in one subnet with the prefix length `prefix`, unless `prefix`
    is that of a single address (/32 or /128).
    """

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
        """How many addresses can be assigned."""
        return self.range.num_addresses - sum(address in self.range for address in self.reserved)

    @property
    def reserved(self) -> set[Address]:
        """Addresses that are never assigned: the gateway, and the subnet's first address and IPv4 broadcast address.

        The first address of an IPv6 subnet is the Subnet-Router anycast address (RFC 4291 2.6.1). A subnet of two
        addresses reserves neither (RFC 3021 and RFC 6164).
        """
        reserved: set[Address] = {self.gateway} if self.gateway else set()
        subnet = self.subnet
        if subnet is not None and subnet.num_addresses > 2:
            reserved.add(subnet.network_address)
            if subnet.version == 4:
                reserved.add(subnet.broadcast_address)
        return reserved

    def addresses(self) -> t.Iterator[Address]:
        """The addresses that can be assigned, the lowest first."""
        reserved = self.reserved
        return (address for address in self.range if address not in reserved)

    def table(self, address: Address) -> int:
        """The number of the routing table of an address in a pod: one per address and IP family of a node."""
        offset = int(address) - int(self.range.network_address)
        return _FIRST_TABLE + self.rail * MAX_ADDRESSES + offset

    def setting(self) -> Object:
        """The range in the form of the driver's setting."""
        entry: Object = {
            "rail": self.rail,
            "range": str(self.range),
            "pool": str(self.pool),
            "prefix": self.prefix,
            "reach": self.reach,
        }
        return {**entry, "gateway": str(self.gateway)} if self.gateway else entry


def read_ranges(reader: Reader, value: object, path: str) -> tuple[RailRange, ...]:
    """The ranges of a setting. Problems are recorded in `reader`; ranges with problems are left out."""
    ranges: list[RailRange] = []
    for item, item_path in reader.items(value, path):
        rail_range = read_range(reader, item, item_path)
        if rail_range is None:
            continue
        for other in ranges:
            if other.rail == rail_range.rail and other.family == rail_range.family:
                message = f"rail {other.rail} already has the {other.family} range {other.range}"
                reader.problem(item_path, message, "duplicate", "use one range for each rail and family")
            elif overlap(other.range, rail_range.range):
                message = f"{rail_range.range} overlaps {other.range} of rail {other.rail}"
                reader.problem(item_path, message, "duplicate")
        ranges.append(rail_range)
    return tuple(ranges)


def read_range(reader: Reader, value: object, path: str) -> RailRange | None:
    """One range, or None if it has problems, which are recorded in `reader`."""
    entry = reader.mapping(value, path, _KEYS, "a range of addresses")
    if entry is None:
        return None
    problems_before = len(reader.problems)
    for key in ("rail", "range", "pool"):
        if key not in entry:
            reader.problem(child(path, key), "is missing", "missing")
    rail = read_rail(reader, entry.get("rail", 0), child(path, "rail"))
    node_range = read_network(reader, entry.get("range", "0.0.0.0/32"), child(path, "range"))
    pool = read_network(reader, entry.get("pool", "0.0.0.0/32"), child(path, "pool"))
    reach = reader.choice(entry.get("reach", "rail"), child(path, "reach"), REACH_CHOICES)
    if len(reader.problems) > problems_before or rail is None or node_range is None or pool is None or reach is None:
        return None
    if node_range.num_addresses > MAX_ADDRESSES:
        reader.problem(child(path, "range"), f"has more than {MAX_ADDRESSES} addresses", "too-many")
    if not within(node_range, pool):
        reader.problem(child(path, "range"), f"{node_range} is not in the pool {pool}", "bad-value")
    prefix = read_prefix(reader, entry.get("prefix"), pool, node_range.prefixlen, child(path, "prefix"))
    gateway = read_address(reader, entry["gateway"], child(path, "gateway")) if "gateway" in entry else None
    if gateway is not None and gateway.version != node_range.version:
        reader.problem(child(path, "gateway"), f"is not in the same IP family as {node_range}", "bad-value")
    if len(reader.problems) > problems_before or prefix is None:
        return None
    rail_range = RailRange(rail, node_range, pool, prefix, gateway, reach)
    check_gateway(reader, rail_range, child(path, "gateway"))
    return rail_range if len(reader.problems) == problems_before else None


def read_rail(reader: Reader, value: object, path: str) -> int | None:
    return reader.integer(value, path, 0, MAX_RAIL)


def read_network(reader: Reader, value: object, path: str) -> Network | None:
    """A network without host bits, or None for any other value. Errors are recorded in `reader`."""
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        if "/" not in text:
            raise ValueError("the prefix length is missing")
        network = ipaddress.ip_network(text)
        parse_address(str(network.network_address))
        return network
    except ValueError as error:
        fix = "such as 10.100.0.0/16 or fd00:100::/64"
        reader.problem(path, f"is not a network without host bits: {error}", "bad-value", fix)
        return None


def read_address(reader: Reader, value: object, path: str) -> Address | None:
    """An IP address, or None for any other value. Errors are recorded in `reader`."""
    text = reader.string(value, path)
    if text is None:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        reader.problem(path, f"must be an IP address: {error}", "bad-value")
        return None


def parse_address(text: str) -> Address:
    """An IP address. Raises ValueError for other text, and for an address with a zone or an IPv4-mapped one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not one") from None
    if "%" in text:
        raise ValueError(f"{text[:64]!r} has a zone, which is not allowed")
    if getattr(address, "ipv4_mapped", None):
        raise ValueError(f"{text[:64]!r} is IPv4-mapped, which is not allowed")
    return address


def read_prefix(reader: Reader, value: object, pool: Network, longest: int, path: str) -> int | None:
    """The prefix length of addresses, by default the pool's; None after a problem, which is recorded in `reader`.

    `longest` is the prefix length of a node's range. A longer prefix would put the node's addresses in several subnets,
    so the only longer one that is valid is that of single addresses.
    """
    if value is None:
        return pool.prefixlen
    number = reader.integer(value, path, pool.prefixlen, pool.max_prefixlen)
    if number is not None and longest < number < pool.max_prefixlen:
        message = f"must be from {pool.prefixlen} to {longest}, or {pool.max_prefixlen}"
        reader.problem(path, f"{message}: otherwise the addresses of a node are in several subnets", "out-of-range")
        return None
    return number


def check_gateway(reader: Reader, rail_range: RailRange, path: str) -> None:
    """Record a problem if a required gateway is missing, or if the gateway is outside the subnet of the addresses."""
    subnet, pool = rail_range.subnet, rail_range.pool
    if rail_range.gateway is None:
        if rail_range.reach == "all" or subnet != pool:
            reason = "reach is all" if rail_range.reach == "all" else f"the subnet of an address is not the pool {pool}"
            reader.problem(path, f"is required because {reason}", "missing", "set the router's address on this rail")
    elif subnet is not None and rail_range.gateway not in subnet:
        reader.problem(path, f"{rail_range.gateway} is not in {subnet}, the subnet of this node", "bad-value")


def overlap(first: Network, second: Network) -> bool:
    """Whether two networks of any family have an address in common."""
    return first.version == second.version and first.overlaps(t.cast(t.Any, second))


def within(inner: Network, outer: Network) -> bool:
    """Whether the network `inner` is part of the network `outer`."""
    return inner.version == outer.version and inner.subnet_of(t.cast(t.Any, outer))
