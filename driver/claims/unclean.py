# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Devices that came back from a pod in another state than they left: kept from everybody, with the reason, until they
are as they were.

One JSON file a device, written before the claim is forgotten. A boot makes every interface anew, so what an earlier one
wrote no longer holds.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import typing as t
from dataclasses import asdict, dataclass
from pathlib import Path

from ..base import files
from ..base.errors import DriverError, KernelError
from ..base.objects import Object
from ..dra.kube.bounded_json import loads
from ..interface import take_back
from ..interface.host_state import HostState
from ..publish.inventory import Device
from ..topology.stored import Forms

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUFFIX = ".json"
#: The first notes had no number.
_FORMS = Forms("schema", unnumbered=1)
#: How often a device is tried again that is not as it was, in seconds.
_INTERVAL = 30.0
#: How many reasons are kept of a device.
_MOST_REASONS = 20


@dataclass
class Entry:
    """C(word) is for the taint; C(known) is the inventory.Device, C(host) its host state."""

    device: str
    word: str
    reasons: list[str]
    known: Object
    host: Object
    boot: str

    @property
    def lock(self) -> str:
        """What claims lock that use the device (records.DeviceRecord)."""
        return str(self.known.get("pf") or self.known.get("address") or self.device)

    @property
    def text(self) -> str:
        """The reasons, as one line."""
        more = f" (and {len(self.reasons) - 3} more)" if len(self.reasons) > 3 else ""
        return "; ".join(self.reasons[:3]) + more


def _read(content: bytes) -> Entry:
    """An entry of this release or another, whose further fields are left out. Raises ValueError."""
    value = _FORMS.read(loads(content))
    wanted = {"device": str, "word": str, "reasons": list, "known": dict, "host": dict, "boot": str}
    if not all(isinstance(value.get(name), form) for name, form in wanted.items()):
        raise ValueError(f"it must have {', '.join(wanted)}")
    if not all(isinstance(reason, str) for reason in value["reasons"]):
        raise ValueError("reasons must be texts")
    return Entry(**{name: value[name] for name in wanted})


class Unclean:
    """The entries in a folder. Safe for several processes, as long as callers hold the device's lock."""

    def __init__(self, folder: Path, boot: str) -> None:
        self._folder = folder
        self._boot = boot
        self._tried: dict[str, float] = {}

    def settle(self, device: str, known: Object, host: Object, outcome: take_back.Outcome) -> str:
        """Notes what detach said of a device; why it is kept from everybody now, or nothing. Raises DriverError."""
        path = self._path(device)
        if not outcome.reasons:
            files.remove(path)
            return ""
        reasons = [reason.text for reason in outcome.reasons[:_MOST_REASONS]]
        entry = Entry(device, outcome.reasons[0].word, reasons, known, host, self._boot)
        try:
            files.replace(path, json.dumps(_FORMS.write(asdict(entry)), sort_keys=True, indent=1).encode(), 0o600)
        except OSError as error:
            raise DriverError(f"cannot note that {device} must not be given to others: {error}") from error
        return entry.text

    def all(self) -> dict[str, Entry]:
        """By device. A file that cannot be read keeps its device from everybody, too."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            device = name.removesuffix(_SUFFIX)
            if not name.endswith(_SUFFIX) or not _NAME.fullmatch(device):
                continue
            try:
                entry = _read((self._folder / name).read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                says = f"{self._folder / name} cannot be read: {error}; remove it once the node was restarted"
                entry = Entry(device, take_back.CHANGED, [says], {}, {}, self._boot)
            if entry.boot == self._boot:
                found[device] = entry
            else:
                files.remove(self._folder / name)
        return found

    def retry(self, entry: Entry) -> bool:
        """Tries to have a device as it was, which no claim may hold; whether it is. Does nothing where it was tried a
        moment ago. Raises KernelError."""
        now = time.monotonic()
        if not entry.known or now - self._tried.get(entry.device, -_INTERVAL) < _INTERVAL:
            return False
        self._tried[entry.device] = now
        try:
            identity = Device.from_json(entry.known).identity
        except ValueError as error:
            raise KernelError(f"look at {entry.device}", 0, f"its note cannot be used: {error}") from error
        outcome = take_back.take_back(
            identity, t.cast("HostState", entry.host), None, {}, patience=0
        )  # it is tried again
        if self.settle(entry.device, entry.known, entry.host, outcome):
            return False
        log.info("%s is as it was again, and is given to pods again", entry.device)
        return True

    def _path(self, device: str) -> Path:
        if not _NAME.fullmatch(device):
            raise DriverError(f"{device!r} is no name of a device")
        return self._folder / f"{device}{_SUFFIX}"
