# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a prepared claim has on the node beside its record: metadata, the CDI spec, the pin of its pod's namespace."""

from __future__ import annotations

import contextlib
import os
import typing as t

from ..base.calls import ClaimRef, PreparedDevice
from ..base.errors import DriverError
from ..base.paths import Paths
from ..kernel import netns, rdma
from . import cdi, metadata
from .records import DeviceRecord, Record


class ClaimFiles:
    """Those of all claims, for whoever has a claim's lock. `mounts` is the mount namespace that pins are made in,
    `management` says whether pods get the devices for management datagrams.

    All methods raise DriverError.
    """

    def __init__(self, paths: Paths, mounts: str | None, management: t.Callable[[], bool] = lambda: False) -> None:
        self.paths = paths
        self.mounts = mounts
        self._management = management

    def write(self, record: Record) -> list[PreparedDevice]:
        """The metadata files and the CDI spec of a claim, written anew where they differ."""
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
        with _disk():
            ids = cdi.write(self.paths, record.uid, devices, hook=bool(record.held))
        return [
            PreparedDevice(device.pool, device.device, (device.request,), (name,), device.share_id or None)
            for device, name in zip(record.devices, ids, strict=True)
        ]

    def write_metadata(self, record: Record) -> dict[str, cdi.Mount]:
        """The metadata files alone; returns what to mount, by main request."""
        entries = [
            metadata.DeviceMetadata(
                request=device.request,
                pool=device.pool,
                device=device.device,
                attributes=device.known["device"].get("attributes", {}),
                network=device.network,
            )
            for device in record.devices
        ]
        claim = ClaimRef(record.namespace, record.name, record.uid)
        with _disk():
            return metadata.write(self.paths, claim, entries, record.pod_claim_name or None)

    def live_nodes(self, device: DeviceRecord) -> list[cdi.DeviceNode]:
        """The character devices of a device that is on the node; rdma_cm, which all share, once."""
        found = {
            node.path: cdi.DeviceNode(node.path, node.major, node.minor)
            for link in device.known["rdma_devices"]
            for node in rdma.char_devices(link, management=self._management())
        }
        return list(found.values())

    def _nodes(self, device: DeviceRecord) -> tuple[cdi.DeviceNode, ...]:
        """What containers with this device may open: nothing more for admin access, which only looks on."""
        if device.admin:
            return ()
        if device.rdma:  # away, or about to go
            return tuple(cdi.DeviceNode(**node) for node in device.rdma["nodes"])
        return tuple(self.live_nodes(device))

    def set_attached(self, uid: str, attached: bool) -> None:
        """Let hooks know, without asking the driver, that the claim's devices are in its pinned namespace; or no more,
        which comes before any of them is touched."""
        with _disk():
            if attached:
                self.paths.attached_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.paths.attached(uid).touch(mode=0o600)
            else:
                self.paths.attached(uid).unlink(missing_ok=True)
                self.paths.early(uid).unlink(missing_ok=True)

    def set_early(self, uid: str, early: bool) -> None:
        """Note that no container has come yet for the claim's devices; or that one has. Hooks that find them attached
        say so themselves. It is for people who look why a pod does not start: nothing else goes by it."""
        with contextlib.suppress(OSError):
            if early:
                self.paths.early_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.paths.early(uid).write_bytes(b"")
            else:
                self.paths.early(uid).unlink(missing_ok=True)

    def remove(self, uid: str) -> None:
        """Remove all of a claim."""
        self.set_attached(uid, False)
        with _disk():
            cdi.remove(self.paths, uid)
            metadata.remove(self.paths, uid)
        netns.unpin(self.paths.pin(uid), self.mounts)

    def claims(self) -> set[str]:
        """The UIDs of claims that have any file or a pin."""
        with _disk():
            found = cdi.written(self.paths) | metadata.written(self.paths)
            for folder in (self.paths.netns_dir, self.paths.attached_dir, self.paths.early_dir):
                found |= set(os.listdir(folder)) if folder.is_dir() else set()
            return found


def awaited(paths: Paths, uid: str) -> bool:
    """Whether a claim was attached early, and no container has come yet."""
    try:
        return paths.early(uid).stat().st_size == 0
    except OSError:
        return False


@contextlib.contextmanager
def _disk() -> t.Iterator[None]:
    """Errors of files as errors of the driver: a full disk is no mistake of ours."""
    try:
        yield
    except OSError as error:
        raise DriverError(f"the driver's files cannot be written: {error}") from error
