# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's records on disk: one JSON file per claim, named after its UID.

A record is written before the actions that it describes, and it is replaced atomically: a process that is killed at any
moment leaves the old content or the new. The disk is the source of truth, because two instances of the driver may run
during an update.
"""

from __future__ import annotations

import json
import os
import re
import stat
import typing as t
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from ..base import files
from ..base.calls import ClaimRef, NetworkData, Pod
from ..base.errors import DriverError
from ..base.files import PowerCut
from ..base.objects import Object
from ..dhcp.lease import Lease
from ..dra.kube import bounded_json
from ..interface import rails
from ..interface.host_state import HostState
from ..kernel import rdma
from ..publish.device import Device, withheld_with
from ..shares.share import ShareRecord
from ..topology.publish import device_name
from ..topology.publish_shares import VFS
from ..topology.stored import NewerFormat
from .cdi import DeviceNode
from .record_formats import FORMATS
from .record_values import IN_FACTS, decoded, decoded_facts, encoded

#: Maximum bytes of a record. A record with 32 devices on a node with thousands of routes has less than a megabyte.
MAX_RECORD_BYTES = 16 << 20

#: All devices are on the node, unchanged.
PREPARED = "prepared"
#: Devices may be anywhere between the node and the pod.
ATTACHING = "attaching"
#: Devices are in the pod, configured.
ATTACHED = "attached"
#: Devices may be anywhere between the pod and the node, and must return to the node.
DETACHING = "detaching"
PHASES = (PREPARED, ATTACHING, ATTACHED, DETACHING)

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SUFFIX = ".json"
_CORRUPT = ".corrupt"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's random ID of this boot."""
    return path.read_text(encoding="ascii").strip()


def is_uid(text: str) -> bool:
    """Whether a text can be the UID of a claim, and so part of a file name."""
    return _UID.fullmatch(text) is not None


@dataclass
class RdmaRecord:
    """The RDMA devices of a device that may be in a pod.

    `nodes` are the character devices for containers, `moves` the names of the RDMA devices that move with the
    interface. `known` has the identity by which each of these is found again (`rdma.identify`), by name.
    """

    nodes: list[DeviceNode]
    moves: list[str]
    known: dict[str, rdma.RdmaIdentity] = field(default_factory=dict)


#: The name of a device, and the ID of the claim's share of that device; the ID is empty without shares.
DeviceKey = tuple[str, str]


def device_text(key: DeviceKey) -> str:
    """The name of a device in the log."""
    device, share = key
    return f"share {share} of {device}" if share else device


@dataclass
class DeviceRecord:
    """One allocated device.

    - `request` is that of the allocation (`nic`, or `nic/fast` for a subrequest).
    - `known` is the inventory's Device as it was at the allocation, or in a later boot, with the names of RDMA devices
      at the last prepare. With `share` it is the claim's VF, or the parent of the claim's macvlan interface.
    - `config` has the merged fields of the device's InterfaceConfigs, and the assigned addresses of rails.
    - `interface` is the name in the pod, empty for a device without network interface.
    - `admin` devices are never moved.
    - Operations on devices with the same `lock` (functions of one port) do not run concurrently.
    - `share`: the claim has this share of the device instead of the whole device.
    - `host` (the host state) and `rdma` are set while the device may be in a pod.
    - `network` and `leases` are results of attach.
    """

    device: str
    pool: str
    request: str
    known: Device
    config: Object = field(default_factory=dict)
    interface: str = ""
    admin: bool = False
    share_id: str = ""
    lock: str = ""
    share: ShareRecord | None = None
    host: HostState | None = None
    rdma: RdmaRecord | None = None
    network: NetworkData | None = None
    leases: list[Lease] = field(default_factory=list)

    @property
    def main_request(self) -> str:
        """The name of the main request, which is the one that kubelet uses."""
        return self.request.partition("/")[0]

    @property
    def key(self) -> DeviceKey:
        """Identifies the device within the claim, which may have several shares of one device."""
        return self.device, self.share_id

    @property
    def own_name(self) -> str:
        """The name of the device on the node: for a share, that of its VF or of the parent of its macvlan interface;
        otherwise the published name."""
        if self.share is None:
            return self.device
        by_vf = self.share.mechanism == VFS and self.known.address is not None
        return device_name(str(self.known.address)) if by_vf else self.share.of

    @property
    def withheld_with(self) -> list[str]:
        """The devices with which this one is withheld (`publish.device.withheld_with`)."""
        return withheld_with(self.own_name, self.known.pf)

    @property
    def claimed_config(self) -> Object:
        """The configuration as in the claim: without assigned addresses and the fields that a share adds, but with the
        bandwidth that the share consumes."""
        config = rails.as_claimed(self.config)
        if self.share is None:
            return config
        vf = {name: value for name, value in config.get("vf", {}).items() if name != "spoofchk"}
        other_fields = {name: value for name, value in config.items() if name not in ("child", "vf")}
        return {**other_fields, "vf": vf, "consumed": self.share.consumed}


