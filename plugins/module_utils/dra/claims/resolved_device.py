# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a device of the inventory is on a site."""

from __future__ import annotations

from dataclasses import dataclass

from ..vendors.knowledge import DriverKnowledge
from .class_policy import ClassTerms
from .inventory import Device


@dataclass
class ResolvedDevice:
    """A device of the inventory with its class, driver, selectors and capacities on this site.

    Each selector has its path in the inventory. `driver` is None if the class does not belong to the site and the
    inventory does not name its driver.
    """

    device: Device
    class_name: str
    kind: str
    driver: DriverKnowledge | None
    selectors: list[tuple[str, str]]
    capacity: dict[str, str]
    #: What its class sets, and lets claims set; None if the class does not belong to the site.
    terms: ClassTerms | None = None
