# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ledger: the records of the claims on this node, and the reports about them.

It alone reads and writes records, takes the locks of claims and devices, and reports to the claim's status, to events
and to the publisher. It never touches a device.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import typing as t
from dataclasses import dataclass, replace

from ..api import events
from ..base import files, logs, trace
from ..base.activity import Activity
from ..base.calls import ClaimRef, Pod
from ..base.errors import DriverError
from ..base.lock import PATIENCE, Locks
from ..base.objects import Object
from ..base.paths import Paths
from ..interface import host_state
from ..interface.children import Siblings
from ..kernel.node_namespaces import Key
from ..publish.device import Device
from ..topology.publish_shares import MACVLAN
from . import claim_status
from .claim_files import ClaimFiles
from .claim_status import HealthProblem
from .protocols import Inventory
from .rail_addresses import RailAddresses
from .records import PREPARED, DeviceKey, DeviceRecord, Record, Store, Unreadable, boot_id
from .unclean import UncleanDevices

log = logging.getLogger(__name__)

#: Seconds until the status says that a claim is prepared. When many pods start at once, their devices are attached by
#: then, and one request reports both.
PREPARED_SETTLE = 5.0
_RESERVATION = "reserve"


@dataclass(frozen=True)
class _SavedRecord:
    """The parts of the last saved record of a claim that this process needs often, without reading the file again."""

    #: The names on the node of the interfaces that move to the pod: not those of parents, which stay.
    interfaces: frozenset[str]
    #: The UID of the pod that its devices will move to; empty if they need not move.
    waiting_for: str

    @classmethod
    def of(cls, record: Record) -> _SavedRecord:
        waits = record.phase == PREPARED and record.pod and record.held
        moved = [device.known.interface for device in record.held if "child" not in device.config]
        names = frozenset(name for name in moved if name)
        return cls(names, record.pod.uid if waits and record.pod else "")


