# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which networks a node itself already uses: its addresses, and routes through interfaces that programs created."""

from __future__ import annotations

import ipaddress
import typing as t

from . import links, netlink, routes

Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

#: Kinds of interfaces that can be part of a rail. A route through such an interface may belong to the rail itself.
_RAIL_KINDS = ("", "bond", "team", "vlan", "ipoib", "vrf")


def overlaps(kernel: netlink.Connection, pools: t.Iterable[str]) -> list[str]:
    """What overlaps `pools`, the networks of addresses for pods, in the connection's namespace: one sentence for each
    overlap. Raises OSError, and ValueError for a pool that is not a network."""
    by_index = links.listed(kernel)
    pool_networks = [ipaddress.ip_network(pool) for pool in pools]
    sentences = []
    for address, owners in routes.owners(kernel).items():
        for pool in pool_networks:
            if address in pool:
                sentences.append(f"the pool {pool} contains {address}, an address of {_named(by_index, owners)}")
    for network, route_links in sorted(set(routes.Routes(kernel).networks()), key=str):
        program_links = [
            index for index in route_links if index in by_index and by_index[index].kind not in _RAIL_KINDS
        ]
        for pool in pool_networks if program_links else ():
            if network.version == pool.version and network.overlaps(t.cast(t.Any, pool)):
                sentences.append(
                    f"the pool {pool} overlaps {network}, to which a route leads through "
                    f"{_named(by_index, program_links)}"
                )
    return sentences


def _named(by_index: t.Mapping[int, links.Link], indexes: t.Iterable[int]) -> str:
    """The names of the links with these indexes, for messages."""
    return ", ".join(by_index[index].name for index in indexes if index in by_index) or "an interface"
