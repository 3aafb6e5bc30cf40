# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Devices whose original state could not be restored after a pod used them. They are withheld from pods, with the
reason, until that state is restored.

There is one JSON file for each such device, written before its claim's record is removed. After a reboot every
interface is new, so files of an earlier boot are removed. While an ended pod could still use a device, the device's
file contains the addresses of rails that the claim had, and these are not assigned again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
import typing as t
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..base import files
from ..base.errors import Busy, DriverError
from ..base.objects import Object, ObjectView
from ..dra.kube.bounded_json import loads
from ..interface import take_back
from ..interface.children import Siblings
from ..interface.host_state import HostState
from ..publish.device import Device
from ..topology.publish_shares import base_name
from ..topology.stored import Formats
from .records import Record

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUFFIX = ".json"
#: The first files had no schema number.
_FORMATS = Formats("schema", unnumbered=1)
#: Seconds between two attempts to restore a device.
_INTERVAL = 30.0
#: Maximum number of reasons that are kept for a device.
_MAX_REASONS = 20
#: Fields that a file need not have, with their defaults.
_OPTIONAL: Object = {"config": {}, "addresses": []}


@dataclass
class UncleanDevice:
    """One device. `word` is the reason in one word, for the taint. `known` is the device as it was published, and
    `host` its original state; both are None if the file cannot be read, and then the device cannot be restored.
    `config` is the configuration of a claim that had a child of the device, `addresses` are the addresses that are not
    assigned."""

    device: str
    word: str
    reasons: list[str]
    known: Device | None
    host: HostState | None
    boot: str
    config: Object = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)

    @property
    def lock(self) -> str:
        """The name of the lock for operations on the device (`records.DeviceRecord.lock`)."""
        return (self.known and (self.known.pf or self.known.address)) or self.device

    @property
    def text(self) -> str:
        """The reasons, as one line."""
        more = f" (and {len(self.reasons) - 3} more)" if len(self.reasons) > 3 else ""
        withheld = f"; until then not assigned: {', '.join(self.addresses)}" if self.addresses else ""
        return "; ".join(self.reasons[:3]) + more + withheld

    def as_json(self) -> Object:
        """The content of the device's file."""
        content = {**asdict(self), "known": self.known.as_json() if self.known else {}}
        return {name: value for name, value in content.items() if value or name not in _OPTIONAL}


def _read(content: bytes) -> UncleanDevice:
    """The entry in a file of this or another release; unknown fields are ignored. Raises ValueError."""
    value = _FORMATS.read(loads(content))
    fields = {"device": str, "word": str, "reasons": list, "known": dict, "host": dict, "boot": str}
    if not all(isinstance(value.get(name), form) for name, form in fields.items()):
        raise ValueError(f"it must have the fields {', '.join(fields)}")
    optional: Object = {name: value.get(name, empty) for name, empty in _OPTIONAL.items()}
    if not all(isinstance(optional[name], type(empty)) for name, empty in _OPTIONAL.items()):
        raise ValueError("config must be a mapping, and addresses a list")
    if not all(isinstance(text, str) for texts in (value["reasons"], optional["addresses"]) for text in texts):
        raise ValueError("reasons and addresses must be lists of strings")
    required: Object = {name: value[name] for name in fields}
    return UncleanDevice(**{**required, **optional, "known": Device.from_json(value["known"])})


def _remove(path: Path) -> None:
    """Remove a device's file if it exists. Raises DriverError."""
    try:
        files.remove(path)
    except OSError as error:
        raise DriverError(f"could not remove {path}, so its device stays withheld from pods: {error}") from error


