# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Moves a claim's devices from the node into its pod, and back."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from ..api import events
from ..base import trace
from ..base.errors import DriverError, KernelError
from ..base.metrics import DETACH, Metrics
from ..interface import interfaces, rails, take_back
from ..kernel import netns, rdma
from .leases import Leases
from .ledger import Ledger
from .protocols import Inventory, check_not_needed_by_node
from .records import ATTACHED, ATTACHING, DETACHING, PREPARED, DeviceRecord, RdmaRecord, Record, device_text
from .shares import Shares

log = logging.getLogger(__name__)


class Transfer:
    """Moves devices. Callers hold the claim's lock.

    The record is written before devices move to a pod: after a crash at any moment, `to_node` moves them back.
    """

    def __init__(
        self, ledger: Ledger, inventory: Inventory, leases: Leases, metrics: Metrics | None, shares: Shares
    ) -> None:
        self._ledger = ledger
        self._shares = shares
        self._inventory = inventory
        self._leases = leases
        self._metrics = metrics

    # to the pod

    def to_pod(self, record: Record, namespace: Path) -> None:
        """Move all devices of a prepared claim into a network namespace and configure them. After a DriverError, some
        of the devices may be in the namespace."""
        pin = self._ledger.paths.pin(record.uid)
        with self._ledger.lock_devices(record):
            # minutes may have passed since prepare, and an earlier sandbox of the pod may have had the devices
            check_not_needed_by_node(self._inventory, record)
            self._ledger.unclean.check(record)
            self._move_in(record, namespace, pin)
        # without the devices' locks, so that other functions of the card need not wait for a DHCP server
        for device in record.held:
            if device.config.get("dhcp") and device.host is not None:
                with trace.step("request leases", device.device):
                    _record_attachment(device, interfaces.request_leases(device.host, device.config, pin))
        addresses_by_interface = {
            str(device.network["interfaceName"]): device.network["ips"] for device in record.held if device.network
        }
        with trace.step("wait until addresses can be used"):
            notes = interfaces.wait_for_dad(pin, addresses_by_interface)
        for note in notes:
            log.info("%s", note)
        with trace.step("write metadata"):
            self._ledger.claim_files.write_metadata(record)
        self._ledger.save(record, ATTACHED)
        self._ledger.claim_files.set_attached(record.uid, True)

    def _move_in(self, record: Record, namespace: Path, pin: Path) -> None:
        exclusive = any(device.known.rdma_devices for device in record.held) and rdma.mode() == "exclusive"
        for device in record.held:
            self._read_state(device, exclusive)
        record.netns = list(netns.identity(namespace))
        self._ledger.save(record, ATTACHING)
        with trace.step("pin the namespace"):
            self._ledger.claim_files.pin(record.uid, namespace)
        for device in record.held:
            if device.share:
                with trace.step("set rates of the NIC's shares", device.device):
                    self._shares.apply(device.share.of)  # before the pod can send
            with trace.step("move and configure", device.device):
                _move_device(device, pin)

    def _read_state(self, device: DeviceRecord, exclusive: bool) -> None:
        """Record the interface's state and the RDMA devices before the move. `exclusive`: RDMA devices move with their
        interfaces."""
        if device.interface:
            with trace.step("read the interface's state", device.device):
                device.host = interfaces.snapshot(device.known.identity)
        if device.known.rdma_devices:
            moving = list(device.known.rdma_devices) if exclusive else []
            identities = {name: rdma.identify(name) for name in moving}
            device.rdma = RdmaRecord(self._ledger.claim_files.live_nodes(device), moving, identities)

    # to the node

    def to_node(self, record: Record, last: bool = False) -> None:
        """Move all devices back to the node, whatever their state is. The caller holds the devices' locks. Tries every
        device before the first DriverError is raised; the record then stays `detaching`.

        On a full disk the devices still move back: the record on disk keeps its older phase, and the next attempt finds
        the devices on the node. `last`: the record is about to be removed, so it is not written after the move.
        """
        if record.phase == PREPARED:
            return
        measured = self._metrics.operation(DETACH) if self._metrics else contextlib.nullcontext()
        start = time.monotonic()
        with measured, trace.step("detach"):
            self._ledger.problems.pop(record.uid, None)
            self._save_detaching(record)
            self._ledger.claim_files.set_attached(record.uid, False)
            self._leases.drop(record)
            results = self._take_back_all(record)
            for device in record.held:
                if device.share:
                    with trace.step("set rates of the NIC's other shares", device.device):
                        self._shares.apply(device.share.of, device, record.uid)
            with trace.step("unpin the namespace"):
                self._ledger.claim_files.unpin(record.uid)
            record.clear_attachment()
            if last:
                record.phase = PREPARED
            else:
                self._ledger.claim_files.write_metadata(record)
                self._ledger.save(record, PREPARED)
        elapsed_ms = (time.monotonic() - start) * 1000
        devices = ", ".join(f"{name} ({result})" for name, result in results.items())
        log.info("detached in %.0f ms: %s", elapsed_ms, devices)

    def _save_detaching(self, record: Record) -> None:
        try:
            self._ledger.save(record, DETACHING)
        except DriverError as error:
            log.warning("moving the devices back although the record could not be written: %s", error.message)
            record.phase = DETACHING

    def _take_back_all(self, record: Record) -> dict[str, str]:
        """Move all devices back. Returns the result for each device, for the log. Raises the first error after all
        devices were tried; the others are logged."""
        pin = self._ledger.paths.pin(record.uid)
        failures: list[DriverError] = []
        results: dict[str, str] = {}
        for device in reversed(record.held):
            try:
                with trace.step("take back", device.device):
                    self._take_back_rdma(device, pin)
                    try:
                        self._shares.release(device)
                    finally:
                        results[device_text(device.key)] = self._take_back_interface(record, device, pin)
            except DriverError as error:
                failures.append(error)
        if failures:
            for failure in failures[1:]:
                log.error("%s", failure.message)
            self._ledger.event(events.claim(record.claim), events.DETACH, failures[0])
            raise failures[0]
        return results

    @staticmethod
    def _take_back_rdma(device: DeviceRecord, pin: Path) -> None:
        """Move a device's RDMA devices back to the node."""
        if not device.rdma:
            return
        for name in device.rdma.moves:
            try:
                rdma.move(name, pin, back=True)
            except KernelError as error:
                if rdma.side(name, pin) != "missing":
                    raise
                if rdma.fetch(name, device.rdma.known.get(name, {})):
                    continue
                # the hardware is gone, or a pod hides the device; prepare checks that RDMA devices are present
                log.warning("RDMA device %s was not found: %s", name, error.message, extra={"device": device.device})

    def _take_back_interface(self, record: Record, device: DeviceRecord, pin: Path) -> str:
        """Move a device's interface back to the node, restore it and compare it with its original state. Returns the
        result for the log. An interface that still differs is withheld from other pods."""
        if device.host is None:
            return "back on the node" if device.rdma and device.rdma.moves else "not moved"
        namespace = pin if netns.alive(pin) else None
        policy = self._inventory.settings.reset
        is_child = "child" in device.config
        siblings = self._ledger.siblings(device.known, record.uid) if is_child else {}
        outcome = take_back.take_back(
            device.known.identity, device.host, namespace, device.config, policy, siblings=siblings
        )
        for note in outcome.notes:
            log.warning("%s", note, extra={"device": device.device})
        difference = self._ledger.unclean.record_outcome(
            device.own_name,
            device.known,
            device.host,
            outcome,
            {name: device.config[name] for name in ("child", "name") if name in device.config} if is_child else None,
            [rail_address["address"].partition("/")[0] for rail_address in rails.rail_addresses(device.config)],
        )
        if difference:
            self._withhold(record, device, difference)
            return "differs from its original state, withheld"
        if is_child:
            return f"{device.config['child']['type']} removed"
        return "see the warnings" if outcome.notes else "compared, in its original state"

    def _withhold(self, record: Record, device: DeviceRecord, difference: str) -> None:
        message = f"{device.own_name} is withheld from pods until its original state is restored: {difference}"
        log.error("%s", message, extra={"device": device.device})
        self._ledger.on_withheld(f"the original state of {device.own_name} could not be restored")
        self._ledger.event(events.claim(record.claim), events.UNCLEAN, DriverError(message))


def _move_device(device: DeviceRecord, pin: Path) -> None:
    moving = device.rdma.moves if device.rdma else []
    first = [name for name in moving if rdma.moves_before_interface(name)]
    for name in first:
        rdma.move(name, pin)
    if device.interface and device.host is not None:
        _record_attachment(device, interfaces.attach(device.known.identity, device.host, device.config, pin))
    for name in moving:
        if name not in first:
            rdma.move(name, pin)


def _record_attachment(device: DeviceRecord, attached: interfaces.Attached) -> None:
    device.network, device.leases = attached.network, attached.leases
    for note in attached.notes:
        log.info("%s", note, extra={"device": device.device})
