# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What stranded devices are worth: the bandwidth that they publish, and money where the site gives prices."""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass

from ..kube import quantity
from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.published import value_of
from ..scheduler.search_devices import attribute, identify
from ..vendors.offer import Offer
from .fleet import Fleet
from .stranded import Stranded

#: The capacity of a NIC's link, in bits per second.
BANDWIDTH = "bandwidth"


@dataclass(frozen=True)
class Price:
    """What a device of a driver costs, in the site's unit, if it has these values of attributes."""

    driver: str
    price: float
    attributes: t.Mapping[str, str | int | bool]

    def holds(self, offer: Offer) -> bool:
        """Whether it applies to this device."""
        return offer.driver == self.driver and all(
            value_of(attribute(offer, name if "/" in name else f"{self.driver}/{name}")) == value
            for name, value in self.attributes.items()
        )


@dataclass(frozen=True)
class Worth:
    """What some devices are worth. `gbps` are gigabits per second; `unpriced` devices have no price."""

    devices: int
    gbps: float
    money: float | None
    unpriced: int


def prices(given: t.Sequence[ObjectView], path: str = "prices") -> list[Price]:
    """The prices of a site: mappings with `driver`, `price` and `attributes`. Raises Problems."""
    found, problems = [], []
    for number, one in enumerate(given):
        place = f"{path}[{number}]"
        price, attributes = one.get("price"), one.get("attributes") or {}
        if set(one) - {"driver", "price", "attributes"} or not one.get("driver"):
            problems.append(Problem(place, "must have driver and price, and may have attributes", "bad-price", ""))
        elif isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
            problems.append(Problem(f"{place}.price", f"{price!r} is not a number from 0 on", "bad-price", ""))
        elif not isinstance(attributes, dict):
            problems.append(Problem(f"{place}.attributes", "is not a mapping", "wrong-type", ""))
        else:
            found.append(Price(str(one["driver"]), float(price), attributes))
    if problems:
        raise Problems(problems)
    return found


def worth(fleet: Fleet, lost: t.Sequence[Stranded], given: t.Sequence[Price]) -> Worth:
    """What stranded devices are worth, each at the first price that applies to it. Money is None without prices."""
    names = {(one.node, one.device) for one in lost if one.certain}
    gbps, money, unpriced, count = 0.0, 0.0, 0, 0
    for node in fleet.nodes.values():
        for offer in node.offers:
            if (node.name, "/".join(identify(offer))) not in names:
                continue
            count += 1
            entry = (offer.device.get("capacity") or {}).get(BANDWIDTH)
            gbps += float(quantity.parse(entry["value"])) / 1e9 if entry else 0
            price = next((one.price for one in given if one.holds(offer)), None)
            money += price or 0
            unpriced += price is None
    return Worth(count, round(gbps, 3), round(money, 2) if given else None, unpriced if given else 0)
