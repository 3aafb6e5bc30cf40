# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's records on disk: one JSON file per claim, named after its UID.

A record is written before the actions that it describes, and replaced atomically: a process killed at any moment leaves
the old content or the new. The disk is the source of truth: two instances of the driver may run during an update.
"""

from __future__ import annotations

import dataclasses
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
from ..publish.device import Device
from ..shares.share import ShareRecord
from ..topology.publish import device_name
from ..topology.publish_shares import VFS
from ..topology.stored import NewerForm
from .cdi import DeviceNode
from .record_forms import FORMS
from .record_values import BESIDE, decoded, encoded

#: Maximum bytes of a record. With 32 devices on a node with thousands of routes it has less than a megabyte.
RECORD_BYTES = 16 << 20

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
_ASIDE = ".corrupt"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's random ID of this boot."""
    return path.read_text(encoding="ascii").strip()


@dataclass
class RdmaRecord:
    """The RDMA devices of a device that may be in a pod: the character devices for containers, the names of those that
    move with the interface, and by these names the identity that finds each again (`rdma.identify`)."""

    nodes: list[DeviceNode]
    moves: list[str]
    known: dict[str, rdma.RdmaIdentity] = field(default_factory=dict)


#: A device's name and the ID of the claim's share of it, empty without shares.
DeviceKey = tuple[str, str]


@dataclass
class DeviceRecord:
    """One allocated device.

    `request` is the allocation's (`nic`, or `nic/fast` for a subrequest). `known` is the inventory's Device as of
    allocation, or of a later boot, with the RDMA device names of the last prepare; `config` has the merged fields of
    its InterfaceConfigs, with the addresses that were handed out (`rails`). `host` (its host state) and `rdma` are set
    while it may be in a pod; `network` and `leases` are results of attach. `interface` is the name in the pod, empty
    for a device without network interface. `admin` devices are never moved. Operations on devices with the same `lock`
    (functions of one port) do not run concurrently. With `share` the claim has this share of the device; `known` is
    then the VF that it has, or the parent of its macvlan.
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
        """The name of the main request, as kubelet knows it."""
        return self.request.partition("/")[0]

    @property
    def key(self) -> DeviceKey:
        """Identifies the device in its claim, which may have several shares of one device."""
        return self.device, self.share_id

    @property
    def own_name(self) -> str:
        """The name of the device that goes to the pod: that of the VF for a share by VFs."""
        by_vf = self.share is not None and self.share.mechanism == VFS and self.known.address is not None
        return device_name(str(self.known.address)) if by_vf else self.device

    @property
    def asked_config(self) -> Object:
        """The configuration as in the claim: without assigned addresses and the fields that a share adds."""
        config = rails.as_claimed(self.config)
        if self.share is None:
            return config
        vf = {name: value for name, value in config.get("vf", {}).items() if name != "spoofchk"}
        rest = {name: value for name, value in config.items() if name not in ("child", "vf")}
        return {**rest, "vf": vf, "consumed": self.share.consumed}


@dataclass
class PeerRecord:
    """A device of another driver in the same claim. `address`, `uuid` and the fields below are empty or None if they
    are unknown, with the reason in `unknown`. `levels` has the distances to the claim's NICs, by their devices' names.
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

    `pod` is None if all devices are for admin access, for any pod. `netns` is `[st_dev, st_ino]` of the network
    namespace that devices moved to, or were about to. `boot` is the ID of the boot: after a reboot all devices are on
    the node. `since` is the time of the last change of phase, in the API's format. `pod_claim_name` is the name in the
    pod of a claim from a template.

    The other fields are for the pod's map, and are stored beside the record, because 1.0.0 refuses a record with fields
    that it does not know. `mapped` is False for claims of releases that did not look for `peers`, the claim's devices
    of other drivers. `variables` are those of the setting `pod_environment` that the pod gets, `left_out` has the
    reasons for the others; `beside` are the RDMA devices that the pod has by other claims.
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
    mapped: bool = field(default=False, metadata=BESIDE)
    peers: list[PeerRecord] = field(default_factory=list, metadata=BESIDE)
    variables: list[str] = field(default_factory=list, metadata=BESIDE)
    left_out: dict[str, str] = field(default_factory=dict, metadata=BESIDE)
    beside: list[str] = field(default_factory=list, metadata=BESIDE)

    @property
    def held(self) -> list[DeviceRecord]:
        """The devices that this claim has, exclusively or a share of them, without those for admin access."""
        return [device for device in self.devices if not device.admin]

    @property
    def claim(self) -> ClaimRef:
        return ClaimRef(self.namespace, self.name, self.uid)

    def is_for(self, pod_uid: str) -> bool:
        """Whether the claim is for the pod with this UID."""
        return self.pod is not None and self.pod.uid == pod_uid

    def same_allocation(self, other: Record) -> bool:
        """Whether both have the same devices with the same configuration, for the same pod."""

        def allocation(record: Record) -> tuple[object, ...]:
            devices = [
                (one.pool, one.device, one.request, one.admin, one.share_id, one.asked_config) for one in record.devices
            ]
            return record.pod, devices, record.claim

        return allocation(self) == allocation(other)

    def clear_attachment(self) -> None:
        """Remove what attach has recorded: the devices are on the node."""
        self.netns = None
        for device in self.devices:
            device.host = device.rdma = device.network = None
            device.leases = []


class Unreadable(DriverError):
    """A record cannot be used: it was corrupt and has been renamed, a newer driver wrote it, or reading failed."""


def encode(record: Record) -> bytes:
    value = FORMS.write(encoded(record))
    # without indentation json encodes in C, in a tenth of the time
    return (json.dumps(value, sort_keys=True) + "\n").encode()


