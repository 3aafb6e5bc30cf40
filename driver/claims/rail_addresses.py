# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Assigns addresses of the node's ranges to devices of claims, and takes them back.

The claims' records contain their addresses. A separate file contains them too, from before a record is written until
after it is removed, so no two claims get the same address even if the driver is killed. The file also lists the
returned addresses in order: addresses that were never used are assigned first, then the one that was returned first.
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

#: Maximum bytes of the file. Eight rails with two families and 4,096 addresses each have less than 8 MiB.
FILE_BYTES = 16 << 20
_LEAST_IPV6_MTU = 1280


@dataclass
class _Assignments:
    """The content of the file: the UIDs of the claims by their addresses (`held`), and the returned addresses, oldest
    first (`freed`). `boot` is the boot in which it was written."""

    boot: str = ""
    held: dict[str, str] = field(default_factory=dict)
    freed: list[str] = field(default_factory=list)


class RailAddresses:
    """The addresses of one node, in the file `path`. The caller of `hand_out`, `release` and `sweep` holds the ledger's
    lock for new records. `boot` is the ID of this boot."""

    def __init__(self, path: Path, boot: str, store: Store) -> None:
        self._path = path
        self._boot = boot
        self._store = store

    def hand_out(
        self,
        record: Record,
        ranges: t.Sequence[RailRange],
        others: t.Iterable[Record],
        withheld: t.Collection[str] = (),
    ) -> None:
        """Give addresses of their rails to the devices of a planned claim that ask for them; `others` are the records
        of all claims, `withheld` the addresses that must not be assigned now, although no claim has them.

        Must be called before the record is written; `release` takes the addresses back. Raises Refused, and Busy if a
        range is exhausted."""
        asking = [device for device in record.held if device.config.get(rails.FIELD) is True]
        if not asking:
            return
        wanted = [(device, _ranges_for(device, ranges)) for device in asking]
        assignments = self._current(record.uid, others)
        taken = {*assignments.held, *withheld}
        for device, own in wanted:
            given = []
            for one in own:
                address = _choose(one, assignments, taken)
                taken.add(address)
                assignments.held[address] = record.uid
                given.append(rails.make_rail_address(one, address))
            device.config = {**device.config, rails.FIELD: given}
        left = [address for address in assignments.freed if address not in assignments.held]
        assignments.freed = [address for address in left if any(_usable(one, address) for one in ranges)]
        self._write(assignments)

    def has_addresses(self, uid: str) -> bool:
        """Whether a claim has addresses. The caller holds the claim's lock; no other lock is needed."""
        return uid in self._read().held.values()

    def release(self, uid: str) -> None:
        """Take back the addresses of a claim whose record has been removed. A claim without addresses is not an
        error."""
        assignments = self._read()
        if uid in assignments.held.values():
            _return_addresses(assignments, {uid})
            self._write(assignments)

    def sweep(self) -> None:
        """Take back the addresses of claims without a record: the driver was killed right after it had removed it."""
        assignments = self._read()
        gone = self._claims_without_record(assignments)
        if gone:
            _return_addresses(assignments, gone)
            self._write(assignments)

    def _claims_without_record(self, assignments: _Assignments) -> set[str]:
        """The claims without a record, except claims whose record was damaged in this boot: they may still have a
        pod."""
        uids = set(assignments.held.values())
        return {uid for uid in uids if not self._store.known(uid, set_aside=assignments.boot == self._boot)}

    def _current(self, uid: str, others: t.Iterable[Record]) -> _Assignments:
        """The content of the file, with the addresses in the records `others`, but without those of the claim `uid` and
        of claims without a record."""
        assignments = self._read()
        _return_addresses(assignments, {*self._claims_without_record(assignments), uid})
        for record in others:
            for device in record.held if record.uid != uid else ():
                for one in rails.rail_addresses(device.config):
                    assignments.held[one["address"].partition("/")[0]] = record.uid
        return assignments

    def _read(self) -> _Assignments:
        """Raises DriverError if the file cannot be read. A damaged file counts as empty: the records have the addresses
        in use."""
        try:
            content = self._path.read_bytes()
            value = bounded_json.loads(content, FILE_BYTES)
            boot, held, freed = value["boot"], value["held"], value["freed"]
            texts = [boot, *held, *held.values(), *freed]
            if not isinstance(freed, list) or not all(isinstance(one, str) for one in texts):
                raise ValueError("it has values of other types")
        except FileNotFoundError:
            return _Assignments(self._boot)
        except OSError as error:
            raise DriverError(f"could not read {self._path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("%s is damaged, so the order in which addresses were returned is lost: %s", self._path, error)
            return _Assignments(self._boot)
        return _Assignments(boot, held, list(dict.fromkeys(freed)))

    def _write(self, assignments: _Assignments) -> None:
        value = {"boot": self._boot, "held": assignments.held, "freed": assignments.freed}
        try:
            content = (json.dumps(value) + "\n").encode()
            files.replace(self._path, content, 0o600, files.PowerCut.KEEPS_EITHER)
        except OSError as error:
            raise DriverError(f"could not write {self._path}: {error}") from error


def _return_addresses(assignments: _Assignments, uids: t.Container[str]) -> None:
    back = [address for address, uid in assignments.held.items() if uid in uids]
    for address in back:
        del assignments.held[address]
    assignments.freed = [*(one for one in assignments.freed if one not in back), *back]


def _choose(one: RailRange, assignments: _Assignments, taken: t.Collection[str]) -> str:
    """An address that was never used; if there is none, the one that was returned first. Raises Busy."""
    freed = set(assignments.freed)
    for address in map(str, one.addresses()):
        if address not in taken and address not in freed:
            return address
    for text in assignments.freed:
        if text not in taken and _usable(one, text):
            return text
    holders = {uid for address, uid in assignments.held.items() if _usable(one, address)}
    withheld = sum(_usable(one, address) for address in taken if address not in assignments.held)
    but = f", except {withheld} that devices withheld from pods could still use" if withheld else ""
    raise Busy(
        f"all {one.usable} addresses of {one.range}, this node's on rail {one.rail}, are handed out, to devices of "
        f"{len(holders)} claims{but}: wait until pods end, or give the nodes more of them (per_node of the address "
        "plan)"
    )


def _usable(one: RailRange, text: str) -> bool:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text)
        return address in one.range and address not in one.reserved
    return False


def _ranges_for(device: DeviceRecord, ranges: t.Sequence[RailRange]) -> list[RailRange]:
    """The ranges of a device's rail, without families for which its configuration has addresses itself. Raises
    Refused."""
    field = f"configuration of request {device.request} ({device.device}).{rails.FIELD}"
    if not ranges:
        raise Refused(
            f"{field}: this node has no addresses for rails; the site plans them in dra_driver_rail_addresses"
        )
    rail = device.known.device.get("attributes", {}).get("rail", {}).get("int")
    if rail is None:
        raise Refused(f"{field}: the rail of the device is not known; the driver's setting rails states it")
    own = [one for one in ranges if one.rail == rail]
    if not own:
        raise Refused(f"{field}: this node has no addresses for rail {rail}, that of the device")
    config = device.config
    stated = {"ipv6" if ":" in address else "ipv4" for address in config.get("addresses", ())}
    left = [one for one in own if one.family not in stated | set(config.get("dhcp", ()))]
    if any(one.family == "ipv6" for one in left) and config.get("mtu", _LEAST_IPV6_MTU) < _LEAST_IPV6_MTU:
        raise Refused(f"{field}: IPv6 needs an mtu of {_LEAST_IPV6_MTU} or more, and the device gets {config['mtu']}")
    return left