@dataclass
class PeerRecord:
    """A device of another driver in the same claim. `address`, `uuid`, `rail`, `pcie_root` and `numa_node` are empty or
    None if they are unknown; `unknown` is the reason. `levels` has the distances to the claim's NICs, by device name.
    """

    driver: str
    pool: str
    device: str
    request: str
    address: str = ""
    uuid: str = ""
    unknown: str = ""
    rail: int | None = None
    pcie_root: str = ""
    numa_node: int | None = None
    levels: dict[str, str] = field(default_factory=dict)


@dataclass
class Record:
    """One claim.

    - `pod` is None if all devices are for admin access; then any pod may use them.
    - `netns` is `[st_dev, st_ino]` of the network namespace to which devices were moved, or were about to be.
    - `boot` is the ID of the boot: after a reboot all devices are on the node.
    - `since` is the time of the last change of `phase`, in the API's format.
    - `pod_claim_name` is the name in the pod of a claim from a template.

    The other fields are for the pod's map. They are stored in the facts file, because release 1.0.0 refuses a record
    with unknown fields:

    - `mapped` is False for claims of releases that did not read `peers`.
    - `peers` are the claim's devices of other drivers.
    - `variables` are those of the setting `pod_environment` that the pod gets; `left_out` has the reasons for the
      others.
    - `beside` are the RDMA devices that the pod has from other claims.
    """

    uid: str
    namespace: str
    name: str
    pod: Pod | None
    boot: str
    devices: list[DeviceRecord]
    phase: str = PREPARED
    netns: list[int] | None = None
    since: str = ""
    pod_claim_name: str = ""
    mapped: bool = field(default=False, metadata=IN_FACTS)
    peers: list[PeerRecord] = field(default_factory=list, metadata=IN_FACTS)
    variables: list[str] = field(default_factory=list, metadata=IN_FACTS)
    left_out: dict[str, str] = field(default_factory=dict, metadata=IN_FACTS)
    beside: list[str] = field(default_factory=list, metadata=IN_FACTS)

    @property
    def held(self) -> list[DeviceRecord]:
        """The devices of which this claim has the whole or a share: all but those for admin access."""
        return [device for device in self.devices if not device.admin]

    @property
    def claim(self) -> ClaimRef:
        """The reference to the claim."""
        return ClaimRef(self.namespace, self.name, self.uid)

    def is_for(self, pod_uid: str) -> bool:
        """Whether the claim is for the pod with this UID."""
        return self.pod is not None and self.pod.uid == pod_uid

    def same_allocation(self, other: Record) -> bool:
        """Whether both have the same devices with the same configuration, for the same pod."""

        def allocation(record: Record) -> tuple[object, ...]:
            devices = [
                (device.pool, device.device, device.request, device.admin, device.share_id, device.claimed_config)
                for device in record.devices
            ]
            return record.pod, devices, record.claim

        return allocation(self) == allocation(other)

    def clear_attachment(self) -> None:
        """Remove what attach has recorded, because the devices are on the node."""
        self.netns = None
        for device in self.devices:
            device.host = device.rdma = device.network = None
            device.leases = []


