# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which networks a node uses itself already: its addresses, and routes by interfaces that programs have made."""

from __future__ import annotations

import ipaddress
import typing as t

from . import links, netlink, routes

Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

#: Kinds of interfaces that a rail can be. A route by one of these may be the rail's own.
_FABRIC = ("", "bond", "team", "vlan", "ipoib", "vrf")


def overlaps(kernel: netlink.Connection, pools: t.Iterable[str]) -> list[str]:
    """What overlaps pools of addresses for pods in the connection's namespace, as lines of text. Raises OSError, and
    ValueError for a pool that is not a network."""
    names = links.listed(kernel)
    wanted = [ipaddress.ip_network(pool) for pool in pools]
    found = []
    for address, owners in routes.owners(kernel).items():
        for pool in wanted:
            if address in pool:
                found.append(f"the pool {pool} has {address}, an address of {_named(names, owners)}")
    for network, leads in sorted(set(routes.Routes(kernel).networks()), key=str):
        made = [one for one in leads if one in names and names[one].kind not in _FABRIC]
        for pool in wanted if made else ():
            if network.version == pool.version and network.overlaps(t.cast(t.Any, pool)):
                found.append(f"the pool {pool} overlaps {network}, to which a route leads by {_named(names, made)}")
    return found


def _named(names: t.Mapping[int, links.Link], indexes: t.Iterable[int]) -> str:
    return ", ".join(names[one].name for one in indexes if one in names) or "an interface"
