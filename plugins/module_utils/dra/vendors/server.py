# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Published devices as an API server stores them and its scheduler sees them."""

from __future__ import annotations

import json
import typing as t
from dataclasses import replace

from ..apiserver import features
from ..kube import versions
from ..kube.objects import Object, ObjectView
from .offer import Offer

#: The first minor version whose scheduler divides devices by default; before it, the driver publishes none to divide.
SHARES_SINCE = 36


class Server:
    """An API server and its scheduler: fields behind a gate that is off are lost, and taint rules add their taints.

    `rules` are DeviceTaintRules of any version. Their selectors and classes, which 1.34 has, are ignored. `counts` is
    whether counters are kept, `shares` whether the driver publishes devices for shares of NICs. Raises ValueError for a
    release that is not known.
    """

    def __init__(
        self,
        kubernetes: str = f"1.{versions.NEWEST}",
        gates: features.Gates = None,
        rules: t.Sequence[ObjectView] = (),
    ) -> None:
        minor = versions.minor_of(kubernetes)
        self.minor, self.gates = minor, gates
        self.lost = features.lost_of_devices(minor, gates)
        self.counts = "consumesCounters" not in self.lost
        self.shares = self.counts and "allowMultipleAllocations" not in self.lost and minor >= SHARES_SINCE
        self.rules = [rule["spec"] for rule in rules]
        # 1.34 has rules behind the gate of taints
        self.obeys = features.enabled("DRADeviceTaints" if minor == 34 else "DRADeviceTaintRules", minor, gates)

    def claim(self, obj: Object) -> Object:
        """A v1 object without the fields that the server drops."""
        kept = json.loads(json.dumps(obj))
        features.drop_disabled(kept, self.minor, self.gates)
        return t.cast("Object", kept)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The kinds of constraints that its scheduler knows: others end the scheduling of a pod."""
        distinct = features.distinguishes(self.minor, self.gates)
        return ("matchAttribute", "distinctAttribute") if distinct else ("matchAttribute",)

    def _ruled(self, offer: Offer) -> list[ObjectView]:
        """The taints that rules give a device."""
        here = {"driver": offer.driver, "pool": offer.pool, "device": offer.device["name"]}
        return [
            rule["taint"]
            for rule in self.rules
            if self.obeys and all(value == here.get(name) for name, value in (rule.get("deviceSelector") or {}).items())
        ]

    def again(self, offer: Offer, old: Server) -> Offer:
        """The device as this scheduler sees it, made from what the scheduler of `old` saw."""
        return self.keeps(old._published(offer))

    def moved(self, offer: Offer, node: str, pool: str) -> Offer:
        """The same device on another node, as this scheduler sees it."""
        return self.keeps(replace(self._published(offer), node=node, pool=pool))

    def _published(self, offer: Offer) -> Offer:
        """The device without the taints of rules."""
        ruled = self._ruled(offer)
        if not ruled:
            return offer
        own = [taint for taint in offer.device.get("taints") or () if taint not in ruled]
        device = {name: value for name, value in offer.device.items() if name != "taints"}
        return replace(offer, device={**device, **({"taints": own} if own else {})})

    def keeps(self, offer: Offer) -> Offer:
        """The device as the scheduler sees it."""
        device = {name: value for name, value in offer.device.items() if name not in self.lost}
        taints = self._ruled(offer)
        if taints:
            device["taints"] = [*device.get("taints", ()), *taints]
        return replace(offer, device=device, counter_sets=offer.counter_sets if self.counts else ())