def encode_facts(record: Record) -> bytes:
    """What is stored beside the record; empty if there is nothing."""
    found = encoded(record, beside=True)
    return (json.dumps(FORMS.write(found)) + "\n").encode() if found.keys() - {"mapped"} else b""


def add_facts(record: Record, content: bytes) -> None:
    """Add what is stored beside a record. Raises ValueError if it is damaged or only a newer driver can read it."""
    value = FORMS.read(bounded_json.loads(content, RECORD_BYTES))
    hints = t.get_type_hints(Record)
    names = [one.name for one in dataclasses.fields(Record) if one.metadata == BESIDE and one.name in value]
    found = {name: decoded(hints[name], value[name], name) for name in names}
    for name, item in found.items():
        setattr(record, name, item)


def decode(content: bytes) -> Record:
    """Raises ValueError for an invalid record, NewerForm if only a newer driver can read it."""
    value = FORMS.read(bounded_json.loads(content, RECORD_BYTES))
    record = t.cast(Record, decoded(Record, value, "record"))
    if record.phase not in PHASES:
        newer = value["schema"] > FORMS.newest
        raise (NewerForm if newer else ValueError)(f"its phase {record.phase!r} is unknown")
    if record.netns is not None and len(record.netns) != 2:
        raise ValueError("netns must be two numbers")
    for device in record.devices:
        _check_config(device)
    return record


def _check_config(device: DeviceRecord) -> None:
    """Raises ValueError for content on which later code would fail, which would also affect other claims."""
    for name in ("vrf", "child", "vf", "ethtool", "sysctls"):
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
        raise ValueError(f"the share of {device} has amounts that no share can have")


class Store:
    """The records in a folder. Safe for several processes, as long as writers of one record hold its claim's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The results of the last `all`: the files' contents and the records, by UID.
        self._seen: dict[str, tuple[bytes, Record]] = {}

    def path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise DriverError(f"{uid!r} is not a valid claim UID")
        return self.folder / f"{uid}{_SUFFIX}"

    def load(self, uid: str) -> Record | None:
        """The record of a claim, if there is one. Raises Unreadable."""
        content = self._content(uid)
        return None if content is None else self._record(uid, content)

    def _content(self, uid: str) -> bytes | None:
        """The content of a claim's file, None if there is none. Raises Unreadable, without reading a file whose type or
        size is not that of a record."""
        path = self.path(uid)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise self._corrupt(path, "it is not a regular file")
                if status.st_size > RECORD_BYTES:
                    raise self._corrupt(path, f"it has {status.st_size} bytes; the limit is {RECORD_BYTES}")
                return file.read(status.st_size + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from error

    def _corrupt(self, path: Path, why: str) -> Unreadable:
        return Unreadable(f"{path} is corrupt and was renamed to {self._set_aside(path)}: {why}")

    def _record(self, uid: str, content: bytes) -> Record:
        path = self.path(uid)
        try:
            record = decode(content)
            if record.uid != uid:
                raise ValueError(f"it is of claim {record.uid}")
        except NewerForm as error:
            fix = "its devices stay in their pod; install the release that wrote it again (dra_driver_release)"
            raise Unreadable(f"{path} cannot be used: {error}; {fix}") from error
        except ValueError as error:
            raise self._corrupt(path, str(error)) from error
        return record

    def _set_aside(self, path: Path) -> Path:
        """Rename an unreadable file to an unused name, so that an administrator can examine it."""
        number = 0
        while (aside := path.with_name(f"{path.name}{_ASIDE}-{number}")).exists():
            number += 1
        try:
            os.replace(path, aside)
        except FileNotFoundError:
            pass  # another instance of the driver was faster
        return aside

    def known(self, uid: str, set_aside: bool = False) -> bool:
        """Whether a claim has a record, readable or not; `set_aside`: or a corrupt one that was renamed."""
        if not _UID.fullmatch(uid):
            return False
        path = self.path(uid)
        return path.exists() or (set_aside and path.with_name(f"{path.name}{_ASIDE}-0").exists())

    def uids(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(uid for uid in found if _UID.fullmatch(uid))

    def all(self) -> tuple[list[Record], list[Unreadable]]:
        """Every readable record, and an error for each of the others. Callers must not change the records: the next
        call returns the same objects for unchanged files."""
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
        """Write a record to disk. After the return it survives a kill of this process and, in phase `prepared`, a power
        cut. Raises DriverError.

        After a power cut all devices are on the node, whatever the phase was (`claims.service`), so the previous record
        is sufficient.
        """
        if record.phase not in PHASES:
            raise ValueError(f"phase {record.phase!r} is unknown")
        path = self.path(record.uid)
        content = encode(record)
        if len(content) > RECORD_BYTES:
            raise DriverError(
                f"the record of claim {record.uid} has {len(content)} bytes; the limit is {RECORD_BYTES}: check if the "
                "interfaces of its devices have very many routes or addresses on the node"
            )
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = PowerCut.KEEPS_NEW if record.phase == PREPARED else PowerCut.KEEPS_EITHER
            files.replace(path, content, 0o600, kept)
        except OSError as error:
            raise DriverError(f"could not write the record of claim {record.uid}: {error}") from error

    def remove(self, uid: str) -> None:
        """Remove a claim's record; an unknown claim is not an error. After a power cut it may reappear."""
        files.remove(self.path(uid))

    def hand_over(self, uid: str, other: Store) -> None:
        """Move a claim's record to another store, which needs no space on a full disk; if it cannot be moved, it is
        removed. An unknown claim is not an error."""
        try:
            os.replace(self.path(uid), other.path(uid))
        except FileNotFoundError:
            pass
        except OSError:
            self.remove(uid)

    def sweep(self) -> None:
        """Remove unfinished files of killed writers."""
        files.sweep(self.folder)
