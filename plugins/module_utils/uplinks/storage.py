# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Remote ends of storage that this node uses itself: iSCSI, NVMe over fabrics, NFS, SMB, Ceph and the like.

Files in /sys and /proc name the remote ends even while a connection is down or if it does not use TCP (RDMA). The rest
are found by port. The kernel writes these files in drivers/nvme/host/sysfs.c and fabrics.c,
drivers/scsi/scsi_transport_iscsi.c, fs/nfs/super.c, fs/smb/client/cifsfs.c, fs/ceph/super.c, drivers/block/rbd.c.
"""

from __future__ import annotations

import ipaddress
import os
import re
import typing as t
from dataclasses import dataclass

from .routes import Address

#: The ports of Ceph OSDs. Others use this range, too, so these ports count only if the node uses a Ceph monitor.
CEPH, CEPH_STORES = "Ceph", (6800, 7568)
#: Server ports (low, high) and their services.
PORTS: tuple[tuple[int, int, str], ...] = (
    (445, 445, "SMB"),
    (860, 860, "iSCSI"),
    (988, 988, "Lustre"),
    (2049, 2049, "NFS"),
    (3260, 3260, "iSCSI"),
    (3300, 3300, CEPH),
    (4420, 4420, "NVMe/TCP"),
    (6789, 6789, CEPH),
    (*CEPH_STORES, CEPH),
    (7788, 7799, "DRBD"),
    (10809, 10809, "NBD"),
    (24007, 24008, "GlusterFS"),
)
#: Filesystem types with their service and the mount option that has its addresses; None: the mount source has them.
_MOUNTS: t.Mapping[str, tuple[str, str | None]] = {
    "nfs": ("NFS", "addr"),
    "nfs4": ("NFS", "addr"),
    "cifs": ("SMB", "addr"),
    "smb3": ("SMB", "addr"),
    "ceph": ("Ceph", "mon_addr"),
    "lustre": ("Lustre", None),
    "9p": ("9p", None),
    "fuse.glusterfs": ("GlusterFS", None),
}
_FOUR = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SIX = re.compile(r"\[([0-9a-fA-F:.]+)(?:%\w+)?\]")
#: Maximum bytes read of an attribute or of one mount's line, and maximum remote ends.
_MOST, _ENDS = 1 << 16, 4096


@dataclass(frozen=True)
class End:
    """A remote end of service `what`, such as `iSCSI`. `interface` is the one that it is bound to, if any."""

    what: str
    far: Address | None = None
    own: Address | None = None
    interface: str = ""


def service(port: int) -> str:
    """The service of a server port; empty if it is unknown."""
    return next((what for low, high, what in PORTS if low <= port <= high), "")


def is_store(port: int) -> bool:
    """Whether a port is in the range of Ceph OSDs."""
    return CEPH_STORES[0] <= port <= CEPH_STORES[1]


def ends(root: str = "") -> tuple[list[End], list[str]]:
    """The remote ends that files below `root` name, and what could not be read, each with the reason."""
    found: dict[End, None] = {}
    unread: list[str] = []
    for look, what in ((_nvme, "NVMe controllers"), (_iscsi, "iSCSI sessions"), (_rbd, "Ceph block devices")):
        try:
            found.update(dict.fromkeys(look(root)))
        except OSError as error:
            unread.append(f"the {what} ({error.strerror or error})")
    try:
        found.update(dict.fromkeys(_mounts(root)))
    except OSError as error:
        unread.append(f"the mounts ({error.strerror or error})")
    if len(found) > _ENDS:
        unread.append(f"all of {len(found)} addresses of storage")
    return list(found)[:_ENDS], unread


def _names(path: str) -> list[str]:
    """The names in a folder; empty if it does not exist. Raises OSError."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: str) -> str:
    """A file's text; empty if the file does not exist or its device is gone. Raises OSError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST).strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return ""  # ENODEV, ENOTCONN ...: the device is being removed


def _nvme(root: str) -> t.Iterator[End]:
    folder = f"{root}/sys/class/nvme"
    for name in _names(folder):
        transport = _text(f"{folder}/{name}/transport")
        if transport not in ("tcp", "rdma"):
            continue
        values = dict(pair.partition("=")[::2] for pair in _text(f"{folder}/{name}/address").split(","))
        own = address(values.get("src_addr", "")) or address(values.get("host_traddr", ""))
        far = address(values.get("traddr", ""))
        if far or own or values.get("host_iface"):
            yield End(f"NVMe/{transport.upper()}", far, own, values.get("host_iface", ""))


def _iscsi(root: str) -> t.Iterator[End]:
    folder = f"{root}/sys/class/iscsi_connection"
    for name in _names(folder):
        hosts = f"{os.path.realpath(f'{folder}/{name}').partition('/session')[0]}/iscsi_host"
        bound = next((_text(f"{hosts}/{host}/netdev") for host in _names(hosts)), "")
        if bound in ("default", "<NULL>", "(null)"):
            bound = ""
        for kind in ("address", "persistent_address"):
            far = address(_text(f"{folder}/{name}/{kind}"))
            if far or bound:
                yield End("iSCSI", far, None, bound)


def _rbd(root: str) -> t.Iterator[End]:
    folder = f"{root}/sys/bus/rbd/devices"
    for name in _names(folder):
        monitors = (_text(f"{folder}/{name}/config_info").split() or [""])[0]
        for far in _addresses(monitors):
            yield End("Ceph", far)


def _mounts(root: str) -> t.Iterator[End]:
    """The mounts of process 1, which are the node's; of this process if those cannot be read.

    All of them are read, one at a time: the mounts of many containers may come before the node's storage.
    """
    try:
        file = open(f"{root}/proc/1/mounts", encoding="utf-8", errors="replace")
    except (PermissionError, FileNotFoundError):
        file = open(f"{root}/proc/self/mounts", encoding="utf-8", errors="replace")
    with file:
        yield from _mounted(iter(lambda: file.readline(_MOST), ""))


def _mounted(lines: t.Iterable[str]) -> t.Iterator[End]:
    for line in lines:
        columns = line.split(" ")
        if len(columns) < 4 or columns[2] not in _MOUNTS:
            continue
        what, option = _MOUNTS[columns[2]]
        options = dict(pair.partition("=")[::2] for pair in columns[3].split(","))
        text = columns[0] if option is None or option not in options else options[option]
        for far in _addresses(text):
            yield End(what, far)


def _addresses(text: str) -> list[Address]:
    """All IP addresses in a text, with or without ports; if there are several, IPv6 addresses must be in brackets."""
    single = address(text)
    if single:
        return [single]
    found = (address(one) for one in (*_FOUR.findall(text), *_SIX.findall(text)))
    return [one for one in found if one]


def address(text: str) -> Address | None:
    """An IP address, also one in brackets or with a zone; None for any other text."""
    try:
        found: Address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        return found.ipv4_mapped
    return found
