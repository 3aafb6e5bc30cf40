# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How an API server stores published devices, and how its scheduler sees them."""

from __future__ import annotations

import json
import typing as t
from dataclasses import replace

from ..apiserver import features
from ..kube import versions
from ..kube.objects import Object, ObjectView
from .offer import Offer

#: The first minor version whose scheduler shares devices by default. On older ones our driver publishes no shares.
SHARES_SINCE = 36


class Server:
    """An API server and its scheduler. The server drops fields of disabled feature gates; the scheduler sees the taints
    of DeviceTaintRules.

    `rules` are DeviceTaintRules of any version. Those with CEL selectors or a class, which exist in 1.34 only, are not
    applied. `keeps_counters` says whether the server stores counters, `shares` whether our driver publishes devices for
    shares of NICs. Raises ValueError for an unknown release, and a feature gate that is not
    true or false.
    """

    def __init__(
        self,
        kubernetes: str = f"1.{versions.NEWEST}",
        gates: features.Gates = None,
        rules: t.Sequence[ObjectView] = (),
    ) -> None:
        features.check_gates(gates)
        minor = versions.minor_of(kubernetes)
        self.minor, self.gates = minor, gates
        self.dropped = features.dropped_device_fields(minor, gates)
        self.keeps_counters = "consumesCounters" not in self.dropped
        self.shares = self.keeps_counters and "allowMultipleAllocations" not in self.dropped and minor >= SHARES_SINCE
        self.rules = [rule["spec"] for rule in rules]
        # in 1.34 the feature gate of taints also enables DeviceTaintRules
        self.applies_rules = features.enabled("DRADeviceTaints" if minor == 34 else "DRADeviceTaintRules", minor, gates)

    def without_dropped(self, obj: Object) -> Object:
        """A v1 object without the fields that the server drops."""
        stored = json.loads(json.dumps(obj))
        features.drop_disabled(stored, self.minor, self.gates)
        return t.cast("Object", stored)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The kinds of constraints that the scheduler supports. With any other kind, the scheduling of a pod fails."""
        distinct = features.accepts_distinct_attribute(self.minor, self.gates)
        return ("matchAttribute", "distinctAttribute") if distinct else ("matchAttribute",)

    def _rule_taints(self, offer: Offer) -> list[ObjectView]:
        """The taints that rules add to a device."""
        identity = {"driver": offer.driver, "pool": offer.pool, "device": offer.device["name"]}
        return [
            rule["taint"]
            for rule in self.rules
            if self.applies_rules
            and all(value in (None, identity.get(name)) for name, value in (rule.get("deviceSelector") or {}).items())
        ]

    def stored_from(self, offer: Offer, old: Server) -> Offer:
        """The device as this scheduler sees it. `offer` is the device as the scheduler of `old` sees it."""
        return self.stored(old._without_rule_taints(offer))

    def moved_to(self, offer: Offer, node: str, pool: str) -> Offer:
        """The same device on another node, as this scheduler sees it."""
        return self.stored(replace(self._without_rule_taints(offer), node=node, pool=pool))

    def _without_rule_taints(self, offer: Offer) -> Offer:
        """The device without the taints of rules."""
        rule_taints = self._rule_taints(offer)
        if not rule_taints:
            return offer
        remaining = [taint for taint in offer.device.get("taints") or () if taint not in rule_taints]
        device = {name: value for name, value in offer.device.items() if name != "taints"}
        return replace(offer, device={**device, **({"taints": remaining} if remaining else {})})

    def stored(self, offer: Offer) -> Offer:
        """The device as the scheduler sees it. `offer` is the device as its driver publishes it."""
        device = {name: value for name, value in offer.device.items() if name not in self.dropped}
        taints = self._rule_taints(offer)
        if taints:
            device["taints"] = [*device.get("taints", ()), *taints]
        return replace(offer, device=device, counter_sets=offer.counter_sets if self.keeps_counters else ())
