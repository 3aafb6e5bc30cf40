# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Converts a hold to DeviceTaintRules, one for each device, and reads holds from such rules.

The name of a rule is a hash of the device alone. Names are unique on a server, so two holds never have the same device,
even if two runs make them at the same time. Source: k8s.io/api/resource/v1 (DeviceTaintRule, DeviceTaintSelector).
"""

from __future__ import annotations

import hashlib
import re
import typing as t
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from ..kube import limits
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem, Problems

#: Driver, pool and device.
DeviceId = tuple[str, str, str]

#: The key of the taint and of the label; the value of both is the name of the hold.
KEY = "lanewise.dev/hold"
EFFECT = "NoSchedule"
OWNER, REASON, EXPIRES, PURPOSE = (f"{KEY}-{name}" for name in ("owner", "reason", "expires", "purpose"))
#: The purpose of a hold: a reservation for a later job; defragmentation, where pods are moved for the job; or a swap,
#: where pods are evicted to make room for pods of a tier.
RESERVE, DEFRAGMENT, SWAP = "reserve", "defragment", "swap"
#: The maximum length of an owner or reason, number of devices of a hold, and time until a hold expires.
MAX_TEXT_BYTES, MAX_DEVICES, MAX_DAYS = 256, 4096, 366
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Hold:
    """Devices that are reserved for one job.

    `expires` is in UTC; None if a rule has no expiry, which happens if another program wrote it. `rules` are the names
    of the DeviceTaintRules. A hold remains until it is released, even after it has expired.
    """

    name: str
    owner: str
    reason: str
    expires: datetime | None
    devices: tuple[DeviceId, ...] = ()
    purpose: str = RESERVE
    rules: tuple[str, ...] = ()

    def overdue(self, now: datetime) -> bool:
        """Whether the hold has expired, or has no expiry."""
        return self.expires is None or self.expires <= now

    def title(self) -> str:
        """The name, owner, expiry and reason of the hold in one line."""
        until = f"until {format_time(self.expires)}" if self.expires else "without an expiry"
        reason = f" ({self.reason})" if self.reason else ""
        return f"hold {self.name} of {self.owner or 'an unknown owner'}, {until}{reason}"

    def as_dict(self, now: datetime) -> Object:
        """The hold as modules return it; devices as `driver/pool/device`."""
        return {
            "name": self.name,
            "owner": self.owner,
            "reason": self.reason,
            "expires": format_time(self.expires) if self.expires else None,
            "purpose": self.purpose,
            "overdue": self.overdue(now),
            "devices": ["/".join(device) for device in self.devices],
        }


def parse_time(text: str) -> datetime:
    """A time such as 2026-12-01T08:00:00Z, in UTC. Raises ValueError."""
    return datetime.strptime(text, _TIME).replace(tzinfo=timezone.utc)


def format_time(when: datetime) -> str:
    """A time in the format of `parse_time`."""
    return when.strftime(_TIME)


def parse_device(text: str) -> DeviceId:
    """A device from `driver/pool/device`. Pool names may contain slashes. Raises ValueError."""
    driver, _slash, rest = text.partition("/")
    pool, _slash, name = rest.rpartition("/")
    if not (driver and pool and name):
        raise ValueError(f"{text!r} is not driver/pool/device")
    return driver, pool, name


def check(hold: Hold, now: datetime) -> None:
    """Check a hold that is to be made. Raises Problems with all errors."""
    problems = []
    name_error = limits.label_value(hold.name) or ("" if hold.name else "must not be empty")
    if name_error:
        problems.append(Problem("name", name_error, "bad-name", "use letters, digits and '-'"))
    for field, text in (("owner", hold.owner), ("reason", hold.reason)):
        if not text.strip():
            problems.append(
                Problem(field, "must not be empty", "missing", "drift.yml shows it when the hold is overdue")
            )
        elif limits.size(text) > MAX_TEXT_BYTES or _UNPRINTABLE.search(text):
            problems.append(Problem(field, f"must be one line of at most {MAX_TEXT_BYTES} bytes", "bad-text"))
    if hold.expires is None:
        problems.append(Problem("expires", "must be given", "missing", "drift.yml reports a hold after its expiry"))
    elif not now < hold.expires <= now + timedelta(days=MAX_DAYS):
        problems.append(Problem("expires", f"must be in the future, at most {MAX_DAYS} days from now", "bad-time"))
    if not hold.devices:
        problems.append(Problem("devices", "must not be empty", "missing", "to keep no device, release the hold"))
    if len(hold.devices) > MAX_DEVICES:
        problems.append(
            Problem("devices", f"must have at most {MAX_DEVICES} entries, as each needs a rule", "too-many")
        )
    problems += [
        Problem("devices", f"{'/'.join(device)}: {error}", "bad-device")
        for device in hold.devices
        for error in _device_errors(device)
        if error
    ]
    if problems:
        raise Problems(problems)


def _device_errors(device: DeviceId) -> list[str]:
    """The errors of the driver, the pool and the name of a device; each is empty if there is none."""
    driver, pool, name = device
    return [limits.driver_name(driver), limits.pool_name(pool), limits.dns_label(name)]


def rule_name(device: DeviceId) -> str:
    """The name of the DeviceTaintRule that holds a device; the same whichever hold has the device."""
    return f"lanewise-hold-{hashlib.sha256('/'.join(device).encode()).hexdigest()[:40]}"


def rule(hold: Hold, device: DeviceId, api_version: str) -> Object:
    """The DeviceTaintRule that holds one device."""
    device_rule = taint_rule(hold, device, rule_name(device), (KEY, EFFECT), api_version)
    device_rule["metadata"]["annotations"][PURPOSE] = hold.purpose
    return device_rule


def taint_rule(hold: Hold, device: DeviceId, name: str, taint: tuple[str, str], api_version: str) -> Object:
    """A DeviceTaintRule with this name for one device of a hold. `taint` has the key and the effect of its taint."""
    driver, pool, device_name = device
    key, effect = taint
    annotations = {OWNER: hold.owner, REASON: hold.reason}
    if hold.expires:
        annotations[EXPIRES] = format_time(hold.expires)
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": name, "labels": {key: hold.name}, "annotations": annotations},
        "spec": {
            "deviceSelector": {"driver": driver, "pool": pool, "device": device_name},
            "taint": {"key": key, "value": hold.name, "effect": effect},
        },
    }


def holds(rules: t.Iterable[ObjectView]) -> list[Hold]:
    """The holds in these DeviceTaintRules, sorted by name. Rules with other taints are ignored.

    The name of a hold is read from the taint of a rule, not from its label. If the rules of a hold differ, for example
    after a killed run, the earliest expiry counts, and owner, reason and purpose are those of the first rule.
    """
    holds_by_name: dict[str, Hold] = {}
    for device_rule in sorted(rules, key=lambda device_rule: str(device_rule["metadata"].get("name"))):
        hold = _hold_of_rule(device_rule)
        if hold is None:
            continue
        earlier = holds_by_name.get(hold.name)
        holds_by_name[hold.name] = hold if earlier is None else _merged(earlier, hold)
    return [holds_by_name[name] for name in sorted(holds_by_name)]


def _hold_of_rule(device_rule: ObjectView) -> Hold | None:
    """The hold with the device of this rule alone; None for a rule with another taint."""
    taint = (device_rule.get("spec") or {}).get("taint") or {}
    if taint.get("key") != KEY:
        return None
    selector = (device_rule["spec"].get("deviceSelector")) or {}
    annotations: ObjectView = device_rule["metadata"].get("annotations") or {}
    try:
        expires: datetime | None = parse_time(str(annotations.get(EXPIRES)))
    except ValueError:
        expires = None
    return Hold(
        printable(taint.get("value") or ""),
        printable(annotations.get(OWNER) or ""),
        printable(annotations.get(REASON) or ""),
        expires,
        # a rule of another program may hold a whole pool or driver
        ((str(selector.get("driver") or "*"), str(selector.get("pool") or "*"), str(selector.get("device") or "*")),),
        printable(annotations.get(PURPOSE) or RESERVE),
        (str(device_rule["metadata"]["name"]),),
    )


def _merged(first: Hold, other: Hold) -> Hold:
    if first.expires is None or other.expires is None:
        expires = None
    else:
        expires = min(first.expires, other.expires)
    devices, rules = (*first.devices, *other.devices), (*first.rules, *other.rules)
    return replace(first, expires=expires, devices=devices, rules=rules)


def printable(text: object) -> str:
    """Untrusted text as one printable line of bounded length."""
    return _UNPRINTABLE.sub("?", str(text))[:MAX_TEXT_BYTES]
