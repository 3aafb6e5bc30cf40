# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Counts how much of each resource a fleet's devices provide, and reports devices that Kueue would count wrongly."""

from __future__ import annotations

import json
import math
import typing as t
from dataclasses import dataclass, field
from fractions import Fraction

from ..cel.engine import Engine
from ..claims.selector_cache import SelectorCache
from ..kube import quantity
from ..kube.objects import Object, ObjectView
from ..kube.reader import Reader, child
from ..scheduler.published import Nodes, PublishedNode
from ..scheduler.search_devices import DeviceId, consumption, identify
from ..scheduler.search_requests import expressions
from ..scheduler.search_selection import FAILS, MAYBE, YES, Selection
from ..vendors.drivers import knowledge
from ..vendors.offer import Offer
from ..vendors.offers import offers, unpredictable
from ..vendors.server import Server
from .inventory import Resource

_ZERO = Fraction()


@dataclass
class Supply:
    """The amount of a resource in a fleet: what is certain, and the maximum.

    `devices` are those that the classes and the selector of the resource select, `excluded` those of the classes that
    the selector excludes. `unclear` has the nodes with unknown devices, and the reason.
    """

    certain: Fraction = _ZERO
    maximum: Fraction = _ZERO
    devices: list[Offer] = field(default_factory=list)
    excluded: list[Offer] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)


class Fleet:
    """The devices of the nodes, and which of them selectors match. `nodes` are as for the claims of a site.

    `engine` has the features of the scheduler. Raises Problems if a driver's options are invalid.
    """

    def __init__(self, nodes: Nodes, drivers: ObjectView, engine: Engine, server: Server) -> None:
        self.offers: dict[str, tuple[Offer, ...]] = {}
        self.unclear: dict[str, dict[str, str]] = {}
        self.selection = Selection(SelectorCache(engine))
        #: Kueue compiles selectors with all optional features off (pkg/dra/claims.go, celCache).
        self.kueue = Engine(consumable_capacity=False, list_attributes=False)
        self._in_kueue = Selection(SelectorCache(self.kueue))
        known = {name: knowledge(name, options or {}) for name, options in drivers.items()}
        unpredicted = {name: f"a probe does not show what {name} publishes" for name in unpredictable(drivers)}
        for node in sorted(nodes):
            description = nodes[node]  # the published devices, or the facts of a probe
            if isinstance(description, PublishedNode):
                self.offers[node] = tuple(server.stored(offer) for offer in description.offers)
                self.unclear[node] = dict(description.unclear)
                continue
            try:
                self.offers[node] = tuple(offers(node, description, drivers, known, server))
                self.unclear[node] = unpredicted
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                self.offers[node] = ()
                self.unclear[node] = {"": f"the facts are not those of topology_info: {type(error).__name__} {error}"}

    def verdict(self, texts: t.Sequence[str], offer: Offer) -> str:
        """YES, NO, MAYBE or FAILS: whether all selectors match a device."""
        answers = []
        for text in texts:
            answers.append(self.selection.judge(text, offer))
            if answers[-1] not in (YES, MAYBE):
                return answers[-1]
        return MAYBE if MAYBE in answers or offer.possible else YES

    def kueue_selects(self, text: str, offer: Offer) -> str:
        """YES, NO, MAYBE or FAILS: whether a selector matches a device in Kueue, which must be able to evaluate it."""
        return self._in_kueue.judge(text, offer)

    def fails_in_kueue(self, texts: t.Sequence[str]) -> str:
        """Why Kueue never admits a request with these selectors; empty if no reason is known.

        The selectors of the class must come first.
        """
        for text in texts:
            errors = self.kueue.check(text)
            if errors:
                return f"Kueue cannot evaluate the selector {text!r}: {errors[0]}"
        for offer in (offer for offered in self.offers.values() for offer in offered):
            for text in texts:
                verdict = self._in_kueue.judge(text, offer)
                if verdict == FAILS:
                    return f"the selector {text!r} fails on {'/'.join(identify(offer))} in Kueue"
                if verdict != YES:
                    break
        return ""

    def unclear_for(self, texts: t.Sequence[str]) -> dict[str, str]:
        """The nodes on which a driver may have further devices that the selectors match, and the reason."""
        reason_by_node = {}
        for node, reasons in self.unclear.items():
            for driver, reason in reasons.items():
                if not driver or self._may_match(texts, driver):
                    reason_by_node[node] = reason
        return reason_by_node

    def _may_match(self, texts: t.Sequence[str], driver: str) -> bool:
        """Whether some device of a driver can match, if nothing else is known about it."""
        test = f"device.driver == {json.dumps(driver)}"
        drivers = [text for text in texts if text.startswith("device.driver == ")]
        return not drivers or any(text == test or text.startswith(f"{test} &&") for text in drivers)

    def is_assumed_not_to_match(self, texts: t.Sequence[str], offer: Offer) -> bool:
        """Whether a device matches only if an assumption about its attributes is wrong (`Offer.assumed`).

        `verdict` is MAYBE for such a device.
        """
        unknown_values = self.selection.unknown_values
        return any(
            self.selection.judge(text, offer) == MAYBE and unknown_values[text, id(offer)] <= offer.assumed
            for text in texts
        )


