# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Moving an interface from the node into a pod, with the settings that can only be changed on the node."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..base.errors import Refused
from ..base.objects import ObjectView
from ..kernel import ethtool as driver_settings
from ..kernel import links, netlink, stacked, vf
from ..kernel.ethtool import Ethtool
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import host_state
from .host_state import HostState
from .identity import Identity, find, tag


def move(identity: Identity, host: HostState, config: ObjectView, netns: Path, name: str) -> int:
    """Apply the settings that can only be changed on the node, and move the interface. Returns its index in the pod.

    If an interrupted attach has moved it already, only its settings are repeated. Raises KernelError and Refused.
    """
    with Netlink(netns) as inside:
        with step(f"look for {identity.name} in the pod"):
            found = find(inside, identity, netns, host.get(host_state.MARK))
        if found is not None:
            _repeat(inside, found, config, netns, name)
            return found.index
        _move(identity, config, netns, name)
        with step(f"look for {name} in the pod"):
            found = links.get(inside, name=name)
            if found is None:
                raise OSError(errno.ENODEV, "it is not there after the move")
            return found.index


def _repeat(inside: Netlink, found: links.Link, config: ObjectView, netns: Path, name: str) -> None:
    """Apply the settings of an interface that is in the pod already."""
    attributes = link_attributes(config)
    with step(f"configure {name} in the pod"):
        if found.name != name:
            attributes = [netlink.text(links.IFLA_IFNAME, name), *attributes]
        links.set_up(inside, found.index, False)
        if attributes:
            links.change(inside, found.index, *attributes)
    set_ethtool(name, netns, config)


def _move(identity: Identity, config: ObjectView, netns: Path, name: str) -> None:
    attributes = link_attributes(config)
    mac = _mac_of(config)
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            link = find(outside, identity, None)
            if link is None:
                raise OSError(errno.ENODEV, "it is not there")
        with step(f"give {link.name} to a pod"):
            if says := stacked.foreign_uppers(outside, link):
                raise OSError(errno.EBUSY, says)
        if identity.address is None:
            with step(f"mark {link.name}"):
                links.altnames(outside, link.index, [tag(identity)], add=True)
        _set_vf(outside, identity, config)
        if mac and identity.address and vf.function(identity.address):
            with step(f"set the MAC address of {link.name} to {mac}"):
                vf.set_mac(outside, link, mac)
            attributes = link_attributes({**config, "mac": "", "vf": {}})
        set_ethtool(link.name, None, config)
        with step(f"remove the altnames of {link.name}"):
            others = [other for other in link.altnames if not other.startswith(host_state.TAG)]
            links.altnames(outside, link.index, others, add=False)
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with step(f"move {link.name} to the pod as {name}"):
                where_to = netlink.u32(links.IFLA_NET_NS_FD, descriptor)
                new_name = netlink.text(links.IFLA_IFNAME, name)
                # also set it down: the move does that, but IPv6 must not start before its sysctls are set
                links.change(outside, link.index, where_to, new_name, *attributes, flags=0, mask=links.IFF_UP)
        finally:
            os.close(descriptor)


def _mac_of(config: ObjectView) -> str:
    return str(config.get("mac") or config.get("vf", {}).get("mac") or "")


def link_attributes(config: ObjectView) -> list[bytes]:
    """The attributes of a link that a configuration sets."""
    attributes = []
    mac = _mac_of(config)
    if mac:
        attributes.append(netlink.attribute(links.IFLA_ADDRESS, links.mac_bytes(mac)))
    if "mtu" in config:
        attributes.append(netlink.u32(links.IFLA_MTU, config["mtu"]))
    for size, kind in links.SIZES.items():
        if size in config:
            attributes.append(netlink.u32(kind, config[size]))
    return attributes


def _set_vf(connection: Netlink, identity: Identity, config: ObjectView) -> None:
    one = vf.function(identity.address) if identity.address else None
    settings = dict(config.get("vf", {}))
    if one is None:
        if settings:
            raise Refused(f"{identity.name} is not a virtual function, so its configuration must not have the field vf")
        return
    if "mac" in config:
        # an untrusted function accepts only the address that its physical function has set
        settings.setdefault("mac", config["mac"])
    if settings:
        with step(f"set vf of {identity.name}"):
            try:
                vf.write(connection, one, settings)
            except OSError:
                if set(settings) == {"mac"} and "vf" not in config:
                    return  # the function may still accept it
                raise


def set_ethtool(name: str, netns: Path | None, config: ObjectView) -> None:
    """Apply the ethtool settings of a configuration; `netns` None is the node's namespace. Raises KernelError."""
    settings = config.get("ethtool", {})
    if not settings:
        return
    with Ethtool(netns) as tool:
        with step(f"set rings of {name}"):
            if settings.get("rings"):
                tool.set_rings(name, settings["rings"])
        with step(f"set private flags of {name}"):
            tool.set_private_flags(name, settings.get("privateFlags", {}))
        with step(f"set features of {name}"):
            if settings.get("features"):
                known, fixed = tool.features(name), tool.fixed_features(name)
                found, unknown = driver_settings.resolve(settings["features"], known, fixed)
                if unknown:
                    raise OSError(errno.EOPNOTSUPP, f"no feature {', '.join(unknown)} that can be changed")
                if found:
                    tool.set_features(name, found)
