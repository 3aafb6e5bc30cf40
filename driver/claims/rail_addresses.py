# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Assigns addresses of the node's ranges to devices of claims, and releases them.

The claims' records contain their addresses. A separate file contains them too, from before a record is written until
after it is removed. So no two claims get the same address, even if the driver is killed. The file also lists the
released addresses in order: addresses that were never used are assigned first, then the one that was released first.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ..base import files
from ..base.errors import Busy, DriverError, Refused
from ..dra.config.rail_range import RailRange
from ..dra.kube import bounded_json
from ..interface import rails
from .records import DeviceRecord, Record, Store

log = logging.getLogger(__name__)

#: Maximum bytes of the file. Eight rails with two address families and 4,096 addresses each need less than 8 MiB.
MAX_FILE_BYTES = 16 << 20
_MIN_IPV6_MTU = 1280


@dataclass
class _Assignments:
    """The content of the file: the UIDs of claims by their addresses (`held`), and the released addresses, the one that
    was released first at the start (`freed`). `boot` is the ID of the boot in which the file was written."""

    boot: str = ""
    held: dict[str, str] = field(default_factory=dict)
    freed: list[str] = field(default_factory=list)


class RailAddresses:
    """The addresses of one node, in the file `path`. Callers of `assign`, `release` and `sweep` hold the ledger's lock
    for new records. `boot` is the ID of this boot."""

    def __init__(self, path: Path, boot: str, store: Store) -> None:
        self._path = path
        self._boot = boot
        self._store = store

    def assign(
        self,
        record: Record,
        ranges: t.Sequence[RailRange],
        others: t.Iterable[Record],
        withheld: t.Collection[str] = (),
    ) -> None:
        """Assign addresses to the devices of a planned claim that request addresses of their rails. `others` are the
        records of all claims, `withheld` the addresses that must not be assigned now, although no claim has them.

        Must be called before the record is written. Raises Refused, and Busy if a range is exhausted."""
        requesting = devices_without_addresses(record)
        if not requesting:
            return
        device_ranges = [(device, _ranges_for(device, ranges)) for device in requesting]
        assignments = self._current(record.uid, others)
        taken = {*assignments.held, *withheld}
        for device, ranges_of_device in device_ranges:
            assigned = []
            for rail_range in ranges_of_device:
                address = _choose(rail_range, assignments, taken)
                taken.add(address)
                assignments.held[address] = record.uid
                assigned.append(rails.make_rail_address(rail_range, address))
            device.config = {**device.config, rails.FIELD: assigned}
        still_free = [address for address in assignments.freed if address not in assignments.held]
        assignments.freed = [
            address for address in still_free if any(_usable(rail_range, address) for rail_range in ranges)
        ]
        self._write(assignments)

    def has_addresses(self, uid: str) -> bool:
        """Whether a claim has addresses. The caller holds the claim's lock; no other lock is needed."""
        return uid in self._read().held.values()

    def release(self, uid: str) -> None:
        """Release the addresses of a claim whose record has been removed. A claim without addresses is not an error."""
        assignments = self._read()
        if uid in assignments.held.values():
            _release(assignments, {uid})
            self._write(assignments)

    def sweep(self) -> None:
        """Release the addresses of claims whose record the driver had removed right before it was killed."""
        assignments = self._read()
        without_record = self._claims_without_record(assignments)
        if without_record:
            _release(assignments, without_record)
            self._write(assignments)

    def _claims_without_record(self, assignments: _Assignments) -> set[str]:
        """The UIDs of the claims without a record. Claims whose corrupt record was renamed in this boot are not
        included: they may still have a pod."""
        uids = set(assignments.held.values())
        same_boot = assignments.boot == self._boot
        return {uid for uid in uids if not self._store.has_record(uid, include_corrupt=same_boot)}

    def _current(self, uid: str, others: t.Iterable[Record]) -> _Assignments:
        """The content of the file, with the addresses in the records `others`. Those of the claim `uid` and of claims
        without a record are released."""
        assignments = self._read()
        _release(assignments, {*self._claims_without_record(assignments), uid})
        for record in others:
            for device in record.held if record.uid != uid else ():
                for rail_address in rails.rail_addresses(device.config):
                    assignments.held[rail_address["address"].partition("/")[0]] = record.uid
        return assignments

    def _read(self) -> _Assignments:
        """The content of the file. A damaged file counts as empty: the records contain the addresses in use. Raises
        DriverError if the file cannot be read."""
        try:
            content = self._path.read_bytes()
            value = bounded_json.loads(content, MAX_FILE_BYTES)
            boot, held, freed = value["boot"], value["held"], value["freed"]
            texts = [boot, *held, *held.values(), *freed]
            if not isinstance(freed, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("it contains values of the wrong type")
        except FileNotFoundError:
            return _Assignments(self._boot)
        except OSError as error:
            raise DriverError(f"could not read {self._path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("%s is damaged, so the order in which addresses were released is lost: %s", self._path, error)
            return _Assignments(self._boot)
        return _Assignments(boot, held, list(dict.fromkeys(freed)))

    def _write(self, assignments: _Assignments) -> None:
        value = {"boot": self._boot, "held": assignments.held, "freed": assignments.freed}
        try:
            content = (json.dumps(value) + "\n").encode()
            files.replace(self._path, content, 0o600, files.PowerCut.KEEPS_EITHER)
        except OSError as error:
            raise DriverError(f"could not write {self._path}: {error}") from error


def devices_without_addresses(record: Record) -> list[DeviceRecord]:
    """The devices of a planned claim that request addresses of their rails and have none yet."""
    return [device for device in record.held if device.config.get(rails.FIELD) is True]


def _release(assignments: _Assignments, uids: t.Container[str]) -> None:
    """Release the addresses of these claims."""
    released = [address for address, uid in assignments.held.items() if uid in uids]
    for address in released:
        del assignments.held[address]
    assignments.freed = [*(address for address in assignments.freed if address not in released), *released]


def _choose(rail_range: RailRange, assignments: _Assignments, taken: t.Collection[str]) -> str:
    """An address that was never used; if there is none, the one that was released first. Raises Busy."""
    freed = set(assignments.freed)
    for address in map(str, rail_range.addresses()):
        if address not in taken and address not in freed:
            return address
    for address in assignments.freed:
        if address not in taken and _usable(rail_range, address):
            return address
    holders = {uid for address, uid in assignments.held.items() if _usable(rail_range, address)}
    withheld = sum(_usable(rail_range, address) for address in taken if address not in assignments.held)
    exception = f", except {withheld} that devices withheld from pods could still use" if withheld else ""
    raise Busy(
        f"all {rail_range.usable} addresses of {rail_range.range} on rail {rail_range.rail} of this node are assigned, "
        f"to devices of {len(holders)} claims{exception}: wait until pods end, or increase per_node in the address plan"
    )


def _usable(rail_range: RailRange, text: str) -> bool:
    """Whether a text is an address of the range that may be assigned."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text)
        return address in rail_range.range and address not in rail_range.reserved
    return False


def _ranges_for(device: DeviceRecord, ranges: t.Sequence[RailRange]) -> list[RailRange]:
    """The ranges of a device's rail, except those of an address family for which the device's configuration has static
    addresses or DHCP. Raises Refused."""
    field_path = f"configuration of request {device.request} ({device.device}).{rails.FIELD}"
    if not ranges:
        raise Refused(
            f"{field_path}: this node has no addresses for rails; the site plans them in dra_driver_rail_addresses"
        )
    rail = device.known.device.get("attributes", {}).get("rail", {}).get("int")
    if rail is None:
        raise Refused(f"{field_path}: the rail of the device is not known; set it in the driver's setting rails")
    of_rail = [rail_range for rail_range in ranges if rail_range.rail == rail]
    if not of_rail:
        raise Refused(f"{field_path}: this node has no addresses for rail {rail}, the device's rail")
    config = device.config
    static = {"ipv6" if ":" in address else "ipv4" for address in config.get("addresses", ())}
    needed = [rail_range for rail_range in of_rail if rail_range.family not in static | set(config.get("dhcp", ()))]
    if any(rail_range.family == "ipv6" for rail_range in needed) and config.get("mtu", _MIN_IPV6_MTU) < _MIN_IPV6_MTU:
        raise Refused(
            f"{field_path}: IPv6 needs an mtu of {_MIN_IPV6_MTU} or more, and the device gets {config['mtu']}"
        )
    return needed
