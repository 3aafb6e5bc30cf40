# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a prepared claim besides its record: metadata, the CDI spec, the pin of its pod's network namespace, and
markers."""

from __future__ import annotations

import contextlib
import logging
import os
import typing as t
from pathlib import Path

from ..base import files
from ..base.calls import PreparedDevice
from ..base.errors import DriverError
from ..base.paths import Paths
from ..kernel import netns, rdma
from . import cdi, metadata, pod_map
from .records import DeviceRecord, Record, add_facts, encode_facts, is_uid

log = logging.getLogger(__name__)


class ClaimFiles:
    """The files of all claims. Callers hold the claim's lock.

    `mounts` is the mount namespace for pins (`netns.pin`), `management` returns whether pods get the character devices
    for management datagrams (umad, issm), `node` is the Node's name. All methods raise DriverError.
    """

    def __init__(
        self, paths: Paths, mounts: str | None, management: t.Callable[[], bool] = lambda: False, node: str = ""
    ) -> None:
        self.paths = paths
        self.mounts = mounts
        self._management = management
        self._node = node

    def write(self, record: Record) -> list[PreparedDevice]:
        """Write a claim's metadata files and CDI spec if they differ. Returns the devices for kubelet."""
        mounts = self.write_metadata(record)
        devices = [
            cdi.Device(
                request=device.request,
                device=device.device,
                nodes=self._nodes(device),
                mounts=(mounts[device.main_request],),
                share_id=device.share_id,
            )
            for device in record.devices
        ]
        with _disk_errors():
            ids = cdi.write(self.paths, record.uid, devices, bool(record.held), self._common_edits(record))
        return [
            PreparedDevice(device.pool, device.device, (device.request,), (name,), device.share_id or None)
            for device, name in zip(record.devices, ids, strict=True)
        ]

    def read_facts(self, record: Record) -> None:
        """Add to a record the data that is stored beside it (pod_facts). Without this data the pod gets no map."""
        with _disk_errors():
            try:
                add_facts(record, self.paths.pod_facts(record.uid).read_bytes())
            except FileNotFoundError:
                record.mapped = self.paths.pod_map(record.uid).exists()  # True for a claim that needs no facts
            except ValueError as error:
                log.warning("the pod of claim %s has no map of its devices: %s", record.claim, error)

    def write_facts(self, record: Record) -> None:
        """Store the data that `read_facts` adds."""
        content = encode_facts(record)
        path = self.paths.pod_facts(record.uid)
        with _disk_errors():
            if content:
                # after a power cut the claim is prepared again before any container starts
                files.replace(path, content, 0o600, files.PowerCut.MAY_EMPTY)
            else:
                files.remove(path)

    def write_nccl_topology(self, text: str) -> None:
        """Write the node's topology file for NCCL. Running pods keep the file that they have mounted."""
        with _disk_errors():
            files.replace(self.paths.nccl_topology, text.encode(), 0o644, files.PowerCut.MAY_EMPTY)

    def _common_edits(self, record: Record) -> cdi.CommonEdits:
        """The variables of a claim's map, and the mounts of the files that they name."""
        if not record.mapped:
            return cdi.CommonEdits()
        mounts = [cdi.Mount(self.paths.pod_map(record.uid), pod_map.container_path(record))]
        if "nccl_topology" in record.variables and "nccl_topology" not in pod_map.left_out(record):
            mounts.append(cdi.Mount(self.paths.nccl_topology, pod_map.NCCL_FILE))
        return cdi.CommonEdits(tuple(pod_map.variables(record)), tuple(mounts))

    def write_metadata(self, record: Record) -> dict[str, cdi.Mount]:
        """Write only the metadata files and the map. Returns the mount of each main request."""
        entries = [
            metadata.DeviceMetadata(
                request=device.request,
                pool=device.pool,
                device=device.device,
                attributes=device.known.device.get("attributes", {}),
                network=device.network,
            )
            for device in record.devices
        ]
        with _disk_errors():
            if record.mapped:
                metadata.write_file(self.paths.pod_map(record.uid), pod_map.encode(record, self._node))
            return metadata.write(self.paths, record.claim, entries, record.pod_claim_name or None)

    def live_nodes(self, device: DeviceRecord) -> list[cdi.DeviceNode]:
        """The character devices of a device on the node. rdma_cm, which all RDMA devices share, is listed once."""
        nodes = {
            node.path: cdi.DeviceNode(node.path, node.major, node.minor)
            for link in device.known.rdma_devices
            for node in rdma.char_devices(link, management=self._management())
        }
        return list(nodes.values())

    def _nodes(self, device: DeviceRecord) -> tuple[cdi.DeviceNode, ...]:
        """The character devices that containers with this device get; none for admin access, which only observes."""
        if device.admin:
            return ()
        if device.rdma:  # in the pod, or about to move there
            return tuple(device.rdma.nodes)
        return tuple(self.live_nodes(device))

    def set_attached(self, uid: str, attached: bool) -> None:
        """Create the marker that the claim's devices are configured in its pinned namespace, so that hooks need not
        contact the driver; or remove it. It must be removed before any of the devices is changed."""
        with _disk_errors():
            if attached:
                self.paths.attached_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.paths.attached_marker(uid).touch(mode=0o600)
            else:
                self.paths.attached_marker(uid).unlink(missing_ok=True)
                self.paths.early_marker(uid).unlink(missing_ok=True)

    def set_early(self, uid: str, early: bool) -> None:
        """Create the marker that the claim was attached before any container has started, or remove it. Hooks that find
        the devices attached write to the marker. It only serves to find out why a pod does not start."""
        with contextlib.suppress(OSError):
            if early:
                self.paths.early_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.paths.early_marker(uid).write_bytes(b"")
            else:
                self.paths.early_marker(uid).unlink(missing_ok=True)

    def remove(self, uid: str, keep_metadata: bool = False) -> None:
        """Remove all files of a claim; with `keep_metadata`, all but the metadata files, which containers mount."""
        self.set_attached(uid, False)
        with _disk_errors():
            cdi.remove(self.paths, uid)
            if not keep_metadata:
                metadata.remove(self.paths, uid)
        self.unpin(uid)

    def pin(self, uid: str, namespace: Path) -> None:
        """Pin the network namespace of the claim's pod: it stays alive until the devices are back on the node."""
        netns.pin(namespace, self.paths.pin(uid), self.mounts)

    def unpin(self, uid: str) -> None:
        """Remove the pin of the claim's pod, if there is one."""
        netns.unpin(self.paths.pin(uid), self.mounts)

    def claims(self) -> set[str]:
        """The UIDs of claims that have any of these files. Files whose names are not UIDs are ignored."""
        with _disk_errors():
            uids = cdi.written(self.paths) | metadata.written(self.paths)
            for folder in (self.paths.netns_dir, self.paths.attached_dir, self.paths.early_dir):
                uids |= set(os.listdir(folder)) if folder.is_dir() else set()
            return set(filter(is_uid, uids))


def awaits_container(paths: Paths, uid: str) -> bool:
    """Whether a claim was attached early, and no container has started since."""
    try:
        return paths.early_marker(uid).stat().st_size == 0
    except OSError:
        return False


@contextlib.contextmanager
def _disk_errors() -> t.Iterator[None]:
    """Turn an OSError into a DriverError: a full disk is not a bug in the driver."""
    try:
        yield
    except OSError as error:
        raise DriverError(f"could not read or write the driver's files: {error}") from error
