# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The promises of a claim about its devices, and whether they still hold."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..cel.selector_text import conjuncts, mentioned
from ..claims.inventory import NEAREST
from ..claims.pair_form import PairForm, pair_forms
from ..kube.objects import Object
from ..scheduler.published import Published, hidden_attributes, value_of
from ..scheduler.search_devices import LIST, attribute, comparable
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import Engine
from ..vendors.drivers import DRIVERS
from .claim_devices import PROBE_AGAIN, ClaimDevices
from .devices import KERNEL, LOCALITY, Facts, nearer
from .verdicts import BROKEN, KEPT, UNKNOWN, Device, Promise

_CORRECT_SELECTOR = "correct the selector; if an attribute may be missing, guard it with has()"


class ClaimPromises(ClaimDevices):
    """The constraints and selectors of an allocated claim."""

    def _constraints(self) -> list[Promise]:
        """The promises of constraints on more than one allocated device."""
        promises = []
        for entry in self.spec.get("constraints") or ():
            distinct = "matchAttribute" not in entry
            name = entry.get("distinctAttribute" if distinct else "matchAttribute")
            if name is None:
                continue
            covered = [device for device in self.devices if _covers(entry.get("requests"), device.request)]
            # a constraint on an alternative that was not allocated has no effect
            if len(covered) > 1:
                promises.append(self._constraint(name, distinct, covered))
        return promises

    def _constraint(self, name: str, distinct: bool, covered: list[Device]) -> Promise:
        requests = list(dict.fromkeys(device.request for device in covered))
        promise = Promise("distinct" if distinct else "match", name, requests, UNKNOWN)
        unpublished = [device for device in covered if device.published is None]
        if unpublished:
            places = " and ".join(device.shown for device in unpublished)
            promise.reason = f"the current place of {places} is unknown"
            promise.fix = "see the findings of the claim's devices"
            return promise
        published_devices = [(device, device.published) for device in covered if device.published is not None]
        for device, published in published_devices:
            promise.values[device.shown] = value_of(attribute(published.offer, name))
        missing = [shown for shown, value in promise.values.items() if value is None]
        if missing:
            promise.reason = f"the attribute {name} is no longer published for {' and '.join(missing)}"
            promise.fix = "check whether the driver was downgraded or reconfigured: look at its slices and its version"
            return promise
        unreported = [
            shown for shown, value in promise.values.items() if value in ("", -1) and not isinstance(value, bool)
        ]
        if unreported:
            value = promise.values[unreported[0]]
            shown = " and ".join(unreported)
            promise.reason = f"the value for {shown} is {value!r}, which means that the driver does not know it"
            promise.fix = f"align on another attribute than {name}, or repair what prevents the driver from reading it"
            return promise
        holds = _holds([_comparable_value(published, name) for _device, published in published_devices], distinct)
        promise.verdict = KEPT if holds else BROKEN
        reason = ", ".join(f"{shown} has {value}" for shown, value in promise.values.items())
        if not holds:
            promise.reason = f"the devices {'have the same' if distinct else 'differ in'} {name}: {reason}"
            promise.fix = "delete the pod and the claim, so that they are scheduled again with what is published now"
        nodes = {published.node for _device, published in published_devices if published.node}
        if name in LOCALITY and not distinct and len(nodes) > 1:
            promise.verdict, promise.reason = (
                BROKEN,
                f"equal values of {name} on several nodes do not mean the same location",
            )
            return promise
        self._check_kernel(promise, name, distinct, published_devices)
        return promise

    def _check_kernel(
        self, promise: Promise, name: str, distinct: bool, published_devices: list[tuple[Device, Published]]
    ) -> None:
        """Compare what was published with what the kernel of the node reports."""
        machine = self.machine
        if name not in KERNEL:
            promise.proven = name not in LOCALITY and promise.verdict == KEPT
            return
        if machine is None or not machine.probed:
            return
        readings = [
            (device.shown, value_of(attribute(published.offer, name)), machine.kernel_value(published, name))
            for device, published in published_devices
            if device.address
        ]
        promise.kernel = {shown: kernel for shown, _value, kernel in readings}
        lists = any(isinstance(value, list) for _shown, value, _kernel in readings)
        complete = len(readings) == len(published_devices) and None not in promise.kernel.values()
        kernel_holds = _holds([kernel for _shown, _value, kernel in readings], distinct) if complete else None
        differences = [reading for reading in readings if _primary(reading[1]) != reading[2]]
        if not differences:
            # the kernel confirms only the first value of a list: if these are equal, the lists have a common item;
            # otherwise nothing is proven
            promise.proven = (
                complete and promise.verdict == KEPT and (not lists or (bool(kernel_holds) and not distinct))
            )
            return
        reason = "; ".join(
            dict.fromkeys(
                f"{shown}: the driver publishes {value}, the kernel reports {'nothing' if kernel is None else kernel}"
                for shown, value, kernel in differences
            )
        )
        if kernel_holds is not None and not lists and kernel_holds == (promise.verdict == KEPT):
            # driver and kernel report different values, but these lead to the same verdict
            self._add_finding("warning", "driver-and-kernel-differ", f"{name}: {reason}", PROBE_AGAIN)
            promise.proven = kernel_holds
            return
        promise.verdict = UNKNOWN
        promise.reason = f"the slices and the probed topology of {self.node} disagree on {name}: {reason}"
        promise.fix = PROBE_AGAIN

    def _nearest(self) -> list[Promise]:
        """Whether the devices of paired alternatives are still the nearest ones of the node."""
        promises = []
        for form in pair_forms(self.spec):
            first = self._allocated(form.first, form.first_subs)
            second = self._allocated(form.second, form.second_subs)
            if first and second:
                promises.append(self._nearest_pair(form, first, second))
        return promises

    def _allocated(self, request: str, names: t.Collection[str]) -> Device | None:
        """The device that was allocated for one of these alternatives of a request."""
        requests = {f"{request}/{name}" for name in names}
        return next((device for device in self.devices if device.request in requests), None)

    def _nearest_pair(self, form: PairForm, gpu: Device, nic: Device) -> Promise:
        promise = Promise("nearest", "the map of the board", [gpu.request, nic.request], KEPT)
        fix = "render the claims again for the current boards, then delete the pod and the claim to get another pair"
        if not form.allowed(gpu.request.partition("/")[2], nic.request.partition("/")[2]):
            promise.verdict, promise.fix = BROKEN, fix
            promise.reason = f"{gpu.shown} and {nic.shown} are not a pair of this claim"
            return promise
        if self.machine is None or gpu.published is None or nic.published is None:
            return promise
        level = self.machine.level(gpu.address, nic.address)[0]
        promise.values = {nic.shown: level}
        if level == "UNKNOWN":
            promise.verdict, promise.fix = UNKNOWN, PROBE_AGAIN
            promise.reason = f"the probe of {self.node} does not report how near {nic.shown} is to {gpu.shown}"
            return promise
        candidates = [
            (self.machine.level(gpu.address, candidate.address)[0], candidate) for candidate in self._candidates(form)
        ]
        best = next(
            (entry for entry in candidates if not any(nearer(other[0], entry[0]) for other in candidates)), None
        )
        if best and nearer(best[0], level):
            promise.verdict, promise.fix = BROKEN, fix
            nearest_now = f"{best[1].name} is nearer now ({best[0]})"
            promise.reason = f"{nic.shown} is at level {level} from {gpu.shown}, but {nearest_now}"
            return promise
        promise.proven = self.machine.probed
        return promise

    def _candidates(self, form: PairForm) -> list[Published]:
        """The devices of the node that at least one alternative of the second request selects."""
        request = next(entry for entry in self.spec.get("requests") or () if entry["name"] == form.second)
        bodies = [sub for sub in request["firstAvailable"] if sub["name"] in form.second_subs]
        on_node = self.check.pools.on(self.node or "")
        return [device for device in on_node if any(self._matches(body, device) for body in bodies)]

    def _matches(self, body: Object, published: Published) -> bool:
        """Whether a request certainly selects a device. It does not if its class or a selector is unknown."""
        classes = self.check.classes or {}
        if body.get("deviceClassName") not in classes:
            return False
        entries = [*class_selectors(classes, body), *(body.get("selectors") or ())]
        texts = expressions(entries)
        if len(texts) < len(entries):
            return False
        try:
            return self.check.engine is not None and all(
                self.check.engine.matches(text, published.device, published.driver) for text in texts
            )
        except (EvaluationError, Uncheckable):
            return False

    def _selectors(self) -> list[Promise]:
        """Whether the devices still match the requests and classes. What cannot be checked is unknown."""
        all_promises: list[Promise] = []
        bodies = dict(_request_bodies(self.spec))
        for device in self.devices:
            body = bodies.get(device.request)
            if body is None or device.published is None:
                continue
            promises = []
            name = str(body.get("deviceClassName"))
            if self.check.classes is not None and name not in self.check.classes:
                reason = "the DeviceClass no longer exists, so its selectors are unknown"
                fix = "apply the class again: without it, claims of new pods cannot be allocated either"
                promises.append(Promise("class", name, [device.request], UNKNOWN, reason=reason, fix=fix))
            entries = [*class_selectors(self.check.classes or {}, body), *(body.get("selectors") or ())]
            promises += [self._selector(text, device, device.published) for text in expressions(entries)]
            if len(expressions(entries)) < len(entries):
                reason = "a selector is not of kind cel, and cannot be evaluated"
                fix = "check by hand whether the device still matches"
                promises.append(Promise("selector", name, [device.request], UNKNOWN, reason=reason, fix=fix))
            # what cannot be checked is reported once for all devices of a request
            all_promises += [
                promise for promise in promises if promise.verdict != UNKNOWN or promise not in all_promises
            ]
        return all_promises

    def _selector(self, text: str, device: Device, published: Published) -> Promise:
        promise = Promise("selector", text, [device.request], UNKNOWN)
        if self.check.engine is None:
            promise.reason, promise.fix = (
                "there is no CEL engine to evaluate it",
                "install cel-expr-python on the controller",
            )
            return promise
        try:
            promise.proven = self.check.engine.matches(text, published.device, device.driver)
            if promise.proven:
                promise.verdict = KEPT
                return promise
            unpublished = _unpublished_in_use(self.check.engine, text, published)
            if unpublished:
                reason = f"{device.driver} does not publish {', '.join(unpublished)} while a pod has the device"
                hint = DRIVERS[device.driver].hint("in_use")
                promise.reason, promise.fix = reason, "check again when no pod has it" + (f"; {hint}" if hint else "")
                return promise
            promise.verdict, promise.reason = BROKEN, f"{device.shown} no longer matches"
            promise.fix = "delete the pod and the claim to get another device, or change the request"
        except Uncheckable as error:
            promise.reason, promise.fix = str(error), "check by hand whether the device still matches"
        except EvaluationError as error:
            promise.reason, promise.fix = f"{device.shown}: {error}", _CORRECT_SELECTOR
        return promise

    def _preferences(self) -> list[Object]:
        """Which alternative of each firstAvailable request was allocated."""
        preferences: list[Object] = []
        allocated = {device.request.partition("/")[0]: device.request.partition("/")[2] for device in self.devices}
        paired: dict[str, tuple[str, ...]] = {form.second: form.second_subs for form in pair_forms(self.spec)}
        first_requests = {form.first for form in pair_forms(self.spec)}
        for request in self.spec.get("requests") or ():
            if request["name"] in first_requests:
                continue  # its alternatives are locations, none of which is better than another
            equal_alternatives = paired.get(request["name"], ())
            subs = [sub["name"] for sub in request.get("firstAvailable") or ()]
            names = list(dict.fromkeys(NEAREST if name in equal_alternatives else name for name in subs))
            chosen = allocated.get(request["name"], "")
            if chosen not in subs or (equal_alternatives and len(names) == 1):
                continue
            chosen = NEAREST if chosen in equal_alternatives else chosen
            better = names[: names.index(chosen)]
            entry = {"request": request["name"], "chosen": chosen, "rank": len(better) + 1, "of": len(names)}
            preferences.append({**entry, "better": better})
            if better:
                reason = f"request {request['name']} got {chosen}, its choice {len(better) + 1} of {len(names)}"
                fix = f"not available when it was scheduled: {', '.join(better)}; a new pod may get one of them"
                self._add_finding("note", "fallback", reason, fix)
        return preferences


