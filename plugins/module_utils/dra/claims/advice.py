# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Warnings about values of an inventory that are valid, but often not intended."""

from __future__ import annotations

import typing as t

from ..kube.reader import child
from ..vendors.knowledge import LANEWISE, DriverKnowledge
from .inventory import Device


def capacity_warnings(device: Device, driver: DriverKnowledge | None, capacity: t.Mapping[str, str]) -> list[str]:
    """Warnings about the capacities that a device of the inventory requests, by the names that its driver publishes."""
    amount = capacity.get("bandwidth")
    if driver is None or driver.name != LANEWISE or not amount:
        return []
    path = child(device.path, "bandwidth" if device.bandwidth else "capacity")
    return [
        f"{path}: {LANEWISE} allocates whole NICs: this selects a NIC with at least {amount}, and the claim gets the "
        f"whole NIC; where: {{min_speed: {amount}}} requests the same, share: {{bandwidth: {amount}}} a part of a NIC"
    ]
