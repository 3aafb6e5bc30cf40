# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ledger: the records of the claims on this node, and the reports about them.

The ledger owns the records, the locks of claims and devices, and the reports to claims' statuses, to events and to the
publisher. It never touches a device.
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
from ..base.lock import LOCK_TIMEOUT_SECONDS, Locks
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

#: Seconds after which the status says that a claim is prepared. When many pods start at once, their devices are
#: attached by then, and one request reports both.
PREPARED_SETTLE_SECONDS = 5.0
_RESERVATION = "reserve"


@dataclass(frozen=True)
class _SavedRecord:
    """The parts of a claim's last saved record that this process needs often, without reading the file again."""

    #: The names, on the node, of the interfaces that move to the pod. Parents of child interfaces stay on the node.
    interfaces: frozenset[str]
    #: The UID of the pod to which the devices will move; empty if they are not waiting to be moved.
    waiting_for: str

    @classmethod
    def of(cls, record: Record) -> _SavedRecord:
        waits = record.phase == PREPARED and record.pod and record.held
        moved = [device.known.interface for device in record.held if "child" not in device.config]
        names = frozenset(name for name in moved if name)
        return cls(names, record.pod.uid if waits and record.pod else "")


class Ledger:
    """The records of one node's claims. May be used from any thread; other processes may use the same files.

    `node` is the Node's name, `boot` the ID of this boot, `lock_timeout` the number of seconds to wait for a lock,
    `mounts` as for `ClaimFiles`.
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
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self.paths = paths
        self.node = node
        self.boot = boot or boot_id()
        self.store = Store(paths.state_dir)
        #: Records of unprepared claims whose status in the cluster is not cleared yet.
        self.pending_status = Store(paths.pending_status_dir)
        self.claim_files = ClaimFiles(paths, mounts, lambda: inventory.settings.rdma_management, node)
        self.addresses = RailAddresses(paths.rail_addresses, self.boot, self.store)
        self.unclean = UncleanDevices(paths.unclean_dir, self.boot)
        self.locks = Locks(paths.run_dir / "locks", lock_timeout)
        self.activity = Activity()
        #: The problems of devices in pods, by claim, and by device or share.
        self.problems: dict[str, dict[DeviceKey, HealthProblem]] = {}
        #: Called with the reason when a claim's devices become free, and when a device becomes withheld.
        self.on_released: t.Callable[[str], None] = lambda reason: None
        self.on_withheld: t.Callable[[str], None] = lambda reason: None
        #: Called with a claim's UID. Returns what its status says about its shares, by share ID.
        self.shown_shares: t.Callable[[str], t.Mapping[str, Object]] = lambda uid: {}
        self._inventory = inventory
        self._status = status
        self._reporter = reporter
        self._without_waiting = Locks(self.locks.folder, 0.0)
        self._saved: dict[str, _SavedRecord] = {}
        self._unreadable = logs.Conditions(log)

    # locks

    @contextlib.contextmanager
    def lock_claim(self, uid: str) -> t.Iterator[None]:
        """Hold a claim's lock for an operation on it. Raises Busy and DriverError, like all functions that lock."""
        with self.activity.operation(), self.locks.hold(f"claim-{uid}"):
            yield

    def lock_claim_if_free(self, uid: str) -> t.ContextManager[None]:
        """Hold a claim's lock. Raises Busy immediately if an operation holds it."""
        return self._without_waiting.hold(f"claim-{uid}")

    def lock_devices(self, record: Record) -> t.ContextManager[None]:
        """Hold the locks of a claim's devices."""
        return self.locks.hold(*(f"device-{device.lock}" for device in record.held))

    def lock_device_if_free(self, lock: str) -> t.ContextManager[None]:
        """Hold the lock of a device. Raises Busy immediately if an operation holds it."""
        return self._without_waiting.hold(f"device-{lock}")

    def lock_new_records(self) -> t.ContextManager[None]:
        """Hold the lock for new records: if two claims need the same device at the same time, the second one sees the
        record of the first."""
        return self.locks.hold(_RESERVATION)

    # records; the caller holds the claim's lock

    def load(self, uid: str) -> Record | None:
        """A claim's record, updated for this boot. None if there is none, or if it was corrupt and has been renamed.
        Raises Unreadable for the record of a newer driver, and if the file cannot be read or renamed; DriverError if
        the claim's other files cannot be read, or if the updated record cannot be written."""
        try:
            record = self.store.load(uid)
        except Unreadable as error:
            if self.store.path(uid).exists():
                raise
            log.error("%s", error.message)
            return None
        if record:
            self.claim_files.read_facts(record)
        if record and record.boot != self.boot:
            # the machine was rebooted, so its devices are on the node
            record.clear_attachment()
            self._refresh_devices(record)
            record.boot = self.boot
            self.save(record, PREPARED)
        return record

    def _refresh_devices(self, record: Record) -> None:
        """Update a record with its devices as they are in this boot. Devices whose kernel drivers are not loaded yet
        keep their recorded state."""
        for device in record.devices:
            try:
                current = self._current_device(device)
            except DriverError as error:
                log.warning(
                    "the state of %s after the reboot is unknown, so its state before the reboot stays in use: %s",
                    device.device,
                    error.message,
                    extra={"device": device.device},
                )
                continue
            if current is None:
                continue
            has_interface = bool(current.interface or not device.known.interface)
            has_rdma = bool(current.rdma_devices or not device.known.rdma_devices)
            if has_interface and has_rdma:
                device.known = current

    def _current_device(self, device: DeviceRecord) -> Device | None:
        """The device of a claim according to the last probe; for a share its VF, or the parent of its macvlan
        interface. None if it does not exist now."""
        current = self._inventory.device(device.device)
        if current is None or device.share is None:
            return current
        if device.share.mechanism == MACVLAN:
            return replace(current, rdma_devices=())
        offer = self._inventory.offer(device.device)
        vfs = [vf for vf in offer.vfs if vf.address == device.known.address] if offer else []
        return replace(vfs[0], name=current.name, device=current.device) if vfs else None

    def save(self, record: Record, phase: str) -> None:
        """Write a record with a new phase. If that fails, the record in memory keeps its phase. Raises DriverError."""
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

    def remove(self, uid: str, keep_for_status: bool) -> None:
        """Remove a claim's record. `keep_for_status` moves it to `pending_status` until `clear_status` succeeds."""
        if keep_for_status:
            self.store.move_to(self.pending_status, uid)
        else:
            self.store.remove(uid)
        self._saved.pop(uid, None)

    # addresses of rails

    def release_addresses(self, uid: str) -> None:
        """Release the addresses of a claim after its record is removed. The caller holds the claim's lock. Raises Busy
        and DriverError."""
        if self.addresses.has_addresses(uid):
            with self.lock_new_records():
                self.addresses.release(uid)

    def sweep_addresses(self) -> None:
        """Release the addresses of claims that have no record. Raises as `release_addresses`."""
        if self.paths.rail_addresses.exists():
            files.sweep(self.paths.plugin_dir, self.paths.rail_addresses.name)
            with self.lock_new_records():
                self.addresses.sweep()

    # all records; without locks

    def records(self) -> list[Record]:
        """All readable records; logs an error for each of the others. Callers must not change the records. Raises
        Unreadable if the folder cannot be listed."""
        records, unreadable = self.store.all()
        for error in unreadable:
            self._unreadable.report(error.message, logging.ERROR, error.message)
        return records

    def waiting(self, pod_uid: str = "") -> list[str]:
        """The UIDs of the claims that this process has prepared and not attached yet, of one pod or of all."""
        waiting = {uid: saved.waiting_for for uid, saved in list(self._saved.items()) if saved.waiting_for}
        return [uid for uid, pod in waiting.items() if not pod_uid or pod == pod_uid]

    def pod(self, uid: str) -> Pod | None:
        """The pod that a claim belongs to, according to its record. None without a pod or a record, and if the record
        is unreadable, which is logged."""
        try:
            record = self.store.load(uid)
        except DriverError as error:
            log.error("%s", error.message)
            return None
        return record.pod if record else None

    def holds_interface(self, interface: str) -> bool:
        """Whether an interface of this name, on the node, belongs to a claim whose record this process has saved.
        Called for each netlink event of an interface."""
        return any(interface in saved.interfaces for saved in list(self._saved.values()))

    def siblings(self, parent: Device, uid: str = "") -> Siblings:
        """The child interfaces of a parent that claims other than `uid` have in pods: their indexes, by network
        namespace."""
        siblings: dict[Key, set[int]] = {}
        for record in self.records():
            if record.uid == uid or record.boot != self.boot or record.netns is None:
                continue
            for device in record.held:
                if "child" in device.config and device.known.identity == parent.identity:
                    child = device.host.get(host_state.CHILD) if device.host else None
                    index = child.get("index", 0) if child else 0
                    siblings.setdefault((record.netns[0], record.netns[1]), set()).add(index)
        return siblings

    # reports

    def put_status(self, record: Record, failure: str = "") -> None:
        """Report a claim's devices in its status; `failure` is why they are not ready."""
        problems = self.problems.get(record.uid)
        devices = claim_status.devices(record, failure, problems, self.shown_shares(record.uid))
        # the phase `prepared` is worth a request only if the pod's containers do not start soon
        settle = PREPARED_SETTLE_SECONDS if record.phase == PREPARED and record.held and not failure else None
        self._status.put(record.claim, devices, settle=settle, urgent=bool(failure or problems))

    def clear_status(self, claim: ClaimRef) -> None:
        """Remove this driver's devices from a claim's status."""
        self._status.put(claim, [], functools.partial(self.pending_status.remove, claim.uid))

    def event(self, regarding: Object, reason: str, error: DriverError) -> None:
        """Report an error in an event about an object."""
        if self._reporter:
            self._reporter.send(regarding, reason, f"node {self.node}: {error.message}", error.fix)
