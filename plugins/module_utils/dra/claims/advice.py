# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Warnings: what is valid in an inventory, but often not what was meant."""

from __future__ import annotations

import typing as t

from ..kube.reader import child
from ..vendors.knowledge import OWN, DriverKnowledge
from .inventory import Device


def of_capacity(device: Device, driver: DriverKnowledge | None, capacity: t.Mapping[str, str]) -> list[str]:
    """Warnings about the capacities that a device of the inventory asks for, by the names that its driver publishes."""
    amount = capacity.get("bandwidth")
    if driver is None or driver.name != OWN or not amount:
        return []
    path = child(device.path, "bandwidth" if device.bandwidth else "capacity")
    return [
        f"{path}: {OWN} gives a NIC away whole: this chooses one with at least {amount}, and the claim gets all of it; "
        f"where: {{min_speed: {amount}}} asks for the same, and share: {{bandwidth: {amount}}} for a part of a NIC"
    ]