def _covers(requests: t.Sequence[str] | None, request: str) -> bool:
    """Whether a constraint covers a result; the name of a request covers all its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _comparable_value(published: Published, name: str) -> t.Hashable:
    value = comparable(published.offer, name)
    return frozenset(value_of(attribute(published.offer, name)) or ()) if value is LIST else value


def _primary(value: object) -> object:
    """The primary value of an attribute: a single value, or the first of a list."""
    return value[0] if isinstance(value, list) and value else value


def _holds(values: t.Sequence[t.Any], distinct: bool) -> bool:
    """Whether the values are all the same or, with `distinct`, all different.

    Lists (gate DRAListTypeAttributes) are the same if they have a common item.
    """
    if any(isinstance(value, frozenset) for value in values):
        sets = [value if isinstance(value, frozenset) else frozenset([value[1]]) for value in values]
        if distinct:
            return all(not first & second for index, first in enumerate(sets) for second in sets[index + 1 :])
        return bool(frozenset.intersection(*sets))
    return len(set(values)) == (len(values) if distinct else 1)


def _unpublished_in_use(engine: Engine, text: str, published: Published) -> list[str]:
    """The attributes that are the only reason why a selector does not match, because the driver does not publish
    them while a pod has the device. Empty if a published value also prevents the match."""
    unpublished = hidden_attributes(published)
    needed: set[str] = set()
    for part in conjuncts(text) if mentioned(text, unpublished) else ():
        try:
            if engine.matches(part, published.device, published.driver):
                continue
        except (EvaluationError, Uncheckable):
            continue  # another part decides
        names = mentioned(part, unpublished)
        if not names:
            return []
        needed |= names
    return sorted(needed)


def _request_bodies(devices: Facts) -> t.Iterator[tuple[str, Facts]]:
    """The bodies of requests and alternatives, by the request name that results have."""
    for request in devices.get("requests") or ():
        if request.get("firstAvailable"):
            for sub in request["firstAvailable"]:
                yield f"{request['name']}/{sub['name']}", sub
        else:
            yield request["name"], request.get("exactly") or {}