class Unreadable(DriverError):
    """A record cannot be used: it is corrupt and has been renamed if possible, or only a newer driver can read it, or
    reading it failed."""


def encode(record: Record) -> bytes:
    """The content of a record's file."""
    value = FORMATS.write(encoded(record))
    # without indentation json encodes in C, which takes a tenth of the time
    return (json.dumps(value, sort_keys=True) + "\n").encode()


def encode_facts(record: Record) -> bytes:
    """The content of the facts file; empty if there is none."""
    facts = encoded(record, facts=True)
    return (json.dumps(FORMATS.write(facts)) + "\n").encode() if facts.keys() - {"mapped"} else b""


def add_facts(record: Record, content: bytes) -> None:
    """Add to a record the content of the facts file. Raises ValueError if the content is damaged, or if only a
    newer driver can read it."""
    value = FORMATS.read(bounded_json.loads(content, MAX_RECORD_BYTES))
    for name, item in decoded_facts(Record, value).items():
        setattr(record, name, item)


def decode(content: bytes) -> Record:
    """The record in a file's content. Raises ValueError for an invalid record, and NewerFormat if only a newer driver
    can read it."""
    value = FORMATS.read(bounded_json.loads(content, MAX_RECORD_BYTES))
    record = t.cast(Record, decoded(Record, value, "record"))
    if record.phase not in PHASES:
        newer = value["schema"] > FORMATS.newest
        raise (NewerFormat if newer else ValueError)(f"its phase {record.phase!r} is unknown")
    if record.netns is not None and len(record.netns) != 2:
        raise ValueError("netns must be two numbers")
    for device in record.devices:
        _check_config(device)
    return record


def _check_config(device: DeviceRecord) -> None:
    """Raises ValueError for content with which later code would fail, because that would also affect other claims."""
    for name in ("vrf", "child", "vf", "ethtool", "sysctls", "share"):
        if not isinstance(device.config.get(name, {}), dict):
            raise ValueError(f"config.{name} of {device.device} must be a mapping")
    if device.share:
        _check_share(device.share, device.device)
    if not {"name", "table"} <= device.config.get("vrf", {"name": "", "table": 0}).keys():
        raise ValueError(f"config.vrf of {device.device} must have a name and a table")


def _check_share(share: ShareRecord, device: str) -> None:
    """As `_check_config`."""
    try:
        factor = Fraction(share.factor)
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    if factor < 1 or min(share.asked, share.consumed, share.physical, share.ceiling) <= 0 or share.burst < 0:
        raise ValueError(f"the share of {device} has impossible amounts")


