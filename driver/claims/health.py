# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The health of devices. For devices on the node it is derived from the publication, for devices in pods it is read
from the pod's network namespace."""

from __future__ import annotations

import time
import typing as t
from pathlib import Path

from ..base import calls
from ..base.calls import DeviceHealth
from ..base.errors import KernelError
from ..base.objects import Object
from ..interface import interfaces
from ..topology import publish
from . import claim_status
from .claim_status import HealthProblem
from .records import DETACHING, PREPARED, DeviceKey, Record

_MISSING = "the device is no longer on the node"


def devices(
    node: str,
    publication: publish.Publication,
    records: t.Iterable[Record],
    problems: t.Mapping[str, t.Mapping[DeviceKey, HealthProblem]],
) -> list[DeviceHealth]:
    """The health of all devices. `problems` are those of devices in pods, by claim and by device or share.

    A device is unhealthy if its link is down or was set down, if it is not where it should be (on the node, or in its
    pod), if another machine has its address, if its pod cannot be checked, or if its original state could not be
    restored.
    """
    now = time.time()
    published = {device["name"]: _published_problem(device) for device in publication.devices}
    by_device = {name: _health(node, name, now, message) for name, message in published.items()}
    for record in records:
        for held_device in record.held:
            name = held_device.device
            if name in published and (record.phase == PREPARED or held_device.share):
                continue  # what is published decides: the device is on the node, or the claim has only a share of it
            problem = problems.get(record.uid, {}).get(held_device.key)
            message = problem.message if problem else ""
            if not message and record.phase == DETACHING:
                message = "the device has not returned to the node yet"
            elif not message and published.get(name) == _MISSING:
                message = _MISSING
            if message or name in published or name not in by_device:  # a problem of one of several shares stays
                by_device[name] = _health(held_device.pool, name, now, message)
    return list(by_device.values())


def _published_problem(device: Object) -> str:
    """The problem of a published device, by its taints; empty without one."""
    taints = {taint["key"] for taint in device.get("taints", ())}
    if publish.UNCLEAN in taints:
        state = "the original state of the device, or of its NIC, could not be restored after a pod used it"
        return f"{state}; the device is withheld from pods"
    if publish.MISSING in taints:
        return _MISSING
    return "the link is down" if publish.LINK_DOWN in taints else ""


def _health(pool: str, device: str, now: float, message: str) -> DeviceHealth:
    return DeviceHealth(pool, device, calls.UNHEALTHY if message else calls.HEALTHY, now, message)


def in_pod(record: Record, pin: Path, previous: t.Mapping[DeviceKey, HealthProblem]) -> dict[DeviceKey, HealthProblem]:
    """The current problems of the devices in a claim's pod, by device or share. A problem that is already in
    `previous` keeps the time at which it was first found."""
    problems: dict[DeviceKey, HealthProblem] = {}
    for device in record.held:
        if not device.interface or device.host is None:
            continue
        try:
            message = interfaces.health_problem(device.known.identity, device.host, device.config, pin)
        except KernelError as error:
            message = error.message
        old = previous.get(device.key)
        if message:
            problems[device.key] = old if old and old.message == message else HealthProblem(message, claim_status.now())
    return problems
