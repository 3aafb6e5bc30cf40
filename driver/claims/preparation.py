# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prepares and unprepares claims: checks a claim from the API server, writes its record, metadata and CDI spec, and
removes them."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import typing as t
from concurrent import futures

from ..base import trace
from ..base.calls import ClaimRef, Pod, PreparedDevice
from ..base.errors import Busy, DriverError, Refused
from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from ..dra.kube.problems import Problem
from ..interface import interfaces
from ..kernel import rdma
from ..publish.offer import Offer
from ..shares import by_class
from ..topology.publish_shares import MACVLAN
from . import environment, peers
from .claim_configs import refusal
from .leases import Leases
from .ledger import Ledger
from .plan import check_pod, consumer, plan
from .protocols import Cluster, Inventory, check_not_needed_by_node
from .rail_addresses import devices_without_addresses
from .records import PREPARED, PeerRecord, Record
from .transfer import Transfer

log = logging.getLogger(__name__)

#: Maximum concurrent reads of pods.
_MAX_POD_READS = 16

#: Waits for the claim's pod and returns it; raises as `check_pod`.
PodCheck = t.Callable[[], Object]


class Preparation:
    """Prepares and unprepares claims. Callers hold the claim's lock, except for `assign`."""

    def __init__(
        self, ledger: Ledger, cluster: Cluster, inventory: Inventory, transfer: Transfer, leases: Leases
    ) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._inventory = inventory
        self._transfer = transfer
        self._leases = leases
        #: For reading pods while their claims are checked.
        self._reads = futures.ThreadPoolExecutor(_MAX_POD_READS, thread_name_prefix="pod")

    def close(self) -> None:
        """End the threads that read pods."""
        self._reads.shutdown(wait=False, cancel_futures=True)

    def prepare(self, reference: ClaimRef) -> list[PreparedDevice]:
        """Check a claim and write its record, metadata and CDI spec. A claim that is already prepared with the same
        allocation keeps its record. If this fails for a new claim, everything of it is removed. Raises DriverError."""
        claim = self._cluster.claim(reference.namespace, reference.name, self._inventory.prefetch)
        if claim is None:
            raise Refused(f"claim {reference} does not exist")
        owner = consumer(claim, reference.uid)
        check_pod_once_read = self._start_reading_pod(owner)
        old = self._ledger.load(reference.uid)
        if old:
            check_pod_once_read()  # before any device is returned to the node
        is_changed = old is not None and not old.same_allocation(self._plan(claim, reference.uid))
        # if the devices are in the pod, it has mounted their map and got their variables
        on_node = old is None or is_changed or old.phase == PREPARED
        # both may need the API server: first, because kubelet does not prepare a claim again that was unprepared here
        found_peers = peers.peers(claim, self._cluster, lambda: self._inventory.places) if on_node else []
        choice = self._choose_variables(reference, old, check_pod_once_read) if on_node and owner else None
        if old and is_changed:
            log.warning("the claim's allocation or pod has changed: it is unprepared and prepared again")
            self.forget(reference.uid, old, keep_metadata=True)  # containers of the next pod may have mounted it
            old = None
        record = old or self._reserve(claim, reference, found_peers)
        try:
            if old and on_node:
                self._update_peers(old, found_peers)
            self._record_variables(record, choice)
            prepared = self._write(record)
            with trace.step("wait for the pod's object"):
                check_pod_once_read()
        except BaseException as error:
            if record is not old:
                try:
                    self.forget(reference.uid, record, keep_metadata=is_changed)
                except DriverError as cleanup_error:
                    log.error("could not remove the claim whose prepare failed: %s", cleanup_error.message)
            if isinstance(error, DriverError):
                self._ledger.put_status(record, error.message)
            raise
        self._ledger.put_status(record)
        if record is not old:
            devices = ", ".join(f"{device.device} (request {device.request})" for device in record.devices)
            log.info("prepared %s for %s", devices, f"pod {record.pod}" if record.pod else "any pod, with admin access")
        return prepared

    def assign(self, uid: str, pod_uid: str) -> None:
        """Prepare a claim again for its current pod. Takes the claim's lock. Raises DriverError, and Refused if the
        current pod does not have this UID."""
        with self._ledger.lock_claim(uid):
            record = self._ledger.load(uid)
            if record is None or record.is_for(pod_uid):
                return
            self.prepare(record.claim)
            renewed = self._ledger.load(uid)
            if renewed is None or not renewed.is_for(pod_uid):
                raise Refused(f"claim {record.claim} is not for the pod {pod_uid}")

    def forget(
        self, uid: str, record: Record | None, keep_for_status: bool = False, keep_metadata: bool = False
    ) -> None:
        """Unprepare a claim: return its devices to the node and remove all its files, the record last.

        `keep_for_status` keeps the record until the claim's status in the cluster is cleared, and `keep_metadata` keeps
        the metadata files.
        """
        if record:
            self._leases.drop(record)
            # a prepared claim has nothing to return, so it need not wait for another claim with a lock of these devices
            if record.phase != PREPARED:
                with self._ledger.lock_devices(record):
                    self._transfer.to_node(record, last=True)
        with trace.step("remove metadata, CDI spec and pin"):
            self._ledger.claim_files.remove(uid, keep_metadata)
        self._ledger.remove(uid, keep_for_status)
        self._ledger.release_addresses(uid)
        if record and record.held:
            self._ledger.on_released("a pod's devices are back on the node")

    def _start_reading_pod(self, owner: Pod | None) -> PodCheck:
        """Start to read a claim's pod from the API server. Returns a function that waits for the pod, checks it and
        returns it; without an owner, an empty object."""
        if owner is None:
            return lambda: {}
        context = contextvars.copy_context()  # the fields of log lines
        reading = self._reads.submit(context.run, self._cluster.pod, owner.namespace, owner.name)

        def check() -> Object:
            pod = reading.result()
            check_pod(pod, owner, self._cluster.node)
            return t.cast(Object, pod)

        return check

    def _update_peers(self, record: Record, found_peers: list[PeerRecord]) -> None:
        """Record the claim's devices of other drivers as they are now."""
        if found_peers:
            peers.add_levels(found_peers, record.held, self._inventory.places)
        record.peers, record.mapped = found_peers, True

    def _choose_variables(
        self, reference: ClaimRef, old: Record | None, check_pod_once_read: PodCheck
    ) -> environment.Choice | None:
        """Choose the variables of the setting `pod_environment` for a claim's pod. None, the default, if there are none
        to add or to remove."""
        wanted = self._inventory.settings.pod_environment
        if not (wanted or (old and old.variables)):
            return None
        return environment.choose(wanted, reference, check_pod_once_read(), self._cluster, self._inventory)

    def _record_variables(self, record: Record, chosen: environment.Choice | None) -> None:
        if chosen is None or record.pod is None:
            return
        if "nccl_topology" in chosen.variables and "nccl_topology" not in chosen.left_out:
            self._ledger.claim_files.write_nccl_topology(self._inventory.places.nccl)
        record.variables, record.left_out, record.beside = chosen.variables, chosen.left_out, chosen.beside

    def _reserve(self, claim: Object, reference: ClaimRef, found_peers: list[PeerRecord]) -> Record:
        """Write the record of a new claim, which reserves its devices."""
        with self._ledger.lock_new_records():
            with trace.step("plan"):
                record = self._plan(claim, reference.uid)
            self._update_peers(record, found_peers)
            self._save_new(record)
        with contextlib.suppress(DriverError):  # `Recovery` removes it later
            self._ledger.pending_status.remove(reference.uid)
        return record

    def _save_new(self, record: Record) -> None:
        """Assign the addresses of rails that a new claim requests, and write its record. The caller holds the lock for
        new records."""
        addresses = self._ledger.addresses
        if devices_without_addresses(record):
            ranges = self._inventory.settings.rail_addresses
            addresses.assign(record, ranges, self._ledger.records(), self._ledger.unclean.addresses())
        try:
            self._ledger.save(record, PREPARED)
        except BaseException:
            with contextlib.suppress(DriverError):  # at the next start they are released, too
                addresses.release(record.uid)
            raise

    def _plan(self, claim: Object, uid: str) -> Record:
        """As `plan.plan`, with the current data of the node."""
        results = claim["status"]["allocation"]["devices"]["results"]
        names = {str(result.get("device")) for result in results if result.get("driver") == DRIVER}
        devices = {name: self._inventory.device(name) for name in sorted(names)}
        return plan(
            claim,
            uid=uid,
            node=self._cluster.node,
            known={name: device for name, device in devices.items() if device},
            withheld={name: self._inventory.withheld(name) for name, device in devices.items() if not device},
            records=self._ledger.records(),
            boot=self._ledger.boot,
            offers=self._offers(names),
            unclean=self._ledger.unclean.all(),
        )

    def _offers(self, names: t.Collection[str]) -> dict[str, Offer]:
        """The divided NICs among the devices with these names. If no free VF of a NIC was on the node at the last
        probe, because pods had the VFs then, the node is probed again."""
        offers = self._divided(names)
        used = {device.known.address for record in self._ledger.records() for device in record.held} if offers else ()
        for offer in offers.values():
            free = [vf for vf in offer.vfs if vf.address not in used]
            if free and not any(vf.interface for vf in free):
                self._inventory.refresh()
                return self._divided(names)
        return offers

    def _divided(self, names: t.Iterable[str]) -> dict[str, Offer]:
        offers = {name: self._inventory.offer(name) for name in names}
        return {name: offer for name, offer in offers.items() if offer}

    def _write(self, record: Record) -> list[PreparedDevice]:
        """Write a claim's files, and return its devices. First check the devices, unless they may be in the pod."""
        if record.phase == PREPARED:
            with self._ledger.lock_devices(record):
                self._check_devices(record)
                self._refresh_rdma_names(record)
            self._ledger.claim_files.write_facts(record)
        with trace.step("write metadata and the CDI spec"):
            return self._ledger.claim_files.write(record)

    def _check_devices(self, record: Record) -> None:
        """Check that the node does not need the devices, and that the devices support their configuration. Raises
        Refused and Busy."""
        check_not_needed_by_node(self._inventory, record)
        self._ledger.unclean.check(record)
        problems: list[Problem] = []
        for device in record.held:
            if device.share and device.share.mechanism == MACVLAN:
                if problem := by_class.problem(device.known.identity):
                    raise Busy(f"{device.device}: {problem}")
            if device.interface:
                path = f"configuration of request {device.request} ({device.device})"
                with trace.step("check the configuration", device.device):
                    problems += interfaces.check(device.known.identity, device.config, path)
        if problems:
            raise refusal(problems)

    def _refresh_rdma_names(self, record: Record) -> None:
        """Update the names of RDMA devices: after the kernel has renumbered them, another function may have a recorded
        name. Raises Busy if a device has no RDMA device now: its kernel driver is not loaded, or an ending pod has
        it."""
        changed = False
        for device in record.held:
            known = device.known
            if not known.address or not known.rdma_devices:
                continue
            names = rdma.devices(known.address)
            if not names:
                raise Busy(f"{device.device}: its RDMA device is not on the node now")
            if names != sorted(known.rdma_devices):
                device.known = known.with_rdma_devices(names)
                changed = True
        if changed:
            self._ledger.save(record, PREPARED)