def class_expressions(device_class: ObjectView) -> list[str]:
    """The CEL expressions of a v1 DeviceClass."""
    return expressions((device_class.get("spec") or {}).get("selectors") or ())


class SupplyCounter:
    """Counts resources. `classes` are v1 DeviceClasses by name."""

    def __init__(self, fleet: Fleet, classes: t.Mapping[str, Object], reader: Reader) -> None:
        self.fleet = fleet
        self.classes = classes
        self.reader = reader

    def supplies(self, resources: t.Sequence[Resource]) -> dict[str, Supply]:
        """The supply of each resource with classes. Reports classes whose devices Kueue would count wrongly."""
        supplies = {}
        for resource in resources:
            if resource.broken or not resource.classes:
                continue
            supplies[resource.name] = supply = self._supply(resource)
            self._check_sharing(resource, supply)
            self._check_drivers(resource, supply)
            self._check_selector(resource)
            if resource.capacity:
                self._check_request_policies(resource, supply)
        self._check_counted_twice(resources, supplies)
        return supplies

    def _supply(self, resource: Resource) -> Supply:
        supply = Supply()
        sets: set[tuple[str, str, str]] = set()
        seen: set[DeviceId] = set()  # two classes of the resource may select the same device
        selector = self._selector(resource)
        for position, name in enumerate(resource.classes):
            path = child(child(resource.path, "classes"), position)
            if name not in self.classes:
                fix = "describe it in dra_claims_classes, or name a class that the claims of the site have"
                self.reader.problem(path, f"there is no class {name!r}", "unknown-class", fix)
                continue
            texts = class_expressions(self.classes[name])
            reason = self.fleet.fails_in_kueue(texts)
            if reason:
                fix = "select by an attribute, such as type, and guard it with has()"
                self.reader.problem(path, reason, "unread-selector", fix)
                continue
            supply.unclear.update(self.fleet.unclear_for(texts))
            for offered in self.fleet.offers.values():
                for offer in offered:
                    verdict = self.fleet.verdict(texts, offer)
                    if verdict == FAILS:
                        device = "/".join(identify(offer))
                        message = f"a selector of class {name} fails on {device}: no claim of it is ever allocated"
                        self.reader.problem(path, message, "selector-fails", "guard attributes with has()")
                        return supply
                    if verdict in (YES, MAYBE) and identify(offer) not in seen:
                        seen.add(identify(offer))
                        self._add(resource, selector, supply, offer, verdict == YES, sets)
        return supply

    def _add(
        self,
        resource: Resource,
        selector: str,
        supply: Supply,
        offer: Offer,
        certain: bool,
        sets: set[tuple[str, str, str]],
    ) -> None:
        if selector:
            verdict = self.fleet.kueue_selects(selector, offer)
            if verdict not in (YES, MAYBE):
                if _units(resource, offer, set()) is not None:
                    supply.excluded.append(offer)
                return
            certain = certain and verdict == YES
        amount = _units(resource, offer, sets)
        if amount is None:
            return
        supply.devices.append(offer)
        supply.maximum += amount
        supply.certain += amount if certain else _ZERO

    def _check_sharing(self, resource: Resource, supply: Supply) -> None:
        """Report devices that several claims can share but that count as whole devices, and devices that only one claim
        can have but that count by amount."""
        path = child(resource.path, "classes")
        shared = [offer for offer in supply.devices if offer.device.get("allowMultipleAllocations")]
        exclusive = [offer for offer in supply.devices if not offer.device.get("allowMultipleAllocations")]
        if resource.whole_devices and shared:
            device = "/".join(identify(shared[0]))
            fix = "name the capacity that is shared, such as bandwidth"
            message = f"several claims can have {device} at once, but Kueue would count each as a whole device"
            self.reader.problem(path, message, "shared-device", fix)
        if resource.capacity and exclusive:
            device = "/".join(identify(exclusive[0]))
            message = (
                f"only one claim can have {device}, but Kueue would charge the claim for the {resource.capacity} that "
                "it requests, not for the whole device"
            )
            fix = "use a class that selects shared devices only"
            self.reader.problem(path, message, "whole-device", fix)

    def _check_drivers(self, resource: Resource, supply: Supply) -> None:
        """Set the driver of a resource, or report that it has several: Kueue reads a capacity or counter from the
        slices of one driver."""
        if resource.whole_devices:
            return
        path = child(resource.path, "driver")
        names = sorted({offer.driver for offer in supply.devices})
        others = [name for name in names if name != resource.driver]
        if resource.driver and others:
            message = f"devices of {', '.join(others)} are also in its classes, but Kueue would not charge them"
            self.reader.problem(path, message, "other-driver", "use a resource and classes for each driver")
        elif len(names) == 1:
            resource.driver = names[0]
        elif names:
            message = f"its classes have devices of several drivers: {', '.join(names)}"
            self.reader.problem(path, message, "ambiguous", "use a resource and classes for each driver")
        elif not resource.driver:
            message = f"no known device has the {resource.capacity or resource.counter}, so its driver is unknown"
            self.reader.problem(path, message, "missing", "name the driver, and probe the nodes")

    def _selector(self, resource: Resource) -> str:
        """The selector of a resource; empty if it has none, or one that Kueue cannot evaluate (`selector_error`)."""
        return "" if resource.selector and self.fleet.kueue.check(resource.selector) else resource.selector

    def _check_selector(self, resource: Resource) -> None:
        """Report a selector that fails on a device: Kueue evaluates it on all devices of the driver."""
        selector = self._selector(resource)
        if not (selector and resource.driver):
            return
        reason = self.fleet.fails_in_kueue([f"device.driver == {json.dumps(resource.driver)}", selector])
        if reason:
            message = f"{reason}: it would admit no claim of the classes"
            self.reader.problem(
                child(resource.path, "selector"), message, "selector-fails", "guard attributes with has()"
            )

    def _check_request_policies(self, resource: Resource, supply: Supply) -> None:
        """Report devices of a resource with different request policies.

        Kueue charges the largest amount that any device of the class would take.
        """
        offers_by_policy: dict[str, Offer] = {}
        for offer in supply.devices:
            entry = offer.device["capacity"][resource.capacity]
            policy = entry.get("requestPolicy") or {}
            plain = None if policy.get("default") is not None else entry["value"]
            offers_by_policy.setdefault(json.dumps([policy, plain], sort_keys=True), offer)
        if len(offers_by_policy) > 1:
            first, second = ("/".join(identify(offer)) for offer in list(offers_by_policy.values())[:2])
            message = (
                f"{first} and {second} have different request policies of {resource.capacity}: Kueue charges the "
                "larger amount for both"
            )
            fix = "use a class and a resource for each"
            self.reader.problem(child(resource.path, "classes"), message, "several-policies", fix)

    def _check_counted_twice(self, resources: t.Sequence[Resource], supplies: t.Mapping[str, Supply]) -> None:
        """Report devices that two resources count: the same device, or one function that two drivers publish."""
        first: dict[tuple[str, ...], tuple[Resource, Offer]] = {}
        for resource in resources:
            reported: set[str] = set()
            for offer in supplies[resource.name].devices if resource.name in supplies else ():
                keys: list[tuple[str, ...]] = [identify(offer)]
                if offer.address:
                    keys.append((offer.node, offer.address))
                for key in keys:
                    first_resource, first_offer = first.setdefault(key, (resource, offer))
                    twice = first_resource is not resource and (len(key) == 3 or first_offer.driver != offer.driver)
                    if (
                        twice
                        and first_resource.name not in reported
                        and not (resource.counter and first_resource.counter)
                    ):
                        reported.add(first_resource.name)
                        message = f"{'/'.join(identify(offer))} is already counted as {first_resource.short}"
                        message += f" ({'/'.join(identify(first_offer))})" if first_offer.driver != offer.driver else ""
                        fix = "use classes that have no device in common"
                        self.reader.problem(child(resource.path, "classes"), message, "counted-twice", fix)


