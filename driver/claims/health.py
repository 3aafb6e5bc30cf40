# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device health: from the published state for devices on the node, from their namespaces for devices in pods."""

from __future__ import annotations

import time
import typing as t
from pathlib import Path

from ..base import calls
from ..base.calls import DeviceHealth
from ..base.errors import KernelError
from ..interface import interfaces
from ..topology import publish
from . import claim_status
from .claim_status import HealthProblem
from .records import DETACHING, PREPARED, DeviceKey, Record


def devices(
    node: str,
    publication: publish.Publication,
    records: t.Iterable[Record],
    problems: t.Mapping[str, t.Mapping[DeviceKey, HealthProblem]],
) -> list[DeviceHealth]:
    """The health of all devices. A device is unhealthy if its link is down, on the node or in a pod, if it is neither
    on the node nor in its pod, or if its original state could not be restored. `problems` are those of devices in pods,
    by claim and device or share."""
    now = time.time()
    found = {}
    for device in publication.devices:
        taints = {taint["key"] for taint in device.get("taints", ())}
        message = "its link is down" if taints & {publish.LINK_DOWN, publish.MISSING} else ""
        if publish.UNCLEAN in taints:
            message = "its original state could not be restored after a pod had it; it is withheld from pods"
        found[device["name"]] = _health(node, device["name"], now, message)
    for record in records:
        for one in record.held:
            if one.device in found and (record.phase == PREPARED or one.share):
                continue  # the device is on the node, or the claim has only a share of it
            message = "it could not be taken back to the node" if record.phase == DETACHING else ""
            problem = problems.get(record.uid, {}).get(one.key)
            found[one.device] = _health(one.pool, one.device, now, problem.message if problem else message)
    return list(found.values())


def _health(pool: str, device: str, now: float, message: str) -> DeviceHealth:
    return DeviceHealth(pool, device, calls.UNHEALTHY if message else calls.HEALTHY, now, message)


def in_pod(record: Record, pin: Path, known: t.Mapping[DeviceKey, HealthProblem]) -> dict[DeviceKey, HealthProblem]:
    """The current problems of the devices in a claim's pod, by device or share; `known` are the previous ones."""
    found: dict[DeviceKey, HealthProblem] = {}
    for device in record.held:
        if not device.interface or device.host is None:
            continue
        try:
            message = interfaces.health_problem(device.known.identity, device.host, device.config, pin)
        except KernelError as error:
            message = error.message
        old = known.get(device.key)
        if message:
            found[device.key] = old if old and old.message == message else HealthProblem(message, claim_status.now())
    return found