class Ledger:
    """The records of one node's claims. May be used from any thread; other processes may use the same files.

    `node` is the Node's name, `boot` the ID of this boot, `patience` for how many seconds to wait for a lock, `mounts`
    as for `ClaimFiles`.
    """

    def __init__(
        self,
        paths: Paths,
        node: str,
        inventory: Inventory,
        status: claim_status.Writer,
        *,
        reporter: events.Reporter | None = None,
        mounts: str | None = None,
        boot: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.paths = paths
        self.node = node
        self.boot = boot or boot_id()
        self.store = Store(paths.state_dir)
        #: Records of unprepared claims whose status in the cluster is not cleared yet.
        self.pending_status = Store(paths.pending_status_dir)
        self.files = ClaimFiles(paths, mounts, lambda: inventory.settings.rdma_management, node)
        self.addresses = RailAddresses(paths.rail_addresses, self.boot, self.store)
        self.unclean = UncleanDevices(paths.unclean_dir, self.boot)
        self.locks = Locks(paths.run_dir / "locks", patience)
        self.activity = Activity()
        #: By claim and device or share: the problems of devices in pods.
        self.problems: dict[str, dict[DeviceKey, HealthProblem]] = {}
        #: Called with the reason when a claim's devices are free again, and when a device is withheld from now on.
        self.on_released: t.Callable[[str], None] = lambda reason: None
        self.on_withheld: t.Callable[[str], None] = lambda reason: None
        #: Returns the shares in force of a claim for its status, by their IDs; called with the claim's UID.
        self.shown_shares: t.Callable[[str], t.Mapping[str, Object]] = lambda uid: {}
        self._inventory = inventory
        self._status = status
        self._reporter = reporter
        self._without_waiting = Locks(self.locks.folder, 0.0)
        self._saved: dict[str, _SavedRecord] = {}
        self._unreadable = logs.Conditions(log)

    # locks

    @contextlib.contextmanager
    def claim(self, uid: str) -> t.Iterator[None]:
        """Hold a claim's lock for an operation on it. Raises Busy."""
        with self.activity.operation(), self.locks.hold(f"claim-{uid}"):
            yield

    def claim_if_free(self, uid: str) -> t.ContextManager[None]:
        """Hold a claim's lock; raises Busy immediately if an operation has it."""
        return self._without_waiting.hold(f"claim-{uid}")

    def devices(self, record: Record) -> t.ContextManager[None]:
        """Hold the locks of a claim's devices. Raises Busy."""
        return self.locks.hold(*(f"device-{device.lock}" for device in record.held))

    def device_if_free(self, lock: str) -> t.ContextManager[None]:
        """Hold the lock of a device; raises Busy immediately if an operation has it."""
        return self._without_waiting.hold(f"device-{lock}")

    def reservation(self) -> t.ContextManager[None]:
        """Hold the lock for new records: of two claims that want one device at the same time, the second then sees the
        record of the first. Raises Busy."""
        return self.locks.hold(_RESERVATION)

    # records; the caller holds the claim's lock

    def load(self, uid: str) -> Record | None:
        """A claim's record, updated to this boot. None if there is none, or if it was corrupt and has been renamed.
        Raises Unreadable for the record of a newer driver, and if the file cannot be read."""
        try:
            record = self.store.load(uid)
        except Unreadable as error:
            if self.store.path(uid).exists():
                raise
            log.error("%s", error.message)
            return None
        if record:
            self.files.read_facts(record)
        if record and record.boot != self.boot:
            # the machine was rebooted, so its devices are on the node
            record.clear_attachment()
            self._refresh_devices(record)
            record.boot = self.boot
            self.save(record, PREPARED)
        return record

    def _refresh_devices(self, record: Record) -> None:
        """Update a record with its devices in this boot. Devices whose drivers are not loaded yet keep their state."""
        for device in record.devices:
            try:
                now = self._device_now(device)
            except DriverError as error:
                log.warning(
                    "the state of %s after the reboot is unknown, its state before it stays in use: %s",
                    device.device,
                    error.message,
                    extra={"device": device.device},
                )
                continue
            before = device.known
            if now and (now.interface or not before.interface) and (now.rdma_devices or not before.rdma_devices):
                device.known = now

    def _device_now(self, device: DeviceRecord) -> Device | None:
        """The device of a claim according to the last probe: for a share its VF, or the parent of its macvlan. None if
        it does not exist now."""
        now = self._inventory.device(device.device)
        if now is None or device.share is None:
            return now
        if device.share.mechanism == MACVLAN:
            return replace(now, rdma_devices=())
        offer = self._inventory.offer(device.device)
        vfs = [vf for vf in offer.vfs if vf.address == device.known.address] if offer else []
        return replace(vfs[0], name=now.name, device=now.device) if vfs else None

    def save(self, record: Record, phase: str) -> None:
        """Write a record in a phase. If that fails, the record in memory keeps its phase. Raises DriverError."""
        before = record.phase, record.since
        if record.phase != phase or not record.since:
            record.since = claim_status.now()
        record.phase = phase
        try:
            with trace.step(f"write the record, {phase}"):
                self.store.save(record)
        except BaseException:
            record.phase, record.since = before
            raise
        self._saved[record.uid] = _SavedRecord.of(record)

    def remove(self, uid: str, pending_status: bool) -> None:
        """Remove a claim's record. `pending_status` keeps it in another folder until `clear_status` has succeeded."""
        if pending_status:
            self.store.hand_over(uid, self.pending_status)
        else:
            self.store.remove(uid)
        self._saved.pop(uid, None)

    # addresses of rails

    def release_addresses(self, uid: str) -> None:
        """Take back the addresses of a claim after its record is removed. The caller holds the claim's lock. Raises
        Busy and DriverError."""
        if self.addresses.has_addresses(uid):
            with self.reservation():
                self.addresses.release(uid)

    def sweep_addresses(self) -> None:
        """Take back the addresses of claims that have no record. Raises as `release_addresses`."""
        if self.paths.rail_addresses.exists():
            files.sweep(self.paths.plugin_dir, self.paths.rail_addresses.name)
            with self.reservation():
                self.addresses.sweep()

    # all records; without locks

    def records(self) -> list[Record]:
        """All records; logs those that cannot be read. Callers must not change them."""
        records, unreadable = self.store.all()
        for error in unreadable:
            self._unreadable.report(error.message, logging.ERROR, error.message)
        return records

    def waiting(self, pod_uid: str = "") -> list[str]:
        """The UIDs of the claims that this process has prepared and not attached, of one pod or of all."""
        waiting = {uid: saved.waiting_for for uid, saved in list(self._saved.items()) if saved.waiting_for}
        return [uid for uid, pod in waiting.items() if not pod_uid or pod == pod_uid]

    def pod(self, uid: str) -> Pod | None:
        """The pod that a claim is for, as its record says; None if that is unknown."""
        try:
            record = self.store.load(uid)
        except DriverError as error:
            log.error("%s", error.message)
            return None
        return record.pod if record else None

    def holds_interface(self, interface: str) -> bool:
        """Whether a claim that this process has worked on has a device whose interface had this name on the node.
        Called for each netlink event of an interface."""
        return any(interface in saved.interfaces for saved in list(self._saved.values()))

    def siblings(self, parent: Device, uid: str = "") -> Siblings:
        """The children of an interface in pods, by claims of this boot other than `uid`."""
        found: dict[Key, set[int]] = {}
        for record in self.records():
            if record.uid == uid or record.boot != self.boot or record.netns is None:
                continue
            for device in record.held:
                if "child" in device.config and device.known.identity == parent.identity:
                    child = device.host.get(host_state.CHILD) if device.host else None
                    index = child.get("index", 0) if child else 0
                    found.setdefault((record.netns[0], record.netns[1]), set()).add(index)
        return found

    # reports

    def put_status(self, record: Record, failure: str = "") -> None:
        """Report a claim's devices in its status; `failure` is why they are not ready."""
        problems = self.problems.get(record.uid)
        devices = claim_status.devices(record, failure, problems, self.shown_shares(record.uid))
        # `prepared` is worth a request only if the pod's containers do not start soon
        settle = PREPARED_SETTLE if record.phase == PREPARED and record.held and not failure else None
        self._status.put(record.claim, devices, settle=settle, urgent=bool(failure or problems))

    def clear_status(self, claim: ClaimRef) -> None:
        """Remove this driver's devices from a claim's status."""
        self._status.put(claim, [], functools.partial(self.pending_status.remove, claim.uid))

    def event(self, regarding: Object, reason: str, error: DriverError) -> None:
        """Report an error in an event about an object."""
        if self._reporter:
            self._reporter.send(regarding, reason, f"node {self.node}: {error.message}", error.fix)