def _units(resource: Resource, offer: Offer, sets: set[tuple[str, str, str]]) -> Fraction | None:
    """The amount that a device adds to a resource; None if the device does not have the capacity or counter.

    `sets` are the counter sets counted so far; the function adds those of the device.
    """
    if resource.capacity:
        entry = (offer.device.get("capacity") or {}).get(resource.capacity)
        return None if entry is None else quantity.parse(entry["value"])
    if resource.counter:
        amount = None
        for counter_set in offer.counter_sets:
            counter = counter_set["counters"].get(resource.counter)
            if counter is not None:
                key = (offer.driver, offer.pool, str(counter_set["name"]))
                amount = (amount or _ZERO) + (_ZERO if key in sets else quantity.parse(counter["value"]))
                sets.add(key)
        return amount
    return Fraction(1)


@dataclass
class _Demand:
    """The minimum number of devices that a resource's guarantees need. `per_device` is the minimum that one device uses
    of each counter."""

    resource: Resource
    devices: int
    per_device: dict[str, Fraction]


def overcommitted(
    resources: t.Sequence[Resource], supplies: t.Mapping[str, Supply], guaranteed: t.Mapping[str, Fraction]
) -> list[tuple[Resource, str]]:
    """Resources whose guarantees together need more than the counters that their devices share, and a message for each.

    A NIC and its shares use the same counter, and so do a GPU and its partitions. Reported guarantees cannot be met
    with any choice of devices. Guarantees that are not reported may still not fit.
    """
    reports = []
    sets: dict[tuple[str, str, str], ObjectView] = {}
    users: dict[tuple[str, str, str], set[str]] = {}
    for resource in resources:
        for offer in supplies[resource.name].devices if resource.name in supplies else ():
            for counter_set in offer.counter_sets:
                key = (offer.driver, offer.pool, str(counter_set["name"]))
                sets[key] = counter_set
                users.setdefault(key, set()).add(resource.name)
    groups = sorted({tuple(sorted(names)) for names in users.values() if len(names) > 1})
    for group in groups:
        members = [resource for resource in resources if resource.name in group]
        demands = [
            _demand(resource, supplies[resource.name], guaranteed.get(resource.name, _ZERO)) for resource in members
        ]
        counter_sets = [sets[key] for key, names in users.items() if names & set(group)]
        totals: dict[str, Fraction] = {}
        for entry in counter_sets:
            for name, counter in entry["counters"].items():
                totals[name] = totals.get(name, _ZERO) + quantity.parse(counter["value"])
        for name in sorted(totals):
            taken = [demand.devices * demand.per_device.get(name, _ZERO) for demand in demands]
            if sum(taken, _ZERO) > totals[name] and sum(1 for amount in taken if amount) > 1:
                parts = " and ".join(f"{demand.devices} device(s) for {demand.resource.short}" for demand in demands)
                message = (
                    f"the guarantees need at least {parts}, but these devices share the counter {name}, which is too "
                    "small for all of them"
                )
                reports.append((members[-1], message))
                break
    return reports


def _demand(resource: Resource, supply: Supply, guaranteed: Fraction) -> _Demand:
    minimum: dict[str, Fraction] = {}
    largest = Fraction(1)
    for number, offer in enumerate(supply.devices):
        amounts: dict[str, Fraction] = {}
        for (_driver, _pool, _set, name), value in consumption(offer):
            amounts[name] = amounts.get(name, _ZERO) + value
        common = minimum.keys() & amounts.keys()
        minimum = {name: min(minimum[name], amounts[name]) for name in common} if number else amounts
        if resource.capacity:
            largest = max(largest, quantity.parse(offer.device["capacity"][resource.capacity]["value"]))
    if resource.counter:
        return _Demand(resource, 0, {})  # the counter itself is the sum
    return _Demand(resource, math.ceil(guaranteed / largest), minimum)
