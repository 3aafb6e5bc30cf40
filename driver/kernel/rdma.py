# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA devices: those of a network interface, their character devices, and their network namespace.

The kernel either shares all RDMA devices with all network namespaces, or assigns each device to one namespace (`rdma
system set netns exclusive`). A device can be moved only in the second mode. An InfiniBand device moves before its
interface, because the kernel recreates IPoIB interfaces on the node when their device moves. A RoCE device moves after
its interface, because the GIDs depend on the interface. Both return to the node before the interface. Numbers are those
of rdma/rdma_netlink.h.
"""

from __future__ import annotations

import errno
import os
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import KernelError
from ..base.objects import ObjectView
from ..topology.pci import address_in
from . import netlink, node_namespaces
from . import netns as namespaces
from .links import step
from .netlink import Netlink

SYS = "/sys"
DEV = "/dev"
_NLDEV = 5 << 10
_GET, _SET, _SYS_GET = _NLDEV + 1, _NLDEV + 2, _NLDEV + 6
_INDEX, _NAME, _NODE_GUID, _NETNS_MODE, _NETNS_FD = 1, 2, 6, 66, 68
_VERBS, _MANAGEMENT = "infiniband_verbs", "infiniband_mad"

Side = t.Literal["host", "pod", "missing"]


@dataclass(frozen=True)
class CharDevice:
    """A character device: its device numbers, and the `path` at which libibverbs expects it."""

    path: str
    major: int
    minor: int


def mode() -> t.Literal["shared", "exclusive"] | None:
    """How the kernel assigns RDMA devices to network namespaces; None if it has no RDMA support. Raises KernelError."""
    try:
        with Netlink(protocol=netlink.NETLINK_RDMA) as connection:
            for _unused, body in connection.request(_SYS_GET, b""):
                attributes = netlink.attributes(body)
                if _NETNS_MODE in attributes:
                    return "shared" if netlink.number(attributes[_NETNS_MODE]) else "exclusive"
    except OSError as error:
        # kernels before 5.2 do not know the request: they share the devices
        if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return None
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise KernelError("read the RDMA network namespace mode", error.errno or 0) from error
    return "shared" if os.path.isdir(f"{SYS}/class/infiniband") else None


def devices(address: str, root: str = SYS) -> list[str]:
    """The names of a PCI function's RDMA devices that are on the node, such as `mlx5_0`."""
    folder = f"{root}/class/infiniband"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    owners = {name: os.path.realpath(f"{folder}/{name}").rpartition("/infiniband/")[0] for name in names}
    return [name for name, owner in owners.items() if address_in(owner) == address]


def link_layer(link: str, root: str = SYS) -> str:
    """The link layer of the first port, `InfiniBand` or `Ethernet`; empty if the device is not on the node."""
    try:
        ports = sorted(os.listdir(f"{root}/class/infiniband/{link}/ports"), key=int)
        return Path(f"{root}/class/infiniband/{link}/ports/{ports[0]}/link_layer").read_text(encoding="ascii").strip()
    except (OSError, IndexError, ValueError):
        return ""


def moves_before_interface(link: str, root: str = SYS) -> bool:
    """Whether this device has to move to the pod before its interface."""
    return link_layer(link, root) == "InfiniBand"


def char_devices(link: str, root: str = SYS, dev: str = DEV, *, management: bool = False) -> list[CharDevice]:
    """The character devices that programs open to use an RDMA device: uverbsN, and rdma_cm, which all devices share.
    They stay on the node when the RDMA device moves. `management` adds umadN and issmN, with which programs send
    management datagrams into the fabric (https://docs.kernel.org/infiniband/user_mad.html)."""
    nodes = []
    for kind in (_VERBS, _MANAGEMENT) if management else (_VERBS,):
        folder = f"{root}/class/{kind}"
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        nodes += [
            _char_device(f"{folder}/{entry}", dev) for entry in entries if _text(f"{folder}/{entry}/ibdev") == link
        ]
    if nodes:
        nodes.append(_char_device(f"{root}/class/misc/rdma_cm", dev))
    return [device for device in nodes if device is not None]


