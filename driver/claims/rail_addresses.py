# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hands out addresses of the node's ranges to devices of claims, and takes them back.

The claims' records say which claim has an address. A separate file says it too, from before a record is written until
after it is removed, so no two claims get the same address, whenever the driver is killed. The file also lists the
returned addresses in order: addresses that were never used are handed out first, then the one that was returned first.
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
class _Order:
    """The content of the file: by address the UID of the claim that has it, and the returned addresses, the first one
    first. `boot` is the boot in which it was written."""

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
        kept: t.Collection[str] = (),
    ) -> None:
        """Give addresses of their rails to the devices of a planned claim that ask for them; `others` are the records
        of all claims, `kept` the addresses that nobody may get now, although no claim has them.

        Must be called before the record is written; `release` takes the addresses back. Raises Refused, and Busy if a
        range is exhausted."""
        asking = [device for device in record.held if device.config.get(rails.FIELD) is True]
        if not asking:
            return
        wanted = [(device, _ranges_for(device, ranges)) for device in asking]
        order = self._current(record.uid, others)
        taken = {*order.held, *kept}
        for device, own in wanted:
            given = []
            for one in own:
                address = _choose(one, order, taken)
                taken.add(address)
                order.held[address] = record.uid
                given.append(rails.handed_out(one, address))
            device.config = {**device.config, rails.FIELD: given}
        left = [address for address in order.freed if address not in order.held]
        order.freed = [address for address in left if any(_usable(one, address) for one in ranges)]
        self._write(order)

    def holds(self, uid: str) -> bool:
        """Whether a claim has addresses. Needs no lock if the caller has the claim's."""
        return uid in self._read().held.values()

    def release(self, uid: str) -> None:
        """Take back the addresses of a claim whose record is removed. Nothing if it has none."""
        order = self._read()
        if uid in order.held.values():
            _free(order, {uid})
            self._write(order)

    def sweep(self) -> None:
        """Take back the addresses of claims without a record: the driver was killed just after it had removed that."""
        order = self._read()
        gone = self._gone(order)
        if gone:
            _free(order, gone)
            self._write(order)

    def _gone(self, order: _Order) -> set[str]:
        """The claims without a record. One whose record was damaged in this boot may still have its pod."""
        uids = set(order.held.values())
        return {uid for uid in uids if not self._store.known(uid, set_aside=order.boot == self._boot)}

    def _current(self, uid: str, others: t.Iterable[Record]) -> _Order:
        """The content of the file, with the addresses in the records `others`, but without those of the claim `uid` and
        of claims without a record."""
        order = self._read()
        _free(order, {*self._gone(order), uid})
        for record in others:
            for device in record.held if record.uid != uid else ():
                for one in rails.of(device.config):
                    order.held[one["address"].partition("/")[0]] = record.uid
        return order

    def _read(self) -> _Order:
        """Raises DriverError if the file cannot be read. A damaged one counts as empty: the records have the addresses
        that are in use."""
        try:
            content = self._path.read_bytes()
            value = bounded_json.loads(content, FILE_BYTES)
            boot, held, freed = value["boot"], value["held"], value["freed"]
            texts = [boot, *held, *held.values(), *freed]
            if not isinstance(freed, list) or not all(isinstance(one, str) for one in texts):
                raise ValueError("it has values of other types")
        except FileNotFoundError:
            return _Order(self._boot)
        except OSError as error:
            raise DriverError(f"could not read {self._path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("%s is damaged, so the order in which addresses came back is lost: %s", self._path, error)
            return _Order(self._boot)
        return _Order(boot, held, list(dict.fromkeys(freed)))

    def _write(self, order: _Order) -> None:
        value = {"boot": self._boot, "held": order.held, "freed": order.freed}
        try:
            content = (json.dumps(value) + "\n").encode()
            files.replace(self._path, content, 0o600, files.PowerCut.KEEPS_EITHER)
        except OSError as error:
            raise DriverError(f"could not write {self._path}: {error}") from error


def _free(order: _Order, uids: t.Container[str]) -> None:
    back = [address for address, uid in order.held.items() if uid in uids]
    for address in back:
        del order.held[address]
    order.freed = [*(one for one in order.freed if one not in back), *back]


def _choose(one: RailRange, order: _Order, taken: t.Collection[str]) -> str:
    """An address that was never used, or else the one that was returned first. Raises Busy."""
    freed = set(order.freed)
    for address in map(str, one.addresses()):
        if address not in taken and address not in freed:
            return address
    for text in order.freed:
        if text not in taken and _usable(one, text):
            return text
    holders = {uid for address, uid in order.held.items() if _usable(one, address)}
    kept = sum(_usable(one, address) for address in taken if address not in order.held)
    but = f", except {kept} that devices withheld from pods could still use" if kept else ""
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
