# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The value of stranded devices: the bandwidth that they publish, and their cost if the site sets prices."""

from __future__ import annotations

import sys
import typing as t
from dataclasses import dataclass, field

from ..kube import limits, quantity
from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.published import value_of
from ..scheduler.search_devices import attribute, identify
from ..vendors.drivers import DRIVERS
from ..vendors.offer import Offer
from .fleet import Fleet
from .stranded import Stranded

#: The capacity with a NIC's bandwidth in bits per second, and the attribute with its speed in megabits per second.
BANDWIDTH, SPEED = "bandwidth", "linkSpeedMbps"


@dataclass(frozen=True)
class Price:
    """The price, in the site's unit, of each device of a driver that has these attribute values."""

    driver: str
    price: float
    attributes: t.Mapping[str, str | int | bool]

    def applies_to(self, offer: Offer) -> bool:
        """Whether this is a price of the device."""
        return offer.driver == self.driver and all(
            value_of(attribute(offer, name if "/" in name else f"{self.driver}/{name}")) == value
            for name, value in self.attributes.items()
        )


@dataclass(frozen=True)
class DeviceValue:
    """The bandwidth of a device in gigabits per second, and its cost. Each is None if unknown."""

    gbps: float | None
    cost: float | None


@dataclass(frozen=True)
class StrandedValue:
    """The value of several devices: their number, and the sums of their bandwidth and cost.

    `gbps` is in gigabits per second. The bandwidth of a link counts once for all devices of a NIC: the NIC as a whole,
    the device for its shares, and its VFs. `cost` is None if the site sets no prices. `unpriced` is the number of
    devices without a price. `by_device` has the value of each device by node and `driver/pool/device`.
    """

    devices: int
    gbps: float
    cost: float | None
    unpriced: int
    by_device: t.Mapping[tuple[str, str], DeviceValue] = field(default_factory=dict)


def prices(entries: t.Sequence[ObjectView], path: str = "prices") -> list[Price]:
    """The prices of a site, from mappings with `driver`, `price` and `attributes`. Raises Problems."""
    price_list, problems = [], []
    for number, entry in enumerate(entries):
        entry_path = f"{path}[{number}]"
        price, attributes = entry.get("price"), entry.get("attributes") or {}
        if set(entry) - {"driver", "price", "attributes"} or not entry.get("driver"):
            problems.append(Problem(entry_path, "must have driver and price, and may have attributes", "bad-price", ""))
        elif isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price <= sys.float_info.max:
            problems.append(Problem(f"{entry_path}.price", f"{price!r} is not a non-negative number", "bad-price", ""))
        elif not isinstance(attributes, dict):
            problems.append(Problem(f"{entry_path}.attributes", "is not a mapping", "wrong-type", ""))
        else:
            price_list.append(Price(str(entry["driver"]), float(price), attributes))
    if problems:
        raise Problems(problems)
    return price_list


def stranded_value(
    fleet: Fleet, stranded_devices: t.Sequence[Stranded], price_list: t.Sequence[Price]
) -> StrandedValue:
    """The value of the devices that are certainly stranded; uncertain ones are left out.

    The price of a device is the first of the list that applies to it.
    """
    certain = {(stranded.node, stranded.device) for stranded in stranded_devices if stranded.certain}
    by_device: dict[tuple[str, str], DeviceValue] = {}
    links: dict[tuple[str, str], float] = {}  # by node and PCI address (of the PF), or `driver/pool/device` without one
    for node in fleet.nodes.values():
        for offer in node.offers:
            key = (node.name, "/".join(identify(offer)))
            if key in certain:
                cost = next((price.price for price in price_list if price.applies_to(offer)), None)
                value = DeviceValue(_gbps(offer), cost)
                by_device[key] = value
                link = (node.name, _pf_address(offer) or offer.address or key[1])
                links[link] = max(links.get(link, 0.0), value.gbps or 0.0)
    total_cost = round(sum(value.cost or 0 for value in by_device.values()), 2) if price_list else None
    unpriced = sum(value.cost is None for value in by_device.values()) if price_list else 0
    return StrandedValue(len(by_device), round(sum(links.values()), 3), total_cost, unpriced, by_device)


def _pf_address(offer: Offer) -> str:
    """The PCI address of a VF's PF; empty if the device is no VF or its driver does not publish the address."""
    driver = DRIVERS.get(offer.driver)
    address = value_of(attribute(offer, driver.pf_address)) if driver and driver.pf_address else None
    return address.lower() if isinstance(address, str) else ""


def _gbps(offer: Offer) -> float | None:
    """The published bandwidth of a device in gigabits per second; None if it publishes none, or one that no link has
    (negative, or more than 64 bits)."""
    entry = (offer.device.get("capacity") or {}).get(BANDWIDTH)
    if entry:
        bits = quantity.parse(entry["value"])
        return round(float(bits) / 1e9, 3) if 0 <= bits <= limits.INT64_MAX else None
    mbps = value_of(attribute(offer, f"{offer.driver}/{SPEED}"))
    if isinstance(mbps, bool) or not isinstance(mbps, int) or not 0 <= mbps <= limits.INT64_MAX:
        return None
    return round(mbps / 1e3, 3)
