# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What stranded devices are worth: the bandwidth that they publish, and money if the site sets prices."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field

from ..kube import quantity
from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.published import value_of
from ..scheduler.search_devices import attribute, identify
from ..vendors.offer import Offer
from .fleet import Fleet
from .stranded import Stranded

#: The capacity with a NIC's bandwidth in bits per second, and the attribute with its speed in megabits per second.
BANDWIDTH, SPEED = "bandwidth", "linkSpeedMbps"


@dataclass(frozen=True)
class Price:
    """The price of a device of a driver with these attribute values, in the site's unit."""

    driver: str
    price: float
    attributes: t.Mapping[str, str | int | bool]

    def applies_to(self, offer: Offer) -> bool:
        """Whether this is the price of a device."""
        return offer.driver == self.driver and all(
            value_of(attribute(offer, name if "/" in name else f"{self.driver}/{name}")) == value
            for name, value in self.attributes.items()
        )


@dataclass(frozen=True)
class Value:
    """What one device is worth: its bandwidth `gbps` and its price `money`. Each is None if it is unknown."""

    gbps: float | None
    money: float | None


@dataclass(frozen=True)
class Worth:
    """What several devices are worth. `gbps` are gigabits per second, `money` is None if the site sets no prices.

    `unpriced` is the number of devices without a price; `each` has the value of each device by its node and name. The
    bandwidth of a NIC that is published both as a whole and for shares counts once.
    """

    devices: int
    gbps: float
    money: float | None
    unpriced: int
    each: t.Mapping[tuple[str, str], Value] = field(default_factory=dict)


def prices(entries: t.Sequence[ObjectView], path: str = "prices") -> list[Price]:
    """The prices of a site: mappings with `driver`, `price` and `attributes`. Raises Problems."""
    found, problems = [], []
    for number, one in enumerate(entries):
        place = f"{path}[{number}]"
        price, attributes = one.get("price"), one.get("attributes") or {}
        if set(one) - {"driver", "price", "attributes"} or not one.get("driver"):
            problems.append(Problem(place, "must have driver and price, and may have attributes", "bad-price", ""))
        elif isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
            problems.append(Problem(f"{place}.price", f"{price!r} is not a non-negative number", "bad-price", ""))
        elif not isinstance(attributes, dict):
            problems.append(Problem(f"{place}.attributes", "is not a mapping", "wrong-type", ""))
        else:
            found.append(Price(str(one["driver"]), float(price), attributes))
    if problems:
        raise Problems(problems)
    return found


def worth(fleet: Fleet, lost: t.Sequence[Stranded], price_list: t.Sequence[Price]) -> Worth:
    """What stranded devices are worth. The price of a device is the first that applies to it."""
    names = {(one.node, one.device) for one in lost if one.certain}
    each: dict[tuple[str, str], Value] = {}
    links: dict[tuple[str, str], float] = {}  # by node and PCI address
    for node in fleet.nodes.values():
        for offer in node.offers:
            key = (node.name, "/".join(identify(offer)))
            if key in names:
                value = Value(_gbps(offer), next((one.price for one in price_list if one.applies_to(offer)), None))
                each[key] = value
                link = (node.name, offer.address or key[1])
                links[link] = max(links.get(link, 0.0), value.gbps or 0.0)
    money = round(sum(one.money or 0 for one in each.values()), 2) if price_list else None
    unpriced = sum(one.money is None for one in each.values()) if price_list else 0
    return Worth(len(each), round(sum(links.values()), 3), money, unpriced, each)


def _gbps(offer: Offer) -> float | None:
    entry = (offer.device.get("capacity") or {}).get(BANDWIDTH)
    if entry:
        return round(float(quantity.parse(entry["value"])) / 1e9, 3)
    mbps = value_of(attribute(offer, f"{offer.driver}/{SPEED}"))
    return round(mbps / 1e3, 3) if isinstance(mbps, int) else None