class Store:
    """The records in a folder. Safe for several processes, as long as the writer of a record holds its claim's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The files' contents and the records that the last `all` has read, by UID.
        self._seen: dict[str, tuple[bytes, Record]] = {}

    def path(self, uid: str) -> Path:
        """The path of a claim's record. Raises DriverError for an invalid UID."""
        if not is_uid(uid):
            raise DriverError(f"{uid!r} is not a valid claim UID")
        return self.folder / f"{uid}{_SUFFIX}"

    def load(self, uid: str) -> Record | None:
        """The record of a claim, if there is one. Raises Unreadable."""
        content = self._content(uid)
        return None if content is None else self._record(uid, content)

    def _content(self, uid: str) -> bytes | None:
        """The content of a claim's file, None if there is none. Raises Unreadable; a file that cannot be a record, by
        its type or size, is not read."""
        path = self.path(uid)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise self._corrupt(path, "it is not a regular file")
                if status.st_size > MAX_RECORD_BYTES:
                    raise self._corrupt(path, f"it has {status.st_size} bytes; the limit is {MAX_RECORD_BYTES}")
                return file.read(status.st_size + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from error

    def _corrupt(self, path: Path, reason: str) -> Unreadable:
        try:
            target = self._set_aside(path)
        except OSError as error:
            return Unreadable(f"{path} is corrupt and could not be renamed ({error.strerror}): {reason}")
        return Unreadable(f"{path} is corrupt and was renamed to {target}: {reason}")

    def _record(self, uid: str, content: bytes) -> Record:
        path = self.path(uid)
        try:
            record = decode(content)
            if record.uid != uid:
                raise ValueError(f"it is the record of claim {record.uid}")
        except NewerFormat as error:
            fix = (
                "the claim's devices stay in the pod; reinstall the release that wrote the record (dra_driver_release)"
            )
            raise Unreadable(f"{path} cannot be used: {error}; {fix}") from error
        except ValueError as error:
            raise self._corrupt(path, str(error)) from error
        return record

    def _set_aside(self, path: Path) -> Path:
        """Rename an unreadable file to an unused name, so that an administrator can examine it. Raises OSError."""
        number = 0
        while (target := path.with_name(f"{path.name}{_CORRUPT}-{number}")).exists():
            number += 1
        try:
            os.replace(path, target)
        except FileNotFoundError:
            pass  # another instance of the driver has renamed it first
        return target

    def has_record(self, uid: str, include_corrupt: bool = False) -> bool:
        """Whether a claim has a record, readable or not; with `include_corrupt`, or a corrupt one that was renamed."""
        if not is_uid(uid):
            return False
        path = self.path(uid)
        return path.exists() or (include_corrupt and path.with_name(f"{path.name}{_CORRUPT}-0").exists())

    def uids(self) -> list[str]:
        """The UIDs of all claims with a record, readable or not. Raises Unreadable if the folder cannot be listed."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unreadable(f"the records in {self.folder} cannot be listed: {error.strerror}") from error
        uids = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(filter(is_uid, uids))

    def all(self) -> tuple[list[Record], list[Unreadable]]:
        """Every readable record, and an error for each of the others. Callers must not change the records: the next
        call returns the same objects for unchanged files. Raises as `uids`."""
        seen: dict[str, tuple[bytes, Record]] = {}
        unreadable: list[Unreadable] = []
        before = self._seen
        for uid in self.uids():
            try:
                content = self._content(uid)
                if content is None:
                    continue
                if uid in before and before[uid][0] == content:
                    seen[uid] = before[uid]
                    continue
                seen[uid] = content, self._record(uid, content)
            except Unreadable as error:
                unreadable.append(error)
        self._seen = seen
        return [record for _content, record in seen.values()], unreadable

    def save(self, record: Record) -> None:
        """Write a record to disk. When this returns, the record survives a kill of this process and, in phase
        `prepared`, a power cut. Raises DriverError.

        For other phases an older record is sufficient after a power cut: all devices are then on the node, whatever the
        phase was.
        """
        if record.phase not in PHASES:
            raise ValueError(f"phase {record.phase!r} is unknown")
        path = self.path(record.uid)
        content = encode(record)
        if len(content) > MAX_RECORD_BYTES:
            raise DriverError(
                f"the record of claim {record.uid} has {len(content)} bytes; the limit is {MAX_RECORD_BYTES}. Check "
                "whether the interfaces of its devices have very many routes or addresses on the node"
            )
        try:
            if not os.path.isdir(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            power_cut = PowerCut.KEEPS_NEW if record.phase == PREPARED else PowerCut.KEEPS_EITHER
            files.replace(path, content, 0o600, power_cut)
        except OSError as error:
            raise DriverError(f"could not write the record of claim {record.uid}: {error}") from error

    def remove(self, uid: str) -> None:
        """Remove a claim's record; an unknown claim is not an error. After a power cut the record may reappear. Raises
        DriverError."""
        path = self.path(uid)
        try:
            files.remove(path)
        except OSError as error:
            raise DriverError(f"could not remove the record of claim {uid}: {error}") from error

    def move_to(self, other: Store, uid: str) -> None:
        """Move a claim's record to another store, which needs no disk space. If the record cannot be moved, it is
        removed. An unknown claim is not an error. Raises DriverError."""
        try:
            os.replace(self.path(uid), other.path(uid))
        except FileNotFoundError:
            pass
        except OSError:
            self.remove(uid)

    def sweep(self) -> None:
        """Remove unfinished files of killed writers. Raises OSError."""
        files.sweep(self.folder)