def _char_device(folder: str, dev: str) -> CharDevice | None:
    major, _unused, minor = _text(f"{folder}/dev").partition(":")
    if not (major.isdigit() and minor.isdigit()):
        return None
    return CharDevice(f"{dev}/infiniband/{os.path.basename(folder)}", int(major), int(minor))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def side(link: str, netns: Path | None) -> Side:
    """Where an RDMA device is, in exclusive mode. Raises KernelError."""
    with step(f"look for the RDMA device {link}"):
        if netns is not None and namespaces.alive(netns) and _index(link, netns) is not None:
            return "pod"
        return "host" if _index(link, None) is not None else "missing"


def move(link: str, netns: Path, back: bool = False) -> None:
    """Move an RDMA device from the node to a pod's namespace, or back; exclusive mode only. Idempotent.

    The kernel moves the RDMA devices of a destroyed namespace to the node; then `back` has nothing to do. Raises
    KernelError if the device is not found, or cannot be disconnected from its users (EOPNOTSUPP: software devices).
    """
    source, target = (netns, None) if back else (None, netns)
    with step(f"move the RDMA device {link} {'back to the node' if back else 'to the pod'}"):
        index = _index(link, source) if source is None or namespaces.alive(source) else None
        if index is None:
            if _index(link, target) is not None:
                return
            raise OSError(errno.ENODEV, "not found")
        descriptor = os.open(namespaces.HOST if target is None else target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # the kernel checks the namespace of the calling thread, not of the socket, and otherwise returns ENODEV
            namespaces.run(source, _move_to_namespace, index, descriptor)
        finally:
            os.close(descriptor)


class RdmaIdentity(t.TypedDict, total=False):
    """What identifies an RDMA device of the node in any namespace and under any name; empty if it was not found."""

    index: int
    guid: str


def identify(link: str) -> RdmaIdentity:
    """What identifies an RDMA device of the node, as JSON for the record. Raises KernelError."""
    with step(f"read the identity of the RDMA device {link}"):
        for index, name, guid in _listed(None):
            if name == link:
                return {"index": index, "guid": guid}
    return {}


def fetch(link: str, identity: ObjectView) -> bool:
    """Bring an RDMA device back to the node, under its original name, from any namespace to which a pod has moved it.
    Returns whether it was found. `identity` is the result of :func:`identify`. Raises KernelError if the device cannot
    be moved."""
    if not isinstance(identity.get("index"), int) or not identity.get("guid"):
        return False
    with step(f"take the RDMA device {link} back from the namespace to which a pod moved it"):
        host = os.open(namespaces.HOST, os.O_RDONLY | os.O_CLOEXEC)
        try:
            is_on_node = _is_in(None, identity)
            for namespace in () if is_on_node else node_namespaces.other_namespaces():
                if _is_in(namespace.descriptor, identity):
                    namespaces.run(namespace.descriptor, _move_to_namespace, identity["index"], host)
                    is_on_node = True
                    break
        finally:
            os.close(host)
        if is_on_node:
            name_now = next((name for index, name, _guid in _listed(None) if index == identity["index"]), link)
            if name_now != link:
                with Netlink(protocol=netlink.NETLINK_RDMA) as connection:
                    connection.request(_SET, netlink.u32(_INDEX, identity["index"]) + netlink.text(_NAME, link))
        return is_on_node


def _is_in(netns: Path | int | None, identity: ObjectView) -> bool:
    return any((index, guid) == (identity["index"], identity["guid"]) for index, _name, guid in _listed(netns))


def _listed(netns: Path | int | None) -> list[tuple[int, str, str]]:
    """Index, name and node GUID of the RDMA devices of a namespace. Raises OSError."""
    try:
        with Netlink(netns, netlink.NETLINK_RDMA) as connection:
            replies = [netlink.attributes(body) for _unused, body in connection.dump(_GET, b"")]
    except OSError as error:
        if error.errno == errno.EPROTONOSUPPORT:
            return []
        raise
    return [
        (netlink.number(reply[_INDEX]), netlink.string(reply.get(_NAME, b"")), reply.get(_NODE_GUID, b"").hex())
        for reply in replies
    ]


def _move_to_namespace(index: int, descriptor: int) -> None:
    with Netlink(protocol=netlink.NETLINK_RDMA) as connection:
        connection.request(_SET, netlink.u32(_INDEX, index) + netlink.u32(_NETNS_FD, descriptor))


def _index(link: str, netns: Path | None) -> int | None:
    return next((index for index, name, _guid in _listed(netns) if name == link), None)
