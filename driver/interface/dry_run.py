# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trying a configuration in the kernel before an interface moves.

A failed attach is final for a pod that is never restarted, while a failed prepare is retried once the claim is
corrected. So prepare applies the addresses, routes, rules, neighbors and sysctls once in a temporary network namespace,
on an interface of the same name. Accepted configurations are cached and not tried again.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import os
import threading
import typing as t

from ..base.errors import DriverError, KernelError
from ..base.objects import ObjectView
from ..dra.kube.problems import Problem
from ..dra.kube.reader import child as below
from ..kernel import addresses, links, netlink, routes, sysctls, vrf
from ..kernel import netns as namespaces
from ..kernel.addresses import AddressState
from ..kernel.links import step
from ..kernel.netlink import Netlink
from .network_config import NetworkConfig

log = logging.getLogger(__name__)

#: An interface name that an InterfaceConfig cannot contain.
_PEER = "~peer"
_VETH_INFO_PEER = 1
#: Maximum number of accepted configurations in the cache.
_MAX_ACCEPTED = 512
_accepted: dict[bytes, None] = {}
_lock = threading.Lock()


def problems(name: str, network: NetworkConfig, config: ObjectView, mtu: int, path: str) -> list[Problem]:
    """The fields of `config` that the kernel refuses, each with its path. `network` is computed from `config`. Empty if
    nothing can be tried on this node: then attach reports the problems. Rules: `bad-value`."""
    content = json.dumps([name, dataclasses.asdict(network), config.get("vrf"), mtu], sort_keys=True)
    key = hashlib.sha256(content.encode()).digest()
    with _lock:
        if key in _accepted:
            return []
        try:
            refusals = _try(name, network, config, mtu, path)
        except (OSError, DriverError) as error:
            log.warning("configurations cannot be tried before attach, which will report problems: %s", error)
            return []
        if not refusals:
            _accepted[key] = None
            if len(_accepted) > _MAX_ACCEPTED:
                del _accepted[next(iter(_accepted))]
        return refusals


def _try(name: str, network: NetworkConfig, config: ObjectView, mtu: int, path: str) -> list[Problem]:
    refusals: list[Problem] = []

    def attempt(field_path: str, function: t.Callable[..., object], *args: object) -> None:
        try:
            function(*args)
        except KernelError as error:
            refusals.append(_refused(field_path, error.message))
        except OSError as error:
            refusals.append(_refused(field_path, str(error.args[-1])))

    descriptor = namespaces.new()
    try:
        with Netlink(descriptor) as connection:
            index = _create_pair(connection, name, mtu)
            for key, value in network.sysctls.items():
                field_path = below(below(path, "sysctls"), key)
                attempt(field_path, namespaces.run, descriptor, sysctls.write, name, {key: value})
            if "vrf" in config:
                attempt(below(path, "vrf"), vrf.join, connection, index, config["vrf"])
            for number, entry in enumerate(network.addresses):
                # without DAD, so that a route can use the address as its source immediately
                without_dad: AddressState = {**entry, "flags": addresses.NODAD if ":" in entry["address"] else 0}
                attempt(f"{below(path, 'addresses')}[{number}]", addresses.add, connection, index, without_dad)
            links.set_link_state(connection, index, up=True)
            _try_routes(connection, index, network, path, refusals)
            for number, rule in enumerate(network.rules):
                attempt(f"{below(path, 'rules')}[{number}]", routes.add_rule, connection, rule)
            for number, neighbor in enumerate(network.neighbors):
                attempt(f"{below(path, 'neighbors')}[{number}]", addresses.add_neighbor, connection, index, neighbor)
    finally:
        os.close(descriptor)
    return refusals


def _try_routes(connection: Netlink, index: int, network: NetworkConfig, path: str, refusals: list[Problem]) -> None:
    sources = {entry["address"].split("/")[0] for entry in network.addresses}
    for route, error in routes.add_all(connection, index, network.routes):
        if "source" in route and route["source"] not in sources:
            continue  # it may be an address of another interface of the pod
        number = next(number for number, candidate in enumerate(network.routes) if candidate is route)
        refusals.append(_refused(f"{below(path, 'routes')}[{number}]", str(error.args[-1])))


def _refused(path: str, reason: str) -> Problem:
    return Problem(path, f"the kernel refuses it: {reason}", "bad-value")


def _create_pair(connection: Netlink, name: str, mtu: int) -> int:
    """Create a veth pair. One end has this name and MTU, and its index is returned; the other end is up."""
    peer = links.header() + netlink.text(links.IFLA_IFNAME, _PEER)
    info = netlink.nest(
        links.IFLA_LINKINFO,
        netlink.text(links.IFLA_INFO_KIND, "veth"),
        netlink.nest(links.IFLA_INFO_DATA, netlink.attribute(_VETH_INFO_PEER, peer, nested=True)),
    )
    body = links.header() + netlink.text(links.IFLA_IFNAME, name) + netlink.u32(links.IFLA_MTU, mtu) + info
    with step("create an interface to try a configuration on"):
        connection.request(links.RTM_NEWLINK, body, netlink.CREATE | netlink.EXCLUSIVE)
        peer_link, link = links.get(connection, name=_PEER), links.get(connection, name=name)
        if link is None or peer_link is None:
            raise OSError(errno.ENODEV, "the interface has disappeared")
        links.set_link_state(connection, peer_link.index, up=True)
        return link.index