class UncleanDevices:
    """The files in a folder. Safe for several processes, if callers hold the device's lock."""

    def __init__(self, folder: Path, boot: str) -> None:
        self._folder = folder
        self._boot = boot
        #: When each device was last tried, in seconds of time.monotonic.
        self._tried: dict[str, float] = {}

    def record_outcome(
        self,
        device: str,
        known: Device,
        host: HostState,
        outcome: take_back.Outcome,
        config: ObjectView | None = None,
        addresses: t.Sequence[str] = (),
    ) -> str:
        """Record the outcome of taking back a device, or with `config` a child of the device. `addresses` are those of
        rails that the claim had. Returns why the device is withheld from pods now, or an empty string. An entry with an
        older host state stays, whatever the outcome is. Raises DriverError."""
        path = self._path(device)
        older = self._older_entry(device, host, config)
        if not outcome.reasons:
            if older is None:
                _remove(path)
            return ""  # `retry` checks whether the existing entry still applies
        reasons = [reason.text for reason in outcome.reasons[:_MAX_REASONS]]
        entry = UncleanDevice(device, outcome.reasons[0].word, reasons, known, host, self._boot, dict(config or {}))
        if entry.word == take_back.STACKED:
            entry.addresses = list(addresses)
        if older is not None:
            if older.host is None:
                return older.text  # the older host state cannot be read
            # keep the older host state: the newer one includes the changes since then
            entry.host, entry.config = older.host, older.config
            entry.addresses = list(dict.fromkeys([*older.addresses, *entry.addresses]))
        return self._write(entry, path)

    def _older_entry(self, device: str, host: HostState, config: ObjectView | None) -> UncleanDevice | None:
        """The existing entry of a device; None if there is none, or if it has the same host state.

        If either outcome is that of a child, an existing entry is always returned: the child may have belonged to
        another claim, and removing a child does not restore the settings of its parent.
        """
        entry = self.all().get(device)
        if entry is None:
            return None
        if entry.host == json.loads(json.dumps(host)) and not config and not entry.config:
            return None
        return entry

    def _write(self, entry: UncleanDevice, path: Path) -> str:
        """Write an entry and return its text. Raises DriverError."""
        try:
            files.replace(path, json.dumps(_FORMATS.write(entry.as_json()), sort_keys=True, indent=1).encode(), 0o600)
        except OSError as error:
            raise DriverError(
                f"could not record that {entry.device} must be withheld from pods ({entry.text}): {error}"
            ) from error
        return entry.text

    def all(self) -> dict[str, UncleanDevice]:
        """The entries by device name, including an entry for each file that cannot be read. Files of an earlier boot
        are removed."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        entries = {}
        for name in names:
            device = name.removesuffix(_SUFFIX)
            if not name.endswith(_SUFFIX) or not _NAME.fullmatch(device):
                continue
            try:
                entry = _read((self._folder / name).read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = f"{self._folder / name} cannot be read: {error}; reboot the node, then remove the file"
                entry = UncleanDevice(device, take_back.CHANGED, [reason], None, None, self._boot)
            if entry.boot == self._boot:
                entries[device] = entry
            else:
                with contextlib.suppress(OSError):  # the next call tries again
                    files.remove(self._folder / name)
        return entries

    def by_nic(self) -> dict[str, UncleanDevice]:
        """One entry for each device on the node. Earlier releases named the entry of a macvlan share after the device
        for shares; here it has the name of the NIC."""
        return {base_name(device): entry for device, entry in sorted(self.all().items(), reverse=True)}

    def check(self, record: Record) -> None:
        """Check that none of a claim's devices is withheld. Raises Busy for the first one that is."""
        entries = self.by_nic()
        for device in record.held:
            for name in device.withheld_with:
                if name in entries:
                    state = "its original state" if name == device.device else f"the original state of {name}"
                    message = f"{device.device} is withheld from pods until {state} is restored"
                    raise Busy(f"{message}: {entries[name].text}")

    def addresses(self) -> set[str]:
        """The addresses of rails that ended pods could still use, although no claim has them."""
        return {address for entry in self.all().values() for address in entry.addresses}

    def retry(self, entry: UncleanDevice, siblings: Siblings | None = None) -> bool:
        """Try to restore a device. No claim may hold the device, but claims may have children of it (`siblings`).
        Returns whether its state is restored. Does not try, and returns False, if the last attempt was less than
        _INTERVAL seconds ago or if the file could not be read. Raises DriverError."""
        now = time.monotonic()
        if entry.known is None or entry.host is None or now - self._tried.get(entry.device, -_INTERVAL) < _INTERVAL:
            return False
        self._tried[entry.device] = now
        outcome = take_back.take_back(  # without a timeout, as there is a next attempt
            entry.known.identity, entry.host, None, entry.config, timeout=0, siblings=siblings or {}
        )
        if outcome.reasons:
            self.record_outcome(entry.device, entry.known, entry.host, outcome, entry.config, entry.addresses)
            return False
        _remove(self._path(entry.device))
        log.info("the original state of %s is restored; it is available to pods again", entry.device)
        return True

    def _path(self, device: str) -> Path:
        if not _NAME.fullmatch(device):
            raise DriverError(f"{device!r} is not a valid device name")
        return self._folder / f"{device}{_SUFFIX}"
