# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Remote endpoints of storage that this node itself uses: iSCSI, NVMe over fabrics, NFS, SMB, Ceph and the like.

Files in /sys and /proc contain the remote addresses even if a connection is down, or does not use TCP (RDMA). Other
endpoints are found by port. The kernel's code for these files is in drivers/nvme/host/sysfs.c and fabrics.c,
drivers/scsi/scsi_transport_iscsi.c, fs/nfs/super.c, fs/smb/client/cifsfs.c, fs/ceph/super.c, drivers/block/rbd.c.
"""

from __future__ import annotations

import ipaddress
import os
import re
import typing as t
from dataclasses import dataclass

from .routes import Address

#: The ports of Ceph OSDs. Other programs use this range, too, so these ports count only if the node uses Ceph.
CEPH, CEPH_OSD_PORTS = "Ceph", (6800, 7568)
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
    (*CEPH_OSD_PORTS, CEPH),
    (7788, 7799, "DRBD"),
    (10809, 10809, "NBD"),
    (24007, 24008, "GlusterFS"),
)
#: Filesystem types, each with the service and the mount option that contains the addresses (None: the mount source).
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
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(r"\[([0-9a-fA-F:.]+)(?:%\w+)?\]")
#: Maximum number of bytes that are read of an attribute or of one mount's line, and maximum number of endpoints.
_MAX_BYTES, _MAX_ENDPOINTS = 1 << 16, 4096


@dataclass(frozen=True)
class StorageEndpoint:
    """An endpoint of a storage service, such as `iSCSI`: the remote and the local address, if known, and the interface
    to which the session is bound, if any."""

    service_name: str
    remote: Address | None = None
    local: Address | None = None
    interface: str = ""


def service(port: int) -> str:
    """The storage service that uses a server port; empty if none does."""
    return next((service_name for low, high, service_name in PORTS if low <= port <= high), "")


def is_ceph_osd_port(port: int) -> bool:
    """Whether a port is in the range of Ceph OSDs."""
    return CEPH_OSD_PORTS[0] <= port <= CEPH_OSD_PORTS[1]


def endpoints(root: str = "") -> tuple[list[StorageEndpoint], list[str]]:
    """The endpoints that files below `root` contain, and a description of what could not be read or was left out."""
    all_endpoints: dict[StorageEndpoint, None] = {}
    unexamined: list[str] = []
    for reader, service_name in ((_nvme, "NVMe controllers"), (_iscsi, "iSCSI sessions"), (_rbd, "Ceph block devices")):
        try:
            all_endpoints.update(dict.fromkeys(reader(root)))
        except OSError as error:
            unexamined.append(f"the {service_name} ({error.strerror or error})")
    try:
        all_endpoints.update(dict.fromkeys(_mounts(root)))
    except OSError as error:
        unexamined.append(f"the mounts ({error.strerror or error})")
    if len(all_endpoints) > _MAX_ENDPOINTS:
        unexamined.append(f"all of {len(all_endpoints)} addresses of storage")
    return list(all_endpoints)[:_MAX_ENDPOINTS], unexamined


def _names(path: str) -> list[str]:
    """The names in a folder; empty if it does not exist. Raises OSError."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: str) -> str:
    """A file's text; empty if it cannot be read, as when the device is being removed. Raises PermissionError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES).strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return ""  # ENODEV, ENOTCONN: the device is being removed


def _nvme(root: str) -> t.Iterator[StorageEndpoint]:
    folder = f"{root}/sys/class/nvme"
    for name in _names(folder):
        transport = _text(f"{folder}/{name}/transport")
        if transport not in ("tcp", "rdma"):
            continue
        values = dict(pair.partition("=")[::2] for pair in _text(f"{folder}/{name}/address").split(","))
        local = address(values.get("src_addr", "")) or address(values.get("host_traddr", ""))
        remote = address(values.get("traddr", ""))
        if remote or local or values.get("host_iface"):
            yield StorageEndpoint(f"NVMe/{transport.upper()}", remote, local, values.get("host_iface", ""))


def _iscsi(root: str) -> t.Iterator[StorageEndpoint]:
    folder = f"{root}/sys/class/iscsi_connection"
    for name in _names(folder):
        hosts = f"{os.path.realpath(f'{folder}/{name}').partition('/session')[0]}/iscsi_host"
        interface = next((_text(f"{hosts}/{host}/netdev") for host in _names(hosts)), "")
        if interface in ("default", "<NULL>", "(null)"):
            interface = ""
        for kind in ("address", "persistent_address"):
            remote = address(_text(f"{folder}/{name}/{kind}"))
            if remote or interface:
                yield StorageEndpoint("iSCSI", remote, None, interface)


def _rbd(root: str) -> t.Iterator[StorageEndpoint]:
    folder = f"{root}/sys/bus/rbd/devices"
    for name in _names(folder):
        monitors = (_text(f"{folder}/{name}/config_info").split() or [""])[0]
        for remote in _addresses(monitors):
            yield StorageEndpoint("Ceph", remote)


def _mounts(root: str) -> t.Iterator[StorageEndpoint]:
    """The endpoints of network mounts: of process 1, whose mounts are the node's, or of this process if those cannot be
    read.

    All lines are read, one at a time, because the mounts of many containers may come before the node's storage.
    """
    try:
        file = open(f"{root}/proc/1/mounts", encoding="utf-8", errors="replace")
    except (PermissionError, FileNotFoundError):
        file = open(f"{root}/proc/self/mounts", encoding="utf-8", errors="replace")
    with file:
        yield from _mount_endpoints(iter(lambda: file.readline(_MAX_BYTES), ""))


def _mount_endpoints(lines: t.Iterable[str]) -> t.Iterator[StorageEndpoint]:
    for line in lines:
        columns = line.split(" ")
        if len(columns) < 4 or columns[2] not in _MOUNTS:
            continue
        service_name, option = _MOUNTS[columns[2]]
        options = dict(pair.partition("=")[::2] for pair in columns[3].split(","))
        text = columns[0] if option is None or option not in options else options[option]
        for remote in _addresses(text):
            yield StorageEndpoint(service_name, remote)


def _addresses(text: str) -> list[Address]:
    """All IP addresses in a text, with or without ports. IPv6 addresses are found only in brackets, or if one is the
    whole text."""
    single = address(text)
    if single:
        return [single]
    parsed = (address(match) for match in (*_IPV4.findall(text), *_IPV6.findall(text)))
    return [parsed_address for parsed_address in parsed if parsed_address]


def address(text: str) -> Address | None:
    """An IP address, also one in brackets or with a zone; None for any other text."""
    try:
        parsed: Address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        return parsed.ipv4_mapped
    return parsed
