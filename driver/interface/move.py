# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Moving an interface from the node into a pod, with the settings that are made before the pod can use it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..base.errors import Refused
from ..base.objects import ObjectView
from ..kernel import links, netlink, stacked, vf
from ..kernel.ethtool import Ethtool
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import host_state
from .host_state import HostState
from .identity import Identity, find, tag


def move(inside: Netlink, identity: Identity, host: HostState, config: ObjectView, netns: Path, name: str) -> int:
    """Apply the settings of the interface, and move it to the pod, where it is named `name`. `inside` is a connection
    to the pod's namespace. Returns the interface's index in the pod.

    If an interrupted attach has moved the interface already, only the settings that can be changed in the pod are
    applied again. Raises KernelError and Refused.
    """
    with step(f"look for {identity.name} in the pod"):
        link = find(inside, identity, netns, host.get(host_state.MARK))
    if link is not None:
        _configure_again(inside, link, config, netns, name)
        return link.index
    _move(identity, config, netns, name)
    with step(f"look for {name} in the pod"):
        link = links.get(inside, name=name)
        if link is None:
            raise OSError(errno.ENODEV, "the pod does not have the interface after the move")
        return link.index


def _configure_again(inside: Netlink, link: links.Link, config: ObjectView, netns: Path, name: str) -> None:
    """Apply the settings of an interface that is in the pod already."""
    attributes = link_attributes(config)
    with step(f"configure {name} in the pod"):
        if link.name != name:
            attributes = [netlink.text(links.IFLA_IFNAME, name), *attributes]
        links.set_link_state(inside, link.index, up=False)
        if attributes:
            links.change(inside, link.index, *attributes)
    set_ethtool(name, netns, config)


def _move(identity: Identity, config: ObjectView, netns: Path, name: str) -> None:
    attributes = link_attributes(config)
    mac = _mac_of(config)
    with Netlink() as outside:
        with step(f"look for {identity.name} on the node"):
            link = find(outside, identity, None)
            if link is None:
                raise OSError(errno.ENODEV, "it is not on the node")
        with step(f"give {link.name} to a pod"):
            if users := stacked.foreign_uppers(outside, link):
                raise OSError(errno.EBUSY, users)
        if identity.address is None:
            with step(f"add the driver's altname to {link.name}"):
                links.altnames(outside, link.index, [tag(identity)], add=True)
        _set_vf(outside, identity, config)
        if mac and identity.address and vf.function(identity.address):
            with step(f"set the MAC address of {link.name} to {mac}"):
                vf.set_mac(outside, link, mac)
            attributes = link_attributes({**config, "mac": "", "vf": {}})
        set_ethtool(link.name, None, config)
        with step(f"remove the altnames of {link.name}"):
            altnames = [altname for altname in link.altnames if not altname.startswith(host_state.TAG)]
            links.altnames(outside, link.index, altnames, add=False)
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with step(f"move {link.name} to the pod as {name}"):
                target = netlink.u32(links.IFLA_NET_NS_FD, descriptor)
                new_name = netlink.text(links.IFLA_IFNAME, name)
                # also bring it down: the move does so too, but IPv6 must not start before the IPv6 sysctls are set
                links.change(outside, link.index, target, new_name, *attributes, flags=0, mask=links.IFF_UP)
        finally:
            os.close(descriptor)


def _mac_of(config: ObjectView) -> str:
    return str(config.get("mac") or config.get("vf", {}).get("mac") or "")


def link_attributes(config: ObjectView) -> list[bytes]:
    """The rtnetlink attributes that a configuration sets on a link: MAC address, MTU, and sizes of GSO and GRO
    packets."""
    attributes = []
    mac = _mac_of(config)
    if mac:
        attributes.append(netlink.attribute(links.IFLA_ADDRESS, links.mac_bytes(mac)))
    if "mtu" in config:
        attributes.append(netlink.u32(links.IFLA_MTU, config["mtu"]))
    for size, attribute in links.SIZES.items():
        if size in config:
            attributes.append(netlink.u32(attribute, config[size]))
    return attributes


def _set_vf(connection: Netlink, identity: Identity, config: ObjectView) -> None:
    function = vf.function(identity.address) if identity.address else None
    settings = dict(config.get("vf", {}))
    if function is None:
        if settings:
            raise Refused(f"{identity.name} is not a virtual function, so its configuration must not have the field vf")
        return
    if "mac" in config:
        # an untrusted function accepts only the address that its physical function has set
        settings.setdefault("mac", config["mac"])
    if settings:
        with step(f"apply the field vf to {identity.name}"):
            try:
                vf.write(connection, function, settings)
            except OSError:
                if set(settings) == {"mac"} and "vf" not in config:
                    return  # the function's own driver may still accept the address, which `_move` then sets
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
                tool.set_features(name, settings["features"])
