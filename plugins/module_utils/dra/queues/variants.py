# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Makes claim templates that Kueue accepts, and computes what Kueue charges for them.

Kueue 0.19 refuses preference lists (`firstAvailable`), all devices of a node (`allocationMode: All`) and admin access
(pkg/dra/claims.go). A template with a preference list gets a variant that requests one of the alternatives.
"""

from __future__ import annotations

import copy
import typing as t
from dataclasses import dataclass, field
from fractions import Fraction

from ..claims.inventory import NEAREST_ANNOTATION
from ..kube import limits, quantity
from ..kube.objects import Object, ObjectView
from ..scheduler.capacity import Unrepresentable, consumed, violates
from ..scheduler.search_devices import identify
from ..scheduler.search_requests import expressions
from ..scheduler.search_selection import MAYBE, YES
from ..vendors.offer import Offer
from .inventory import Amounts, Resource, TemplateChoice
from .supply import Fleet, Supply, class_expressions

#: The annotation of a variant with the name of its template.
VARIANT_OF = "lanewise.dev/queue-variant-of"
SUFFIX = "-queue"
_ZERO = Fraction()


class TemplateError(ValueError):
    """Kueue does not accept a template, or would charge less than is allocated. The message is the reason."""


@dataclass
class TeamTemplate:
    """A template of a team, and whether jobs in a queue can use it.

    `name` is the template's name. `name_in_queues` is the template that jobs in a queue must name: this one, or its
    variant. If it is empty, `reason` says why no job in a queue can use the template. `charges` is what Kueue charges
    for one claim. `left_out` are the alternatives that the variant does not have.
    """

    namespace: str
    name: str
    name_in_queues: str = ""
    reason: str = ""
    charges: Amounts = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def variant(
    template: ObjectView, choice: TemplateChoice | None, labels: t.Mapping[str, str]
) -> tuple[Object, list[str]]:
    """A v1 ResourceClaimTemplate without preference lists, and the alternatives that were left out.

    A template without preference lists is returned unchanged. `labels` are those of all objects of queues. Raises
    TemplateError.
    """
    devices = template["spec"]["spec"].get("devices") or {}
    requests = devices.get("requests") or []
    take = choice.take if choice else {}
    unknown = sorted(set(take) - {str(request["name"]) for request in requests if request.get("firstAvailable")})
    if unknown:
        raise TemplateError(f"{unknown[0]!r} is not one of its requests with alternatives")
    chosen = {
        str(request["name"]): _chosen_alternative(request, take)
        for request in requests
        if request.get("firstAvailable")
    }
    exact = [_exact_request(request, chosen) for request in requests]
    _check_requests(exact)
    if not chosen:
        return dict(template), []
    if NEAREST_ANNOTATION in (template["metadata"].get("annotations") or {}):
        raise TemplateError(
            "its alternatives are the nearest pairs of GPU and NIC on one type of machine, and a variant would allow "
            "only one of them"
        )
    result: Object = copy.deepcopy(dict(template))
    body = result["spec"]["spec"]["devices"]
    body["requests"] = exact
    for key, min_devices in (("constraints", 2), ("config", 1)):
        if key in body:
            reduced = (_reduced_entry(entry, chosen, min_devices, body["requests"]) for entry in body[key])
            body[key] = [entry for entry in reduced if entry]
            if not body[key]:
                del body[key]
    name = result["metadata"]["name"] + SUFFIX
    if limits.dns_subdomain(name):
        raise TemplateError(f"the name of its variant, {name!r}, would be too long")
    result["metadata"]["name"] = name
    result["metadata"]["labels"] = {**(result["metadata"].get("labels") or {}), **labels}
    result["metadata"]["annotations"] = {
        **(result["metadata"].get("annotations") or {}),
        VARIANT_OF: str(template["metadata"]["name"]),
    }
    left_out = [
        f"{request['name']}/{sub['name']}"
        for request in requests
        for sub in request.get("firstAvailable") or ()
        if sub["name"] != chosen[str(request["name"])]
    ]
    return result, left_out


def _check_requests(requests: t.Sequence[ObjectView]) -> None:
    """Raises TemplateError for requests without alternatives that Kueue refuses."""
    for request in requests:
        body, name = request["exactly"], request["name"]
        if body.get("adminAccess"):
            raise TemplateError(
                f"request {name} has admin access, which Kueue does not support: run its pods outside of queues"
            )
        if body.get("allocationMode") == "All":
            raise TemplateError(
                f"request {name} is for all devices of a node, whose number Kueue does not know: give a count"
            )


def _chosen_alternative(request: ObjectView, take: t.Mapping[str, str]) -> str:
    """The name of the alternative of a request that the variant requests: that of `take`, by default the first."""
    names = [str(sub["name"]) for sub in request["firstAvailable"]]
    chosen = take.get(str(request["name"]), names[0])
    if chosen not in names:
        raise TemplateError(f"request {request['name']} has no alternative {chosen!r}, only {', '.join(names)}")
    return chosen


def _exact_request(request: ObjectView, chosen: t.Mapping[str, str]) -> Object:
    """A request without alternatives: the same, or one for the chosen alternative."""
    if not request.get("firstAvailable"):
        return copy.deepcopy(dict(request))
    sub = next(sub for sub in request["firstAvailable"] if sub["name"] == chosen[str(request["name"])])
    body = {key: copy.deepcopy(value) for key, value in sub.items() if key != "name"}
    return {"name": request["name"], "exactly": body}


def _reduced_entry(
    entry: ObjectView, chosen: t.Mapping[str, str], min_devices: int, requests: t.Sequence[ObjectView]
) -> Object | None:
    """A constraint or configuration without the alternatives that were left out.

    None if no request remains, or if requests were removed and the rest is for fewer than `min_devices` devices.
    """
    references = entry.get("requests")
    if not references:
        return copy.deepcopy(dict(entry))
    names = []
    for name in map(str, references):
        base, _slash, sub = name.partition("/")
        if not sub or chosen.get(base) == sub:
            names.append(base)
    names = list(dict.fromkeys(names))
    counts = {str(request["name"]): int((request.get("exactly") or {}).get("count") or 1) for request in requests}
    if len(names) < len(set(map(str, references))) and sum(counts.get(name, 1) for name in names) < min_devices:
        return None
    return {**copy.deepcopy(dict(entry)), "requests": names} if names else None


class ChargeCalculator:
    """Calculates what Kueue charges for a claim, and checks that the scheduler cannot allocate more than that."""

    def __init__(
        self,
        resources: t.Sequence[Resource],
        supplies: t.Mapping[str, Supply],
        classes: t.Mapping[str, Object],
        fleet: Fleet,
    ) -> None:
        self.by_class: dict[str, list[Resource]] = {}
        for resource in resources:
            for name in resource.classes:
                self.by_class.setdefault(name, []).append(resource)
        self.supplies = supplies
        self.classes = classes
        self.fleet = fleet

    def charges(self, template: ObjectView, notes: list[str]) -> Amounts:
        """The amounts that one claim of a v1 template without alternatives is charged. Raises TemplateError."""
        amounts: Amounts = {}
        for request in (template["spec"]["spec"].get("devices") or {}).get("requests") or ():
            body = request["exactly"]
            name = str(body["deviceClassName"])
            if name not in self.by_class:
                raise TemplateError(f"class {name} is not in queues_resources, so Kueue admits no claim of it")
            selectors = expressions(body.get("selectors") or ())
            texts = [*class_expressions(self.classes.get(name) or {}), *selectors]
            error = self.fleet.fails_in_kueue(texts)
            if error:
                raise TemplateError(error)
            for resource in self.by_class[name]:
                amount = self._amount(resource, body, texts, f"request {request['name']}", notes)
                amounts[resource.name] = amounts.get(resource.name, _ZERO) + amount
        return amounts

    def _amount(
        self, resource: Resource, body: ObjectView, texts: t.Sequence[str], where: str, notes: list[str]
    ) -> Fraction:
        count = int(body.get("count") or 1)
        if resource.whole_devices:
            return Fraction(count)
        self._check_excluded(resource, texts, where)
        certain, possible = self._devices(resource, texts)
        devices = [*certain, *possible]
        if not devices:
            notes.append(f"{where}: no known device matches, so the charge is unknown")
            return _ZERO
        charge = self._charge(resource, devices, body, where, notes)
        # without the devices that may match, Kueue may charge less, which must also be enough
        least = self._charge(resource, certain, body, where, []) if certain and possible else charge
        if least != charge:
            notes.append(
                f"{where}: it is not certain that {'/'.join(identify(possible[0]))} matches; without such devices, "
                f"Kueue charges {quantity.canonical(least)} of {resource.short} for each device"
            )
        return count * charge

    def _check_excluded(self, resource: Resource, texts: t.Sequence[str], where: str) -> None:
        """Raises TemplateError if the request may get a device that the selector of the resource excludes."""
        supply = self.supplies.get(resource.name) or Supply()
        for offer in supply.excluded:
            if self.fleet.verdict(texts, offer) in (YES, MAYBE):
                raise TemplateError(
                    f"{where}: the scheduler could take {'/'.join(identify(offer))}, which the selector of "
                    f"{resource.short} excludes, so Kueue would not charge it: request only the selected devices"
                )

    def _devices(self, resource: Resource, texts: t.Sequence[str]) -> tuple[list[Offer], list[Offer]]:
        """The devices that a request can get: those that certainly match, and those that may match.

        On a probed node, attributes such as the profile of a partition are assumed. Devices that match only if such an
        assumption is wrong are left out if there are others.
        """
        supply = self.supplies.get(resource.name) or Supply()
        verdicts = [(self.fleet.verdict(texts, offer), offer) for offer in supply.devices]
        certain = [offer for verdict, offer in verdicts if verdict == YES]
        possible = [offer for verdict, offer in verdicts if verdict == MAYBE]
        likely = [offer for offer in possible if not self.fleet.is_assumed_not_to_match(texts, offer)]
        return certain, likely if certain or likely else possible

    @staticmethod
    def _charge(
        resource: Resource, devices: t.Sequence[Offer], body: ObjectView, where: str, notes: list[str]
    ) -> Fraction:
        """What Kueue charges for one of these devices. Raises TemplateError."""
        if resource.counter:
            return _by_counter(resource.counter, devices, where, notes)
        return _by_capacity(resource.capacity, devices, body, where)


def _by_counter(counter: str, devices: t.Sequence[Offer], where: str, notes: list[str]) -> Fraction:
    """Kueue charges the largest consumption of any of the devices (pkg/dra/counters.go, computeCounterCharges)."""
    amounts = {
        quantity.parse(entry["counters"][counter]["value"])
        for offer in devices
        for entry in offer.device.get("consumesCounters") or ()
        if counter in entry["counters"]
    }
    if not amounts:
        raise TemplateError(f"{where}: none of its devices consumes counter {counter}")
    if len(amounts) > 1:
        notes.append(
            f"{where}: its devices consume {_amounts_text(amounts)} of counter {counter}, and Kueue charges the maximum"
        )
    return Fraction(quantity.integer(max(amounts)))


def _by_capacity(capacity: str, devices: t.Sequence[Offer], body: ObjectView, where: str) -> Fraction:
    """Kueue charges the largest amount of any device that can provide it (pkg/dra/capacity.go). Raises TemplateError if
    the scheduler could take more than that."""
    requested = ((body.get("capacity") or {}).get("requests") or {}).get(capacity)
    charged, taken = [], []
    for offer in devices:
        entry = offer.device["capacity"][capacity]
        charge = kueue_charge(requested, entry)
        if charge is not None:
            charged.append(charge)
        try:
            amount = consumed(requested, entry)
        except Unrepresentable:
            continue
        if not violates(amount, entry.get("requestPolicy") or {}):
            taken.append(amount)
    if not charged:
        raise TemplateError(f"{where}: no device can provide the requested {capacity}")
    if taken and max(taken) > max(charged):
        raise TemplateError(
            f"{where}: the scheduler would take {quantity.canonical(max(taken))} of {capacity}, but Kueue would charge "
            f"{quantity.canonical(max(charged))}"
        )
    return max(charged)


def kueue_charge(requested: t.Any, entry: ObjectView) -> Fraction | None:
    """What Kueue charges for a request of a v1 DeviceCapacity; None if the device cannot provide the capacity.

    Source: chargeForDevice and roundToPolicy of pkg/dra/capacity.go. Amounts are whole numbers, rounded up.
    """
    policy = entry.get("requestPolicy") or {}
    default = policy.get("default")
    base = quantity.parse(requested if requested is not None else entry["value"] if default is None else default)
    if policy.get("validValues"):
        fitting = [quantity.parse(value) for value in policy["validValues"] if quantity.parse(value) >= base]
        return Fraction(quantity.integer(fitting[0])) if fitting else None
    valid = policy.get("validRange")
    if not valid:
        return Fraction(quantity.integer(base))
    amount = quantity.integer(base)
    if valid.get("min") is not None:
        minimum = quantity.integer(quantity.parse(valid["min"]))
        amount = max(amount, minimum)
        step = quantity.integer(quantity.parse(valid["step"])) if valid.get("step") is not None else 0
        if step > 0:
            amount = minimum - (minimum - amount) // step * step
    if valid.get("max") is not None and amount > quantity.integer(quantity.parse(valid["max"])):
        return None
    return Fraction(amount)


def _amounts_text(amounts: t.Iterable[Fraction]) -> str:
    return " or ".join(quantity.canonical(amount) for amount in sorted(amounts))
